//! Sessions: the owner of the sandbox, freezing, and ends.

use std::sync::Arc;
use std::time::Duration;

use isolator_pool::OutputLimits;
use isolator_pool::engine::Call;
use isolator_pool::pool::Start;
use isolator_pool::pool::admission::Client;
use isolator_pool::pool::pools::OpenReceipt;
use isolator_pool::pool::session::{
    CellEnd, CellOutcome, CellRequest, CellRun, EndReason, Rewound, Session, SessionError,
    SessionRequest,
};
use isolator_pool::run::outcome::Status;
use isolator_pool::run::workspace::{WorkspaceBuilder, WorkspaceLimits};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use crate::fake::{
    Fault, POOL, Park, RESOURCES, Setup, World, ms, run_for, secs, settle, started, until,
};

/// The request for a session without a kernel.
fn request() -> SessionRequest {
    SessionRequest {
        kernel: None,
        resources: RESOURCES,
        packages: None,
        installer: None,
        checkpoints: 2,
        max_queue: None,
    }
}

/// Opens a session.
pub(crate) async fn open(world: &World) -> (Arc<Session>, OpenReceipt) {
    let (session, receipt) =
        world.open_session(POOL, &Client::Host, &request()).await.expect("a session");
    (Arc::new(session), receipt)
}

fn cell(code: &str) -> CellRequest {
    CellRequest {
        run: CellRun::code(),
        workspace: WorkspaceBuilder::new(WorkspaceLimits { files: 0, total: 0 }).build(),
        appended: Vec::new(),
        input: code.as_bytes().to_vec(),
        timeout: secs(10),
        output: OutputLimits { head: 100, tail: 100, kill: 1000 },
        shown: 1000,
        files: None,
        watch: None,
        shown_watch: None,
        interrupt: None,
        context: 0,
        keeps_session: false,
    }
}

pub(crate) async fn run(session: &Session, code: &str) -> Result<CellOutcome, SessionError> {
    session.run(cell(code), |_| {}).await
}

fn is_lost(reason: &EndReason, why: &str) -> bool {
    matches!(reason, EndReason::Lost(error) if error.to_string().contains(why))
}

/// Runs a cell in a task of its own.
pub(crate) fn spawn(
    world: &World,
    session: &Arc<Session>,
    code: &'static str,
) -> tokio::task::JoinHandle<Result<CellOutcome, SessionError>> {
    let session = Arc::clone(session);
    world.tasks.spawn(async move { run(&session, code).await })
}

#[tokio::test(start_paused = true)]
async fn cells_share_a_sandbox_that_never_goes_back() {
    let world = World::full(Setup::default()).await;
    let (session, receipt) = open(&world).await;
    assert_eq!(receipt.start, Start::Warm);
    for number in 1..=3 {
        let ran = run(&session, "sleep 5").await.unwrap();
        assert_eq!(ran.cell, number);
        assert_eq!(ran.outcome.stdout.head, format!("cell {number}").as_bytes());
    }
    assert_eq!(session.memory(), 2 << 20);
    until("the pool has made another", || world.engine.live() == 3).await;
    session.close();
    assert!(matches!(session.ended().await, EndReason::Closed));
    assert!(matches!(run(&session, "sleep 5").await, Err(SessionError::Ended(EndReason::Closed))));
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_session_that_rests_is_frozen_and_takes_no_slot() {
    let setup = Setup { running: 1, ..Setup::default() };
    let world = World::full(setup).await;
    let (session, _) = open(&world).await;
    assert!(!session.is_frozen());
    tokio::time::sleep(ms(1500)).await;
    assert!(session.is_frozen());
    started(world.run(&run_for(5)).await);
    let ran = run(&session, "sleep 5").await.unwrap();
    assert!(ran.times.was_frozen);
    assert!(!run(&session, "sleep 5").await.unwrap().times.was_frozen);
    // While a cell runs, it takes the only slot.
    let long = spawn(&world, &session, "sleep 2000");
    tokio::time::sleep(ms(50)).await;
    let began = Instant::now();
    started(world.run(&run_for(5)).await);
    assert!(began.elapsed() >= ms(1900));
    assert!(long.await.unwrap().is_ok());
    drop(session);
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_session_has_a_slot_until_it_is_frozen() {
    let world = World::full(Setup { running: 1, ..Setup::default() }).await;
    let (one, _) = open(&world).await;
    let (other, _) = open(&world).await;
    // The second one needed the slot that the first one kept for its second.
    assert!(one.is_frozen() && !other.is_frozen());
    tokio::time::sleep(ms(1500)).await;
    let at_most_one_is_awake = || {
        let awake = [&one, &other].iter().filter(|it| !it.is_frozen()).count();
        assert!(awake <= 1, "{awake} are awake");
        awake
    };
    // No call is served while the slot is taken, of whatever kind, and then at once.
    for what in ["list", "rewind", "cell"] {
        let long = spawn(&world, &one, "sleep 900");
        settle().await;
        let began = Instant::now();
        match what {
            "list" => drop(other.list().await.unwrap()),
            "rewind" => drop(other.rewind(2, |_| {}).await.unwrap()),
            _ => drop(run(&other, "sleep 5").await.unwrap()),
        }
        assert!((ms(850)..ms(1000)).contains(&began.elapsed()), "{what}: {:?}", began.elapsed());
        assert!(long.await.unwrap().is_ok());
        assert_eq!(at_most_one_is_awake(), usize::from(what != "list"), "{what}");
    }
    // A client that never pauses does not keep the slot.
    let (stop, mut stopped) = oneshot::channel::<()>();
    let busy = Arc::clone(&other);
    let busy = world.tasks.spawn(async move {
        while stopped.try_recv().is_err() {
            run(&busy, "sleep 5").await.unwrap();
        }
    });
    for _ in 0..5 {
        let began = Instant::now();
        run(&one, "sleep 5").await.unwrap();
        assert!(began.elapsed() < ms(100), "{:?}", began.elapsed());
        at_most_one_is_awake();
    }
    stop.send(()).unwrap();
    busy.await.unwrap();
    tokio::time::sleep(ms(1500)).await;
    // Reading does not keep it awake, and does not take the second after a cell from it.
    one.list().await.unwrap();
    settle().await;
    assert!(one.is_frozen());
    run(&one, "sleep 5").await.unwrap();
    one.list().await.unwrap();
    settle().await;
    assert!(!one.is_frozen());
    drop((one, other));
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_runner_that_does_not_rest_keeps_its_slot_and_its_turn_ends() {
    let world = World::full(Setup { running: 1, ..Setup::default() }).await;
    let (restless, _) = open(&world).await;
    assert!(run(&restless, "unrest").await.is_ok());
    let began = Instant::now();
    started(world.run(&run_for(5)).await);
    assert!((secs(19)..secs(21)).contains(&began.elapsed()), "{:?}", began.elapsed());
    assert!(restless.is_frozen());
    drop(restless);
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn callers_of_a_session_whose_task_panics_get_an_error() {
    let world = World::full(Setup::default()).await;
    let (session, _) = open(&world).await;
    let waiting = {
        let session = Arc::clone(&session);
        async move {
            settle().await;
            run(&session, "sleep 5").await
        }
    };
    let panics = session.run(cell("sleep 50"), |_| panic!("on purpose"));
    let (ran, waited) = tokio::join!(panics, waiting);
    for ended in [ran, waited, run(&session, "sleep 5").await] {
        assert!(
            matches!(&ended, Err(SessionError::Ended(EndReason::Lost(why))) if why.to_string().contains("server")),
            "{ended:?}"
        );
    }
    assert!(!session.is_running());
    drop(session);
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_goes_away_ends_only_its_cell() {
    let world = World::full(Setup::default()).await;
    let (session, _) = open(&world).await;
    let gone = tokio::time::timeout(ms(100), run(&session, "sleep 60000")).await;
    assert!(gone.is_err());
    let began = Instant::now();
    assert_eq!(run(&session, "sleep 5").await.unwrap().cell, 2);
    assert!(began.elapsed() < secs(1), "the first one was cancelled");
    // One that waits for its turn is not run at all.
    let long = spawn(&world, &session, "sleep 500");
    settle().await;
    assert!(tokio::time::timeout(ms(100), run(&session, "end")).await.is_err());
    // This would end the session.
    assert!(
        tokio::time::timeout(ms(100), session.rewind(5, |_| panic!("it came to its turn")))
            .await
            .is_err()
    );
    assert!(long.await.unwrap().is_ok());
    assert_eq!(run(&session, "sleep 5").await.unwrap().cell, 4);
    drop(session);
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_cell_is_reported_even_if_its_caller_has_gone() {
    let world = World::full(Setup::default()).await;
    let (session, _) = open(&world).await;
    let (sender, mut received) = mpsc::unbounded_channel();
    // Of a cell whose caller goes away while it runs, one that ends well, one whose caller has gone when its turn comes, and
    // one that ends with its session.
    let send = |name: &'static str| {
        let sender = sender.clone();
        move |ended: &Result<CellOutcome, SessionError>| {
            let _ = sender.send((name, ended.is_ok()));
        }
    };
    let left = session.run(cell("sleep 60000"), send("left"));
    assert!(tokio::time::timeout(ms(100), left).await.is_err());
    session.run(cell("sleep 5"), send("well")).await.unwrap();
    let long = spawn(&world, &session, "sleep 500");
    settle().await;
    let never = session.run(cell("sleep 5"), send("never"));
    assert!(tokio::time::timeout(ms(100), never).await.is_err());
    assert!(long.await.unwrap().is_ok());
    let running = Arc::clone(&session);
    let done = send("closed");
    let closed = world.tasks.spawn(async move { running.run(cell("sleep 60000"), done).await });
    settle().await;
    session.close();
    assert!(closed.await.unwrap().is_err());
    drop(sender);
    let mut all = Vec::new();
    while let Some(one) = received.recv().await {
        all.push(one);
    }
    assert_eq!(all, [("left", true), ("well", true), ("closed", false)]);
    drop(session);
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_rewinding_is_reported_even_if_its_caller_has_gone() {
    let world = World::full(Setup::default()).await;
    let (session, _) = open(&world).await;
    let (sender, received) = oneshot::channel();
    let done = |rewound: &Result<Rewound, SessionError>| {
        let _ = sender.send(rewound.as_ref().ok().map(|it| it.cells));
    };
    assert!(tokio::time::timeout(ms(10), session.rewind(2, done)).await.is_err());
    assert_eq!(received.await, Ok(Some(2)));
    drop(session);
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn callers_that_went_away_leave_their_places_at_once() {
    let world = World::full(Setup { running: 20, queue: 20, ..Setup::default() }).await;
    let (session, _) = open(&world).await;
    let long = spawn(&world, &session, "sleep 5000");
    settle().await;
    let impatient: Vec<_> = (0..8).map(|_| spawn(&world, &session, "sleep 5")).collect();
    settle().await;
    assert!(matches!(session.list().await, Err(SessionError::Busy)));
    for one in impatient {
        one.abort();
        assert!(one.await.is_err());
    }
    let next = spawn(&world, &session, "sleep 5");
    assert!(long.await.unwrap().is_ok());
    assert_eq!(next.await.unwrap().unwrap().cell, 2);
    drop(session);
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_not_served_does_not_keep_a_session_awake() {
    let world = World::full(Setup { running: 1, queue: 0, ..Setup::default() }).await;
    let (session, _) = open(&world).await;
    run(&session, "sleep 5").await.unwrap();
    // The only slot is taken, and no call can wait for it.
    let other = world.spawn(run_for(5000));
    settle().await;
    assert!(matches!(run(&session, "sleep 5").await, Err(SessionError::Admission(_))));
    tokio::time::sleep(ms(1500)).await;
    assert!(session.is_frozen());
    started(other.await.unwrap());
    drop(session);
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn an_interruption_reaches_the_cell_that_runs_and_no_later_one() {
    let world = World::full(Setup::default()).await;
    let (session, _) = open(&world).await;
    assert!(!session.interrupt());
    let long = spawn(&world, &session, "sleep 9000");
    settle().await;
    assert!(session.interrupt());
    assert_eq!(long.await.unwrap().unwrap().end, Some(CellEnd::Interrupted));
    let next = run(&session, "sleep 50").await.unwrap();
    assert_eq!((next.end, next.outcome.status), (Some(CellEnd::Ended), Status::Success));
    drop(session);
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn more_than_a_few_do_not_wait_for_one_session() {
    let world = World::full(Setup { running: 20, queue: 20, ..Setup::default() }).await;
    let (session, _) = open(&world).await;
    let all: Vec<_> = (0..12).map(|_| spawn(&world, &session, "sleep 100")).collect();
    let mut refused = 0;
    for one in all {
        match one.await.unwrap() {
            Ok(_) => {}
            Err(SessionError::Busy) => refused += 1,
            Err(error) => panic!("{error}"),
        }
    }
    assert!((2..=4).contains(&refused), "{refused}");
    drop(session);
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn every_end_has_its_reason_and_leaves_nothing() {
    type Expected = fn(&EndReason) -> bool;
    let cases: [(&str, Expected); 5] = [
        ("end", |reason| matches!(reason, EndReason::ByProgram(_))),
        ("eof", |reason| matches!(reason, EndReason::ByProgram(_))),
        ("silence", |reason| is_lost(reason, "in time")),
        ("garbage", |reason| is_lost(reason, "protocol")),
        ("unexpected", |reason| is_lost(reason, "protocol")),
    ];
    for (code, expected) in cases {
        let world = World::full(Setup::default()).await;
        let (session, _) = open(&world).await;
        let ran = run(&session, code).await;
        match (code, ran) {
            ("end", Ok(outcome)) => assert!(!outcome.is_alive),
            (_, Err(SessionError::Ended(reason))) => assert!(expected(&reason), "{code}: {reason}"),
            (_, other) => panic!("{code}: {other:?}"),
        }
        let reason = session.ended().await;
        assert!(expected(&reason), "{code}: {reason}");
        drop(session);
        world.end().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_sandbox_that_ends_or_can_not_be_frozen_or_thawed_ends_its_session() {
    // A pool that makes sandboxes ahead would be hit by the faults.
    let world = World::start(Setup { size: 0, ..Setup::default() });
    let (frozen, _) = open(&world).await;
    tokio::time::sleep(ms(1500)).await;
    world.engine.fault(Call::Resume, Fault::Fail(1));
    let lost = run(&frozen, "sleep 5").await;
    assert!(matches!(lost, Err(SessionError::Ended(EndReason::Lost(_)))), "{lost:?}");

    // That may be the fault of a busy machine, so it is tried again for a while.
    let (resting, _) = open(&world).await;
    world.engine.fault(Call::Pause, Fault::Fail(2));
    tokio::time::sleep(secs(5)).await;
    assert!(!resting.is_frozen() && run(&resting, "sleep 5").await.is_ok());
    tokio::time::sleep(secs(7)).await;
    assert!(resting.is_frozen() && run(&resting, "sleep 5").await.is_ok());
    world.engine.fault(Call::Pause, Fault::Broken);
    let began = Instant::now();
    assert!(matches!(resting.ended().await, EndReason::Lost(_)));
    assert!((secs(50)..secs(70)).contains(&began.elapsed()), "{:?}", began.elapsed());
    drop((frozen, resting));
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_session_that_was_frozen_from_outside_is_thawed_after_a_second() {
    let world = World::start(Setup { size: 0, ..Setup::default() });
    let (session, _) = open(&world).await;
    assert!(run(&session, "sleep 5").await.is_ok());
    world.engine.freeze_all();
    let began = Instant::now();
    assert_eq!(run(&session, "sleep 5").await.unwrap().cell, 2);
    assert!((ms(1000)..ms(1500)).contains(&began.elapsed()), "{:?}", began.elapsed());
    drop(session);
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn rewinding_is_answered_and_one_that_fails_ends_the_session() {
    let world = World::full(Setup::default()).await;
    let (session, _) = open(&world).await;
    let rewound = session.rewind(2, |_| {}).await.unwrap();
    assert_eq!((rewound.cells, rewound.checkpoints), (2, 1));
    assert_eq!(session.list().await.unwrap(), (Vec::new(), true));
    assert!(matches!(
        session.rewind(5, |_| {}).await,
        Err(SessionError::Ended(EndReason::ByProgram(_)))
    ));
    drop(session);
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_session_is_opened_in_a_second_sandbox_if_the_first_has_ended() {
    let world = World::start_with(Setup { size: 1, ..Setup::default() }, |engine| {
        engine.park(Park::Dies(secs(3)));
    });
    world.fill().await;
    world.engine.park(Park::Ready);
    tokio::time::sleep(secs(4)).await;
    let (session, _) = open(&world).await;
    assert!(run(&session, "sleep 5").await.is_ok());
    drop(session);
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn pools_can_be_closed_at_each_moment_of_a_session() {
    for moment in (0..3000).step_by(97) {
        let world = World::full(Setup::default()).await;
        world.engine.delay_all(ms(5));
        let pools = Arc::clone(&world.pools);
        let life = world.tasks.spawn(async move {
            let Ok((session, _)) = pools.open_session(POOL, &Client::Host, &request()).await else {
                return;
            };
            for _ in 0..3 {
                if run(&session, "sleep 300").await.is_err() {
                    return;
                }
                tokio::time::sleep(ms(700)).await;
            }
        });
        tokio::time::sleep(Duration::from_millis(moment)).await;
        world.close(secs(1)).await.unwrap();
        life.await.unwrap();
        tokio::time::sleep(secs(120)).await;
        world.engine.assert_clean();
        world.assert_clean().await;
    }
}
