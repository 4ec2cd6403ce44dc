//! Sandboxes made without root.

use std::env;
use std::fs;
use std::io::{BufRead, BufReader, Lines, Write};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use isolator_pool::folders;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tempfile::TempDir;

use super::on_embedded;
use crate::common::process::Process;
use crate::common::{Finished, PATIENCE, isolator, run_command, write_config};

/// A user that every system has, without anything of its own.
const USER: &str = "daemon";

/// Commands that this user runs before it becomes the program, in a mount namespace in which it was granted users
/// and sees the images of who runs the tests.
const SCRIPT: &str = r#"
set -eu
home=$1 data=$2 group=$3; shift 3
[ -z "$group" ] || echo $$ > "$group/cgroup.procs"
for file in subuid subgid; do mount --bind "$home/$file" "/etc/$file"; done
mount --bind "$data" "$home/data/isolator"
if [ -d "$home/packages" ]; then
    chown -R daemon "$home/packages"
    mkdir -p "$data/packages"
    mount --bind "$home/packages" "$home/data/isolator/packages"
fi
exec setpriv --reuid daemon --regid daemon --clear-groups "$@"
"#;

/// A home of the user.
struct Home(TempDir);

impl Home {
    /// One in which the user was granted other users, or not.
    fn new(granted: bool) -> Self {
        let home = Self(tempfile::tempdir().expect("a directory"));
        let path = home.0.path();
        let everybody = fs::Permissions::from_mode(0o777);
        fs::set_permissions(path, everybody).expect("ours");
        write_config(path, &on_embedded(json!({})));
        // What is mounted over in a sandbox has its place in the image from now on, which only root may
        // make in an image of root's.
        let root = run_command(isolator(path).args(["run", "--language", "python", "-"]), "");
        assert_eq!(root.code, Some(0), "{root:?}");
        folders::remove(&path.join("state")).expect("root's");

        fs::create_dir_all(path.join("data/isolator")).expect("writable");
        let grant = if granted { format!("{USER}:2000000000:65536\n") } else { String::new() };
        for file in ["subuid", "subgid"] {
            fs::write(path.join(file), &grant).expect("writable");
        }
        // Where the tests are built, the user may have no way in.
        fs::copy(env!("CARGO_BIN_EXE_isolator"), path.join("isolator")).expect("writable");
        home
    }

    /// The same, whose server may run programs without limits.
    fn allow_unlimited(self) -> Self {
        let config = on_embedded(json!({ "engine": { "allowUnlimited": true } }));
        write_config(self.0.path(), &config);
        self
    }

    /// The same, whose store of packages has a set with one module. `target` is what it was built for.
    fn with_set(self, name: &str, target: &str) -> Self {
        let packages =
            json!({ "sets": { name: { "language": "python", "requirements": [name] } } });
        let config = json!({ "engine": { "allowUnlimited": true }, "packages": packages });
        write_config(self.0.path(), &on_embedded(config));
        let hash = "5e7".repeat(22)[..64].to_owned();
        let set = self.0.path().join("packages/sets").join(&hash);
        let folders = ["lib", "lib/python3.13", "lib/python3.13/site-packages"];
        let module = format!("{}/{name}.py", folders[2]);
        let code = "weight = 3\n";
        fs::create_dir_all(set.join("files").join(folders[2])).expect("writable");
        fs::write(set.join("files").join(&module), code).expect("writable");
        let sha256 = |text: &str| -> String {
            Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect()
        };
        let mut manifest: String =
            folders.iter().map(|folder| format!("folder {folder}\n")).collect();
        manifest += &format!("file {} {module}\n", sha256(code));
        let described = json!({ "manifest": sha256(&manifest), "hash": hash, "interpreter": "python",
            "target": target, "requirements": [name], "modules": [name], "bytes": code.len(),
            "packages": [{ "name": name, "version": "1", "wantedBy": [] }],
            "built": { "secs_since_epoch": 1_000_000_000, "nanos_since_epoch": 0 } });
        for (file, text) in
            [("manifest", manifest), ("used", String::new()), ("set.json", described.to_string())]
        {
            fs::write(set.join(file), text).expect("writable");
        }
        self
    }

    /// Runs the binary as the user, in a control group.
    fn run(&self, group: Option<&Path>, arguments: &[&str], stdin: &str) -> Finished {
        run_command(&mut self.command(group, arguments), stdin)
    }

    /// The command that does so.
    fn command(&self, group: Option<&Path>, arguments: &[&str]) -> Command {
        let home = self.0.path();
        let mut command = Command::new("unshare");
        command
            .args(["--mount", "sh", "-c", SCRIPT, "sh"])
            .args([home, &data(), group.unwrap_or(Path::new(""))])
            .arg(home.join("isolator"))
            .args(arguments)
            .current_dir(home)
            .env("HOME", home)
            .env("XDG_DATA_HOME", home.join("data"))
            .env("XDG_STATE_HOME", home.join("state"))
            .env("XDG_CONFIG_HOME", home.join("config"))
            .env_remove("ISOLATOR_CONFIG");
        command
    }
}

/// Where the images are that the tests run in.
fn data() -> PathBuf {
    let data = env::var_os("XDG_DATA_HOME").map(PathBuf::from);
    let of_home = || Path::new(&env::var_os("HOME").expect("a home")).join(".local/share");
    data.unwrap_or_else(of_home).join("isolator")
}

/// Tells, as numbers of the host and of the sandbox, who a program is and how much of the machine it sees.
const WHO: &str = "import os\n\
    ids = open('/proc/self/uid_map').read().split()\n\
    print(os.getuid(), ids[1] != '0', os.path.exists('/root/.bashrc'))\n";

#[test]
fn doctor_tells_a_socket_without_permission_from_no_docker() {
    let home = Home::new(false);
    let socket = home.0.path().join("docker.sock");
    let _listener = UnixListener::bind(&socket).expect("a socket");
    fs::set_permissions(&socket, fs::Permissions::from_mode(0o600)).expect("ours");
    let mut command = home.command(None, &["--engine", "docker", "doctor"]);
    let refused =
        run_command(command.env("DOCKER_HOST", format!("unix://{}", socket.display())), "");
    let told = format!("Docker's socket {} is there, but this user can't use it", socket.display());
    assert!(refused.stdout.contains(&told), "{refused:?}");
    assert!(refused.stdout.contains("usermod -aG docker USER"), "{refused:?}");
    let mut command = home.command(None, &["--engine", "docker", "doctor"]);
    let absent = run_command(command.env("DOCKER_HOST", "unix:///nowhere/docker.sock"), "");
    assert!(absent.stdout.contains("install and start Docker"), "{absent:?}");
}

#[test]
fn without_root_a_program_runs_as_no_user_of_the_host() {
    let home = Home::new(true).allow_unlimited();
    let ran = home.run(None, &["run", "--language", "python", "-"], WHO);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), "1000 True False\n"), "{ran:?}");
    assert!(ran.stderr.contains("without a limit of memory and CPU time"), "{ran:?}");
}

/// Tells for what the packages of the image have to be built.
const TARGET: &str = "import os, platform, sys\n\
    libc = int(os.confstr('CS_GNU_LIBC_VERSION').split('.')[1])\n\
    libc = max(known for known in (*range(31, 41), 28, 17) if known <= libc)\n\
    print('cpython-%d.%d-%s-manylinux_2_%d' % (*sys.version_info[:2], platform.machine(), libc))\n";

/// Looks at a set from inside, and tries to change it.
const PARCEL: &str = "import os, parcel\n\
    try:\n    open(os.path.join(os.path.dirname(parcel.__file__), 'x'), 'w')\n\
    except OSError as error:\n    print(parcel.weight, parcel.__file__.split('/')[1:3], error.strerror)\n";

#[test]
fn without_root_a_program_gets_its_set_of_packages() {
    let home = Home::new(true).allow_unlimited();
    let target = home.run(None, &["run", "--language", "python", "-"], TARGET);
    assert_eq!(target.code, Some(0), "{target:?}");
    let home = home.with_set("parcel", target.stdout.trim());
    let run = ["run", "--language", "python", "--packages", "parcel", "-"];
    let ran = home.run(None, &run, PARCEL);
    let expected = "3 ['.isolator', 'packages'] Read-only file system\n";
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), expected), "{ran:?}");
    let without = home.run(None, &["run", "--language", "python", "-"], "import parcel");
    assert_eq!(without.code, Some(1), "{without:?}");
    assert!(without.stderr.contains("the set of packages \"parcel\""), "{without:?}");
}

#[test]
fn without_limits_nothing_runs_unless_the_operator_allows_it() {
    let home = Home::new(true);
    for command in [&["run", "--language", "python", "-"][..], &["serve"]] {
        let refused = home.run(None, command, "");
        assert_eq!((refused.code, refused.stdout.as_str()), (Some(125), ""), "{refused:?}");
        for words in ["limit of memory and CPU time", "engine.allowUnlimited", "systemd-run"] {
            assert!(refused.stderr.contains(words), "{words}: {}", refused.stderr);
        }
    }
}

#[test]
fn the_doctor_says_what_is_missing_without_root() {
    let doctor = Home::new(true).run(None, &["doctor"], "");
    assert_eq!(doctor.code, Some(1), "{doctor:?}");
    for words in [
        "without root",
        "no limit of memory",
        "systemd-run --user",
        "the same users",
        "allowUnlimited",
    ] {
        assert!(doctor.stdout.contains(words), "{words}: {}", doctor.stdout);
    }
}

#[test]
fn in_its_own_control_group_sandboxes_can_be_paused() {
    let home = Home::new(true);
    let places = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"].map(Path::new);
    let mount = places.into_iter().find(|path| path.join("cgroup.procs").exists());
    let group = mount.expect("version 2 is mounted").join("isolator-test-rootless");
    fs::create_dir_all(&group).expect("root may");
    // Number 1 is the user's on every system.
    for file in ["", "cgroup.procs", "cgroup.subtree_control"] {
        chown(group.join(file), Some(1), None).expect("root may");
    }
    // The limits are not part of it: most machines delegate no controllers, or another version has them.
    let doctor = home.allow_unlimited().run(Some(&group), &["doctor"], "");
    assert_eq!(doctor.code, Some(0), "{doctor:?}");
    assert!(!doctor.stdout.contains("can't be paused"), "{}", doctor.stdout);
    assert!(doctor.stdout.contains("python: a sandbox works"), "{}", doctor.stdout);
    // The launchers end when they notice that their server has, which is a moment later. A group that holds
    // a sandbox's can't be removed.
    let until = Instant::now() + PATIENCE;
    for made in ["isolator", "isolator-server", ""] {
        let made = group.join(made);
        while made.exists()
            && let Err(error) = fs::remove_dir(&made)
        {
            assert!(Instant::now() < until, "{made:?} is left: {error}");
            thread::sleep(Duration::from_millis(10));
        }
    }
}

#[test]
fn without_subordinate_users_the_doctor_says_what_to_run() {
    let doctor = Home::new(false).run(None, &["doctor"], "");
    assert_eq!(doctor.code, Some(1), "{doctor:?}");
    assert!(doctor.stdout.contains("usermod --add-subuids"), "{}", doctor.stdout);
}

#[test]
fn without_images_every_command_says_what_the_doctor_says() {
    for (granted, said) in [(false, "usermod --add-subuids"), (true, "only root can build images")]
    {
        let home = Home::new(granted);
        let settings =
            json!({ "images": { "policy": "missing" }, "engine": { "allowUnlimited": true } });
        write_config(home.0.path(), &on_embedded(settings));
        for arguments in
            [&["doctor"][..], &["image", "build"], &["run", "--language", "python", "-"]]
        {
            let mut command = home.command(None, arguments);
            command.env("XDG_DATA_HOME", home.0.path().join("empty"));
            let finished = run_command(&mut command, "");
            assert!(finished.code.is_some_and(|code| code != 0), "{arguments:?}: {finished:?}");
            let told = finished.stdout.clone() + &finished.stderr;
            assert!(told.contains(said), "{arguments:?}, {said}: {told}");
        }
    }
}

/// Prints the limits and privileges of a sandbox and what it can reach.
const INSIDE: &str = r#"
import errno, json, os, socket
def attempt(action, *arguments):
    try:
        action(*arguments)
    except OSError as error:
        return errno.errorcode[error.errno]
    return 'allowed'
status = dict(line.rstrip('\n').split(':\t', 1) for line in open('/proc/self/status') if ':\t' in line)
print(json.dumps(dict(
    privileges=[status['CapEff'], status['CapBnd'], status['NoNewPrivs'], status['Seccomp']],
    users=[os.getuid(), os.getgid(), attempt(os.setuid, 0)],
    alone=max(int(pid) for pid in os.listdir('/proc') if pid.isdigit()) < 100,
    interfaces=os.listdir('/sys/class/net'),
    root=attempt(open, '/written', 'w'),
    workspace=attempt(open, '/workspace/written', 'w'),
    temporary=os.listdir('/tmp'),
    chroot=attempt(os.chroot, '/tmp'),
    six=6 * 7,
)))
"#;

/// A server that talks to its host over its standard input and output.
struct Served {
    process: Child,
    output: Lines<BufReader<ChildStdout>>,
}

impl Served {
    fn start(mut command: Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process = command.spawn().expect("the server starts");
        let output = BufReader::new(process.stdout.take().expect("it is piped")).lines();
        Self { process, output }
    }

    fn send(&mut self, message: &Value) {
        let input = self.process.stdin.as_mut().expect("it is piped");
        writeln!(input, "{message}").expect("it reads");
    }

    /// The result of a request.
    fn ask(&mut self, id: u32, method: &str, params: &Value) -> Value {
        self.send(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }));
        for line in &mut self.output {
            let message: Value = serde_json::from_str(&line.expect("text")).expect("JSON");
            if message["id"] == id {
                return message["result"].clone();
            }
        }
        panic!("the server ended instead of an answer to {method}");
    }
}

#[test]
fn without_root_and_limits_programs_have_every_other_restriction() {
    let home = Home::new(true).allow_unlimited();
    let mut server = Served::start(home.command(None, &["serve"]));
    server.ask(
        1,
        "initialize",
        &json!({ "protocolVersion": "2025-06-18", "capabilities": {},
            "clientInfo": { "name": "test", "version": "1" } }),
    );
    server.send(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }));
    for (id, code) in [(2, INSIDE), (3, "raise SystemExit(3)"), (4, INSIDE)] {
        let arguments = json!({ "language": "python", "entrypoint_code": code });
        let call = json!({ "name": "execute_code", "arguments": arguments });
        let answer = server.ask(id, "tools/call", &call);
        // Each answer says what does not hold, whether the program succeeds or not.
        let limits = "without a limit of memory and CPU time";
        assert!(answer.to_string().contains(limits), "{answer}");
        let data = &answer["structuredContent"];
        if code != INSIDE {
            assert_eq!((&data["exit_code"], &answer["isError"]), (&json!(3), &json!(true)));
            continue;
        }
        assert_eq!(data["status"], "success", "{answer}");
        let found: Value = serde_json::from_str(data["stdout"].as_str().unwrap()).unwrap();
        let none = "0000000000000000";
        assert_eq!(
            found,
            json!({ "privileges": [none, none, "1", "2"], "users": [1000, 1000, "EPERM"],
                "alone": true, "interfaces": ["lo"], "root": "EROFS", "workspace": "allowed",
                "temporary": [], "chroot": "EPERM", "six": 42 })
        );
    }
    drop(server.process.stdin.take());
    assert!(server.process.wait().expect("it ends").success());
    // Of the server and its sandboxes nothing is left. A launcher ends a moment later.
    let ours = home.0.path().to_str().expect("text").to_owned();
    let until = Instant::now() + PATIENCE;
    let left = || Process::all().into_iter().filter(|it| it.read("mountinfo").contains(&ours));
    while left().next().is_some() {
        assert!(Instant::now() < until, "{:?}", left().map(Process::command).collect::<Vec<_>>());
        thread::sleep(Duration::from_millis(10));
    }
    let state = home.0.path().join("state/isolator/instances/embedded");
    assert_eq!(fs::read_dir(state).expect("it was there").count(), 0);
}
