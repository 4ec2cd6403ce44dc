//! `isolator config`, manual pages and completions.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::common::engine::Kind;
use crate::common::server::instances;
use crate::common::{Finished, config, isolator, run, run_command, state, write_config};

/// A directory with a configuration for Python.
fn directory(more: Value) -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    write_config(directory.path(), &config(&["python"], more));
    directory
}

/// The output of `config check` for a configuration. The command leaves nothing behind.
fn check(directory: &Path) -> Finished {
    let finished = run(directory, &["config", "check"], "");
    if state(directory).exists() {
        assert_eq!(instances(&state(directory)), [""; 0]);
    }
    finished
}

#[test]
fn config_check_accepts_a_valid_configuration() {
    let directory = directory(json!({}));
    let finished = check(directory.path());
    assert_eq!(finished.code, Some(0), "{finished:?}");
    assert!(finished.stdout.contains("isolator_config.json: valid, with python"), "{finished:?}");

    let other = directory.path().join("other.json");
    let engine = json!({ "engine": { "kind": Kind::chosen().name() } });
    fs::write(&other, engine.to_string()).unwrap();
    let other = other.to_str().unwrap();
    let finished = run(directory.path(), &["--config", other, "config", "check"], "");
    assert!(finished.stdout.contains("go, javascript, python"), "{finished:?}");
}

#[test]
fn config_check_looks_at_tools_and_names_and_its_advice_has_the_options() {
    let directory = tempfile::tempdir().unwrap();
    let missing = json!({ "image": "isolator-test.invalid/missing" });
    let more = json!({
        "images": { "policy": "missing" },
        "languageSettings": { "python": missing, "pyhton": { "enabled": false } },
        "packages": {
            "sets": { "x": { "language": "python", "requirements": ["humanize"] } },
            "tools": { "uv": "/nowhere/uv" },
        },
    });
    fs::write(directory.path().join("my c.json"), config(&["python"], more).to_string()).unwrap();
    let finished = run(directory.path(), &["--config", "my c.json", "config", "check"], "");
    assert_eq!(finished.code, Some(0), "{finished:?}");
    for told in [
        "warning: packages.tools.uv: uv, which installs packages: /nowhere/uv: there is no such program",
        "warning: languageSettings.pyhton: there is no such language to switch off; did you mean `python`?",
        "run `isolator --config 'my c.json' image pull python`",
    ] {
        assert!(finished.stderr.contains(told), "no {told:?}: {finished:?}");
    }
    let own = json!({ "languageSettings": { "pyhton": { "cpus": 1 } } });
    write_config(directory.path(), &config(&["python"], own));
    let refused = check(directory.path());
    assert!(refused.stderr.contains("did you mean the language `python`?"), "{refused:?}");
}

#[test]
fn every_command_reports_an_invalid_configuration() {
    let directory = tempfile::tempdir().unwrap();
    write_config(directory.path(), &json!({ "defaultMemoryMB": 0, "pool": { "sise": 1 } }));
    let promised = "isolator_config.json:\n  \
         defaultMemoryMB: expected a whole number from 16 to 1048576, not 0\n  \
         pool.sise: there is no such key; did you mean `size`?\n";
    let finished = check(directory.path());
    assert_eq!((finished.code, finished.stdout.as_str()), (Some(1), ""), "{finished:?}");
    assert_eq!(finished.stderr, promised);
    for command in [&["serve"][..], &["run", "a.py"], &["image", "ls"]] {
        let refused = run(directory.path(), command, "");
        assert_eq!((refused.code, refused.stdout.as_str()), (Some(125), ""), "{command:?}");
        assert_eq!(refused.stderr, format!("isolator: {promised}"), "{command:?}");
    }
}

#[test]
fn an_unreadable_file_is_reported_with_its_source() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("latin1.json"), b"{\"promptsDir\": \"\xe9\"}").unwrap();
    for (file, why) in [
        ("missing.json", "does not exist"),
        (".", "is a folder; name the file in it (isolator_config.json)"),
        ("latin1.json", "is not UTF-8 text; save it as UTF-8"),
        ("/dev/zero", "can't be read: it is larger than 4194304 bytes"),
    ] {
        let option = run(directory.path(), &["--config", file, "config", "check"], "");
        let told = format!("isolator: {file} (named by --config) {why}\n");
        assert_eq!((option.code, option.stderr), (Some(125), told));
        let mut command = isolator(directory.path());
        let variable = run_command(command.arg("serve").env("ISOLATOR_CONFIG", file), "");
        let told = format!("isolator: {file} (named by ISOLATOR_CONFIG) {why}\n");
        assert_eq!((variable.code, variable.stderr), (Some(125), told));
    }
}

#[test]
fn config_check_examines_files_images_and_the_machine() {
    let missing = "isolator-test.invalid/missing";
    let language = json!({
        "image": missing, "extensions": [".py"], "command": ["x", "{file}"],
        "pool": { "size": 1000 },
        "preload": { "interpreter": "python", "modules": ["a"], "memoryMB": 1 << 20 },
    });
    let directory = directory(json!({
        "languageSettings": { "x": language },
        "http": { "tokens": "tokens", "tls": { "certificate": "c.pem", "key": "k.pem" } },
        "promptsDir": "snippets",
    }));
    fs::write(directory.path().join("tokens"), "me secret").unwrap();
    let finished = check(directory.path());
    assert_eq!((finished.code, finished.stdout.as_str()), (Some(1), ""), "{finished:?}");
    for told in [
        "warning: promptsDir: snippets can't be read, so there are no snippets",
        "warning: languageSettings.x.extensions: python has .py too",
        "  http.tokens: tokens, line 1: sha256:",
        "  http.tls: c.pem: No such file or directory",
        "  pool.size: 1001 waiting sandboxes can take",
        "  languageSettings.x.image: isolator-test.invalid/missing is missing, and images.policy is \
         \"never\"; run `isolator image pull x`",
    ] {
        assert!(finished.stderr.contains(told), "no {told:?}: {finished:?}");
    }
}

#[test]
fn optional_requirements_are_warnings() {
    let missing = "isolator-test.invalid/missing";
    let directory = directory(json!({
        "images": { "policy": "missing" },
        "languageSettings": { "python": { "image": missing } },
        "promptsDir": "snippets",
    }));
    fs::create_dir(directory.path().join("snippets")).unwrap();
    for name in ["a b.py", "good.py", "notes.txt"] {
        fs::write(directory.path().join("snippets").join(name), "").unwrap();
    }
    let finished = check(directory.path());
    assert_eq!(finished.code, Some(0), "{finished:?}");
    for told in [
        "warning: promptsDir: a b.py is not offered as a snippet: \"a b\" is not a valid snippet name: use \
         up to 64 letters, digits, - and _\n",
        "warning: languageSettings.python.image: isolator-test.invalid/missing is missing; run `isolator \
         image pull python`, or the server pulls it\n",
    ] {
        assert!(finished.stderr.contains(told), "no {told:?}: {finished:?}");
    }
    assert_eq!(finished.stderr.matches("promptsDir").count(), 1, "{finished:?}");

    let nowhere = json!({ "kind": "docker", "host": "unix:///nowhere/docker.sock" });
    write_config(directory.path(), &config(&["python"], json!({ "engine": nowhere })));
    let finished = check(directory.path());
    assert_eq!(finished.code, Some(0), "{finished:?}");
    assert!(finished.stderr.starts_with("warning: engine: "), "{finished:?}");
    assert!(finished.stderr.contains("`isolator doctor` says what to do"), "{finished:?}");
}

#[test]
fn config_check_reports_what_the_engine_lacks() {
    let directory = tempfile::tempdir().unwrap();
    let engine = json!({ "kind": "embedded", "runtime": "runsc" });
    let settings = json!({ "defaultNetworkMode": "bridge", "engine": engine });
    write_config(directory.path(), &config(&["python"], settings));
    let finished = check(directory.path());
    assert_eq!(finished.code, Some(1), "{finished:?}");
    for told in ["no network mode but \"none\"", "can't use the OCI runtime \"runsc\""] {
        assert_eq!(finished.stderr.matches(told).count(), 1, "{told}: {finished:?}");
    }
}

#[test]
fn variables_override_the_file_and_the_command_line_overrides_them() {
    let directory = directory(json!({}));
    let run_with = |variable: &str, value: &str, arguments: &[&str]| {
        run_command(isolator(directory.path()).args(arguments).env(variable, value), "")
    };
    let shown = run_with("ISOLATOR_POOL__SIZE", "4", &["config", "check", "--show"]);
    assert_eq!(shown.code, Some(0), "{shown:?}");
    for line in [
        "pool.size = 4  # ISOLATOR_POOL__SIZE\n",
        "languageSettings.python.pool.size = 4  # pool.size\n",
        "pool.hot = 0  # isolator_config.json\n",
        "languageSettings.go.enabled = false  # isolator_config.json\n",
        "limits.maxTimeout = \"5m\"  # default\n",
        "audit.maxMB = 64  # default, if audit.path is set\n",
    ] {
        assert!(shown.stdout.contains(line), "no {line:?}: {shown:?}");
    }
    let engine = ["--engine", "embedded", "config", "check", "--show"];
    let shown = run_with("ISOLATOR_ENGINE__KIND", "docker", &engine);
    assert!(shown.stdout.contains("engine.kind = \"embedded\"  # --engine\n"), "{shown:?}");

    let wrong = run_with("ISOLATOR_POOL__SIZ", "4", &["serve"]);
    let told = "isolator: isolator_config.json:\n  \
         ISOLATOR_POOL__SIZ: sets no key of the configuration; did you mean ISOLATOR_POOL__SIZE?\n";
    assert_eq!((wrong.code, wrong.stderr.as_str()), (Some(125), told));
}

#[test]
fn config_schema_is_a_json_schema_of_every_section() {
    let directory = tempfile::tempdir().unwrap();
    let finished = run(directory.path(), &["config", "schema"], "");
    assert_eq!(finished.code, Some(0));
    let schema: Value = serde_json::from_str(&finished.stdout).unwrap();
    assert!(schema["$schema"].as_str().is_some_and(|url| url.contains("json-schema.org")));
    for key in ["isolatorPath", "defaultMemoryMB", "languageSettings", "engine", "pool", "limits"] {
        assert!(schema["properties"][key].is_object(), "{key}");
    }
}

#[test]
fn config_init_writes_a_working_file_and_never_overwrites() {
    let directory = tempfile::tempdir().unwrap();
    let prompts = directory.path().join("prompts");
    fs::create_dir(&prompts).unwrap();
    fs::write(prompts.join("csv_summary.py"), "my own").unwrap();

    let finished = run(directory.path(), &["config", "init"], "");
    assert_eq!(finished.code, Some(0), "{finished:?}");
    assert_eq!(run(directory.path(), &["config", "check"], "").code, Some(0));
    let all = fs::read_dir(&prompts).unwrap().count();
    assert!(all > 5);
    // All snippets but one, and the file.
    assert_eq!(finished.stdout.lines().count(), all, "{finished:?}");
    assert!(finished.stdout.lines().all(|line| directory.path().join(line).is_file()));
    assert_eq!(fs::read_to_string(prompts.join("csv_summary.py")).unwrap(), "my own");
    let file = directory.path().join("isolator_config.json");
    for told in [
        "csv_summary.py already exists; it was left as it is",
        &format!("--config {}", file.display()),
        "set its \"enabled\" to false",
    ] {
        assert!(finished.stderr.contains(told), "no {told:?}: {finished:?}");
    }

    fs::write(&file, "{}").unwrap();
    fs::remove_file(prompts.join("json_shape.py")).unwrap();
    let again = run(directory.path(), &["config", "init", "."], "");
    let restored = (Some(0), "./prompts/json_shape.py\n");
    assert_eq!((again.code, again.stdout.as_str()), restored, "{again:?}");
    assert!(again.stderr.contains("isolator_config.json already exists; it was left as it is"));
    assert_eq!(again.stderr.lines().count(), 2, "{again:?}");
    assert_eq!(fs::read_to_string(file).unwrap(), "{}");
}

#[test]
fn man_writes_a_page_for_each_command() {
    let directory = tempfile::tempdir().unwrap();
    let finished = run(directory.path(), &["man", "pages"], "");
    assert_eq!(finished.code, Some(0), "{finished:?}");
    let pages = fs::read_dir(directory.path().join("pages")).unwrap();
    let mut names: Vec<_> =
        pages.map(|page| page.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    for name in [
        "isolator.1",
        "isolator-serve.1",
        "isolator-config-check.1",
        "isolator-gc.1",
        "isolator-session.1",
    ] {
        assert!(names.iter().any(|found| found == name), "{name}: {names:?}");
    }
    for name in names {
        let page = fs::read_to_string(directory.path().join("pages").join(&name)).unwrap();
        assert!(page.contains(&format!(".TH {} 1", name.trim_end_matches(".1"))), "{name}: {page}");
        for section in [".SH NAME", ".SH SYNOPSIS", ".SH OPTIONS"] {
            assert!(page.contains(section), "{name} has no {section}: {page}");
        }
    }
}

#[test]
fn a_closed_output_is_not_an_error() {
    let directory = directory(json!({}));
    for command in [
        &["--help"][..],
        &["completions", "bash"],
        &["completions", "zsh"],
        &["config", "schema"],
        &["config", "check"],
        &["config", "check", "--show"],
        &["config", "init", "new"],
        &["man", "pages"],
        &["token", "me"],
        &["image", "ls"],
        &["install", "cursor", "--print"],
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut child: Command = isolator(directory.path());
        child.args(command).stdin(Stdio::null()).stdout(writer).stderr(Stdio::piped());
        let output = child.output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{command:?}: {told}");
        assert!(!told.contains("panicked"), "{command:?}: {told}");
    }
}
