//! The restrictions of a sandbox, read by a program inside it.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;

use crate::common::engine::Kind;
use crate::common::eventually;
use crate::common::server::Server;
use serde_json::{Value, json};

/// The beginning of these programs: an attempt's error as its symbolic name, or "allowed".
const PRELUDE: &str = r#"
import ctypes, errno, json, os, socket, sys
def attempt(action):
    try:
        action()
    except OSError as error:
        return errno.errorcode[error.errno]
    return 'allowed'
libc = ctypes.CDLL(None, use_errno=True)
def call(function, *arguments):
    if function(*arguments) == -1:
        raise OSError(ctypes.get_errno(), 'refused')
"#;

/// MiB that Python's sandboxes have for the modules that wait in them, beside the program's memory.
const MODULES: u64 = 128;

/// Runs a program in the default sandbox of a new server and returns what it prints.
async fn inside(program: &str) -> Value {
    let server = Server::python().await;
    let answer = server.run_python(&format!("{PRELUDE}{program}")).await.json();
    server.stop().await;
    answer
}

/// Asserts that each attempt ended with one of the errors.
fn assert_refused(attempts: &Value, errors: &[&str]) {
    let attempts = attempts.as_object().expect("an object");
    assert!(!attempts.is_empty());
    for (attempt, result) in attempts {
        let result = result.as_str().expect("a name");
        assert!(errors.contains(&result), "{attempt}: {result}, not one of {errors:?}");
    }
}

#[tokio::test]
async fn a_program_has_no_privileges_and_can_get_none() {
    let status = inside(
        "status = dict(line.rstrip('\\n').split(':\\t', 1) for line in open('/proc/self/status')\n\
         \x20   if ':\\t' in line)\n\
         print(json.dumps(status))",
    )
    .await;
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert_eq!(status[set], "0000000000000000", "{set}");
    }
    assert_eq!(status["NoNewPrivs"], "1");
    assert_eq!(status["Seccomp"], "2", "a filter");
    assert_eq!(status["Uid"], "1000\t1000\t1000\t1000");
    assert_eq!(status["Gid"], "1000\t1000\t1000\t1000");
    let groups = status["Groups"].as_str().unwrap_or_default().trim();
    assert!(groups.is_empty() || groups == "1000", "{groups:?}");
}

#[tokio::test]
async fn only_the_loopback_interface_is_there() {
    let found = inside(
        "def dial(): socket.create_connection(('192.0.2.1', 80), 5)\n\
         with socket.create_server(('127.0.0.1', 0)) as server:\n\
         \x20   socket.create_connection(server.getsockname(), 5).close()\n\
         print(json.dumps([os.listdir('/sys/class/net'), attempt(dial)]))",
    )
    .await;
    assert_eq!(found, json!([["lo"], "ENETUNREACH"]));
}

#[tokio::test]
async fn only_the_workspace_and_tmp_are_writable() {
    let found = inside(
        "def write(place):\n\
         \x20   path = f'{place}/written'\n\
         \x20   open(path, 'w').close()\n\
         \x20   os.remove(path)\n\
         places = ['', '/etc', '/usr', '/usr/bin', '/var', '/home', '/root', '/run',\n\
         \x20   '/opt', '/dev', '/proc', '/sys', '/sys/fs/cgroup', '/.isolator']\n\
         refused = {p or '/': attempt(lambda: write(p)) for p in places}\n\
         linked = os.readlink('/var/tmp')\n\
         allowed = {p: attempt(lambda: write(p)) for p in ['/workspace', '/tmp', '/dev/shm']}\n\
         read_only = bool(os.statvfs('/').f_flag & os.ST_RDONLY)\n\
         print(json.dumps([refused, allowed, read_only, linked]))",
    )
    .await;
    assert_refused(&found[0], &["EROFS", "EACCES", "EPERM", "ENOENT"]);
    let allowed = json!({ "/workspace": "allowed", "/tmp": "allowed", "/dev/shm": "allowed" });
    assert_eq!(found[1], allowed);
    assert_eq!(found[2], true);
    assert_eq!(found[3], "/tmp", "no folder of its own");
}

#[tokio::test]
async fn a_writable_root_is_written_by_one_program_and_read_by_no_other() {
    let settings = json!({
        "defaultReadOnlyRootfs": false,
        // So that the image's own folder of this name, which everybody may write to, is part of the root.
        "defaultContainerWorkdir": "/var/work",
        "languageSettings": { "python": { "tmpMB": 8 } },
    });
    let server = Server::with("python", settings).await;
    let code = "left = '/workspace/left'\n\
                found = os.path.exists(left)\n\
                def fill():\n\
                \x20   with open(left, 'wb', 0) as file:\n\
                \x20       for _ in range(16): file.write(bytes(1 << 20))\n\
                def replace(): open(json.__file__, 'w').close()\n\
                print(json.dumps([found, attempt(fill), attempt(replace)]))";
    for _ in 0..3 {
        let found = server.run_python(&format!("{PRELUDE}{code}")).await.json();
        assert_eq!(found[0], false);
        let filled = if Kind::chosen() == Kind::Embedded { "ENOSPC" } else { "allowed" };
        assert_eq!(found[1], filled);
        assert_refused(&json!({ "replace": found[2] }), &["EACCES", "EPERM"]);
    }
    server.stop().await;
}

#[tokio::test]
async fn writes_are_limited_in_bytes_and_files() {
    let found = inside(
        "def size(place):\n\
         \x20   disk = os.statvfs(place)\n\
         \x20   nosuid = bool(disk.f_flag & os.ST_NOSUID)\n\
         \x20   return [disk.f_blocks * disk.f_frsize, disk.f_files, nosuid]\n\
         print(json.dumps([size(p) for p in ['/workspace', '/tmp', '/dev/shm']]))",
    )
    .await;
    // A quarter each of the 256 MiB.
    for (place, disk) in ["workspace", "tmp"].into_iter().zip(found.as_array().unwrap()) {
        assert_eq!(disk[0], 64 << 20, "{place}");
        let files = disk[1].as_u64().unwrap();
        assert!((1000..=100_000).contains(&files), "{place}: {files}");
        assert_eq!(disk[2], true, "{place}");
    }
    assert!(found[2][0].as_u64().unwrap() <= 64 << 20, "{found}");
}

#[tokio::test]
async fn processes_and_descriptors_are_limited() {
    // After a moment, the interpreters that the program did not need are gone.
    let found = inside(
        "import resource, time\n\
         time.sleep(0.5)\n\
         def first(*names):\n\
         \x20   for name in names:\n\
         \x20       try: return open('/sys/fs/cgroup/' + name).read().strip()\n\
         \x20       except OSError: pass\n\
         kinds = ['NOFILE', 'CORE', 'MEMLOCK', 'NICE', 'RTPRIO']\n\
         limits = {kind: resource.getrlimit(getattr(resource, 'RLIMIT_' + kind)) for kind in kinds}\n\
         print(json.dumps([limits, first('pids/pids.max', 'pids.max')]))",
    )
    .await;
    let limits = json!({
        "NOFILE": [1024, 1024],
        "CORE": [1, 1],
        "MEMLOCK": [64 << 10, 64 << 10],
        "NICE": [0, 0],
        "RTPRIO": [0, 0],
    });
    assert_eq!(found, json!([limits, "64"]));
}

/// The kernel's setting for core dumps, put back when this is dropped.
struct CorePattern(String);

impl CorePattern {
    const FILE: &str = "/proc/sys/kernel/core_pattern";

    fn set(pattern: &str) -> Self {
        let before = Self(std::fs::read_to_string(Self::FILE).unwrap());
        std::fs::write(Self::FILE, pattern).unwrap();
        before
    }
}

impl Drop for CorePattern {
    fn drop(&mut self) {
        std::fs::write(Self::FILE, &self.0).unwrap();
    }
}

#[tokio::test]
async fn a_program_that_aborts_starts_nothing_on_the_host() {
    let folder = tempfile::tempdir().unwrap();
    let (handler, seen) = (folder.path().join("handler"), folder.path().join("seen"));
    std::fs::write(&handler, format!("#!/bin/sh\necho \"$1\" >> {}\n", seen.display())).unwrap();
    std::fs::set_permissions(&handler, Permissions::from_mode(0o755)).unwrap();
    let _restored = CorePattern::set(&format!("|{} %e", handler.display()));
    let found = inside(
        "import resource\n\
         def limit(new): resource.setrlimit(resource.RLIMIT_CORE, new)\n\
         libc.prctl(15, b'dumps-inside')\n\
         attempts = [attempt(lambda: limit(new)) for new in [(0, 0), (0, 1), (-1, -1)]]\n\
         child = os.fork()\n\
         if child == 0: os.abort()\n\
         ended = os.waitpid(child, 0)[1]\n\
         print(json.dumps([attempts, resource.getrlimit(resource.RLIMIT_CORE), ended]))",
    )
    .await;
    // SIGABRT, without a core dump.
    assert_eq!(found, json!([["allowed", "allowed", "allowed"], [1, 1], 6]));

    // The handler works: it is started for a program outside, whose limit is zero.
    let outside = folder.path().join("dumps-outside");
    std::os::unix::fs::symlink("/bin/sh", &outside).unwrap();
    std::process::Command::new(&outside)
        .args(["-c", "ulimit -c 0; kill -ABRT $$"])
        .status()
        .unwrap();
    let names = || std::fs::read_to_string(&seen).unwrap_or_default();
    eventually("the handler is started", async || names().contains("dumps-outside")).await;
    assert!(!names().contains("dumps-inside"), "{}", names());
}

#[tokio::test]
async fn the_runner_is_out_of_reach_of_programs() {
    let found = inside(
        "runners = [int(pid) for pid in os.listdir('/proc') if pid.isdigit()\n\
         \x20   and open(f'/proc/{pid}/comm').read().startswith('isolator')]\n\
         runner = max(runners)\n\
         binary = '/.isolator/isolator-runner'\n\
         print(json.dumps([len(runners), {\n\
         \x20   'memory': attempt(lambda: open(f'/proc/{runner}/mem', 'rb').read(1)),\n\
         \x20   'descriptors': attempt(lambda: os.listdir(f'/proc/{runner}/fd')),\n\
         \x20   'stdout': attempt(lambda: open(f'/proc/{runner}/fd/1', 'wb')),\n\
         \x20   'environment': attempt(lambda: open(f'/proc/{runner}/environ', 'rb').read()),\n\
         \x20   'write': attempt(lambda: open(binary, 'r+b')),\n\
         \x20   'remove': attempt(lambda: os.remove(binary)),\n\
         \x20   'mode': attempt(lambda: os.chmod(binary, 0o777)),\n\
         \x20   'attach': attempt(lambda: call(libc.ptrace, 16, runner, 0, 0)),\n\
         }]))",
    )
    .await;
    // On Docker process 1 only waits, and the runner came to it.
    let runners = match Kind::chosen() {
        Kind::Docker => 2,
        Kind::Embedded => 1,
    };
    assert_eq!(found[0], runners);
    assert_refused(&found[1], &["EACCES", "EPERM", "EROFS", "ENOSYS"]);
}

#[tokio::test]
async fn system_calls_are_filtered_by_our_own_profile() {
    // The engine's default filter lets AF_VSOCK and io_uring through, on some versions AF_ALG.
    let found = inside(
        "families = {'AF_VSOCK': 40, 'AF_ALG': 38, 'AF_PACKET': 17, 'AF_BLUETOOTH': 31}\n\
         sockets = {name: attempt(lambda: socket.socket(family, socket.SOCK_STREAM, 0))\n\
         \x20   for name, family in families.items()}\n\
         numbers = {'x86_64': dict(io_uring_setup=425, keyctl=250, bpf=321, perf_event_open=298,\n\
         \x20       userfaultfd=323, open_by_handle_at=304, init_module=175, kexec_load=246),\n\
         \x20   'aarch64': dict(io_uring_setup=425, keyctl=219, bpf=280, perf_event_open=241,\n\
         \x20       userfaultfd=282, open_by_handle_at=265, init_module=105, kexec_load=104)}\n\
         calls = {name: attempt(lambda: call(libc.syscall, number, 0, 0, 0, 0, 0))\n\
         \x20   for name, number in numbers[os.uname().machine].items()}\n\
         for name, flag in {'user': 0x10000000, 'net': 0x40000000, 'mount': 0x20000}.items():\n\
         \x20   calls[f'unshare {name}'] = attempt(lambda: call(libc.unshare, flag))\n\
         calls['setns'] = attempt(lambda: call(libc.setns, 0, 0))\n\
         calls['mount'] = attempt(lambda: call(libc.mount, b'none', b'/tmp', b'tmpfs', 0, None))\n\
         calls['ptrace'] = attempt(lambda: call(libc.ptrace, 0, 0, 0, 0))\n\
         calls['chroot'] = attempt(lambda: call(libc.chroot, b'/tmp'))\n\
         print(json.dumps([sockets, calls]))",
    )
    .await;
    assert_refused(&found[0], &["EAFNOSUPPORT", "EPROTONOSUPPORT", "EPERM", "ENOSYS", "EACCES"]);
    assert_refused(&found[1], &["EPERM", "ENOSYS"]);
}

#[tokio::test]
async fn ordinary_programs_work() {
    let found = inside(
        "import multiprocessing, subprocess, tempfile, threading\n\
         def square(n): return n * n\n\
         if __name__ == '__main__':\n\
         \x20   with multiprocessing.Pool(2) as pool: squares = pool.map(square, range(4))\n\
         \x20   thread = threading.Thread(target=squares.append, args=[16])\n\
         \x20   thread.start(); thread.join()\n\
         \x20   shell = subprocess.run(['sh', '-c', 'echo $((6 * 7)) | cat'],\n\
         \x20       capture_output=True, text=True).stdout\n\
         \x20   with tempfile.NamedTemporaryFile('w', suffix='.sh', delete=False) as script:\n\
         \x20       script.write('#!/bin/sh\\necho from tmp')\n\
         \x20   os.chmod(script.name, 0o755)\n\
         \x20   script = subprocess.run([script.name], capture_output=True, text=True).stdout\n\
         \x20   a, b = socket.socketpair(); a.send(b'x')\n\
         \x20   print(json.dumps([squares, shell, script, b.recv(1).decode()]))",
    )
    .await;
    assert_eq!(found, json!([[0, 1, 4, 9, 16], "42\n", "from tmp\n", "x"]));
}

#[tokio::test]
async fn the_images_have_no_setuid_files() {
    let directory = tempfile::tempdir().expect("a directory");
    let engine = crate::common::look(directory.path()).await;
    for image in ["isolator/python", "isolator/javascript", "isolator/go"] {
        let files = engine.files(image).await;
        // The shell is in all of them.
        assert!(files.iter().any(|(path, _)| path.ends_with("bin/dash")), "{image}");
        assert!(files.len() > 1000, "{image} has more than {} files", files.len());
        let found: Vec<_> = files.iter().filter(|(_, mode)| mode & 0o6000 != 0).collect();
        assert!(found.is_empty(), "{image}: {found:?}");
    }
}

#[tokio::test]
async fn limits_follow_the_configuration() {
    let settings = json!({
        "defaultPidsLimit": 20,
        "defaultMemoryMB": 128,
        "languageSettings": { "python": {
            "user": "4321:4322", "workspaceMB": 16, "tmpMB": 8, "env": { "SET": "by the operator" },
        } },
        "limits": { "openFiles": 100 },
    });
    let server = Server::with("python", settings).await;
    let code = "import json, os, resource\n\
                size = lambda p: os.statvfs(p).f_blocks * os.statvfs(p).f_frsize >> 20\n\
                print(json.dumps([os.getuid(), os.getgid(), size('/workspace'), size('/tmp'),\n\
                \x20   resource.getrlimit(resource.RLIMIT_NOFILE)[1], os.environ['SET']]))";
    let found = server.run_python(code).await.json();
    assert_eq!(found, json!([4321, 4322, 16, 8, 100, "by the operator"]));
    let sandboxes = server.wait_until_ready().await;
    let limits = server.engine.limits(&sandboxes[0]).await;
    // Besides the program, the interpreters that wait in it have what they really take.
    assert!((128..128 + MODULES).contains(&(limits.memory >> 20)), "{limits:?}");
    assert_eq!(limits.processes, 20 + 1);
    server.stop().await;
}
