//! The tasks that write journals to the server, and what becomes of those that can't be written.
//!
//! One task writes what is in the line, several journals at once. If the server can't be reached, it waits, and all with it. A journal that
//! fails by itself, such as one that the server refuses or that is too large for the line to it, leaves the line: another task tries it
//! with a connection of its own and more time, less and less often.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::join_all;
use isolator_pool::error_chain::error_chain;
use isolator_pool::lock::lock;
use tokio::time::Instant;

use super::Shared;
use super::line::{Failure, Position};
use super::seal::{self, GENERATION_LEN, SealError, SessionKey};
use super::stored::{Record, RecordError};
use super::valkey::{Connection, ValkeyError};
use crate::sessions::OpenSession;

/// The shortest and the longest pause after a failure.
const PAUSE: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(5));

/// How much longer a journal can take that could not be written with others.
const TIME_ALONE: u32 = 5;

/// A journal that takes longer to be sealed than a task should run.
const LARGE: usize = 256 << 10;

/// Why a journal was not written.
#[derive(Debug, thiserror::Error)]
enum WriteError {
    #[error("the server for journals failed")]
    Server(#[from] ValkeyError),
    #[error(transparent)]
    Seal(#[from] SealError),
    #[error(transparent)]
    Record(#[from] RecordError),
}

impl WriteError {
    /// Whose fault it is, if the connection was there.
    fn failure(&self) -> Failure {
        match self {
            Self::Server(error) if error.is_of_connection() => Failure::Broken,
            Self::Server(_) | Self::Seal(_) | Self::Record(_) => Failure::Own,
        }
    }
}

/// Writes journals until the server closes, and what is in the line then.
pub(super) async fn run(shared: Arc<Shared>) {
    let writer = &shared.writer;
    let _ended = writer.ended.clone().drop_guard();
    let mut connection: Option<Connection> = None;
    let mut pause = PAUSE.0;
    loop {
        let is_closing = shared.closing.is_cancelled();
        let batch = writer.take();
        if batch.is_empty() {
            if is_closing {
                return;
            }
            tokio::select! {
                () = writer.wake.notified() => {}
                () = shared.closing.cancelled() => {}
            }
            continue;
        }
        let failure = write(&shared, &mut connection, batch).await.err();
        match failure {
            None => {
                pause = PAUSE.0;
                if writer.is_away.swap(false, Ordering::Relaxed) {
                    tracing::info!("journals are written again");
                    writer.try_all();
                }
            }
            Some((why, error)) => {
                connection = None;
                if !writer.is_away.swap(true, Ordering::Relaxed) {
                    let error = error_chain(&error);
                    tracing::warn!(
                        error,
                        "journals can't be written to their server; sessions go on without"
                    );
                }
                if is_closing {
                    // Those whose writing broke leave the line when it has broken twice, so this ends. Others would stay there.
                    if why == Failure::Unreachable {
                        return;
                    }
                    continue;
                }
                tokio::select! {
                    () = tokio::time::sleep(pause) => {}
                    () = shared.closing.cancelled() => {}
                }
                pause = (pause * 2).min(PAUSE.1);
            }
        }
    }
}

/// Writes what is new in the journals of some sessions. Those that fail come into the line again, or among those that are tried by
/// themselves.
///
/// # Errors
///
/// When the server could not be reached, or none of them could be written because the connection broke.
async fn write(
    shared: &Shared,
    connection: &mut Option<Connection>,
    batch: Vec<Arc<OpenSession>>,
) -> Result<(), (Failure, WriteError)> {
    let writer = &shared.writer;
    let used = match connection {
        Some(connection) => connection,
        None => match shared.valkey.connect().await {
            Ok(made) => connection.insert(made),
            Err(error) => {
                for session in &batch {
                    writer.has_failed(session, Failure::Unreachable);
                }
                return Err((Failure::Unreachable, error.into()));
            }
        },
    };
    let written = join_all(batch.iter().map(|session| write_one(shared, used, session))).await;
    let has_one = written.iter().any(Result::is_ok);
    let mut broken = None;
    for (session, written) in batch.iter().zip(written) {
        match written {
            Ok(written) => note(shared, session, written),
            Err(error) => {
                // Where others are written, it is no fault of the server.
                let why = if has_one { Failure::Own } else { error.failure() };
                fails(shared, session, why, &error);
                if error.failure() == Failure::Broken {
                    broken = Some(error);
                }
            }
        }
    }
    match broken {
        None => make_room(shared, used).await.map_err(|error| (error.failure(), error)),
        Some(error) => {
            // It may still be busy with what took too long.
            *connection = None;
            if has_one { Ok(()) } else { Err((Failure::Broken, error)) }
        }
    }
}

/// Removes journals from the server, if there are too many.
async fn make_room(shared: &Shared, connection: &Connection) -> Result<(), WriteError> {
    let too_many = lock(&shared.writer.kept).make_room();
    if !too_many.is_empty() {
        let journals = too_many.len();
        tracing::info!(journals, "journals are removed from their server to make room");
        // If this fails, they are removed after the next writing.
        connection.remove(&too_many).await?;
        lock(&shared.writer.kept).are_removed(&too_many);
    }
    Ok(())
}

/// Notes what was written of a session's journal.
fn note(shared: &Shared, session: &Arc<OpenSession>, written: Option<Written>) {
    let Some(Written { name, position, keep }) = written else {
        return shared.writer.has_none(session);
    };
    let bytes = position.bytes.0 + position.bytes.1;
    lock(&shared.writer.kept).note(name, bytes, &session.client, Instant::now() + keep);
    shared.writer.has_written(session, position);
}

fn fails(shared: &Shared, session: &Arc<OpenSession>, why: Failure, error: &WriteError) {
    if shared.writer.has_failed(session, why) {
        tracing::warn!(
            client = %session.client,
            error = error_chain(error),
            "the journal of a session can't be written to its server, and is tried again by itself"
        );
    }
}

/// Tries the journals again that could not be written with others, until the server closes: each by itself, with a connection of its own
/// and more time.
pub(super) async fn retry(shared: Arc<Shared>) {
    let writer = &shared.writer;
    while let Some((session, is_closing)) = writer.next_failing(&shared.closing).await {
        match write_alone(&shared, &session).await {
            Ok(()) => {}
            // It is tried no more.
            Err(_) if is_closing => writer.failed.add(1),
            Err((why, error)) => fails(&shared, &session, why, &error),
        }
    }
    // One may have come into the line again from here, after the other task had ended.
    run(shared).await;
}

async fn write_alone(
    shared: &Shared,
    session: &Arc<OpenSession>,
) -> Result<(), (Failure, WriteError)> {
    let connected = shared.valkey.connect().await;
    let connection = connected.map_err(|error| (Failure::Unreachable, error.into()))?;
    let connection = connection.within(shared.config.timeout.saturating_mul(TIME_ALONE));
    match write_one(shared, &connection, session).await {
        Ok(written) => {
            note(shared, session, written);
            Ok(())
        }
        Err(error) => Err((Failure::Own, error)),
    }
}

/// Counts the journals that this node has kept on the server before it was started again, so that they make room with the others.
pub(super) async fn count_former(shared: Arc<Shared>) {
    let Some(node) = &shared.node else { return };
    let mut pause = PAUSE.0;
    loop {
        match shared.valkey.journals_of(&seal::names_of(node)).await {
            Ok(found) => {
                let now = Instant::now();
                let mut kept = lock(&shared.writer.kept);
                for (name, bytes, left) in found {
                    kept.note_former(name, bytes, now + left);
                }
                return;
            }
            Err(error) if !error.is_of_connection() => {
                let error = error_chain(&error);
                tracing::warn!(
                    error,
                    "journals that this node has kept before can't be counted, so they do not count for sessions.journals.maxMB"
                );
                return;
            }
            Err(_) => {}
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(PAUSE.1);
    }
}

/// A journal that was written.
struct Written {
    name: String,
    position: Position,
    /// How long the server keeps it.
    keep: Duration,
}

/// Something to write.
enum Change {
    /// The whole journal.
    Whole(Record),
    /// The steps that came after this position.
    Steps(Position, Record),
    /// Nothing but its time.
    Time(Position),
}

async fn write_one(
    shared: &Shared,
    connection: &Connection,
    session: &OpenSession,
) -> Result<Option<Written>, WriteError> {
    let Some(key) = shared.key.of_session(&session.client, &session.id) else { return Ok(None) };
    let key = Arc::new(key);
    let (at, has_ended) = shared.writer.begin(session);
    let left = session.lifetime.oldest().saturating_duration_since(Instant::now());
    let left = if has_ended { Duration::ZERO } else { left };
    let keep = shared.config.keep_for.saturating_add(left);
    let (change, progress) = change(session, at, shared.writer.most, keep);
    let name = key.name.clone();
    let position = match change {
        Change::Whole(record) => write_whole(connection, &key, record, progress, keep).await,
        Change::Time(position) => {
            connection.keep(&name, keep).await.map(|()| position).map_err(WriteError::from)
        }
        Change::Steps(position, record) => {
            let Position { generation, records, bytes, .. } = position;
            let record = sealed(&key, generation, records, record).await?;
            let bytes = (bytes.0, bytes.1 + record.len());
            let appended = connection.append(&name, &record, records, keep).await;
            appended
                .map(|()| Position { generation, records: records + 1, bytes, progress })
                .map_err(WriteError::from)
        }
    };
    let position = match position {
        // It has expired there, or the server was started anew.
        Err(WriteError::Server(ValkeyError::Changed)) if at.is_some() => {
            let (progress, record) = whole(session, keep);
            write_whole(connection, &key, record, progress, keep).await?
        }
        position => position?,
    };
    Ok(Some(Written { name, position, keep }))
}

/// The change since a position.
fn change(
    session: &OpenSession,
    at: Option<Position>,
    most: usize,
    keep: Duration,
) -> (Change, (u64, u64)) {
    let journal = lock(&session.journal);
    let progress = journal.progress();
    let position = at.filter(|at| {
        let (first, after) = at.bytes;
        at.progress.1 == progress.1 && after <= first.max(most)
    });
    let steps = |position: &Position| {
        let new = usize::try_from(progress.0 - position.progress.0).ok()?;
        let mut steps: Vec<_> = journal.entries().rev().take(new).cloned().collect();
        steps.reverse();
        (steps.len() == new).then_some(steps)
    };
    match position.and_then(|position| Some((position, steps(&position)?))) {
        Some((position, steps)) if steps.is_empty() => (Change::Time(position), progress),
        Some((position, steps)) => {
            (Change::Steps(position, Record::of_steps(steps.into_iter())), progress)
        }
        None => (Change::Whole(Record::whole(&session.language.name, &journal, keep)), progress),
    }
}

fn whole(session: &OpenSession, keep: Duration) -> ((u64, u64), Record) {
    let journal = lock(&session.journal);
    (journal.progress(), Record::whole(&session.language.name, &journal, keep))
}

async fn write_whole(
    connection: &Connection,
    key: &Arc<SessionKey>,
    record: Record,
    progress: (u64, u64),
    keep: Duration,
) -> Result<Position, WriteError> {
    let mut generation = [0; GENERATION_LEN];
    getrandom::fill(&mut generation).map_err(|_| SealError::Random)?;
    let record = sealed(key, generation, 0, record).await?;
    connection.write(&key.name, &record, keep).await?;
    Ok(Position { generation, records: 1, bytes: (record.len(), 0), progress })
}

/// A record as the server gets it.
async fn sealed(
    key: &Arc<SessionKey>,
    generation: [u8; GENERATION_LEN],
    at: u32,
    record: Record,
) -> Result<Vec<u8>, WriteError> {
    let is_large = record.content_bytes() > LARGE;
    let key = Arc::clone(key);
    let seal = move || Ok(key.seal(generation, at, record.to_bytes()?)?);
    if !is_large {
        return seal();
    }
    match tokio::task::spawn_blocking(seal).await {
        Ok(sealed) => sealed,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // It was cancelled, because the runtime ends, and this task with it.
            Err(_) => std::future::pending().await,
        },
    }
}
