//! Random sequences of everything that can happen to a server. The invariants are checked after each step.

use crate::fake::{
    Fault, Forking, Park, Setup, World, importing, ms, request, run_for, secs, until,
};
use isolator_pool::engine::Call;
use isolator_pool::engine::limits::CpuShare;
use isolator_pool::pool::sizing::Size;
use proptest::prelude::*;
use tokio::task::JoinHandle;

const SIZE: usize = 3;
const RUNNING: usize = 3;
const QUEUE: usize = 3;

/// Something that happens.
#[derive(Debug, Clone)]
enum Step {
    /// A request comes, whose runner does this.
    Start(Work),
    /// One of the requests goes away.
    Cancel(usize),
    /// Something goes wrong from now on.
    Break(Call, Fault),
    /// Runners start like this from now on.
    Park(Park),
    /// Forks come like this from now on.
    Fork(Forking),
    /// The template ends.
    EndTemplate,
    /// The template is forgotten.
    EvictTemplate,
    /// Everything is well again from now on.
    Heal,
    /// A sandbox dies while it waits.
    Kill(usize),
    /// Milliseconds pass.
    Wait(u64),
}

#[derive(Debug, Clone, Copy)]
enum Work {
    Run(u64),
    /// A program that a fork with its modules suits.
    Import(u64),
    RunWithOtherLimits,
    Act(&'static str),
}

fn work() -> impl Strategy<Value = Work> {
    prop_oneof![
        4 => (0..200_u64).prop_map(Work::Run),
        2 => (0..200_u64).prop_map(Work::Import),
        1 => Just(Work::RunWithOtherLimits),
        2 => prop::sample::select(&["silence", "eof", "stop", "vanish", "garbage", "oversize"][..])
            .prop_map(Work::Act),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let call = prop::sample::select(
        &[
            Call::Create,
            Call::Arm,
            Call::Preload,
            Call::Pause,
            Call::Resume,
            Call::Update,
            Call::State,
        ][..],
    );
    let fault = prop_oneof![
        (1..4_u32).prop_map(Fault::Fail),
        Just(Fault::Broken),
        Just(Fault::Hang),
        Just(Fault::EndsContainer),
    ];
    let park = prop_oneof![
        Just(Park::Silence),
        Just(Park::Eof),
        Just(Park::Garbage),
        (0..500_u64).prop_map(|after| Park::Dies(ms(after))),
    ];
    let forking = prop::sample::select(
        &[Forking::Comes, Forking::Refused, Forking::EndsInside, Forking::Silence, Forking::Eof][..],
    );
    prop_oneof![
        8 => work().prop_map(Step::Start),
        4 => any::<usize>().prop_map(Step::Cancel),
        2 => (call, fault).prop_map(|(call, fault)| Step::Break(call, fault)),
        1 => park.prop_map(Step::Park),
        1 => forking.prop_map(Step::Fork),
        1 => Just(Step::EndTemplate),
        1 => Just(Step::EvictTemplate),
        2 => Just(Step::Heal),
        2 => any::<usize>().prop_map(Step::Kill),
        4 => (0..100_u64).prop_map(Step::Wait),
        2 => (100..20_000_u64).prop_map(Step::Wait),
    ]
}

/// Whether interpreters are started ahead, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ahead {
    No,
    Started,
    /// From a template that takes this many milliseconds to make, with the modules of some programs.
    Forked(u64),
}

/// Plays the steps to a server and checks it after each.
async fn play(size: Size, hot: usize, ahead: Ahead, steps: Vec<Step>) {
    let setup =
        Setup { sizes: Some(size), hot, running: RUNNING, queue: QUEUE, ..Setup::default() };
    let setup = Setup { preload: ahead != Ahead::No, ..setup };
    let world = World::start_with(setup, |engine| {
        engine.delay_all(ms(7));
        if let Ahead::Forked(takes) = ahead {
            engine.forks(Forking::Comes);
            engine.template_takes(ms(takes));
            engine.learn(&["scipy"]);
        }
        // Removal is immediate once it has begun, so that a live sandbox without an owner stands out.
        engine.delay(Call::Remove, ms(0));
    });
    let mut requests: Vec<JoinHandle<_>> = Vec::new();
    for step in steps {
        match step {
            Step::Start(work) => {
                let request = match work {
                    Work::Run(millis) => run_for(millis),
                    Work::Import(millis) => importing("scipy", millis),
                    Work::RunWithOtherLimits => {
                        let mut request = run_for(10);
                        request.resources.cpu = CpuShare::millis(1);
                        request
                    }
                    Work::Act(act) => request(&[act]),
                };
                requests.push(world.spawn(request));
            }
            Step::Cancel(_) if requests.is_empty() => {}
            Step::Cancel(which) => {
                let which = which % requests.len();
                requests.swap_remove(which).abort();
            }
            Step::Break(call, fault) => world.engine.fault(call, fault),
            Step::Park(park) => world.engine.park(park),
            Step::Fork(forking) => {
                if let Ahead::Forked(_) = ahead {
                    world.engine.forks(forking);
                }
            }
            Step::EndTemplate => world.engine.kill_template(),
            Step::EvictTemplate => world.engine.evict_template(),
            Step::Heal => world.engine.heal(),
            Step::Kill(which) => {
                world.engine.kill_parked(which);
            }
            Step::Wait(millis) => tokio::time::sleep(ms(millis)).await,
        }
        crate::fake::settle().await;
        check(&world);
        requests.retain(|request| !request.is_finished());
    }
    // Whatever happened, every request is answered and the server recovers.
    world.engine.heal();
    until("everybody is answered", || requests.iter().all(JoinHandle::is_finished)).await;
    world.fill().await;
    // Sandboxes that were made to die later do so, and calls that hang are given up.
    tokio::time::sleep(secs(1)).await;
    until("no call hangs", || world.engine.is_idle()).await;
    world.fill().await;
    crate::fake::started(world.run(&run_for(5)).await);
    world.end().await;
}

/// The invariants at every moment.
fn check(world: &World) {
    let (running, waiting) = world.load();
    assert!(running <= RUNNING && waiting <= QUEUE, "{running} run and {waiting} wait");
    let pool = world.pool();
    // Sandboxes made for requests that went away are finished along with those of refills.
    let most_made = SIZE + RUNNING;
    assert!(pool.hot + pool.paused <= SIZE && pool.making <= most_made, "{pool:?}");
    // One promotion may be between two places of the idle set; for requests that went away no more are
    // being made than may run; and none is removed while the call that thaws it is under way.
    let leaving = world.leaving();
    let thawing = world.engine.in_flight(Call::Resume);
    let most = SIZE + 1 + pool.making + running + RUNNING + leaving + thawing;
    let live = world.engine.live();
    let what = format!("{live} sandboxes for {running} requests, {leaving} leaving and {pool:?}");
    assert!(live <= most, "{what}");
    world.engine.assert_no_breach();
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 256,
        failure_persistence: None,
        max_shrink_iters: 500,
        ..ProptestConfig::default()
    })]

    #[test]
    fn the_invariants_hold_in_any_order_of_events(
        // With a low share, the size changes often.
        size in prop_oneof![
            Just(Size::Fixed(SIZE)),
            (0..SIZE).prop_map(|min| Size::Adaptive { min, max: SIZE, target: 0.5 }),
        ],
        hot in 0..=SIZE,
        ahead in prop_oneof![
            Just(Ahead::No),
            Just(Ahead::Started),
            (0..100_u64).prop_map(Ahead::Forked),
        ],
        steps in prop::collection::vec(step(), 1..60),
    ) {
        tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap()
            .block_on(play(size, hot, ahead, steps));
    }
}

/// The same rules where tasks really run side by side. Time is real here, so it is short.
#[test]
fn the_rules_hold_on_several_threads_too() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(4)
        .enable_time()
        .build()
        .unwrap();
    runtime.block_on(async {
        for round in 0..20 {
            let setup =
                Setup { size: 3, hot: round % 3, running: 8, queue: 100, ..Setup::default() };
            let setup = Setup { preload: round % 4 > 0, ..setup };
            let world = World::start_with(setup, |engine| {
                if round % 4 > 1 {
                    engine.forks(Forking::Comes);
                    engine.template_takes(ms(1));
                    engine.learn(&["scipy"]);
                }
            });
            let mut requests = Vec::new();
            for number in 0..60 {
                requests.push(world.spawn(match number % 4 {
                    3 => importing("scipy", 1),
                    _ => run_for(number % 2),
                }));
                if number % 5 == 0 {
                    world.engine.kill_parked(number as usize);
                }
                if number % 7 == 0 {
                    world.engine.kill_template();
                }
                if number % 3 == 0 {
                    requests.swap_remove(number as usize % requests.len()).abort();
                }
                tokio::task::yield_now().await;
            }
            if round % 2 == 0 {
                for request in requests {
                    let _ = request.await;
                }
            }
            // Every other round is closed in the middle of it all.
            let closed = tokio::time::timeout(secs(10), world.close(secs(5))).await;
            assert!(closed.is_ok(), "round {round} does not close: {}", world.describe());
            closed.unwrap().unwrap();
            world.assert_clean_soon().await;
        }
    });
}
