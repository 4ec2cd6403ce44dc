//! Shutdown: whatever happens at that moment, nothing is left behind.

use crate::fake::{
    Fault, Setup, World, close_at_each_moment, ms, request, run_for, secs, settle, started, until,
};
use isolator_pool::engine::Call;
use isolator_pool::pool::admission::AdmissionError;
use isolator_pool::pool::pools::ExecuteError;
use tokio::time::{Instant, timeout};

#[tokio::test(start_paused = true)]
async fn pools_can_be_closed_at_each_moment_of_their_first_seconds() {
    for moment in 0..60 {
        let world = World::start_with(Setup { size: 3, hot: 1, ..Setup::default() }, |engine| {
            engine.delay_all(ms(5));
            for call in [Call::FindImage, Call::Prepare] {
                engine.delay(call, ms(5));
            }
        });
        tokio::time::sleep(ms(moment)).await;
        world.close(secs(1)).await.unwrap();
        // Nothing may come after the end.
        tokio::time::sleep(secs(120)).await;
        world.engine.assert_clean();
        world.assert_clean().await;
    }
}

#[tokio::test(start_paused = true)]
async fn pools_can_be_closed_at_each_moment_of_a_request() {
    for size in [0, 2] {
        let world = async |_| {
            let world = World::full(Setup { size, ..Setup::default() }).await;
            world.engine.delay_all(ms(5));
            world
        };
        close_at_each_moment(world, &run_for(10)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_image_that_arrives_after_the_end_makes_no_sandbox() {
    let pools = vec![(crate::fake::POOL, "built/language")];
    let world = World::start_with(Setup { pools, ..Setup::default() }, |engine| {
        engine.delay(Call::FetchImage, secs(60));
    });
    let request = world.spawn(run_for(5));
    tokio::time::sleep(secs(30)).await;
    world.close(secs(1)).await.unwrap();
    assert!(request.await.unwrap().is_err());
    tokio::time::sleep(secs(300)).await;
    assert_eq!(world.engine.created(), 0);
    world.assert_clean().await;
}

#[tokio::test(start_paused = true)]
async fn a_program_may_end_within_the_drain() {
    let world = World::full(Setup::default()).await;
    let run = world.spawn(run_for(3000));
    settle().await;
    let began = Instant::now();
    world.close(secs(10)).await.unwrap();
    assert!(began.elapsed() < secs(4));
    started(run.await.unwrap());
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_program_that_runs_longer_than_the_drain_is_ended() {
    let world = World::full(Setup::default()).await;
    let runs: Vec<_> = (0..4).map(|_| world.spawn(request(&["silence"]))).collect();
    until("they run", || world.engine.live() >= 4).await;
    let began = Instant::now();
    world.close(secs(2)).await.unwrap();
    assert!((secs(2)..secs(3)).contains(&began.elapsed()));
    for run in runs {
        assert!(timeout(ms(10), run).await.expect("an answer").unwrap().is_err());
    }
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn closing_twice_and_at_the_same_time_is_closing_once() {
    let world = World::full(Setup::default()).await;
    let run = world.spawn(run_for(100));
    settle().await;
    let (first, second) = tokio::join!(world.close(secs(1)), world.close(secs(1)));
    first.unwrap();
    second.unwrap();
    world.close(secs(1)).await.unwrap();
    started(run.await.unwrap());
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn removals_that_fail_a_few_times_are_tried_again_before_the_end() {
    let world = World::full(Setup { size: 6, ..Setup::default() }).await;
    world.engine.delay(Call::Remove, ms(20));
    world.engine.fault(Call::Remove, Fault::Fail(10));
    world.close(secs(1)).await.unwrap();
    world.assert_clean().await;
}

#[tokio::test(start_paused = true)]
async fn removals_that_failed_for_long_are_tried_again_at_once_at_the_end() {
    let world = World::full(Setup::default()).await;
    world.engine.fault(Call::Remove, Fault::Broken);
    started(world.run(&run_for(5)).await);
    // By now they are tried every twenty seconds, and not soon.
    tokio::time::sleep(secs(50)).await;
    world.engine.heal();
    let began = Instant::now();
    world.close(secs(1)).await.unwrap();
    assert!(began.elapsed() < secs(1), "a host does not wait for longer: {:?}", began.elapsed());
    world.assert_clean().await;
}

#[tokio::test(start_paused = true)]
async fn an_end_that_could_not_remove_everything_says_so() {
    let world = World::full(Setup::default()).await;
    world.engine.fault(Call::Remove, Fault::Broken);
    assert!(world.close(secs(1)).await.is_err());
    world.engine.heal();
    tokio::time::sleep(secs(30)).await;
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_sandbox_that_comes_after_its_creation_was_given_up_is_removed() {
    let world = World::start_with(Setup { size: 1, ..Setup::default() }, |engine| {
        engine.fault(Call::Create, Fault::Late(secs(45)));
    });
    // The call is given up after thirty seconds.
    tokio::time::sleep(secs(20)).await;
    world.engine.heal();
    until("it has come", || world.engine.live() == 2).await;
    // It is looked for every minute, and has to be seen twice.
    tokio::time::sleep(secs(125)).await;
    assert_eq!(world.engine.live(), 1, "only the idle one");
    world.fill().await;
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_sandbox_that_came_too_late_is_removed_at_the_end_at_the_latest() {
    let world = World::start_with(Setup { size: 1, ..Setup::default() }, |engine| {
        engine.fault(Call::Create, Fault::Late(secs(45)));
    });
    tokio::time::sleep(secs(20)).await;
    world.engine.heal();
    until("it has come", || world.engine.live() == 2).await;
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn reconciliation_removes_no_sandbox_that_is_in_use_or_being_made() {
    let world = World::full(Setup { size: 2, hot: 1, ..Setup::default() }).await;
    let run = world.spawn({
        let mut long = run_for(200_000);
        long.timeout = secs(300);
        long
    });
    settle().await;
    world.engine.delay(Call::Create, secs(29));
    assert!(world.engine.kill_parked(0));
    tokio::time::sleep(secs(190)).await;
    assert!(world.is_full());
    assert_eq!(world.engine.live(), 3);
    started(run.await.unwrap());
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn pools_that_are_dropped_unclosed_give_their_sandboxes_up() {
    let world = World::full(Setup { size: 2, hot: 1, ..Setup::default() }).await;
    let engine = world.engine.clone();
    drop(world);
    // The keeper looks once more before it sees that its pool is gone.
    tokio::time::sleep(secs(120)).await;
    engine.assert_clean();
}

/// Tasks really run side by side here. Time is real, but nothing takes any.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_sandbox_that_is_added_just_when_the_pool_closes_is_removed_too() {
    for round in 0..1000 {
        let setup = Setup { size: 8, hot: 4, refills: 8, ..Setup::default() };
        let world = World::start_with(setup, |_| {});
        // Until somewhere in the middle of the filling.
        while world.engine.created() < round % 8 {
            std::hint::spin_loop();
        }
        let closed = timeout(secs(5), world.close(secs(1))).await;
        closed.unwrap_or_else(|_| panic!("round {round}: one stayed in the idle set")).unwrap();
        world.engine.assert_clean();
    }
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_is_still_in_use_is_swept_a_moment_later() {
    let world = World::full(Setup::default()).await;
    // As when the engine goes on with a sandbox that was asked for before.
    world.engine.fault(Call::Sweep, Fault::Fail(2));
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn programs_ended_by_the_stop_are_distinguished_from_those_that_never_ran() {
    let world = World::full(Setup { running: 1, queue: 5, ..Setup::default() }).await;
    let running = world.spawn(run_for(30_000));
    settle().await;
    let waiting = world.spawn(run_for(5));
    settle().await;
    world.close(secs(1)).await.unwrap();
    let ended = running.await.unwrap();
    assert!(matches!(ended, Err(ExecuteError::Aborted)), "{ended:?}");
    let refused = waiting.await.unwrap();
    assert!(matches!(refused, Err(ExecuteError::Admission(AdmissionError::Closed))), "{refused:?}");
    world.assert_clean().await;
}
