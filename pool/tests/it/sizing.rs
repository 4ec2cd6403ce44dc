//! Pools whose size changes while they run.

use isolator_pool::pool::admission::Client;
use isolator_pool::pool::sizing::Size;

use crate::fake::{IMAGE, POOL, Setup, World, ms, run_for, secs, started, until};

fn adaptive(min: usize, max: usize) -> Setup {
    let sizes = Some(Size::Adaptive { min, max, target: 0.99 });
    Setup { sizes, running: 16, queue: 64, ..Setup::default() }
}

/// Some calls at once. Returns how many of them found a sandbox ready.
async fn burst(world: &World, calls: u64) -> u64 {
    let ready = |world: &World| world.starts()[0] + world.starts()[1];
    let before = ready(world);
    let requests: Vec<_> = (0..calls).map(|_| world.spawn(run_for(5))).collect();
    for request in requests {
        started(request.await.unwrap());
    }
    ready(world) - before
}

#[tokio::test(start_paused = true)]
async fn a_pool_grows_with_a_burst_keeps_what_it_needs_and_shrinks_hours_later() {
    let world = World::start_with(adaptive(1, 8), |engine| engine.delay_all(ms(20)));
    world.fill().await;
    assert_eq!(world.engine.live(), 1);
    assert_eq!(burst(&world, 6).await, 1);
    until("it has grown", || world.pool().size == 6).await;
    world.fill().await;
    for _ in 0..5 {
        tokio::time::sleep(secs(300)).await;
        assert_eq!(burst(&world, 6).await, 6);
        world.fill().await;
        assert_eq!(world.pool().size, 6);
    }
    assert_eq!(burst(&world, 20).await, 6);
    until("it is at its bound", || world.pool().size == 8).await;
    world.fill().await;
    tokio::time::sleep(secs(4 * 60 * 60)).await;
    assert_eq!(world.pool().size, 1);
    world.fill().await;
    assert_eq!(world.engine.live(), 1, "what was too much was removed");
    assert_eq!(burst(&world, 1).await, 1);
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn an_unused_pool_can_be_empty() {
    let world = World::start(adaptive(0, 4));
    tokio::time::sleep(secs(60)).await;
    assert_eq!(world.engine.created(), 0);
    assert_eq!(burst(&world, 1).await, 0);
    until("there is one", || world.pool().size == 1).await;
    world.fill().await;
    tokio::time::sleep(secs(60 * 60)).await;
    assert_eq!(burst(&world, 1).await, 1);
    tokio::time::sleep(secs(3 * 60 * 60)).await;
    assert_eq!((world.pool().size, world.engine.live()), (0, 0));
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn all_pools_together_stay_within_their_memory() {
    // A sandbox without interpreters is taken to have 8 MiB.
    let pools = vec![(POOL, IMAGE), ("other", IMAGE)];
    let setup = Setup { pools, memory: Some(40), ..adaptive(1, 16) };
    let world = World::start_with(setup, |engine| engine.delay_all(ms(20)));
    world.fill().await;
    let sizes = |world: &World| world.status().values().map(|pool| pool.size).collect::<Vec<_>>();
    assert_eq!(sizes(&world), [1, 1]);
    burst(&world, 12).await;
    until("it has grown", || sizes(&world).iter().sum::<usize>() == 5).await;
    world.fill().await;
    // The pool that is called gets what the others leave.
    assert_eq!(world.status()[POOL].size, 4);
    let request = run_for(5);
    let host = Client::Host;
    let others = (0..12).map(|_| world.execute("other", &host, &request));
    for done in futures_util::future::join_all(others).await {
        started(done);
    }
    tokio::time::sleep(secs(5)).await;
    assert_eq!(sizes(&world).iter().sum::<usize>(), 5);
    world.fill().await;
    assert_eq!(world.engine.live(), 5);
    world.end().await;
}
