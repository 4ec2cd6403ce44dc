//! Calls to the agent of a session: what it says is checked, its end ends what it knows, and the session has a slot meanwhile.

use std::sync::Arc;
use std::time::Duration;

use isolator_pool::pool::session::agent::{
    AgentError, AgentLoss, Attached, ProcessEvent, StartProcess, TooMany,
};
use isolator_pool::pool::session::{EndReason, Session, SessionError};
use tokio::time::{Instant, timeout};

use crate::fake::{PID, Setup, World, ms, run_for, secs, settle, started, until};
use crate::sessions;

async fn open(world: &World) -> Arc<Session> {
    sessions::open(world).await.0
}

async fn start(session: &Session) -> Attached {
    let start = StartProcess { argv: vec!["run".to_owned()], ..StartProcess::default() };
    let mut attached = session.start_process(start).await.expect("a process");
    let event = attached.next().await;
    assert!(matches!(event, Some(ProcessEvent::Stdout(bytes)) if bytes == "hello"));
    attached
}

fn is_lost<T>(result: &Result<T, AgentError>, loss: AgentLoss) -> bool {
    matches!(result, Err(AgentError::Lost(lost)) if *lost == loss)
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_breaks_the_protocol_is_killed_and_the_next_call_starts_another() {
    let world = World::full(Setup::default()).await;
    let session = open(&world).await;
    for words in [
        "garbage",
        "long",
        "twice",
        "other-call",
        "call-zero",
        "flood",
        "read-too-much",
        "read-backwards",
        "too-many",
        "piece",
        "end",
        "no-json",
        "request",
    ] {
        let attached = start(&session).await;
        let broken = session.stat(words).await;
        // This one has its answer before the agent goes too far.
        assert!(words == "twice" || is_lost(&broken, AgentLoss::Protocol), "{words}: {broken:?}");
        let mut attached = attached;
        let lost = timeout(secs(1), attached.next()).await.expect(words);
        assert!(matches!(lost, Some(ProcessEvent::Lost(AgentError::Lost(_)))), "{words}: {lost:?}");
        assert!(attached.next().await.is_none());
        assert_eq!(session.stat("entry").await.expect(words).name, "entry");
    }
    assert!(is_lost(&session.stat("other-answer").await, AgentLoss::Protocol));
    for path in ["too-much", "empty-pieces", "of-another-kind"] {
        let mut reader = session.read_file(path).await.unwrap();
        settle().await;
        let mut bytes = 0;
        let error = loop {
            match reader.next().await.expect(path) {
                Ok(piece) => bytes += piece.len(),
                Err(error) => break error,
            }
        };
        assert!(matches!(error, AgentError::Lost(AgentLoss::Protocol)), "{path}: {error:?}");
        assert!(bytes <= 64 * 1024, "{path}: {bytes}");
        assert!(reader.next().await.is_none());
    }
    assert!(sessions::run(&session, "sleep 5").await.is_ok(), "the session goes on");
    drop(session);
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn the_end_of_an_agent_ends_its_calls_and_not_the_session() {
    let world = World::full(Setup::default()).await;
    let session = open(&world).await;
    for (words, loss) in [("die", AgentLoss::Ended), ("not-started", AgentLoss::NotStarted(11))] {
        let mut attached = start(&session).await;
        let mut writer = session.write_file("file").await.unwrap();
        assert!(is_lost(&session.stat(words).await, loss));
        let event = attached.next().await;
        assert!(matches!(event, Some(ProcessEvent::Lost(AgentError::Lost(lost))) if lost == loss));
        assert!(is_lost(&writer.write("x".into()).await, loss));
        assert!(session.stat("entry").await.is_ok());
        assert!(
            matches!(session.stat("missing").await, Err(AgentError::NotFound(path)) if path == "missing")
        );
    }
    assert!(sessions::run(&session, "sleep 5").await.is_ok());
    drop(session);
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_does_not_answer_or_read_is_replaced() {
    let world = World::full(Setup::default()).await;
    let session = open(&world).await;
    for words in ["silence", "deaf"] {
        let began = Instant::now();
        assert!(is_lost(&session.stat(words).await, AgentLoss::Late), "{words}");
        assert!((secs(59)..secs(62)).contains(&began.elapsed()), "{:?}", began.elapsed());
        assert!(session.stat("entry").await.is_ok());
    }
    // A process that never reads its input does not make the agent late.
    let _attached = start(&session).await;
    let began = Instant::now();
    let unread = session.send_input(PID, vec![b'x'; 100].into()).await;
    assert!(matches!(unread, Err(AgentError::InputNotRead(PID))), "{unread:?}");
    assert!(began.elapsed() >= secs(59));
    assert!(session.stat("entry").await.is_ok());
    drop(session);
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn calls_go_on_while_a_cell_runs() {
    let world = World::full(Setup::default()).await;
    let session = open(&world).await;
    let cell = sessions::spawn(&world, &session, "sleep 5000");
    settle().await;
    let began = Instant::now();
    assert!(session.stat("entry").await.is_ok());
    let attached = start(&session).await;
    session.send_input(PID, "end".into()).await.unwrap();
    let mut reader = session.read_file("1000000").await.unwrap();
    let mut bytes = 0;
    while let Some(piece) = reader.next().await {
        bytes += piece.unwrap().len();
    }
    assert_eq!(bytes, 1_000_000);
    let mut attached = attached;
    assert!(matches!(attached.next().await, Some(ProcessEvent::Ended(_))));
    assert!(began.elapsed() < secs(1) && session.is_running());
    assert!(cell.await.unwrap().is_ok());
    drop(session);
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_session_works_while_a_client_is_attached_and_rests_with_processes() {
    let world = World::full(Setup { running: 1, ..Setup::default() }).await;
    let session = open(&world).await;
    tokio::time::sleep(secs(2)).await;
    assert!(session.is_frozen());
    let attached = start(&session).await;
    tokio::time::sleep(secs(100)).await;
    assert!(!session.is_frozen());
    // It has the only slot.
    assert!(timeout(secs(5), world.run(&run_for(5))).await.is_err());
    drop(attached);
    tokio::time::sleep(secs(100)).await;
    assert!(!session.is_frozen(), "its process runs on");
    started(world.run(&run_for(5)).await);
    assert!(session.is_frozen(), "until another client wants the slot");
    // It is there again with the next call.
    let mut attached = session.attach(PID).await.unwrap();
    assert!(!session.is_frozen());
    session.send_input(PID, "end".into()).await.unwrap();
    // The fake process has lost its client, so this is how it ends.
    assert!(timeout(secs(5), attached.next()).await.is_err());
    drop(attached);
    tokio::time::sleep(ms(1500)).await;
    assert!(session.is_frozen(), "nothing runs");
    drop(session);
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn calls_of_a_frozen_session_wait_for_a_slot_or_are_refused() {
    let setup = Setup { running: 1, queue: 1, wait: secs(3), ..Setup::default() };
    let world = World::full(setup).await;
    let session = open(&world).await;
    tokio::time::sleep(secs(2)).await;
    let run = world.spawn(run_for(2000));
    settle().await;
    let began = Instant::now();
    assert!(session.stat("entry").await.is_ok());
    assert!(began.elapsed() >= ms(1900));
    started(run.await.unwrap());
    tokio::time::sleep(secs(2)).await;
    assert!(session.is_frozen());
    // One that goes away meanwhile leaves nothing.
    let run = world.spawn(run_for(20_000));
    settle().await;
    assert!(timeout(secs(1), session.stat("entry")).await.is_err());
    settle().await;
    assert_eq!(world.load(), (1, 0));
    let refused = tokio::join!(session.stat("entry"), session.stat("entry"));
    for refused in [refused.0, refused.1] {
        assert!(
            matches!(refused, Err(AgentError::Session(SessionError::Admission(_)))),
            "{refused:?}"
        );
    }
    assert!(session.is_frozen());
    started(run.await.unwrap());
    assert!(session.stat("entry").await.is_ok());
    drop(session);
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_session_is_frozen_on_request_when_its_runner_rests() {
    let world = World::full(Setup::default()).await;
    let session = open(&world).await;
    sessions::run(&session, "rest-in 3000").await.unwrap();
    assert!(timeout(secs(1), session.freeze()).await.is_err());
    let began = Instant::now();
    assert!(session.stat("entry").await.is_ok(), "a caller that goes away is not waited for");
    assert!(began.elapsed() < ms(2500) && !session.is_frozen());
    for (code, seconds) in [("rest-in 3000", 3), ("unrest", 20)] {
        sessions::run(&session, code).await.unwrap();
        let began = Instant::now();
        assert!(session.freeze().await.unwrap() && session.is_frozen());
        let took = began.elapsed();
        assert!((secs(seconds)..secs(seconds) + ms(500)).contains(&took), "{code}: {took:?}");
        let began = Instant::now();
        assert!(session.freeze().await.unwrap(), "it is already");
        assert!(began.elapsed() < ms(500));
    }
    assert!(session.stat("entry").await.is_ok());
    drop(session);
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn what_an_agent_could_not_read_while_frozen_does_not_make_it_late() {
    let world = World::full(Setup::default()).await;
    let session = open(&world).await;
    drop(start(&session).await);
    sessions::run(&session, "rest-in 25000").await.unwrap();
    assert!(timeout(secs(1), session.stat("entry")).await.is_err(), "nothing reads it");
    assert!(session.freeze().await.unwrap());
    tokio::time::sleep(secs(100)).await;
    assert!(session.is_frozen());
    sessions::run(&session, "sleep 5").await.unwrap();
    tokio::time::sleep(secs(10)).await;
    assert!(!session.is_frozen(), "its process runs on");
    drop(session);
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn calls_wait_while_a_session_is_about_to_be_frozen() {
    let world = World::full(Setup { running: 1, ..Setup::default() }).await;
    let session = open(&world).await;
    sessions::run(&session, "rest-in 25000").await.unwrap();
    let run = world.spawn(run_for(15_000));
    settle().await;
    let began = Instant::now();
    let entry = session.stat("entry").await;
    assert!(entry.is_ok(), "{entry:?}");
    assert!((secs(34)..secs(37)).contains(&began.elapsed()), "{:?}", began.elapsed());
    started(run.await.unwrap());
    drop(session);
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_session_ends_every_call() {
    let world = World::full(Setup::default()).await;
    let session = open(&world).await;
    let mut attached = start(&session).await;
    let mut reader = session.read_file("10000000").await.unwrap();
    let mut writer = session.write_file("file").await.unwrap();
    let closing = async {
        settle().await;
        session.close();
    };
    let (silent, input, ()) =
        tokio::join!(session.stat("silence"), session.send_input(PID, "x".into()), closing);
    let is_over = |error: &AgentError| {
        matches!(error, AgentError::Session(SessionError::Ended(EndReason::Closed)))
    };
    assert!(is_over(&silent.unwrap_err()) && is_over(&input.unwrap_err()));
    assert!(matches!(attached.next().await, Some(ProcessEvent::Lost(error)) if is_over(&error)));
    let error = loop {
        if let Err(error) = reader.next().await.expect("an error") {
            break error;
        }
    };
    assert!(is_over(&error));
    assert!(is_over(&writer.write("x".into()).await.unwrap_err()));
    assert!(is_over(&writer.finish().await.unwrap_err()));
    assert!(is_over(&session.stat("entry").await.unwrap_err()));
    drop(session);
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn calls_and_their_bytes_are_bounded() {
    let world = World::full(Setup::default()).await;
    let session = open(&world).await;
    let long = session.stat(&"x".repeat(200_000)).await;
    assert!(matches!(long, Err(AgentError::TooLong { .. })), "{long:?}");
    let mut attached = Vec::new();
    for _ in 0..64 {
        attached.push(session.attach(PID).await.unwrap());
    }
    let more = session.attach(PID).await;
    assert!(matches!(more, Err(AgentError::TooMany(TooMany::Attached))), "{more:?}");
    let mut writers = Vec::new();
    for _ in 64..256 {
        writers.push(session.write_file("file").await.unwrap());
    }
    let more = session.stat("entry").await;
    assert!(matches!(more, Err(AgentError::TooMany(TooMany::Calls))), "{more:?}");
    drop((attached, writers));
    assert!(session.stat("entry").await.is_ok());
    drop(session);
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn the_longest_messages_of_a_list_get_through() {
    let world = World::full(Setup::default()).await;
    let session = open(&world).await;
    let list = timeout(secs(5), session.processes()).await.expect("it ends").unwrap();
    let lengths: Vec<_> = list.iter().map(|process| process.argv[0].len()).collect();
    assert_eq!(lengths, [150_000, 180_000, 1000, 190_000]);
    drop(session);
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_goes_away_at_any_moment_leaves_nothing() {
    let world = World::full(Setup::default()).await;
    let session = open(&world).await;
    for moment in 0..40 {
        let all = async {
            let mut reader = session.read_file("500000").await?;
            while reader.next().await.transpose()?.is_some() {}
            let mut writer = session.write_file("file").await?;
            writer.write(vec![0; 2_000_000].into()).await?;
            writer.finish().await?;
            session.stat("silence").await
        };
        assert!(timeout(Duration::from_micros(moment * 50), all).await.is_err());
        if moment % 8 == 0 {
            tokio::time::sleep(secs(2)).await;
            assert!(session.is_frozen(), "nothing is left at {moment}");
        }
    }
    assert!(session.stat("entry").await.is_ok());
    until("it is frozen", || session.is_frozen()).await;
    drop(session);
    world.end().await;
}
