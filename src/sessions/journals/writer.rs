//! The task that writes journals to the server: the line of sessions that have something new, and what becomes of it when the
//! server does not answer.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures_util::future::join_all;
use isolator_pool::counts::Count;
use isolator_pool::error_chain::error_chain;
use isolator_pool::lock::lock;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::kept::Kept;
use super::seal::{GENERATION_LEN, SealError};
use super::stored::{Record, RecordError};
use super::valkey::{Connection, ValkeyError};
use super::{Shared, seal::SessionKey};
use crate::sessions::OpenSession;

/// How many journals are written at once.
const BATCH: usize = 16;

/// The shortest and the longest pause after a failure.
const PAUSE: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(5));

/// Bytes of the sessions that have ended and whose journals wait to be written, and what each takes besides its journal.
const MAX_ENDED: usize = 32 << 20;
const ENDED_OVERHEAD: usize = 8 << 10;

/// A journal that takes longer to be sealed than a task should run.
const LARGE: usize = 256 << 10;

/// What the server has of a session's journal.
#[derive(Debug, Default)]
pub(in crate::sessions) struct Published {
    /// `None` if the journal must be written anew.
    at: Option<Position>,
    place: Place,
    has_ended: bool,
    /// Bytes with which it counts among those that have ended and wait in the line.
    counted: Option<usize>,
    /// Whether the last writing has failed.
    has_failed: bool,
    /// Whether the client knows that.
    is_told: bool,
}

/// Whether a session is in the line.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Place {
    #[default]
    Out,
    Waiting,
    Writing,
    /// Something came while it was being written.
    WritingAndWaiting,
}

/// How much of a journal the server has.
#[derive(Debug, Clone, Copy)]
struct Position {
    generation: [u8; GENERATION_LEN],
    records: u32,
    /// Bytes of the first record, and of those after it.
    bytes: (usize, usize),
    progress: (u64, u64),
}

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

/// The line of sessions whose journals have something new.
pub(super) struct Writer {
    /// Bytes of a journal.
    most: usize,
    /// Bytes of all journals on the server.
    max: usize,
    line: Mutex<Line>,
    wake: Notify,
    /// Whether the server did not answer the last time.
    is_away: AtomicBool,
    written: Count,
    failed: Count,
}

/// The sessions that wait, the first one first.
#[derive(Default)]
struct Line {
    sessions: VecDeque<Arc<OpenSession>>,
    /// Bytes of those that have ended.
    ended_bytes: usize,
}

impl Line {
    /// Counts a session that waits, if it has ended and is not yet counted.
    fn count(&mut self, session: &OpenSession, published: &mut Published) {
        if published.has_ended && published.counted.is_none() {
            let bytes = lock(&session.journal).weight() + ENDED_OVERHEAD;
            published.counted = Some(bytes);
            self.ended_bytes += bytes;
        }
    }
}

impl Writer {
    pub(super) fn new(most: usize, max: usize) -> Self {
        Self {
            most,
            max,
            line: Mutex::default(),
            wake: Notify::new(),
            is_away: AtomicBool::new(false),
            written: Count::default(),
            failed: Count::default(),
        }
    }

    /// Puts a session into the line, in which it is once.
    pub(super) fn changed(&self, session: &Arc<OpenSession>, has_ended: bool) {
        let mut line = lock(&self.line);
        let mut published = lock(&session.published);
        published.has_ended |= has_ended;
        match published.place {
            Place::Out => published.place = Place::Waiting,
            Place::Waiting => {
                line.count(session, &mut published);
                drop(published);
                return self.bound(&mut line);
            }
            Place::Writing => {
                published.place = Place::WritingAndWaiting;
                return;
            }
            Place::WritingAndWaiting => return,
        }
        self.push(line, session, published);
    }

    fn push(
        &self,
        mut line: MutexGuard<'_, Line>,
        session: &Arc<OpenSession>,
        mut published: MutexGuard<'_, Published>,
    ) {
        line.count(session, &mut published);
        drop(published);
        line.sessions.push_back(Arc::clone(session));
        self.bound(&mut line);
        drop(line);
        self.wake.notify_one();
    }

    /// Drops the sessions that have ended first, if those that have ended take too much. Those that are open are few.
    fn bound(&self, line: &mut Line) {
        let mut at = 0;
        while line.ended_bytes > MAX_ENDED && at < line.sessions.len() {
            let mut published = lock(&line.sessions[at].published);
            let Some(bytes) = published.counted.take() else {
                at += 1;
                continue;
            };
            published.place = Place::Out;
            drop(published);
            line.ended_bytes -= bytes;
            line.sessions.remove(at);
            self.failed.add(1);
        }
    }

    fn take(&self) -> Vec<Arc<OpenSession>> {
        let mut line = lock(&self.line);
        let length = line.sessions.len().min(BATCH);
        let batch: Vec<_> = line.sessions.drain(..length).collect();
        for session in &batch {
            let mut published = lock(&session.published);
            published.place = Place::Writing;
            line.ended_bytes -= published.counted.take().unwrap_or_default();
        }
        batch
    }

    /// Counts for operators: journals that were written, and failures.
    pub(super) fn counts(&self) -> (u64, u64) {
        (self.written.get(), self.failed.get())
    }

    /// A note for the client if the journal of its session is not complete on the server; once for each failure.
    pub(super) fn note(&self, session: &OpenSession) -> Option<String> {
        let mut published = lock(&session.published);
        let is_missing = published.has_failed || self.is_away.load(Ordering::Relaxed);
        if !is_missing || std::mem::replace(&mut published.is_told, true) {
            return None;
        }
        let note = "the journal of this session is not complete on the server that keeps journals, which does not answer: if this \
                    node is lost before it does, replay on another node lacks the last steps";
        Some(note.to_owned())
    }
}

/// Writes journals until the server closes, and what is in the line then.
pub(super) async fn run(shared: Arc<Shared>) {
    let writer = &shared.writer;
    let mut connection: Option<Connection> = None;
    let mut kept = Kept::new(writer.max);
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
        let failure = write(&shared, &mut connection, batch, &mut kept).await.err();
        match failure {
            None => {
                pause = PAUSE.0;
                if writer.is_away.swap(false, Ordering::Relaxed) {
                    tracing::info!("journals are written again");
                }
            }
            Some(error) => {
                connection = None;
                writer.failed.add(1);
                if !writer.is_away.swap(true, Ordering::Relaxed) {
                    let error = error_chain(&error);
                    tracing::warn!(
                        error,
                        "journals can't be written to their server; sessions go on without"
                    );
                }
                if is_closing {
                    return;
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

/// Writes what is new in the journals of some sessions. Those that fail come into the line again.
async fn write(
    shared: &Shared,
    connection: &mut Option<Connection>,
    batch: Vec<Arc<OpenSession>>,
    kept: &mut Kept,
) -> Result<(), WriteError> {
    let connection = match connection {
        Some(connection) => connection,
        None => match shared.valkey.connect().await {
            Ok(made) => connection.insert(made),
            Err(error) => {
                for session in &batch {
                    shared.writer.has_failed(session);
                }
                return Err(error.into());
            }
        },
    };
    let written = batch.iter().map(|session| write_one(shared, connection, session));
    let mut failure = None;
    for (session, written) in batch.iter().zip(join_all(written).await) {
        match written {
            Ok(None) => {}
            Ok(Some(Written { name, position, keep })) => {
                let bytes = position.bytes.0 + position.bytes.1;
                kept.note(name, bytes, &session.client, Instant::now() + keep);
                shared.writer.has_written(session, position);
            }
            Err(error) => {
                shared.writer.has_failed(session);
                failure = Some(error);
            }
        }
    }
    // If the server fails, they are removed after the next writing.
    let too_many = kept.make_room();
    if failure.is_none() && !too_many.is_empty() {
        tracing::info!(
            journals = too_many.len(),
            "journals are removed from their server to make room"
        );
        connection.remove(&too_many).await?;
        kept.are_removed();
    }
    failure.map_or(Ok(()), Err)
}

impl Writer {
    fn has_written(&self, session: &Arc<OpenSession>, position: Position) {
        self.written.add(1);
        let line = lock(&self.line);
        let mut published = lock(&session.published);
        published.at = Some(position);
        published.has_failed = false;
        published.is_told = false;
        let is_changed = published.place == Place::WritingAndWaiting;
        published.place = if is_changed { Place::Waiting } else { Place::Out };
        if is_changed {
            self.push(line, session, published);
        }
    }

    fn has_failed(&self, session: &Arc<OpenSession>) {
        let line = lock(&self.line);
        let mut published = lock(&session.published);
        // It is not known what the server has.
        published.at = None;
        published.has_failed = true;
        published.place = Place::Waiting;
        self.push(line, session, published);
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
    let (at, has_ended) = {
        let mut published = lock(&session.published);
        published.place = Place::Writing;
        (published.at, published.has_ended)
    };
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
