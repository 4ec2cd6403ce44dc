//! How a pool is refilled, and how an engine that fails gets time to recover.

use crate::fake::{Fault, Setup, World, ms, run_for, secs, settle, started, until};
use isolator_pool::engine::Call;

/// No pool may ask an engine that fails more often than this in ten minutes: a doubling pause of
/// at most half a minute comes to about thirty rounds, of at most two attempts each.
const ATTEMPTS_IN_TEN_MINUTES: usize = 80;

#[tokio::test(start_paused = true)]
async fn the_idle_set_is_full_again_after_each_request() {
    let world = World::full(Setup { size: 3, hot: 1, ..Setup::default() }).await;
    world.engine.delay_all(ms(20));
    for _ in 0..10 {
        started(world.run(&run_for(5)).await);
        world.fill().await;
        assert_eq!((world.pool().hot, world.pool().paused), (1, 2));
    }
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn no_more_sandboxes_are_made_at_once_than_allowed_for_all_pools_together() {
    let pools =
        vec![("a", crate::fake::IMAGE), ("b", crate::fake::IMAGE), ("c", crate::fake::IMAGE)];
    let setup = Setup { pools, size: 4, refills: 3, ..Setup::default() };
    let world = World::start_with(setup, |engine| engine.delay_all(ms(100)));
    world.fill().await;
    assert_eq!(world.engine.peak(Call::Create), 3);
    assert!(world.engine.peak(Call::Arm) <= 3);
    assert_eq!(world.engine.created(), 12);
    world.end().await;
}

/// Lets ten minutes pass with a fault, and returns how many sandboxes were asked for.
async fn attempts_with(world: &World) -> usize {
    let before = world.engine.calls(Call::Create);
    tokio::time::sleep(secs(600)).await;
    world.engine.calls(Call::Create) - before
}

/// The pools get well once the engine has, within the longest pause and a little.
async fn assert_recovers(world: World) {
    world.engine.heal();
    tokio::time::sleep(secs(45)).await;
    assert!(world.is_full(), "{:?}", world.pool());
    assert_eq!(world.pool().last_error, None);
    started(world.run(&run_for(5)).await);
    world.end().await;
}

async fn assert_spared(call: Call) {
    let world = World::start_with(Setup::default(), |engine| {
        engine.delay_all(ms(20));
        engine.fault(call, Fault::Broken);
    });
    let attempts = attempts_with(&world).await;
    assert!(attempts > 0);
    assert!(attempts <= ATTEMPTS_IN_TEN_MINUTES, "{attempts} attempts in ten minutes");
    assert_recovers(world).await;
}

#[tokio::test(start_paused = true)]
async fn an_engine_that_can_not_create_is_asked_ever_more_rarely() {
    assert_spared(Call::Create).await;
}

#[tokio::test(start_paused = true)]
async fn an_engine_that_can_not_start_runners_is_asked_ever_more_rarely() {
    assert_spared(Call::Arm).await;
}

#[tokio::test(start_paused = true)]
async fn an_engine_that_can_not_pause_is_asked_ever_more_rarely() {
    assert_spared(Call::Pause).await;
}

#[tokio::test(start_paused = true)]
async fn sandboxes_that_die_as_soon_as_they_are_ready_are_made_ever_more_rarely() {
    let world = World::start_with(Setup { size: 1, ..Setup::default() }, |engine| {
        engine.delay_all(ms(20));
        engine.park(crate::fake::Park::Dies(ms(50)));
    });
    let attempts = attempts_with(&world).await;
    assert!(attempts <= ATTEMPTS_IN_TEN_MINUTES, "{attempts} attempts in ten minutes");
    world.engine.heal();
    world.fill().await;
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn the_first_pause_is_short() {
    let world = World::start_with(Setup { size: 1, ..Setup::default() }, |engine| {
        engine.fault(Call::Create, Fault::Fail(1));
    });
    tokio::time::sleep(secs(1)).await;
    assert!(world.is_full());
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_request_during_an_outage_fails_at_once_and_the_next_one_succeeds() {
    let world = World::start_with(Setup::default(), |engine| {
        engine.fault(Call::Create, Fault::Broken);
    });
    // The pool is deep in its pauses, but requests are not.
    tokio::time::sleep(secs(300)).await;
    for _ in 0..5 {
        let refused = tokio::time::timeout(secs(1), world.run(&run_for(5))).await;
        let error = refused.expect("an answer at once").unwrap_err();
        assert!(error.to_string().contains("it does not want to"), "{error}");
    }
    assert!(world.pool().last_error.is_some());
    world.engine.heal();
    started(tokio::time::timeout(secs(1), world.run(&run_for(5))).await.unwrap());
    assert_recovers(world).await;
}

#[tokio::test(start_paused = true)]
async fn a_request_that_succeeds_after_an_outage_ends_the_pause_of_the_pool() {
    let world = World::start_with(Setup::default(), |engine| {
        engine.fault(Call::Create, Fault::Broken);
    });
    tokio::time::sleep(secs(300)).await;
    world.engine.heal();
    started(world.run(&run_for(5)).await);
    tokio::time::sleep(ms(100)).await;
    assert!(world.is_full(), "{:?}", world.pool());
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn one_failure_among_many_does_not_keep_the_others_from_the_idle_set() {
    let world = World::start_with(Setup { size: 6, refills: 3, ..Setup::default() }, |engine| {
        engine.delay_all(ms(20));
        engine.fault(Call::Arm, Fault::Fail(2));
    });
    until("it is full", || world.is_full()).await;
    settle().await;
    assert_eq!(world.engine.live(), 6);
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_sandbox_that_can_not_be_thawed_costs_a_request_nothing_but_a_detour() {
    let world = World::full(Setup { size: 2, ..Setup::default() }).await;
    world.engine.fault(Call::Resume, Fault::Fail(1));
    started(world.run(&run_for(5)).await);
    assert_eq!(world.starts(), [0, 1, 0, 0]);
    world.fill().await;
    world.engine.fault(Call::Resume, Fault::EndsContainer);
    started(world.run(&run_for(5)).await);
    assert_eq!(world.starts(), [0, 1, 0, 1]);
    world.fill().await;
    world.end().await;
}
