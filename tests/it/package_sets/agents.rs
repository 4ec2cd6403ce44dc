//! The agent of a session in real sandboxes: processes and files along with cells.

use std::time::Duration;

use bytes::Bytes;
use isolator_pool::pool::admission::Client;
use isolator_pool::pool::session::agent::{
    AgentError, Attached, EntryKind, ProcessEvent, StartProcess, TerminalSize, WatchKind,
};
use isolator_pool::pool::session::{Session, SessionRequest};
use isolator_runner::wire::End;
use tokio::time::{sleep, timeout};

use super::World;
use super::sessions::{CODE, run};
use crate::common::eventually;

async fn open(world: &World, packages: bool) -> Session {
    let resources = world.language.sandbox.resources;
    let packages = packages.then(|| world.module("parcel", "weight = 3"));
    let kernel = world.language.kernel_command(resources.memory);
    let (checkpoints, max_queue, installer) = (2, None, None);
    let request = SessionRequest { kernel, resources, packages, installer, checkpoints, max_queue };
    let opened = world.pools.open_session(&world.language.name, &Client::Host, &request).await;
    opened.expect("a session").0
}

fn shell(script: &str) -> StartProcess {
    StartProcess { argv: ["sh", "-c", script].map(str::to_owned).to_vec(), ..Default::default() }
}

/// What a process prints on all streams, and its end.
async fn printed(mut attached: Attached) -> (String, End) {
    let mut text = Vec::new();
    loop {
        let event = timeout(Duration::from_secs(30), attached.next()).await.expect("in time");
        match event.expect("an end") {
            ProcessEvent::Stdout(bytes)
            | ProcessEvent::Stderr(bytes)
            | ProcessEvent::Terminal(bytes) => text.extend_from_slice(&bytes),
            ProcessEvent::Ended(ended) => {
                return (String::from_utf8(text).expect("text"), ended.end);
            }
            ProcessEvent::Lost(error) => panic!("{error}"),
        }
    }
}

async fn output(session: &Session, script: &str) -> String {
    printed(session.start_process(shell(script)).await.expect("a process")).await.0
}

#[tokio::test]
async fn processes_of_an_agent_run_along_with_cells_as_programs_do() {
    let world = World::python().await;
    let session = open(&world, true).await;
    let cell = async |code: &str| run(&world, &session, CODE, &[], code).await;
    cell("open('shared', 'w').write('from a cell')").await;
    assert_eq!(output(&session, "cat /workspace/shared").await, "from a cell");
    // The same user without rights, and the session's packages.
    let rights =
        output(&session, "id -u; grep -E 'NoNewPrivs|CapEff|Seccomp:' /proc/self/status").await;
    let rights: Vec<_> = rights.split_whitespace().collect();
    assert_eq!(
        rights,
        ["1000", "CapEff:", "0000000000000000", "NoNewPrivs:", "1", "Seccomp:", "2"]
    );
    let packages = output(&session, "python3 -c 'import parcel; print(parcel.weight)'").await;
    assert_eq!(packages, "3\n");
    // Cells that are undone, and commands that are killed, leave its processes alone.
    let argv = ["sh", "-c", "read line; echo got $line"].map(str::to_owned).to_vec();
    let start = StartProcess { argv, keep_stdin: true, ..Default::default() };
    let waiting = session.start_process(start).await.unwrap();
    let pid = waiting.pid();
    assert_eq!(cell("import os, signal; os.kill(os.getpid(), signal.SIGKILL)").await, "");
    session.rewind(1, |_| {}).await.unwrap();
    assert_eq!(cell("print('on')").await, "on\n");
    session.send_input(pid, Bytes::from_static(b"it\n")).await.unwrap();
    assert_eq!(printed(waiting).await, ("got it\n".to_owned(), End::Code(0)));
    // Calls go on while a cell runs.
    let slow = cell("import time; time.sleep(2); print('slow')");
    let meanwhile = async {
        sleep(Duration::from_millis(300)).await;
        let began = std::time::Instant::now();
        assert_eq!(output(&session, "echo quick").await, "quick\n");
        assert!(began.elapsed() < Duration::from_millis(1400), "{:?}", began.elapsed());
        assert!(session.is_running());
    };
    assert_eq!(tokio::join!(slow, meanwhile).0, "slow\n");
    drop(session);
    world.stop().await;
}

#[tokio::test]
async fn terminals_and_signals_reach_processes_of_an_agent() {
    let world = World::python().await;
    let session = open(&world, false).await;
    let terminal = Some(TerminalSize { rows: 30, columns: 90 });
    let script = "stty size; read line; stty size; echo \"<$line>\"";
    let attached = session.start_process(StartProcess { terminal, ..shell(script) }).await.unwrap();
    let pid = attached.pid();
    session.resize(pid, TerminalSize { rows: 40, columns: 100 }).await.unwrap();
    session.send_input(pid, Bytes::from_static(b"hi\r")).await.unwrap();
    let (text, end) = printed(attached).await;
    assert!(text.contains("40 100") && text.contains("<hi>"), "{text:?}");
    assert_eq!(end, End::Code(0));
    let attached = session.start_process(shell("sleep 60 & wait")).await.unwrap();
    let pid = attached.pid();
    let home = session.stat(".").await.unwrap().path;
    let list = session.processes().await.unwrap();
    assert!(list.iter().any(|process| process.pid == pid && process.cwd == home));
    session.signal(pid, 15).await.unwrap();
    assert_eq!(printed(attached).await.1, End::Signal(15));
    let again = session.attach(pid).await.unwrap();
    assert_eq!(printed(again).await.1, End::Signal(15));
    assert!(matches!(session.signal(pid, 15).await, Err(AgentError::NoProcess(_))));
    let missing = StartProcess { argv: vec!["no-such".to_owned()], ..Default::default() };
    assert!(matches!(session.start_process(missing).await, Err(AgentError::NotStarted { .. })));
    drop(session);
    world.stop().await;
}

#[tokio::test]
async fn files_of_an_agent_are_those_of_the_sandbox() {
    let world = World::python().await;
    let session = open(&world, false).await;
    let home = session.stat(".").await.unwrap().path;
    let mut watcher = session.watch("folder", true).await.err();
    assert!(matches!(watcher.take(), Some(AgentError::NotFound(_))));
    let (folder, is_new) = session.make_folder("folder").await.unwrap();
    assert!(is_new);
    assert_eq!(folder.path, format!("{home}/folder"));
    assert_ne!(folder.owner, "root");
    let mut watcher = session.watch("folder", true).await.unwrap();
    let content: Vec<u8> = (0..3_000_000_u32).map(|number| (number / 7) as u8).collect();
    let mut writer = session.write_file("folder/file").await.unwrap();
    writer.write(content.clone().into()).await.unwrap();
    assert_eq!(writer.finish().await.unwrap().size, 3_000_000);
    for kind in [WatchKind::Create, WatchKind::Write] {
        let event = timeout(Duration::from_secs(10), watcher.next()).await.expect("in time");
        let event = event.expect("a change").unwrap();
        assert_eq!((event.kind, event.path), (kind, format!("{home}/folder/file")));
    }
    let mut reader = session.read_file("folder/file").await.unwrap();
    assert_eq!(reader.size(), 3_000_000);
    let mut read = Vec::new();
    while let Some(piece) = reader.next().await {
        read.extend_from_slice(&piece.unwrap());
    }
    assert!(read == content);
    let list = session.list_folder(".", 2).await.unwrap();
    assert!(list.iter().any(|entry| entry.path == format!("{home}/folder/file")), "{list:?}");
    session.rename("folder/file", "other/moved").await.unwrap();
    assert_eq!(session.stat("other/moved").await.unwrap().kind, EntryKind::File);
    session.remove("other").await.unwrap();
    assert!(matches!(session.stat("other").await, Err(AgentError::NotFound(_))));
    assert!(matches!(session.read_file("folder").await, Err(AgentError::IsFolder(_))));
    assert!(matches!(session.read_file("/dev/zero").await, Err(AgentError::NotFile(_))));
    let denied = session.write_file("/etc/passwd").await;
    assert!(matches!(denied, Err(AgentError::Denied(_))), "{denied:?}");
    // More than the workspace has room for.
    let mut writer = session.write_file("/workspace/too-large").await.unwrap();
    let full = async {
        loop {
            writer.write(vec![0; 1 << 20].into()).await?;
        }
    };
    let full: Result<(), AgentError> = full.await;
    assert!(matches!(full, Err(AgentError::NoSpace(_))), "{full:?}");
    drop(writer);
    let left = session.list_folder("/workspace", 1).await.unwrap();
    // The folder is there if the workspace is the home.
    assert!(left.iter().all(|entry| entry.name == "folder"), "{left:?}");
    drop((watcher, session));
    world.stop().await;
}

#[tokio::test]
async fn an_agent_that_a_program_kills_or_stops_is_replaced() {
    let world = World::python().await;
    let session = open(&world, false).await;
    let cell = async |code: &str| run(&world, &session, CODE, &[], code).await;
    let mut attached = session.start_process(shell("sleep 60")).await.unwrap();
    // Everything that a program may signal, except itself and those of the session.
    let kill = "import os, signal\n\
        for pid in filter(str.isdigit, os.listdir('/proc')):\n    \
            if 'agent' in open(f'/proc/{pid}/cmdline').read().split('\\0'): os.kill(int(pid), signal.SIGKILL)";
    cell(kill).await;
    let event = timeout(Duration::from_secs(10), attached.next()).await.expect("in time");
    assert!(matches!(event, Some(ProcessEvent::Lost(AgentError::Lost(_)))), "{event:?}");
    assert_eq!(output(&session, "echo again").await, "again\n");
    assert_eq!(cell("print('on')").await, "on\n");
    // A stopped one does not answer. Cells do not wait for it.
    cell(&kill.replace("SIGKILL", "SIGSTOP")).await;
    let cells = async {
        assert_eq!(cell("print('on')").await, "on\n");
        cell(kill).await
    };
    let (late, _) = tokio::join!(session.stat("/"), cells);
    assert!(matches!(late, Err(AgentError::Lost(_))), "{late:?}");
    assert_eq!(output(&session, "echo again").await, "again\n");
    // The end of a session in the middle of everything ends it all.
    let mut flood = session.start_process(shell("yes")).await.unwrap();
    let mut reader = session.read_file("/usr/bin/env").await.unwrap();
    sleep(Duration::from_millis(300)).await;
    session.close();
    let ended = async {
        while !matches!(flood.next().await, Some(ProcessEvent::Lost(_))) {}
        while reader.next().await.is_some() {}
    };
    timeout(Duration::from_secs(20), ended).await.expect("in time");
    drop(session);
    world.stop().await;
}

#[tokio::test]
async fn a_session_with_processes_runs_until_its_slot_is_wanted() {
    let world = World::python().await;
    let session = open(&world, false).await;
    let attached = session.start_process(shell("while :; do sleep 0.1; done")).await.unwrap();
    let pid = attached.pid();
    sleep(Duration::from_secs(2)).await;
    assert!(!session.is_frozen(), "a client is attached");
    drop(attached);
    sleep(Duration::from_secs(2)).await;
    assert!(!session.is_frozen(), "a process runs");
    session.signal(pid, 9).await.unwrap();
    eventually("it is frozen", async || session.is_frozen()).await;
    assert_eq!(output(&session, "echo thawed").await, "thawed\n");
    drop(session);
    world.stop().await;
}
