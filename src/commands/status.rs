//! `isolator status`: what a server tells operators, in a terminal.

use super::operators::OperatorArguments;
use clap::Args;
use std::pin::pin;
use std::process::ExitCode;
use std::time::Duration;

use isolator_pool::quote::escaped;
use serde_json::Value;

use crate::commands::operators::AskedServer;
use crate::commands::signals::stop_signal;
use crate::commands::{Work, print, say};
use crate::config::Config;

/// Arguments of `isolator status`.
#[derive(Debug, Args)]
pub struct StatusArguments {
    /// The server
    #[command(flatten)]
    pub server: OperatorArguments,
    /// Show it again every two seconds, until Ctrl-C
    #[arg(long)]
    pub live: bool,
    /// Print all of it as JSON, on one line
    #[arg(long)]
    pub json: bool,
}

/// Between two looks.
const PAUSE: Duration = Duration::from_secs(2);

/// Clears a terminal, and goes to its first line.
const CLEAR: &str = "\x1b[H\x1b[2J";

/// Intervals of the last minute.
const MINUTE: usize = 12;

/// Shows the state of a server, once or until a signal comes.
pub fn status(config: Config, arguments: StatusArguments) -> Work {
    Box::pin(show(config, arguments))
}

async fn show(config: Config, arguments: StatusArguments) -> anyhow::Result<ExitCode> {
    let StatusArguments { server, live, json } = arguments;
    let server = AskedServer::named(&server, || Ok(config), "status")?;
    let mut stop = pin!(stop_signal()?);
    loop {
        let status = server.status().await?;
        if json {
            say(&status.to_string())?;
        } else {
            let clear = if live { CLEAR } else { "" };
            print(format!("{clear}{}", shown(&status)).as_bytes())?;
        }
        if !live {
            return Ok(ExitCode::SUCCESS);
        }
        tokio::select! {
            _ = &mut stop => return Ok(ExitCode::SUCCESS),
            () = tokio::time::sleep(PAUSE) => {}
        }
    }
}

/// The state for a terminal. What a client or an engine has chosen is escaped.
fn shown(status: &Value) -> String {
    let sessions = &status["sessions"];
    let texts = |key: &str| status[key].as_array().into_iter().flatten().map(text);
    let not_ready = texts("not_ready").map(|reason| format!("NOT READY: {reason}"));
    let warnings = texts("warnings").map(|warning| format!("WARNING: {warning}"));
    let mut lines: Vec<_> = not_ready.chain(warnings).collect();
    let past = past(status);
    lines.extend([
        format!(
            "isolator {}, {} engine, up {} s",
            text(&status["version"]),
            text(&status["engine"]),
            status["uptime_s"]
        ),
        format!(
            "{} requests run, {} wait, {} sandboxes leaving, {} sessions ({} run a cell, {} frozen)",
            status["running"],
            status["waiting"],
            status["leaving"],
            sessions["open"],
            sessions["running"],
            sessions["frozen"]
        ),
        format!("memory: {}", memory(status)),
        String::new(),
        row([
            "",
            "",
            "running a",
            "held by",
            "being",
            "calls/s",
            "calls/s",
            "cells/s",
            "cells/s",
            "ready",
            "p50",
            "p99",
            "replacing",
        ]),
        row([
            "pool", "ready", "program", "sessions", "made", "1 min", &past, "1 min", &past,
            "1 min", "latest", "latest", "takes",
        ]),
    ]);
    for (name, pool) in status["pools"].as_object().into_iter().flatten() {
        let (minute, all) =
            (Recent::of(status, name, MINUTE), Recent::of(status, name, usize::MAX));
        let number = |key: &str| pool[key].as_u64().unwrap_or_default();
        let ready = format!("{}/{}", number("hot") + number("paused"), number("size"));
        let rate = |rate: f64| format!("{rate:.2}");
        let cells = [
            escaped(name).into_owned(),
            ready,
            number("in_use").to_string(),
            number("sessions").to_string(),
            number("making").to_string(),
            rate(minute.calls),
            rate(all.calls),
            rate(minute.cells),
            rate(all.cells),
            minute.ready.map_or_else(|| "-".to_owned(), |share| format!("{:.0} %", share * 100.0)),
            time(minute.p50),
            time(minute.p99),
            // As `isolator tune` has it.
            time(
                pool["making_ms"].as_f64().map(|ms| ms + pool["delay_ms"].as_f64().unwrap_or(0.0)),
            ),
        ];
        lines.push(row(cells.each_ref().map(String::as_str)));
        if let Some(error) = pool["last_error"].as_str() {
            lines.push(format!("  {}", escaped(error)));
        }
    }
    let clients = status["clients"].as_array().into_iter().flatten();
    lines.extend(clients.map(|client| {
        let name = text(&client["name"]);
        format!("client {name}: {} run, {} wait", client["running"], client["waiting"])
    }));
    let programs = status["programs"].as_array().into_iter().flatten();
    lines.extend(programs.map(|program| {
        let part = |key: &str| text(&program[key]);
        let (pool, client, start) = (part("pool"), part("client"), part("start"));
        format!("running {pool} for {client}, {start}, {}", time(program["ms"].as_f64()))
    }));
    let failures = status["failures"].as_array().into_iter().flatten();
    lines.extend(failures.map(|failure| {
        let part = |key: &str| text(&failure[key]);
        let (at, pool, message) = (part("at"), part("pool"), part("message"));
        format!("{at} {pool}: {message} ({} times). {}", failure["count"], part("advice"))
    }));
    lines.push(String::new());
    lines.join("\n")
}

/// A line of the table: the name of a pool, and figures.
fn row([name, figures @ ..]: [&str; 13]) -> String {
    figures.iter().fold(format!("{name:<14}"), |line, figure| format!("{line}{figure:>10}"))
}

fn text(value: &Value) -> String {
    escaped(value.as_str().unwrap_or_default()).into_owned()
}

fn time(ms: Option<f64>) -> String {
    match ms {
        None => "-".to_owned(),
        Some(ms) if ms < 10.0 => format!("{ms:.1} ms"),
        Some(ms) if ms < 1000.0 => format!("{ms:.0} ms"),
        Some(ms) => format!("{:.1} s", ms / 1000.0),
    }
}

/// How far the intervals go back.
fn past(status: &Value) -> String {
    let seconds = status["interval_s"].as_u64().unwrap_or(1)
        * status["intervals"].as_array().map_or(0, Vec::len) as u64;
    if seconds < 120 { format!("{seconds} s") } else { format!("{} min", seconds / 60) }
}

/// The parts that take memory besides the programs that run.
fn memory(status: &Value) -> String {
    let bytes = |value: &Value| match value.as_u64() {
        Some(bytes) => format!("{} MiB", bytes.div_ceil(1 << 20)),
        None => "not known".to_owned(),
    };
    let mut parts = vec![format!("sessions {}", bytes(&status["sessions"]["memory_bytes"]))];
    let pools = status["pools"].as_object().into_iter().flatten();
    let waiting: Option<u64> =
        pools.filter_map(|(_, pool)| pool["memory_bytes"].as_u64()).reduce(|a, b| a + b);
    parts.push(format!("what waits {}", bytes(&waiting.into())));
    if let Some(count) = status["templates"].as_u64() {
        parts.push(format!("{count} templates {}", bytes(&status["template_bytes"])));
    }
    parts.join(", ")
}

/// The events of a pool in the last intervals.
#[derive(Debug, PartialEq)]
struct Recent {
    /// Calls a second, and cells.
    calls: f64,
    cells: f64,
    /// The share of them that found a sandbox ready, if there were any.
    ready: Option<f64>,
    /// Times of calls in the last interval with some, in milliseconds.
    p50: Option<f64>,
    p99: Option<f64>,
}

impl Recent {
    fn of(status: &Value, pool: &str, most: usize) -> Self {
        let intervals = status["intervals"].as_array().map_or(&[][..], Vec::as_slice);
        let recent = &intervals[intervals.len().saturating_sub(most)..];
        let of_pool = || recent.iter().map(|interval| &interval["pools"][pool]);
        let sum = |key: &str| of_pool().filter_map(|it| it[key].as_u64()).sum::<u64>() as f64;
        let seconds = recent.len() as f64 * status["interval_s"].as_f64().unwrap_or(1.0);
        let rate = |key: &str| if seconds > 0.0 { sum(key) / seconds } else { 0.0 };
        let starts = sum("starts");
        let last = |key: &str| of_pool().rev().find_map(|it| it[key].as_f64());
        Self {
            calls: rate("calls"),
            cells: rate("cells"),
            ready: (starts > 0.0).then(|| sum("ready_starts") / starts),
            p50: last("p50_ms"),
            p99: last("p99_ms"),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn both_rates_are_of_their_intervals_and_nothing_special_is_shown() {
        let of = |calls: u64, p50: Option<f64>| {
            let pool = json!({ "calls": calls, "cells": 3 * calls, "starts": calls, "ready_starts": calls / 2, "p50_ms": p50 });
            json!({ "pools": { "python": pool } })
        };
        let mut intervals = vec![of(1000, Some(9.0)); 3];
        intervals.extend(vec![of(6, Some(2.0)); 11]);
        intervals.push(of(0, None));
        let pool = json!({
            "hot": 1, "paused": 1, "size": 4, "in_use": 1, "sessions": 5, "making": 2, "delay_ms": 10.0, "making_ms": 31.2,
            "memory_bytes": 3 << 20,
            "last_error": "no\u{1b}[2J room",
        });
        let status = json!({
            "version": "1.2.3", "engine": "embedded", "uptime_s": 7, "running": 1, "waiting": 0, "leaving": 0,
            "sessions": { "open": 0, "running": 0, "frozen": 0, "memory_bytes": 0 }, "interval_s": 5,
            "templates": 2, "template_bytes": 70 << 20,
            "pools": { "python": pool }, "intervals": intervals,
            "clients": [{ "name": "ci\u{202e}", "running": 1, "waiting": 0 }],
            "programs": [{ "pool": "python", "client": "ci\u{202e}", "start": "hot", "ms": 1500.0 }],
            "failures": [{ "at": "now", "pool": "go", "message": "x\n", "advice": "Do y.", "count": 2 }],
        });
        let minute = Recent::of(&status, "python", MINUTE);
        let expected =
            Recent { calls: 1.1, cells: 3.3, ready: Some(0.5), p50: Some(2.0), p99: None };
        assert_eq!(minute, expected);
        let shown = shown(&status);
        let words = shown.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(
            words.contains("python 2/4 1 5 2 1.10 40.88 3.30 122.64 50 % 2.0 ms - 41 ms"),
            "{shown}"
        );
        assert!(
            shown.contains("memory: sessions 0 MiB, what waits 3 MiB, 2 templates 70 MiB"),
            "{shown}"
        );
        assert!(shown.contains("running python for ci\\u202e, hot, 1.5 s"), "{shown}");
        assert!(shown.contains("now go: x\\n (2 times). Do y."), "{shown}");
        assert!(shown.contains("no\\u001b[2J room") && shown.contains("ci\\u202e"), "{shown}");
    }
}
