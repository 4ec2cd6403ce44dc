//! `isolator bench`, against the engine that it measures.

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use common::engine::{Engine as _, docker};
use common::server::{instances, send_signal};
use common::{Finished, config, eventually, isolator, look, run, run_command, state, write_config};
use serde_json::{Value, json};
use tempfile::TempDir;

const FLOWS: [&str; 5] = [
    "docker API, cold",
    "docker API, naive warm",
    "isolator, cold",
    "isolator, paused",
    "isolator, hot",
];

/// The command itself and a server for each kind of pool.
const INSTANCES: usize = 4;

/// A directory with a configuration for Python.
fn directory(more: Value) -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    write_config(directory.path(), &config(&["python"], more));
    directory
}

/// Runs `isolator bench`, and asserts that neither it nor its servers leave anything.
async fn bench(directory: &Path, arguments: &[&str]) -> Finished {
    let mut command = isolator(directory);
    command.arg("bench").args(arguments);
    let mut seen = BTreeSet::new();
    let running = tokio::task::spawn_blocking(move || run_command(&mut command, ""));
    while !running.is_finished() {
        seen.extend(instances(&state(directory)));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let finished = running.await.unwrap();
    assert_eq!(seen.len(), INSTANCES, "{seen:?}: {finished:?}");
    assert_nothing_left(directory, &seen).await;
    assert_eq!(instances(&state(directory)), [""; 0]);
    finished
}

/// Asserts that instances have left nothing, neither on the engine nor on the one that is measured beside it.
async fn assert_nothing_left(directory: &Path, instances: &BTreeSet<String>) {
    let (engine, docker) = (look(directory).await, docker::Bystander::new().await);
    for instance in instances {
        engine.assert_nothing_left(instance).await;
        assert_eq!(docker.left(instance).await, [""; 0]);
    }
}

#[tokio::test]
async fn every_flow_is_measured_and_shown() {
    let directory = directory(json!({}));
    let arguments = ["python", "--duration", "8s", "--svg", "chart.svg", "--json", "all.json"];
    let finished = bench(directory.path(), &arguments).await;
    assert_eq!(finished.code, Some(0), "{finished:?}");

    let programs = ["python, hello", "python, import pandas"];
    for shown in programs.iter().chain(&FLOWS).chain(&["p50 ms", "× faster than cold", "Linux"]) {
        assert!(finished.stdout.contains(shown), "no {shown}: {finished:?}");
    }

    let results = fs::read_to_string(directory.path().join("all.json")).unwrap();
    let results: Value = serde_json::from_str(&results).unwrap();
    let rows = results["rows"].as_array().unwrap();
    assert_eq!(rows.len(), programs.len() * FLOWS.len());
    for row in rows {
        let samples = row["samples_ms"].as_array().unwrap();
        assert!(!samples.is_empty() && row["n"] == samples.len(), "{row}");
        let [min, median, max] = ["min_ms", "p50_ms", "max_ms"].map(|name| row[name].as_f64());
        assert!(Some(0.0) < min && min <= median && median <= max, "{row}");
    }
    let faster = |flow| {
        let row = rows.iter().find(|row| row["program"] == programs[0] && row["flow"] == flow);
        row.and_then(|row| row["times_faster"].as_f64())
    };
    assert_eq!(faster("docker_cold"), Some(1.0));
    // Several times, in truth; a busy machine shall not fail the test.
    assert!(faster("isolator_hot") > Some(1.5), "{results}");

    let chart = fs::read_to_string(directory.path().join("chart.svg")).unwrap();
    let chart = roxmltree::Document::parse(&chart).unwrap();
    let texts: Vec<_> = chart.descendants().filter_map(|node| Some(node.text()?.trim())).collect();
    for label in programs.iter().chain(&FLOWS) {
        assert!(texts.contains(label), "no {label}: {texts:?}");
    }
}

#[tokio::test]
async fn a_signal_stops_it_and_nothing_is_left() {
    let directory = directory(json!({}));
    let state = state(directory.path());
    let mut command = isolator(directory.path());
    command.args(["bench", "--duration", "5m", "--svg", "chart.svg"]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let docker = docker::Bystander::new().await;
    let mut seen = BTreeSet::new();
    // What is measured beside the servers is always the plain Docker API.
    eventually("a container that is no server's", async || {
        seen = instances(&state).into_iter().collect();
        docker.has_one_of(child.id()).await
    })
    .await;
    assert_eq!(seen.len(), INSTANCES, "{seen:?}");
    send_signal(child.id(), "INT");
    let finished = child.wait_with_output().unwrap();
    let complaints = String::from_utf8_lossy(&finished.stderr);
    assert_eq!((finished.status.code(), &*finished.stdout), (Some(1), &b""[..]), "{complaints}");
    assert!(complaints.contains("stopped by signal 2"), "{complaints}");
    assert_nothing_left(directory.path(), &seen).await;
    assert!(!directory.path().join("chart.svg").exists());
}

#[tokio::test]
async fn a_program_without_its_library_is_left_out() {
    // Without the packages beside its standard library.
    let command = json!(["python3", "-S", "{file}"]);
    let directory = directory(json!({ "languageSettings": { "python": { "command": command } } }));
    let finished = bench(directory.path(), &["--duration", "1ms"]).await;
    assert_eq!(finished.code, Some(0), "{finished:?}");
    assert!(finished.stdout.contains("python, hello"), "{finished:?}");
    assert!(!finished.stdout.contains("pandas"), "{finished:?}");
    assert!(finished.stderr.contains("left out: python, import pandas"), "{finished:?}");
}

#[tokio::test]
async fn a_program_that_prints_something_else_is_an_error() {
    let command = json!(["cat", "{file}"]);
    let directory = directory(json!({ "languageSettings": { "python": { "command": command } } }));
    let finished = bench(directory.path(), &["python"]).await;
    assert_eq!((finished.code, finished.stdout.as_str()), (Some(1), ""), "{finished:?}");
    for part in ["python, hello", "print('hi')", "isolator run"] {
        assert!(finished.stderr.contains(part), "no {part}: {finished:?}");
    }
}

#[test]
fn what_is_missing_is_named_with_what_mends_it() {
    let missing = json!({ "python": { "image": "isolator-test.invalid/missing" } });
    for (settings, arguments, hint) in [
        (json!({}), &["cobol"][..], "use some of python"),
        (json!({}), &["go"], "use some of python"),
        (json!({}), &["--svg", "nowhere/chart.svg"], "nowhere/chart.svg can't be written"),
        (json!({ "languageSettings": missing }), &[], "isolator image pull python"),
    ] {
        let directory = directory(settings);
        let finished = run(directory.path(), &[&["bench"], arguments].concat(), "");
        assert_eq!((finished.code, finished.stdout.as_str()), (Some(1), ""), "{finished:?}");
        assert!(finished.stderr.contains(hint), "no {hint}: {finished:?}");
    }
}
