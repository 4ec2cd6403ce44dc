//! The agent of a session, as the server sees it: a process of the runner's binary, and messages over a socket.

use std::collections::VecDeque;
use std::fs;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use isolator_runner::wire::End;
use isolator_runner::wire::agent::{
    self, Answer, Entry, EntryKind, Failure, LeadsTo, MAX_LISTED, Message, MessageDecoder,
    MessageKind, ProcessInfo, Request, StartProcess, StreamEnd, TerminalSize, WatchEvent,
    WatchKind,
};
use tempfile::TempDir;

/// Credit that is never used up.
const MUCH: u32 = 1 << 30;

/// Longest time until something that should happen has happened.
const SOON: Duration = Duration::from_secs(20);

struct Agent {
    child: Child,
    socket: UnixStream,
    decoder: MessageDecoder,
    heard: VecDeque<Message>,
    calls: u32,
    folder: TempDir,
}

impl Agent {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_read_timeout(Some(SOON)).unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_isolator-runner"))
            .arg("agent")
            .arg(folder.path())
            .stdin(OwnedFd::from(theirs))
            .spawn()
            .unwrap();
        let decoder = MessageDecoder::default();
        Self { child, socket: ours, decoder, heard: VecDeque::new(), calls: 0, folder }
    }

    fn say(&mut self, kind: MessageKind, call: u32, body: &[u8]) {
        let mut message = Vec::new();
        agent::push(&mut message, kind, call, body);
        self.socket.write_all(&message).unwrap();
    }

    fn call(&mut self, request: &Request) -> u32 {
        self.calls += 1;
        let body = serde_json::to_vec(request).unwrap();
        self.say(MessageKind::Request, self.calls, &body);
        self.calls
    }

    fn input(&mut self, pid: u32, bytes: &[u8]) -> u32 {
        self.calls += 1;
        self.say(MessageKind::Input, self.calls, &[&pid.to_be_bytes(), bytes].concat());
        self.calls
    }

    /// The next message of a call.
    fn next(&mut self, call: u32) -> (MessageKind, Vec<u8>) {
        loop {
            let found = self.heard.iter().position(|(_, number, _)| *number == call);
            if let Some((kind, _, body)) = found.and_then(|at| self.heard.remove(at)) {
                return (kind, body);
            }
            self.receive();
        }
    }

    fn receive(&mut self) {
        let mut piece = [0; 64 * 1024];
        let count = self.socket.read(&mut piece).expect("the agent says something");
        assert!(count > 0, "the agent has ended");
        self.decoder.feed(&piece[..count]);
        while let Some(message) = self.decoder.next_message().unwrap() {
            if !matches!(message.0, MessageKind::Consumed | MessageKind::Running) {
                self.heard.push_back(message);
            }
        }
    }

    fn answer(&mut self, call: u32) -> Result<Answer, Failure> {
        let (kind, body) = self.next(call);
        assert_eq!(kind, MessageKind::Answer);
        serde_json::from_slice(&body).unwrap()
    }

    fn ask(&mut self, request: &Request) -> Result<Answer, Failure> {
        let call = self.call(request);
        self.answer(call)
    }

    /// All pieces of a stream, and its end.
    fn rest(&mut self, call: u32) -> (Vec<(MessageKind, Vec<u8>)>, StreamEnd) {
        let mut pieces = Vec::new();
        loop {
            match self.next(call) {
                (MessageKind::End, body) => {
                    return (pieces, serde_json::from_slice(&body).unwrap());
                }
                piece => pieces.push(piece),
            }
        }
    }

    fn shell(
        &mut self,
        script: &str,
        credit: u32,
        set: impl FnOnce(&mut StartProcess),
    ) -> (u32, u32) {
        let mut start = StartProcess {
            argv: ["sh", "-c", script].map(str::to_owned).to_vec(),
            cwd: Some(self.folder.path().to_str().unwrap().to_owned()),
            ..StartProcess::default()
        };
        set(&mut start);
        let call = self.call(&Request::Start(start, credit));
        match self.answer(call) {
            Ok(Answer::Process(pid)) => (call, pid),
            other => panic!("{other:?}"),
        }
    }

    /// What a process prints on each stream, and its end.
    fn printed(&mut self, call: u32) -> (String, String, StreamEnd) {
        let (pieces, end) = self.rest(call);
        let of = |wanted| {
            let bytes: Vec<u8> = pieces
                .iter()
                .filter(|(kind, _)| *kind == wanted)
                .flat_map(|(_, body)| body.clone())
                .collect();
            String::from_utf8(bytes).unwrap()
        };
        let stdout = of(MessageKind::Stdout) + &of(MessageKind::Terminal);
        (stdout, of(MessageKind::Stderr), end)
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_owned()
    }

    fn write(&mut self, path: &str, bytes: &[u8]) -> Result<Entry, Failure> {
        let call = self.call(&Request::Write(path.to_owned()));
        self.answer(call)?;
        for piece in bytes.chunks(agent::PIECE) {
            self.say(MessageKind::Data, call, piece);
        }
        self.say(MessageKind::Finish, call, &[]);
        match self.answer(call)? {
            Answer::Entry(entry) => {
                assert_eq!(self.rest(call), (Vec::new(), StreamEnd::Complete));
                Ok(entry)
            }
            other => panic!("{other:?}"),
        }
    }

    fn read(&mut self, path: &str) -> Result<Vec<u8>, Failure> {
        let call = self.call(&Request::Read(path.to_owned(), MUCH));
        self.answer(call)?;
        let (pieces, end) = self.rest(call);
        assert_eq!(end, StreamEnd::Complete);
        Ok(pieces.into_iter().flat_map(|(_, body)| body).collect())
    }

    fn list(&mut self, path: &str, depth: u32) -> Result<Vec<Entry>, Failure> {
        let call = self.call(&Request::List(path.to_owned(), depth, MUCH));
        self.answer(call)?;
        let (pieces, end) = self.rest(call);
        match end {
            StreamEnd::Complete => {
                Ok(pieces.iter().map(|(_, body)| serde_json::from_slice(body).unwrap()).collect())
            }
            StreamEnd::Failed(failure) => Err(failure),
            StreamEnd::Ended(_) => panic!("no process has ended"),
        }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn is_running(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(") ").next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with('Z'))
}

fn soon(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + SOON;
    while !is_so() {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_process_prints_on_both_streams_and_ends_with_its_code() {
    let mut agent = Agent::start();
    let (call, _) = agent.shell("echo out; echo err >&2; exit 7", MUCH, |_| {});
    let ended = StreamEnd::Ended(End::Code(7));
    assert_eq!(agent.printed(call), ("out\n".to_owned(), "err\n".to_owned(), ended));
    let (call, pid) = agent.shell("sleep 60", MUCH, |_| {});
    assert_eq!(agent.ask(&Request::Signal(pid, 15)), Ok(Answer::Done));
    assert_eq!(agent.printed(call).2, StreamEnd::Ended(End::Signal(15)));
}

#[test]
fn environment_folder_and_tag_are_those_of_the_request() {
    let mut agent = Agent::start();
    let (call, pid) = agent.shell("pwd; echo $WORD; read line", MUCH, |start| {
        start.env.insert("WORD".to_owned(), "ä b".to_owned());
        start.tag = Some("mine".to_owned());
        start.keep_stdin = true;
    });
    let list = agent.call(&Request::Processes(MUCH));
    assert_eq!(agent.answer(list), Ok(Answer::Done));
    let (pieces, end) = agent.rest(list);
    assert_eq!((pieces.len(), end), (1, StreamEnd::Complete));
    let info: ProcessInfo = serde_json::from_slice(&pieces[0].1).unwrap();
    assert_eq!((info.pid, info.tag.as_deref(), info.terminal), (pid, Some("mine"), false));
    assert_eq!(info.env["WORD"], "ä b");
    assert_eq!(agent.ask(&Request::CloseInput(pid)), Ok(Answer::Done));
    let folder = agent.path("").trim_end_matches('/').to_owned();
    assert_eq!(agent.printed(call).0, format!("{folder}\nä b\n"));
}

#[test]
fn input_is_answered_when_the_process_has_room_for_it() {
    let mut agent = Agent::start();
    let (call, pid) = agent.shell("read go; cat", MUCH, |start| start.keep_stdin = true);
    // More than the pipe holds, while the process reads nothing of it.
    let piece = vec![b'x'; agent::MAX_INPUT];
    let inputs: Vec<_> = (0..4).map(|_| agent.input(pid, &piece)).collect();
    assert_eq!(agent.answer(inputs[0]), Ok(Answer::Done));
    assert_eq!(agent.ask(&Request::Stat("/".to_owned())).map(drop), Ok(()), "it goes on");
    // The first line has no end, so it reads all of it.
    let last = agent.input(pid, b"\nend\n");
    assert_eq!(agent.answer(inputs[3]), Ok(Answer::Done));
    assert_eq!(agent.answer(last), Ok(Answer::Done));
    assert_eq!(agent.ask(&Request::CloseInput(pid)), Ok(Answer::Done));
    let late = agent.input(pid, b"late");
    assert!(matches!(agent.answer(late), Err(Failure::NoInput | Failure::NoProcess)));
    assert_eq!(
        agent.printed(call),
        ("end\n".to_owned(), String::new(), StreamEnd::Ended(End::Code(0)))
    );
}

#[test]
fn input_of_a_process_that_ends_before_it_reads_it_fails() {
    let mut agent = Agent::start();
    let (call, pid) = agent.shell("sleep 0.2", MUCH, |start| start.keep_stdin = true);
    let piece = vec![b'x'; agent::MAX_INPUT];
    let inputs: Vec<_> = (0..4).map(|_| agent.input(pid, &piece)).collect();
    assert_eq!(agent.printed(call).2, StreamEnd::Ended(End::Code(0)));
    assert_eq!(agent.answer(inputs[3]), Err(Failure::NoInput));
    let (_, pid) = agent.shell("sleep 60", MUCH, |_| {});
    let closed = agent.input(pid, b"x");
    assert_eq!(agent.answer(closed), Err(Failure::NoInput));
}

#[test]
fn a_terminal_has_a_size_and_takes_input() {
    let mut agent = Agent::start();
    let size = TerminalSize { rows: 31, columns: 97 };
    let (call, pid) = agent.shell("stty size; read line; stty size; tty -s", MUCH, |start| {
        start.terminal = Some(size);
    });
    let size = TerminalSize { rows: 40, columns: 120 };
    assert_eq!(agent.ask(&Request::Resize(pid, size)), Ok(Answer::Done));
    let input = agent.input(pid, b"go\r");
    assert_eq!(agent.answer(input), Ok(Answer::Done));
    assert_eq!(agent.ask(&Request::CloseInput(pid)), Err(Failure::NoInput));
    let (printed, _, end) = agent.printed(call);
    assert!(printed.contains("40 120\r\n"), "{printed:?}");
    assert_eq!(end, StreamEnd::Ended(End::Code(0)));
    let (_, pid) = agent.shell("sleep 60", MUCH, |_| {});
    assert_eq!(agent.ask(&Request::Resize(pid, size)), Err(Failure::NoTerminal));
}

#[test]
fn a_slow_reader_stops_only_its_own_process() {
    let mut agent = Agent::start();
    let credit = 10_000;
    let (slow, pid) = agent.shell("yes | head -c 300000", credit, |_| {});
    let (fast, _) = agent.shell("yes | head -c 1000000", MUCH, |_| {});
    assert_eq!(agent.printed(fast).0.len(), 1_000_000);
    let mut got = 0;
    let mut cost = 0;
    while let Some(at) = agent.heard.iter().position(|(_, call, _)| *call == slow) {
        let (_, _, body) = agent.heard.remove(at).unwrap();
        (got, cost) = (got + body.len(), cost + agent::cost(body.len()));
    }
    assert!(cost <= credit && got > 5000, "{got} bytes");
    assert!(is_running(pid));
    agent.say(MessageKind::Credit, slow, &MUCH.to_be_bytes());
    assert_eq!(got + agent.printed(slow).0.len(), 300_000);
}

#[test]
fn output_that_no_call_reads_does_not_stop_a_process() {
    let mut agent = Agent::start();
    let (call, pid) = agent.shell("yes | head -c 3000000; read line; echo there", 100, |start| {
        start.keep_stdin = true;
    });
    agent.say(MessageKind::Cancel, call, &[]);
    // It reads this only after it has printed everything.
    let again = agent.call(&Request::Attach(pid, MUCH));
    assert_eq!(agent.answer(again), Ok(Answer::Process(pid)));
    let input = agent.input(pid, b"\n");
    assert_eq!(agent.answer(input), Ok(Answer::Done));
    let (printed, _, end) = agent.printed(again);
    assert!(printed.ends_with("there\n"));
    assert_eq!(end, StreamEnd::Ended(End::Code(0)));
    let late = agent.call(&Request::Attach(pid, MUCH));
    assert_eq!(agent.answer(late), Ok(Answer::Process(pid)), "its end is kept");
    assert_eq!(agent.printed(late).2, StreamEnd::Ended(End::Code(0)));
    assert_eq!(agent.ask(&Request::Signal(pid, 9)), Err(Failure::NoProcess));
    assert_eq!(agent.ask(&Request::Attach(1, MUCH)), Err(Failure::NoProcess));
}

#[test]
fn a_process_that_holds_the_output_does_not_delay_the_end() {
    let mut agent = Agent::start();
    for terminal in [None, Some(TerminalSize { rows: 24, columns: 80 })] {
        let began = Instant::now();
        let script =
            "trap '' HUP; (for _ in $(seq 200); do echo more; sleep 0.05; done) & echo first";
        let (call, _) = agent.shell(script, MUCH, |start| start.terminal = terminal);
        let (printed, _, end) = agent.printed(call);
        assert!(printed.starts_with("first") || printed.starts_with("more"), "{printed:?}");
        assert_eq!(end, StreamEnd::Ended(End::Code(0)));
        assert!(began.elapsed() < Duration::from_secs(10));
    }
}

#[test]
fn a_process_that_takes_its_output_back_ends() {
    let mut agent = Agent::start();
    let script = "printf 123456789; exec 3</proc/self/fd/1; head -c 4 <&3 >/dev/null; : >taken";
    let (call, _) = agent.shell(script, 64, |_| {});
    let taken = agent.path("taken");
    soon("it is taken", || Path::new(&taken).exists());
    agent.say(MessageKind::Credit, call, &MUCH.to_be_bytes());
    assert_eq!(agent.printed(call).2, StreamEnd::Ended(End::Code(0)));
}

#[test]
fn what_can_not_be_started_says_why() {
    let mut agent = Agent::start();
    let start = |argv: &[&str], cwd: &str| {
        let argv = argv.iter().map(|&arg| arg.to_owned()).collect();
        let cwd = Some(cwd.to_owned());
        Request::Start(StartProcess { argv, cwd, ..StartProcess::default() }, MUCH)
    };
    for (request, failure) in [
        (start(&["no-such-program"], "/"), Failure::Program(libc::ENOENT)),
        (start(&["/etc/passwd"], "/"), Failure::Program(libc::EACCES)),
        (start(&[], "/"), Failure::Program(libc::ENOENT)),
        (start(&["a\0b"], "/"), Failure::Program(libc::EINVAL)),
        (start(&["true"], "/no/such/folder"), Failure::Start(libc::ENOENT)),
        (start(&["true"], "/etc/passwd"), Failure::Start(libc::ENOTDIR)),
    ] {
        assert_eq!(agent.ask(&request), Err(failure), "{request:?}");
    }
    let (_, pid) = agent.shell("sleep 60", MUCH, |_| {});
    for signal in [0, -9, 65] {
        assert_eq!(agent.ask(&Request::Signal(pid, signal)), Err(Failure::NoSignal(signal)));
    }
}

#[test]
fn processes_end_with_the_agent() {
    let mut agent = Agent::start();
    let (_, pid) = agent.shell("exec sleep 60", MUCH, |_| {});
    assert!(is_running(pid));
    agent.child.kill().unwrap();
    agent.child.wait().unwrap();
    soon("it ends", || !is_running(pid));
}

#[test]
fn the_agent_ends_with_its_channel() {
    let mut agent = Agent::start();
    agent.socket.shutdown(std::net::Shutdown::Both).unwrap();
    assert!(agent.child.wait().unwrap().success());
}

#[test]
fn files_are_written_as_a_whole_and_keep_their_permissions() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let mut agent = Agent::start();
    let path = agent.path("new/folder/file");
    let content: Vec<u8> = (0..100_000_u32).map(|number| number as u8).collect();
    let entry = agent.write(&path, &content).unwrap();
    assert_eq!(
        (entry.path.as_str(), entry.size, entry.kind),
        (path.as_str(), 100_000, EntryKind::File)
    );
    assert_eq!(agent.read(&path).unwrap(), content);

    fs::set_permissions(&path, fs::Permissions::from_mode(0o751)).unwrap();
    let link = agent.path("link");
    symlink(&path, &link).unwrap();
    agent.write(&link, b"through a link").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"through a link");
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o751);

    // One that is not finished leaves nothing, and the file is as it was.
    let call = agent.call(&Request::Write(path.clone()));
    assert_eq!(agent.answer(call), Ok(Answer::Done));
    agent.say(MessageKind::Data, call, b"half");
    agent.say(MessageKind::Cancel, call, &[]);
    assert_eq!(agent.read(&path).unwrap(), b"through a link");
    assert_eq!(fs::read_dir(Path::new(&path).parent().unwrap()).unwrap().count(), 1);
}

#[test]
fn pipes_devices_and_folders_are_not_read_or_written() {
    let mut agent = Agent::start();
    let pipe = agent.path("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let folder = agent.path("");
    for (path, failure) in [
        (pipe.as_str(), Failure::NotFile),
        ("/dev/zero", Failure::NotFile),
        ("/dev/tty", Failure::NotFile),
        (&folder, Failure::System(libc::EISDIR)),
        ("/", Failure::System(libc::EISDIR)),
    ] {
        assert_eq!(agent.read(path), Err(failure), "{path}");
        assert_eq!(agent.write(path, b"x"), Err(failure), "{path}");
    }
    assert_eq!(agent.read("/no/such/file"), Err(Failure::System(libc::ENOENT)));
    assert_eq!(agent.read("/etc/passwd/x"), Err(Failure::System(libc::ENOTDIR)));
    assert_eq!(agent.read("a\0b"), Err(Failure::System(libc::EINVAL)));
    let entry = match agent.ask(&Request::Stat(pipe)) {
        Ok(Answer::Entry(entry)) => entry,
        other => panic!("{other:?}"),
    };
    assert_eq!(entry.kind, EntryKind::Other);
    // Files of the kernel say that they are empty.
    assert!(agent.read("/proc/self/status").unwrap().starts_with(b"Name:\tisolator-runne"));
    // A file without an end is read as far as the credit goes.
    let endless = agent.call(&Request::Read("/proc/self/maps".to_owned(), 500));
    assert!(matches!(agent.answer(endless), Ok(Answer::Size(0))));
    assert_eq!(agent.next(endless).0, MessageKind::Content);
    agent.say(MessageKind::Cancel, endless, &[]);
    assert_eq!(agent.ask(&Request::Stat("/".to_owned())).map(drop), Ok(()));
}

#[test]
fn folders_are_listed_in_order_down_to_a_depth() {
    use std::os::unix::fs::symlink;
    let mut agent = Agent::start();
    let path = agent.path("top");
    for folder in ["b/c/d", "a"] {
        fs::create_dir_all(Path::new(&path).join(folder)).unwrap();
    }
    fs::write(Path::new(&path).join("b/file"), "1234").unwrap();
    symlink("b", Path::new(&path).join("link")).unwrap();
    symlink("nothing", Path::new(&path).join("odd")).unwrap();
    fs::write(Path::new(&path).join(std::ffi::OsStr::from_bytes(b"\xff\\x")), "").unwrap();
    let names =
        |entries: Vec<Entry>| entries.into_iter().map(|entry| entry.name).collect::<Vec<_>>();
    let flat = agent.list(&path, 1).unwrap();
    let link = |target: &str, leads_to| EntryKind::Link { target: target.to_owned(), leads_to };
    assert_eq!(flat[2].kind, link("b", Some(LeadsTo::Folder)));
    assert_eq!(flat[3].kind, link("nothing", None));
    assert_eq!(names(flat), ["a", "b", "link", "odd", "\\xff\\x5cx"]);
    let deep = agent.list(&path, 2).unwrap();
    assert_eq!(names(deep), ["a", "b", "c", "file", "link", "odd", "\\xff\\x5cx"]);
    assert_eq!(
        agent.read(&format!("{path}/\\xff\\x5cx")).unwrap(),
        b"",
        "names lead to their files"
    );
    assert_eq!(agent.list(&format!("{path}/b/file"), 1), Err(Failure::System(libc::ENOTDIR)));
}

#[test]
fn a_folder_with_too_many_entries_is_not_listed_but_removed() {
    let mut agent = Agent::start();
    let path = agent.path("many");
    fs::create_dir(&path).unwrap();
    for number in 0..=MAX_LISTED {
        fs::write(format!("{path}/{number}"), "").unwrap();
    }
    assert_eq!(agent.list(&path, 1), Err(Failure::TooManyEntries));
    fs::remove_file(format!("{path}/0")).unwrap();
    assert_eq!(agent.list(&path, 1).map(|list| list.len()), Ok(MAX_LISTED));
    assert_eq!(agent.ask(&Request::Remove(path.clone())), Ok(Answer::Done));
    assert!(!Path::new(&path).exists());
}

#[test]
fn folders_are_made_moved_and_removed_without_following_links() {
    use std::os::unix::fs::symlink;
    let mut agent = Agent::start();
    let (path, kept) = (agent.path("a/b/c"), agent.path("kept"));
    fs::create_dir(&kept).unwrap();
    fs::write(format!("{kept}/file"), "").unwrap();
    for is_new in [true, false] {
        let made = agent.ask(&Request::MakeFolder(path.clone()));
        assert!(
            matches!(made, Ok(Answer::Folder(Entry { kind: EntryKind::Folder, .. }, new)) if new == is_new)
        );
    }
    symlink(&kept, format!("{path}/link")).unwrap();
    let file = format!("{kept}/file");
    assert_eq!(agent.ask(&Request::MakeFolder(file)), Err(Failure::System(libc::EEXIST)));
    let moved = agent.path("x/y");
    let top = agent.path("a");
    assert!(agent.ask(&Request::Rename(top.clone(), moved.clone())).is_ok());
    assert_eq!(agent.ask(&Request::Rename(top, moved.clone())), Err(Failure::System(libc::ENOENT)));
    assert_eq!(agent.ask(&Request::Remove(moved.clone())), Ok(Answer::Done));
    assert!(!Path::new(&moved).exists());
    assert!(Path::new(&kept).join("file").exists());
    assert_eq!(agent.ask(&Request::Remove(moved)), Err(Failure::System(libc::ENOENT)));
    assert_eq!(agent.ask(&Request::Remove("/".to_owned())), Err(Failure::System(libc::EBUSY)));
}

#[test]
fn changes_of_a_tree_are_reported() {
    let mut agent = Agent::start();
    let path = agent.path("tree");
    fs::create_dir_all(format!("{path}/below")).unwrap();
    let call = agent.call(&Request::Watch(path.clone(), true, MUCH));
    assert_eq!(agent.answer(call), Ok(Answer::Done));
    let expect = |agent: &mut Agent, kind, name: &str| {
        let wanted = WatchEvent { kind, path: format!("{path}/{name}") };
        loop {
            let (message, body) = agent.next(call);
            assert_eq!(
                message,
                MessageKind::Event,
                "{wanted:?}: {}",
                String::from_utf8_lossy(&body)
            );
            let event: WatchEvent = serde_json::from_slice(&body).unwrap();
            assert!(!event.path.contains(".isolator"), "{event:?}");
            if event == wanted {
                return;
            }
        }
    };
    fs::write(format!("{path}/below/file"), "1").unwrap();
    expect(&mut agent, WatchKind::Create, "below/file");
    expect(&mut agent, WatchKind::Write, "below/file");
    fs::create_dir_all(format!("{path}/new/deep")).unwrap();
    expect(&mut agent, WatchKind::Create, "new/deep");
    fs::write(format!("{path}/new/deep/file"), "1").unwrap();
    expect(&mut agent, WatchKind::Create, "new/deep/file");
    fs::rename(format!("{path}/new"), format!("{path}/moved")).unwrap();
    expect(&mut agent, WatchKind::Rename, "new");
    expect(&mut agent, WatchKind::Create, "moved");
    fs::write(format!("{path}/moved/deep/late"), "1").unwrap();
    expect(&mut agent, WatchKind::Create, "moved/deep/late");
    // A file that a client writes appears once.
    let file = format!("{path}/written");
    agent.write(&file, b"1").unwrap();
    expect(&mut agent, WatchKind::Create, "written");
    expect(&mut agent, WatchKind::Write, "written");
    agent.write(&file, b"2").unwrap();
    expect(&mut agent, WatchKind::Write, "written");
    fs::remove_file(&file).unwrap();
    expect(&mut agent, WatchKind::Remove, "written");
    agent.ask(&Request::Remove(path.clone())).unwrap();
    let (_, end) = agent.rest(call);
    assert_eq!(end, StreamEnd::Failed(Failure::System(libc::ENOENT)));
    let gone = Request::Watch(path.clone(), false, MUCH);
    assert_eq!(agent.ask(&gone), Err(Failure::System(libc::ENOENT)));
}

#[test]
fn a_piece_that_waits_for_credit_takes_no_time() {
    let mut agent = Agent::start();
    let path = agent.path("seen");
    fs::create_dir(&path).unwrap();
    let watch = agent.call(&Request::Watch(path.clone(), false, 66));
    assert_eq!(agent.answer(watch), Ok(Answer::Done));
    fs::create_dir(format!("{path}/new")).unwrap();
    let list = agent.call(&Request::List(path.clone(), 1, 66));
    assert_eq!(agent.answer(list), Ok(Answer::Done));
    agent.shell("sleep 60", MUCH, |_| {});
    let processes = agent.call(&Request::Processes(66));
    assert_eq!(agent.answer(processes), Ok(Answer::Done));
    // User and system time, in hundredths of a second.
    let stat = format!("/proc/{}/stat", agent.child.id());
    let time = || {
        let stat = fs::read_to_string(&stat).unwrap();
        let (_, rest) = stat.rsplit_once(") ").unwrap();
        let fields = rest.split(' ').skip(11).take(2);
        fields.map(|field| field.parse::<u64>().unwrap()).sum::<u64>()
    };
    let before = time();
    std::thread::sleep(Duration::from_secs(1));
    assert!(time() - before < 10, "{} ticks", time() - before);
    for (call, kind) in
        [(watch, MessageKind::Event), (list, MessageKind::Entry), (processes, MessageKind::Process)]
    {
        // Not enough, and then enough.
        for credit in [1_u32, 1000] {
            assert!(!agent.heard.iter().any(|(_, number, _)| *number == call));
            agent.say(MessageKind::Credit, call, &credit.to_be_bytes());
            assert_eq!(agent.ask(&Request::Stat("/".to_owned())).map(drop), Ok(()));
        }
        assert_eq!(agent.next(call).0, kind);
    }
}

#[test]
fn changes_that_no_one_reads_end_the_watch() {
    let mut agent = Agent::start();
    let path = agent.path("flooded");
    fs::create_dir(&path).unwrap();
    let call = agent.call(&Request::Watch(path.clone(), false, 1000));
    assert_eq!(agent.answer(call), Ok(Answer::Done));
    // More than the kernel keeps.
    for _ in 0..20_000 {
        fs::write(format!("{path}/a"), "1").unwrap();
        fs::remove_file(format!("{path}/a")).unwrap();
    }
    assert_eq!(agent.ask(&Request::Stat("/".to_owned())).map(drop), Ok(()));
    agent.say(MessageKind::Credit, call, &MUCH.to_be_bytes());
    assert_eq!(agent.rest(call).1, StreamEnd::Failed(Failure::Overrun));
}
