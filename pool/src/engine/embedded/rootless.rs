//! Sandboxes without root: the user IDs that were granted to this user, and how its launcher gets them.

use std::fs;
use std::io;
use std::process::{Command, Stdio};

use super::layout::IDS;

/// Where the system lists the ranges of IDs that each user may map.
const SUBUID: &str = "/etc/subuid";
const SUBGID: &str = "/etc/subgid";

/// The programs that map them.
const NEWUIDMAP: &str = "newuidmap";
const NEWGIDMAP: &str = "newgidmap";

/// The IDs of a launcher without root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Grant {
    own: (u32, u32),
    uids: u32,
    gids: u32,
}

/// A missing requirement of sandboxes without root.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum GrantError {
    #[error(
        "sandboxes without root need {} IDs in a row, and {file} gives this user no such range; as root, run: \
         usermod --add-subuids 100000-165535 --add-subgids 100000-165535 {user}",
        IDS - 1
    )]
    NoRange { file: &'static str, user: String },
    #[error(
        "sandboxes without root need {0}, which is not installed; as root, run: apt-get install uidmap"
    )]
    NotInstalled(&'static str),
    #[error(
        "sandboxes without root need user namespaces, which this kernel allows only for root; as root, run: sysctl -w {0}"
    )]
    NoNamespaces(&'static str),
}

/// Whether this process is root, and needs no grant.
pub(super) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Whether a program can be started by its name.
pub(super) fn is_on_path(program: &str) -> bool {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&folders).any(|folder| folder.join(program).is_file())
}

impl Grant {
    /// Finds the IDs that were granted to this user.
    pub(super) fn find() -> Result<Self, GrantError> {
        let uid = rustix::process::getuid().as_raw();
        let gid = rustix::process::getgid().as_raw();
        let name = user_name(&fs::read_to_string("/etc/passwd").unwrap_or_default(), uid);
        let find = |file| {
            let table = fs::read_to_string(file).unwrap_or_default();
            first_range(&table, name.as_deref(), uid).ok_or_else(|| {
                let user = name.as_deref().unwrap_or("USER").to_owned();
                GrantError::NoRange { file, user }
            })
        };
        let grant = Self { own: (uid, gid), uids: find(SUBUID)?, gids: find(SUBGID)? };
        for program in [NEWUIDMAP, NEWGIDMAP] {
            if !is_on_path(program) {
                return Err(GrantError::NotInstalled(program));
            }
        }
        check_namespaces(
            fs::read_to_string("/proc/sys/user/max_user_namespaces").ok().as_deref(),
            fs::read_to_string("/proc/sys/kernel/unprivileged_userns_clone").ok().as_deref(),
            fs::read_to_string("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")
                .ok()
                .as_deref(),
        )?;
        Ok(grant)
    }

    /// Maps the users and groups of a process that has just entered its own user namespace. Inside, this user is
    /// root, and the granted IDs follow.
    pub(super) fn map_ids(&self, process: u32) -> io::Result<()> {
        let (uid, gid) = self.own;
        for (program, own, first) in [(NEWUIDMAP, uid, self.uids), (NEWGIDMAP, gid, self.gids)] {
            let numbers = [process, 0, own, 1, 1, first, IDS - 1].map(|number| number.to_string());
            let output = Command::new(program).args(numbers).stdin(Stdio::null()).output()?;
            if !output.status.success() {
                let said = String::from_utf8_lossy(&output.stderr);
                return Err(io::Error::other(format!("{program}: {}", said.trim())));
            }
        }
        Ok(())
    }
}

/// Checks the settings by which some kernels forbid user namespaces.
fn check_namespaces(
    most: Option<&str>,
    unprivileged: Option<&str>,
    restricted: Option<&str>,
) -> Result<(), GrantError> {
    let is = |value: Option<&str>, what: &str| value.is_some_and(|value| value.trim() == what);
    let switch = if is(most, "0") {
        "user.max_user_namespaces=15000"
    } else if is(unprivileged, "0") {
        "kernel.unprivileged_userns_clone=1"
    } else if is(restricted, "1") {
        "kernel.apparmor_restrict_unprivileged_userns=0"
    } else {
        return Ok(());
    };
    Err(GrantError::NoNamespaces(switch))
}

/// The name of a user in the form of `/etc/passwd`.
fn user_name(passwd: &str, uid: u32) -> Option<String> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(uid)).then(|| name.to_owned())
    })
}

/// The first ID of a range that is long enough, in a table in the form of `/etc/subuid`.
fn first_range(table: &str, name: Option<&str>, uid: u32) -> Option<u32> {
    table.lines().find_map(|line| {
        let mut fields = line.split(':');
        let whose = fields.next()?;
        let (first, count): (u32, u32) =
            (fields.next()?.trim().parse().ok()?, fields.next()?.trim().parse().ok()?);
        let is_ours = Some(whose) == name || whose.parse() == Ok(uid);
        (is_ours && count >= IDS - 1).then_some(first)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_found_by_name_or_number_if_it_is_long_enough() {
        let table = "other:100000:65536\nme:200000:1000\nme:300000:65536\n1001:400000:65535\n";
        assert_eq!(first_range(table, Some("me"), 1000), Some(300_000));
        assert_eq!(first_range(table, None, 1001), Some(400_000));
        assert_eq!(first_range(table, Some("nobody"), 65534), None);
        assert_eq!(first_range("me:x:y\n:::\n\n", Some("me"), 1000), None);
    }

    #[test]
    fn the_name_of_a_user_is_found() {
        let passwd = "root:x:0:0:root:/root:/bin/sh\nme:x:1000:1000::/home/me:/bin/sh\n";
        assert_eq!(user_name(passwd, 1000).as_deref(), Some("me"));
        assert_eq!(user_name(passwd, 7), None);
    }

    #[test]
    fn a_kernel_without_user_namespaces_is_detected() {
        assert!(check_namespaces(Some("96343\n"), None, None).is_ok());
        assert!(check_namespaces(Some("96343\n"), Some("1\n"), Some("0\n")).is_ok());
        for (most, unprivileged, restricted, word) in [
            (Some("0\n"), None, None, "user.max_user_namespaces"),
            (Some("9\n"), Some("0\n"), None, "unprivileged_userns_clone"),
            (None, None, Some("1\n"), "apparmor"),
        ] {
            let missing = check_namespaces(most, unprivileged, restricted).unwrap_err();
            assert!(missing.to_string().contains(word), "{missing}");
        }
    }
}
