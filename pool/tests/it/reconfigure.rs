//! Another configuration while requests run.

use std::collections::BTreeMap;

use isolator_pool::engine::SandboxSpec;
use isolator_pool::pool::admission::{AdmissionLimits, Client};
use isolator_pool::pool::pools::{PoolSpec, Pools, PoolsLimits};
use isolator_pool::pool::sizing::Size;
use isolator_pool::pool::{PoolSize, Start};

use crate::fake::{IMAGE, POOL, Setup, World, ms, run_for, sandbox, secs, settle, started, until};

/// The pools after these: one, with this working directory and size.
fn after(pools: &Pools, workdir: &str, size: usize, running: usize) -> Pools {
    let sandbox = SandboxSpec { workdir: workdir.to_owned(), ..sandbox(IMAGE) };
    let size = PoolSize { size: Size::Fixed(size), hot: 0, max_age: secs(24 * 60 * 60) };
    let specs = BTreeMap::from([(POOL.to_owned(), PoolSpec { sandbox, size })]);
    let admission = AdmissionLimits { running, running_of_one: running, queue: 8, wait: secs(60) };
    pools.reconfigured(PoolsLimits { admission, refills: running, memory: None }, specs).unwrap()
}

/// How many sandboxes wait in its pool.
fn waiting(pools: &Pools) -> usize {
    let status = &pools.status()[POOL];
    status.hot + status.paused
}

#[tokio::test(start_paused = true)]
async fn a_pool_that_stays_the_same_keeps_its_sandboxes_and_changes_its_size() {
    let world = World::full(Setup::default()).await;
    let larger = after(&world, "/workspace", 4, 1);
    assert!(larger.started_after(&world).is_empty());
    assert!(larger.filled().await);
    assert_eq!(waiting(&larger), 2, "not before it takes over");
    larger.take_over(&world);
    until("it has grown", || waiting(&larger) == 4).await;
    assert_eq!(world.engine.created(), 4);
    // One runs at the same time now, and the other waits for it.
    let (one, other) = (world.spawn(run_for(1000)), world.spawn(run_for(1000)));
    settle().await;
    assert_eq!(larger.load(), (1, 1));
    let smaller = after(&larger, "/workspace", 0, 4);
    smaller.take_over(&larger);
    settle().await;
    assert_eq!(larger.load(), (2, 0));
    started(one.await.unwrap());
    started(other.await.unwrap());
    until("nothing waits", || waiting(&smaller) == 0 && world.engine.live() == 0).await;
    let ran = smaller.execute(POOL, &Client::Host, &run_for(5)).await;
    assert_eq!(started(ran), Start::Cold);
    assert_eq!(smaller.status()[POOL].starts.iter().sum::<u64>(), 3);
    smaller.close(secs(60)).await.unwrap();
    world.assert_clean().await;
}

#[tokio::test(start_paused = true)]
async fn sandboxes_of_a_former_configuration_serve_no_later_request() {
    let world = World::full(Setup::default()).await;
    let running = world.spawn(run_for(3000));
    settle().await;
    let next = after(&world, "/elsewhere", 2, 4);
    assert_eq!(next.started_after(&world), [POOL]);
    // Until then the former one goes on, and the new one is filled at the same time.
    assert!(next.filled().await);
    assert_eq!(waiting(&next), 2);
    until("the former one is full, too", || waiting(&world) == 2).await;
    next.take_over(&world);
    settle().await;
    assert_eq!(waiting(&world), 0);
    // One that has begun before is served, but by a sandbox that is made for it.
    assert_eq!(started(world.run(&run_for(5)).await), Start::Cold);
    let ran = next.execute(POOL, &Client::Host, &run_for(5)).await;
    assert_eq!(started(ran), Start::Warm);
    started(running.await.unwrap());
    until("only the new ones wait", || waiting(&next) == 2 && world.engine.live() == 2).await;
    assert_eq!(next.status()[POOL].starts.iter().sum::<u64>(), 3, "of both");
    next.close(secs(60)).await.unwrap();
    world.assert_clean().await;
}

#[tokio::test(start_paused = true)]
async fn a_configuration_that_is_given_up_leaves_nothing() {
    let world = World::full(Setup::default()).await;
    let next = after(&world, "/elsewhere", 2, 4);
    assert!(next.filled().await);
    drop(next);
    until("only the former ones are there", || world.engine.live() == 2).await;
    assert_eq!(started(world.run(&run_for(5)).await), Start::Warm);
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn pools_can_be_closed_while_others_are_filled() {
    for moment in 0..40 {
        let world = World::full(Setup::default()).await;
        world.engine.delay_all(ms(5));
        let next = after(&world, "/elsewhere", 3, 4);
        let filling = async {
            let goes_on = next.filled().await;
            if goes_on {
                next.take_over(&world);
            }
            drop(next);
            goes_on
        };
        let closing = async {
            tokio::time::sleep(ms(moment)).await;
            world.close(secs(1)).await.unwrap();
        };
        tokio::join!(filling, closing);
        tokio::time::sleep(secs(120)).await;
        world.assert_clean().await;
    }
}
