//! The line of sessions whose journals have something new, and those whose journals could not be written.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use isolator_pool::counts::Count;
use isolator_pool::lock::lock;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::kept::Kept;
use super::seal::GENERATION_LEN;
use crate::sessions::OpenSession;

/// How many journals are written at once.
const BATCH: usize = 16;

/// The shortest and the longest pause before a journal is tried again that could not be written.
const PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_mins(1));

/// How often the writing of a journal can break before the journal itself is taken for the reason.
const BREAKS: u32 = 2;

/// Bytes of the sessions that have ended and whose journals wait to be written, and what each takes besides its journal.
const MAX_ENDED: usize = 32 << 20;
const ENDED_OVERHEAD: usize = 8 << 10;

/// The state of a session's journal on the server.
#[derive(Debug, Default)]
pub(in crate::sessions) struct Published {
    /// `None` if the journal must be written anew, because it is not there or it is not known what is.
    at: Option<Position>,
    place: Place,
    has_ended: bool,
    /// Bytes with which it counts among those that have ended and wait in the line.
    counted: Option<usize>,
    /// How often its writing has failed since it was written last.
    failures: u32,
    /// Whether the last writing has failed.
    has_failed: bool,
    /// Whether the client knows that.
    is_reported: bool,
}

impl Published {
    /// Notes that the journal was not written.
    fn fail(&mut self, why: Failure) {
        self.has_failed = true;
        // Without a connection nothing was sent, so the server has what it had. If it has lost that, it refuses what is added.
        if why != Failure::Unreachable {
            self.at = None;
            self.failures += 1;
        }
    }
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
    /// It could not be written, and is tried again by itself.
    Failing,
}

/// How much of a journal the server has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Position {
    pub(super) generation: [u8; GENERATION_LEN],
    pub(super) records: u32,
    /// Bytes of the first record, and of those after it.
    pub(super) bytes: (usize, usize),
    pub(super) progress: (u64, u64),
}

/// A session as the line sees it.
pub(super) trait InLine {
    fn published(&self) -> &Mutex<Published>;

    /// Bytes of its journal.
    fn weight(&self) -> usize;
}

impl InLine for OpenSession {
    fn published(&self) -> &Mutex<Published> {
        &self.published
    }

    fn weight(&self) -> usize {
        lock(&self.journal).weight()
    }
}

/// The line of sessions whose journals have something new.
pub(super) struct Writer<S = OpenSession> {
    /// Bytes of a journal.
    pub(super) most: usize,
    line: Mutex<Line<S>>,
    /// Something is in the line.
    pub(super) wake: Notify,
    /// Something has changed among those that fail.
    wake_failing: Notify,
    /// The server has closed, and nothing more is taken from the line.
    pub(super) ended: CancellationToken,
    /// Whether the server did not answer the last time.
    pub(super) is_away: AtomicBool,
    /// The journals of this node on the server.
    pub(super) kept: Mutex<Kept>,
    written: Count,
    pub(super) failed: Count,
}

/// Why a journal was not written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Failure {
    /// No connection could be made, so nothing was sent: it is tried again like all others.
    Unreachable,
    /// The connection broke, or there was no answer in time. It may be the fault of another journal.
    Broken,
    /// The journal itself.
    Own,
}

/// The next of those whose journals could not be written.
enum NextFailing<S> {
    Now(Arc<S>),
    At(Instant),
    None,
}

/// The sessions that wait.
struct Line<S> {
    /// The first one first.
    sessions: VecDeque<Arc<S>>,
    /// Those whose journals could not be written, by the time at which they are tried again.
    failing: BTreeMap<(Instant, u64), Arc<S>>,
    /// The number of the next one of those.
    next: u64,
    /// Bytes of those that have ended.
    ended_bytes: usize,
}

impl<S> Default for Line<S> {
    fn default() -> Self {
        Self { sessions: VecDeque::new(), failing: BTreeMap::new(), next: 0, ended_bytes: 0 }
    }
}

impl<S: InLine> Line<S> {
    /// Counts a session that waits, if it has ended and is not yet counted.
    fn count(&mut self, session: &S, published: &mut Published) {
        if published.has_ended && published.counted.is_none() {
            let bytes = session.weight() + ENDED_OVERHEAD;
            published.counted = Some(bytes);
            self.ended_bytes += bytes;
        }
    }

    /// Notes that a session of it is being written.
    fn take(&mut self, session: &S) {
        let mut published = lock(session.published());
        published.place = Place::Writing;
        self.ended_bytes -= published.counted.take().unwrap_or_default();
    }
}

impl<S: InLine> Writer<S> {
    /// For journals of up to `most` bytes, and up to `max` bytes on the server.
    pub(super) fn new(most: usize, max: usize) -> Self {
        Self {
            most,
            line: Mutex::default(),
            wake: Notify::new(),
            wake_failing: Notify::new(),
            ended: CancellationToken::new(),
            is_away: AtomicBool::new(false),
            kept: Mutex::new(Kept::new(max)),
            written: Count::default(),
            failed: Count::default(),
        }
    }

    /// Puts a session into the line, in which it is once.
    pub(super) fn changed(&self, session: &Arc<S>, has_ended: bool) {
        let mut line = lock(&self.line);
        let mut published = lock(session.published());
        published.has_ended |= has_ended;
        match published.place {
            Place::Out => published.place = Place::Waiting,
            Place::Waiting | Place::Failing => {
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
        mut line: MutexGuard<'_, Line<S>>,
        session: &Arc<S>,
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
    fn bound(&self, line: &mut Line<S>) {
        while line.ended_bytes > MAX_ENDED {
            let has_ended = |session: &Arc<S>| lock(session.published()).counted.is_some();
            let dropped = match line.sessions.iter().position(has_ended) {
                Some(at) => line.sessions.remove(at),
                None => {
                    let ended = line.failing.iter().find(|(_, session)| has_ended(session));
                    let at = ended.map(|(at, _)| *at);
                    at.and_then(|at| line.failing.remove(&at))
                }
            };
            let Some(dropped) = dropped else { return };
            let mut published = lock(dropped.published());
            published.place = Place::Out;
            line.ended_bytes -= published.counted.take().unwrap_or_default();
            self.failed.add(1);
        }
    }

    /// Takes the first sessions of the line.
    pub(super) fn take(&self) -> Vec<Arc<S>> {
        let mut line = lock(&self.line);
        let length = line.sessions.len().min(BATCH);
        let batch: Vec<_> = line.sessions.drain(..length).collect();
        for session in &batch {
            line.take(session);
        }
        batch
    }

    /// Counts for operators: journals that were written, and failures.
    pub(super) fn counts(&self) -> (u64, u64) {
        (self.written.get(), self.failed.get())
    }

    /// A note for the client if the journal of its session is not complete on the server; once for each failure.
    pub(super) fn note(&self, session: &S) -> Option<String> {
        let mut published = lock(session.published());
        let is_missing = published.has_failed || self.is_away.load(Ordering::Relaxed);
        if !is_missing || std::mem::replace(&mut published.is_reported, true) {
            return None;
        }
        let note = "the journal of this session is not complete on the server that keeps journals, which does not answer or does not \
                    take it: if this node is lost before it does, replay on another node lacks the last steps";
        Some(note.to_owned())
    }

    /// Takes the next of those whose journals could not be written: when its time has come, or at once.
    fn take_failing(&self, at_once: bool) -> NextFailing<S> {
        let mut line = lock(&self.line);
        let Some(first) = line.failing.first_entry() else { return NextFailing::None };
        let (at, _) = *first.key();
        if !at_once && at > Instant::now() {
            return NextFailing::At(at);
        }
        let session = first.remove();
        line.take(&session);
        NextFailing::Now(session)
    }

    /// Waits for the next of those whose journals could not be written, and takes it when its time has come, or at once if the server
    /// closes. Also returns whether it does. `None` when it has closed and the line has ended, so that no more can come.
    pub(super) async fn next_failing(&self, closing: &CancellationToken) -> Option<(Arc<S>, bool)> {
        loop {
            // What has come before the end of the line is taken after this.
            let has_ended = self.ended.is_cancelled();
            let is_closing = closing.is_cancelled();
            let until = match self.take_failing(is_closing) {
                NextFailing::Now(session) => return Some((session, is_closing)),
                NextFailing::At(until) => Some(until),
                NextFailing::None if has_ended => return None,
                NextFailing::None => None,
            };
            let sleep = async {
                match until {
                    Some(until) => tokio::time::sleep_until(until).await,
                    None => std::future::pending().await,
                }
            };
            let end = if is_closing { &self.ended } else { closing };
            tokio::select! {
                () = sleep => {}
                () = self.wake_failing.notified() => {}
                () = end.cancelled() => {}
            }
        }
    }

    /// Lets all be tried at once whose journals could not be written.
    pub(super) fn try_all(&self) {
        let mut line = lock(&self.line);
        let now = Instant::now();
        let failing = std::mem::take(&mut line.failing);
        line.failing = failing.into_iter().map(|((_, number), it)| ((now, number), it)).collect();
        drop(line);
        self.wake_failing.notify_one();
    }

    /// The position of a session's journal from which on it is to be written, and whether the session has ended.
    pub(super) fn begin(&self, session: &S) -> (Option<Position>, bool) {
        let mut published = lock(session.published());
        published.place = Place::Writing;
        (published.at, published.has_ended)
    }

    /// Notes that nothing of a session can be written.
    pub(super) fn has_none(&self, session: &S) {
        lock(session.published()).place = Place::Out;
    }

    pub(super) fn has_written(&self, session: &Arc<S>, position: Position) {
        self.written.add(1);
        let line = lock(&self.line);
        let mut published = lock(session.published());
        published.at = Some(position);
        published.failures = 0;
        published.has_failed = false;
        published.is_reported = false;
        let is_changed = published.place == Place::WritingAndWaiting;
        published.place = if is_changed { Place::Waiting } else { Place::Out };
        if is_changed {
            self.push(line, session, published);
        }
    }

    /// Puts a session whose journal was not written into the line again, or, if that is the fault of the journal, among those that are
    /// tried by themselves.
    /// Returns whether it has come among those, and none was there.
    pub(super) fn has_failed(&self, session: &Arc<S>, why: Failure) -> bool {
        let mut line = lock(&self.line);
        let mut published = lock(session.published());
        published.fail(why);
        self.failed.add(1);
        if why != Failure::Own && published.failures < BREAKS {
            published.place = Place::Waiting;
            self.push(line, session, published);
            return false;
        }
        let is_first = line.failing.is_empty() && published.failures <= BREAKS;
        published.place = Place::Failing;
        let pause = PAUSE.0.saturating_mul(1 << published.failures.saturating_sub(1).min(6));
        line.count(session, &mut published);
        drop(published);
        let at = (Instant::now() + pause.min(PAUSE.1), line.next);
        line.next += 1;
        line.failing.insert(at, Arc::clone(session));
        self.bound(&mut line);
        drop(line);
        self.wake_failing.notify_one();
        is_first
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Session(Mutex<Published>);

    impl InLine for Session {
        fn published(&self) -> &Mutex<Published> {
            &self.0
        }

        fn weight(&self) -> usize {
            0
        }
    }

    const POSITION: Position =
        Position { generation: [1; _], records: 2, bytes: (3, 4), progress: (5, 0) };

    #[test]
    fn a_journal_is_written_anew_only_if_something_of_it_was_sent() {
        let (writer, session) = (Writer::<Session>::new(0, 0), Arc::new(Session::default()));
        let at = || writer.begin(&session).0;
        writer.has_written(&session, POSITION);
        for _ in 0..2 * BREAKS {
            assert!(!writer.has_failed(&session, Failure::Unreachable));
            assert_eq!(writer.take().len(), 1);
            assert_eq!(at(), Some(POSITION));
        }
        for why in [Failure::Broken, Failure::Own] {
            writer.has_written(&session, POSITION);
            writer.has_failed(&session, why);
            assert_eq!(at(), None, "{why:?}");
            // That it can't be reached tells nothing of what is there.
            writer.has_failed(&session, Failure::Unreachable);
            assert_eq!(at(), None, "{why:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_journal_that_fails_while_the_server_closes_is_tried_once_more() {
        let (writer, closing) = (Writer::<Session>::new(0, 0), CancellationToken::new());
        let (early, late) = (Arc::new(Session::default()), Arc::new(Session::default()));
        let began = Instant::now();
        writer.has_failed(&early, Failure::Own);
        let (taken, is_closing) = writer.next_failing(&closing).await.unwrap();
        assert!(Arc::ptr_eq(&taken, &early) && !is_closing && began.elapsed() >= PAUSE.0);
        writer.has_failed(&early, Failure::Own);
        let began = Instant::now();
        closing.cancel();
        let (taken, is_closing) = writer.next_failing(&closing).await.unwrap();
        assert!(Arc::ptr_eq(&taken, &early) && is_closing);
        // The last ones of the line are still being written.
        let write = async {
            tokio::time::sleep(PAUSE.0 / 10).await;
            writer.has_failed(&late, Failure::Own);
            writer.ended.cancel();
        };
        let (next, ()) = tokio::join!(writer.next_failing(&closing), write);
        let (taken, is_closing) = next.unwrap();
        assert!(Arc::ptr_eq(&taken, &late) && is_closing);
        assert!(writer.next_failing(&closing).await.is_none());
        assert!(began.elapsed() < PAUSE.0);
    }
}
