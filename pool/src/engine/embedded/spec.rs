//! The plan of each kind of sandbox. It sets every limit and every protection that not all of them have.

use std::path::{Path, PathBuf};

use isolator_runner::paths;
use rustix::thread::CapabilitySet;

use super::build_limits;
use super::cgroups::{self, Cgroup, GroupLimits};
use super::host::{Host, Ids};
use super::launcher;
use super::layout::{CONTEXT, NETWORK};
use super::plan::{Account, MemoryMount, Plan, ResourceLimit, Role, Root, Users, WritableLayer};
use crate::engine::limits::ByteSize;
use crate::engine::preload::Preload;
use crate::engine::process_limits::{ADDRESS_SPACE, PROCESS_LIMITS, ProcessLimit, USER_LIMITS};
use crate::engine::store;
use crate::engine::{RootAccess, SandboxSpec, USER_NAME};

/// Files that the engine mounts over those of the image: name in the runner's directory, path, content.
pub(super) const FILES: [(&str, &str, &str); 3] = [
    ("hosts", store::HOSTS, "127.0.0.1\tlocalhost sandbox\n::1\tlocalhost\n"),
    ("hostname", store::HOSTNAME, "sandbox\n"),
    ("resolv.conf", store::RESOLV_CONF, ""),
];

/// What a plan depends on beside its specification.
#[derive(Clone, Copy)]
pub(super) struct SpecParts<'a> {
    /// The image's root, as the launcher sees it.
    pub(super) image: &'a Path,
    /// The features of the machine.
    pub(super) host: &'a Host,
    /// The sandbox's groups, where it has some.
    pub(super) cgroup: Option<&'a Cgroup>,
    /// Variables of the image.
    pub(super) env: &'a [String],
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

/// The plan of a sandbox whose process 1 is the runner.
pub(super) fn sandbox(spec: &SandboxSpec, users: Option<Users>, parts: SpecParts<'_>) -> Plan {
    let SpecParts { image, host, cgroup, env } = parts;
    let is_entered = users.is_some_and(|users| users.entered_by.is_some());
    let runner = runner(Path::new("/"));
    Plan {
        role: Role::Program { users },
        root: Root::Image { image: image.to_owned(), layer: writable_layer(spec) },
        host_name: "sandbox".to_owned(),
        groups: cgroup.map(|cgroup| cgroup.plan(&group_limits(spec, host))),
        memory: memory_mounts(spec),
        files: FILES.map(|(name, path, _)| (runner.join(name), path.into())).to_vec(),
        packages: None,
        program: vec![paths::RUNNER.into()],
        arguments: [paths::RUNNER, "park"]
            .into_iter()
            .chain(is_entered.then_some("forks"))
            .map(str::to_owned)
            .collect(),
        variables: environment(env),
        directory: spec.workdir.clone().into(),
        user: spec.user,
        capabilities: CapabilitySet::empty().bits(),
        limits: program_limits(spec, host, users.is_some()),
    }
}

/// The layer for writes to the root, as large as `/tmp`.
fn writable_layer(spec: &SandboxSpec) -> Option<WritableLayer> {
    let open_to = match spec.root {
        RootAccess::ReadOnly => return None,
        RootAccess::ModesOfImage => None,
        RootAccess::Open => {
            let (name, home) = (USER_NAME.to_owned(), spec.workdir.clone());
            Some(Account { name, user: spec.user, home })
        }
    };
    let (size, inodes) = (spec.limits.tmp.as_bytes(), spec.limits.inodes);
    Some(WritableLayer { size, inodes, open_to })
}

/// The plan of a template: an interpreter as one is in a sandbox, but as a user of the launcher's namespace, and
/// with the launcher's processes. One that `gives_way` gets only CPU time that no other process needs.
pub(super) fn template(
    spec: &SandboxSpec,
    preload: &Preload,
    modules: &[String],
    user: u32,
    gives_way: bool,
    parts: SpecParts<'_>,
) -> Plan {
    // Its program is made unreadable, for which its root must be writable.
    let of_template =
        SandboxSpec { user: (user, user), root: RootAccess::ModesOfImage, ..spec.clone() };
    let mut limits = group_limits(spec, parts.host);
    let memory = preload.memory.as_bytes() + spec.resources.memory.as_bytes();
    limits.memory = limits.memory.map(|_| memory + TEMPLATE_MEMORY.as_bytes());
    // A fork counts here until it has its place in a sandbox, and does its work here that far.
    limits.processes = limits.processes.map(|_| TEMPLATE_PROCESSES);
    limits.quota = limits.quota.map(|_| cgroups::CPU_PERIOD.as_micros() as u64);
    limits.gives_way = gives_way && limits.quota.is_some();
    Plan {
        role: Role::Template,
        groups: parts.cgroup.map(|cgroup| cgroup.plan(&limits)),
        program: programs(preload, parts.env),
        arguments: preload.argv.clone(),
        variables: template_environment(parts.env, preload, modules),
        ..sandbox(&of_template, None, parts)
    }
}

/// Gives a template a set of packages, whose path is below the folder of all sets. Returns whether it is a valid path.
pub(super) fn give_packages(template: &mut Plan, set: &Path) -> bool {
    template.variables.push(format!("PYTHONUSERBASE={}", paths::PACKAGES));
    template.packages = Some(set.to_owned());
    launcher::layers(set).is_some()
}

/// Additional memory of a template, for the page tables of the memory that its forks share with it.
const TEMPLATE_MEMORY: ByteSize = ByteSize::mib(128);

/// Maximum number of processes of a template: itself, and its forks until they are in their sandboxes. It does not depend on
/// the limit of a sandbox, because a template serves all of them.
const TEMPLATE_PROCESSES: u32 = 256;

/// Where the program of an interpreter may be in its image.
fn programs(preload: &Preload, image: &[String]) -> Vec<PathBuf> {
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
    // Otherwise each fork looks for the functions of the C library again. What the image says about it, programs have to see.
    if !env.iter().any(|variable| variable.starts_with("LD_BIND_NOW=")) {
        own.entry("LD_BIND_NOW".to_owned()).or_insert_with(|| TEMPLATE_BINDING.to_owned());
    }
    env.retain(|variable| !own.keys().any(|name| variable.starts_with(&format!("{name}="))));
    env.extend(own.into_iter().map(|(name, value)| format!("{name}={value}")));
    env
}

/// Capabilities of a script that builds an image, in its own user namespace: those of Docker's defaults that its
/// system calls leave a use for.
const BUILD_CAPABILITIES: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::KILL)
    .union(CapabilitySet::SETFCAP)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::SETPCAP)
    .union(CapabilitySet::SETUID);

/// Variables that tell the machine's proxies.
const NETWORK_VARIABLES: [&str; 6] =
    ["http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"];

/// Files with the network configuration: name in the build's folder, path.
pub(super) const NETWORK_FILES: [(&str, &str); 2] =
    [("resolv.conf", store::RESOLV_CONF), ("hosts", store::HOSTS)];

/// The plan of a sandbox in which a shell script builds an image.
pub(super) fn build(script: &str, host: &Host, cgroup: Option<&Cgroup>, ids: Ids) -> Plan {
    const SHELL: &str = "/bin/sh";
    let path = PATH.to_owned();
    let network = NETWORK_VARIABLES
        .into_iter()
        .filter_map(|name| std::env::var(name).ok().map(|value| format!("{name}={value}")));
    let folder = Path::new("/").join(CONTEXT).join(NETWORK);
    let shared_memory = MemoryMount {
        path: "/dev/shm".into(),
        size: ByteSize::mib(64).as_bytes(),
        inodes: None,
        owner: (0, 0),
        is_executable: true,
    };
    // It may use all cores.
    let limits = GroupLimits {
        memory: host.limits("memory").then_some(build_limits::MEMORY.as_bytes()),
        processes: host.limits("pids").then_some(build_limits::PIDS),
        ..GroupLimits::default()
    };
    Plan {
        role: Role::Build { ids },
        root: Root::Building,
        host_name: "build".to_owned(),
        groups: cgroup.map(|cgroup| cgroup.plan(&limits)),
        memory: vec![shared_memory],
        files: NETWORK_FILES.map(|(name, path)| (folder.join(name), path.into())).to_vec(),
        packages: None,
        program: vec![SHELL.into()],
        arguments: [SHELL, "-c", script].map(str::to_owned).to_vec(),
        variables: [path, "HOME=/root".to_owned()].into_iter().chain(network).collect(),
        directory: "/".into(),
        user: (0, 0),
        capabilities: BUILD_CAPABILITIES.bits(),
        limits: resource_limits([
            ProcessLimit::open_files(build_limits::OPEN_FILES.into()),
            ProcessLimit::processes_outside(build_limits::PIDS.into()),
            ProcessLimit::length_of_files(build_limits::FILE.as_bytes()),
        ]),
    }
}

fn program_limits(spec: &SandboxSpec, host: &Host, has_users: bool) -> Vec<ResourceLimit> {
    let processes = spec.processes().into();
    let processes = if !host.limits("pids") && has_users {
        // The kernel counts the processes of the sandbox's own user apart from other users of the same number.
        ProcessLimit::processes(processes)
    } else {
        ProcessLimit::processes_outside(processes)
    };
    resource_limits([ProcessLimit::open_files(spec.limits.open_files.into()), processes])
}

/// These limits, and all others as every process in a sandbox has them.
fn resource_limits<const N: usize>(own: [ProcessLimit; N]) -> Vec<ResourceLimit> {
    let others = PROCESS_LIMITS.into_iter().chain(USER_LIMITS).chain([ADDRESS_SPACE]);
    let others = others.filter(|other| own.iter().all(|own| own.name != other.name));
    let all = own.into_iter().chain(others).map(|limit| limit.within_own().numbers());
    all.map(|(resource, soft, hard)| ResourceLimit { resource, soft, hard }).collect()
}

const PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

fn environment(image: &[String]) -> Vec<String> {
    let mut env = image.to_vec();
    // An empty one counts as missing.
    env.retain(|variable| variable != "HOME=");
    for needed in [PATH, "HOME=/", "HOSTNAME=sandbox"] {
        let name = needed.split_inclusive('=').next().unwrap_or_default();
        if !env.iter().any(|variable| variable.starts_with(name)) {
            env.push(needed.to_owned());
        }
    }
    for variable in &mut env {
        if let Some(path) = variable.strip_prefix("PATH=") {
            *variable = format!("PATH={}", paths::search_path(path, paths::PACKAGES));
        }
    }
    env
}

fn group_limits(spec: &SandboxSpec, host: &Host) -> GroupLimits {
    GroupLimits {
        memory: host.limits("memory").then_some(spec.resources.memory.as_bytes()),
        processes: host.limits("pids").then_some(spec.processes()),
        quota: host.limits("cpu").then(|| cgroups::quota(spec.resources)),
        gives_way: false,
    }
}

fn memory_mounts(spec: &SandboxSpec) -> Vec<MemoryMount> {
    let mount = |path: &str, size: ByteSize, is_executable| MemoryMount {
        path: path.into(),
        size: size.as_bytes(),
        inodes: Some(spec.limits.inodes),
        owner: spec.user,
        is_executable,
    };
    let shared = mount("/dev/shm", spec.limits.shm, false);
    // Otherwise a volume that the image declares would be disk space without a limit.
    let volumes = volumes(spec).map(|path| mount(path, spec.limits.tmp, true));
    // Programs start from both (a compiled program is in `/tmp`), so both are executable.
    let temporary = mount("/tmp", spec.limits.tmp, true);
    let workspace = mount(&spec.workdir, spec.limits.workspace, true);
    [shared].into_iter().chain(volumes).chain([temporary, workspace]).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use isolator_runner::wire::Interpreter;

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

    #[test]
    fn a_template_binds_its_libraries_at_once_unless_the_image_says_when() {
        let binding = |image: &[&str]| -> Vec<String> {
            let image: Vec<_> = image.iter().map(|variable| (*variable).to_owned()).collect();
            let preload = Preload {
                interpreter: Interpreter::Python,
                argv: vec!["python3".to_owned()],
                env: BTreeMap::new(),
                modules: Vec::new(),
                memory: ByteSize::mib(1),
                fork: true,
            };
            let variables = template_environment(&image, &preload, &[]);
            variables.into_iter().filter(|it| it.starts_with("LD_BIND_NOW=")).collect()
        };
        assert_eq!(binding(&[]), ["LD_BIND_NOW=isolator"]);
        assert_eq!(binding(&["LD_BIND_NOW=1"]), ["LD_BIND_NOW=1"]);
        assert_eq!(binding(&["LD_BIND_NOW="]), ["LD_BIND_NOW="]);
    }
}
