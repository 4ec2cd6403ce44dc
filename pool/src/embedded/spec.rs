//! What a sandbox of this engine is, in the words of the OCI runtime specification: every promise
//! about it is made here.

use std::path::{Path, PathBuf};

use isolator_runner::place;
use serde_json::{Value, json};

use super::cgroup::{self, Cgroup};
use crate::engine::SandboxSpec;
use crate::limits::ByteSize;

/// Users of a sandbox's own user namespace, and groups: as many as 16 bits can name.
pub(super) const IDS: u32 = 1 << 16;

/// Files that the engine puts over those of the image, by their names in the shared directory.
pub(super) const FILES: [(&str, &str, &str); 3] = [
    ("hosts", "/etc/hosts", "127.0.0.1\tlocalhost sandbox\n::1\tlocalhost\n"),
    ("hostname", "/etc/hostname", "sandbox\n"),
    ("resolv.conf", "/etc/resolv.conf", ""),
];

/// Where everything is that a sandbox is made of, as the launcher sees it.
pub(super) struct Parts<'a> {
    /// The unpacked image.
    pub(super) root: &'a Path,
    /// The runner and what it needs.
    pub(super) runner: &'a Path,
    /// The [`FILES`].
    pub(super) files: &'a Path,
    pub(super) cgroup: &'a Cgroup,
    /// Variables of the image.
    pub(super) env: &'a [String],
    /// The first user of the host, and group, that the sandbox's own are mapped to.
    pub(super) first_id: Option<u32>,
}

/// Directories that are mounted over in a sandbox, for which the image must have a place.
pub(super) fn mount_points(spec: &SandboxSpec) -> Vec<PathBuf> {
    let fixed = ["/proc", "/dev", "/sys", "/tmp", place::DIRECTORY];
    let own = spec.image.volumes.iter().map(String::as_str).chain([spec.workdir.as_str()]);
    fixed.into_iter().chain(own).map(PathBuf::from).collect()
}

/// The specification of a sandbox whose process 1 is the runner.
pub(super) fn sandbox(spec: &SandboxSpec, parts: &Parts<'_>) -> Value {
    let (uid, gid) = spec.user;
    let limit = |kind: &str, limit: u64| json!({ "type": kind, "soft": limit, "hard": limit });
    json!({
        "ociVersion": "1.0.2",
        "root": { "path": parts.root, "readonly": true },
        "hostname": "sandbox",
        "process": {
            "user": { "uid": uid, "gid": gid },
            "args": [place::RUNNER, "park"],
            "env": environment(parts.env),
            "cwd": spec.workdir,
            "noNewPrivileges": true,
            "capabilities": {
                "bounding": [], "effective": [], "inheritable": [], "permitted": [], "ambient": [],
            },
            "rlimits": [
                limit("RLIMIT_NOFILE", spec.limits.open_files.into()),
                // A core dump would fill the workspace and help nobody.
                limit("RLIMIT_CORE", 0),
            ],
        },
        "mounts": mounts(spec, parts),
        "linux": linux(spec, parts),
    })
}

fn environment(image: &[String]) -> Vec<String> {
    const PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
    let mut env = image.to_vec();
    for needed in [PATH, "HOME=/", "HOSTNAME=sandbox"] {
        let name = needed.split_inclusive('=').next().unwrap_or_default();
        if !env.iter().any(|variable| variable.starts_with(name)) {
            env.push(needed.to_owned());
        }
    }
    env
}

fn linux(spec: &SandboxSpec, parts: &Parts<'_>) -> Value {
    let resources = spec.with_preload(spec.resources);
    let memory = resources.memory.as_i64();
    let mut namespaces: Vec<_> = ["pid", "mount", "network", "ipc", "uts", "cgroup"]
        .into_iter()
        .map(|kind| json!({ "type": kind }))
        .collect();
    let mut mappings = Vec::new();
    if let Some(first) = parts.first_id {
        namespaces.push(json!({ "type": "user" }));
        mappings.push(json!({ "containerID": 0, "hostID": first, "size": IDS }));
    }
    json!({
        "namespaces": namespaces,
        "uidMappings": mappings,
        "gidMappings": mappings,
        "cgroupsPath": parts.cgroup.oci_path(),
        "resources": {
            "devices": [{ "allow": false, "access": "rwm" }],
            // Memory and swap together: no swap is added.
            "memory": { "limit": memory, "swap": memory },
            "cpu": {
                "quota": cgroup::quota(resources),
                "period": cgroup::CPU_PERIOD.as_micros() as u64,
            },
            "pids": { "limit": spec.limits.pids },
        },
        "maskedPaths": MASKED,
        "readonlyPaths": READ_ONLY,
    })
}

/// Paths that tell of the host or change it; those that Docker masks.
const MASKED: [&str; 11] = [
    "/proc/acpi",
    "/proc/asound",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/sys/firmware",
];

/// Paths through which root could change the kernel; those that Docker makes read-only.
const READ_ONLY: [&str; 5] =
    ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

fn mounts(spec: &SandboxSpec, parts: &Parts<'_>) -> Vec<Value> {
    let mut mounts = vec![
        mount("/proc", "proc", "proc", &["nosuid", "noexec", "nodev"]),
        mount("/dev", "tmpfs", "tmpfs", &["nosuid", "strictatime", "mode=755", "size=64k"]),
        mount(
            "/dev/pts",
            "devpts",
            "devpts",
            &["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"],
        ),
        mount("/dev/mqueue", "mqueue", "mqueue", &["nosuid", "noexec", "nodev"]),
        mount("/sys", "sysfs", "sysfs", &["nosuid", "noexec", "nodev", "ro"]),
    ];
    mounts.extend(control_groups(parts.cgroup));
    let options = |size: ByteSize, execution: &str| {
        let (uid, gid) = spec.user;
        // Each by itself: they are handed to the kernel one by one.
        let own = [
            format!("size={}", size.as_bytes()),
            format!("nr_inodes={}", spec.limits.inodes),
            format!("uid={uid}"),
            format!("gid={gid}"),
        ];
        let common = [execution, "nosuid", "nodev", "mode=1777"].map(str::to_owned);
        common.into_iter().chain(own).collect::<Vec<_>>()
    };
    let tmpfs = |path: &str, options: Vec<String>| json!({ "destination": path, "type": "tmpfs", "source": "tmpfs", "options": options });
    mounts.push(tmpfs("/dev/shm", options(spec.limits.shm, "noexec")));
    // A volume that the image declares would be disk without a limit.
    for path in &spec.image.volumes {
        mounts.push(tmpfs(path, options(spec.limits.tmp, "exec")));
    }
    // Programs are started from both (a compiled program lies in `/tmp`), so both are executable.
    mounts.push(tmpfs("/tmp", options(spec.limits.tmp, "exec")));
    mounts.push(tmpfs(&spec.workdir, options(spec.limits.workspace, "exec")));
    mounts.push(bind(parts.runner, place::DIRECTORY, &["nosuid", "nodev"]));
    for (name, path, _) in FILES {
        mounts.push(bind(&parts.files.join(name), path, &["nosuid", "nodev", "noexec"]));
    }
    mounts
}

/// The sandbox's own groups, so that the runner and language runtimes find their limits where they look
/// for them.
fn control_groups(cgroup: &Cgroup) -> Vec<Value> {
    const PLACE: &str = "/sys/fs/cgroup";
    let flags = ["nosuid", "nodev", "noexec"];
    let visible = cgroup.visible();
    let mut mounts = Vec::new();
    if visible.len() > 1 {
        mounts.push(mount(
            PLACE,
            "tmpfs",
            "tmpfs",
            &["nosuid", "nodev", "noexec", "mode=755", "size=4k"],
        ));
    }
    for (source, name) in visible {
        let destination = Path::new(PLACE).join(name);
        mounts.push(bind(&source, &destination.to_string_lossy(), &flags));
    }
    mounts
}

fn mount(destination: &str, kind: &str, source: &str, options: &[&str]) -> Value {
    json!({ "destination": destination, "type": kind, "source": source, "options": options })
}

fn bind(source: &Path, destination: &str, flags: &[&str]) -> Value {
    let options: Vec<_> = ["bind", "ro"].into_iter().chain(flags.iter().copied()).collect();
    json!({ "destination": destination, "type": "bind", "source": source, "options": options })
}
