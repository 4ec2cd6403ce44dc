//! The restrictions of a sandbox, read from the host.

use std::collections::BTreeSet;
use std::process::Command;

use super::{launchers, look, on_embedded, start, this_process};
use crate::common::client::PendingCall;
use crate::common::engine::State;
use crate::common::engine::embedded::Groups;
use crate::common::process::{Mount, Process};
use crate::common::server::Server;
use crate::common::{
    Finished, OF_THE_SERVER, eventually, isolator, run, run_command, write_config,
};
use serde_json::json;

/// The first of the host's users that systemd's description of the use of numbers keeps for containers.
const FIRST_USER: u32 = 524_288;

/// Users of a sandbox.
const USERS: u32 = 1 << 16;

const NAMESPACES: [&str; 7] = ["pid", "mnt", "net", "ipc", "uts", "cgroup", "user"];

/// Files that describe the host. They are hidden if the host has them.
const HIDDEN: [&str; 14] = [
    "/proc/acpi",
    "/proc/asound",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/pressure",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/sys/devices/virtual/powercap",
    "/sys/devices/virtual/thermal",
    "/sys/firmware",
];

/// Devices of a sandbox; what is hidden is null as well.
const DEVICES: [&str; 6] = ["/null", "/zero", "/full", "/tty", "/random", "/urandom"];

/// Files that change the host. They can't be written.
const READ_ONLY: [&str; 5] =
    ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// A sandbox in which a program runs.
struct Busy {
    server: Server,
    groups: Groups,
    /// Process 1.
    first: Process,
    program: Process,
    call: PendingCall,
}

impl Busy {
    /// Starts a program that waits.
    async fn start() -> Self {
        Self::start_after("").await
    }

    /// Starts a program that waits after it has run some lines.
    async fn start_after(lines: &str) -> Self {
        let server = start(json!({})).await;
        server.wait_until_ready().await;
        let code = format!(
            "{lines}\nimport time\n\
             open('/proc/self/comm', 'w').write('the-program')\n\
             time.sleep(600)"
        );
        let call = json!({ "language": "python", "entrypoint_code": code });
        let call = server.begin(call).await;
        let mut found = None;
        eventually("the program runs", async || {
            for sandbox in server.sandboxes(State::Running).await {
                let groups = look(&server).groups(&sandbox);
                let mut processes = groups.processes().into_iter();
                let program = processes.find(|process| process.read("comm") == "the-program\n");
                found = program.zip(look(&server).first_process(&sandbox)).map(|it| (it, groups));
                if found.is_some() {
                    return true;
                }
            }
            false
        })
        .await;
        let ((program, first), groups) = found.expect("it was found");
        Self { server, groups, first, program, call }
    }

    async fn stop(self) {
        self.call.cancel().await;
        self.server.stop().await;
    }
}

/// Process 1 of each sandbox of a full pool.
async fn first_processes(server: &Server) -> Vec<Process> {
    let sandboxes = server.wait_until_ready().await;
    let first = |sandbox: &String| look(server).first_process(sandbox).expect("a process");
    sandboxes.iter().map(first).collect()
}

/// The users of the host that a sandbox's are.
fn users(process: Process) -> std::ops::Range<u32> {
    let map = process.read("uid_map");
    assert_eq!(map, process.read("gid_map"), "groups are mapped as users are");
    let numbers: Vec<u32> = map.split_whitespace().flat_map(str::parse).collect();
    let [0, first, USERS] = numbers[..] else { panic!("one range, not {map:?}") };
    assert!(first >= FIRST_USER, "{map}");
    first..first + USERS
}

#[tokio::test]
async fn every_sandbox_has_its_own_namespaces() {
    let server = start(json!({ "pool": { "size": 2 } })).await;
    let sandboxes = first_processes(&server).await;
    let launchers = launchers(server.process());
    assert!(!launchers.is_empty());
    let others: Vec<_> = launchers
        .iter()
        .flat_map(|launcher| [launcher.outer, launcher.inner])
        .chain([this_process(), server.process()])
        .collect();
    for kind in NAMESPACES {
        let theirs: BTreeSet<_> = others.iter().map(|process| process.namespace(kind)).collect();
        let own: BTreeSet<_> = sandboxes.iter().map(|process| process.namespace(kind)).collect();
        assert_eq!(own.len(), sandboxes.len(), "{kind}: {own:?}");
        assert!(own.is_disjoint(&theirs), "{kind}: {own:?} {theirs:?}");
    }
    server.stop().await;
}

#[tokio::test]
async fn users_of_a_sandbox_have_no_rights_on_the_host() {
    let busy = Busy::start().await;
    let users = users(busy.first);
    let processes = busy.groups.processes();
    assert!(processes.contains(&busy.first) && processes.contains(&busy.program));
    for process in processes {
        let status = process.status();
        let of = |field: &str| format!("{field} of {}: {status:?}", process.command());
        for ids in ["Uid", "Gid", "Groups"] {
            let ids: Vec<u32> = status[ids].split_whitespace().flat_map(str::parse).collect();
            assert!(ids.iter().all(|id| users.contains(id)), "{}", of("users and groups"));
        }
        assert_eq!(status["Uid"].split_whitespace().count(), 4);
        process.assert_has_no_privileges();
        for kind in NAMESPACES {
            assert_eq!(process.namespace(kind), busy.first.namespace(kind));
        }
    }
    busy.stop().await;
}

#[tokio::test]
async fn sandboxes_share_no_users() {
    let pool = json!({ "pool": { "size": 3 } });
    let (one, other) = (start(pool.clone()).await, start(pool).await);
    let mut seen = BTreeSet::new();
    let mut different = 0;
    for _ in 0..3 {
        for server in [&one, &other] {
            for process in first_processes(server).await {
                different += usize::from(seen.insert((process, users(process).start)));
            }
            assert_eq!(server.run_python("print(1)").await.output(), "1\n");
        }
    }
    let ranges: BTreeSet<_> = seen.iter().map(|(_, first)| first).collect();
    assert_eq!(ranges.len(), different, "{seen:?}");
    assert!(different >= 10, "{seen:?}");
    assert!(ranges.iter().all(|first| *first % USERS == FIRST_USER % USERS), "{ranges:?}");
    one.stop().await;
    other.stop().await;
}

#[tokio::test]
async fn a_sandbox_sees_only_its_own_parts_of_the_host_and_writes_none() {
    let busy = Busy::start().await;
    // What is covered by a later mount can't be reached.
    let mounts = busy.program.mounts();
    let covers = |later: &Mount, mount: &Mount| later.target == mount.target;
    let is_covered =
        |(index, mount): &(usize, &Mount)| mounts[index + 1..].iter().any(|m| covers(m, mount));
    let seen = mounts.iter().enumerate().filter(|found| !is_covered(found));
    let mounts: Vec<_> = seen.map(|(_, mount)| mount.clone()).collect();
    let at = |target: &str| mounts.iter().find(|mount| mount.target == target);
    let root = at("/").expect("a root");
    for option in ["ro", "nosuid", "nodev"] {
        assert!(root.has(option), "{root:?}");
    }

    let writable = ["/proc", "/dev", "/dev/pts", "/dev/mqueue", "/dev/shm", "/tmp", "/workspace"];
    let own = ["proc", "sysfs", "tmpfs", "devpts", "mqueue", "cgroup", "cgroup2"];
    for mount in &mounts {
        let is_writable = writable.contains(&mount.target.as_str());
        assert!(mount.has("ro") || is_writable, "{mount:?}");
        assert!(mount.has("nosuid") || mount.has("ro"), "{mount:?}");
        if !own.contains(&mount.kind.as_str()) {
            // A file of an overlay belongs to this overlay only, whatever lies below.
            assert!(mount.kind == "overlay" && mount.has("ro"), "{mount:?}");
            let is_root = mount.target == "/" && mount.root == "/";
            let is_device = DEVICES.contains(&mount.root.as_str());
            assert!(is_root || is_device || mount.root.starts_with("/.isolator/"), "{mount:?}");
        }
    }
    for (target, options) in [("/workspace", "nosuid,nodev"), ("/tmp", "nosuid,nodev")] {
        let mount = at(target).expect("a place to write");
        assert!(options.split(',').all(|option| mount.has(option)), "{mount:?}");
        let sizes = &mount.of_file_system;
        assert!(sizes.iter().any(|option| option == "size=65536k"), "{mount:?}");
        assert!(sizes.iter().any(|option| option.starts_with("nr_inodes=")), "{mount:?}");
    }

    let is_there = |path: &&&str| std::path::Path::new(path).exists();
    for path in HIDDEN.iter().filter(is_there) {
        let is_empty = |mount: &Mount| mount.kind == "tmpfs" && mount.has("ro");
        let is_null = |mount: &Mount| mount.kind == "overlay" && mount.root == "/null";
        assert!(at(path).is_some_and(|mount| is_empty(mount) || is_null(mount)), "{path}");
    }
    for path in READ_ONLY.iter().filter(is_there) {
        assert!(at(path).is_some_and(|mount| mount.has("ro")), "{path}");
    }
    busy.stop().await;
}

#[tokio::test]
async fn the_kernel_enforces_every_limit() {
    let busy = Busy::start().await;
    let limit = |names: &[&str]| busy.groups.read(names);
    let memory = (256 << 20).to_string();
    eventually("the limits are those of the program alone", async || {
        let processes = limit(&["pids.max"]);
        limit(&["memory.limit_in_bytes", "memory.max"]).as_ref() == Some(&memory)
            && processes.as_deref() == Some("64")
    })
    .await;
    // No swap beside it: version 1 counts the sum, a kernel without swap nothing.
    let swap = limit(&["memory.memsw.limit_in_bytes", "memory.swap.max"]);
    let swap = swap.as_deref().unwrap_or("0");
    assert!([memory.as_str(), "0"].contains(&swap), "{swap}");
    // Buffers of sockets have a limit of their own with version 1, as long as the kernel has it.
    let sockets = limit(&["memory.kmem.tcp.limit_in_bytes"]).unwrap_or_else(|| memory.clone());
    assert_eq!(sockets, memory);
    let cpu = limit(&["cpu.max"]).or_else(|| {
        Some(format!("{} {}", limit(&["cpu.cfs_quota_us"])?, limit(&["cpu.cfs_period_us"])?))
    });
    assert_eq!(cpu.as_deref(), Some("100000 100000"));
    if let Some(devices) = limit(&["devices.list"]) {
        // Nodes may be made with a capability that no process has.
        let usable = devices.lines().filter(|line| !line.ends_with(" m"));
        for device in usable {
            assert!(device.starts_with("c ") && !device.starts_with("c *"), "{devices}");
        }
    }

    for (name, promised) in [("Max open files", "1024"), ("Max core file size", "1")] {
        assert_eq!(busy.program.limit(name), [promised, promised], "{name}");
    }

    // All of it holds for every process: each is in the sandbox's own group wherever it has one.
    let of_first = busy.first.read("cgroup");
    let lines: Vec<_> = of_first.lines().filter(|line| line.contains("/isolator/")).collect();
    for controller in ["memory", "cpu", "pids", "freezer", "devices"] {
        let is_its = |line: &&str| {
            let names = line.split(':').nth(1).unwrap_or_default();
            // Of version 2 there is one for all, if it is the one that limits. It freezes where both are mounted.
            (names.is_empty() && (lines.len() == 1 || controller == "freezer"))
                || names.split(',').any(|name| name == controller)
        };
        assert!(lines.iter().any(is_its), "{controller}: {of_first}");
    }
    for process in busy.groups.processes() {
        let group = process.read("cgroup");
        let command = process.command();
        // One that is ending has no memory any more, and then leaves its groups one after the other.
        assert!(group == of_first || command.is_empty(), "{command}: {group} and not {of_first}");
    }
    busy.stop().await;
}

/// Makes message queues and lets signals wait, as many as there can be, and tells how many that were.
const USE_UP: &str = "import ctypes, os, signal\n\
    libc = ctypes.CDLL(None)\n\
    queues = 0\n\
    while libc.mq_open(f'/{queues}'.encode(), os.O_CREAT | os.O_RDWR, 0o600, None) != -1: queues += 1\n\
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGRTMIN})\n\
    signals = 0\n\
    while libc.sigqueue(os.getpid(), signal.SIGRTMIN, None) == 0: signals += 1\n\
    print(queues, signals)";

#[tokio::test]
async fn kernel_resources_per_user_are_not_shared_between_sandboxes() {
    let busy = Busy::start_after(USE_UP).await;
    let answer = busy.server.run_python(USE_UP).await;
    let found = answer.output();
    let found: Vec<u32> =
        found.split_whitespace().map(|it| it.parse().expect("a number")).collect();
    // A queue of the default size takes somewhat more than 80 KiB of 200.
    assert!(matches!(found[..], [2, 1000..=1024]), "{found:?}");
    busy.stop().await;
}

#[tokio::test]
async fn a_program_inherits_only_its_three_streams() {
    let busy = Busy::start().await;
    let descriptors = busy.program.descriptors();
    assert_eq!(descriptors.keys().copied().collect::<Vec<_>>(), [0, 1, 2], "{descriptors:?}");

    // The runner talks to the server over a stream of which each has an end, and has a log.
    let log = busy.first.descriptors()[&2].clone();
    let own = busy.groups.processes().into_iter();
    let own: BTreeSet<_> = own.flat_map(|process| process.descriptors().into_values()).collect();
    let launchers = launchers(busy.server.process());
    let theirs = launchers.iter().flat_map(|launcher| [launcher.outer, launcher.inner]);
    for other in theirs.chain([busy.server.process(), this_process()]) {
        let theirs = other.descriptors().into_values();
        let theirs: BTreeSet<_> = theirs
            .filter(|link| *link != log)
            .filter(|link| link.starts_with("socket:") || link.starts_with("pipe:"))
            .collect();
        assert!(own.is_disjoint(&theirs), "{own:?} {theirs:?} of {}", other.command());
    }
    let is_fine = |link: &String| {
        let kinds = ["socket:", "pipe:", "anon_inode:[pidfd]"];
        kinds.iter().any(|kind| link.starts_with(kind)) || link.ends_with("/oom_score_adj")
    };
    let strange: Vec<_> =
        own.iter().filter(|link| !is_fine(link) && *link != "/dev/null").collect();
    assert!(strange.is_empty(), "{strange:?}");
    busy.stop().await;
}

#[tokio::test]
async fn the_environment_of_the_server_reaches_no_sandbox_and_no_launcher() {
    let busy = Busy::start().await;
    let (name, value) = OF_THE_SERVER;
    assert!(busy.server.process().read("environ").contains(&format!("{name}={value}")));
    for process in busy.groups.processes() {
        let environment = process.read("environ");
        assert!(!environment.contains(name), "{}: {environment:?}", process.command());
        assert!(!environment.contains("XDG_STATE_HOME"), "{environment:?}");
    }
    for launcher in launchers(busy.server.process()) {
        for process in [launcher.outer, launcher.inner] {
            assert_eq!(process.read("environ"), "", "{}", process.command());
        }
    }
    busy.stop().await;
}

#[test]
fn settings_of_another_engine_are_refused_at_startup_with_the_fix() {
    for (settings, hints) in [
        (json!({ "defaultNetworkMode": "bridge" }), ["defaultNetworkMode", "\"bridge\""]),
        (json!({ "engine": { "runtime": "runsc" } }), ["engine.runtime", "\"runsc\""]),
    ] {
        let directory = tempfile::tempdir().expect("a directory");
        write_config(directory.path(), &on_embedded(settings));
        let Finished { code, stderr, .. } = run(directory.path(), &["serve"], "");
        assert_eq!(code, Some(125), "{stderr}");
        for hint in hints.into_iter().chain(["engine.kind"]) {
            assert!(stderr.contains(hint), "{stderr}");
        }
        assert!(!stderr.contains("  "), "{stderr:?}");
    }
}

#[test]
fn signals_that_the_server_ignores_are_not_ignored_by_programs() {
    let directory = tempfile::tempdir().expect("a directory");
    write_config(directory.path(), &on_embedded(json!({})));
    let code = "print([l.split()[1] for l in open('/proc/1/status') if l.startswith('SigIgn')],\n\
                \x20   [l.split()[1] for l in open('/proc/self/status') if l.startswith('SigBlk')])";
    let isolator = isolator(directory.path());
    let mut shell = Command::new("sh");
    shell.args(["-c", "trap '' INT QUIT HUP USR1; exec \"$0\" run - --language python"]);
    shell.arg(isolator.get_program()).current_dir(directory.path());
    shell.envs(isolator.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let finished = run_command(&mut shell, code);
    // The runner ignores SIGPIPE, and no other process inherits that.
    let promised = "['0000000000001000'] ['0000000000000000']\n";
    assert_eq!(finished.stdout, promised, "{finished:?}");
}

#[tokio::test]
async fn launchers_keep_no_files_of_the_server_open() {
    let server = start(json!({})).await;
    server.wait_until_ready().await;
    let of_server: BTreeSet<_> = server.process().descriptors().into_values().collect();
    for launcher in launchers(server.process()) {
        for process in [launcher.outer, launcher.inner] {
            let descriptors = process.descriptors();
            let shared: Vec<_> = descriptors
                .iter()
                .filter(|(number, link)| **number != 2 && of_server.contains(*link))
                .filter(|(_, link)| *link != "/dev/null" && !link.starts_with("anon_inode:"))
                // What the server itself was given without its doing.
                .filter(|(_, link)| !this_process().descriptors().values().any(|own| own == *link))
                .collect();
            let is_log = |link: &str| link.starts_with("pipe:");
            let shared: Vec<_> = shared.into_iter().filter(|(_, link)| !is_log(link)).collect();
            assert!(shared.is_empty(), "{shared:?} of {}", process.command());
        }
    }
    server.stop().await;
}

#[tokio::test]
async fn control_groups_favour_changes_unless_the_operator_disables_it() {
    for (engine, wanted) in [(json!({}), true), (json!({ "favordynmods": false }), false)] {
        let server = start(json!({ "engine": engine })).await;
        server.wait_until_ready().await;
        let mounts = launchers(server.process())[0].inner.mounts();
        let option = |mount: &Mount, name: &str| mount.of_file_system.iter().any(|it| it == name);
        let is_ours =
            |mount: &Mount| option(mount, "favordynmods") && option(mount, "name=isolator");
        // Version 2 has the option for the whole machine.
        if mounts.iter().any(|mount| mount.kind == "cgroup" && option(mount, "memory")) {
            assert_eq!(mounts.iter().any(is_ours), wanted, "{mounts:?}");
        }
        server.stop().await;
    }
}
