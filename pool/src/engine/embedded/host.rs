//! The features of this machine that this user can use for sandboxes, and warnings about missing ones.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use serde::{Deserialize, Serialize};

use super::cgroups::{self, Hierarchies, Version};
use super::layout::IDS;
use super::rights::{self, Rights, RightsError};
use super::rootless::{self, Grant, GrantError};
use crate::engine::Warning;
use crate::engine::limits::LimitKind;
use crate::engine::process_limits;

/// The host's user IDs that sandboxes' users are mapped to, in ranges of [`IDS`]. systemd's documentation
/// reserves these IDs for containers.
const FIRST_ID: u32 = 524_288;
const LAST_ID: u32 = 1_879_048_191;

/// How to get limits without root.
const DELEGATE: &str = "start the server in a control group of its own, for example: \
     systemd-run --user --scope --property=Delegate=yes isolator serve";

/// The users and groups of the launcher's user namespace that a sandbox's are mapped to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Ids {
    pub(super) first: u32,
    pub(super) count: u32,
}

/// Which user IDs sandboxes get.
#[derive(Debug)]
enum Users {
    /// Each has a range of its own.
    PerSandbox(AtomicU32),
    /// All have the same range: without root there is only one.
    OneRange,
    /// None: no user namespaces can be made, so they have the host's.
    OfHost,
}

/// Why this user can't make sandboxes on this machine.
#[derive(Debug, thiserror::Error)]
pub(super) enum HostError {
    #[error("{0}")]
    Groups(#[source] io::Error),
    #[error(
        "the control groups can't be used: {source}; the profile {profile} of AppArmor may refuse it: in a pod, set \
         securityContext.appArmorProfile.type to Unconfined, with Docker --security-opt apparmor=unconfined"
    )]
    Confined {
        profile: String,
        #[source]
        source: io::Error,
    },
    #[error(transparent)]
    Rights(#[from] RightsError),
    #[error("the control groups that limit sandboxes can't be created: {0}")]
    NotCreated(#[source] io::Error),
    #[error("the control groups of this machine can't limit {0}")]
    Unlimited(String),
    #[error(transparent)]
    Grant(#[from] GrantError),
    #[error(
        "sandboxes without root need control groups version 2, which are not mounted; as root, run: \
         mount -t cgroup2 cgroup2 /sys/fs/cgroup"
    )]
    NoVersionTwo,
}

/// The features of this machine.
#[derive(Debug)]
pub(super) struct Host {
    /// Control groups, if this user can have some.
    pub(super) groups: Option<Hierarchies>,
    /// Controllers that can't limit sandboxes.
    missing: Vec<&'static str>,
    /// The reason for missing groups.
    why: Option<String>,
    /// Capabilities that root lacks, and what is lost without them.
    lost: Vec<(&'static str, &'static str)>,
    /// The IDs that this user was granted; `None` for root.
    pub(super) grant: Option<Grant>,
    /// Where control groups version 2 are mounted, the only ones that can be used without root.
    pub(super) version_two_mount: Option<PathBuf>,
    users: Users,
}

impl Host {
    /// Detects the features. The error names a required one that is missing.
    pub(super) fn find() -> Result<Self, HostError> {
        if rootless::is_root() { Self::of_root() } else { Self::without_root() }
    }

    fn of_root() -> Result<Self, HostError> {
        let rights = Rights::find();
        rights.check()?;
        let groups = Hierarchies::of_root().map_err(groups_refused)?;
        let missing = groups.missing().map_err(HostError::NotCreated)?;
        if !missing.is_empty() {
            return Err(HostError::Unlimited(missing.join(" and ")));
        }
        // Once more: the server may be a part of another program.
        process_limits::raise_own();
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let users =
            users_of_root(&read("/proc/self/uid_map"), &read("/proc/sys/user/max_user_namespaces"));
        let is_second = groups.version == Version::Two;
        let version_two_mount = if is_second { cgroups::version_two_mount().ok() } else { None };
        let (groups, why, grant) = (Some(groups), None, None);
        Ok(Self { groups, missing, why, lost: rights.lost(), grant, version_two_mount, users })
    }

    fn without_root() -> Result<Self, HostError> {
        let grant = Grant::find()?;
        let delegated =
            Hierarchies::delegated().and_then(|groups| groups.missing().map(|it| (groups, it)));
        let (groups, missing, why) = match delegated {
            Ok((groups, missing)) => (Some(groups), missing, None),
            Err(error) => (None, Vec::new(), Some(error.to_string())),
        };
        let version_two_mount =
            cgroups::version_two_mount().map_err(|_| HostError::NoVersionTwo)?;
        let version_two_mount = Some(version_two_mount);
        let (grant, users, lost) = (Some(grant), Users::OneRange, Vec::new());
        Ok(Self { groups, missing, why, lost, grant, version_two_mount, users })
    }

    /// The IDs of the next sandbox.
    pub(super) fn next_ids(&self) -> Option<Ids> {
        match &self.users {
            Users::PerSandbox(next) => {
                // The first is for templates.
                let ranges = (LAST_ID - FIRST_ID) / IDS - 1;
                let range = 1 + next.fetch_add(1, Ordering::Relaxed) % ranges;
                Some(Ids { first: FIRST_ID + range * IDS, count: IDS })
            }
            // The first one is the user who runs the server.
            Users::OneRange => Some(Ids { first: 1, count: IDS - 1 }),
            Users::OfHost => None,
        }
    }

    /// The control groups whose changes this user may make the kernel favour.
    pub(super) fn favorable_groups(&self) -> Option<Version> {
        let groups = self.groups.as_ref().filter(|_| self.grant.is_none());
        groups.map(|groups| groups.version)
    }

    /// A user for the templates of an image that no sandbox has; `None` where sandboxes have no users of their own.
    pub(super) fn next_template_user(&self) -> Option<u32> {
        let Users::PerSandbox(next) = &self.users else { return None };
        Some(FIRST_ID + next.fetch_add(1, Ordering::Relaxed) % IDS)
    }

    /// Whether sandboxes that wait can be paused.
    pub(super) fn can_freeze(&self) -> bool {
        self.groups.as_ref().is_some_and(Hierarchies::can_freeze)
    }

    /// Whether a controller limits sandboxes.
    pub(super) fn limits(&self, controller: &str) -> bool {
        self.groups.is_some() && !self.missing.contains(&controller)
    }

    /// The limits that can't be enforced. Without control groups the limit of processes holds, if less exactly: it
    /// counts those of one user.
    pub(super) fn unenforced(&self) -> Vec<LimitKind> {
        let all = [
            (LimitKind::Memory, "memory"),
            (LimitKind::Cpu, "cpu"),
            (LimitKind::Processes, "pids"),
        ];
        let all = all.into_iter().filter(|(_, controller)| !self.limits(controller));
        let kinds = all.map(|(kind, _)| kind);
        kinds.filter(|kind| self.groups.is_some() || *kind != LimitKind::Processes).collect()
    }

    /// Why limits can't be enforced, and how to fix it.
    pub(super) fn how_to_limit(&self) -> String {
        match &self.why {
            Some(why) => format!("{why}; {DELEGATE}"),
            None => format!("not every controller was delegated to this server; {DELEGATE}"),
        }
    }

    /// The protections that sandboxes lack here, and how to get them.
    pub(super) fn warnings(&self) -> Vec<Warning> {
        let mut warnings = Vec::new();
        if let Some(why) = &self.why {
            warnings.push(Warning::new(
                format!(
                    "sandboxes have no limit of memory or CPU time, their limit of processes is less \
                     exact, and they can't be paused: {why}"
                ),
                DELEGATE,
            ));
        }
        for controller in &self.missing {
            let what = format!(
                "sandboxes have no limit of {controller}: that controller was not delegated"
            );
            warnings.push(Warning::new(what, DELEGATE));
        }
        if self.groups.as_ref().is_some_and(|groups| !groups.can_freeze()) {
            warnings.push(Warning::new(
                "sandboxes that wait are not paused: this is a container with control groups of version 1, and it could not end \
                 if the server was killed while a sandbox is frozen",
                "use a machine with control groups of version 2",
            ));
        }
        for (name, lost) in &self.lost {
            let fix = format!("add {name} to the capabilities of the container or service");
            warnings.push(Warning::new(format!("root lacks the capability {name}: {lost}"), fix));
        }
        match self.users {
            Users::PerSandbox(_) => {}
            Users::OneRange => warnings.push(Warning::new(
                "all sandboxes have the same users, so sandboxes that run at the same time share the \
                 kernel's limits for each user",
                "run the server as root: each sandbox then has users of its own",
            )),
            Users::OfHost => warnings.push(Warning::new(
                "sandboxes have no user namespace, so their users are the host's",
                "as root, run: sysctl -w user.max_user_namespaces=15000",
            )),
        }
        warnings
    }

    /// A short description for people.
    pub(super) fn describe(&self) -> String {
        let groups = match &self.groups {
            None => "no control groups",
            Some(groups) if groups.version == Version::One => "control groups version 1",
            Some(_) => "control groups version 2",
        };
        let root = if self.grant.is_some() { "without root" } else { "as root" };
        format!("{root}, {groups}")
    }
}

/// An error of control groups, with the profile that may be its reason.
fn groups_refused(source: io::Error) -> HostError {
    match rights::confined_by().filter(|_| source.kind() == io::ErrorKind::PermissionDenied) {
        Some(profile) => HostError::Confined { profile, source },
        None => HostError::Groups(source),
    }
}

/// The kernel's notation for a mapping of all IDs.
const ALL_IDS: &str = "4294967295";

fn users_of_root(uid_map: &str, most_namespaces: &str) -> Users {
    let first = uid_map.lines().next().unwrap_or_default();
    let count = first.split_whitespace().nth(2).unwrap_or_default();
    if most_namespaces.trim() == "0" || most_namespaces.is_empty() {
        Users::OfHost
    } else if count == ALL_IDS {
        // Servers that run at the same time start at different ranges.
        Users::PerSandbox(AtomicU32::new(uuid::Uuid::new_v4().as_u128() as u32))
    } else if count.parse().is_ok_and(|count: u32| count >= IDS) {
        Users::OneRange
    } else {
        Users::OfHost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_of_the_machine_gives_each_sandbox_its_own_ids() {
        let users = users_of_root("         0          0 4294967295\n", "96343\n");
        assert!(matches!(users, Users::PerSandbox(_)));
        let (groups, missing, why, grant, version_two_mount) = (None, vec![], None, None, None);
        let host = Host { groups, missing, why, lost: Vec::new(), grant, version_two_mount, users };
        let (one, other) = (host.next_ids().unwrap(), host.next_ids().unwrap());
        assert!(one.first.abs_diff(other.first) >= IDS, "{one:?} {other:?}");
        assert!(one.first >= FIRST_ID && one.first + one.count <= LAST_ID);
        let user = host.next_template_user().unwrap();
        assert!((FIRST_ID..FIRST_ID + IDS).contains(&user) && one.first >= FIRST_ID + IDS);
    }

    #[test]
    fn root_of_a_container_gives_the_ids_that_it_has() {
        let users = |map, most| users_of_root(map, most);
        assert!(matches!(users("0 100000 65536\n", "100\n"), Users::OneRange));
        assert!(matches!(users("0 1000 1\n", "100\n"), Users::OfHost));
        assert!(matches!(users("0 0 4294967295\n", "0\n"), Users::OfHost));
        assert!(matches!(users("0 0 4294967295\n", ""), Users::OfHost));
    }
}
