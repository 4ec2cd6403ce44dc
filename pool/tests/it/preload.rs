//! Preloaded interpreters, and what is not done ahead of time while requests wait.

use crate::fake::{
    Preloading, RESOURCES, Setup, World, importing, ms, request, run_for, secs, started, until,
};
use isolator_pool::engine::Call;
use isolator_pool::pool::Start;
use isolator_pool::run::RunRequest;

fn preloading(size: usize, hot: usize) -> Setup {
    Setup { size, hot, preload: true, ..Setup::default() }
}

#[tokio::test(start_paused = true)]
async fn modules_are_imported_once_requests_have_stopped_coming_and_one_sandbox_at_a_time() {
    let world = World::full(preloading(3, 1)).await;
    assert_eq!(world.engine.with_modules(), 3);
    world.engine.preloading(Preloading::Imports(secs(1)));
    for _ in 0..10 {
        let (_, receipt) = world.run(&run_for(5)).await.unwrap();
        assert!(receipt.run.preloaded && receipt.start == Start::Hot, "{receipt:?}");
        tokio::time::sleep(ms(300)).await;
        assert_eq!(world.engine.with_modules(), 2, "only the first had to take one with them");
    }
    assert_eq!(world.engine.live(), 3, "but the idle set is full");
    // As many at once as there are, and none has them any more.
    let plain = run_for(5);
    let (a, b, c) = tokio::join!(world.run(&plain), world.run(&plain), world.run(&plain));
    for done in [a, b, c] {
        started(done);
    }
    tokio::time::sleep(ms(450)).await;
    assert_eq!((world.engine.live(), world.engine.with_modules()), (3, 0));
    for there in 1..=3 {
        tokio::time::sleep(ms(1100)).await;
        assert_eq!(world.engine.with_modules(), there);
    }
    world.fill().await;
    assert_eq!((world.pool().hot, world.pool().paused), (1, 2));
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn modules_that_are_used_are_imported_again_at_once() {
    let world = World::full(preloading(3, 1)).await;
    world.engine.preloading(Preloading::Imports(ms(100)));
    for _ in 0..10 {
        let (_, receipt) = world.run(&importing("numpy", 5)).await.unwrap();
        assert!(receipt.run.preloaded, "{receipt:?}");
        tokio::time::sleep(ms(300)).await;
        assert_eq!(world.engine.with_modules(), 3);
    }
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_program_that_wants_modules_gets_a_sandbox_that_has_them_and_others_leave_it() {
    for hot in [0, 1, 3] {
        let world = World::full(preloading(3, hot)).await;
        world.engine.preloading(Preloading::Imports(secs(1)));
        for _ in 0..5 {
            let (_, receipt) = world.run(&run_for(5)).await.unwrap();
            assert!(receipt.run.preloaded, "{receipt:?}");
            tokio::time::sleep(ms(300)).await;
        }
        assert_eq!(world.engine.with_modules(), 2);
        let (_, receipt) = world.run(&importing("numpy", 5)).await.unwrap();
        assert!(receipt.run.preloaded && receipt.start != Start::Cold, "{receipt:?}");
        world.end().await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_idle_sandbox_has_its_interpreter_and_a_cold_one_has_not() {
    let world = World::full(preloading(1, 1)).await;
    let (_, receipt) = world.run(&run_for(5)).await.unwrap();
    assert!(receipt.run.preloaded && receipt.start == Start::Hot, "{receipt:?}");
    world.end().await;

    let world = World::start(preloading(0, 0));
    let (_, receipt) = world.run(&run_for(5)).await.unwrap();
    assert!(!receipt.run.preloaded && receipt.start == Start::Cold, "{receipt:?}");
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn complaints_of_the_runner_are_in_the_status() {
    let world = World::full(preloading(1, 0)).await;
    let preload = world.pool().preload;
    assert_eq!((preload.memory, preload.complaints.len()), (1 << 20, 1));
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_program_keeps_the_memory_of_its_own_interpreter_and_no_other_s() {
    let world = World::full(preloading(1, 1)).await;
    let own = RESOURCES.memory.as_bytes();
    // The runner of the tests says that interpreters hold 1 MiB, and is not believed if it says more later.
    for (said, kept) in [(0, 0), (4096, 4096), (u64::MAX, 1 << 20)] {
        // Modules come when it is calm.
        tokio::time::sleep(secs(5)).await;
        assert_eq!(world.engine.given_memory(65).last(), Some(&(own + (1 << 20))));
        world.run(&request(&["alone", &said.to_string(), "10"])).await.unwrap();
        assert_eq!(world.engine.given_memory(64), [own + kept]);
    }
    tokio::time::sleep(secs(5)).await;
    world.run(&run_for(10)).await.unwrap();
    assert!(world.engine.given_memory(64).is_empty(), "it ended before the others did");
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_sandbox_whose_limits_are_being_lowered_gets_no_other_call() {
    let world = World::full(preloading(1, 1)).await;
    world.engine.delay(Call::Update, secs(8));
    let late = RunRequest { timeout: ms(1), ..request(&["alone", "0", "60000"]) };
    world.run(&late).await.unwrap();
    assert_eq!(world.engine.calls(Call::State), 1);
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_request_that_waits_is_not_kept_waiting_by_preloading_or_pausing() {
    let world = World::start_with(preloading(1, 0), |engine| {
        engine.delay(Call::Create, secs(2));
        engine.delay(Call::Pause, secs(2));
        engine.preloading(Preloading::Takes(secs(2)));
    });
    // The refill is ahead of what is made for the request, so it is what the request gets.
    tokio::time::sleep(secs(1)).await;
    let began = tokio::time::Instant::now();
    let (_, receipt) = world.run(&run_for(0)).await.unwrap();
    assert_eq!(receipt.start, Start::Queued);
    assert!(began.elapsed() < ms(1100), "{:?}", began.elapsed());
    assert_eq!((world.engine.calls(Call::Pause), world.engine.calls(Call::Resume)), (0, 0));
    world.fill().await;
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_sandbox_whose_request_has_gone_does_not_stay_thawed() {
    let world = World::start_with(preloading(2, 0), |engine| engine.delay(Call::Create, secs(2)));
    // Two refills come for one request.
    tokio::time::sleep(secs(1)).await;
    assert_eq!(started(world.run(&run_for(5)).await), Start::Queued);
    world.fill().await;
    until("all are paused", || world.pool().paused == 2).await;
    assert_eq!(world.pool().hot, 0);
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_runner_that_is_never_heard_of_again_costs_a_sandbox_and_not_the_pool() {
    for fault in [Preloading::Silence, Preloading::Eof] {
        let world = World::start_with(preloading(2, 1), |engine| engine.preloading(fault));
        until("it was noticed", || world.pool().last_error.is_some()).await;
        // Requests do without.
        assert_eq!(started(world.run(&run_for(5)).await), Start::Cold);
        world.engine.heal();
        world.fill().await;
        let (_, receipt) = world.run(&run_for(5)).await.unwrap();
        assert!(receipt.run.preloaded);
        world.end().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_thaw_that_hangs_does_not_hold_up_the_refill() {
    use crate::fake::Fault;
    let world = World::full(preloading(3, 1)).await;
    world.engine.fault(Call::Resume, Fault::Hang);
    assert_eq!(started(world.run(&run_for(5)).await), Start::Hot);
    let created = world.engine.created();
    tokio::time::sleep(secs(1)).await;
    assert!(world.engine.created() > created, "the taken one is replaced at once");
    world.engine.heal();
    world.fill().await;
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn refills_and_removals_wait_for_short_requests() {
    let world = World::full(preloading(2, 1)).await;
    let created = world.engine.created();
    let calls = || {
        let calls = [Call::Resume, Call::Remove].map(|call| world.engine.calls(call));
        (world.engine.created() - created, calls)
    };
    let request = world.spawn(run_for(40));
    tokio::time::sleep(ms(35)).await;
    assert_eq!(calls(), (0, [0, 0]), "nothing disturbs the request");
    started(request.await.unwrap());
    tokio::time::sleep(ms(3)).await;
    assert_eq!(calls(), (0, [0, 0]), "nor its answer");
    tokio::time::sleep(ms(10)).await;
    assert_eq!(calls(), (1, [1, 1]), "then everything is done at once");
    world.end().await;
}
