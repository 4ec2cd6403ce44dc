//! Helpers for the tests of the binary: a running server with a client, and a view of the engine.
#![allow(dead_code, reason = "each test file uses a part of it")]

pub(crate) mod answer;
pub(crate) mod client;
pub(crate) mod engine;
pub(crate) mod process;
pub(crate) mod server;

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use engine::{Engine, Kind};

/// A variable in the server's environment that no other process may see.
pub(crate) const OF_THE_SERVER: (&str, &str) = ("OF_THE_SERVER", "for nobody else");

/// Longest wait for a condition. Far more than any needs: a busy machine is slow, not broken.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// Waits until `condition` holds.
pub(crate) async fn eventually(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let began = Instant::now();
    while !condition().await {
        assert!(began.elapsed() < PATIENCE, "still waiting after {PATIENCE:?}: {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// A configuration with these languages only, one paused sandbox each, and `more` laid over it.
pub(crate) fn config(languages: &[&str], more: Value) -> Value {
    let mut config = json!({
        // Half a core, the default, would only make the tests slower.
        "defaultCpus": 1,
        "languageSettings": {},
        "engine": { "kind": Kind::chosen().name() },
        "images": { "policy": "never" },
        "pool": { "size": 1, "hot": 0 },
    });
    for language in ["python", "javascript", "go"] {
        if !languages.contains(&language) {
            config["languageSettings"][language] = json!({ "enabled": false });
        }
    }
    lay_over(&mut config, more);
    config
}

fn lay_over(base: &mut Value, more: Value) {
    match (base, more) {
        (Value::Object(base), Value::Object(more)) => {
            for (key, value) in more {
                lay_over(base.entry(key).or_insert(Value::Null), value);
            }
        }
        (base, more) => *base = more,
    }
}

/// The binary, with nothing of the tester's own configuration.
pub(crate) fn isolator(directory: &Path) -> Command {
    prepared(Command::new(binary()), directory)
}

/// The program that is tested.
pub(crate) fn binary() -> PathBuf {
    // Tests of other packages are built next to it.
    let binary = option_env!("CARGO_BIN_EXE_isolator").map(PathBuf::from);
    binary.unwrap_or_else(|| {
        std::env::current_exe()
            .expect("a path")
            .ancestors()
            .nth(2)
            .expect("a folder")
            .join("isolator")
    })
}

/// A command with nothing of the tester's own configuration.
pub(crate) fn prepared(mut command: Command, directory: &Path) -> Command {
    command
        .current_dir(directory)
        .env("XDG_STATE_HOME", state(directory))
        .env("XDG_CONFIG_HOME", directory.join("config"))
        .env("XDG_RUNTIME_DIR", directory.join("runtime"))
        .env(OF_THE_SERVER.0, OF_THE_SERVER.1)
        .env_remove("ISOLATOR_CONFIG")
        .env_remove("RUST_LOG");
    command
}

/// Where the binary keeps its state.
pub(crate) fn state(directory: &Path) -> PathBuf {
    directory.join("state")
}

/// A look at the chosen engine, for what the binary does in `directory`.
pub(crate) async fn look(directory: &Path) -> Box<dyn Engine> {
    Kind::chosen().look(&state(directory)).await
}

/// The output and the end of a command.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) process: u32,
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// Runs the binary in `directory` to its end, with `stdin` as its input.
pub(crate) fn run(directory: &Path, arguments: &[&str], stdin: impl AsRef<[u8]>) -> Finished {
    run_command(isolator(directory).args(arguments), stdin)
}

/// Runs the binary in `directory`, on a machine whose files a shell command has changed by mounts: no other process sees
/// these. `prepare` finds `directory` as its working directory.
pub(crate) fn run_on_changed_machine(
    directory: &Path,
    prepare: &str,
    arguments: &[&str],
) -> Finished {
    let binary = isolator(directory);
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "sh", "-c", &format!("{prepare} && exec \"$@\""), "sh"])
        .arg(binary.get_program())
        .args(arguments)
        .current_dir(directory)
        .env_remove("DOCKER_HOST");
    for (name, value) in binary.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    run_command(&mut command, "")
}

/// Runs a command to its end, with `stdin` as its input.
pub(crate) fn run_command(command: &mut Command, stdin: impl AsRef<[u8]>) -> Finished {
    use std::io::Write;
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the command starts");
    let process = child.id();
    // A command that ends without reading leaves a broken pipe, which is its right.
    let _ = child.stdin.take().expect("it is piped").write_all(stdin.as_ref());
    let Output { status, stdout, stderr } = child.wait_with_output().expect("it can be waited for");
    Finished {
        process,
        code: status.code(),
        stdout: String::from_utf8_lossy(&stdout).into_owned(),
        stderr: String::from_utf8_lossy(&stderr).into_owned(),
    }
}

/// Writes a configuration where the binary looks for it first.
pub(crate) fn write_config(directory: &Path, config: &Value) {
    std::fs::write(directory.join("isolator_config.json"), config.to_string()).expect("writable");
}

/// A value as far as a failed test needs to show it.
pub(crate) fn shown(value: &Value) -> String {
    value.to_string().chars().take(300).collect()
}
