//! What sizes of pools are worth: fixed ones beside those that follow the calls, for five kinds of traffic. Time is virtual, and the
//! same rule decides as in a server.
//!
//! `cargo bench -p isolator-bench --bench sizes` prints a table. Each cell has the share of warm calls, the 99th percentile of the time until a call
//! has a sandbox, and the mean memory of the sandboxes that wait.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Duration;

use isolator_pool::pool::sizing::{LeadTime, Size, Sizes};

/// Sandboxes that are made at the same time, as is the default.
const REFILLS: usize = 2;

/// Thawing a sandbox.
const READY: Duration = Duration::from_millis(1);

/// What making a sandbox takes, and the MiB of one that waits, for each language.
#[derive(Clone, Copy)]
struct Engine {
    name: &'static str,
    lead: LeadTime,
    each: [u64; 3],
}

/// As measured on two cores: docs/benchmarks.md.
const ENGINES: [Engine; 2] = [
    Engine {
        name: "embedded",
        lead: LeadTime { delay: Duration::from_millis(10), making: Duration::from_millis(28) },
        each: [2, 12, 4],
    },
    Engine {
        name: "docker",
        lead: LeadTime { delay: Duration::from_millis(10), making: Duration::from_millis(400) },
        each: [50, 12, 4],
    },
];

const FIXED: [usize; 4] = [1, 2, 4, 8];
const ADAPTIVE: Size = Size::Adaptive { min: 1, max: 16, target: 0.99 };

/// A call: when it comes, and the place of its language.
type Call = (Duration, usize);

/// Numbers that look random and are always the same.
struct Random(u64);

impl Random {
    fn share(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// The time to the next call, at so many a second.
    fn gap(&mut self, rate: f64) -> f64 {
        -(1.0 - self.share()).ln() / rate
    }
}

fn secs(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}

/// Calls that do not depend on each other, whose rate changes with time and is never above `most`.
fn poisson(until: f64, most: f64, place: usize, seed: u64, rate: impl Fn(f64) -> f64) -> Vec<Call> {
    let mut random = Random(seed);
    let (mut at, mut calls) = (0.0, Vec::new());
    loop {
        at += random.gap(most);
        if at >= until {
            return calls;
        }
        if random.share() * most < rate(at) {
            calls.push((secs(at), place));
        }
    }
}

/// An agent that thinks for a minute or so, and then makes some calls at once.
fn fan_out(until: f64, calls_at_once: usize, place: usize, seed: u64) -> Vec<Call> {
    let mut random = Random(seed);
    let (mut at, mut calls) = (0.0, Vec::new());
    loop {
        at += 10.0 + random.gap(1.0 / 50.0);
        if at >= until {
            return calls;
        }
        // Clients send them one after the other.
        calls.extend((0..calls_at_once).map(|number| (secs(at + number as f64 * 0.002), place)));
    }
}

/// Name, calls in the order of time, and languages.
fn traffic() -> Vec<(&'static str, Vec<Call>, usize)> {
    const HOUR: f64 = 3600.0;
    let steady = (0..3600).map(|second| (secs(f64::from(second)), 0)).collect();
    let day = |at: f64| {
        let high = (std::f64::consts::TAU * at / (24.0 * HOUR)).sin();
        if high > 0.0 { 2.0 * high } else { 0.0 }
    };
    let mut mix = poisson(4.0 * HOUR, 1.0, 0, 11, |_| 1.0);
    mix.extend(fan_out(4.0 * HOUR, 6, 0, 12));
    mix.extend(poisson(4.0 * HOUR, 0.2, 1, 13, |_| 0.2));
    mix.extend(poisson(4.0 * HOUR, 0.02, 2, 14, |_| 0.02));
    mix.sort_unstable();
    vec![
        ("steady, 1 a second", steady, 1),
        ("Poisson, 1 a second", poisson(HOUR, 1.0, 0, 1, |_| 1.0), 1),
        ("agent, 8 at once each minute", fan_out(4.0 * HOUR, 8, 0, 2), 1),
        ("day and night, up to 2 a second", poisson(24.0 * HOUR, 2.0, 0, 3, day), 1),
        ("three languages and an agent", mix, 3),
    ]
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A sandbox is there that a request has asked for.
    Cold(usize, usize),
    /// A sandbox is there that the pool has asked for.
    Refilled(usize),
    /// Sizes are looked at.
    Look,
    /// A refill may begin.
    Refill,
}

#[derive(Default, Clone)]
struct Pool {
    wanted: usize,
    ready: usize,
    coming: usize,
    /// Requests without a sandbox, by their numbers.
    waiting: VecDeque<usize>,
}

struct Result {
    warm: f64,
    p99: Duration,
    /// Mean MiB of what waits.
    memory: f64,
}

struct Simulation<'a> {
    engine: Engine,
    calls: &'a [Call],
    pools: Vec<Pool>,
    sizes: Sizes,
    events: BinaryHeap<Reverse<(Duration, Event)>>,
    free_makers: usize,
    /// Pools that wait for a maker, one for each sandbox.
    queue: VecDeque<usize>,
    times: Vec<Option<Duration>>,
    warm: usize,
    /// MiB times seconds.
    held: f64,
    now: Duration,
}

impl<'a> Simulation<'a> {
    fn new(engine: Engine, calls: &'a [Call], pools: usize, size: Size) -> Self {
        let sizes = Sizes::new(REFILLS, None, vec![size; pools]);
        let pool = Pool { wanted: size.least(), ..Pool::default() };
        let mut simulation = Self {
            engine,
            calls,
            pools: vec![pool; pools],
            sizes,
            events: BinaryHeap::new(),
            free_makers: REFILLS,
            queue: VecDeque::new(),
            times: vec![None; calls.len()],
            warm: 0,
            held: 0.0,
            now: Duration::ZERO,
        };
        (0..pools).for_each(|place| simulation.refill(place));
        simulation.events.push(Reverse((Duration::from_secs(1), Event::Look)));
        simulation
    }

    fn run(mut self) -> Result {
        let last = self.calls.last().map_or(Duration::ZERO, |call| call.0);
        for number in 0..self.calls.len() {
            let (at, place) = self.calls[number];
            while let Some(Reverse((when, event))) = self.events.peek().copied()
                && when <= at
            {
                self.events.pop();
                self.pass(when);
                self.happen(event);
            }
            self.pass(at);
            self.arrive(number, place);
        }
        // The last ones get theirs.
        while self.times.iter().any(Option::is_none)
            && let Some(Reverse((when, event))) = self.events.pop()
        {
            self.now = when;
            self.happen(event);
        }
        let mut times: Vec<_> = self.times.iter().flatten().copied().collect();
        assert_eq!(times.len(), self.calls.len(), "everybody gets a sandbox");
        times.sort_unstable();
        Result {
            warm: self.warm as f64 / self.calls.len() as f64,
            p99: times[times.len() * 99 / 100],
            memory: self.held / last.as_secs_f64(),
        }
    }

    fn pass(&mut self, to: Duration) {
        let seconds = (to - self.now).as_secs_f64();
        let waits = self.pools.iter().zip(self.engine.each);
        let memory: u64 = waits.map(|(pool, each)| pool.ready as u64 * each).sum();
        self.held += memory as f64 * seconds;
        self.now = to;
    }

    fn arrive(&mut self, number: usize, place: usize) {
        self.sizes.arrive(place, self.now, self.engine.lead);
        if self.pools[place].ready > 0 {
            self.pools[place].ready -= 1;
            self.warm += 1;
            self.times[number] = Some(READY);
        } else {
            self.pools[place].waiting.push_back(number);
            let done = self.now + self.engine.lead.making;
            self.events.push(Reverse((done, Event::Cold(place, number))));
        }
        self.refill(place);
    }

    /// Has made what is missing, as soon as requests that have just begun leave room.
    fn refill(&mut self, place: usize) {
        let pool = &mut self.pools[place];
        while pool.ready + pool.coming < pool.wanted {
            pool.coming += 1;
            self.queue.push_back(place);
            self.events.push(Reverse((self.now + self.engine.lead.delay, Event::Refill)));
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Refill => self.make(),
            Event::Refilled(place) => {
                self.free_makers += 1;
                self.pools[place].coming -= 1;
                self.give(place);
                self.make();
            }
            Event::Cold(place, number) => {
                let waiting = &mut self.pools[place].waiting;
                match waiting.iter().position(|waits| *waits == number) {
                    Some(at) => {
                        waiting.remove(at);
                        self.serve(number);
                    }
                    // It has got another one meanwhile.
                    None => self.give(place),
                }
            }
            Event::Look => {
                let wanted = self.sizes.at(self.now, &self.engine.each);
                for (place, wanted) in wanted.into_iter().enumerate() {
                    let pool = &mut self.pools[place];
                    pool.wanted = wanted;
                    pool.ready = pool.ready.min(wanted);
                    self.refill(place);
                }
                self.events.push(Reverse((self.now + Duration::from_secs(1), Event::Look)));
            }
        }
    }

    fn make(&mut self) {
        while self.free_makers > 0
            && let Some(place) = self.queue.pop_front()
        {
            self.free_makers -= 1;
            let done = self.now + self.engine.lead.making;
            self.events.push(Reverse((done, Event::Refilled(place))));
        }
    }

    /// A sandbox for whoever waits longest, or for the pool.
    fn give(&mut self, place: usize) {
        let pool = &mut self.pools[place];
        match pool.waiting.pop_front() {
            Some(number) => self.serve(number),
            None if pool.ready < pool.wanted => pool.ready += 1,
            None => {}
        }
        self.refill(place);
    }

    fn serve(&mut self, number: usize) {
        self.times[number] = Some(self.now - self.calls[number].0);
    }
}

#[expect(clippy::print_stdout, reason = "a benchmark prints its results")]
fn main() {
    println!("| traffic | engine | fixed 1 | fixed 2 | fixed 4 | fixed 8 | adaptive 1 to 16 |");
    println!("|---|---|---|---|---|---|---|");
    for (name, calls, pools) in traffic() {
        for engine in ENGINES {
            let sizes = FIXED.map(Size::Fixed).into_iter().chain([ADAPTIVE]);
            let cells: Vec<_> = sizes
                .map(|size| {
                    let Result { warm, p99, memory } =
                        Simulation::new(engine, &calls, pools, size).run();
                    let (warm, p99) = (warm * 100.0, p99.as_secs_f64() * 1e3);
                    format!("{warm:.1} %, {p99:.0} ms, {memory:.0} MiB")
                })
                .collect();
            println!("| {name} | {} | {} |", engine.name, cells.join(" | "));
        }
    }
}
