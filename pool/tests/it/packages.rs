//! Sets of packages: how a sandbox is given one, and what happens if it is not.

use std::fs::File;
use std::sync::Arc;

use isolator_pool::engine::Call;
use isolator_pool::engine::preload::Interpreter;
use isolator_pool::packages::PackageSet;
use isolator_pool::pool::pools::ExecuteError;
use isolator_pool::run::{RunError, RunRequest};

use crate::fake::{Fault, Setup, World, importing, ms, request, run_for, secs, settle, started};

fn set(interpreter: Interpreter) -> Arc<PackageSet> {
    let held = File::open("/dev/null").expect("every system has it");
    let (hash, folder, modules) = ("abc".to_owned(), "/sets/abc".into(), Vec::new());
    Arc::new(PackageSet { hash, folder, interpreter, modules, held })
}

fn with(set: &Arc<PackageSet>, request: RunRequest) -> RunRequest {
    RunRequest { packages: Some(Arc::clone(set)), ..request }
}

#[tokio::test(start_paused = true)]
async fn a_request_with_a_set_is_as_warm_as_any_other_and_its_receipt_has_the_time() {
    let setup = Setup { size: 2, hot: 0, preload: true, ..Setup::default() };
    let world = World::full(setup).await;
    world.engine.delay(Call::Bind, ms(7));
    let set = set(Interpreter::Python);
    // A module that was imported ahead could be another version, so it gets the bare interpreter.
    for request in [run_for(5), importing("numpy", 5)] {
        let (_, receipt) = world.run(&with(&set, request)).await.expect("an outcome");
        assert!(receipt.run.preloaded, "{receipt:?}");
        assert_eq!(receipt.run.bind, ms(7));
    }
    assert_eq!(world.engine.given(), ["/sets/abc", "/sets/abc"]);
    let (_, receipt) = world.run(&run_for(5)).await.expect("an outcome");
    assert_eq!((receipt.run.bind, world.engine.given().len()), (ms(0), 2));
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_sandbox_that_gets_no_set_is_replaced_once() {
    let world = World::full(Setup::default()).await;
    let set = set(Interpreter::Python);
    world.engine.fault(Call::Bind, Fault::Fail(1));
    started(world.run(&with(&set, run_for(5))).await);
    world.engine.fault(Call::Bind, Fault::Broken);
    let error = world.run(&with(&set, run_for(5))).await.expect_err("two were tried");
    assert!(matches!(error, ExecuteError::Run(RunError::NotBound(_))), "{error}");
    world.engine.heal();
    started(world.run(&run_for(5)).await);
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_set_that_the_runner_does_not_find_is_brought_again() {
    let world = World::full(Setup::default()).await;
    let set = set(Interpreter::Python);
    let error = world.run(&with(&set, request(&["fail", "packages"]))).await.expect_err("twice");
    assert!(matches!(error, ExecuteError::Run(RunError::NotBound(_))), "{error}");
    assert_eq!(world.engine.missed_sets(), ["abc", "abc"]);
    assert_eq!(world.engine.calls(Call::Provide), 2);
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn errors_that_any_sandbox_would_give_are_not_retried() {
    let world = World::full(Setup::default()).await;
    world.engine.fault(Call::Provide, Fault::Broken);
    for interpreter in [Interpreter::Python, Interpreter::Node] {
        let set = set(interpreter);
        let error = world.run(&with(&set, run_for(5))).await.expect_err("it can't be done");
        assert!(matches!(error, ExecuteError::Run(RunError::Packages(_))), "{error}");
    }
    // That of the wrong interpreter was not brought at all.
    assert_eq!(world.engine.calls(Call::Provide), 1);
    assert_eq!(world.engine.calls(Call::Bind), 0);
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_set_is_kept_until_the_sandbox_is_removed() {
    let world = World::full(Setup::default()).await;
    let set = set(Interpreter::Python);
    world.engine.fault(Call::Remove, Fault::Broken);
    let request = with(&set, run_for(5));
    started(world.run(&request).await);
    drop(request);
    tokio::time::sleep(secs(5)).await;
    assert_eq!(Arc::strong_count(&set), 2, "its sandbox is still there");
    world.engine.heal();
    tokio::time::sleep(secs(60)).await;
    settle().await;
    assert_eq!(Arc::strong_count(&set), 1);
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_goes_away_while_a_set_is_bound_leaves_nothing() {
    let world = World::full(Setup::default()).await;
    let set = set(Interpreter::Python);
    world.engine.delay(Call::Bind, secs(1));
    let request = with(&set, run_for(5));
    let gone = tokio::time::timeout(ms(100), world.run(&request)).await;
    assert!(gone.is_err());
    drop(request);
    tokio::time::sleep(secs(10)).await;
    assert_eq!(Arc::strong_count(&set), 1);
    world.end().await;
}
