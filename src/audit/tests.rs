//! The log as its readers find it.

use std::path::Path;
use std::time::Instant;

use isolator_pool::run::outcome::Status;
use serde_json::Value;

use super::*;

fn config(folder: &Path) -> AuditConfig {
    let path = folder.join("audit.jsonl");
    AuditConfig { path, max: 1 << 20, keep: 2, code: false, refuses: false }
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
async fn a_line_says_what_ran_and_not_the_code_itself() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = config(folder.path());
    for has_code in [false, true] {
        config.code = has_code;
        let audit = Audit::open(Some(&config)).unwrap();
        let mut note = audit.begin(&client(), "execute_code");
        note.place("python", Some("handle"));
        note.code("print('secret\u{202e}')");
        let files: [(&str, &[u8]); 2] =
            [("main.py", "print('secret\u{202e}')".as_bytes()), ("a.csv", b"1,2\n")];
        note.files(files);
        note.ran(&isolator_pool::run::outcome::Outcome::of(Status::Timeout), None);
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
async fn a_call_that_nobody_waits_for_anymore_has_a_line_as_well() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path());
    let audit = Audit::open(Some(&config)).unwrap();
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
    let config = AuditConfig { max: 2000, ..config(folder.path()) };
    let audit = Audit::open(Some(&config)).unwrap();
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
    let audit = Audit::open(Some(&config)).unwrap();
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
async fn what_can_not_be_written_is_refused_at_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let at = |path: &str| AuditConfig { path: path.into(), ..config(folder.path()) };
    let pipe = folder.path().join("pipe");
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    let node = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, node, mode, 0).unwrap();
    for path in [FULL, folder.path().to_str().unwrap(), "/nowhere/audit", pipe.to_str().unwrap()] {
        let error = Audit::open(Some(&at(path))).unwrap_err();
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
        let config = AuditConfig { refuses, ..config(&inside) };
        let audit = Audit::open(Some(&config)).unwrap();
        // Nobody, not even root, makes a file in a folder that is gone.
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
