//! Builds whose packages are hostile: what they reach of the host, and what they may take of it.

use std::fs;
use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Duration;

use crate::common::eventually;
use isolator_pool::engine::EngineError;
use isolator_pool::engine::embedded::{EmbeddedEngine, ImageBuild, Settings};
use isolator_pool::engine::instance::Instance;
use isolator_pool::engine::store::{Description, Store, Stored};
use isolator_pool::sandbox::sweep::sweep_own;
use tar::{Builder, Header};
use tempfile::TempDir;

const ATTEMPTS: &[u8] = include_bytes!("hostile_install.py");

/// The name that images are built under.
const NAME: &str = "test/built";

/// An engine with a store of its own, which builds from an image of the user's store.
struct Bench {
    engine: EmbeddedEngine,
    base: Stored,
    instance: Instance,
    directory: TempDir,
}

impl Bench {
    fn new() -> Self {
        let directory = tempfile::tempdir_in("/var/tmp").expect("a directory");
        let instance = Instance::register(&directory.path().join("instances")).expect("writable");
        let settings = Settings {
            program: env!("CARGO_BIN_EXE_isolator").into(),
            runner: b"",
            template: b"",
            images: directory.path().join("images"),
            packages: directory.path().join("packages"),
            state: directory.path().join("embedded"),
            favordynmods: false,
        };
        // Launchers mount it, and nothing is in this store yet.
        fs::create_dir_all(settings.images.join("images")).expect("writable");
        let base = Store::new(users_store()).find("isolator/python").expect("a store");
        Self {
            engine: EmbeddedEngine::new(settings, &instance),
            base: base.expect("make images builds it"),
            instance,
            directory,
        }
    }

    /// Builds an image with a script, and returns how that ended and what was printed.
    async fn build(&self, script: &str) -> (Result<(), EngineError>, Vec<String>) {
        let mut context = Builder::new(Vec::new());
        let files = [("install.sh", script.as_bytes()), ("hostile_install.py", ATTEMPTS)];
        for (name, content) in files {
            let mut header = Header::new_gnu();
            header.set_mode(0o755);
            header.set_size(content.len() as u64);
            context.append_data(&mut header, name, content).expect("in memory");
        }
        let build = ImageBuild {
            name: NAME,
            base: &self.base,
            context: context.into_inner().expect("in memory"),
            description: Description::default(),
        };
        let lines = Mutex::new(Vec::new());
        let progress = |line: &str| lines.lock().expect("no panic").push(line.to_owned());
        let ended = self.engine.build_image(build, &progress).await;
        (ended, lines.into_inner().expect("no panic"))
    }
}

/// Where `isolator image build` puts images.
fn users_store() -> PathBuf {
    let data = std::env::var_os("XDG_DATA_HOME").map(PathBuf::from);
    let home = || PathBuf::from(std::env::var_os("HOME").expect("a home")).join(".local/share");
    data.unwrap_or_else(home).join("isolator")
}

#[tokio::test]
async fn a_hostile_package_reaches_nothing_of_the_host() {
    let socket = format!("isolator-test-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(&socket).expect("a name");
    let _socket = UnixListener::bind_addr(&address).expect("a socket");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("bound").port();
    let secret = tempfile::NamedTempFile::new_in("/var/tmp").expect("a file");
    let secret = secret.path();
    let disk = fs::metadata("/").expect("readable").dev();
    let script = format!(
        "#!/bin/sh\nset -e\n\
         python3 /build/hostile_install.py {socket} {port} {} {disk}\n\
         mkdir /made; touch /made/root /made/user; chown 1000:1000 /made/user\n\
         chmod 4755 /made/root; printf '\\033]0;title\\007\\n'\n\
         # Scripts may change the files of the network.\n\
         : >>/etc/hosts; : >>/etc/resolv.conf\n",
        secret.display(),
    );
    let bench = Bench::new();
    let (ended, lines) = bench.build(&script).await;
    ended.unwrap_or_else(|error| panic!("{error}: {lines:?}"));

    let attempts: Vec<_> = lines.iter().filter(|line| line.contains(": ")).collect();
    assert_eq!(attempts.len(), 16, "{lines:?}");
    let reached: Vec<_> = attempts.iter().filter(|line| line.ends_with(": done")).collect();
    assert!(reached.is_empty(), "{reached:?}");
    assert!(lines.iter().all(|line| !line.contains('\x1b')), "{lines:?}");
    listener.set_nonblocking(true).expect("it can be set");
    assert!(listener.accept().is_err(), "a build has connected");

    let built = bench.engine.store().find(NAME).expect("readable").expect("built");
    let made = bench.engine.store().images().join(built.relative_root()).join("made");
    let file = |name: &str| fs::metadata(made.join(name)).expect("made");
    let (root, user) = (file("root"), file("user"));
    assert_eq!((root.uid(), root.gid(), user.uid(), user.gid()), (0, 0, 1000, 1000));
    assert_eq!(root.permissions().mode() & 0o7777, 0o755, "the set-ID bit is gone");
}

#[tokio::test]
async fn a_build_that_takes_too_much_is_ended() {
    let bench = Bench::new();
    let memory = "exec python3 -c 'x = bytearray(5 << 30); print(len(x))'";
    let processes = "exec python3 -c '\nimport os, time\nwhile True:\n    try:\n        if os.fork() == 0:\n            \
         time.sleep(999)\n    except OSError: pass'";
    for (script, words) in
        [(memory, "more than 4096 MiB of memory"), (processes, "more than 2048 processes")]
    {
        let (ended, lines) = bench.build(&format!("#!/bin/sh\n{script}\n")).await;
        let error = ended.expect_err(words).to_string();
        assert!(error.contains(words), "{error}: {lines:?}");
    }
    assert!(bench.engine.store().list().expect("readable").is_empty());
}

#[tokio::test]
async fn a_build_that_fails_or_is_given_up_leaves_nothing() {
    let bench = Bench::new();
    let staged =
        || fs::read_dir(bench.directory.path().join("images/staging")).map(Iterator::count);
    bench.build("#!/bin/sh\nexit 1\n").await.0.expect_err("it fails");
    assert_eq!(staged().expect("readable"), 0);
    // However deep it is.
    let deep = "#!/usr/bin/python3\nimport os\nos.chdir('/')\nfor _ in range(5000):\n    os.mkdir('d')\n    os.chdir('d')\n";
    bench.build(deep).await.0.expect_err("no image can be so deep");
    assert_eq!(staged().expect("readable"), 0);

    // The server stops in the middle of it.
    let build = bench.build("#!/bin/sh\nsleep 600\n");
    tokio::time::timeout(Duration::from_secs(5), build).await.expect_err("it takes longer");
    sweep_own(&bench.engine, &bench.instance).await.expect("everything can be removed");
    assert_eq!(fs::read_dir(bench.directory.path().join("embedded")).map_or(0, Iterator::count), 0);
    // What a killed server has left of a build, the next one removes.
    let next = bench.engine.store().stage().await.expect("writable");
    next.discard().await;
    // What was given up is removed in the background.
    eventually("nothing is staged", async || staged().expect("readable") == 0).await;
}
