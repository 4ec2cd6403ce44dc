//! How a pool gets its image.

use crate::fake::{Fault, IMAGE, Setup, World, ms, run_for, secs, started, until};
use isolator_pool::engine::Call;
use isolator_pool::engine::images::PullPolicy;
use isolator_pool::pool::admission::Client;

const BUILT: &str = "built/language";
const PULLED: &str = "registry/language:2";

fn setup(image: &'static str, policy: PullPolicy) -> Setup {
    Setup { pools: vec![(crate::fake::POOL, image)], size: 3, policy, ..Setup::default() }
}

#[tokio::test(start_paused = true)]
async fn a_missing_image_is_fetched_once() {
    let world = World::start_with(setup(PULLED, PullPolicy::Missing), |e| e.publish(PULLED));
    world.fill().await;
    started(world.run(&run_for(5)).await);
    assert_eq!((world.engine.pulls(), world.engine.builds()), (1, 0));
    world.end().await;

    let world = World::full(setup(BUILT, PullPolicy::Missing)).await;
    started(world.run(&run_for(5)).await);
    assert_eq!((world.engine.pulls(), world.engine.builds()), (0, 1));
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn an_image_that_is_there_is_not_fetched() {
    for policy in [PullPolicy::Missing, PullPolicy::Never] {
        let world = World::full(setup(IMAGE, policy)).await;
        assert_eq!((world.engine.pulls(), world.engine.builds()), (0, 0));
        assert!(world.image(crate::fake::POOL).is_some_and(|digest| digest.contains(IMAGE)));
        world.end().await;
    }
}

#[tokio::test(start_paused = true)]
async fn where_nothing_is_fetched_a_missing_image_is_an_error_until_it_appears() {
    let world = World::start_with(setup(PULLED, PullPolicy::Never), |e| e.publish(PULLED));
    let refused = world.run(&run_for(5)).await.unwrap_err();
    assert!(refused.to_string().contains(PULLED), "{refused}");
    assert_eq!(world.engine.pulls(), 0);
    // Another server fetches it.
    world.engine.put_image(PULLED);
    started(world.run(&run_for(5)).await);
    world.fill().await;
    assert_eq!(world.engine.pulls(), 0);
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn an_image_that_is_always_fetched_is_fetched_once_a_start() {
    let world = World::start_with(setup(IMAGE, PullPolicy::Always), |e| e.publish(IMAGE));
    world.fill().await;
    for _ in 0..3 {
        started(world.run(&run_for(5)).await);
        world.fill().await;
    }
    assert_eq!(world.engine.pulls(), 1);
    // A sandbox made after a failure is not fetched anew either.
    world.engine.fault(Call::Create, Fault::Fail(2));
    started(world.run(&run_for(5)).await);
    world.fill().await;
    assert_eq!(world.engine.pulls(), 1);
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn an_image_that_can_not_be_fetched_is_seldom_tried_and_used_soon_after_it_has_appeared() {
    for fault in [Fault::Fine, Fault::Full] {
        let world = World::start_with(setup(PULLED, PullPolicy::Missing), |engine| {
            engine.fault(Call::FetchImage, fault);
        });
        tokio::time::sleep(secs(60 * 60)).await;
        let pulls = world.engine.pulls();
        assert!((3..25).contains(&pulls), "{pulls} pulls in an hour, {fault:?}");
        // A request does not wait for the next try.
        world.run(&run_for(5)).await.unwrap_err();
        assert_eq!(world.engine.pulls(), pulls + 1);
        // Another server fetches it.
        world.engine.put_image(PULLED);
        tokio::time::sleep(secs(10)).await;
        assert!(world.is_full(), "{fault:?}");
        assert_eq!(world.engine.pulls(), pulls + 1);
        world.end().await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_image_that_has_vanished_is_fetched_again() {
    let world = World::full(setup(BUILT, PullPolicy::Missing)).await;
    let before = world.image(crate::fake::POOL);
    world.engine.lose_image(BUILT);
    started(world.run(&run_for(5)).await);
    world.fill().await;
    assert_eq!(world.engine.builds(), 2);
    assert_ne!(world.image(crate::fake::POOL), before);
    let (_, receipt) = world.run(&run_for(5)).await.unwrap();
    assert!(receipt.image.contains(BUILT));
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_cold_request_that_finds_its_image_gone_waits_for_it_to_be_made_again() {
    let world = World::start(Setup { size: 0, ..setup(BUILT, PullPolicy::Missing) });
    started(world.run(&run_for(5)).await);
    world.engine.lose_image(BUILT);
    started(world.run(&run_for(5)).await);
    assert_eq!(world.engine.builds(), 2);
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn an_image_that_is_gone_for_good_is_an_error_each_time() {
    let world = World::start_with(Setup { size: 0, ..setup(PULLED, PullPolicy::Never) }, |e| {
        e.put_image(PULLED);
    });
    started(world.run(&run_for(5)).await);
    world.engine.lose_image(PULLED);
    for _ in 0..3 {
        let refused = world.run(&run_for(5)).await.unwrap_err();
        assert!(refused.to_string().contains(PULLED), "{refused}");
    }
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn requests_wait_for_an_image_that_is_being_built() {
    let world = World::start_with(setup(BUILT, PullPolicy::Missing), |engine| {
        engine.delay(Call::FetchImage, secs(4));
    });
    started(world.run(&run_for(5)).await);
    assert_eq!(world.engine.builds(), 1);
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn requests_do_not_wait_for_ever_for_an_image_and_get_it_when_it_is_there() {
    let world = World::start_with(setup(BUILT, PullPolicy::Missing), |engine| {
        engine.delay(Call::FetchImage, secs(300));
    });
    let began = tokio::time::Instant::now();
    let answer = world.run(&run_for(5)).await.unwrap_err().to_string();
    assert!(began.elapsed() <= secs(5) + ms(100));
    assert!(
        answer.contains(BUILT)
            && answer.contains("is being built")
            && answer.contains("5 s so far"),
        "{answer}"
    );
    until("the image is built", || world.is_full()).await;
    started(world.run(&run_for(5)).await);
    assert_eq!(world.engine.builds(), 1);
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_request_for_an_image_that_is_coming_learns_which_are_ready_and_the_last_error() {
    let pools = vec![("ready", IMAGE), ("coming", PULLED)];
    let world = World::start_with(Setup { pools, size: 0, ..Setup::default() }, |engine| {
        engine.publish(PULLED);
        engine.delay(Call::FetchImage, secs(100));
        engine.fault(Call::FetchImage, Fault::Fail(1));
    });
    started(world.execute("ready", &Client::Host, &run_for(5)).await);
    let ask =
        async || world.execute("coming", &Client::Host, &run_for(5)).await.unwrap_err().to_string();
    let answer = ask().await;
    let step = format!("now: step 1 of 1: pulling {PULLED}");
    assert!(answer.contains("is being pulled") && answer.contains(&step), "{answer}");
    assert!(answer.ends_with("Ready now: ready"), "{answer}");
    // It goes on without the request, and fails.
    tokio::time::sleep(secs(100)).await;
    let answer = ask().await;
    assert!(answer.contains("the last try failed: "), "{answer}");
    tokio::time::sleep(secs(100)).await;
    started(world.execute("coming", &Client::Host, &run_for(5)).await);
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn an_image_that_a_request_waits_for_comes_before_those_that_only_pools_want() {
    let pools = vec![("a", "built/a"), ("b", "built/b"), ("c", "built/c")];
    let world = World::start_with(Setup { pools, size: 1, ..Setup::default() }, |engine| {
        engine.delay(Call::FetchImage, secs(20));
    });
    // The first image is being built.
    tokio::time::sleep(secs(1)).await;
    let answer = world.execute("c", &Client::Host, &run_for(5)).await.unwrap_err().to_string();
    assert!(answer.contains("built/c is not there yet"), "{answer}");
    tokio::time::sleep(secs(20)).await;
    let answer = world.execute("b", &Client::Host, &run_for(5)).await.unwrap_err().to_string();
    assert!(answer.contains("built/b is not there yet"), "{answer}");
    let answer = world.execute("c", &Client::Host, &run_for(5)).await.unwrap_err().to_string();
    assert!(answer.contains("built/c is being built"), "{answer}");
    tokio::time::sleep(secs(40)).await;
    for pool in ["a", "b", "c"] {
        started(world.execute(pool, &Client::Host, &run_for(5)).await);
    }
    assert_eq!(world.engine.builds(), 3);
    assert_eq!(world.engine.peak(Call::FetchImage), 1);
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn two_pools_of_one_image_prepare_before_they_create() {
    let pools = vec![("a", IMAGE), ("b", IMAGE)];
    let world = World::start_with(Setup { pools, ..Setup::default() }, |engine| {
        engine.delay(Call::Prepare, ms(100));
    });
    world.fill().await;
    assert!(world.engine.calls(Call::Prepare) <= 2);
    for pool in ["a", "b"] {
        started(world.execute(pool, &Client::Host, &run_for(5)).await);
    }
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn two_pools_of_one_image_fetch_it_once() {
    for (image, policy) in [(BUILT, PullPolicy::Missing), (PULLED, PullPolicy::Always)] {
        let pools = vec![("a", image), ("b", image)];
        let setup = Setup { pools, policy, refills: 4, ..Setup::default() };
        let world = World::start_with(setup, |engine| {
            engine.publish(PULLED);
            engine.delay(Call::FetchImage, secs(5));
        });
        world.fill().await;
        let fetched = world.engine.pulls() + world.engine.builds();
        world.end().await;
        assert_eq!(fetched, 1, "{image} under {policy:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn lost_volumes_are_prepared_anew_after_a_failure() {
    let world = World::full(setup(IMAGE, PullPolicy::Missing)).await;
    let before = world.engine.calls(Call::Prepare);
    world.engine.fault(Call::Create, Fault::Fail(1));
    started(world.run(&run_for(5)).await);
    world.fill().await;
    assert!(world.engine.calls(Call::Prepare) > before);
    world.end().await;
}
