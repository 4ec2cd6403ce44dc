//! The commands, as an operator or a script calls them.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::Stdio;

use crate::common::engine::Kind;
use crate::common::{
    Finished, config, isolator, look, run, run_command, run_on_changed_machine, write_config,
};
use serde_json::{Value, json};
use tempfile::TempDir;

/// A directory with a configuration for Python.
fn directory(more: Value) -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    write_config(directory.path(), &config(&["python"], more));
    directory
}

/// Runs a command that uses the engine, and asserts that it leaves nothing there.
async fn run_on_engine(directory: &Path, arguments: &[&str], stdin: &str) -> Finished {
    let finished = run(directory, arguments, stdin);
    look(directory).await.assert_nothing_left_of(finished.process).await;
    finished
}

#[tokio::test]
async fn run_passes_output_files_variables_and_arguments_on() {
    let directory = directory(json!({}));
    let code = "import os, sys\n\
                print(os.path.basename(__file__), sys.argv[1:], os.environ['A'], os.environ['B'])\n\
                print(open('data.txt').read(), open('deep/other.bin', 'rb').read())\n\
                print('aside', file=sys.stderr)";
    fs::write(directory.path().join("program.py"), code).unwrap();
    fs::write(directory.path().join("data.txt"), "data").unwrap();
    fs::create_dir(directory.path().join("folder")).unwrap();
    fs::write(directory.path().join("folder/other.bin"), b"\xff\x00").unwrap();
    let arguments = [
        "run",
        "program.py",
        "--file",
        "data.txt",
        "--file",
        "deep=folder",
        "--env",
        "A=1",
        "--env",
        "B=x=y",
    ];
    // As with `python`, everything after the first argument of the program is its own.
    for (words, promised) in [
        (&["--", "-v", "two words"][..], "['-v', 'two words']"),
        (&["in.csv", "--memory", "--", "-v"], "['in.csv', '--memory', '--', '-v']"),
    ] {
        let finished = run_on_engine(directory.path(), &[&arguments[..], words].concat(), "").await;
        assert_eq!(finished.code, Some(0), "{finished:?}");
        let promised = format!("program.py {promised} 1 x=y\ndata b'\\xff\\x00'\n");
        assert_eq!(finished.stdout, promised);
        assert_eq!(finished.stderr, "aside\n");
    }
}

#[test]
fn run_reports_that_it_pulls_a_missing_image() {
    let directory = tempfile::tempdir().unwrap();
    let mut config = config(&["python"], json!({ "images": { "policy": "missing" } }));
    config["languageSettings"]["python"]["image"] = json!("127.0.0.1:1/none");
    write_config(directory.path(), &config);
    fs::write(directory.path().join("program.py"), "pass").unwrap();
    let finished = run(directory.path(), &["--engine", "embedded", "run", "program.py"], "");
    assert_eq!(finished.code, Some(125), "{finished:?}");
    let (announced, failed) = finished.stderr.split_once('\n').unwrap();
    assert!(
        announced.contains("image 127.0.0.1:1/none is pulled, which is done once"),
        "{finished:?}"
    );
    assert!(failed.contains("could not be pulled"), "{finished:?}");
}

#[tokio::test]
async fn run_reads_a_program_from_standard_input() {
    let directory = directory(json!({}));
    let arguments = ["run", "-", "--language", "python"];
    let finished = run_on_engine(directory.path(), &arguments, "print(6 * 7)").await;
    assert_eq!((finished.code, finished.stdout.as_str()), (Some(0), "42\n"), "{finished:?}");

    // What its markers say that it does not need here, it does without.
    let block = "# /// script\n# dependencies = [\"pywin32; os_name == 'nt'\"]\n# ///\nprint(1)";
    let finished = run_on_engine(directory.path(), &arguments, block).await;
    assert_eq!((finished.code, finished.stdout.as_str()), (Some(0), "1\n"), "{finished:?}");
    assert!(finished.stderr.contains("nothing of this is needed here"), "{finished:?}");
    let named = ["run", "-", "--language", "python", "--packages", "pywin32; os_name == 'nt'"];
    let finished = run_on_engine(directory.path(), &named, "print(2)").await;
    assert_eq!((finished.code, finished.stdout.as_str()), (Some(0), "2\n"), "{finished:?}");

    let unknown = run(directory.path(), &["run", "-"], "print(1)");
    assert_eq!(unknown.code, Some(125));
    assert!(unknown.stderr.contains("--language"), "{unknown:?}");
}

#[tokio::test]
async fn run_ends_with_the_program_s_exit_code() {
    let directory = directory(json!({}));
    for (code, expected) in
        [("exit(3)", 3), ("exit(255)", 255), ("import os; os.kill(os.getpid(), 11)", 128 + 11)]
    {
        let arguments = ["run", "-", "--language", "python"];
        let finished = run_on_engine(directory.path(), &arguments, code).await;
        assert_eq!(finished.code, Some(expected), "{finished:?}");
    }
}

#[tokio::test]
async fn run_ends_with_124_after_a_timeout() {
    let directory = directory(json!({}));
    // Any usual name of a language does.
    let arguments = ["run", "-", "--language", "py3", "--timeout", "1s"];
    let code = "import time; print('before', flush=True); time.sleep(600)";
    let finished = run_on_engine(directory.path(), &arguments, code).await;
    assert_eq!((finished.code, finished.stdout.as_str()), (Some(124), "before\n"));
    let promised = "timeout: still running after 1s and killed; give a longer --timeout (at most 5m) or do less";
    assert!(finished.stderr.contains(promised), "{finished:?}");
}

#[tokio::test]
async fn run_ends_with_125_if_the_sandbox_or_the_request_is_at_fault() {
    let directory = directory(json!({}));
    fs::write(directory.path().join("x.cob"), "").unwrap();
    for (arguments, hint) in [
        (vec!["run", "missing.py"], "missing.py"),
        (vec!["run", "x.cob"], "python"),
        (vec!["run", "-", "--language", "cobol"], "python"),
    ] {
        let finished = run_on_engine(directory.path(), &arguments, "").await;
        assert_eq!(finished.code, Some(125), "{arguments:?}: {finished:?}");
        assert!(finished.stderr.contains(hint), "{arguments:?}: {finished:?}");
        assert_eq!(finished.stdout, "", "{arguments:?}");
    }
}

#[tokio::test]
async fn run_passes_standard_input_and_saves_output_files() {
    let directory = directory(json!({}));
    let code = "import os, sys\n\
                print(sys.stdin.read(), end='')\n\
                os.mkdir('out')\n\
                open('out/a.bin', 'wb').write(bytes(range(256)))\n\
                open('b.txt', 'w').write('b')";
    fs::write(directory.path().join("program.py"), code).unwrap();
    let run = async |more: &[&str]| {
        let arguments = [&["run", "program.py"], more].concat();
        let finished = run_on_engine(directory.path(), &arguments, "our input\n").await;
        assert_eq!(finished.code, Some(0), "{finished:?}");
        finished
    };

    let kept = run(&["--out", "kept"]).await;
    assert_eq!(kept.stdout, "our input\n");
    let file = |name: &str| fs::read(directory.path().join("kept").join(name)).unwrap();
    assert_eq!((file("out/a.bin"), file("b.txt")), ((0..=255).collect(), b"b".to_vec()));
    assert!(kept.stderr.contains("are in kept"), "{kept:?}");
    let again = crate::common::run(directory.path(), &["run", "program.py", "--out", "kept"], "");
    assert_eq!(again.code, Some(125));
    assert!(again.stderr.contains("there are files in this folder"), "{again:?}");

    let left = run(&[]).await.stderr;
    assert!(left.contains("\"b.txt\", \"out/a.bin\"") && left.contains("--out"), "{left}");
    assert_eq!(run(&["--quiet"]).await.stderr, "");

    let printed = run(&["--json", "--quiet"]).await.stdout;
    let data: Value = serde_json::from_str(&printed).unwrap();
    assert_eq!((&data["status"], &data["stdout"]), (&json!("success"), &json!("our input\n")));
    assert_eq!(data["files"][0], json!({ "path": "b.txt", "size": 1 }));
    assert_eq!(data["receipt"]["start"], "cold");

    fs::create_dir(directory.path().join("prompts")).unwrap();
    let stored = "import sys; print('stored', sys.argv[1:])";
    fs::write(directory.path().join("prompts/stored.py"), stored).unwrap();
    // Units of memory are the usual ones.
    let arguments = ["run", "--memory", "64MB", "--snippet", "stored", "--", "-v", "x"];
    let stored = run_on_engine(directory.path(), &arguments, "").await;
    let said = (stored.stdout.as_str(), stored.stderr.as_str());
    assert_eq!(said, ("stored ['-v', 'x']\n", ""), "{stored:?}");
}

#[test]
fn invalid_command_lines_of_run_get_one_sentence() {
    let directory = directory(json!({}));
    fs::write(directory.path().join("a.py"), "").unwrap();
    fs::write(directory.path().join("latin.py"), b"# \xe9").unwrap();
    fs::create_dir(directory.path().join("folder")).unwrap();
    fs::write(directory.path().join("a.sh"), "").unwrap();
    fs::write(directory.path().join("plain"), "").unwrap();
    fs::write(directory.path().join("half"), vec![b'x'; 9 << 20]).unwrap();
    let cases: [(&[&str], &str); 22] = [
        (
            &[],
            "there is nothing to run: give the file of a program, - to read it from standard input, or --snippet NAME for a \
             stored one; isolator run --help has the options",
        ),
        (
            &["a.sh"],
            "\"a.sh\": no configured language has the extension \".sh\": name one with --language (python), or add it with \
             its image and command to languageSettings in isolator_config.json",
        ),
        (&["plain"], "\"plain\": it has no extension: name its language with --language (python)"),
        (
            &["a.py", "--memory", "16", "--file", "half"],
            "--file: files and standard input hold 9439232 bytes together, more than half of the memory limit of 16 MiB: \
             send less, or ask for more with --memory",
        ),
        (&["missing.py"], "missing.py: there is no such file or folder"),
        (&["folder"], "folder is a folder; give the file of the program"),
        (&["latin.py"], "latin.py: this is not a program in UTF-8"),
        (&["-"], "--language is required for a program from standard input: use one of python"),
        (&["a.cob"], "a.cob: there is no such file or folder"),
        (
            &["a.py", "--language", "cobol"],
            "--language: \"cobol\" is not a configured language: use one of python, or add it with its image and command to \
             languageSettings in isolator_config.json",
        ),
        (&["a.py", "--file", "none.txt"], "--file none.txt: there is no such file or folder"),
        (
            &["a.py", "--file", "../x=a.py"],
            "--file ../x=a.py: \"../x\" contains \"..\"; file names stay inside the workspace",
        ),
        (
            &["a.py", "--file", "/x=a.py"],
            "--file /x=a.py: \"/x\" is absolute; file names are relative to the working directory",
        ),
        (&["a.py", "--env", "A"], "--env A: write it as NAME=VALUE"),
        (&["a.py", "--env", "=1"], "--env : this is not the name of a variable"),
        (&["a.py", "--timeout", "1h"], "--timeout: \"1h\" is longer than the maximum of 5m"),
        (
            &["a.py", "--timeout", "soon"],
            "--timeout: \"soon\" is not a duration: write a number and a unit, such as 500ms, 45s, 5m, 2h or 90d",
        ),
        (&["a.py", "--memory", "1"], "--memory: 1 is not allowed: use 16 MiB to 1 GiB"),
        (&["a.py", "--memory", "9999"], "--memory: 9999 is not allowed: use 16 MiB to 1 GiB"),
        (&["a.py", "--cpus", "0"], "--cpus: 0 is not allowed: use 0.01 to 2 cores"),
        (&["--snippet", "none"], "--snippet: there is no snippet \"none\"; none is stored"),
        (&["a.py", "--out", "a.py"], "--out a.py: this is a file, not a folder"),
    ];
    for (arguments, expected) in cases {
        let finished = run(directory.path(), &[&["run"], arguments].concat(), "");
        assert_eq!(finished.code, Some(125), "{arguments:?}: {finished:?}");
        assert_eq!(finished.stderr, format!("isolator: {expected}\n"), "{arguments:?}");
        assert_eq!(finished.stdout, "", "{arguments:?}");
    }
}

#[tokio::test]
async fn doctor_passes_a_working_installation() {
    let directory = tempfile::tempdir().unwrap();
    write_config(directory.path(), &config(&["python", "javascript", "go"], json!({})));
    let finished = run_on_engine(directory.path(), &["doctor"], "").await;
    assert_eq!(finished.code, Some(0), "{finished:?}");
    for language in ["python", "javascript", "go"] {
        let line = format!("{language}: a sandbox works");
        assert!(finished.stdout.contains(&line), "{finished:?}");
    }
    assert!(finished.stdout.contains("everything is there"), "{finished:?}");
}

#[tokio::test]
async fn doctor_names_missing_requirements_with_fixes_and_checks_the_rest() {
    let image = "isolator-test.invalid/missing";
    let other = json!({ "image": image, "extensions": [".x"], "command": ["x", "{file}"] });
    let missing = directory(json!({ "languageSettings": { "other": other } }));
    fs::rename(missing.path().join("isolator_config.json"), missing.path().join("c.json")).unwrap();
    let finished = run_on_engine(missing.path(), &["--config", "c.json", "doctor"], "").await;
    assert_eq!(finished.code, Some(1), "{finished:?}");
    let promised =
        format!("MISSING  other: {image}\n           isolator --config c.json image pull other");
    for promised in [
        promised.as_str(),
        "python: a sandbox works",
        "\nhost\n",
        "\n1 thing(s) missing, ",
        "`isolator --config c.json config init ",
    ] {
        assert!(finished.stdout.contains(promised), "{promised}: {finished:?}");
    }
}

#[test]
fn doctor_makes_every_check_without_a_writable_state() {
    let directory = directory(json!({}));
    fs::create_dir(directory.path().join("state")).unwrap();
    let mount = "mount -t tmpfs -o ro disk state";
    let finished = run_on_changed_machine(directory.path(), mount, &["doctor"]);
    assert_eq!((finished.code, finished.stderr.as_str()), (Some(1), ""), "{finished:?}");
    let failures: Vec<_> =
        finished.stdout.lines().filter(|line| line.starts_with("  MISSING")).collect();
    assert_eq!(failures.len(), 1, "{finished:?}");
    assert!(failures[0].contains("can't be written: set XDG_STATE_HOME"), "{finished:?}");
    for promised in ["python: isolator/python", "python: a sandbox works", "\nhost\n"] {
        assert!(finished.stdout.contains(promised), "{promised}: {finished:?}");
    }
}

/// The lines of `doctor --production` about one check: its kind and name.
fn checked(stdout: &str) -> Vec<(&str, &str)> {
    let host = stdout.split_once("\nhost\n").map_or("", |(_, host)| host);
    let lines = host.lines().filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    lines.filter_map(|line| line.trim().split_once(':')?.0.split_once(' ')).collect()
}

#[tokio::test]
async fn doctor_checks_whether_a_host_is_set_up_for_hostile_programs() {
    let directory = directory(json!({}));
    let refused = run(directory.path(), &["doctor", "--production", "--accept", "luck"], "");
    assert_eq!(refused.code, Some(125), "{refused:?}");
    let names = refused.stderr.split("possible values: ").nth(1).unwrap();
    let names: Vec<_> = names.split(']').next().unwrap().split(", ").collect();
    assert!(names.len() > 20, "{names:?}");

    let finished = run_on_engine(directory.path(), &["doctor", "--production"], "").await;
    let found = checked(&finished.stdout);
    let is_docker = Kind::chosen() == Kind::Docker;
    for name in names {
        let is_expected = match name {
            "other-machine" => false,
            "remapped-users" | "security-module" => is_docker,
            _ => true,
        };
        let times = found.iter().filter(|(_, it)| it.trim() == name).count();
        assert_eq!(times, usize::from(is_expected), "{name}: {finished:?}");
    }
    let bad: Vec<_> =
        found.iter().filter(|(kind, _)| *kind != "ok").map(|(_, name)| name.trim()).collect();
    assert_eq!(finished.code, Some(i32::from(!bad.is_empty())), "{finished:?}");
    assert!(finished.stdout.contains("everything is there"), "{finished:?}");

    let mut arguments = vec!["doctor", "--production"];
    arguments.extend(bad.iter().flat_map(|name| ["--accept", name]));
    let accepted = run_on_engine(directory.path(), &arguments, "").await;
    assert_eq!(accepted.code, Some(0), "{accepted:?}");
    let again = checked(&accepted.stdout);
    assert_eq!(again.iter().filter(|(kind, _)| *kind == "accepted").count(), bad.len());
}

#[test]
fn doctor_warns_of_core_dumps_that_start_a_program_on_the_host() {
    let directory = directory(json!({}));
    fs::write(directory.path().join("pattern"), "|/usr/lib/collector %P\n").unwrap();
    let mount = "mount --bind pattern /proc/sys/kernel/core_pattern";
    let doctor = |more: &[&str]| {
        let arguments: Vec<_> = ["doctor"].iter().chain(more).copied().collect();
        run_on_changed_machine(directory.path(), mount, &arguments)
    };
    let plain = doctor(&[]);
    assert_eq!(plain.code, Some(0), "{plain:?}");
    let warning = "  warning  a program that crashes can start a program on the host";
    assert!(plain.stdout.contains(warning), "{plain:?}");
    assert!(plain.stdout.contains("sysctl -w kernel.core_pattern=core"), "{plain:?}");
    let warnings = plain.stdout.matches("\n  warning  ").count();
    let told = format!("\neverything is there, {warnings} warning(s)\n");
    assert!(plain.stdout.ends_with(&told), "{plain:?}");

    let strict = doctor(&["--production"]);
    assert_eq!(strict.code, Some(1), "{strict:?}");
    assert!(checked(&strict.stdout).contains(&("warning", " core-dumps")), "{strict:?}");
}

#[test]
fn image_ls_lists_present_and_missing_images() {
    let image = "isolator-test.invalid/missing";
    let directory = directory(json!({ "languageSettings": { "other": {
        "image": image, "extensions": [".x"], "command": ["x", "{file}"],
    } } }));
    let finished = run(directory.path(), &["image", "ls"], "");
    assert_eq!(finished.code, Some(0), "{finished:?}");
    let line = |start: &str| {
        let line = finished.stdout.lines().find(|line| line.starts_with(start));
        line.unwrap_or_else(|| panic!("{finished:?}")).split_whitespace().collect::<Vec<_>>()
    };
    assert_eq!(line("LANGUAGE"), ["LANGUAGE", "IMAGE", "SIZE", "DIGEST"]);
    let python = line("python");
    assert_eq!(python[1], "isolator/python");
    assert!(python.last().unwrap().starts_with("sha256:"), "{python:?}");
    assert_eq!(line("other"), ["other", image, "-", "missing"]);
}

#[test]
fn image_commands_reject_invalid_requests() {
    let directory = directory(json!({}));
    let built = run(directory.path(), &["image", "pull", "python"], "");
    assert_eq!(built.code, Some(125), "{built:?}");
    assert!(built.stderr.contains("isolator image build python"), "{built:?}");
    let unknown = run(directory.path(), &["image", "build", "cobol"], "");
    assert_eq!(unknown.code, Some(125), "{unknown:?}");
    assert!(unknown.stderr.contains("python"), "{unknown:?}");
}

#[test]
fn completions_are_printed_for_the_shells() {
    let directory = tempfile::tempdir().unwrap();
    for shell in ["bash", "zsh", "fish"] {
        let finished = run(directory.path(), &["completions", shell], "");
        assert_eq!(finished.code, Some(0));
        assert!(finished.stdout.contains("isolator"), "{shell}");
        assert!(finished.stdout.contains("doctor"), "{shell}");
    }
    assert_ne!(run(directory.path(), &["completions", "cmd"], "").code, Some(0));
}

#[test]
fn invalid_command_lines_are_explained() {
    let directory = tempfile::tempdir().unwrap();
    // A program could end with 2 by itself.
    for arguments in
        [&["frobnicate"][..], &["run", "--memroy", "1"], &["--engine", "podmann", "doctor"], &[]]
    {
        let finished = run(directory.path(), arguments, "");
        assert_eq!(finished.code, Some(125), "{arguments:?}");
        assert!(finished.stderr.contains("--help"), "{arguments:?}: {finished:?}");
    }
    let bench = run(directory.path(), &["bench"], "");
    assert!(bench.stderr.contains("a program of its own: isolator-bench"), "{bench:?}");
    let size = run(directory.path(), &["run", "--memory", "64XB", "a.py"], "");
    assert!(size.stderr.contains("one with a unit, such as 512MB or 1.5G"), "{size:?}");
    let help = run(directory.path(), &["run", "-h"], "").stdout;
    let (own, of_all) = help.split_once("\nOptions of all commands:\n").unwrap();
    assert!(own.contains("--memory") && !own.contains("--engine"), "{help}");
    assert!(of_all.contains("--engine") && of_all.contains("--config"), "{help}");
    let version = run(directory.path(), &["--version"], "");
    assert!(version.stdout.starts_with("isolator "), "{version:?}");
}

#[tokio::test]
async fn serve_writes_nothing_but_the_protocol_to_standard_output() {
    let directory = directory(json!({}));
    let mut command = isolator(directory.path());
    let mut child = command
        .arg("serve")
        .env("RUST_LOG", "trace")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(fs::File::create(directory.path().join("log")).unwrap())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut read = || {
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        let message: Value = serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line}"));
        assert_eq!(message["jsonrpc"], "2.0", "{line}");
        message
    };
    let hello = json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": "2025-06-18", "capabilities": {},
        "clientInfo": { "name": "by-hand", "version": "1" },
    } });
    writeln!(input, "{hello}").unwrap();
    assert_eq!(read()["result"]["serverInfo"]["name"], "isolator");
    writeln!(input, r#"{{"jsonrpc":"2.0","method":"notifications/initialized"}}"#).unwrap();
    let call = json!({ "jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {
        "name": "execute_code",
        "arguments": { "language": "python", "entrypoint_code": "print('hello')" },
    } });
    writeln!(input, "{call}").unwrap();
    assert_eq!(read()["result"]["structuredContent"]["stdout"], "hello\n");
    drop(input);

    let mut rest = String::new();
    output.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "");
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let log = fs::read_to_string(directory.path().join("log")).unwrap();
    assert!(log.contains("INFO") && log.contains("using the engine"), "{log:.2000}");
    look(directory.path()).await.assert_nothing_left_of(child.id()).await;
}

#[tokio::test]
async fn serve_without_a_client_ends_and_leaves_nothing() {
    let directory = directory(json!({}));
    let mut command = isolator(directory.path());
    let finished = run_command(command.arg("serve"), "");
    assert_eq!(finished.stdout, "");
    look(directory.path()).await.assert_nothing_left_of(finished.process).await;
}
