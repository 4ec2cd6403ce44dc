//! Packages that programs ask for while they run.

use std::fs::File;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use isolator_pool::engine::preload::Interpreter;
use isolator_pool::engine::{Call, Progress};
use isolator_pool::packages::PackageSet;
use isolator_pool::run::RunRequest;
use isolator_pool::run::installs::{Found, Installer};

use crate::fake::{Fault, Setup, World, ms, request, secs, settle};

/// Does what a request says.
#[derive(Debug)]
struct Scripted {
    set: Arc<PackageSet>,
    /// Requests that wait now.
    waiting: AtomicUsize,
    misplaced: AtomicUsize,
    /// Requests for sets, each of which gets a new one with "new".
    found: AtomicUsize,
    /// The numbers of refused requests that were reported.
    reported: Mutex<Vec<u64>>,
}

/// Counts a request that waits until this is dropped.
struct Waits<'a>(&'a AtomicUsize);

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[async_trait]
impl Installer for Scripted {
    async fn find(&self, request: &[u8], _: &str, say: Progress<'_>) -> Found {
        match request {
            b"set" | b"new" => {
                self.found.fetch_add(1, Ordering::Relaxed);
                let bound = |bound: Result<(), _>| {
                    bound.map_or_else(|_| "not given".to_owned(), |()| "given".to_owned())
                };
                let set = match request {
                    b"set" => Arc::clone(&self.set),
                    _ => set_of(self.set.interpreter),
                };
                Found::Set(set, Box::new(bound))
            }
            b"wait" => {
                self.waiting.fetch_add(1, Ordering::Relaxed);
                let _waits = Waits(&self.waiting);
                say("it is built");
                std::future::pending().await
            }
            _ => Found::Answer("no".to_owned()),
        }
    }

    fn refused_unread(&self, requests: u64) {
        self.reported.lock().unwrap().push(requests);
    }

    fn not_placed(&self) {
        self.misplaced.fetch_add(1, Ordering::Relaxed);
    }
}

fn set_of(interpreter: Interpreter) -> Arc<PackageSet> {
    let held = File::open("/dev/null").expect("every system has it");
    let (hash, folder, modules) = ("abc".to_owned(), "/sets/abc".into(), Vec::new());
    Arc::new(PackageSet { hash, folder, interpreter, modules, held })
}

fn scripted(interpreter: Interpreter) -> Arc<Scripted> {
    Arc::new(Scripted {
        set: set_of(interpreter),
        waiting: AtomicUsize::new(0),
        misplaced: AtomicUsize::new(0),
        found: AtomicUsize::new(0),
        reported: Mutex::default(),
    })
}

fn asking(installer: &Arc<Scripted>, asked: &[&str]) -> RunRequest {
    let argv = ["install"].into_iter().chain(asked.iter().copied());
    let installer = Arc::clone(installer) as Arc<dyn Installer>;
    RunRequest { installer: Some(installer), ..request(&argv.collect::<Vec<_>>()) }
}

async fn printed(world: &World, request: &RunRequest) -> String {
    let (outcome, _) = world.run(request).await.expect("an outcome");
    String::from_utf8_lossy(&outcome.stdout.to_bytes()).into_owned()
}

#[tokio::test(start_paused = true)]
async fn every_set_of_a_running_sandbox_is_kept_until_that_is_removed() {
    let world = World::full(Setup::default()).await;
    let installer = scripted(Interpreter::Python);
    world.engine.fault(Call::Remove, Fault::Broken);
    let said = printed(&world, &asking(&installer, &["in turn", "set", "other", "set"])).await;
    assert_eq!(said, "given /sets/abc\nno\ngiven /sets/abc\n");
    tokio::time::sleep(secs(5)).await;
    assert_eq!(Arc::strong_count(&installer.set), 2, "its sandbox is still there");
    world.engine.heal();
    tokio::time::sleep(secs(60)).await;
    settle().await;
    assert_eq!(Arc::strong_count(&installer.set), 1);
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_sandbox_with_eight_sets_gets_no_other_and_none_is_looked_for() {
    let world = World::full(Setup::default()).await;
    let installer = scripted(Interpreter::Python);
    let asked: Vec<_> = ["in turn"].into_iter().chain(["new"; 12]).collect();
    let said = printed(&world, &asking(&installer, &asked)).await;
    assert_eq!(said.matches("given /sets/abc").count(), 8, "{said}");
    assert_eq!(said.matches("as often as it can be").count(), 4, "{said}");
    assert_eq!(installer.found.load(Ordering::Relaxed), 8);
    settle().await;
    assert_eq!(
        *installer.reported.lock().unwrap(),
        [1, 3],
        "the first at once, the others at the end"
    );
    // The next sandbox has as much room as the first.
    assert_eq!(printed(&world, &asking(&installer, &["new"])).await, "given /sets/abc\n");
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_program_goes_on_without_a_set_that_it_could_not_be_given() {
    let world = World::full(Setup::default()).await;
    let installer = scripted(Interpreter::Python);
    world.engine.fault(Call::Bind, Fault::Fail(1));
    let said = printed(&world, &asking(&installer, &["in turn", "set", "set"])).await;
    assert_eq!(said, "not given\ngiven /sets/abc\n");
    // One of another interpreter has no place in it.
    let other = scripted(Interpreter::Node);
    assert_eq!(printed(&world, &asking(&other, &["set"])).await, "not given\n");
    // Without an installer, the answer says so.
    let none = RunRequest { installer: None, ..asking(&installer, &["set"]) };
    assert!(printed(&world, &none).await.contains(r#""kind":"off""#));
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn requests_end_with_their_program_and_with_their_sandbox() {
    let world = World::full(Setup::default()).await;
    let installer = scripted(Interpreter::Python);
    let waiting = || installer.waiting.load(Ordering::Relaxed);
    // Its program goes away, and asks again.
    let gone = asking(&installer, &["wait", "gone", "set"]);
    tokio::select! {
        _ = world.run(&gone) => panic!("the first request has no answer"),
        () = tokio::time::sleep(secs(2)) => assert_eq!(waiting(), 0),
    }
    let asked = asking(&installer, &["wait", "wait"]);
    tokio::select! {
        _ = world.run(&asked) => panic!("it waits"),
        () = tokio::time::sleep(secs(2)) => assert_eq!(waiting(), 2),
    }
    // The caller has gone away.
    tokio::time::sleep(ms(10)).await;
    assert_eq!(waiting(), 0);
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_request_that_waits_too_long_is_answered() {
    let world = World::full(Setup::default()).await;
    let installer = scripted(Interpreter::Python);
    let long = Duration::from_secs(60 * 60);
    let asked = RunRequest { timeout: long, ..asking(&installer, &["wait"]) };
    assert!(printed(&world, &asked).await.contains("not there after 15 minutes"));
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_sandbox_that_asks_too_often_is_refused_for_a_while() {
    let world = World::full(Setup::default()).await;
    let installer = scripted(Interpreter::Python);
    let often: Vec<_> = ["in turn"].into_iter().chain([" "; 40]).collect();
    let said = printed(&world, &asking(&installer, &often)).await;
    let (no, busy) = (said.matches("no\n").count(), said.matches(r#""kind":"busy""#).count());
    assert_eq!((no, busy), (32, 8), "{said}");
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn refused_requests_are_reported_once_a_minute() {
    let world = World::full(Setup::default()).await;
    let installer = scripted(Interpreter::Python);
    let batch = [" "; 40];
    let asked = [&["in turn"][..], &batch, &["later"], &batch].concat();
    let long = Duration::from_secs(10 * 60);
    printed(&world, &RunRequest { timeout: long, ..asking(&installer, &asked) }).await;
    settle().await;
    assert_eq!(*installer.reported.lock().unwrap(), [1, 8, 7], "the last ones at the end");
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_runner_with_more_requests_than_it_may_have_breaks_the_protocol() {
    let world = World::full(Setup::default()).await;
    let installer = scripted(Interpreter::Python);
    for asked in [&["wait", "="][..], &["wait"; 5]] {
        assert!(world.run(&asking(&installer, asked)).await.is_err(), "{asked:?}");
    }
    tokio::time::sleep(ms(10)).await;
    assert_eq!(installer.waiting.load(Ordering::Relaxed), 0);
    // Refusals wait for a runner that does not read them.
    let refused = RunRequest { installer: None, ..asking(&installer, &["no"; 5000]) };
    assert!(world.run(&refused).await.is_err());
    world.end().await;
}
