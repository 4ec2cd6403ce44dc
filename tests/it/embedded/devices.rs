//! Devices are out of reach for two reasons. No process in a sandbox may make a node, and the mount forbids opening one that
//! was made from outside. Control groups of either version have rules, too.

use std::process::Command;

use serde_json::json;

use super::{look, start};
use crate::common::answer::text_of;
use crate::common::engine::State;
use crate::common::engine::embedded::Groups;
use crate::common::eventually;
use crate::common::process::Process;
use crate::common::server::Server;

/// Waits for the nodes, and prints what opening and making them comes to.
const PROGRAM: &str = r#"
import errno, json, os, stat, time
open('/proc/self/comm', 'w').write('the-program')
def attempt(action, *arguments):
    try:
        action(*arguments)
    except OSError as error:
        return errno.errorcode[error.errno]
    return 'allowed'
while not os.path.exists('/tmp/ready'):
    time.sleep(0.01)
opened, made = set(), set()
for folder in ['/workspace', '/tmp', '/dev/shm']:
    for name in ['memory', 'log', 'tunnel', 'null', 'disk']:
        for flags in [os.O_RDONLY, os.O_WRONLY, os.O_RDWR]:
            opened.add(attempt(os.open, f'{folder}/{name}', flags))
    made.add(attempt(os.mknod, f'{folder}/own', 0o666 | stat.S_IFCHR, os.makedev(1, 3)))
    made.add(attempt(os.mknod, f'{folder}/own', 0o666 | stat.S_IFBLK, os.makedev(254, 0)))
mounts = [line.split() for line in open('/proc/self/mountinfo')]
allow = [it[4] for it in mounts if 'nodev' not in it[5].split(',')]
writable = [path for path in allow if os.path.isdir(path) and os.access(path, os.W_OK)]
nodes = [os.path.join(folder, name) for folder in allow if os.path.isdir(folder) for name in os.listdir(folder)]
nodes += [path for path in allow if not os.path.isdir(path)]
kinds = (stat.S_IFCHR, stat.S_IFBLK)
numbers = {os.stat(path).st_rdev for path in nodes if os.path.exists(path) and stat.S_IFMT(os.stat(path).st_mode) in kinds}
devices = sorted([os.major(number), os.minor(number)] for number in numbers)
print(json.dumps(dict(opened=sorted(opened), made=sorted(made), writable=writable, devices=devices)))
"#;

/// Nodes that would be the machine's memory, its log, a network device, a harmless one, and a disk.
const NODES: [(&str, &str, &str, &str); 5] = [
    ("memory", "c", "1", "1"),
    ("log", "c", "1", "11"),
    ("tunnel", "c", "10", "200"),
    ("null", "c", "1", "3"),
    ("disk", "b", "254", "0"),
];

/// The program, and the groups of its sandbox.
async fn program(server: &Server) -> (Process, Groups) {
    let mut found = None;
    eventually("the program runs", async || {
        for sandbox in server.sandboxes(State::Running).await {
            let groups = look(server).groups(&sandbox);
            let mut processes = groups.processes().into_iter();
            let program = processes.find(|process| process.read("comm") == "the-program\n");
            found = program.map(|program| (program, groups));
            if found.is_some() {
                return true;
            }
        }
        false
    })
    .await;
    found.expect("it was found")
}

#[tokio::test]
async fn no_device_is_reached_even_if_control_groups_allow_all() {
    let server = start(json!({})).await;
    let call = server.begin(json!({ "language": "python", "entrypoint_code": PROGRAM })).await;
    let (program, groups) = program(&server).await;
    groups.allow_every_device();
    let root = program.directory().join("root");
    // A user of the sandbox, because the file systems in it know no others, who may make nodes all the same.
    let user = program.status()["Uid"].split_whitespace().next().expect("a user").to_owned();
    for folder in ["workspace", "tmp", "dev/shm"] {
        for (name, kind, major, minor) in NODES {
            let made = Command::new("setpriv")
                .args(["--reuid", &user, "--regid", &user, "--clear-groups"])
                .args(["--inh-caps", "+mknod", "--ambient-caps", "+mknod"])
                .args(["mknod", "-m", "666", name, kind, major, minor])
                .current_dir(root.join(folder))
                .status();
            assert!(made.expect("setpriv starts").success(), "{folder}/{name}");
        }
    }
    let ready = Command::new("setpriv")
        .args(["--reuid", &user, "--regid", &user, "--clear-groups", "touch", "ready"])
        .current_dir(root.join("tmp"))
        .status();
    assert!(ready.expect("setpriv starts").success());
    let text = text_of(&call.answer().await);
    let line = text.lines().find(|line| line.starts_with('{')).unwrap_or_else(|| panic!("{text}"));
    let found: serde_json::Value = serde_json::from_str(line).expect("what it found");
    // That is the mount's answer. The rules of a control group would answer EPERM.
    assert_eq!(found["opened"], json!(["EACCES"]), "{found}");
    assert_eq!(found["made"], json!(["EPERM"]), "{found}");
    assert_eq!(found["writable"], json!([]), "{found}");
    // null, zero, full, random, urandom, its own terminal, and the multiplexer of its own terminals.
    let harmless = json!([[1, 3], [1, 5], [1, 7], [1, 8], [1, 9], [5, 0], [5, 2]]);
    assert_eq!(found["devices"], harmless, "{found}");
    server.stop().await;
}

#[tokio::test]
async fn control_groups_of_version_two_have_rules_for_devices() {
    let server = start(json!({})).await;
    let call = server.begin(json!({ "language": "python", "entrypoint_code": PROGRAM })).await;
    let (_, groups) = program(&server).await;
    // The rules of version 1 would hide that there are none of version 2.
    groups.allow_every_device();
    let group = groups.of_version_two().join("cgroup.procs");
    let opens = |device: &str, joins: bool| {
        let script = "[ -z \"$1\" ] || echo $$ >\"$1\"; exec 3<\"$2\"";
        let group = if joins { group.as_os_str() } else { "".as_ref() };
        let mut shell = Command::new("sh");
        let shell = shell.args(["-c", script, "sh"]).args([group, device.as_ref()]).output();
        let output = shell.expect("a shell starts");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success() || said.contains("not permitted"), "{device}: {said}");
        output.status.success()
    };
    // The machine's log can be read by root, but not by root in the sandbox's group.
    assert!(opens("/dev/kmsg", false), "root may");
    assert!(!opens("/dev/kmsg", true), "the log of the machine is open");
    for device in
        ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/ptmx"]
    {
        assert!(opens(device, true), "{device}");
    }
    let folder = tempfile::tempdir().expect("a directory");
    let disk = folder.path().join("disk");
    // Not a disk of this machine: opening an unused number is another error.
    let made = Command::new("mknod").arg(&disk).args(["b", "250", "250"]).status();
    assert!(made.expect("mknod starts").success());
    assert!(!opens(disk.to_str().expect("text"), true), "a disk is open");
    call.cancel().await;
    server.stop().await;
}
