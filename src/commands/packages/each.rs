//! The loop of `build` and `lock`: they work on one set after the other, until all are done or a signal comes.

use std::pin::pin;
use std::process::ExitCode;
use std::time::Duration;

use isolator_pool::pool::pools::Pools;
use serde::Serialize;

use crate::commands::packages::choice;
use crate::commands::signals::stopped_by;
use crate::commands::{complain, describe, say};
use crate::config::{Config, SetConfig};

/// The results for the sets.
pub(super) struct Ended<T> {
    /// The data that is printed as JSON.
    rows: Vec<T>,
    failed: usize,
    /// The signal that has ended it early, or why the rest could not be printed.
    signal: anyhow::Result<Option<i32>>,
}

/// Does `step` with each of the sets, and tells of it: a row for JSON, and a text otherwise. A set that fails does not keep the
/// others from it. When `stop` ends, the step that runs is dropped.
pub(super) async fn each_set<T>(
    config: &Config,
    names: &[String],
    stop: impl Future<Output = i32>,
    json: bool,
    mut step: impl AsyncFnMut(&SetConfig) -> anyhow::Result<(T, String)>,
) -> Ended<T> {
    let mut stop = pin!(stop);
    let (mut rows, mut failed) = (Vec::new(), 0);
    let signal = tokio::select! {
        ended = async {
            for set in choice::of_configuration(config, names)? {
                match step(set).await {
                    Ok((row, _)) if json => rows.push(row),
                    Ok((_, text)) => say(&text)?,
                    Err(error) => {
                        failed += 1;
                        complain(&format!("isolator: {}", describe(&error)));
                    }
                }
            }
            Ok(None)
        } => ended,
        signal = &mut stop => Ok(Some(signal)),
    };
    Ended { rows, failed, signal }
}

impl<T: Serialize> Ended<T> {
    /// Removes the sandboxes that were needed, and prints the rows. Returns the command's exit code.
    pub(super) async fn finish(self, pools: &Pools, json: bool) -> anyhow::Result<ExitCode> {
        let Self { rows, failed, signal } = self;
        let closed = pools.close(Duration::ZERO).await;
        if let Some(signal) = signal? {
            return Ok(stopped_by(signal));
        }
        closed?;
        if json {
            say(&serde_json::to_string_pretty(&rows)?)?;
        }
        Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}
