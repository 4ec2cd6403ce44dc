//! The request that creates a sandbox's container. It sets every limit and every protection.

use std::collections::HashMap;

use bollard::models::{
    ContainerCreateBody, HealthConfig, HostConfig, HostConfigCgroupnsModeEnum, HostConfigLogConfig,
    Mount, MountType, MountVolumeOptions, ResourcesUlimits,
};

use isolator_runner::paths;

use super::dialect::{Dialect, TmpfsOptions};
use crate::engine::hidden_paths::{READ_ONLY, hidden};
use crate::engine::limits::ByteSize;
use crate::engine::process_limits::{PROCESS_LIMITS, ProcessLimit, SHARED_USER_LIMITS};
use crate::engine::{RootAccess, SandboxSpec};

/// The request that creates the container.
pub(super) fn body(
    spec: &SandboxSpec,
    volumes: Volumes<'_>,
    labels: HashMap<String, String>,
    dialect: &Dialect,
) -> ContainerCreateBody {
    let (uid, gid) = spec.user;
    ContainerCreateBody {
        image: Some(spec.image.digest.clone()),
        // Process 1 starts the runner and then only waits. No zombies need an init: the sandbox does not live long
        // enough.
        entrypoint: Some(vec![paths::RUNNER.to_owned(), "hold".to_owned()]),
        cmd: Some(Vec::new()),
        attach_stdin: Some(true),
        attach_stdout: Some(true),
        attach_stderr: Some(true),
        open_stdin: Some(true),
        // The end of a server is the end of its runners.
        stdin_once: Some(true),
        user: Some(format!("{uid}:{gid}")),
        working_dir: Some(spec.workdir.clone()),
        hostname: Some("sandbox".to_owned()),
        // Process 1 ignores every other signal, and an engine that shuts down would wait ten seconds for it.
        stop_signal: Some("SIGKILL".to_owned()),
        // An image's own health check would start processes next to the program.
        healthcheck: Some(HealthConfig {
            test: Some(vec!["NONE".to_owned()]),
            ..HealthConfig::default()
        }),
        host_config: Some(host_config(spec, volumes, &labels, dialect)),
        labels: Some(labels),
        ..ContainerCreateBody::default()
    }
}

/// The names of the volumes that containers have.
#[derive(Clone, Copy)]
pub(super) struct Volumes<'a> {
    /// With the runner and its files.
    pub(super) runner: &'a str,
    /// With sets of packages, for those that can be given one.
    pub(super) packages: &'a str,
}

/// How a volume is mounted.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    /// In a sandbox.
    ReadOnly,
    /// In the helper container through which it is filled or cleared.
    ReadWrite,
}

/// A volume in a container, at a path. It has the labels, too: an engine recreates a missing volume, and
/// the sweep must find that one as well.
pub(super) fn mount(
    (volume, path): (&str, &str),
    labels: &HashMap<String, String>,
    access: Access,
) -> Mount {
    Mount {
        target: Some(path.to_owned()),
        source: Some(volume.to_owned()),
        typ: Some(MountType::VOLUME),
        read_only: Some(access == Access::ReadOnly),
        volume_options: Some(MountVolumeOptions {
            no_copy: Some(true),
            labels: Some(labels.clone()),
            ..MountVolumeOptions::default()
        }),
        ..Mount::default()
    }
}

fn host_config(
    spec: &SandboxSpec,
    volumes: Volumes<'_>,
    labels: &HashMap<String, String>,
    dialect: &Dialect,
) -> HostConfig {
    let resources = spec.resources;
    let packages = spec.packages.map(|_| (volumes.packages, paths::PACKAGES));
    let volumes = [(volumes.runner, paths::DIRECTORY)].into_iter().chain(packages);
    HostConfig {
        network_mode: Some(spec.network.clone()),
        cap_drop: Some(spec.cap_drop.clone()),
        security_opt: Some(vec!["no-new-privileges".to_owned(), dialect.seccomp.clone()]),
        readonly_rootfs: Some(spec.root != RootAccess::ModesOfImage),
        masked_paths: Some(hidden()),
        readonly_paths: Some(READ_ONLY.map(str::to_owned).to_vec()),
        runtime: spec.runtime.clone(),
        // An engine can be set up to start a process 1 of its own otherwise.
        init: Some(false),
        memory: Some(resources.memory.as_i64()),
        // Memory and swap together: no swap is added.
        memory_swap: Some(resources.memory.as_i64()),
        nano_cpus: Some(resources.cpu.as_nano_cpus()),
        pids_limit: Some(i64::from(spec.processes())),
        ulimits: Some(ulimits(spec)),
        tmpfs: Some(tmpfs(spec, dialect)),
        mounts: Some(volumes.map(|volume| mount(volume, labels, Access::ReadOnly)).collect()),
        ipc_mode: Some("private".to_owned()),
        // With control groups of version 1, a daemon would show the names of the host's groups by default.
        cgroupns_mode: Some(HostConfigCgroupnsModeEnum::PRIVATE),
        shm_size: Some(spec.limits.shm.as_i64()),
        // A program's output goes over the runner's stream; nothing else may print.
        log_config: Some(HostConfigLogConfig { typ: Some("none".to_owned()), config: None }),
        ..HostConfig::default()
    }
}

fn ulimits(spec: &SandboxSpec) -> Vec<ResourcesUlimits> {
    let open_files = ProcessLimit::open_files(spec.limits.open_files.into());
    let processes = ProcessLimit::processes_outside(spec.processes().into());
    let of_sandbox = [open_files, processes].into_iter();
    let limits = of_sandbox.chain(PROCESS_LIMITS).chain(SHARED_USER_LIMITS);
    limits.map(ulimit).collect()
}

fn ulimit(limit: ProcessLimit) -> ResourcesUlimits {
    const UNLIMITED: i64 = -1;
    let value = |limit: Option<u64>| {
        Some(limit.and_then(|limit| i64::try_from(limit).ok()).unwrap_or(UNLIMITED))
    };
    ResourcesUlimits {
        name: Some(limit.name.to_owned()),
        soft: value(limit.soft),
        hard: value(limit.hard),
    }
}

/// Folders that programs can write to if their root is [open](RootAccess::Open), each with a size of its own: an engine makes no
/// layer over an image that is limited in size. They are empty in most images, so nothing is hidden.
const OPEN_FOLDERS: [&str; 4] = ["/data", "/mnt", "/srv", "/workspace"];

/// The writable directories. Programs start from both (a compiled program is in `/tmp`), so both are
/// executable.
fn tmpfs(spec: &SandboxSpec, dialect: &Dialect) -> HashMap<String, String> {
    let (uid, gid) = spec.user;
    let more = match dialect.tmpfs {
        TmpfsOptions::All => format!(",nr_inodes={},uid={uid},gid={gid}", spec.limits.inodes),
        TmpfsOptions::SizeAndMode => String::new(),
    };
    let options = |size: ByteSize| {
        let size = size.as_bytes();
        format!("rw,exec,nosuid,nodev,mode=1777,size={size}{more}")
    };
    let mut tmpfs = HashMap::new();
    if spec.root == RootAccess::Open {
        tmpfs.extend(OPEN_FOLDERS.map(|path| (path.to_owned(), options(spec.limits.tmp))));
    }
    // Otherwise a volume that the image declares would be disk space without a limit.
    for path in &spec.image.volumes {
        tmpfs.insert(path.clone(), options(spec.limits.tmp));
    }
    tmpfs.insert("/tmp".to_owned(), options(spec.limits.tmp));
    tmpfs.insert(spec.workdir.clone(), options(spec.limits.workspace));
    tmpfs
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::limits::{CpuShare, FixedLimits, Resources};
    use crate::engine::{Image, USER_HOME};

    fn spec(root: RootAccess, workdir: &str) -> SandboxSpec {
        let mib = ByteSize::mib(1);
        SandboxSpec {
            image: Image::default(),
            resources: Resources { memory: ByteSize::mib(64), cpu: CpuShare::millis(500) },
            limits: FixedLimits {
                pids: 8,
                open_files: 8,
                workspace: ByteSize::mib(2),
                tmp: mib,
                inodes: 8,
                shm: mib,
            },
            workdir: workdir.to_owned(),
            user: (1000, 1000),
            network: "none".to_owned(),
            cap_drop: Vec::new(),
            root,
            runtime: None,
            preload: None,
            packages: None,
            allow_unlimited: false,
        }
    }

    #[test]
    fn an_open_root_is_read_only_with_bounded_folders_in_memory() {
        let dialect = Dialect { seccomp: String::new(), tmpfs: TmpfsOptions::All };
        let host = |root, workdir| {
            let volumes = Volumes { runner: "runner", packages: "packages" };
            host_config(&spec(root, workdir), volumes, &HashMap::new(), &dialect)
        };
        let open = host(RootAccess::Open, USER_HOME);
        assert_eq!(open.readonly_rootfs, Some(true));
        let folders = open.tmpfs.unwrap_or_default();
        let mut paths: Vec<_> = folders.keys().map(String::as_str).collect();
        paths.sort_unstable();
        assert_eq!(paths, ["/data", "/home/user", "/mnt", "/srv", "/tmp", "/workspace"]);
        for (path, options) in &folders {
            let size = if path == USER_HOME { 2 << 20 } else { 1 << 20 };
            let limits = format!("nosuid,nodev,mode=1777,size={size},nr_inodes=8,uid=1000");
            assert!(options.contains(&limits), "{path}: {options}");
        }
        let closed = host(RootAccess::ReadOnly, "/workspace");
        assert_eq!(closed.readonly_rootfs, Some(true));
        assert_eq!(closed.tmpfs.unwrap_or_default().len(), 2);
        assert_eq!(host(RootAccess::ModesOfImage, "/workspace").readonly_rootfs, Some(false));
    }
}
