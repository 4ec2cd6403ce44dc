//! Where the advice gets its figures: from a server, from audit logs, and from sandboxes that are made to measure them.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, bail};
use isolator_pool::engine::WaitingMemory;
use isolator_pool::pool::PoolStatus;
use isolator_pool::pool::sizing::{Demand, Depths, LeadTime};
use serde::Deserialize;
use serde_json::Value;

use crate::app::{App, PoolFill};
use crate::config::Config;

/// The longest line of an audit log that is read, in bytes. Code may be in it.
const MAX_LINE: u64 = 64 << 20;

/// How long sandboxes may take to be made, to measure that.
const MEASURE_TIMEOUT: Duration = Duration::from_secs(60);

/// So many are made of each language. The first one may take much longer, and what they share counts in parts.
const MEASURED: usize = 4;

/// What was seen of the calls of a language.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Calls {
    pub(super) depths: Depths,
    pub(super) busiest_minute: u64,
}

/// What a sandbox of a language costs. What is not known is `None`.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Cost {
    pub(super) lead: Option<LeadTime>,
    /// Bytes.
    pub(super) each: Option<u64>,
}

/// The calls and the costs by language, as a server tells them.
pub(super) fn of_server(status: &Value) -> (BTreeMap<String, Calls>, BTreeMap<String, Cost>) {
    let mut found = (BTreeMap::new(), BTreeMap::new());
    for (name, pool) in status["pools"].as_object().into_iter().flatten() {
        let ms = |key: &str| {
            let ms = pool[key].as_f64().filter(|ms| (0.0..1e9).contains(ms))?;
            Some(Duration::from_secs_f64(ms / 1e3))
        };
        let number = |key: &str| pool[key].as_u64().unwrap_or_default();
        let depths = pool["depths"].as_array().into_iter().flatten().filter_map(Value::as_f64);
        let calls = Calls { depths: Depths::of(depths), busiest_minute: number("busiest_minute") };
        let lead = ms("making_ms");
        let cost = Cost {
            lead: lead.map(|making| LeadTime { delay: ms("delay_ms").unwrap_or_default(), making }),
            each: pool["sandbox_bytes"].as_u64().filter(|each| *each > 0),
        };
        found.0.insert(name.clone(), calls);
        found.1.insert(name.clone(), cost);
    }
    found
}

/// A call in an audit log that took a sandbox.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Call {
    at: SystemTime,
    took: Duration,
    language: String,
}

/// What audit logs have.
#[derive(Debug, Default)]
pub(super) struct Logs {
    calls: Vec<Call>,
    /// What to know of them.
    pub(super) notes: Vec<String>,
}

/// What is read of a line.
#[derive(Deserialize)]
struct Line {
    time: String,
    ms: f64,
    language: Option<String>,
    start: Option<String>,
}

/// Reads audit logs.
///
/// # Errors
///
/// When one can't be read, or no line is one of an audit log.
pub(super) fn read_logs(files: &[PathBuf]) -> anyhow::Result<Logs> {
    let mut logs = Logs::default();
    for file in files {
        read_log(file, &mut logs).with_context(|| file.display().to_string())?;
    }
    logs.calls.sort_by_key(|call| call.at);
    Ok(logs)
}

fn read_log(path: &Path, logs: &mut Logs) -> anyhow::Result<()> {
    let mut reader = BufReader::new(File::open(path)?);
    let (mut good, mut bad) = (0_u64, 0_u64);
    let mut line = Vec::new();
    loop {
        line.clear();
        let read = reader.by_ref().take(MAX_LINE).read_until(b'\n', &mut line)?;
        if read == 0 {
            break;
        }
        let is_whole = line.ends_with(b"\n");
        match serde_json::from_slice(&line) {
            Ok(line) => {
                good += 1;
                logs.calls.extend(call(line)?);
            }
            Err(_) if !is_whole && read as u64 != MAX_LINE => {
                let name = path.display();
                logs.notes.push(format!("{name} ends in the middle of a line, which is left out"));
            }
            Err(_) if line.trim_ascii().is_empty() => {}
            Err(_) => bad += 1,
        }
    }
    if bad > 0 && good > 0 {
        let name = path.display();
        logs.notes
            .push(format!("{bad} lines of {name} are not those of an audit log, and are left out"));
    }
    if good == 0 {
        bail!("no line of it is one of an audit log, which a server writes to audit.path");
    }
    Ok(())
}

/// The call of a line, if it took a sandbox.
fn call(line: Line) -> anyhow::Result<Option<Call>> {
    let (Some(language), Some(_)) = (line.language, line.start) else { return Ok(None) };
    let at = humantime::parse_rfc3339(&line.time)
        .with_context(|| format!("{:?} is not a time", line.time))?;
    let took = Duration::try_from_secs_f64(line.ms / 1e3).unwrap_or_default();
    Ok(Some(Call { at, took, language }))
}

impl Logs {
    /// The languages of the calls.
    pub(super) fn languages(&self) -> impl Iterator<Item = &str> {
        self.calls.iter().map(|call| &*call.language)
    }

    /// The calls by language, as pools would have seen them that replace each sandbox in this time. At most so many run at the same
    /// time, and others wait for their turn.
    pub(super) fn calls(
        &self,
        lead: impl Fn(&str) -> LeadTime,
        refills: usize,
        running: usize,
    ) -> BTreeMap<String, Calls> {
        let mut places: BTreeMap<&str, usize> = BTreeMap::new();
        for language in self.languages() {
            let next = places.len();
            places.entry(language).or_insert(next);
        }
        let mut demand = Demand::new(refills, places.len());
        let Some(began) = self.calls.first().map(|call| call.at) else { return BTreeMap::new() };
        let mut ends: BinaryHeap<Reverse<Duration>> = BinaryHeap::new();
        let mut last = Duration::ZERO;
        for call in &self.calls {
            let arrived = call.at.duration_since(began).unwrap_or_default();
            while ends.peek().is_some_and(|Reverse(end)| *end <= arrived) {
                ends.pop();
            }
            let turn = match ends.len() < running {
                true => arrived,
                false => ends.pop().map_or(arrived, |Reverse(end)| end),
            };
            last = last.max(turn);
            ends.push(Reverse((arrived + call.took).max(last)));
            demand.arrive(places[&*call.language], last, lead(&call.language));
        }
        let of_place = |(language, place): (&str, usize)| {
            let seen = demand.seen(place).cloned().unwrap_or_default();
            let calls = Calls { depths: seen.depths, busiest_minute: seen.busiest_minute };
            (language.to_owned(), calls)
        };
        places.into_iter().map(of_place).collect()
    }
}

/// Makes some sandboxes of these languages, and measures what they cost.
///
/// # Errors
///
/// When there is no engine, or it can't make such sandboxes.
pub(super) async fn measure(
    config: &Config,
    languages: &[String],
) -> anyhow::Result<BTreeMap<String, Cost>> {
    let app = App::new(config).await?;
    let pools = app.start_pools(config, PoolFill::Few(MEASURED))?;
    let are_full = async {
        loop {
            let status = pools.status();
            let is_done = |name: &String| {
                status.get(&**name).is_none_or(|pool| {
                    pool.hot + pool.paused == pool.size || pool.last_error.is_some()
                })
            };
            if languages.iter().all(is_done) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    // What is not there by then is not known.
    let _ = tokio::time::timeout(MEASURE_TIMEOUT, are_full).await;
    let memory = pools.memory().await;
    let of_one = |(name, pool): (&str, PoolStatus)| {
        let each = memory.get(name).and_then(WaitingMemory::each);
        (name.to_owned(), Cost { lead: pool.lead, each })
    };
    let found = pools.status().into_iter().map(of_one).collect();
    pools
        .close(Duration::ZERO)
        .await
        .context("the sandboxes that were measured can't be removed")?;
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use serde_json::json;

    use super::*;

    const LEAD: LeadTime =
        LeadTime { delay: Duration::from_millis(10), making: Duration::from_millis(90) };

    fn line(ms: u32, took: f64, language: &str, start: Option<&str>) -> String {
        let time = format!("2026-03-01T12:00:{:02}.{:03}Z", ms / 1000, ms % 1000);
        json!({ "time": time, "client": "c", "tool": "execute_code", "language": language, "start": start,
            "status": "success", "ms": took, "bytes": {} })
        .to_string()
    }

    fn logs(text: &str) -> anyhow::Result<Logs> {
        let mut file = tempfile::NamedTempFile::new()?;
        file.write_all(text.as_bytes())?;
        read_logs(&[file.path().to_owned()])
    }

    #[test]
    fn calls_are_as_deep_as_the_pool_would_have_seen_them() {
        let lines = [
            line(40, 5.0, "python", Some("hot")),
            line(0, 50.0, "python", Some("cold")),
            line(0, 5.0, "go", Some("hot")),
            // It ran in a session.
            line(20, 5.0, "python", None),
            line(20, 5.0, "python", Some("queued")),
        ];
        let logs = logs(&lines.map(|line| line + "\n").concat()).unwrap();
        assert_eq!(logs.notes, [""; 0]);
        let calls = logs.calls(|_| LEAD, 4, 8);
        assert_eq!(calls["python"].depths.weights(), [1.0, 1.0, 1.0]);
        assert_eq!((calls["go"].depths.weights(), calls["python"].busiest_minute), (&[1.0][..], 3));
        // One at a time, the others wait until the first call has ended, and then for each other.
        let calls = logs.calls(|_| LEAD, 4, 1);
        assert_eq!(calls["python"].depths.total(), 3.0);
    }

    #[test]
    fn a_log_that_is_damaged_is_read_as_far_as_it_goes() {
        let whole = line(0, 5.0, "python", Some("hot"));
        let cut = &whole[..40];
        let found = logs(&format!("{whole}\nrubbish\n\n{whole}\n{cut}")).unwrap();
        assert_eq!((found.languages().count(), found.notes.len()), (2, 2));
        assert!(found.notes[0].ends_with("ends in the middle of a line, which is left out"));
        assert!(found.notes[1].starts_with("1 lines of "));
        for bad in ["", "rubbish\n", cut] {
            let error = format!("{:#}", logs(bad).unwrap_err());
            assert!(error.ends_with(
                "no line of it is one of an audit log, which a server writes to audit.path"
            ));
        }
        let bad_time = whole.replace("12:00:00.000Z", "noon");
        assert!(format!("{:#}", logs(&bad_time).unwrap_err()).contains("is not a time"));
    }

    #[test]
    fn what_a_server_says_is_read_as_far_as_it_can_be() {
        let status = json!({ "pools": {
            "python": { "sandbox_bytes": 1000, "delay_ms": 10.0, "making_ms": 90.0,
                "depths": [5.0, 2.0], "busiest_minute": 4 },
            "go": { "sandbox_bytes": null, "making_ms": null, "depths": [] },
            "odd": { "making_ms": -1e300, "depths": "many", "sandbox_bytes": -4 },
        } });
        let (calls, costs) = of_server(&status);
        assert_eq!(calls["python"], Calls { depths: Depths::of([5.0, 2.0]), busiest_minute: 4 });
        assert_eq!(costs["python"], Cost { lead: Some(LEAD), each: Some(1000) });
        assert_eq!([costs["go"], costs["odd"]], [Cost::default(); 2]);
        assert_eq!(of_server(&json!("odd")).0.len(), 0);
    }
}
