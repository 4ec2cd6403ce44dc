//! Where the advice gets its figures: from the counts of a server, or from audit logs, in which servers write the same. Nothing is
//! measured here: a new process would make sandboxes more slowly than a server that runs.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, bail};
use isolator_pool::pool::minutes::Minutes;
use isolator_pool::pool::sizing::{Depths, LeadTime};
use serde::Deserialize;
use serde_json::Value;

/// The longest line of an audit log that is read, in bytes. Code may be in it.
const MAX_LINE: u64 = 64 << 20;

/// Observations of the calls of a language.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Calls {
    pub(super) depths: Depths,
    pub(super) busiest_minute: u64,
}

/// The cost of a sandbox of a language; `None` for unknown parts.
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
        let number = |key: &str| pool[key].as_u64().unwrap_or_default();
        let depths = pool["depths"].as_array().into_iter().flatten().filter_map(Value::as_f64);
        let calls = Calls { depths: Depths::of(depths), busiest_minute: number("busiest_minute") };
        let cost = Cost {
            lead: lead(pool["delay_ms"].as_f64(), pool["making_ms"].as_f64()),
            each: bytes(pool["sandbox_bytes"].as_u64()),
        };
        found.0.insert(name.clone(), calls);
        found.1.insert(name.clone(), cost);
    }
    found
}

/// A call in an audit log that took a sandbox.
#[derive(Debug, Clone, PartialEq)]
struct Call {
    at: SystemTime,
    language: String,
    pool: FoundPool,
}

/// The state in which a call found its pool, as its server has written it.
#[derive(Debug, Clone, PartialEq, Deserialize)]
struct FoundPool {
    depths: Vec<usize>,
    delay_ms: Option<f64>,
    making_ms: Option<f64>,
    sandbox_bytes: Option<u64>,
}

/// The content of audit logs.
#[derive(Debug, Default)]
pub(super) struct Logs {
    calls: Vec<Call>,
    /// Calls of which it is not known what they found.
    unknown: usize,
    /// Remarks about them.
    pub(super) notes: Vec<String>,
}

/// The parts of a line that are read.
#[derive(Deserialize)]
struct Line {
    time: String,
    /// Each line has it, and lines of other programs have not.
    #[serde(rename = "ms")]
    _ms: f64,
    language: Option<String>,
    start: Option<String>,
    pool: Option<FoundPool>,
}

/// Reads audit logs.
///
/// # Errors
///
/// When one can't be read, no line is one of an audit log, or its calls don't tell what they found of their pools.
pub(super) fn read_logs(files: &[PathBuf]) -> anyhow::Result<Logs> {
    let mut logs = Logs::default();
    for file in files {
        read_log(file, &mut logs).with_context(|| file.display().to_string())?;
    }
    let unknown = logs.unknown;
    if unknown > 0 && logs.calls.is_empty() {
        bail!(
            "its {unknown} call(s) do not tell what they found of their pools, because they are of an older version. Ask a server, as with \
             `isolator tune 9464`, or wait until this version has served calls"
        );
    }
    if unknown > 0 {
        logs.notes.push(format!(
            "{unknown} call(s) are left out: they are of an older version, which did not write what they found of their pools"
        ));
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
                logs.add(line)?;
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
            .push(format!("{bad} line(s) of {name} are not of an audit log, and are left out"));
    }
    if good == 0 {
        bail!("no line of it is one of an audit log, which a server writes to audit.path");
    }
    Ok(())
}

impl Logs {
    /// Adds the call of a line, if it took a sandbox.
    fn add(&mut self, line: Line) -> anyhow::Result<()> {
        let (Some(language), Some(_)) = (line.language, line.start) else { return Ok(()) };
        let at = humantime::parse_rfc3339(&line.time)
            .with_context(|| format!("{:?} is not a time", line.time))?;
        match line.pool {
            Some(pool) => self.calls.push(Call { at, language, pool }),
            None => self.unknown += 1,
        }
        Ok(())
    }

    /// The calls and the costs by language, as the server of each call has seen them.
    pub(super) fn found(&self) -> (BTreeMap<String, Calls>, BTreeMap<String, Cost>) {
        let mut found: BTreeMap<&str, (Depths, Minutes, Cost)> = BTreeMap::new();
        for Call { at, language, pool } in &self.calls {
            let (depths, minutes, cost) = found.entry(language).or_default();
            let since = at.duration_since(self.calls[0].at).unwrap_or_default();
            for depth in &pool.depths {
                depths.add(*depth);
                minutes.add(since);
            }
            // What the last ones say holds now.
            *cost = Cost {
                lead: lead(pool.delay_ms, pool.making_ms).or(cost.lead),
                each: bytes(pool.sandbox_bytes).or(cost.each),
            };
        }
        let mut both = (BTreeMap::new(), BTreeMap::new());
        for (language, (depths, minutes, cost)) in found {
            let calls = Calls { depths, busiest_minute: minutes.busiest() };
            both.0.insert(language.to_owned(), calls);
            both.1.insert(language.to_owned(), cost);
        }
        both
    }
}

fn lead(delay_ms: Option<f64>, making_ms: Option<f64>) -> Option<LeadTime> {
    let time = |ms: Option<f64>| {
        let ms = ms.filter(|ms| (0.0..1e9).contains(ms))?;
        Some(Duration::from_secs_f64(ms / 1e3))
    };
    Some(LeadTime { making: time(making_ms)?, delay: time(delay_ms).unwrap_or_default() })
}

fn bytes(bytes: Option<u64>) -> Option<u64> {
    bytes.filter(|bytes| *bytes > 0)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use serde_json::json;

    use super::*;

    const LEAD: LeadTime =
        LeadTime { delay: Duration::from_millis(10), making: Duration::from_millis(90) };

    fn line(seconds: u32, language: &str, depths: &[usize]) -> String {
        let time = format!("2026-03-01T12:{:02}:{:02}.000Z", seconds / 60, seconds % 60);
        let start = (!depths.is_empty()).then_some("hot");
        let pool = json!({ "depths": depths, "delay_ms": 10.0, "making_ms": 90.0 });
        json!({ "time": time, "client": "c", "tool": "execute_code", "language": language, "start": start,
            "pool": start.map(|_| pool), "status": "success", "ms": 5.0, "bytes": {} })
        .to_string()
    }

    fn logs(text: &str) -> anyhow::Result<Logs> {
        let mut file = tempfile::NamedTempFile::new()?;
        file.write_all(text.as_bytes())?;
        read_logs(&[file.path().to_owned()])
    }

    #[test]
    fn calls_of_a_log_are_those_that_its_servers_have_seen() {
        let with_memory = line(90, "python", &[3])
            .replace("\"making_ms\"", "\"sandbox_bytes\":1000,\"making_ms\"");
        let lines = [
            with_memory,
            line(30, "python", &[0]),
            line(31, "go", &[0]),
            // It ran in a session.
            line(40, "python", &[]),
            // A check of its code, and the program.
            line(89, "python", &[0, 1]),
        ];
        let logs = logs(&lines.map(|line| line + "\n").concat()).unwrap();
        assert_eq!(logs.notes, [""; 0]);
        let (calls, costs) = logs.found();
        let python = Calls { depths: Depths::of([2.0, 1.0, 0.0, 1.0]), busiest_minute: 3 };
        assert_eq!(calls["python"], python);
        assert_eq!((calls["go"].depths.total(), calls["go"].busiest_minute), (1.0, 1));
        assert_eq!(costs["python"], Cost { lead: Some(LEAD), each: Some(1000) });
        assert_eq!(costs["go"], Cost { lead: Some(LEAD), each: None });
    }

    #[test]
    fn calls_that_do_not_tell_what_they_found_give_no_advice() {
        let whole = line(0, "python", &[1]);
        let old = whole.replace("\"pool\"", "\"other\"");
        let error = format!("{:#}", logs(&format!("{old}\n{old}\n")).unwrap_err());
        assert!(error.contains("its 2 call(s) do not tell what they found"), "{error}");
        let found = logs(&format!("{old}\n{whole}\n")).unwrap();
        assert!(found.notes[0].starts_with("1 call(s) are left out: they are of an older version"));
        assert_eq!(found.found().0["python"].depths.total(), 1.0);
    }

    #[test]
    fn a_log_that_is_damaged_is_read_as_far_as_it_goes() {
        let whole = line(0, "python", &[0]);
        let cut = &whole[..40];
        let found = logs(&format!("{whole}\nrubbish\n\n{whole}\n{cut}")).unwrap();
        assert_eq!((found.found().0["python"].depths.total(), found.notes.len()), (2.0, 2));
        assert!(found.notes[0].ends_with("ends in the middle of a line, which is left out"));
        assert!(found.notes[1].starts_with("1 line(s) of "));
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
