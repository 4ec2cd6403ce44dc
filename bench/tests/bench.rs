//! `isolator-bench`, run against both kinds of engine.

#[path = "../../tests/it/common/mod.rs"]
mod common;

use std::collections::BTreeSet;
use std::fs;
use std::ops::RangeInclusive;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::common::engine::{Kind, docker};
use crate::common::server::{instances, send_signal};
use crate::common::{Finished, config, eventually, prepared, run_command, state, write_config};
use serde_json::{Value, json};
use tempfile::TempDir;

const PLAIN: [&str; 2] = ["docker API, cold", "docker API, naive warm"];
const DOCKER: [&str; 3] =
    ["isolator on docker, cold", "isolator on docker, paused", "isolator on docker, hot"];
const EMBEDDED: [&str; 3] =
    ["isolator embedded, cold", "isolator embedded, paused", "isolator embedded, hot"];

/// On each engine that is measured: the command itself, and a server for each kind of pool.
const INSTANCES: usize = 4;

/// On each engine: a server whose throughput is measured.
const MORE_INSTANCES: usize = 1;

/// A Python without the packages beside its standard library, so that only one program is measured.
const BARE: [&str; 3] = ["python3", "-S", "{file}"];

/// A directory with a configuration for Python on Docker.
fn directory(more: Value) -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    let mut config = config(&["python"], more);
    config["engine"]["kind"] = json!("docker");
    write_config(directory.path(), &config);
    directory
}

/// The program, with nothing of the tester's own configuration.
fn isolator_bench(directory: &Path) -> Command {
    prepared(Command::new(env!("CARGO_BIN_EXE_isolator-bench")), directory)
}

/// Runs `isolator-bench` on a machine where no Docker answers.
async fn without_docker(directory: &TempDir, arguments: &[&str]) -> Finished {
    let mut command = isolator_bench(directory.path());
    command.env("DOCKER_HOST", "unix:///nowhere/docker.sock");
    command.args(["--engine", "auto"]).args(arguments);
    let instances = INSTANCES + MORE_INSTANCES;
    // The one that looks for Docker is gone within milliseconds, seen or not.
    bench_with(directory.path(), command, instances..=instances + 1).await
}

/// Runs a command that measures with so many instances, and asserts that none leaves anything.
async fn bench_with(
    directory: &Path,
    mut command: Command,
    expected: RangeInclusive<usize>,
) -> Finished {
    let mut seen = BTreeSet::new();
    let running = tokio::task::spawn_blocking(move || run_command(&mut command, ""));
    while !running.is_finished() {
        seen.extend(instances(&state(directory)));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let finished = running.await.unwrap();
    assert!(expected.contains(&seen.len()), "{expected:?}: {seen:?}: {finished:?}");
    assert_nothing_left(directory, &seen).await;
    assert_eq!(instances(&state(directory)), [""; 0]);
    finished
}

/// Asserts that instances have left nothing on any engine.
async fn assert_nothing_left(directory: &Path, instances: &BTreeSet<String>) {
    for kind in [Kind::Docker, Kind::Embedded] {
        let engine = kind.look(&state(directory)).await;
        for instance in instances {
            engine.assert_nothing_left(instance).await;
        }
    }
}

/// The scenarios that a finished command shows, of all there are.
fn scenarios(finished: &Finished) -> Vec<&'static str> {
    let all = [&PLAIN[..], &DOCKER, &EMBEDDED].concat();
    // In the table they are indented.
    all.into_iter()
        .filter(|scenario| finished.stdout.contains(&format!("\n  {scenario} ")))
        .collect()
}

#[tokio::test]
async fn every_scenario_is_measured_and_shown() {
    let directory = directory(json!({}));
    let mut command = isolator_bench(directory.path());
    command.args(["--engine", "auto", "python", "--duration", "8s"]);
    command.args(["--svg", "chart.svg", "--json", "all.json"]);
    let instances = 2 * (INSTANCES + MORE_INSTANCES);
    let finished = bench_with(directory.path(), command, instances..=instances).await;
    assert_eq!(finished.code, Some(0), "{finished:?}");

    let programs = ["python, hello", "python, import pandas"];
    let all_scenarios = [&PLAIN[..], &DOCKER, &EMBEDDED].concat();
    assert_eq!(scenarios(&finished), all_scenarios, "{finished:?}");
    let heads = ["p50 ms", "× faster than cold", "requests/s", "× more than first"];
    let engines = ["Linux", "Docker Engine", "embedded engine"];
    for shown in programs.iter().chain(&heads).chain(&engines) {
        assert!(finished.stdout.contains(shown), "no {shown}: {finished:?}");
    }
    assert!(!finished.stderr.contains("left out"), "{finished:?}");

    let results = fs::read_to_string(directory.path().join("all.json")).unwrap();
    let results: Value = serde_json::from_str(&results).unwrap();
    let rows = results["rows"].as_array().unwrap();
    assert_eq!(rows.len(), programs.len() * all_scenarios.len());
    for row in rows {
        let samples = row["samples_ms"].as_array().unwrap();
        assert!(!samples.is_empty() && row["n"] == samples.len(), "{row}");
        let [min, median, max] = ["min_ms", "p50_ms", "max_ms"].map(|name| row[name].as_f64());
        assert!(Some(0.0) < min && min <= median && median <= max, "{row}");
    }
    let faster = |scenario| {
        let row = rows.iter().find(|row| row["program"] == programs[0] && row["flow"] == scenario);
        row.and_then(|row| row["times_faster"].as_f64())
    };
    assert_eq!(faster("docker_cold"), Some(1.0));
    // It is several times; a busy machine must not fail the test.
    assert!(faster("isolator_hot") > Some(1.5), "{results}");
    assert!(faster("embedded_hot") > Some(1.5), "{results}");

    let throughput = &results["throughput"];
    assert_eq!((&throughput["program"], &throughput["clients"]), (&json!(programs[0]), &json!(4)));
    let rates = throughput["rows"].as_array().unwrap();
    let contenders: Vec<_> = rates.iter().map(|rate| &rate["contender"]).collect();
    assert_eq!(contenders, ["docker_cold", "isolator", "embedded"]);
    for rate in rates {
        assert!(rate["n"].as_u64() >= Some(8), "four clients in two slices: {rate}");
        assert!(rate["per_second"].as_f64() > Some(0.0), "{rate}");
        assert!(rate["slices_per_second"].as_array().unwrap().len() >= 2, "{rate}");
    }

    let mixed = &results["mixed"];
    assert_eq!(mixed["program"], "all programs in turn");
    assert_eq!(mixed["rows"].as_array().unwrap().len(), contenders.len(), "{mixed}");
    // Larger ones come only if there is time.
    let bursts = results["bursts"].as_array().unwrap();
    let of_one = bursts.iter().filter(|burst| burst["n"] == 1 && burst["program"] == programs[0]);
    let of_one: Vec<_> = of_one.map(|burst| &burst["contender"]).collect();
    assert_eq!(of_one, contenders, "{bursts:?}");

    let [waiting] = &results["waiting"].as_array().unwrap()[..] else { panic!("{results}") };
    assert_eq!((&waiting["contender"], &waiting["sandboxes"]), (&json!("embedded"), &json!(1)));
    for what in ["bytes", "templates_bytes"] {
        assert!(waiting[what].as_u64() > Some(1 << 20), "{waiting}");
    }

    let chart = fs::read_to_string(directory.path().join("chart.svg")).unwrap();
    let chart = roxmltree::Document::parse(&chart).unwrap();
    let texts: Vec<_> = chart.descendants().filter_map(|node| Some(node.text()?.trim())).collect();
    for label in programs.iter().chain(&all_scenarios) {
        assert!(texts.contains(label), "no {label}: {texts:?}");
    }
    assert!(!texts.iter().any(|text| text.contains("requests")), "{texts:?}");
}

#[tokio::test]
async fn an_engine_that_is_asked_for_is_measured_alone_or_beside_the_plain_docker_api() {
    let directory = directory(json!({ "languageSettings": { "python": { "command": BARE } } }));
    for (engine, expected, instances) in [
        ("docker", [&PLAIN[..], &DOCKER].concat(), INSTANCES + MORE_INSTANCES),
        // One more is the command itself on Docker.
        ("embedded", [&PLAIN[..], &EMBEDDED].concat(), INSTANCES + MORE_INSTANCES + 1),
    ] {
        let mut command = isolator_bench(directory.path());
        command.args(["--engine", engine, "--duration", "1ms"]);
        let finished = bench_with(directory.path(), command, instances..=instances).await;
        assert_eq!(finished.code, Some(0), "{finished:?}");
        assert_eq!(scenarios(&finished), expected, "{finished:?}");
        let machine = finished.stdout.lines().last().unwrap();
        assert_eq!(machine.contains("embedded engine"), engine == "embedded", "{machine}");
    }
}

#[tokio::test]
async fn without_docker_the_embedded_engine_is_measured_and_what_is_missing_is_told() {
    let directory = directory(json!({}));
    let finished = without_docker(&directory, &["--duration", "1ms"]).await;
    assert_eq!(finished.code, Some(0), "{finished:?}");
    assert_eq!(scenarios(&finished), EMBEDDED, "{finished:?}");
    assert!(finished.stderr.contains(" instead of 1ms: "), "{finished:?}");
    assert!(finished.stderr.contains("left out: docker: "), "{finished:?}");
    assert!(finished.stderr.contains("/nowhere/docker.sock"), "{finished:?}");
    let compared =
        "python, hello: Docker was not measured; × faster is than isolator embedded, cold";
    assert!(finished.stdout.contains(compared), "{finished:?}");
    assert!(!finished.stdout.contains("docker API"), "{finished:?}");
}

#[tokio::test]
async fn paths_in_the_configuration_may_be_relative_and_its_tools_of_another_language() {
    let directory = directory(json!({
        "languageSettings": { "python": { "command": BARE }, "javascript": { "enabled": true } },
        "policies": { "folder": "rules", "apply": { "python": ["own"] } },
        "tools": { "testCode": { "enabled": true, "language": "javascript" } },
    }));
    let rule = "id: no-eval\nlanguage: python\nmessage: no\nrule:\n  pattern: eval($A)\n";
    fs::create_dir(directory.path().join("rules")).unwrap();
    fs::write(directory.path().join("rules/own.yml"), rule).unwrap();
    let finished = without_docker(&directory, &["python", "--duration", "1ms"]).await;
    assert_eq!(finished.code, Some(0), "{finished:?}");
    // A program without its library is left out.
    assert!(finished.stdout.contains("python, hello"), "{finished:?}");
    assert!(!finished.stdout.contains("pandas"), "{finished:?}");
    assert!(finished.stderr.contains("left out: python, import pandas"), "{finished:?}");
}

#[tokio::test]
async fn a_signal_stops_it_and_nothing_is_left() {
    let directory = directory(json!({}));
    let state = state(directory.path());
    let mut command = isolator_bench(directory.path());
    command.args(["--duration", "5m", "--svg", "chart.svg"]);
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
    let ended = (finished.status.code(), &*finished.stdout);
    assert_eq!(ended, (Some(128 + 2), &b""[..]), "{complaints}");
    assert!(complaints.contains("stopped by signal 2"), "{complaints}");
    assert_nothing_left(directory.path(), &seen).await;
    assert!(!directory.path().join("chart.svg").exists());
}

#[tokio::test]
async fn a_program_that_prints_something_else_is_an_error() {
    let command = json!(["cat", "{file}"]);
    let directory = directory(json!({ "languageSettings": { "python": { "command": command } } }));
    let mut command = isolator_bench(directory.path());
    command.arg("python");
    // It is found out before throughput has its turn.
    let finished = bench_with(directory.path(), command, INSTANCES..=INSTANCES).await;
    assert_eq!((finished.code, finished.stdout.as_str()), (Some(125), ""), "{finished:?}");
    for part in ["python, hello", "print('hi')", "isolator run"] {
        assert!(finished.stderr.contains(part), "no {part}: {finished:?}");
    }
}

#[test]
fn missing_requirements_are_named_with_a_remedy() {
    let missing = json!({ "python": { "image": "isolator-test.invalid/missing" } });
    for (settings, arguments, hint) in [
        (json!({}), &["cobol"][..], "use some of python"),
        (json!({}), &["go"], "use some of python"),
        (json!({}), &["--svg", "nowhere/chart.svg"], "nowhere/chart.svg can't be written"),
        (json!({ "languageSettings": missing }), &[], "isolator image pull python"),
        (json!({ "engine": { "host": "unix:///nowhere/nobody.sock" } }), &[], "isolator doctor"),
        (json!({}), &["--duration", "30M"], "write m for minutes"),
    ] {
        let directory = directory(settings);
        let finished = run_command(isolator_bench(directory.path()).args(arguments), "");
        assert_eq!((finished.code, finished.stdout.as_str()), (Some(125), ""), "{finished:?}");
        assert!(finished.stderr.contains(hint), "no {hint}: {finished:?}");
    }
}
