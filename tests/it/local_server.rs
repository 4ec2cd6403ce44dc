//! `isolator run` in a running server: one of the same user that it finds, or one that it is told.

use std::fs::{self, Permissions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::common::engine::State;
use crate::common::server::{Server, send_signal};
use crate::common::{Finished, eventually, isolator, run_command, write_config};
use serde_json::{Value, json};

/// The user of no one's files.
const NOBODY: u32 = 65534;

async fn start() -> Server {
    let server = Server::with("python", json!({ "pool": { "size": 2 } })).await;
    server.wait_until_ready().await;
    server
}

/// The folder of the sockets. Servers of tests have their own folder, whatever the tester's is.
fn folder(server: &Server) -> PathBuf {
    server.directory().join("runtime/isolator")
}

fn socket(server: &Server) -> PathBuf {
    folder(server).join(format!("{}.sock", server.process().pid))
}

/// Runs a program, which comes on standard input, unless there is a file.
fn run(directory: &Path, arguments: &[&str], stdin: impl AsRef<[u8]>) -> Finished {
    run_command(isolator(directory).arg("run").args(arguments), stdin)
}

const STDIN: [&str; 3] = ["-", "--language", "python"];

/// How a program got its sandbox.
fn start_of(directory: &Path, arguments: &[&str]) -> String {
    let finished = run(directory, &[&STDIN[..], arguments, &["--json"]].concat(), "print(6 * 7)");
    assert_eq!(finished.code, Some(0), "{finished:?}");
    let data: Value = serde_json::from_str(&finished.stdout).unwrap();
    assert_eq!(data["stdout"], "42\n", "{data}");
    data["receipt"]["start"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_program_runs_in_the_server_and_shows_the_same_as_without() {
    let server = start().await;
    let directory = server.directory();
    let code = "import os, sys\n\
                sys.stdout.buffer.write(sys.stdin.buffer.read() + b'\\xfe')\n\
                print(sys.argv[1:], os.environ['A'], file=sys.stderr)\n\
                open('left.bin', 'wb').write(b'\\xff\\x00')\n\
                exit(3)";
    fs::write(directory.join("program.py"), code).unwrap();
    for (server_option, out) in [(&[][..], "one"), (&["--server", "none"], "two")] {
        let arguments = ["--env", "A=1", "--out", out, "program.py", "x y"];
        let mut command = isolator(directory);
        command.arg("run").args(server_option).args(arguments);
        let mut child = command
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"\xff\n").unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!((output.status.code(), output.stdout), (Some(3), b"\xff\n\xfe".to_vec()));
        let promised = format!("['x y'] 1\nisolator: files that the program left are in {out}\n");
        assert_eq!(String::from_utf8_lossy(&output.stderr), promised);
        assert_eq!(fs::read(directory.join(out).join("left.bin")).unwrap(), b"\xff\x00");
    }
    server.wait_until_ready().await;
    assert_eq!(start_of(directory, &[]), "warm");
    let at = socket(&server);
    server.wait_until_ready().await;
    assert_eq!(start_of(directory, &["--server", at.to_str().unwrap()]), "warm");
    server.stop().await;
    assert!(!at.exists());
}

#[tokio::test]
async fn only_a_server_with_the_same_configuration_is_found() {
    let server = start().await;
    let directory = server.directory();
    let used = directory.join("isolator_config.json");
    let text = fs::read_to_string(&used).unwrap();
    assert_eq!(start_of(directory, &["--server", "none"]), "cold");
    let mut other: Value = serde_json::from_str(&text).unwrap();
    other["defaultMemoryMB"] = json!(200);
    write_config(directory, &other);
    assert_eq!(start_of(directory, &[]), "cold");
    fs::write(&used, text).unwrap();
    assert_eq!(start_of(directory, &[]), "warm");

    let missing = run(directory, &[&STDIN[..], &["--server", "/nowhere.sock"]].concat(), "1");
    assert_eq!((missing.code, missing.stdout.as_str()), (Some(125), ""), "{missing:?}");
    assert!(missing.stderr.contains("the server at /nowhere.sock can't be reached"), "{missing:?}");
    server.stop().await;
}

#[tokio::test]
async fn a_server_with_another_policy_in_the_same_file_is_not_used() {
    let policies = tempfile::tempdir().unwrap();
    let write = |name: &str| {
        let rule = format!(
            "id: no-{name}\nlanguage: Python\nmessage: {name} is not allowed\nrule: {{ pattern: {name}($A) }}\n"
        );
        fs::write(policies.path().join("own.yml"), rule).unwrap();
    };
    write("eval");
    let settings = json!({
        "pool": { "size": 2 },
        "policies": { "folder": policies.path(), "apply": { "python": ["own"] } },
    });
    let server = Server::with("python", settings).await;
    server.wait_until_ready().await;
    assert_eq!(start_of(server.directory(), &[]), "warm");
    write("print");
    let refused = run(server.directory(), &STDIN, "print(42)");
    assert_eq!((refused.code, refused.stdout.as_str()), (Some(125), ""), "{refused:?}");
    assert!(refused.stderr.contains("print is not allowed"), "{refused:?}");
    server.stop().await;
}

#[tokio::test]
async fn a_server_that_hangs_is_not_waited_for() {
    let server = start().await;
    send_signal(server.process().pid, "STOP");
    let start = start_of(server.directory(), &[]);
    send_signal(server.process().pid, "CONT");
    assert_eq!(start, "cold");
    assert_eq!(start_of(server.directory(), &[]), "warm");
    server.stop().await;
}

#[tokio::test]
async fn commands_for_which_a_server_has_no_connection_run_by_themselves() {
    let server = start().await;
    let connect = || UnixStream::connect(socket(&server)).unwrap();
    let connected: Vec<_> = (0..64).map(|_| connect()).collect();
    assert_eq!(start_of(server.directory(), &[]), "cold");
    let mut another = connect();
    another.write_all(b"OPTIONS /mcp HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
    let mut answer = [0; 12];
    another.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"HTTP/1.1 503");
    drop(connected);

    let mut children = Vec::new();
    for _ in 0..80 {
        let mut command = isolator(server.directory());
        command.args(["run", "-", "--language", "python"]);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(b"print(6 * 7)").unwrap();
        children.push(child);
    }
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "42\n", "{output:?}");
    }
    server.stop().await;
}

#[tokio::test]
async fn errors_are_in_the_words_of_the_command_line() {
    let server = start().await;
    let at = socket(&server);
    for (arguments, promised) in [
        (&["--timeout", "9000"][..], "--timeout: "),
        (&["--memory", "1"], "--memory: 1 is not allowed"),
        (
            &["--timeout", "500ms"],
            "isolator: timeout: still running after 500ms and killed; give a longer --timeout",
        ),
    ] {
        let named = ["--server", at.to_str().unwrap()];
        let arguments = [&STDIN[..], &named, arguments].concat();
        let finished = run(server.directory(), &arguments, "import time; time.sleep(600)");
        assert!(finished.stderr.contains(promised), "{finished:?}");
    }
    server.stop().await;
}

#[tokio::test]
async fn a_signal_to_the_command_ends_its_program() {
    let server = start().await;
    let mut command = isolator(server.directory());
    command.args(["run", "-", "--language", "python"]).stdin(std::process::Stdio::piped());
    let mut child = command.spawn().unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"import time; time.sleep(600)")
        .unwrap();
    eventually("the program runs", async || !server.sandboxes(State::Running).await.is_empty())
        .await;
    send_signal(child.id(), "TERM");
    assert_eq!(child.wait().unwrap().code(), Some(128 + 15));
    eventually("the program ends", async || server.sandboxes(State::Running).await.is_empty())
        .await;
    server.stop().await;
}

#[tokio::test]
async fn no_other_user_is_served() {
    let server = start().await;
    let (folder, socket) = (folder(&server), socket(&server));
    let modes = [&folder, &socket].map(|path| fs::symlink_metadata(path).unwrap().mode() & 0o777);
    assert_eq!(modes, [0o700, 0o600]);
    // Even where the files would let it in.
    for path in socket.ancestors().take(4) {
        fs::set_permissions(path, Permissions::from_mode(0o777)).unwrap();
    }
    let script = "import socket, sys\n\
                  s = socket.socket(socket.AF_UNIX)\n\
                  s.connect(sys.argv[1])\n\
                  s.sendall(b'POST /mcp HTTP/1.1\\r\\nhost: localhost\\r\\ncontent-length: 0\\r\\n\\r\\n')\n\
                  print(s.recv(1))";
    let ask = |user: u32| {
        let mut command = Command::new("python3");
        command.args(["-c", script]).arg(&socket).uid(user);
        run_command(&mut command, "").stdout
    };
    assert_eq!(ask(0), "b'H'\n");
    assert_ne!(ask(NOBODY), "b'H'\n");
    server.stop().await;
}
