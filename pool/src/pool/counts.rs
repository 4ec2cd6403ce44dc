//! Counts of a pool, and of all of them together, since the start.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Mutex;
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use super::admission::{AdmissionError, Client};
use super::receipt::{ExecuteError, OpenReceipt, Receipt};
use super::session::{EndReason, SessionError};
use super::{CheckoutError, Start};
use crate::counts::{Count, TimeSum, Times};
use crate::lock::lock;
use crate::run::outcome::{Outcome, Status};
use crate::sandbox::SandboxError;

/// The stages of a run, whose times are in a [`Receipt`]. Those of the runner, and the program's own, are parts of the last one.
pub const STAGES: [&str; 8] =
    ["queue", "checkout", "limit", "bind", "unpack", "spawn", "program", "run"];

/// Number of remembered reasons why requests had no outcome.
const MAX_RECENT: usize = 20;

/// Why a request has no outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// The queue was full, or the request waited too long in it.
    Busy,
    /// The queue of the session was full.
    SessionBusy,
    /// The image is still being built or pulled.
    ImageComing,
    /// No sandbox could be made, or none in time.
    NoSandbox,
    /// The sandbox failed, or could not serve the request.
    Sandbox,
    /// The server is stopping.
    Stopping,
    /// The caller went away.
    Cancelled,
}

impl Failure {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 7] = [
        Self::Busy,
        Self::SessionBusy,
        Self::ImageComing,
        Self::NoSandbox,
        Self::Sandbox,
        Self::Stopping,
        Self::Cancelled,
    ];

    /// Its name for operators.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Busy => "busy",
            Self::SessionBusy => "session_busy",
            Self::ImageComing => "image_coming",
            Self::NoSandbox => "no_sandbox",
            Self::Sandbox => "sandbox",
            Self::Stopping => "stopping",
            Self::Cancelled => "cancelled",
        }
    }

    /// Why a request with this error has none.
    pub fn of(error: &ExecuteError) -> Self {
        match error {
            ExecuteError::Aborted
            | ExecuteError::Admission(AdmissionError::Closed)
            | ExecuteError::Checkout(
                CheckoutError::Closed | CheckoutError::Sandbox(SandboxError::Closed),
            ) => Self::Stopping,
            ExecuteError::Admission(_) => Self::Busy,
            ExecuteError::Checkout(CheckoutError::ImageComing { .. }) => Self::ImageComing,
            ExecuteError::Checkout(_) | ExecuteError::NoSuchPool(_) => Self::NoSandbox,
            ExecuteError::Run(_) | ExecuteError::Session(_) => Self::Sandbox,
        }
    }

    /// Why a cell was not run, if neither it nor its session is the reason.
    pub(super) fn of_cell(error: &SessionError) -> Option<Self> {
        match error {
            SessionError::Busy => Some(Self::SessionBusy),
            SessionError::Admission(AdmissionError::Closed)
            | SessionError::Ended(EndReason::ServerStops) => Some(Self::Stopping),
            SessionError::Admission(_) => Some(Self::Busy),
            SessionError::Ended(EndReason::Lost(_)) => Some(Self::Sandbox),
            SessionError::Ended(_)
            | SessionError::Paused
            | SessionError::Files(_)
            | SessionError::Command(_)
            | SessionError::NoFolder(_)
            | SessionError::NoKernel
            | SessionError::TooLarge(_)
            | SessionError::NoSuchFile(_) => None,
        }
    }
}

/// Counts of a pool. Each array is in the order of the `ALL` of its type.
#[derive(Debug, Default)]
pub struct PoolCounts {
    /// Programs with an outcome, by how they got their sandbox and by their status.
    pub executions: [[Count; Status::ALL.len()]; Start::ALL.len()],
    /// Requests without an outcome, sessions that were not opened, and cells that were not run.
    pub failures: [Count; Failure::ALL.len()],
    /// Times of programs with an outcome, from their arrival to the last byte from the sandbox.
    pub times: [Times; Start::ALL.len()],
    /// The time of each of [`STAGES`].
    pub stages: [TimeSum; STAGES.len()],
    /// Sessions that were opened, by how they got their sandbox.
    pub sessions: [Count; Start::ALL.len()],
    /// Times of opening them, from the arrival of the request until cells could run.
    pub opening: Times,
    /// Cells of sessions, by their status.
    pub cells: [Count; Status::ALL.len()],
    /// Times of cells, from their arrival to the last byte from the sandbox.
    pub cell_times: Times,
    /// Times of making each sandbox.
    pub made: Times,
    /// Sandboxes that could not be made.
    pub not_made: Count,
    /// Requests and sessions that got a sandbox, by how.
    pub(super) starts: [Count; Start::ALL.len()],
    pub(super) in_use: Programs,
}

/// A program that runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// Its client.
    pub client: Client,
    /// How it got its sandbox.
    pub start: Start,
    /// Since when it has the sandbox.
    pub since: Instant,
}

/// The programs that run now, in the order of their beginning.
#[derive(Debug, Default)]
pub(super) struct Programs(Mutex<(u64, BTreeMap<u64, Program>)>);

impl Programs {
    /// Adds one, which is there until the result is dropped.
    pub(super) fn begin(&self, client: &Client, start: Start) -> Running<'_> {
        let program = Program { client: client.clone(), start, since: Instant::now() };
        let mut all = lock(&self.0);
        let number = all.0;
        all.0 += 1;
        all.1.insert(number, program);
        Running { all: self, number }
    }
}

/// A program that runs, until this is dropped.
pub(super) struct Running<'a> {
    all: &'a Programs,
    number: u64,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        lock(&self.all.0).1.remove(&self.number);
    }
}

impl PoolCounts {
    /// Sandboxes in which a program runs now.
    pub fn in_use(&self) -> usize {
        lock(&self.in_use.0).1.len()
    }

    /// The programs that run now, the oldest first.
    pub fn programs(&self) -> Vec<Program> {
        lock(&self.in_use.0).1.values().cloned().collect()
    }

    /// Counts a program that has run.
    pub(super) fn executed(&self, outcome: &Outcome, receipt: &Receipt) {
        let start = receipt.start as usize;
        self.executions[start][outcome.status as usize].add(1);
        let Receipt { queue, checkout, run, .. } = receipt;
        self.times[start].add(*queue + *checkout + run.limit + run.bind + run.total);
        let stages: [Duration; STAGES.len()] = [
            *queue,
            *checkout,
            run.limit,
            run.bind,
            run.unpack,
            run.spawn,
            outcome.wall,
            run.total,
        ];
        for (sum, time) in self.stages.iter().zip(stages) {
            sum.add(time);
        }
    }

    /// Counts a session that was opened.
    pub(super) fn opened(&self, receipt: &OpenReceipt) {
        self.sessions[receipt.start as usize].add(1);
        self.opening.add(receipt.queue + receipt.checkout + receipt.open);
    }

    /// Counts a cell of a session.
    pub fn ran_cell(&self, status: Status, took: Duration) {
        self.cells[status as usize].add(1);
        self.cell_times.add(took);
    }

    /// Programs and sessions that got a sandbox, by how.
    pub fn starts(&self) -> [u64; Start::ALL.len()] {
        self.starts.each_ref().map(Count::get)
    }
}

/// A request that counts as cancelled if it is dropped before its end.
pub(super) struct Counting<'a>(Option<&'a PoolCounts>);

impl<'a> Counting<'a> {
    pub(super) fn new(counts: &'a PoolCounts) -> Self {
        Self(Some(counts))
    }

    /// It has ended, and has no outcome if that is the reason.
    pub(super) fn end(mut self, failure: Option<Failure>) {
        if let (Some(counts), Some(failure)) = (self.0.take(), failure) {
            counts.failures[failure as usize].add(1);
        }
    }
}

impl Drop for Counting<'_> {
    fn drop(&mut self) {
        if let Some(counts) = self.0 {
            counts.failures[Failure::Cancelled as usize].add(1);
        }
    }
}

/// Counts of all pools together.
#[derive(Debug, Default)]
pub struct SharedCounts {
    /// Times that requests waited to be admitted.
    pub queue: Times,
    /// Sandboxes that were found without an owner and removed.
    pub swept: Count,
    recent: Mutex<VecDeque<RecentFailure>>,
}

/// A reason why requests had no outcome.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecentFailure {
    /// When it happened the last time.
    pub at: SystemTime,
    /// The name of their pool.
    pub pool: String,
    /// Its kind.
    pub failure: Failure,
    /// The error.
    pub message: String,
    /// Number of requests in a row that had it.
    pub count: u64,
}

impl SharedCounts {
    /// Remembers why a request had no outcome.
    pub(super) fn failed(&self, pool: &str, failure: Failure, message: String) {
        let mut recent = lock(&self.recent);
        if let Some(last) = recent.back_mut()
            && last.pool == pool
            && last.message == message
        {
            last.at = SystemTime::now();
            last.count += 1;
            return;
        }
        if recent.len() == MAX_RECENT {
            recent.pop_front();
        }
        let (at, pool) = (SystemTime::now(), pool.to_owned());
        recent.push_back(RecentFailure { at, pool, failure, message, count: 1 });
    }

    /// The last reasons, the newest first.
    pub fn recent_failures(&self) -> Vec<RecentFailure> {
        lock(&self.recent).iter().rev().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_session_is_not_counted_as_a_busy_server() {
        // The advice for a busy server names a setting that has nothing to do with it.
        assert_eq!(Failure::of_cell(&SessionError::Busy), Some(Failure::SessionBusy));
        let closed = SessionError::Admission(AdmissionError::Closed);
        assert_eq!(Failure::of_cell(&closed), Some(Failure::Stopping));
    }
}
