//! An engine that does not answer: other requests go on, and every request ends in time.

use std::time::Duration;

use crate::fake::{Fault, Setup, World, ms, request, run_for, secs, settle, started, until};
use isolator_pool::engine::Call;
use isolator_pool::engine::limits::CpuShare;
use tokio::time::{Instant, timeout};

/// A request waits this long for a sandbox, and no longer.
const PATIENCE: Duration = secs(60);

/// Closing ends within this time after the drain.
const FAREWELL: Duration = secs(20);

/// Closes with a hanging engine, then, when it is well again, what was left can be removed.
async fn assert_closes_in_time(world: World) {
    let drain = secs(1);
    let began = Instant::now();
    let _ = timeout(drain + FAREWELL + secs(1), world.close(drain)).await.expect("it closes");
    assert!(began.elapsed() <= drain + FAREWELL + ms(100), "{:?}", began.elapsed());
    assert_eq!(world.load(), (0, 0));
    world.engine.heal();
    // Calls that hang are given up meanwhile.
    tokio::time::sleep(secs(60)).await;
    world.end().await;
}

/// Nothing can be made, and what was made before serves.
async fn assert_shelved_sandboxes_serve_while_it_hangs(call: Call) {
    let world = World::full(Setup { size: 2, ..Setup::default() }).await;
    world.engine.fault(call, Fault::Hang);
    for _ in 0..2 {
        started(timeout(secs(1), world.run(&run_for(5))).await.expect("one was ready"));
    }
    let refused = timeout(PATIENCE + secs(1), world.run(&run_for(5))).await.expect("an answer");
    assert!(refused.is_err());
    assert_closes_in_time(world).await;
}

#[tokio::test(start_paused = true)]
async fn when_create_hangs_requests_are_answered_and_idle_sandboxes_serve() {
    assert_shelved_sandboxes_serve_while_it_hangs(Call::Create).await;
}

#[tokio::test(start_paused = true)]
async fn when_arm_hangs_requests_are_answered_and_idle_sandboxes_serve() {
    assert_shelved_sandboxes_serve_while_it_hangs(Call::Arm).await;
}

#[tokio::test(start_paused = true)]
async fn when_the_images_hang_requests_are_answered() {
    for call in [Call::FindImage, Call::Prepare] {
        let world = World::start_with(Setup::default(), |engine| engine.fault(call, Fault::Hang));
        let refused = timeout(PATIENCE + secs(1), world.run(&run_for(5))).await.expect("an answer");
        assert!(refused.is_err());
        assert_closes_in_time(world).await;
    }
}

#[tokio::test(start_paused = true)]
async fn when_pause_hangs_requests_start_cold() {
    let world = World::start_with(Setup { size: 2, ..Setup::default() }, |engine| {
        engine.fault(Call::Pause, Fault::Hang);
    });
    for _ in 0..4 {
        started(timeout(secs(1), world.run(&run_for(5))).await.expect("it is made at once"));
    }
    assert_closes_in_time(world).await;
}

#[tokio::test(start_paused = true)]
async fn when_resume_hangs_requests_are_answered() {
    let world = World::full(Setup { size: 2, ..Setup::default() }).await;
    world.engine.fault(Call::Resume, Fault::Hang);
    let first = world.spawn(run_for(5));
    let _ = timeout(PATIENCE + secs(1), first).await.expect("an answer").unwrap();
    assert_closes_in_time(world).await;
}

#[tokio::test(start_paused = true)]
async fn when_resume_hangs_for_one_request_others_are_served() {
    let world = World::full(Setup { size: 3, ..Setup::default() }).await;
    world.engine.fault(Call::Resume, Fault::Hang);
    let first = world.spawn(run_for(5));
    settle().await;
    world.engine.heal();
    started(timeout(secs(1), world.run(&run_for(5))).await.expect("others are served"));
    started(timeout(secs(12), first).await.expect("it goes on after the call's deadline").unwrap());
    world.fill().await;
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn when_a_promotion_hangs_the_pool_goes_on_filling() {
    let world = World::full(Setup { size: 3, hot: 1, ..Setup::default() }).await;
    world.engine.fault(Call::Resume, Fault::Hang);
    started(world.run(&run_for(5)).await);
    settle().await;
    world.engine.heal();
    started(timeout(secs(1), world.run(&run_for(5))).await.expect("a paused one is there"));
    world.fill().await;
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn when_update_hangs_the_request_gets_an_error() {
    let world = World::full(Setup::default()).await;
    world.engine.fault(Call::Update, Fault::Hang);
    let mut other = run_for(5);
    other.resources.cpu = CpuShare::millis(1);
    let refused = timeout(secs(11), world.run(&other)).await.expect("an answer");
    assert!(refused.is_err());
    started(timeout(secs(1), world.run(&run_for(5))).await.expect("others are served"));
    assert_closes_in_time(world).await;
}

#[tokio::test(start_paused = true)]
async fn when_state_hangs_the_request_gets_an_error() {
    let world = World::full(Setup::default()).await;
    world.engine.fault(Call::State, Fault::Hang);
    let lost = timeout(secs(11), world.run(&request(&["stop"]))).await.expect("an answer");
    assert!(lost.is_err());
    started(timeout(secs(1), world.run(&run_for(5))).await.expect("others are served"));
    assert_closes_in_time(world).await;
}

#[tokio::test(start_paused = true)]
async fn when_remove_hangs_requests_are_still_served() {
    let world = World::full(Setup::default()).await;
    world.engine.fault(Call::Remove, Fault::Hang);
    for _ in 0..10 {
        started(timeout(secs(1), world.run(&run_for(5))).await.expect("no request waits for it"));
    }
    assert_closes_in_time(world).await;
}

#[tokio::test(start_paused = true)]
async fn an_engine_that_removes_nothing_is_not_filled_up() {
    let world = World::full(Setup::default()).await;
    world.engine.fault(Call::Remove, Fault::Broken);
    let mut refusals = 0;
    for _ in 0..100 {
        match world.run(&run_for(1)).await {
            Ok(_) => assert_eq!(refusals, 0, "none is removed, and so none is made any more"),
            Err(error) => {
                refusals += 1;
                assert!(error.to_string().contains("waiting to be removed"), "{error}");
            }
        }
        assert!(world.engine.live() <= 80, "{}", world.describe());
    }
    assert!(refusals > 20 && world.leaving() >= 64, "{refusals}, {}", world.describe());
    world.engine.heal();
    world.fill().await;
    started(timeout(secs(1), world.run(&run_for(5))).await.expect("it has room again"));
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn removals_that_hung_are_made_later() {
    let world = World::full(Setup::default()).await;
    world.engine.fault(Call::Remove, Fault::Hang);
    for _ in 0..10 {
        started(world.run(&run_for(5)).await);
    }
    world.engine.heal();
    until("only idle ones are left", || world.engine.live() == 2).await;
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn when_list_hangs_only_closing_notices_and_still_ends() {
    let world = World::full(Setup::default()).await;
    world.engine.fault(Call::List, Fault::Hang);
    tokio::time::sleep(secs(300)).await;
    started(timeout(secs(1), world.run(&run_for(5))).await.expect("no request waits for it"));
    assert_closes_in_time(world).await;
}
