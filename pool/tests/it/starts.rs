//! How a request gets its sandbox.

use crate::fake::{Setup, World, ms, run_for, secs, settle, started, until};
use isolator_pool::engine::Call;
use isolator_pool::pool::Start;
use isolator_pool::pool::admission::Client;

#[tokio::test(start_paused = true)]
async fn a_sandbox_from_the_idle_set_is_a_warm_start() {
    let world = World::full(Setup { size: 2, ..Setup::default() }).await;
    assert_eq!(started(world.run(&run_for(5)).await), Start::Warm);
    assert_eq!(world.starts(), [0, 1, 0, 0]);
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_thawed_sandbox_is_a_hot_start_and_costs_no_call() {
    let world = World::full(Setup { size: 2, hot: 1, ..Setup::default() }).await;
    assert_eq!((world.pool().hot, world.pool().paused), (1, 1));
    world.engine.delay_all(secs(5));
    let start = tokio::time::timeout(secs(1), world.run(&run_for(5))).await;
    assert_eq!(started(start.expect("no call to the engine")), Start::Hot);
    assert_eq!(world.starts(), [1, 0, 0, 0]);
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn an_empty_pool_of_size_zero_starts_cold_and_stays_empty() {
    let world = World::start(Setup { size: 0, ..Setup::default() });
    for _ in 0..3 {
        assert_eq!(started(world.run(&run_for(5)).await), Start::Cold);
    }
    assert_eq!(world.starts(), [0, 0, 0, 3]);
    settle().await;
    assert_eq!(world.engine.live(), 0);
    assert_eq!(world.engine.created(), 3);
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn all_of_a_pool_may_be_hot_and_then_nothing_is_ever_paused() {
    let world = World::full(Setup { size: 3, hot: 3, ..Setup::default() }).await;
    for _ in 0..5 {
        assert_eq!(started(world.run(&run_for(5)).await), Start::Hot);
        world.fill().await;
    }
    assert_eq!(world.engine.calls(Call::Pause), 0);
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn more_hot_ones_than_the_pool_is_large_are_not_made() {
    let world = World::full(Setup { size: 1, hot: 5, ..Setup::default() }).await;
    settle().await;
    assert_eq!(world.engine.live(), 1);
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_paused_sandbox_takes_the_place_of_a_hot_one_that_was_taken() {
    let world = World::full(Setup { size: 3, hot: 1, ..Setup::default() }).await;
    world.engine.delay(Call::Create, secs(10));
    assert_eq!(started(world.run(&run_for(5)).await), Start::Hot);
    settle().await;
    assert_eq!((world.pool().hot, world.pool().paused), (1, 1));
    assert_eq!(world.engine.calls(Call::Resume), 1);
    world.fill().await;
    assert_eq!((world.pool().hot, world.pool().paused), (1, 2));
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_request_that_finds_no_idle_sandbox_takes_the_first_one_of_the_refill() {
    let world = World::full(Setup { size: 1, ..Setup::default() }).await;
    world.engine.delay(Call::Create, secs(3));
    let first = world.spawn(run_for(60_000 / 4));
    until("the refill has begun", || world.engine.in_flight(Call::Create) == 1).await;
    assert_eq!(world.pool().making, 1, "the taken one is being replaced");
    // The refill has a head start of a second, so it is first.
    tokio::time::sleep(secs(1)).await;
    let second = world.spawn(run_for(5));
    assert_eq!(started(second.await.unwrap()), Start::Queued);
    assert_eq!(started(first.await.unwrap()), Start::Warm);
    assert_eq!(world.starts(), [0, 1, 1, 0]);
    world.fill().await;
    assert_eq!(world.engine.live(), 1, "what was made for the request did not stay besides");
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_request_that_finds_no_idle_sandbox_takes_its_own_if_the_refill_is_slower() {
    let world = World::start_with(Setup { size: 1, hot: 1, refills: 1, ..Setup::default() }, |e| {
        e.delay(Call::Create, secs(3));
    });
    until("the refill is under way", || world.engine.in_flight(Call::Create) == 1).await;
    world.engine.delay(Call::Create, ms(10));
    assert_eq!(started(world.run(&run_for(5)).await), Start::Cold);
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_request_for_other_limits_changes_those_of_its_sandbox() {
    use isolator_pool::engine::limits::{ByteSize, Resources};
    let world = World::full(Setup::default()).await;
    let mut request = run_for(5);
    request.resources = Resources { memory: ByteSize::mib(512), ..crate::fake::RESOURCES };
    started(world.run(&request).await);
    assert_eq!(world.engine.calls(Call::Update), 1);
    started(world.run(&run_for(5)).await);
    assert_eq!(world.engine.calls(Call::Update), 1, "nothing to change");
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_request_for_an_unknown_pool_is_refused() {
    let world = World::full(Setup::default()).await;
    let refused = world.execute("cobol", &Client::Host, &run_for(5)).await;
    assert!(refused.is_err_and(|error| error.to_string().contains("cobol")));
    world.end().await;
}
