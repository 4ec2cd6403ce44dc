//! Sandboxes that wait in the pool: they can die, and they grow old.

use std::time::Duration;

use crate::fake::{Setup, World, ms, run_for, secs, settle, started};
use isolator_pool::engine::Call;

#[tokio::test(start_paused = true)]
async fn a_parked_sandbox_that_dies_is_replaced_without_a_request() {
    for hot in [0, 2] {
        let world = World::full(Setup { size: 2, hot, ..Setup::default() }).await;
        for round in 1..=5 {
            // One that dies right after it was made is a failure, and is not replaced at once.
            tokio::time::sleep(secs(3)).await;
            assert!(world.engine.kill_parked(round));
            tokio::time::sleep(ms(10)).await;
            assert!(world.is_full());
            assert_eq!(world.engine.live(), 2);
            assert_eq!(world.engine.created(), 2 + round);
        }
        world.end().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_dead_sandbox_is_never_handed_out() {
    for hot in [0, 2] {
        let world = World::full(Setup { size: 2, hot, ..Setup::default() }).await;
        world.engine.delay(Call::Create, ms(50));
        assert!(world.engine.kill_parked(0) && world.engine.kill_parked(1));
        if hot > 0 {
            // Of a thawed sandbox only the end of its stream tells. A paused one is asked to thaw.
            settle().await;
        }
        started(world.run(&run_for(5)).await);
        world.fill().await;
        world.end().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_sandbox_that_dies_while_it_is_thawed_is_passed_over() {
    let world = World::full(Setup { size: 2, ..Setup::default() }).await;
    world.engine.delay(Call::Resume, ms(100));
    world.engine.delay(Call::Create, ms(10));
    let run = world.spawn(run_for(5));
    tokio::time::sleep(ms(5)).await;
    assert!(world.engine.kill_parked(0) && world.engine.kill_parked(0));
    started(run.await.unwrap());
    world.fill().await;
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_sandbox_that_has_grown_old_is_replaced() {
    let max_age = secs(60);
    let world = World::full(Setup { size: 2, hot: 1, max_age, ..Setup::default() }).await;
    tokio::time::sleep(max_age - secs(15)).await;
    assert_eq!(world.engine.created(), 2, "not yet");
    tokio::time::sleep(secs(30)).await;
    assert_eq!(world.engine.created(), 4);
    assert!(world.is_full());
    assert_eq!((world.pool().hot, world.engine.live()), (1, 2));
    tokio::time::sleep(max_age * 10).await;
    assert!((18..=26).contains(&world.engine.created()), "{}", world.engine.created());
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn sandboxes_that_are_not_old_are_left_alone() {
    let world = World::full(Setup { size: 3, hot: 1, ..Setup::default() }).await;
    tokio::time::sleep(Duration::from_secs(60 * 60)).await;
    assert_eq!(world.engine.created(), 3);
    assert_eq!(world.engine.calls(Call::Remove), 0);
    world.end().await;
}
