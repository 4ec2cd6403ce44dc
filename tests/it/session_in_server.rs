//! `isolator session` in a running server, which it finds as `isolator run` does.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, Stdio};

use crate::common::engine::State;
use crate::common::server::{Server, send_signal};
use crate::common::{Finished, eventually, isolator, run_command};
use serde_json::{Value, json};

/// A server in which no sandbox waits, so that those of sessions are the only ones.
async fn start(more: Value) -> Server {
    let mut settings = json!({ "pool": { "size": 0 } });
    for (key, value) in more.as_object().expect("an object") {
        settings[key] = value.clone();
    }
    Server::with("python", settings).await
}

fn session(directory: &Path, arguments: &[&str], cells: &str) -> Finished {
    let mut command = isolator(directory);
    command.env("RUST_LOG", "isolator=info").arg("session").args(arguments);
    run_command(&mut command, cells)
}

/// Starts a session, and waits for the first line that its cells print.
fn begin(server: &Server, cells: &str) -> Child {
    let mut command = isolator(server.directory());
    command.arg("session").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("it starts");
    let stdin = child.stdin.as_mut().expect("a pipe");
    stdin.write_all(cells.as_bytes()).expect("it reads");
    let mut line = String::new();
    let mut stdout = BufReader::new(child.stdout.take().expect("a pipe"));
    stdout.read_line(&mut line).expect("it prints");
    assert_eq!(line, "begun\n");
    child.stdout = Some(stdout.into_inner());
    child
}

async fn sandboxes(server: &Server) -> usize {
    server.sandboxes(State::Running).await.len() + server.sandboxes(State::Paused).await.len()
}

#[tokio::test]
async fn cells_show_the_same_as_without_a_server() {
    let server = start(json!({})).await;
    let directory = server.directory();
    fs::write(directory.join("data.txt"), "from a file").unwrap();
    let cells = "import os, sys\n\
                 x = os.write(1, b'\\xff\\n') + os.write(2, b'error\\n')\n\
                 print('o' * 3_000_000)\n\
                 # %%\n\
                 x, open('data.txt').read()\n\
                 # %%\n\
                 x = 0\nos._exit(3)\n\
                 # %%\n\
                 x\n\
                 # %%\n\
                 1 / 0\n";
    let options = ["--file", "data.txt", "--keep-going"];
    let lines = |more: &[&str]| {
        let finished = session(directory, &[&options[..], &["--json"], more].concat(), cells);
        let is_in_server = finished.stderr.contains("the session is in the server at");
        assert_eq!(is_in_server, more.is_empty(), "{}", finished.stderr);
        let lines = finished.stdout.lines().map(|line| {
            let mut line: Value = serde_json::from_str(line).unwrap();
            for measured in ["ms", "cpu_ms", "peak_memory_bytes"] {
                line.as_object_mut().unwrap().remove(measured);
            }
            line
        });
        (finished.code, lines.collect::<Vec<_>>())
    };
    let (code, in_server) = lines(&[]);
    assert_eq!(in_server.len(), 5);
    assert_eq!(in_server[1]["result"]["text/plain"], "(8, 'from a file')");
    assert_eq!(in_server[2]["undone"], 1);
    assert_eq!((code, in_server.clone()), lines(&["--server", "none"]));

    let [first, second] = [&[][..], &["--server", "none"]].map(|more| {
        let mut command = isolator(directory);
        command.arg("session").args(options).args(more);
        let finished = run_command(&mut command, cells.replace("b'\\xff\\n'", "b'out\\n'"));
        (finished.code, finished.stdout, finished.stderr)
    });
    assert_eq!(first, second);
    assert!(first.1.len() > 3_000_000, "{}", first.1.len());
    eventually("the sessions are closed", async || sandboxes(&server).await == 0).await;
    server.stop().await;
}

#[tokio::test]
async fn a_session_ends_with_its_command_whatever_ends_it() {
    let server = start(json!({})).await;
    for signal in ["KILL", "TERM"] {
        for cells in ["print('begun')\n# %%\n", "print('begun')\nwhile True: pass\n# %%\n"] {
            let mut child = begin(&server, cells);
            assert_eq!(sandboxes(&server).await, 1);
            send_signal(child.id(), signal);
            child.wait().unwrap();
            eventually("the session is closed", async || sandboxes(&server).await == 0).await;
        }
    }
    server.stop().await;
}

#[tokio::test]
async fn a_server_that_stops_does_not_wait_for_a_session_without_cells() {
    let server = start(json!({})).await;
    let mut child = begin(&server, "print('begun')\n# %%\n");
    let began = std::time::Instant::now();
    server.stop().await;
    assert!(began.elapsed() < std::time::Duration::from_secs(8), "{:?}", began.elapsed());
    child.stdin.take().unwrap().write_all(b"1\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(125), "{output:?}");
}

#[tokio::test]
async fn ctrl_c_interrupts_a_cell() {
    let server = start(json!({})).await;
    let child = begin(&server, "print('begun', flush=True)\nwhile True: pass\n# %%\n");
    send_signal(child.id(), "INT");
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("KeyboardInterrupt"), "{stderr}");
    assert_eq!(output.status.code(), Some(130), "{stderr}");
    server.stop().await;
}

#[tokio::test]
async fn without_room_for_another_session_the_command_makes_the_sandbox() {
    let server = start(json!({ "sessions": { "max": 1 } })).await;
    let mut first = begin(&server, "print('begun')\n# %%\n");
    let second = session(server.directory(), &[], "6 * 7\n");
    assert_eq!((second.code, second.stdout.as_str()), (Some(0), "42\n"), "{second:?}");
    assert!(!second.stderr.contains("the session is in the server"), "{second:?}");
    let socket = server.directory().join("runtime/isolator");
    let socket = socket.join(format!("{}.sock", server.process().pid));
    let chosen = session(server.directory(), &["--server", socket.to_str().unwrap()], "1\n");
    assert_eq!(chosen.code, Some(125), "{chosen:?}");
    assert!(chosen.stderr.contains("all 1 sessions that can be open are in use"), "{chosen:?}");
    drop(first.stdin.take());
    assert_eq!(first.wait().unwrap().code(), Some(0));
    server.stop().await;
}
