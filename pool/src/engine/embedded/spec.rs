//! The OCI runtime specification of a sandbox. It sets every limit and every protection.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use isolator_runner::paths;
use serde_json::{Value, json};

use super::build_limits;
use super::cgroups::{self, CGROUP_MOUNT, Cgroup};
use super::host::{Host, Ids};
use super::launcher;
use super::layout::{BUILDING, CONTEXT, NETWORK};
use crate::engine::SandboxSpec;
use crate::engine::hidden_paths::{READ_ONLY, hidden};
use crate::engine::limits::ByteSize;
use crate::engine::preload::Preload;
use crate::engine::process_limits::{ADDRESS_SPACE, PROCESS_LIMITS, ProcessLimit, USER_LIMITS};
use crate::engine::store;

/// Files that the engine mounts over those of the image: name in the runner's directory, path, content.
pub(super) const FILES: [(&str, &str, &str); 3] = [
    ("hosts", store::HOSTS, "127.0.0.1\tlocalhost sandbox\n::1\tlocalhost\n"),
    ("hostname", store::HOSTNAME, "sandbox\n"),
    ("resolv.conf", store::RESOLV_CONF, ""),
];

/// The parts of a specification. Paths are as the launcher sees them.
pub(super) struct SpecParts<'a> {
    /// The image with the runner's directory over it.
    pub(super) root: &'a Path,
    /// The features of the machine.
    pub(super) host: &'a Host,
    /// The sandbox's groups, where it has some.
    pub(super) cgroup: Option<&'a Cgroup>,
    /// Variables of the image.
    pub(super) env: &'a [String],
    /// The sandbox's users, where it has some of its own.
    pub(super) ids: Option<Ids>,
    /// Whether a template may enter it.
    pub(super) is_entered: bool,
}

/// The runner's directory below a root.
pub(super) fn runner(root: &Path) -> PathBuf {
    root.join(paths::DIRECTORY.trim_start_matches('/'))
}

/// Files that are mounted over; the image must have mount points for them.
pub(super) fn files() -> Vec<PathBuf> {
    FILES.into_iter().map(|(_, path, _)| PathBuf::from(path)).collect()
}

/// Directories that are mounted over.
pub(super) fn directories(spec: &SandboxSpec) -> Vec<PathBuf> {
    let own = volumes(spec).chain([spec.workdir.as_str()]);
    store::MOUNTED.into_iter().chain(own).map(PathBuf::from).collect()
}

/// The image's volumes that are mounted. Others lie where every sandbox has something of its own, which an image
/// must not hide.
fn volumes(spec: &SandboxSpec) -> impl Iterator<Item = &str> {
    let is_taken = |volume: &str| {
        let taken = store::MOUNTED.into_iter().chain([paths::DIRECTORY]);
        taken.into_iter().any(|taken| Path::new(volume).starts_with(taken))
    };
    spec.image.volumes.iter().map(String::as_str).filter(move |volume| !is_taken(volume))
}

/// The specification of a sandbox whose process 1 is the runner.
pub(super) fn sandbox(spec: &SandboxSpec, parts: &SpecParts<'_>) -> Value {
    let (uid, gid) = spec.user;
    json!({
        "ociVersion": "1.0.2",
        "root": { "path": parts.root, "readonly": spec.readonly_root },
        "hostname": "sandbox",
        "process": {
            "user": { "uid": uid, "gid": gid },
            "args": arguments(parts),
            "env": environment(parts.env),
            "cwd": spec.workdir,
            "noNewPrivileges": true,
            "capabilities": {
                "bounding": [], "effective": [], "inheritable": [], "permitted": [], "ambient": [],
            },
            "rlimits": program_rlimits(spec, parts),
        },
        "mounts": mounts(spec, parts),
        "linux": linux(parts.cgroup, parts.ids, || resources(spec, parts.host)),
    })
}

fn arguments(parts: &SpecParts<'_>) -> Vec<&'static str> {
    let forks = parts.is_entered.then_some("forks");
    [paths::RUNNER, "park"].into_iter().chain(forks).collect()
}

/// The part of `/proc` that a template sees: of the processes only itself, because it mounts this. In a whole `/proc` it would
/// see those in the sandboxes that it may enter, and could open their memory.
const PROC: [&str; 9] =
    ["self", "cpuinfo", "filesystems", "loadavg", "meminfo", "stat", "sys", "uptime", "version"];

/// The specification of a template: an interpreter as one is in a sandbox, but as a user of the launcher's namespace, and
/// with the launcher's processes.
pub(super) fn template(
    spec: &SandboxSpec,
    preload: &Preload,
    modules: &[String],
    user: u32,
    parts: &SpecParts<'_>,
) -> Value {
    let of_template = SandboxSpec { user: (user, user), ..spec.clone() };
    let mut template = sandbox(&of_template, parts);
    let process = &mut template["process"];
    process["args"] = json!(preload.argv);
    process["oomScoreAdj"] = json!(500);
    process["env"] = json!(template_environment(parts.env, preload, modules));
    let linux = &mut template["linux"];
    if let Some(namespaces) = linux["namespaces"].as_array_mut() {
        namespaces.retain(|namespace| namespace["type"] != "pid" && namespace["type"] != "user");
    }
    linux["maskedPaths"] = json!([]);
    linux["readonlyPaths"] = json!(["/proc/sys", CGROUP_MOUNT]);
    let mut memory = preload.memory.as_bytes() + spec.resources.memory.as_bytes();
    memory += TEMPLATE_MEMORY.as_bytes();
    linux["resources"]["memory"]["limit"] = json!(memory);
    linux["resources"]["memory"]["swap"] = json!(memory);
    // A fork counts here until it has its place in a sandbox, and does its work here that far.
    let period = cgroups::CPU_PERIOD.as_micros() as u64;
    let limits = [
        ("/pids/limit", TEMPLATE_PROCESSES),
        ("/cpu/quota", period),
        // It may not be more than the quota.
        ("/cpu/burst", period),
    ];
    for (limit, value) in limits {
        if let Some(limit) = linux["resources"].pointer_mut(limit) {
            *limit = json!(value);
        }
    }
    if let Some(mounts) = template["mounts"].as_array_mut() {
        let at = mounts.iter().position(|mount| mount["destination"] == "/proc");
        let tmpfs = &["nosuid", "noexec", "nodev", "mode=755", "size=64k"];
        let own = mount("/proc", "tmpfs", "tmpfs", tmpfs);
        let parts = PROC.map(|name| {
            let path = Path::new("/proc").join(name);
            bind(&path, &path.to_string_lossy(), &["nosuid", "nodev", "noexec"])
        });
        let at = at.unwrap_or(0);
        mounts.splice(at..=at, [own].into_iter().chain(parts));
    }
    template
}

/// Gives a template a set of packages, whose path is below the folder of all sets. Returns whether it is a valid path.
pub(super) fn give_packages(template: &mut Value, set: &Path) -> bool {
    let Some(layers) = launcher::layers(set) else { return false };
    let variable = format!("PYTHONUSERBASE={}", paths::PACKAGES);
    let layers = format!("lowerdir={layers}");
    let mount =
        mount(paths::PACKAGES, "overlay", "overlay", &["ro", "nosuid", "nodev", layers.as_str()]);
    let env = template.pointer_mut("/process/env").and_then(Value::as_array_mut);
    for entry in env.into_iter().flatten() {
        if let Some(path) = entry.as_str().filter(|entry| entry.starts_with("PATH=")) {
            *entry = json!(format!("{path}:{}/bin", paths::PACKAGES));
        }
    }
    let lists = [("/process/env", json!(variable)), ("/mounts", mount)];
    lists.into_iter().all(|(list, more)| {
        let list = template.pointer_mut(list).and_then(Value::as_array_mut);
        list.map(|list| list.push(more)).is_some()
    })
}

/// Gives a template only CPU time that no other process needs, until it is ready.
pub(super) fn give_way(template: &mut Value) {
    if let Some(cpu) = template.pointer_mut("/linux/resources/cpu") {
        cpu["shares"] = json!(cgroups::LEAST_SHARES);
    }
}

/// Additional memory of a template, for the page tables of the memory that its forks share with it.
const TEMPLATE_MEMORY: ByteSize = ByteSize::mib(128);

/// Maximum number of processes of a template: itself, and its forks until they are in their sandboxes. It does not depend on
/// the limit of a sandbox, because a template serves all of them.
const TEMPLATE_PROCESSES: u64 = 256;

/// Where the program of an interpreter may be in its image.
pub(super) fn programs(preload: &Preload, image: &[String]) -> Vec<PathBuf> {
    let name = preload.argv.first().map_or("", String::as_str);
    if name.contains('/') {
        return vec![name.into()];
    }
    let env = environment(image);
    let path = env.iter().find_map(|variable| variable.strip_prefix("PATH="));
    path.unwrap_or_default().split(':').map(|folder| Path::new(folder).join(name)).collect()
}

/// Any value makes the linker find all functions of libraries when it starts a program. `sitecustomize` takes this one away.
const TEMPLATE_BINDING: &str = "isolator";

fn template_environment(image: &[String], preload: &Preload, modules: &[String]) -> Vec<String> {
    let mut env = environment(image);
    let mut own = preload.env.clone();
    let path = "PYTHONPATH";
    let theirs = own.get(path).cloned().or_else(|| {
        env.iter().find_map(|variable| variable.strip_prefix("PYTHONPATH=").map(str::to_owned))
    });
    let theirs = theirs.filter(|theirs| !theirs.is_empty()).map(|theirs| format!(":{theirs}"));
    own.insert(path.to_owned(), format!("{}{}", paths::PYTHON_PRELOAD, theirs.unwrap_or_default()));
    own.insert("ISOLATOR_PRELOAD".to_owned(), format!("0:{}", modules.join(",")));
    // Otherwise each fork looks for the functions of the C library again.
    own.insert("LD_BIND_NOW".to_owned(), TEMPLATE_BINDING.to_owned());
    env.retain(|variable| !own.keys().any(|name| variable.starts_with(&format!("{name}="))));
    env.extend(own.into_iter().map(|(name, value)| format!("{name}={value}")));
    env
}

/// Capabilities of a script that builds an image, in its own user namespace: those of Docker's defaults that its
/// system calls leave a use for.
const BUILD_CAPABILITIES: [&str; 9] = [
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_SETFCAP",
    "CAP_SETGID",
    "CAP_SETPCAP",
    "CAP_SETUID",
];

/// Variables that tell the machine's proxies.
const NETWORK_VARIABLES: [&str; 6] =
    ["http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"];

/// Files with the network configuration: name in the build's folder, path.
pub(super) const NETWORK_FILES: [(&str, &str); 2] =
    [("resolv.conf", store::RESOLV_CONF), ("hosts", store::HOSTS)];

/// The specification of a sandbox in which a shell script builds an image.
pub(super) fn build(script: &str, host: &Host, cgroup: Option<&Cgroup>, ids: Ids) -> Value {
    let path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned();
    let network = NETWORK_VARIABLES
        .into_iter()
        .filter_map(|name| std::env::var(name).ok().map(|value| format!("{name}={value}")));
    let env: Vec<_> = [path, "HOME=/root".to_owned()].into_iter().chain(network).collect();
    let sets = ["bounding", "effective", "permitted"].map(|set| (set, BUILD_CAPABILITIES));
    let network = Path::new(BUILDING).join(CONTEXT).join(NETWORK);
    let files = NETWORK_FILES.map(|(name, path)| {
        let source = network.join(name);
        json!({ "destination": path, "type": "bind", "source": source, "options": ["bind", "nosuid", "nodev"] })
    });
    let shm = mount("/dev/shm", "tmpfs", "tmpfs", &["nosuid", "nodev", "mode=1777", "size=64m"]);
    let mounts: Vec<_> = system_mounts().into_iter().chain([shm]).chain(files).collect();
    json!({
        "ociVersion": "1.0.2",
        "root": { "path": BUILDING, "readonly": false },
        "hostname": "build",
        "process": {
            "user": { "uid": 0, "gid": 0 },
            "args": ["/bin/sh", "-c", script],
            "env": env,
            "cwd": "/",
            "noNewPrivileges": true,
            "capabilities": BTreeMap::from(sets),
            "rlimits": build_rlimits(),
        },
        "mounts": mounts,
        "linux": linux(cgroup, Some(ids), || build_resources(host)),
    })
}

/// The limits of a build. It may use all cores.
fn build_resources(host: &Host) -> Value {
    let mut limits = limits_of_memory(host, build_limits::MEMORY);
    limits["pids"] = json!({ "limit": build_limits::PIDS });
    limits
}

fn build_rlimits() -> Vec<Value> {
    let open_files = ProcessLimit::open_files(build_limits::OPEN_FILES.into());
    let processes = ProcessLimit::processes_outside(build_limits::PIDS.into());
    rlimits([open_files, processes, ProcessLimit::length_of_files(build_limits::FILE.as_bytes())])
}

fn program_rlimits(spec: &SandboxSpec, parts: &SpecParts<'_>) -> Vec<Value> {
    let processes = spec.processes().into();
    let processes = if !parts.host.limits("pids") && parts.ids.is_some() {
        // The kernel counts the processes of the sandbox's own user apart from other users of the same number.
        ProcessLimit::processes(processes)
    } else {
        ProcessLimit::processes_outside(processes)
    };
    rlimits([ProcessLimit::open_files(spec.limits.open_files.into()), processes])
}

/// These limits, and all others as every process in a sandbox has them.
fn rlimits<const N: usize>(own: [ProcessLimit; N]) -> Vec<Value> {
    let others = PROCESS_LIMITS.into_iter().chain(USER_LIMITS).chain([ADDRESS_SPACE]);
    let others = others.filter(|other| own.iter().all(|own| own.name != other.name));
    own.into_iter().chain(others).map(|limit| rlimit(limit.within_own())).collect()
}

fn rlimit(limit: ProcessLimit) -> Value {
    const UNLIMITED: u64 = u64::MAX;
    let kind = format!("RLIMIT_{}", limit.name.to_uppercase());
    let value = |limit: Option<u64>| limit.unwrap_or(UNLIMITED);
    json!({ "type": kind, "soft": value(limit.soft), "hard": value(limit.hard) })
}

fn environment(image: &[String]) -> Vec<String> {
    const PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
    let mut env = image.to_vec();
    // For an empty one, `libcontainer` would ask the C library who the user is. That loads whatever library the
    // image names in `/etc/nsswitch.conf`, before the filter of system calls holds.
    env.retain(|variable| variable != "HOME=");
    for needed in [PATH, "HOME=/", "HOSTNAME=sandbox"] {
        let name = needed.split_inclusive('=').next().unwrap_or_default();
        if !env.iter().any(|variable| variable.starts_with(name)) {
            env.push(needed.to_owned());
        }
    }
    env
}

fn linux(cgroup: Option<&Cgroup>, ids: Option<Ids>, resources: impl FnOnce() -> Value) -> Value {
    let mut namespaces: Vec<_> = ["pid", "mount", "network", "ipc", "uts", "cgroup"]
        .into_iter()
        .map(|kind| json!({ "type": kind }))
        .collect();
    let mut mappings = Vec::new();
    if let Some(Ids { first, count }) = ids {
        namespaces.push(json!({ "type": "user" }));
        mappings.push(json!({ "containerID": 0, "hostID": first, "size": count }));
    }
    let mut linux = json!({
        "namespaces": namespaces,
        "uidMappings": mappings,
        "gidMappings": mappings,
        "maskedPaths": hidden(),
        "readonlyPaths": read_only().collect::<Vec<_>>(),
    });
    match cgroup {
        Some(cgroup) => {
            linux["cgroupsPath"] = json!(cgroup.oci_path());
            linux["resources"] = resources();
        }
        // `libcontainer` goes on without groups that it can't make, if the path is absolute: a relative one
        // would be systemd's.
        None => linux["cgroupsPath"] = json!("/isolator"),
    }
    linux
}

fn resources(spec: &SandboxSpec, host: &Host) -> Value {
    let resources = spec.resources;
    let mut limits = limits_of_memory(host, resources.memory);
    if host.limits("cpu") {
        let period = cgroups::CPU_PERIOD.as_micros() as u64;
        let quota = cgroups::quota(resources);
        limits["cpu"] = json!({ "quota": quota, "period": period });
        if host.saves_cpu_time() {
            limits["cpu"]["burst"] = json!(quota);
        }
    }
    if host.limits("pids") {
        limits["pids"] = json!({ "limit": spec.processes() });
    }
    limits
}

/// A limit of memory, and no devices.
fn limits_of_memory(host: &Host, memory: ByteSize) -> Value {
    let mut limits = json!({ "devices": [{ "allow": false, "access": "rwm" }] });
    if host.limits("memory") {
        let memory = memory.as_i64();
        // Memory and swap together: no swap is added.
        limits["memory"] = json!({ "limit": memory, "swap": memory });
        if host.counts_sockets_apart {
            limits["memory"]["kernelTCP"] = memory.into();
        }
    }
    limits
}

/// Paths that can only be read, with the mount of the control groups, which must be writable until all of them are
/// mounted.
fn read_only() -> impl Iterator<Item = &'static str> {
    READ_ONLY.into_iter().chain([CGROUP_MOUNT])
}

/// The file systems of the kernel.
fn system_mounts() -> Vec<Value> {
    vec![
        mount("/proc", "proc", "proc", &["nosuid", "noexec", "nodev"]),
        mount("/dev", "tmpfs", "tmpfs", &["nosuid", "strictatime", "mode=755", "size=64k"]),
        mount(
            "/dev/pts",
            "devpts",
            "devpts",
            // The machine limits the terminals of all sandboxes and containers together.
            &["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "max=64"],
        ),
        mount("/dev/mqueue", "mqueue", "mqueue", &["nosuid", "noexec", "nodev"]),
        mount("/sys", "sysfs", "sysfs", &["nosuid", "noexec", "nodev", "ro"]),
    ]
}

fn mounts(spec: &SandboxSpec, parts: &SpecParts<'_>) -> Vec<Value> {
    let mut mounts = system_mounts();
    mounts.extend(parts.cgroup.map(control_groups).unwrap_or_default());
    let options = |size: ByteSize, execution: &str| {
        let (uid, gid) = spec.user;
        // One string each: they are given to the kernel one by one.
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
    // Otherwise a volume that the image declares would be disk space without a limit.
    for path in volumes(spec) {
        mounts.push(tmpfs(path, options(spec.limits.tmp, "exec")));
    }
    // Programs start from both (a compiled program is in `/tmp`), so both are executable.
    mounts.push(tmpfs("/tmp", options(spec.limits.tmp, "exec")));
    mounts.push(tmpfs(&spec.workdir, options(spec.limits.workspace, "exec")));
    let runner = runner(parts.root);
    for (name, path, _) in FILES {
        mounts.push(bind(&runner.join(name), path, &["nosuid", "nodev", "noexec"]));
    }
    mounts
}

/// Mounts of the sandbox's own groups, so that the runner and language runtimes find their limits.
fn control_groups(cgroup: &Cgroup) -> Vec<Value> {
    let flags = ["nosuid", "nodev", "noexec"];
    let visible = cgroup.visible();
    let mut mounts = Vec::new();
    if visible.len() > 1 {
        mounts.push(mount(
            CGROUP_MOUNT,
            "tmpfs",
            "tmpfs",
            &["nosuid", "nodev", "noexec", "mode=755", "size=4k"],
        ));
    }
    for (source, name) in visible {
        let destination = Path::new(CGROUP_MOUNT).join(name);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_image_leaves_the_home_to_its_list_of_users() {
        let home = |image: &[&str]| -> Vec<String> {
            let image: Vec<_> = image.iter().map(|variable| (*variable).to_owned()).collect();
            environment(&image).into_iter().filter(|it| it.starts_with("HOME=")).collect()
        };
        assert_eq!(home(&[]), ["HOME=/"]);
        assert_eq!(home(&["HOME="]), ["HOME=/"]);
        assert_eq!(home(&["HOME=/x"]), ["HOME=/x"]);
        assert_eq!(home(&["HOME=/x", "HOME="]), ["HOME=/x"]);
    }
}
