//! Each step of making a sandbox is made to fail, in namespaces of the test's own, so that it needs no rights.

use std::fs;
use std::path::Path;
use std::process::Command;

use rustix::fs::CWD;
use rustix::io::Errno;
use rustix::mount::{MoveMountFlags, move_mount};
use rustix::process::{DumpableBehavior, WaitOptions, dumpable_behavior, wait};

use super::attempt::{Attempt, StepError};
use super::ready::{DEVICES, Ready};
use super::{MakeError, Maker};
use crate::engine::embedded::cgroups::MadeGroups;
use crate::engine::embedded::host::Ids;
use crate::engine::embedded::launcher::{mount_paths, mounting, unmount_the_rest, user_namespace};
use crate::engine::embedded::layout::IMAGES;
use crate::engine::embedded::plan::{MemoryMount, Plan, ResourceLimit, Role, Root, Users};
use crate::engine::embedded::protocol::LauncherPaths;

/// Set in the process that makes sandboxes.
const FOLDER: &str = "ISOLATOR_TEST_FOLDER";

/// All steps that this machine has to take for the sandbox below, except those for its `/proc` and `/sys`, which depend on the kernel.
const STEPS: [&str; 25] = [
    "join its control groups",
    "become the user who may enter it",
    "make a user namespace",
    "map its users",
    "become root of its user namespace",
    "make its namespaces",
    "begin a session",
    "set its host name",
    "bring up its loopback interface",
    "make its file system proc",
    "make its file system sysfs",
    "make its devices",
    "enter its root",
    "leave the root of the machine",
    "mount proc",
    "mount dev",
    "mount workspace/below",
    "mount etc/hosts",
    "make read-only sys",
    "enter its working directory",
    "open its streams",
    "set its limits",
    "give up its capabilities",
    "become its user",
    "load its filter of system calls",
];

#[test]
fn a_step_that_fails_is_named_and_leaves_nothing() {
    if let Some(folder) = std::env::var_os(FOLDER) {
        return make_each_step_fail(Path::new(&folder));
    }
    let folder = tempfile::tempdir().expect("a folder");
    for directory in ["proc", "dev", "sys", "tmp", "workspace", "etc"] {
        fs::create_dir_all(folder.path().join("images/one").join(directory)).expect("a folder");
    }
    for file in ["etc/hosts", "hosts"] {
        fs::write(folder.path().join("images/one").join(file), "").expect("a file");
    }
    fs::create_dir(folder.path().join("shared")).expect("a folder");
    let module = module_path!().split_once("::").expect("a module of this crate").1;
    let name = format!("{module}::a_step_that_fails_is_named_and_leaves_nothing");
    let output = Command::new("unshare")
        .args(["--user", "--map-root-user", "--pid", "--mount", "--fork", "--kill-child"])
        .arg(std::env::current_exe().expect("a test has a program"))
        .args(["--exact", &name, "--test-threads=1", "--nocapture"])
        .env(FOLDER, folder.path())
        .output()
        .expect("unshare can be started");
    let [said, reported] = [&output.stderr, &output.stdout].map(|it| String::from_utf8_lossy(it));
    assert!(output.status.success() && reported.contains("1 passed"), "{reported}{said}");
}

fn plan() -> Plan {
    let (ids, entered_by) = (Ids { first: 0, count: 1 }, Some(0));
    Plan {
        role: Role::Program { users: Some(Users { ids, entered_by }) },
        root: Root::Image { image: Path::new(IMAGES).join("one"), layer: None },
        host_name: "sandbox".to_owned(),
        groups: None,
        // A folder that is missing in the image, in a file system of the sandbox's own.
        memory: ["/tmp", "/workspace", "/workspace/below"]
            .map(|path| MemoryMount {
                path: path.into(),
                size: 1 << 20,
                inodes: Some(100),
                owner: (0, 0),
                is_executable: false,
            })
            .to_vec(),
        files: vec![("/hosts".into(), "/etc/hosts".into())],
        packages: None,
        // So that the last step fails, too.
        program: vec!["/none".into()],
        arguments: vec!["none".to_owned()],
        variables: Vec::new(),
        directory: "/workspace/below".into(),
        user: (0, 0),
        capabilities: 0,
        limits: vec![ResourceLimit { resource: 4, soft: 0, hard: 0 }],
    }
}

fn make_each_step_fail(folder: &Path) {
    let started = user_namespace::start_mapper().expect("the mapper starts");
    let Some((_, mapper)) = started else {
        let _ = user_namespace::serve_mapper();
        std::process::exit(0);
    };
    let paths = LauncherPaths {
        images: folder.join("images"),
        shared: folder.join("shared"),
        packages: None,
        groups: None,
        favordynmods: None,
        building: None,
    };
    mount_devices_one_by_one();
    mount_paths(&paths, &mapper).expect("the launcher's folders are mounted");
    unmount_the_rest().expect("the mounts can be listed");
    let maker = Maker::new(mapper).expect("a maker");
    let closed = dumpable_behavior().expect("it can be asked");
    assert_eq!(closed, DumpableBehavior::NotDumpable, "templates could enter unfinished sandboxes");
    let count = |path: &str| fs::read_dir(path).expect("a folder").count();
    // A Docker engine beside it mounts and unmounts what it wants.
    let is_ours = |line: &&str| !line.contains("/docker/");
    let mounts = || {
        let all = fs::read_to_string("/proc/self/mountinfo").expect("mounts");
        all.lines().filter(is_ours).collect::<Vec<_>>().join("\n")
    };
    let before = (count("/proc/self/fd"), mounts());
    let mut steps = Vec::new();
    loop {
        let error = attempt(&maker, steps.len());
        assert_eq!((count("/proc/self/fd"), mounts()), before, "after {steps:?}");
        // The mapper has not ended, and nothing else is there.
        assert!(wait(WaitOptions::NOHANG).expect("the mapper").is_none(), "after {steps:?}");
        let MakeError::Step(StepError::Failed { step, source }) = error else { panic!("{error}") };
        if source.raw_os_error() != Some(Errno::NOANO.raw_os_error()) {
            assert_eq!(step, "start its program", "{source}");
            assert_eq!(source.kind(), std::io::ErrorKind::NotFound);
            break;
        }
        steps.push(step);
    }
    let mut found = steps.iter();
    for step in STEPS {
        assert!(found.any(|found| found == step), "{step} is not in its place: {steps:?}");
    }
}

/// Mounts each device where it is, as containers have them that may make none.
fn mount_devices_one_by_one() {
    let nodes = DEVICES.map(|(_, path)| mounting::again(CWD, path).expect("a device"));
    let folder = mounting::new(c"tmpfs", [], mounting::DEVICES).expect("a folder of devices");
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    move_mount(&folder, c"", CWD, c"/dev", flags).expect("it is mounted");
    for (node, (_, path)) in nodes.iter().zip(DEVICES) {
        fs::write(path.to_str().expect("a path"), "").expect("an empty file");
        move_mount(node, c"", CWD, path, flags).expect("a device is mounted");
    }
}

/// Makes a sandbox, with this step failing.
fn attempt(maker: &Maker, number: usize) -> MakeError {
    let null = || fs::File::open("/dev/null").expect("the null device").into();
    let ready = Ready::new(&plan(), [null(), null(), null()], maker.can_make_devices);
    let (ready, groups) = (ready.expect("a sandbox is prepared"), MadeGroups::default());
    let mut attempt = Attempt::new(maker, &ready, &groups);
    attempt.fails_at = Some(number);
    maker.run(&attempt).expect_err("it must fail")
}
