//! The receipt of a call: how it was served, for operators and programs.

use std::time::Duration;

use isolator_pool::pool::pools::{OpenReceipt, Receipt};
use isolator_pool::pool::session::{CellOutcome, Session};
use isolator_pool::run::outcome::Outcome;
use serde::Serialize;

use crate::result::units::ms;

/// How a program, a cell or the opening of a session was served. Models don't read it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct ReceiptReport {
    /// hot: a sandbox was ready and thawed; warm: ready and paused; queued: waited for the
    /// next; cold: made for this request; session: the sandbox of the session.
    pub start: &'static str,
    /// Whether a preloaded interpreter ran the program. This changes nothing but the time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preloaded: Option<bool>,
    /// Digest of the image.
    pub image: String,
    /// The packages that it was given, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub packages: Option<UsedPackages>,
    /// Whether the session was frozen before the cell.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frozen: Option<bool>,
    /// Checkpoints of the session after the cell.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoints: Option<u32>,
    /// The time of each stage, in milliseconds.
    pub ms: Stages,
}

/// The packages that a program was given.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct UsedPackages {
    /// The sets, and the requirements, that were asked for.
    pub sets: Vec<String>,
    /// The hash of the set that has all of them.
    pub hash: String,
    /// How long it took until the set was there.
    #[serde(skip)]
    pub waited: Duration,
}

/// The time of each stage of a call, in milliseconds.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct Stages {
    /// Waiting until its packages were there, if it asked for some.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub packages: Option<f64>,
    /// Waiting for other requests to end.
    pub queue: f64,
    /// Getting a sandbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkout: Option<f64>,
    /// Changing its limits, if the request asked for others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<f64>,
    /// Giving it the packages, if the request asked for some.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bind: Option<f64>,
    /// Opening the session in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub open: Option<f64>,
    /// Unpacking the files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unpack: Option<f64>,
    /// Starting the cell.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub begin: Option<f64>,
    /// Starting the program.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spawn: Option<f64>,
    /// The program, from its start to its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub program: Option<f64>,
    /// From sending the job to receiving the last of the result; unpack, spawn and program are
    /// part of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run: Option<f64>,
    pub total: f64,
}

impl ReceiptReport {
    /// Describes how a program was served in a new sandbox.
    pub(crate) fn of_program(
        outcome: &Outcome,
        receipt: &Receipt,
        packages: Option<UsedPackages>,
    ) -> Self {
        let run = receipt.run;
        let waited = packages.as_ref().map(|packages| packages.waited);
        let before = waited.unwrap_or_default() + receipt.queue + receipt.checkout + run.limit;
        let ms = Stages {
            packages: waited.map(ms),
            queue: ms(receipt.queue),
            checkout: Some(ms(receipt.checkout)),
            limit: Some(ms(run.limit)),
            bind: packages.is_some().then_some(ms(run.bind)),
            unpack: Some(ms(run.unpack)),
            spawn: Some(ms(run.spawn)),
            program: Some(ms(outcome.wall)),
            run: Some(ms(run.total)),
            total: ms(before + run.bind + run.total),
            ..Stages::default()
        };
        let preloaded = Some(run.preloaded);
        Self { preloaded, packages, ..Self::new(receipt.start.as_str(), &receipt.image, ms) }
    }

    /// Describes how a step of a session was served.
    pub(crate) fn of_cell(cell: &CellOutcome, image: &str) -> Self {
        let times = cell.times;
        let ms = Stages {
            queue: ms(times.queue),
            unpack: Some(ms(times.unpack)),
            begin: Some(ms(times.begin)),
            program: Some(ms(cell.outcome.wall)),
            total: ms(times.queue + times.total),
            ..Stages::default()
        };
        let (frozen, checkpoints) = (Some(times.was_frozen), Some(cell.checkpoints));
        Self { frozen, checkpoints, ..Self::new("session", image, ms) }
    }

    /// Describes how a session was opened.
    pub(crate) fn of_opening(
        session: &Session,
        receipt: &OpenReceipt,
        packages: Option<UsedPackages>,
    ) -> Self {
        let waited = packages.as_ref().map(|packages| packages.waited);
        let OpenReceipt { start, queue, checkout, open, .. } = *receipt;
        let ms = Stages {
            packages: waited.map(ms),
            queue: ms(queue),
            checkout: Some(ms(checkout)),
            open: Some(ms(open)),
            total: ms(waited.unwrap_or_default() + queue + checkout + open),
            ..Stages::default()
        };
        let preloaded = Some(session.opened().preloaded);
        Self { preloaded, packages, ..Self::new(start.as_str(), session.image(), ms) }
    }

    fn new(start: &'static str, image: &str, ms: Stages) -> Self {
        Self {
            start,
            preloaded: None,
            image: image.to_owned(),
            packages: None,
            frozen: None,
            checkpoints: None,
            ms,
        }
    }
}

impl Stages {
    /// The time of the stage with this name, if the call had it.
    pub(crate) fn named(&self, name: &str) -> Option<f64> {
        match name {
            "packages" => self.packages,
            "queue" => Some(self.queue),
            "checkout" => self.checkout,
            "limit" => self.limit,
            "bind" => self.bind,
            "unpack" => self.unpack,
            "spawn" => self.spawn,
            "program" => self.program,
            "run" => self.run,
            _ => None,
        }
    }
}
