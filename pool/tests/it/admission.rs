//! Admission: how many requests run, how many wait, and that each of them is answered once.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::fake::{Dice, Setup, World, ms, run_for, secs, settle, started};
use isolator_pool::pool::admission::{AdmissionError, Client};
use isolator_pool::pool::pools::ExecuteError;

#[tokio::test(start_paused = true)]
async fn two_hundred_requests_with_cancellations_keep_the_limits() {
    for seed in 0..20 {
        crowd(seed).await;
    }
}

async fn crowd(seed: u64) {
    const REQUESTS: usize = 200;
    const RUNNING: usize = 5;
    const QUEUE: usize = 150;
    let setup = Setup { size: 3, hot: 1, running: RUNNING, queue: QUEUE, ..Setup::default() };
    let world = World::full(Setup { wait: secs(2), ..setup }).await;
    world.engine.delay_all(ms(10));
    let mut dice = Dice::new(seed);
    let answers = Arc::new(AtomicUsize::new(0));
    let given_up = Arc::new(AtomicUsize::new(0));
    for _ in 0..REQUESTS {
        let (arrival, length) = (dice.roll(300), dice.roll(200));
        // A third gives up, at any moment.
        let patience = if dice.roll(3) == 0 { ms(dice.roll(1000)) } else { secs(600) };
        let pools = Arc::clone(&world.pools);
        let (answers, given_up) = (Arc::clone(&answers), Arc::clone(&given_up));
        world.tasks.spawn(async move {
            tokio::time::sleep(ms(arrival)).await;
            let request = run_for(length);
            let client = Client::Host;
            let answer = pools.execute(crate::fake::POOL, &client, &request);
            match tokio::time::timeout(patience, answer).await {
                Ok(Ok((outcome, _))) => assert_eq!(outcome.stdout.head, b"hello"),
                Ok(Err(ExecuteError::Admission(
                    AdmissionError::QueueFull { .. } | AdmissionError::WaitedTooLong { .. },
                ))) => {}
                Ok(Err(error)) => panic!("{error}"),
                Err(_) => {
                    given_up.fetch_add(1, Ordering::Relaxed);
                    return;
                }
            }
            answers.fetch_add(1, Ordering::Relaxed);
        });
    }
    world.tasks.close();
    let mut most = (0, 0);
    while !world.tasks.is_empty() {
        let (running, waiting) = world.load();
        assert!(running <= RUNNING && waiting <= QUEUE, "seed {seed}: {running} and {waiting}");
        most = (most.0.max(running), most.1.max(waiting));
        tokio::time::sleep(ms(1)).await;
    }
    assert_eq!(most.0, RUNNING, "seed {seed}: the limit is reached");
    assert!(most.1 > 0, "seed {seed}: a request waits");
    let (answers, given_up) = (answers.load(Ordering::Relaxed), given_up.load(Ordering::Relaxed));
    assert_eq!(answers + given_up, REQUESTS, "seed {seed}: each is answered");
    assert_eq!(world.load(), (0, 0), "seed {seed}");
    world.fill().await;
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn waiting_requests_are_served_in_order_of_arrival() {
    let world = World::full(Setup { running: 1, queue: 5, ..Setup::default() }).await;
    let order = Arc::new(std::sync::Mutex::new(Vec::new()));
    for number in 0..5 {
        let (pools, order) = (Arc::clone(&world.pools), Arc::clone(&order));
        world.tasks.spawn(async move {
            started(pools.execute(crate::fake::POOL, &Client::Host, &run_for(20)).await);
            order.lock().unwrap().push(number);
        });
        settle().await;
    }
    world.tasks.close();
    world.tasks.wait().await;
    assert_eq!(*order.lock().unwrap(), [0, 1, 2, 3, 4]);
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn requests_that_wait_when_the_server_stops_are_turned_away_at_once() {
    let world = World::full(Setup { running: 1, queue: 5, ..Setup::default() }).await;
    let first = world.spawn(run_for(3000));
    settle().await;
    let waiting: Vec<_> = (0..5).map(|_| world.spawn(run_for(5))).collect();
    settle().await;
    assert_eq!(world.load(), (1, 5));
    let closing = world.close(secs(10));
    let turned_away = async {
        for request in waiting {
            let refused = request.await.unwrap();
            assert!(
                matches!(refused, Err(ExecuteError::Admission(AdmissionError::Closed))),
                "{refused:?}"
            );
        }
        // A request that comes now is refused as well.
        let late = world.run(&run_for(5)).await;
        assert!(matches!(late, Err(ExecuteError::Admission(AdmissionError::Closed))));
        tokio::time::Instant::now()
    };
    let began = tokio::time::Instant::now();
    let (closed, turned_away) = tokio::join!(closing, turned_away);
    closed.unwrap();
    assert!(turned_away - began < ms(10));
    started(first.await.unwrap());
    world.end().await;
}
