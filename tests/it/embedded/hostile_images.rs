//! Images that reach for the host or would end what runs beside them, from their import to a call.

use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::Stdio;

use isolator_pool::engine::store::{Store, Stored};
use isolator_pool::folders;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tar::EntryType::{Block, Char, Directory, Fifo, Regular, Symlink};
use tar::{Builder, EntryType, Header};
use tempfile::TempDir;

use super::launchers;
use crate::common::answer::text_of;
use crate::common::client::Client;
use crate::common::engine::{Engine, Kind, State, embedded};
use crate::common::process::Process;
use crate::common::server::instances;
use crate::common::{PATIENCE, config, isolator, state, write_config};

/// A program that every sandbox has, whatever its image, and what it says.
const PROGRAM: &str = "/.isolator/isolator-runner";
const SAID: &str = "usage: isolator-runner";

/// The sandbox that must not notice the others.
const GOOD: &str = "good";

/// A folder of the host that images try to reach. It is not in `/tmp`, because launchers mount their own there.
struct Bait(TempDir);

impl Bait {
    const FILES: [&str; 3] = ["hostname", "hosts", "resolv.conf"];

    fn new() -> Self {
        let bait = tempfile::Builder::new().prefix("isolator-test-").tempdir_in("/var/tmp");
        let bait = Self(bait.expect("a directory"));
        // The users of sandboxes may write there, as they may in `/var/tmp`.
        fs::set_permissions(bait.0.path(), fs::Permissions::from_mode(0o1777)).expect("ours");
        for file in Self::FILES {
            fs::write(bait.0.path().join(file), "untouched").expect("ours");
        }
        bait
    }

    fn path(&self) -> String {
        self.0.path().display().to_string()
    }

    fn check(&self, what: &str) {
        let entries = fs::read_dir(self.0.path()).expect("ours").flatten();
        let mut found: Vec<_> = entries.map(|entry| entry.file_name()).collect();
        found.sort();
        assert_eq!(found, Self::FILES, "{what}");
        for file in Self::FILES {
            let content = fs::read_to_string(self.0.path().join(file)).expect("ours");
            assert_eq!(content, "untouched", "{what}");
        }
    }
}

/// How an image ends.
enum End {
    /// It is not taken in, for a reason with these words.
    Refused(&'static str),
    /// No sandbox is made from it, for a reason with these words.
    Fails(&'static str),
    /// Its sandboxes work.
    Runs,
}

use End::{Fails, Refused, Runs};

/// An entry of a layer: its path, its kind, its content or target.
type Entry = (String, EntryType, String);

/// Images with what is hostile in each: entries of the layer, and what is in the configuration.
fn images(bait: &str) -> Vec<(&'static str, Vec<Entry>, Value, End)> {
    let one = |path: &str, kind, content: &str| vec![(path.to_owned(), kind, content.to_owned())];
    let link = |path: &str| one(path, Symlink, bait);
    let nothing = || json!({});
    let name = |letter: &str| letter.repeat(255);
    let links_below =
        ["dev/fd", "dev/ptmx", "dev/null", "dev/pts", "dev/shm", "proc/self", "sys/fs"];
    let long_names = [
        (name("d"), Directory, String::new()),
        (name("f"), Regular, String::new()),
        (name("l"), Symlink, name("d")),
    ];
    let most = json!({
        "Env": [format!("A={}", "x".repeat((32 << 10) - 6))],
        "Volumes": volumes((0..32).map(|number| format!("/{number}"))),
    });
    let taken = ["proc", "proc/self", "dev", "dev/null", "sys/fs/cgroup", "tmp/x", ".isolator"];
    let taken = json!({ "Volumes": volumes(taken.map(|path| format!("/{path}"))) });
    let link_file = |file: &str| one(&format!("etc/{file}"), Symlink, &format!("{bait}/{file}"));
    vec![
        ("proc is a link", link("proc"), nothing(), Refused("/proc is a symbolic link")),
        ("dev is a link", link("dev"), nothing(), Refused("/dev is a symbolic link")),
        ("sys is a link", link("sys"), nothing(), Refused("/sys is a symbolic link")),
        ("tmp is a link", link("tmp"), nothing(), Refused("/tmp is a symbolic link")),
        ("etc is a link", link("etc"), nothing(), Refused("/etc is a symbolic link")),
        ("dev is a file", one("dev", Regular, "x"), nothing(), Refused("/dev is a file")),
        ("dev is a FIFO", one("dev", Fifo, ""), nothing(), Refused("FIFO")),
        ("a character device", one("dev/null", Char, ""), nothing(), Refused("device")),
        ("a block device", one("x", Block, ""), nothing(), Refused("device")),
        ("hosts is a folder", one("etc/hosts", Directory, ""), nothing(), Refused("/etc/hosts is")),
        (
            "70 KB of variables",
            one("x", Regular, ""),
            json!({ "Env": [format!("A={}", "x".repeat(70 << 10))] }),
            Refused("variables take"),
        ),
        ("workspace is a link", link("workspace"), nothing(), Fails("/workspace is a symbolic")),
        (
            "workspace is a file",
            one("workspace", Regular, "x"),
            nothing(),
            Fails("/workspace is a file"),
        ),
        ("hosts is a link", link_file("hosts"), nothing(), Runs),
        ("hostname is a link", link_file("hostname"), nothing(), Runs),
        ("resolv.conf is a link", link_file("resolv.conf"), nothing(), Runs),
        ("the runner's folder is a link", link(".isolator"), nothing(), Runs),
        ("the runner is a link", one(".isolator/isolator-runner", Symlink, bait), nothing(), Runs),
        (
            "links below what is mounted",
            links_below.iter().flat_map(|path| link(path)).collect(),
            nothing(),
            Runs,
        ),
        ("a volume is a link", link("data"), json!({ "Volumes": { "/data": {} } }), Runs),
        ("above a volume is a link", link("data"), json!({ "Volumes": { "/data/x": {} } }), Runs),
        ("names of 255 bytes", long_names.to_vec(), nothing(), Runs),
        (
            "a volume's name has 255 bytes",
            one("x", Regular, "x"),
            json!({ "Volumes": { format!("/{}", name("v")): {} } }),
            Runs,
        ),
        ("volumes over what every sandbox has", one("v", Regular, ""), taken, Runs),
        ("as much as is allowed", one("y", Regular, ""), most, Runs),
        ("passwd is a link", one("etc/passwd", Symlink, "/dev/zero"), nothing(), Runs),
        ("passwd is a folder", one("etc/passwd", Directory, ""), nothing(), Runs),
        (
            // Who looks for a home there may wait for ever.
            "passwd never ends",
            one("etc/passwd", Symlink, "/dev/ptmx"),
            json!({ "Env": ["HOME=/", "HOME="] }),
            Runs,
        ),
    ]
}

/// Volumes as a configuration has them.
fn volumes(paths: impl IntoIterator<Item = String>) -> Value {
    paths.into_iter().map(|path| (path, json!({}))).collect()
}

/// An archive as `docker save` writes it, for an image of one layer.
fn archive(entries: &[Entry], config: &Value) -> Vec<u8> {
    let layer = packed(entries);
    let hash: String = Sha256::digest(&layer).iter().map(|byte| format!("{byte:02x}")).collect();
    let config = json!({
        "architecture": if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" },
        "os": "linux",
        "config": config,
        "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{hash}")] },
    });
    let manifest = json!([{ "Config": "config", "RepoTags": null, "Layers": ["layer"] }]);
    let mut archive = Builder::new(Vec::new());
    let texts = [("config", config.to_string()), ("manifest.json", manifest.to_string())];
    for (path, content) in texts.iter().map(|(path, text)| (*path, text.as_bytes())) {
        archive.append_data(&mut header(Regular, content), path, content).expect("in memory");
    }
    archive.append_data(&mut header(Regular, &layer), "layer", &layer[..]).expect("in memory");
    archive.into_inner().expect("in memory")
}

fn packed(entries: &[Entry]) -> Vec<u8> {
    let mut archive = Builder::new(Vec::new());
    for (path, kind, content) in entries {
        let appended = match kind {
            Symlink => archive.append_link(&mut header(Symlink, b""), path, content),
            _ => {
                let content = content.as_bytes();
                archive.append_data(&mut header(*kind, content), path, content)
            }
        };
        appended.expect("in memory");
    }
    archive.into_inner().expect("in memory")
}

fn header(kind: EntryType, content: &[u8]) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(0o755);
    header.set_size(content.len() as u64);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header
}

/// A place for the store, the configuration and the state of a test.
struct Home {
    directory: TempDir,
    store: Store,
    /// Languages, each with an image of its own.
    languages: Value,
}

impl Home {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let store = Store::new(directory.path().join("data/isolator"));
        Self { directory, store, languages: json!({}) }
    }

    /// Takes an image in, and makes a language of it.
    async fn import(&mut self, language: &str, archive: &[u8]) -> Result<Stored, String> {
        let path = self.directory.path().join("archive");
        fs::write(&path, archive).expect("writable");
        let imported = self.store.import(&path, Some(language), &|_| {}).await;
        let imported = imported.map_err(|error| error.to_string())?.remove(0);
        self.languages[language] = json!({
            "image": language,
            "extensions": [format!(".{language}")],
            "defaultFile": format!("main.{language}"),
            "command": [PROGRAM, "{file}"],
            "pool": { "size": usize::from(language == GOOD) },
        });
        Ok(imported)
    }

    /// An image of the store as an earlier version has taken it in, with something that is refused now.
    async fn import_changed(&mut self, language: &str, change: impl FnOnce(&Path)) {
        let entries = [(language.to_owned(), Regular, String::new())];
        let good = self.import(language, &archive(&entries, &json!({}))).await.expect("it is fine");
        change(&self.store.images().join(good.relative_root()));
    }

    fn check_store(&self, what: &str) {
        let staging = self.store.images().with_file_name("staging");
        let left: Vec<_> = fs::read_dir(staging).into_iter().flatten().flatten().collect();
        assert!(left.is_empty(), "{what}: {left:?}");
        assert_eq!(
            self.store.list().expect("readable").len(),
            self.languages.as_object().map_or(0, serde_json::Map::len),
            "{what}"
        );
    }
}

/// A server with the images of a home.
struct Session {
    child: tokio::process::Child,
    client: Client,
    engine: Box<dyn Engine>,
    instance: String,
    /// Its launchers, which must not change.
    launchers: Vec<u32>,
}

impl Session {
    /// Starts the server and waits for the good sandbox.
    async fn start(home: &Home) -> Self {
        let directory = home.directory.path();
        let mut settings = config(&[], json!({ "languageSettings": home.languages }));
        settings["engine"]["kind"] = json!(Kind::Embedded.name());
        write_config(directory, &settings);
        let mut command = isolator(directory);
        command
            .arg("serve")
            .env("XDG_DATA_HOME", directory.join("data"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(File::create(directory.join("log")).expect("writable"));
        let mut child = tokio::process::Command::from(command);
        let mut child = child.kill_on_drop(true).spawn().expect("the server starts");
        let client = Client::open(&mut child).await.expect("the server answers");
        let [instance] = &instances(&state(directory))[..] else { panic!("one instance") };
        let engine = Kind::Embedded.look(&state(directory)).await;
        engine.until_paused(instance, 1).await;
        let instance = instance.clone();
        let mut session = Self { child, client, engine, instance, launchers: Vec::new() };
        session.launchers = session.launchers();
        session
    }

    fn launchers(&self) -> Vec<u32> {
        let server = Process::find(self.child.id().expect("it runs")).expect("it runs");
        launchers(server).iter().map(|launcher| launcher.inner.pid).collect()
    }

    /// Runs a program in a language, and returns what the answer says.
    async fn call(&self, language: &str) -> String {
        let arguments = json!({ "language": language, "entrypoint_code": "x" });
        let call = self.client.call_tool("execute_code", arguments);
        let answer = tokio::time::timeout(PATIENCE, call).await;
        let answer = answer.unwrap_or_else(|_| panic!("{language}: no answer"));
        text_of(&answer.expect("an answer"))
    }

    /// Asserts that sandboxes of the good image work and that no launcher was replaced, and stops the server.
    async fn stop(mut self) {
        assert!(self.call(GOOD).await.contains(SAID));
        assert_eq!(self.launchers(), self.launchers);
        drop(self.client);
        let ended = tokio::time::timeout(PATIENCE, self.child.wait()).await;
        assert!(ended.expect("the server ends").expect("it can be waited for").success());
        self.engine.assert_nothing_left(&self.instance).await;
    }
}

#[tokio::test]
async fn images_that_reach_for_the_host_are_refused_or_reach_nothing() {
    let bait = Bait::new();
    let mut home = Home::new();
    let entries = [(GOOD.to_owned(), Regular, String::new())];
    home.import(GOOD, &archive(&entries, &json!({}))).await.expect("it is fine");
    let mut calls = Vec::new();
    for (number, (what, entries, config, end)) in images(&bait.path()).into_iter().enumerate() {
        let language = format!("image{number}");
        let imported = home.import(&language, &archive(&entries, &config)).await;
        match (imported, end) {
            (Err(error), Refused(words)) => assert!(error.contains(words), "{what}: {error}"),
            (Ok(_), Fails(words)) => calls.push((what.to_owned(), language, words)),
            (Ok(_), Runs) => calls.push((what.to_owned(), language, SAID)),
            (imported, _) => panic!("{what}: {imported:?}"),
        }
        home.check_store(what);
        bait.check(what);
    }
    for place in ["proc", "dev", "sys", "tmp", "etc", "workspace"] {
        let language = format!("old-{place}");
        let change = |root: &Path| {
            folders::remove(&root.join(place)).expect("ours");
            symlink(bait.0.path(), root.join(place)).expect("ours");
        };
        home.import_changed(&language, change).await;
        let what = format!("{place} of an image of an earlier version is a link");
        calls.push((what, language, "is a symbolic link"));
    }
    let change = |root: &Path| {
        let path = root.with_file_name("image.json");
        let description = fs::read_to_string(&path).expect("ours");
        let mut description: Value = serde_json::from_str(&description).expect("JSON");
        description["env"] = json!([format!("A={}", "x".repeat(70 << 10))]);
        fs::write(path, description.to_string()).expect("ours");
    };
    home.import_changed("old-env", change).await;
    let what = "70 KB of variables of an image of an earlier version";
    calls.push((what.to_owned(), "old-env".to_owned(), "fewer variables"));

    let session = Session::start(&home).await;
    for (what, language, words) in calls {
        let said = session.call(&language).await;
        assert!(said.contains(words), "{what}: {said}");
        bait.check(&what);
    }
    session.stop().await;
}

#[tokio::test]
async fn an_image_influences_nothing_before_its_programs() {
    let mut home = Home::new();
    let passwd = "user:x:1000:1000::/elsewhere:/bin/sh\n".to_owned();
    let nsswitch = "passwd: files\n".to_owned();
    let entries = [
        ("etc/passwd".to_owned(), Regular, passwd),
        ("etc/nsswitch.conf".to_owned(), Regular, nsswitch),
    ];
    let config = json!({ "Env": ["HOME="], "Volumes": { "/data/deep": {} } });
    home.import(GOOD, &archive(&entries, &config)).await.expect("it is fine");
    let session = Session::start(&home).await;
    let sandbox = session.engine.in_state(&session.instance, State::Paused).await.remove(0);
    let look = embedded::Bystander::new(&state(home.directory.path()));
    let first = look.first_process(&sandbox).expect("a process");

    // Who looks for the user's home loads libraries of the image, and no filter of system calls holds yet.
    let environment = first.read("environ");
    assert!(environment.split('\0').any(|variable| variable == "HOME=/"), "{environment:?}");

    let mounts = first.mounts();
    // What is below a mount is not in the image.
    let known = [
        "/proc",
        "/dev",
        "/sys",
        "/tmp",
        "/workspace",
        "/etc/hosts",
        "/etc/hostname",
        "/etc/resolv.conf",
        "/data/deep",
    ];
    for target in mounts.iter().map(|mount| mount.target.as_str()).filter(|target| *target != "/") {
        let is_known = known.iter().any(|known| Path::new(target).starts_with(known));
        assert!(is_known, "the store does not refuse a link at {target}");
    }
    assert!(known.iter().all(|known| mounts.iter().any(|mount| mount.target == *known)));
    session.stop().await;
}

#[test]
fn a_launcher_rejects_unreadable_requests_and_continues() {
    let home = tempfile::tempdir().expect("a directory");
    let (ours, theirs) = UnixDatagram::pair().expect("sockets");
    ours.set_read_timeout(Some(PATIENCE)).expect("it can be set");
    let mut launcher = isolator(home.path());
    let launcher = launcher.arg("launcher").stdin(OwnedFd::from(theirs)).spawn();
    let mut launcher = launcher.expect("it starts");
    let say = |message: &str| ours.send(message.as_bytes()).expect("it is there");
    let heard = || -> Value {
        let mut answer = vec![0; 1 << 16];
        let length = ours.recv(&mut answer).expect("an answer");
        serde_json::from_slice(&answer[..length]).expect("JSON")
    };
    let paths = json!({
        "images": home.path(), "shared": home.path(), "groups": null, "building": null,
        "devices": "Host",
    });
    say(&json!({ "Begin": paths }).to_string());
    assert_eq!(heard(), json!("Ready"));
    let create = |name: &str, spec: Value| {
        let kind = json!("Build");
        let create = json!({ "kind": kind, "spec": spec }).to_string();
        // The name comes first, as the server has it.
        format!(r#"{{"Create":{{"name":"{name}",{}}}"#, &create[1..])
    };
    say("no message");
    say(&create("cut", json!("x".repeat(70 << 10))));
    say(&create("half", json!({}))[..30]);
    say(&create("whole", json!({})));
    for (name, words) in [("cut", "more than"), ("half", "EOF"), ("whole", "")] {
        let answer = heard();
        assert_eq!(answer["Created"]["name"], name, "{answer}");
        let error = answer["Created"]["error"].as_str().expect("an error");
        assert!(error.contains(words), "{error}");
    }
    launcher.kill().expect("it runs");
    launcher.wait().expect("it was killed");
}
