//! Requests that are cancelled, at every await and at any other moment.

use crate::fake::{
    Setup, World, drop_at_each_moment, ms, poll_times, request, run_for, secs, settle, started,
    until,
};
use isolator_pool::engine::Call;
use isolator_pool::pool::Start;

/// The idle set with which a request starts in this way.
fn setup(start: Start) -> Setup {
    let (size, hot) = match start {
        Start::Hot => (2, 1),
        Start::Warm => (2, 0),
        Start::Queued => (1, 0),
        Start::Cold => (0, 0),
    };
    Setup { size, hot, running: 1, ..Setup::default() }
}

/// A world in which the next request starts in this way, on an engine that takes its time.
async fn world(start: Start) -> World {
    let world = World::full(setup(start)).await;
    world.engine.delay_all(ms(3));
    if start == Start::Queued {
        // Another request takes the only sandbox just before.
        world.spawn(run_for(0)).await.unwrap().unwrap();
    }
    world
}

/// The next request finds everything as if this one had never been.
async fn assert_unharmed(world: World) {
    assert_eq!(world.load(), (0, 0), "permits");
    let next = tokio::time::timeout(secs(5), world.run(&run_for(5))).await;
    started(next.expect("the next request is served"));
    world.fill().await;
    world.end().await;
}

/// Drops a request after every number of polls, right then or when it is woken again.
async fn drop_after_each_poll(start: Start) {
    for woken in [false, true] {
        let mut polls = 0;
        loop {
            let world = world(start).await;
            let request = run_for(5);
            let done = poll_times(world.run(&request), polls, woken).await;
            let is_done = done.is_some();
            done.map(started);
            assert_unharmed(world).await;
            if is_done {
                break;
            }
            polls += 1;
        }
        assert!(polls > 0, "the request waits somewhere");
    }
}

/// Drops a request after every number of milliseconds.
async fn drop_after_each_millisecond(start: Start) {
    let mut request = run_for(5);
    // One call more: the limits are changed.
    request.resources.cpu = isolator_pool::engine::limits::CpuShare::millis(500);
    drop_at_each_moment(async || world(start).await, &request, assert_unharmed).await;
}

#[tokio::test(start_paused = true)]
async fn a_hot_start_can_be_dropped_at_every_await() {
    drop_after_each_poll(Start::Hot).await;
    drop_after_each_millisecond(Start::Hot).await;
}

#[tokio::test(start_paused = true)]
async fn a_warm_start_can_be_dropped_at_every_await() {
    drop_after_each_poll(Start::Warm).await;
    drop_after_each_millisecond(Start::Warm).await;
}

#[tokio::test(start_paused = true)]
async fn a_queued_start_can_be_dropped_at_every_await() {
    drop_after_each_poll(Start::Queued).await;
    drop_after_each_millisecond(Start::Queued).await;
}

#[tokio::test(start_paused = true)]
async fn a_cold_start_can_be_dropped_at_every_await() {
    drop_after_each_poll(Start::Cold).await;
    drop_after_each_millisecond(Start::Cold).await;
}

#[tokio::test(start_paused = true)]
async fn a_request_in_the_queue_can_be_dropped() {
    let world = World::full(Setup { running: 1, ..Setup::default() }).await;
    let first = world.spawn(run_for(100));
    settle().await;
    let second = run_for(5);
    assert!(poll_times(world.run(&second), 1, false).await.is_none());
    assert_eq!(world.load(), (1, 0));
    started(first.await.unwrap());
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn dropping_a_run_ends_its_program_at_once() {
    let world = World::full(Setup { size: 0, ..Setup::default() }).await;
    let run = world.spawn(request(&["silence"]));
    until("it runs", || world.engine.live() == 1).await;
    run.abort();
    settle().await;
    assert_eq!(world.engine.live(), 0);
    assert_eq!(world.load(), (0, 0));
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_sandbox_whose_request_went_away_while_it_was_made_serves_the_next() {
    let world = World::start_with(Setup { size: 1, ..Setup::default() }, |engine| {
        engine.delay(Call::Create, secs(1));
        // The refill gets nowhere, so that only the request's own sandbox can be the next.
        engine.fault(Call::Create, crate::fake::Fault::Fail(1));
    });
    tokio::time::sleep(ms(1100)).await;
    let cold = run_for(5);
    assert!(tokio::time::timeout(ms(500), world.run(&cold)).await.is_err());
    world.fill().await;
    assert_eq!(started(world.run(&run_for(5)).await), Start::Warm);
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn requests_that_come_and_go_do_not_pile_up_sandboxes() {
    let world = World::start_with(Setup { size: 0, running: 2, ..Setup::default() }, |engine| {
        engine.delay(Call::Create, secs(5));
    });
    for _ in 0..100 {
        let cold = run_for(5);
        assert!(tokio::time::timeout(ms(10), world.run(&cold)).await.is_err());
    }
    let at_once = world.engine.peak(Call::Create);
    world.engine.delay(Call::Create, ms(1));
    tokio::time::sleep(secs(6)).await;
    world.end().await;
    // Two run; as many again may be finished for requests that went away.
    assert!(at_once <= 4, "{at_once} sandboxes were being made at once for two requests");
}
