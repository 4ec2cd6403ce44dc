//! Processes of the engine are killed at any moment. The kernel ends everything that they started, and what is left
//! on disk and in the control groups is collected.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{Launcher, launchers, on_embedded, start};
use crate::common::engine::{Engine as _, State, embedded};
use crate::common::process::{Process, kill_all};
use crate::common::server::Server;
use crate::common::{PATIENCE, eventually, isolator, run_command, state};

/// Kills of each kind, and the number that all that is random in them follows from.
const ROUNDS: usize = 24;
const SEED: u64 = 20;

/// How long what was killed may run on.
const GONE: Duration = Duration::from_secs(10);

/// The activity of the server when a process is killed.
#[derive(Debug, Clone, Copy)]
enum Moment {
    Refill,
    Run,
    Pause,
    /// Nothing: all that waits is paused.
    Rest,
}

const MOMENTS: [Moment; 4] = [Moment::Refill, Moment::Run, Moment::Pause, Moment::Rest];

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }

    async fn pause(&mut self, longest: Duration) {
        tokio::time::sleep(Duration::from_micros(self.below(longest.as_micros() as u64))).await;
    }

    /// Some process of a launcher, or both.
    fn part_of(&mut self, launcher: Launcher) -> Vec<Process> {
        match self.below(3) {
            0 => vec![launcher.outer],
            1 => vec![launcher.inner],
            _ => vec![launcher.outer, launcher.inner],
        }
    }
}

fn python(code: &str) -> Value {
    json!({ "language": "python", "entrypoint_code": code })
}

/// Waits for a moment, or for one that is near it.
async fn until(moment: Moment, server: &Server, random: &mut Random) {
    match moment {
        Moment::Refill => random.pause(Duration::from_millis(250)).await,
        Moment::Run => random.pause(Duration::from_millis(150)).await,
        Moment::Pause => {
            let began = Instant::now();
            // What runs and does not serve is paused next. It may have happened already.
            while server.sandboxes(State::Running).await.is_empty()
                && began.elapsed() < Duration::from_secs(1)
            {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            random.pause(Duration::from_millis(120)).await;
        }
        Moment::Rest => {
            server.wait_until_ready().await;
        }
    }
}

/// Asserts that processes end soon.
async fn all_end(what: &str, mut remaining: impl FnMut() -> Vec<Process>) {
    let killed = Instant::now();
    loop {
        let left = remaining();
        if left.is_empty() {
            return;
        }
        let words = |process: &Process| format!("{} {}", process.pid, process.command());
        let left: Vec<_> = left.iter().map(words).collect();
        assert!(killed.elapsed() < GONE, "{what}: after {GONE:?} there are {left:#?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Launchers of this build whose parent is gone: a server, or a test that builds images itself.
fn orphans() -> Vec<Process> {
    let executable = |process: &Process| std::fs::read_link(process.directory().join("exe")).ok();
    let isolator = Path::new(env!("CARGO_BIN_EXE_isolator"));
    let build = isolator.parent().expect("the folder of the build");
    let is_of_build = |pid| {
        let parent = Process::find(pid).and_then(|parent| executable(&parent));
        parent.is_some_and(|parent| parent.starts_with(build))
    };
    Process::all()
        .into_iter()
        .filter(|process| executable(process).is_some_and(|file| file == isolator))
        .filter(|process| process.command().contains(" launcher"))
        .filter(|process| !is_of_build(process.parent()))
        .collect()
}

#[tokio::test]
async fn a_killed_launcher_takes_its_sandboxes_along_and_is_replaced() {
    let server = start(json!({ "pool": { "size": 3 } })).await;
    let mut random = Random(SEED);
    for round in 0..ROUNDS {
        let moment = MOMENTS[round % MOMENTS.len()];
        let mut all = Vec::new();
        eventually("launchers", async || {
            all = launchers(server.process());
            !all.is_empty()
        })
        .await;
        let pending = match moment {
            Moment::Run => Some(server.begin(python("import time; time.sleep(1)")).await),
            Moment::Refill | Moment::Pause | Moment::Rest => {
                assert_eq!(server.call(python("print('x')")).await.output(), "x\n");
                None
            }
        };
        until(moment, &server, &mut random).await;

        let certain = random.below(all.len() as u64) as usize;
        let mut victims = Vec::new();
        let mut doomed = Vec::new();
        for (index, launcher) in all.iter().enumerate() {
            if index == certain || random.below(2) == 0 {
                victims.extend(random.part_of(*launcher));
                doomed.extend(launcher.outer.with_descendants());
            }
        }
        let what = format!("round {round}, {moment:?}, {victims:?}");
        assert!(doomed.len() >= 2, "a launcher and its child: {what}");
        kill_all(&victims);
        all_end(&what, || doomed.iter().copied().filter(|process| process.is_there()).collect())
            .await;

        if let Some(pending) = pending {
            // Whichever answer: there is one.
            let answer = tokio::time::timeout(PATIENCE, pending.answer()).await;
            answer.unwrap_or_else(|_| panic!("no answer: {what}"));
        }
        for number in 0..2 {
            let answer = server.call(python(&format!("print({number})"))).await;
            assert_eq!(answer.output(), format!("{number}\n"), "{what}");
        }
    }
    server.stop().await;
}

#[tokio::test]
async fn nothing_survives_a_killed_server_and_leftovers_are_collected() {
    // It shares the place of its state with those that are killed.
    let settings = on_embedded(json!({ "pool": { "size": 0 } }));
    let keeper = Server::start(&settings).await;
    let look = embedded::Bystander::new(&state(keeper.directory()));
    let settings = on_embedded(json!({ "pool": { "size": 2 } }));
    let mut random = Random(SEED);
    let mut before: Option<Server> = None;
    for round in 0..ROUNDS {
        let moment = MOMENTS[round % MOMENTS.len()];
        let mut server = Server::start_beside(&keeper, &settings).await;
        if let Some(before) = before.take() {
            eventually("the next start collects what is left", async || {
                look.left(&before.instance).await.is_empty()
            })
            .await;
        }
        let pending = match moment {
            Moment::Run => Some(server.begin(python("import time; time.sleep(600)")).await),
            Moment::Refill | Moment::Pause | Moment::Rest => None,
        };
        if matches!(moment, Moment::Run) {
            eventually("a sandbox", async || !server.sandboxes(State::Running).await.is_empty())
                .await;
        }
        until(moment, &server, &mut random).await;

        let mut victims = vec![server.process()];
        for launcher in launchers(server.process()) {
            if random.below(2) == 0 {
                victims.extend(random.part_of(launcher));
            }
        }
        let doomed = server.process().with_descendants();
        kill_all(&victims);
        server.kill().await;
        drop(pending);
        let what = format!("round {round}, {moment:?}, {victims:?}");
        all_end(&what, || {
            let mut left: Vec<_> =
                doomed.iter().copied().filter(|process| process.is_there()).collect();
            left.extend(look.processes(&server.instance));
            left.extend(orphans());
            left
        })
        .await;

        if random.below(2) == 0 {
            let mut gc = isolator(keeper.directory());
            let gc = run_command(gc.arg("gc"), "");
            assert_eq!(gc.code, Some(0), "{what}: {gc:?}");
            assert_eq!(look.left(&server.instance).await, [""; 0], "{what}");
        } else {
            before = Some(server);
        }
    }
    drop(before);
    keeper.stop().await;
}
