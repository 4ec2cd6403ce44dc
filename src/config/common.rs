//! What holds for all languages that don't set it themselves.

use super::check::Check;
use super::defaults::{CAP_DROP, CPUS, MEMORY_MB, NETWORK, OPEN_FILES, PIDS, WORKDIR};
use super::raw::{RawConfig, RawPool};

/// The settings of languages that don't set their own.
pub(super) struct Common {
    pub(super) memory_mb: u64,
    pub(super) cpus: f64,
    pub(super) pids: u32,
    pub(super) network: String,
    pub(super) cap_drop: Vec<String>,
    pub(super) readonly_root: bool,
    pub(super) workdir: String,
    pub(super) open_files: u32,
    pub(super) runtime: Option<String>,
    pub(super) allow_unlimited: bool,
    pub(super) pool: RawPool,
}

impl Common {
    pub(super) fn new(raw: &RawConfig, check: &mut Check) -> Self {
        let network = raw.default_network_mode.clone().unwrap_or_else(|| NETWORK.to_owned());
        if network.is_empty() || network == "host" || network.starts_with("container:") {
            check.problem(
                "defaultNetworkMode",
                format!(
                    "{network:?} is not allowed, because it would share the network of the host \
                     or of another container: use \"none\", \"bridge\" or the name of a network"
                ),
            );
        }
        let workdir = raw.default_container_workdir.clone().unwrap_or_else(|| WORKDIR.to_owned());
        if !is_workdir(&workdir) {
            check.problem(
                "defaultContainerWorkdir",
                format!("{workdir:?} is not allowed: use an absolute path outside of the system's folders and \
                     /tmp, such as {WORKDIR:?}"),
            );
        }
        Self {
            memory_mb: raw.default_memory_mb.unwrap_or(MEMORY_MB),
            cpus: raw.default_cpus.unwrap_or(CPUS),
            pids: raw.default_pids_limit.unwrap_or(PIDS),
            network,
            cap_drop: raw.default_cap_drop.clone().unwrap_or_else(|| vec![CAP_DROP.to_owned()]),
            readonly_root: raw.default_read_only_rootfs.unwrap_or(true),
            workdir,
            open_files: check.within(
                "limits.openFiles",
                raw.limits.open_files.unwrap_or(OPEN_FILES),
                64,
                1 << 20,
                OPEN_FILES,
            ),
            runtime: raw.engine.runtime.clone(),
            allow_unlimited: raw.engine.allow_unlimited.unwrap_or(false),
            pool: raw.pool.of_each(),
        }
    }
}

/// A file system is mounted there, so it can't be one of the system's folders.
fn is_workdir(path: &str) -> bool {
    const TAKEN: [&str; 9] =
        ["/etc", "/usr", "/bin", "/sbin", "/lib", "/lib64", "/var", "/root", "/run"];
    const TAKEN_WITH_ALL_BELOW: [&str; 5] = ["/tmp", "/dev", "/proc", "/sys", "/.isolator"];
    let Some(relative) = path.strip_prefix('/') else {
        return false;
    };
    let is_clean = relative.split('/').all(|part| !matches!(part, "" | "." | ".."));
    let is_below = |taken: &str| path == taken || path.starts_with(&format!("{taken}/"));
    is_clean
        && !path.contains([':', ',', '\0'])
        && !TAKEN.contains(&path)
        && !TAKEN_WITH_ALL_BELOW.iter().any(|taken| is_below(taken))
}
