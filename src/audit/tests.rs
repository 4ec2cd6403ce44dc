//! The log as its readers find it.

use std::fs::{File, Permissions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Instant;

use isolator_pool::engine::limits::ByteSize;
use isolator_pool::run::outcome::Status;
use rustix::fs::{FlockOperation, MemfdFlags, Mode, SealFlags, fchmod, flock};
use serde_json::Value;

use super::*;

fn config(folder: &Path) -> AuditConfig {
    let path = folder.join("audit.jsonl");
    AuditConfig { path, max: ByteSize::mib(1), keep: 2, ..AuditConfig::default() }
}

/// The lines of a file, each of which is whole.
fn lines(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn client() -> Client {
    Client::named("ci\u{1b}[2J")
}

#[tokio::test]
async fn a_line_describes_the_run_without_its_code() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = config(folder.path());
    for has_code in [false, true] {
        config.code = has_code;
        let audit = Audit::open(&config).unwrap();
        let mut note = audit.begin(&client(), "execute_code");
        note.place("python", Some("handle"));
        note.code(Some("print('secret\u{202e}')"));
        let files: [(&str, &[u8]); 2] =
            [("main.py", "print('secret\u{202e}')".as_bytes()), ("a.csv", b"1,2\n")];
        note.files(files);
        note.ran(&isolator_pool::run::outcome::Outcome::of(Status::Timeout));
        note.answered("success");
        drop(note);
        audit.close().await;
    }
    let text = fs::read_to_string(&config.path).unwrap();
    assert_eq!(text.matches("secret").count(), 1, "{text}");
    assert!(!text.contains(['\u{1b}', '\u{202e}']) && !text.contains("handle"), "{text}");
    let [line, with_code] = lines(&config.path).try_into().unwrap();
    assert_eq!(line["client"], "ci\u{1b}[2J");
    assert_eq!((&line["status"], &line["language"]), (&"timeout".into(), &"python".into()));
    assert_eq!(line["files"].as_array().unwrap().len(), 1, "{line}");
    assert_eq!(line["files"][0]["name"], "a.csv");
    assert_eq!(line["files"][0]["sha256"].as_str().unwrap().len(), 64);
    assert_eq!(line["bytes"]["files"], 4);
    assert_eq!(with_code["code"], "print('secret\u{202e}')");
    assert_eq!(with_code["code_sha256"], line["code_sha256"]);
}

#[tokio::test]
async fn the_packages_that_a_program_asks_for_fill_no_log() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path());
    let audit = Audit::open(&config).unwrap();
    let asked = vec!["\u{202e}é".repeat(20_000); 1000];
    audit.begin(&client(), "install").asked_for(&asked);
    let mut got = audit.begin(&client(), "install");
    got.asked_for(&asked);
    got.packages(&["humanize".to_owned()], "abc");
    drop(got);
    audit.close().await;
    assert!(fs::metadata(&config.path).unwrap().len() < 16 << 10);
    let [refused, got] = lines(&config.path).try_into().unwrap();
    assert_eq!(
        (refused["packages"].as_array().unwrap().len(), &refused["more_packages"]),
        (10, &990.into())
    );
    assert!(refused["packages"][9].as_str().unwrap().len() <= 300, "{refused}");
    assert_eq!(
        (&got["packages"], &got["more_packages"]),
        (&serde_json::json!(["humanize"]), &Value::Null)
    );
}

#[tokio::test]
async fn a_cancelled_call_has_a_line() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path());
    let audit = Audit::open(&config).unwrap();
    drop(audit.begin(&client(), "execute_code"));
    audit.close().await;
    assert_eq!(lines(&config.path)[0]["status"], CANCELLED_STATUS);
    let counts = audit.counts().unwrap();
    assert_eq!(counts, AuditCounts { written: 1, lost: 0, is_failing: false });
}

const CANCELLED_STATUS: &str = "cancelled";

#[tokio::test]
async fn a_long_file_is_replaced_and_no_line_is_lost_or_cut() {
    let folder = tempfile::tempdir().unwrap();
    let config = AuditConfig { max: ByteSize::bytes(2000), ..config(folder.path()) };
    let audit = Audit::open(&config).unwrap();
    for number in 0..12 {
        audit.begin(&client(), &format!("tool-{number}-{}", "x".repeat(400)));
    }
    audit.close().await;
    let names = ["audit.jsonl.2", "audit.jsonl.1", "audit.jsonl"];
    let found: Vec<_> = names.iter().flat_map(|name| lines(&folder.path().join(name))).collect();
    let tools: Vec<_> = found.iter().map(|line| line["tool"].as_str().unwrap()).collect();
    assert!(tools.len() >= 6 && tools.len() < 12, "the oldest are gone: {}", tools.len());
    let first = 12 - tools.len();
    for (tool, number) in tools.iter().zip(first..) {
        assert!(tool.starts_with(&format!("tool-{number}-")), "{tool} is not {number}");
    }
    for name in names {
        assert!(fs::metadata(folder.path().join(name)).unwrap().len() <= 2000, "{name}");
    }
    assert!(!folder.path().join("audit.jsonl.3").exists());
}

#[tokio::test]
async fn a_file_that_was_moved_away_is_made_again() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path());
    let audit = Audit::open(&config).unwrap();
    audit.begin(&client(), "one");
    audit.reopen();
    let path = config.path.clone();
    until(|| fs::metadata(&path).is_ok_and(|found| found.len() > 0)).await;
    let moved = folder.path().join("moved");
    fs::rename(&config.path, &moved).unwrap();
    audit.begin(&client(), "two");
    audit.close().await;
    assert_eq!((lines(&moved).len(), &lines(&config.path)[0]["tool"]), (1, &"two".into()));
}

async fn until(condition: impl Fn() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < Duration::from_secs(10), "not within 10 s");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A device on which there is never room.
const FULL: &str = "/dev/full";

#[tokio::test]
async fn a_log_that_can_not_be_written_is_refused_at_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let at = |path: &str| AuditConfig { path: path.into(), ..config(folder.path()) };
    let pipe = folder.path().join("pipe");
    let mode = Mode::RUSR | Mode::WUSR;
    let node = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, node, mode, 0).unwrap();
    for path in [FULL, folder.path().to_str().unwrap(), "/nowhere/audit", pipe.to_str().unwrap()] {
        let error = Audit::open(&at(path)).unwrap_err();
        assert!(format!("{error:#}").contains(path), "{error:#}");
        assert!(problem(&at(path)).is_some(), "{path}");
    }
    assert_eq!(problem(&config(folder.path())), None);
    assert!(!config(folder.path()).path.exists(), "asking makes nothing");
}

#[tokio::test]
async fn while_lines_can_not_be_written_calls_go_on_or_are_refused() {
    for refuses in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let inside = folder.path().join("log");
        fs::create_dir(&inside).unwrap();
        let on_full_disk = if refuses { OnFullDisk::Refuse } else { OnFullDisk::Continue };
        let config = AuditConfig { on_full_disk, ..config(&inside) };
        let audit = Audit::open(&config).unwrap();
        // Not even root can make a file in a folder that is gone.
        let away = folder.path().join("away");
        fs::rename(&inside, &away).unwrap();
        audit.begin(&client(), "one");
        until(|| audit.counts().unwrap().is_failing).await;
        assert_eq!(audit.refusal().is_some(), refuses);
        fs::rename(&away, &inside).unwrap();
        if refuses {
            until(|| audit.refusal().is_none()).await;
            assert_eq!(audit.counts().unwrap().lost, 0);
        }
        audit.begin(&client(), "two");
        audit.close().await;
        let tools: Vec<_> = lines(&config.path).iter().map(|line| line["tool"].clone()).collect();
        assert_eq!(tools, if refuses { vec!["one", "two"] } else { vec!["two"] });
        assert_eq!(audit.counts().unwrap().lost, u64::from(!refuses));
    }
}

/// Moves the folder of a log away and back. Not even root can make a file in a folder that is gone.
struct Folder {
    _parent: tempfile::TempDir,
    inside: PathBuf,
    away: PathBuf,
}

impl Folder {
    fn new() -> Self {
        let parent = tempfile::tempdir().unwrap();
        let (inside, away) = (parent.path().join("log"), parent.path().join("away"));
        fs::create_dir(&inside).unwrap();
        Self { _parent: parent, inside, away }
    }

    /// The configuration of a log in it that refuses calls.
    fn config(&self) -> AuditConfig {
        AuditConfig { on_full_disk: OnFullDisk::Refuse, ..config(&self.inside) }
    }

    fn go(&self) {
        fs::rename(&self.inside, &self.away).unwrap();
    }

    fn come_back(&self) {
        fs::rename(&self.away, &self.inside).unwrap();
    }
}

#[tokio::test]
async fn calls_are_served_again_once_the_file_can_be_opened_although_no_line_comes() {
    let folder = Folder::new();
    let audit = Audit::open(&folder.config()).unwrap();
    folder.go();
    audit.reopen();
    until(|| audit.refusal().is_some()).await;
    folder.come_back();
    until(|| audit.refusal().is_none()).await;
    assert_eq!(audit.counts().unwrap().lost, 0);
}

#[tokio::test]
async fn a_line_that_is_lost_after_the_last_one_was_written_does_not_refuse_calls_for_ever() {
    let folder = Folder::new();
    let audit = Audit::open(&folder.config()).unwrap();
    audit.begin(&client(), "one");
    until(|| audit.counts().unwrap().written == 1).await;
    let log = audit.0.as_ref().unwrap();
    // As the log was before the thread took the last line.
    log.state.waiting_bytes.store(MAX_WAITING_BYTES, Ordering::Relaxed);
    log.send("{}\n".to_owned());
    log.state.waiting_bytes.store(0, Ordering::Relaxed);
    assert_eq!(audit.counts().unwrap().lost, 1);
    until(|| audit.refusal().is_none()).await;
}

#[test]
fn a_disk_that_hangs_refuses_calls_before_lines_are_lost() {
    for refuses in [false, true] {
        // The receiver is held, and nothing is taken from it.
        let hanging = || {
            let (messages, received) = sync_channel(MAX_WAITING);
            let log = Log { messages, state: Arc::default(), has_code: false, refuses };
            (Audit(Some(Arc::new(log))), received)
        };
        let (audit, _received) = hanging();
        for _ in 0..MAX_WAITING / 2 {
            audit.begin(&client(), "one");
        }
        assert!(audit.refusal().is_none());
        audit.begin(&client(), "one");
        assert_eq!(audit.refusal().is_some(), refuses);
        let expected = AuditCounts { written: 0, lost: 0, is_failing: refuses };
        assert_eq!(audit.counts().unwrap(), expected);

        let (audit, _received) = hanging();
        for _ in 0..2 {
            assert!(audit.refusal().is_none());
            audit.0.as_ref().unwrap().send("x".repeat(MAX_WAITING_BYTES / 4 + 1));
        }
        assert_eq!(audit.refusal().is_some(), refuses);
        assert_eq!(audit.counts().unwrap(), expected);
    }
}

#[tokio::test]
async fn lines_that_wait_are_written_although_the_server_uses_another_log() {
    let folder = Folder::new();
    let config = folder.config();
    let audit = Audit::open(&config).unwrap();
    folder.go();
    audit.begin(&client(), "one");
    until(|| audit.refusal().is_some()).await;
    audit.begin(&client(), "two");
    drop(audit);
    // The thread tries it more than once.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    folder.come_back();
    until(|| fs::read_to_string(&config.path).is_ok_and(|text| text.lines().count() == 2)).await;
}

/// The text of the server's log.
#[derive(Clone, Default)]
struct Said(Arc<Mutex<Vec<u8>>>);

impl io::Write for Said {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn the_log_says_how_many_lines_are_given_up() {
    let folder = Folder::new();
    let config = folder.config();
    let file = AuditFile::open(&config).unwrap();
    folder.go();
    let (messages, received) = sync_channel(3);
    for _ in 0..3 {
        messages.send(Message::Line("{}\n".to_owned())).unwrap();
    }
    drop(messages);
    let mut writer = Writer::new(file, Arc::default(), true);
    writer.patience = Duration::ZERO;
    let said = Said::default();
    let own = said.clone();
    let log = tracing_subscriber::fmt().with_ansi(false).with_writer(move || own.clone());
    tracing::subscriber::with_default(log.finish(), || writer.run(&received));
    let said = String::from_utf8(said.0.lock().unwrap().clone()).unwrap();
    let line = said.lines().find(|line| line.contains("they are lost")).expect(&said);
    assert!(line.contains("ERROR") && line.contains("lines=3"), "{line}");
    assert!(line.contains(config.path.to_str().unwrap()), "{line}");
}

#[test]
fn a_full_disk_leaves_the_lines_of_other_writers() {
    // A file in memory that must not grow is like one on a full disk.
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let memory = rustix::fs::memfd_create("audit", flags).unwrap();
    fchmod(&memory, Mode::RUSR | Mode::WUSR).unwrap();
    let path = PathBuf::from(format!("/proc/self/fd/{}", memory.as_raw_fd()));
    let config = AuditConfig { path, ..config(Path::new("/")) };
    let mut own = AuditFile::open(&config).unwrap();
    let mut other = AuditFile::open(&config).unwrap();
    other.add("{}\n").unwrap();
    rustix::fs::fcntl_add_seals(&memory, SealFlags::GROW).unwrap();
    own.add("{}\n").unwrap_err();
    assert_eq!(fs::read_to_string(&config.path).unwrap(), "{}\n");
    // It is not locked after the error.
    flock(&memory, FlockOperation::NonBlockingLockExclusive).unwrap();
}

#[test]
fn several_writers_share_a_file_and_its_rotation() {
    let folder = tempfile::tempdir().unwrap();
    let config = AuditConfig { max: ByteSize::bytes(400), keep: 100, ..config(folder.path()) };
    let [mut one, mut two] = [(); 2].map(|()| AuditFile::open(&config).unwrap());
    let add = |file: &mut AuditFile| file.add("{\"tool\":\"x\"}\n").unwrap();
    for _ in 0..50 {
        add(&mut one);
        add(&mut two);
    }
    std::thread::scope(|scope| {
        for file in [&mut one, &mut two] {
            scope.spawn(move || {
                for _ in 0..300 {
                    add(file);
                }
            });
        }
    });
    let files = fs::read_dir(folder.path()).unwrap();
    let files: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    for file in &files {
        assert!(fs::metadata(file).unwrap().len() <= 400, "{}", file.display());
    }
    assert_eq!(files.iter().map(|file| lines(file).len()).sum::<usize>(), 700);
}

#[test]
fn a_line_does_not_wait_for_ever_for_another_writer() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path());
    let mut file = AuditFile::open(&config).unwrap();
    let other = File::open(&config.path).unwrap();
    flock(&other, FlockOperation::LockExclusive).unwrap();
    assert_eq!(file.add("{}\n").unwrap_err().kind(), io::ErrorKind::TimedOut);
    assert_eq!(fs::metadata(&config.path).unwrap().len(), 0);
    flock(&other, FlockOperation::Unlock).unwrap();
    file.add("{}\n").unwrap();
    assert_eq!(lines(&config.path).len(), 1);
}

#[test]
fn a_file_that_others_can_read_or_write_is_refused_also_behind_a_link() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path());
    fs::write(&config.path, "").unwrap();
    let link = AuditConfig { path: folder.path().join("link"), ..config.clone() };
    symlink(&config.path, &link.path).unwrap();
    for (mode, is_refused) in [(0o644, true), (0o620, true), (0o602, true), (0o600, false)] {
        fs::set_permissions(&config.path, Permissions::from_mode(mode)).unwrap();
        for config in [&config, &link] {
            let error = Audit::open(config).err().map(|error| format!("{error:#}"));
            for problem in [error, problem(config)] {
                assert_eq!(problem.is_some(), is_refused, "{mode:o}");
                assert!(problem.is_none_or(|it| it.contains("chmod 600")), "{mode:o}");
            }
        }
    }
}
