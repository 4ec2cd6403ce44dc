//! Interpreters that are forked into sandboxes: whatever comes of a fork, its request is answered and nothing is left.

use crate::fake::{
    Done, Fault, Forking, Setup, World, close_at_each_moment, drop_at_each_moment, importing, ms,
    poll_times, request, run_for, secs, settle, started, until,
};
use isolator_pool::engine::Call;
use isolator_pool::engine::limits::CpuShare;
use isolator_pool::pool::Start;
use isolator_pool::pool::pools::ExecuteError;
use isolator_pool::run::RunRequest;
use tokio::time::{Instant, timeout};

/// A world on an engine that forks, with a pool that is full.
async fn forking(size: usize, hot: usize) -> World {
    let setup = Setup { size, hot, preload: true, ..Setup::default() };
    let world = World::start_with(setup, |engine| {
        engine.forks(Forking::Comes);
        engine.learn(&["scipy"]);
    });
    world.fill().await;
    world
}

/// A world in which nothing is ready but the template, so that each request gets a fork into a new sandbox.
async fn cold() -> World {
    let world = forking(0, 0).await;
    started(world.run(&run_for(5)).await);
    assert!(world.engine.has_template());
    settle().await;
    world
}

/// A program for which the fork is better than what waits.
fn with_scipy() -> RunRequest {
    importing("scipy", 5)
}

/// How many sandboxes were made and forks came while `act` ran.
async fn counted<T>(world: &World, act: impl Future<Output = T>) -> (T, usize, usize) {
    let (created, forked) = (world.engine.created(), world.engine.forked());
    let done = act.await;
    (done, world.engine.created() - created, world.engine.forked() - forked)
}

fn is_preloaded(done: Result<Done, ExecuteError>) -> bool {
    let (_, receipt) = done.expect("an outcome");
    receipt.run.preloaded
}

/// The next request finds everything as if nothing had happened.
async fn assert_unharmed(world: World) {
    world.engine.heal();
    assert_eq!(world.load(), (0, 0), "permits");
    let next = timeout(secs(5), world.run(&with_scipy())).await;
    started(next.expect("the next request is served"));
    world.fill().await;
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_program_gets_a_fork_once_a_program_before_it_has_asked_for_one() {
    let world = World::start_with(Setup { size: 0, preload: true, ..Setup::default() }, |engine| {
        engine.forks(Forking::Comes);
        engine.template_takes(ms(500));
    });
    for is_ready in [false, true, true] {
        assert_eq!(is_preloaded(world.run(&run_for(5)).await), is_ready);
        tokio::time::sleep(secs(1)).await;
    }
    assert_eq!((world.engine.templates(), world.engine.forked()), (1, 2));
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_program_gets_a_fork_only_if_it_is_better_than_the_waiting_interpreter() {
    for hot in [0, 1] {
        let world = forking(1, hot).await;
        let (done, _, forks) = counted(&world, world.run(&run_for(5))).await;
        assert!(is_preloaded(done) && forks == 0);
        world.fill().await;
        let (done, created, forks) = counted(&world, world.run(&with_scipy())).await;
        assert!(is_preloaded(done));
        assert_eq!((created, forks), (0, 1));
        world.fill().await;
        world.end().await;
    }
}

#[tokio::test(start_paused = true)]
async fn waiting_sandboxes_are_filled_with_forks_and_get_no_memory_for_them() {
    let world = forking(3, 1).await;
    assert_eq!((world.engine.with_modules(), world.engine.forked()), (3, 6));
    assert!(world.engine.given_memory(65).is_empty());
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_fork_that_never_comes_into_its_sandbox_leaves_the_plain_interpreter() {
    for (forking, came) in [(Forking::Refused, 0), (Forking::EndsInside, 1)] {
        let world = cold().await;
        world.engine.forks(forking);
        let (done, created, forks) = counted(&world, world.run(&run_for(5))).await;
        assert!(!is_preloaded(done), "{forking:?}");
        assert_eq!((created, forks), (1, came), "{forking:?}");
        assert_unharmed(world).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_template_whose_fork_does_not_get_ready_is_given_up_unless_a_request_s_limits_may_be_why()
{
    for (cpu, given_up) in [(None, 1), (Some(CpuShare::millis(10)), 0)] {
        let world = cold().await;
        world.engine.forks(Forking::EndsInside);
        let mut request = run_for(5);
        request.resources.cpu = cpu.unwrap_or(request.resources.cpu);
        assert!(!is_preloaded(world.run(&request).await));
        assert_eq!(world.engine.given_up(), given_up);
        assert_unharmed(world).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_sandbox_that_gets_no_better_fork_runs_the_program_in_the_one_that_waits() {
    for hot in [0, 1] {
        let world = forking(1, hot).await;
        world.engine.forks(Forking::Refused);
        let (done, created, _) = counted(&world, world.run(&with_scipy())).await;
        assert!(is_preloaded(done) && created == 0);
        assert_unharmed(world).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_template_that_is_evicted_just_before_its_fork_leaves_the_plain_interpreter() {
    let world = cold().await;
    world.engine.template_takes(secs(1));
    world.engine.delay(Call::Preload, ms(10));
    let run = world.spawn(run_for(5));
    tokio::time::sleep(ms(5)).await;
    assert_eq!(world.engine.in_flight(Call::Preload), 1);
    world.engine.evict_template();
    assert!(!is_preloaded(run.await.unwrap()));
    assert_eq!(world.engine.created(), 2, "one for each request");
    assert_unharmed(world).await;
}

#[tokio::test(start_paused = true)]
async fn a_template_that_is_replaced_just_before_its_fork_is_as_good() {
    let world = cold().await;
    world.engine.delay(Call::Preload, ms(10));
    let run = world.spawn(run_for(5));
    tokio::time::sleep(ms(5)).await;
    world.engine.evict_template();
    let other = world.spawn(run_for(5));
    assert!(is_preloaded(run.await.unwrap()) && is_preloaded(other.await.unwrap()));
    assert_eq!(world.engine.templates(), 2);
    assert_unharmed(world).await;
}

#[tokio::test(start_paused = true)]
async fn a_program_whose_fork_is_lost_gets_another_sandbox_and_a_new_interpreter() {
    let world = cold().await;
    world.engine.fault(Call::Preload, Fault::Fail(1));
    let (done, created, forks) = counted(&world, world.run(&run_for(5))).await;
    assert!(!is_preloaded(done));
    assert_eq!((created, forks), (2, 0));
    settle().await;
    assert_eq!(world.engine.live(), 0, "both are removed");
    assert_unharmed(world).await;

    for hot in [0, 1] {
        let world = forking(2, hot).await;
        world.engine.fault(Call::Preload, Fault::Fail(1));
        assert_eq!(started(world.run(&with_scipy()).await), Start::Cold);
        assert_unharmed(world).await;
    }
}

#[tokio::test(start_paused = true)]
async fn programs_run_on_an_engine_that_loses_every_fork() {
    for fault in [Fault::Broken, Fault::EndsContainer] {
        let world = cold().await;
        world.engine.fault(Call::Preload, fault);
        let (done, created, forks) = counted(&world, world.run(&run_for(5))).await;
        assert!(!is_preloaded(done));
        assert_eq!((created, forks), (2, 0));
        settle().await;
        assert_eq!(world.engine.live(), 0);
        assert_unharmed(world).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_runner_that_is_not_heard_of_after_a_fork_costs_its_sandbox() {
    for forking in [Forking::Eof, Forking::Silence] {
        let world = cold().await;
        world.engine.forks(forking);
        let run = world.spawn(run_for(5));
        settle().await;
        world.engine.heal();
        let done = timeout(secs(21), run).await.expect("its deadline ends it").unwrap();
        assert!(!is_preloaded(done));
        assert_unharmed(world).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_template_that_ends_while_a_program_waits_for_its_fork_costs_one_sandbox() {
    let world = cold().await;
    world.engine.delay(Call::Preload, ms(10));
    world.engine.template_takes(secs(1));
    let created = world.engine.created();
    let run = world.spawn(run_for(5));
    tokio::time::sleep(ms(5)).await;
    world.engine.kill_template();
    assert!(!is_preloaded(run.await.unwrap()), "the next template is not ready yet");
    assert_eq!(world.engine.created() - created, 2);
    assert_unharmed(world).await;
}

#[tokio::test(start_paused = true)]
async fn a_template_that_ends_before_it_was_ready_leaves_sandboxes_that_start_their_own() {
    let world = World::start_with(Setup { size: 2, preload: true, ..Setup::default() }, |engine| {
        engine.forks(Forking::Comes);
        engine.template_takes(secs(1));
    });
    tokio::time::sleep(ms(500)).await;
    assert_eq!(world.engine.in_flight(Call::Preload), 2, "both wait for it");
    assert_eq!(world.pool().making, 2);
    world.engine.kill_template();
    world.fill().await;
    assert_eq!(world.engine.templates(), 2, "one more for the interpreters with modules");
    assert_eq!((world.engine.forked(), world.engine.with_modules()), (2, 2));
    assert_unharmed(world).await;
}

#[tokio::test(start_paused = true)]
async fn why_sandboxes_are_not_filled_with_forks_is_in_the_status() {
    let setup = Setup { size: 1, preload: true, ..Setup::default() };
    let world = World::start_with(setup, |engine| engine.forks(Forking::Refused));
    world.fill().await;
    let [complaint] = &world.pool().preload.complaints[..] else { panic!("{}", world.describe()) };
    assert!(complaint.contains("can't be forked"), "{complaint}");
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_template_that_ends_while_sandboxes_are_filled_costs_them_and_not_the_pool() {
    let setup = Setup { size: 2, preload: true, ..Setup::default() };
    let world = World::start_with(setup, |engine| {
        engine.forks(Forking::Comes);
        engine.delay(Call::Preload, ms(500));
    });
    tokio::time::sleep(ms(250)).await;
    assert_eq!(world.engine.in_flight(Call::Preload), 2);
    world.engine.kill_template();
    until("it was noticed", || world.pool().last_error.is_some()).await;
    world.fill().await;
    assert_eq!((world.engine.live(), world.engine.templates()), (2, 2));
    assert_unharmed(world).await;
}

#[tokio::test(start_paused = true)]
async fn a_fork_that_never_answers_is_given_up_at_its_deadline() {
    let deadline = Call::Preload.deadline();
    let world = cold().await;
    world.engine.fault(Call::Preload, Fault::Hang);
    let began = Instant::now();
    let run = world.spawn(run_for(5));
    settle().await;
    world.engine.heal();
    assert!(!is_preloaded(run.await.unwrap()), "the second starts its own");
    assert!(began.elapsed() < deadline + ms(500), "{:?}", began.elapsed());
    assert_unharmed(world).await;

    let world = cold().await;
    world.engine.fault(Call::Preload, Fault::Hang);
    let began = Instant::now();
    assert!(!is_preloaded(world.run(&run_for(5)).await));
    assert!(began.elapsed() < deadline + ms(500), "it waits for one fork only");
    assert_unharmed(world).await;
}

#[tokio::test(start_paused = true)]
async fn a_fork_that_never_answers_holds_up_no_other_request() {
    let world = cold().await;
    world.engine.fault(Call::Preload, Fault::Hang);
    let first = world.spawn(run_for(5));
    settle().await;
    world.engine.heal();
    started(timeout(secs(1), world.run(&run_for(5))).await.expect("others are served"));
    started(first.await.unwrap());
    assert_unharmed(world).await;
}

#[tokio::test(start_paused = true)]
async fn a_pool_whose_forks_never_answer_fills_once_they_do() {
    let setup = Setup { size: 2, preload: true, ..Setup::default() };
    let world = World::start_with(setup, |engine| {
        engine.forks(Forking::Comes);
        engine.fault(Call::Preload, Fault::Hang);
    });
    until("it was noticed", || world.pool().last_error.is_some()).await;
    assert_eq!(world.engine.with_modules(), 0);
    world.engine.heal();
    world.fill().await;
    assert_unharmed(world).await;
}

#[tokio::test(start_paused = true)]
async fn a_paused_sandbox_that_does_not_thaw_is_not_forked_into() {
    for fault in [Fault::Fail(1), Fault::EndsContainer] {
        let world = forking(1, 0).await;
        world.engine.fault(Call::Resume, fault);
        let (done, created, forks) = counted(&world, world.run(&with_scipy())).await;
        assert!(is_preloaded(done));
        assert_eq!((created, forks), (1, 1), "only into the new one");
        assert_unharmed(world).await;
    }
}

/// A world in which the next request starts in this way and is forked, on an engine that takes its time.
async fn slow(start: Start) -> World {
    let world = match start {
        Start::Hot => forking(2, 1).await,
        Start::Warm => forking(2, 0).await,
        Start::Queued | Start::Cold => cold().await,
    };
    world.engine.delay_all(ms(3));
    world
}

const STARTS: [Start; 3] = [Start::Hot, Start::Warm, Start::Cold];

#[tokio::test(start_paused = true)]
async fn a_request_can_be_dropped_at_every_await_of_its_fork() {
    for (start, woken) in STARTS.into_iter().flat_map(|start| [(start, false), (start, true)]) {
        for polls in 0.. {
            let world = slow(start).await;
            let forked = world.engine.forked();
            let request = with_scipy();
            let done = poll_times(world.run(&request), polls, woken).await;
            let is_done = done.is_some();
            if let Some(done) = done {
                assert_eq!(started(done), start);
                assert!(world.engine.forked() > forked && polls > 1);
            }
            assert_unharmed(world).await;
            if is_done {
                break;
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_can_be_dropped_at_each_moment_of_its_fork_and_of_the_next() {
    for (start, is_lost) in STARTS.into_iter().flat_map(|start| [(start, false), (start, true)]) {
        let world = async || {
            let world = slow(start).await;
            if is_lost {
                world.engine.fault(Call::Preload, Fault::Fail(1));
            }
            world
        };
        drop_at_each_moment(world, &with_scipy(), assert_unharmed).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_dropped_while_its_fork_hangs_leaves_nothing() {
    for is_told in [false, true] {
        let world = cold().await;
        if is_told {
            world.engine.forks(Forking::Silence);
        } else {
            world.engine.fault(Call::Preload, Fault::Hang);
        }
        let run = world.spawn(run_for(5));
        settle().await;
        assert_eq!(world.engine.live(), 1);
        run.abort();
        settle().await;
        assert_eq!((world.engine.live(), world.load()), (0, (0, 0)));
        world.engine.assert_idle();
        assert_unharmed(world).await;
    }
}

#[tokio::test(start_paused = true)]
async fn pools_can_be_closed_at_each_moment_of_a_fork() {
    for start in STARTS {
        let world = async |moment| {
            let world = slow(start).await;
            world.engine.delay_all(ms(5));
            if moment % 2 == 0 {
                world.engine.fault(Call::Preload, Fault::Fail(1));
            }
            world
        };
        close_at_each_moment(world, &with_scipy()).await;
    }
}

#[tokio::test(start_paused = true)]
async fn pools_can_be_closed_at_each_moment_in_which_they_are_filled_with_forks() {
    for moment in 0..80 {
        let setup = Setup { size: 3, hot: 1, preload: true, ..Setup::default() };
        let world = World::start_with(setup, |engine| {
            engine.forks(Forking::Comes);
            engine.template_takes(ms(20));
            engine.delay_all(ms(5));
        });
        tokio::time::sleep(ms(moment)).await;
        world.close(secs(1)).await.unwrap();
        tokio::time::sleep(secs(120)).await;
        world.assert_clean().await;
    }
}

#[tokio::test(start_paused = true)]
async fn closing_does_not_wait_for_a_fork_that_hangs() {
    let world = cold().await;
    world.engine.fault(Call::Preload, Fault::Hang);
    let run = world.spawn(run_for(5));
    settle().await;
    let began = Instant::now();
    world.close(secs(2)).await.unwrap();
    assert!(began.elapsed() < secs(3), "{:?}", began.elapsed());
    assert!(timeout(ms(10), run).await.expect("an answer").unwrap().is_err());
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn refills_fork_while_requests_come_and_templates_end() {
    for hot in [0, 1, 3] {
        let world = forking(3, hot).await;
        world.engine.delay_all(ms(4));
        let mut requests = Vec::new();
        for number in 0..60 {
            requests.push(world.spawn(match number % 3 {
                0 => with_scipy(),
                1 => importing("numpy", number % 7),
                _ => request(&["alone", "0", "3"]),
            }));
            match number % 10 {
                3 => world.engine.kill_template(),
                7 => world.engine.evict_template(),
                _ => {}
            }
            tokio::time::sleep(ms(number % 4 * 5 + 2)).await;
        }
        for request in requests {
            // A fork may be lost twice.
            if let Err(error) = request.await.unwrap() {
                assert!(error.to_string().contains("no interpreter came"), "{error}");
            }
        }
        world.fill().await;
        until("all have their modules", || world.engine.with_modules() == 3).await;
        assert_unharmed(world).await;
    }
}
