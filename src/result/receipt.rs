//! The receipt of a run: how it was served, for operators and programs.

use std::time::Duration;

use isolator_pool::pool::pools::Receipt;
use isolator_pool::run::outcome::Outcome;
use serde::Serialize;

use crate::result::report::ms;

/// How a request was served. It is for operators and programs, so it is not part of what a model reads.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct ReceiptReport {
    /// hot: a sandbox was ready and thawed; warm: ready and paused; queued: waited for the
    /// next; cold: made for this request.
    pub start: &'static str,
    /// Whether a preloaded interpreter ran the program. This changes nothing but the time.
    pub preloaded: bool,
    /// Digest of the image.
    pub image: String,
    /// The packages that it was given, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub packages: Option<UsedPackages>,
    /// Where the time went, in milliseconds.
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

/// Where the time of a request went, in milliseconds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Stages {
    /// Waiting until its packages were there, if it asked for some.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub packages: Option<f64>,
    /// Waiting for other requests to end.
    pub queue: f64,
    /// Getting a sandbox.
    pub checkout: f64,
    /// Changing its limits, if the request asked for others.
    pub limit: f64,
    /// Giving it the packages, if the request asked for some.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bind: Option<f64>,
    /// Unpacking the files.
    pub unpack: f64,
    /// Starting the program.
    pub spawn: f64,
    /// The program, from its start to its end.
    pub program: f64,
    /// From sending the job to receiving the last of the result; unpack, spawn and program are
    /// part of it.
    pub run: f64,
    /// All of it.
    pub total: f64,
}

impl ReceiptReport {
    /// Describes how a run was served.
    pub(crate) fn new(
        outcome: &Outcome,
        receipt: &Receipt,
        packages: Option<UsedPackages>,
    ) -> Self {
        let run = receipt.run;
        let waited = packages.as_ref().map(|packages| packages.waited);
        let before = waited.unwrap_or_default() + receipt.queue + receipt.checkout + run.limit;
        Self {
            start: receipt.start.as_str(),
            preloaded: run.preloaded,
            image: receipt.image.clone(),
            ms: Stages {
                packages: waited.map(ms),
                queue: ms(receipt.queue),
                checkout: ms(receipt.checkout),
                limit: ms(run.limit),
                bind: packages.is_some().then_some(ms(run.bind)),
                unpack: ms(run.unpack),
                spawn: ms(run.spawn),
                program: ms(outcome.wall),
                run: ms(run.total),
                total: ms(before + run.bind + run.total),
            },
            packages,
        }
    }
}
