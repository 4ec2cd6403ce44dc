//! Runners that misbehave: the answer to the request, and the effect on others.

use crate::fake::{Done, Fault, Park, Setup, World, ms, request, run_for, secs, started};
use isolator_pool::engine::Call;
use isolator_pool::pool::CheckoutError;
use isolator_pool::pool::pools::ExecuteError;
use isolator_pool::run::outcome::Status;
use isolator_pool::run::{RunError, RunRequest};
use tokio::time::{Instant, timeout};

/// Runs a request in a world of its own and returns what became of it, after another request was
/// served and everything was removed.
async fn outcome(request: &RunRequest) -> Result<Done, ExecuteError> {
    let world = World::full(Setup::default()).await;
    let done = timeout(secs(60), world.run(request)).await.expect("an answer in time");
    started(world.run(&run_for(5)).await);
    world.fill().await;
    world.end().await;
    done
}

#[tokio::test(start_paused = true)]
async fn a_runner_that_is_never_ready_is_given_up_with_a_reason() {
    let parks = [
        (Park::Eof, "ended before it was ready"),
        (Park::Version(99), "speaks version 99"),
        (Park::Garbage, "unknown frame kind"),
        (Park::Oversize, "longer than the limit"),
        (Park::Unexpected, "unexpected Exit"),
    ];
    for (park, why) in parks {
        let world = World::start_with(Setup { size: 0, ..Setup::default() }, |engine| {
            engine.park(park);
        });
        let refused = timeout(secs(1), world.run(&run_for(5))).await.expect("an answer at once");
        let Err(ExecuteError::Checkout(error @ CheckoutError::Sandbox(_))) = refused else {
            panic!("{park:?} gave {refused:?}");
        };
        assert!(error.to_string().contains(why), "{park:?} gave {error}");
        crate::fake::settle().await;
        assert_eq!(world.engine.live(), 0);
        world.engine.heal();
        started(world.run(&run_for(5)).await);
        world.end().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_runner_that_says_nothing_is_given_up_in_time() {
    let world = World::start_with(Setup { size: 0, ..Setup::default() }, |engine| {
        engine.park(Park::Silence);
    });
    let refused = timeout(secs(21), world.run(&run_for(5))).await.expect("an answer in time");
    assert!(refused.is_err());
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_ends_without_a_cause_outside_means_that_all_was_killed() {
    for end in ["eof", "end"] {
        let (outcome, _) = outcome(&request(&[end])).await.unwrap();
        assert_eq!(outcome.status, Status::Killed, "{end}");
        assert_eq!(outcome.end, None);
        assert_eq!(outcome.stdout.head, b"so far");
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_ends_with_its_container_means_that_the_sandbox_is_lost() {
    for end in ["stop", "vanish"] {
        let lost = outcome(&request(&[end])).await;
        let Err(ExecuteError::Run(RunError::Sandbox(error))) = lost else {
            panic!("{end} gave {lost:?}");
        };
        assert!(error.to_string().contains("from outside"), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_runner_that_reports_nothing_by_the_deadline_makes_a_timeout() {
    let mut silence = request(&["silence"]);
    silence.timeout = secs(3);
    let began = Instant::now();
    let (outcome, _) = outcome(&silence).await.unwrap();
    assert_eq!(outcome.status, Status::Timeout);
    assert!(began.elapsed() < secs(3 + 5) + ms(500), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_request_whose_program_did_not_start_is_given_one_more_sandbox() {
    let (outcome, _) = outcome(&request(&["second-time"])).await.unwrap();
    assert_eq!(outcome.status, Status::Success);
}

#[tokio::test(start_paused = true)]
async fn a_program_that_never_starts_makes_no_outcome() {
    let lost = outcome(&request(&["not-started"])).await;
    assert!(matches!(lost, Err(ExecuteError::Run(RunError::NotStarted(_)))), "{lost:?}");
}

#[tokio::test(start_paused = true)]
async fn bytes_that_are_no_frames_are_the_sandbox_s_error() {
    for noise in ["garbage", "oversize", "unexpected"] {
        let broken = outcome(&request(&[noise])).await;
        let Err(ExecuteError::Run(RunError::Sandbox(error))) = broken else {
            panic!("{noise} gave {broken:?}");
        };
        assert!(error.to_string().contains("broke the protocol"), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn only_disks_that_the_runner_was_asked_about_can_be_full() {
    let (outcome, _) = outcome(&request(&["full", "call this number", "/tmp", ""])).await.unwrap();
    assert_eq!(outcome.full_disks, ["/tmp"]);
    assert_eq!(outcome.status, Status::Success);
}

#[tokio::test(start_paused = true)]
async fn a_reported_failure_is_an_error_of_its_own_kind() {
    type Expected = fn(&RunError) -> bool;
    let causes: [(&str, Expected); 4] = [
        ("workspace-full", |e| matches!(e, RunError::WorkspaceFull(_))),
        ("workspace", |e| matches!(e, RunError::Workspace(_))),
        ("command", |e| matches!(e, RunError::Command(_))),
        ("protocol", |e| matches!(e, RunError::Protocol(_))),
    ];
    for (cause, expected) in causes {
        let failed = outcome(&request(&["fail", cause])).await;
        let Err(ExecuteError::Run(error)) = failed else { panic!("{cause} gave {failed:?}") };
        assert!(expected(&error), "{cause} gave {error:?}");
        let message = error.to_string();
        assert!(message.contains("words of the system") && message.len() < 1000, "{message}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_failure_that_is_reported_while_the_job_is_still_being_sent_is_heard_at_once() {
    let mut large = request(&["fail-half-way", "workspace-full"]);
    // More than the stream holds, so that sending can't end.
    large.stdin = vec![0; 4 << 20];
    let began = Instant::now();
    let failed = outcome(&large).await;
    assert!(
        matches!(failed, Err(ExecuteError::Run(RunError::WorkspaceFull(_)))),
        "it gave {failed:?}"
    );
    assert!(began.elapsed() < secs(1), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn output_above_the_limits_is_cut_even_if_the_runner_sends_it() {
    let mut flood = request(&["flood", "200", "50000"]);
    flood.output = isolator_pool::OutputLimits { head: 1000, tail: 500, kill: 1 << 20 };
    let (outcome, _) = outcome(&flood).await.unwrap();
    for stream in [&outcome.stdout, &outcome.stderr] {
        assert_eq!((stream.head.len(), stream.tail.len()), (1000, 500));
    }
    assert!(outcome.stdout.head.iter().all(|byte| *byte == b'o'));
    assert!(outcome.stderr.tail.iter().all(|byte| *byte == b'e'));
}

#[tokio::test(start_paused = true)]
async fn a_large_input_reaches_the_program_whole() {
    let mut large = run_for(1);
    large.stdin = (0..3_000_000_u32).map(|number| number as u8).collect();
    large.output.head = large.stdin.len();
    let (outcome, _) = outcome(&large).await.unwrap();
    assert!(outcome.stdout.head == large.stdin);
}

#[tokio::test(start_paused = true)]
async fn a_sandbox_whose_limits_can_not_be_changed_is_replaced_once() {
    let world = World::full(Setup::default()).await;
    let mut other = run_for(5);
    other.resources.cpu = isolator_pool::engine::limits::CpuShare::millis(1);
    world.engine.fault(Call::Update, Fault::Fail(1));
    started(world.run(&other).await);
    for fault in [Fault::Broken, Fault::EndsContainer] {
        world.engine.fault(Call::Update, fault);
        let error = world.run(&other).await.expect_err("two were tried");
        assert!(matches!(error, ExecuteError::Run(RunError::NotLimited(_))), "{error}");
    }
    world.engine.heal();
    started(world.run(&other).await);
    world.end().await;
}
