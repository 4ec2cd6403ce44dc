//! What this machine lets this user have for sandboxes, and what is lost where it is not all.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use super::cgroup::{self, Hierarchies, Version};
use super::layout::IDS;
use super::rootless::{self, Grant};
use crate::engine::Warning;

/// Users of the host that sandboxes' own are mapped to: the range that systemd's description of the use of
/// numbers keeps for containers, in parts of [`IDS`].
const FIRST: u32 = 524_288;
const LAST: u32 = 1_879_048_191;

/// Users and groups of the launcher's user namespace that a sandbox's own are mapped to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ids {
    pub(super) first: u32,
    pub(super) count: u32,
}

/// Whence sandboxes have their users.
#[derive(Debug)]
enum Users {
    /// Each has a range of its own of the machine's.
    OfMachine(AtomicU32),
    /// All have the same: what there is, without root.
    Granted,
    /// None has any: no user namespaces can be made.
    Shared,
}

/// What there is.
#[derive(Debug)]
pub(super) struct Host {
    /// Control groups, unless there are none for this user.
    pub(super) groups: Option<Hierarchies>,
    /// Whether buffers of sockets have a limit of their own.
    pub(super) counts_sockets_apart: bool,
    /// Controllers whose limits sandboxes don't have.
    missing: Vec<&'static str>,
    /// Why there are no groups.
    why: Option<String>,
    /// What this user was granted, without root.
    pub(super) grant: Option<Grant>,
    /// Where control groups of version 2 are mounted, which are the only ones to be had without root.
    pub(super) second_version: Option<PathBuf>,
    users: Users,
}

impl Host {
    /// Looks around. The error says what is missing without which there are no sandboxes.
    pub(super) fn find() -> Result<Self, String> {
        if rootless::is_root() { Self::of_root() } else { Self::without_root() }
    }

    fn of_root() -> Result<Self, String> {
        let groups = Hierarchies::of_machine().map_err(|error| error.to_string())?;
        let missing = groups.missing().map_err(|error| {
            format!("control groups can't be made, which limit sandboxes: {error}")
        })?;
        if !missing.is_empty() {
            let missing = missing.join(" and ");
            return Err(format!("the control groups of this machine don't limit {missing}"));
        }
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let users =
            users_of_root(&read("/proc/self/uid_map"), &read("/proc/sys/user/max_user_namespaces"));
        let counts_sockets_apart = groups.count_sockets_apart();
        let is_second = groups.version == Version::Two;
        let second_version = if is_second { cgroup::second_version().ok() } else { None };
        let (groups, why, grant) = (Some(groups), None, None);
        Ok(Self { groups, counts_sockets_apart, missing, why, grant, second_version, users })
    }

    fn without_root() -> Result<Self, String> {
        let grant = Grant::find().map_err(|missing| missing.to_string())?;
        let delegated =
            Hierarchies::delegated().map_err(|error| error.to_string()).and_then(|groups| {
                let missing = groups.missing().map_err(|error| error.to_string())?;
                Ok((groups, missing))
            });
        let (groups, missing, why) = match delegated {
            Ok((groups, missing)) => (Some(groups), missing, None),
            Err(why) => (None, Vec::new(), Some(why)),
        };
        let second_version = Some(cgroup::second_version().map_err(|_| {
            "control groups of version 2 are not mounted, without which there are no sandboxes without \
             root; as root, run: mount -t cgroup2 cgroup2 /sys/fs/cgroup"
        })?);
        let (grant, users) = (Some(grant), Users::Granted);
        // The second version counts them as memory.
        let counts_sockets_apart = false;
        Ok(Self { groups, counts_sockets_apart, missing, why, grant, second_version, users })
    }

    /// The users of the next sandbox.
    pub(super) fn next_ids(&self) -> Option<Ids> {
        match &self.users {
            Users::OfMachine(next) => {
                let ranges = (LAST - FIRST) / IDS;
                let range = next.fetch_add(1, Ordering::Relaxed) % ranges;
                Some(Ids { first: FIRST + range * IDS, count: IDS })
            }
            // The first is who runs the server.
            Users::Granted => Some(Ids { first: 1, count: IDS - 1 }),
            Users::Shared => None,
        }
    }

    /// Whether a controller limits sandboxes.
    pub(super) fn limits(&self, controller: &str) -> bool {
        self.groups.is_some() && !self.missing.contains(&controller)
    }

    /// What sandboxes do without.
    pub(super) fn lost(&self) -> Vec<Warning> {
        const DELEGATE: &str = "start the server in a control group that is its own, such as: \
            systemd-run --user --scope --property=Delegate=yes isolator serve";
        let mut lost = Vec::new();
        if let Some(why) = &self.why {
            lost.push(Warning::new(
                format!(
                    "sandboxes have no limit of memory and CPU time, that of processes is less exact, \
                     and they can't be paused: {why}"
                ),
                DELEGATE,
            ));
        }
        for controller in &self.missing {
            let what = format!("no limit of {controller}: that controller was not delegated");
            lost.push(Warning::new(what, DELEGATE));
        }
        match self.users {
            Users::OfMachine(_) => {}
            Users::Granted => lost.push(Warning::new(
                "all sandboxes have the same users, so what the kernel counts for each user is shared \
                 by those that run at once",
                "run the server as root, which gives each sandbox users of its own",
            )),
            Users::Shared => lost.push(Warning::new(
                "sandboxes have no user namespace: their users are those of the host",
                "as root, run: sysctl -w user.max_user_namespaces=15000",
            )),
        }
        lost
    }

    /// How sandboxes are made, for people.
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

/// The kernel's way to say that every user is there.
const EVERYBODY: &str = "4294967295";

fn users_of_root(uid_map: &str, most_namespaces: &str) -> Users {
    let first = uid_map.lines().next().unwrap_or_default();
    let count = first.split_whitespace().nth(2).unwrap_or_default();
    if most_namespaces.trim() == "0" || most_namespaces.is_empty() {
        Users::Shared
    } else if count == EVERYBODY {
        // Servers that run side by side begin at different places.
        Users::OfMachine(AtomicU32::new(uuid::Uuid::new_v4().as_u128() as u32))
    } else if count.parse().is_ok_and(|count: u32| count >= IDS) {
        Users::Granted
    } else {
        Users::Shared
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_of_the_machine_gives_each_sandbox_users_of_its_own() {
        let users = users_of_root("         0          0 4294967295\n", "96343\n");
        assert!(matches!(users, Users::OfMachine(_)));
        let (groups, missing, why, grant, second_version) = (None, vec![], None, None, None);
        let host = Host {
            groups,
            counts_sockets_apart: false,
            missing,
            why,
            grant,
            second_version,
            users,
        };
        let (one, other) = (host.next_ids().unwrap(), host.next_ids().unwrap());
        assert!(one.first.abs_diff(other.first) >= IDS, "{one:?} {other:?}");
        assert!(one.first >= FIRST && one.first + one.count <= LAST);
    }

    #[test]
    fn root_of_a_container_gives_what_it_has() {
        let users = |map, most| users_of_root(map, most);
        assert!(matches!(users("0 100000 65536\n", "100\n"), Users::Granted));
        assert!(matches!(users("0 1000 1\n", "100\n"), Users::Shared));
        assert!(matches!(users("0 0 4294967295\n", "0\n"), Users::Shared));
        assert!(matches!(users("0 0 4294967295\n", ""), Users::Shared));
    }
}
