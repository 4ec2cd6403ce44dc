//! What has happened in a pool, and in all of them together, since the start.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use super::admission::AdmissionError;
use super::pools::{ExecuteError, OpenReceipt, Receipt};
use super::{CheckoutError, Start};
use crate::counts::{Count, TimeSum, Times};
use crate::lock::lock;
use crate::run::outcome::{Outcome, Status};
use crate::sandbox::SandboxError;

/// The stages of a run, as a [`Receipt`] tells their times. Those of the runner, and the program's own, are parts of the last one.
pub const STAGES: [&str; 8] =
    ["queue", "checkout", "limit", "bind", "unpack", "spawn", "program", "run"];

/// How many reasons are remembered why requests had no outcome.
const MAX_RECENT: usize = 20;

/// Why a request has no outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// The queue was full, or the request waited too long in it.
    Busy,
    /// The image is still being built or pulled.
    ImageComing,
    /// No sandbox could be made, or none in time.
    NoSandbox,
    /// The sandbox failed, or could not do what was asked.
    Sandbox,
    /// The server is stopping.
    Stopping,
    /// The caller went away.
    Cancelled,
}

impl Failure {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 6] = [
        Self::Busy,
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
            ExecuteError::Admission(AdmissionError::Closed)
            | ExecuteError::Checkout(
                CheckoutError::Closed | CheckoutError::Sandbox(SandboxError::Closed),
            ) => Self::Stopping,
            ExecuteError::Admission(_) => Self::Busy,
            ExecuteError::Checkout(CheckoutError::ImageComing { .. }) => Self::ImageComing,
            ExecuteError::Checkout(_) | ExecuteError::NoSuchPool(_) => Self::NoSandbox,
            ExecuteError::Run(_) => Self::Sandbox,
        }
    }
}

/// What has happened in a pool. What is in an array is in the order of its `ALL`.
#[derive(Debug, Default)]
pub struct PoolCounts {
    /// Programs with an outcome, by how they got their sandbox and by their status.
    pub executions: [[Count; Status::ALL.len()]; Start::ALL.len()],
    /// Requests without an outcome.
    pub failures: [Count; Failure::ALL.len()],
    /// How long those with an outcome took, from their arrival to the last byte from the sandbox.
    pub times: [Times; Start::ALL.len()],
    /// The time of each of [`STAGES`].
    pub stages: [TimeSum; STAGES.len()],
    /// Sessions that were opened, by how they got their sandbox.
    pub sessions: [Count; Start::ALL.len()],
    /// Cells of sessions, by their status.
    pub cells: [Count; Status::ALL.len()],
    /// How long it took to make each sandbox.
    pub made: Times,
    /// Sandboxes that could not be made.
    pub not_made: Count,
    /// Requests and sessions that got a sandbox, by how.
    pub(super) starts: [Count; Start::ALL.len()],
    pub(super) in_use: AtomicUsize,
}

impl PoolCounts {
    /// Sandboxes in which a program runs now.
    pub fn in_use(&self) -> usize {
        self.in_use.load(Ordering::Relaxed)
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
    }

    /// Counts a cell of a session.
    pub fn ran_cell(&self, status: Status) {
        self.cells[status as usize].add(1);
    }
}

/// A request that is counted as cancelled if it is dropped before its end.
pub(super) struct Counting<'a>(Option<&'a PoolCounts>);

impl<'a> Counting<'a> {
    pub(super) fn new(counts: &'a PoolCounts) -> Self {
        Self(Some(counts))
    }

    /// It has ended.
    pub(super) fn end(mut self, result: &Result<(Outcome, Receipt), ExecuteError>) {
        let Some(counts) = self.0.take() else { return };
        match result {
            Ok((outcome, receipt)) => counts.executed(outcome, receipt),
            Err(error) => counts.failures[Failure::of(error) as usize].add(1),
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

/// What has happened in all pools together.
#[derive(Debug, Default)]
pub struct SharedCounts {
    /// How long each request waited to be admitted.
    pub queue: Times,
    /// Sandboxes and other things that were found without an owner and removed.
    pub swept: Count,
    recent: Mutex<VecDeque<RecentFailure>>,
}

/// A reason why requests had no outcome.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecentFailure {
    /// When that was, the last time.
    pub at: SystemTime,
    /// The name of their pool.
    pub pool: String,
    /// The error.
    pub message: String,
    /// How many requests had it in a row.
    pub count: u64,
}

impl SharedCounts {
    /// Remembers why a request had no outcome.
    pub(super) fn failed(&self, pool: &str, error: &ExecuteError) {
        let message = error.to_string();
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
        recent.push_back(RecentFailure { at, pool, message, count: 1 });
    }

    /// The last reasons, the newest first.
    pub fn recent_failures(&self) -> Vec<RecentFailure> {
        lock(&self.recent).iter().rev().cloned().collect()
    }
}
