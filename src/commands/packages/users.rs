//! Which processes use a set.

use std::fs;
use std::os::linux::fs::MetadataExt as _;
use std::path::Path;

use crate::packages::store::Store;

/// A process of this machine.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub(super) struct User {
    /// Its number.
    pub pid: i32,
    /// Its program, if this user may know it.
    pub program: String,
}

/// The processes that hold a set now, as far as the system tells.
pub(super) fn of(store: &Store, hash: &str) -> Vec<User> {
    let file = store.lock_file(hash);
    let Ok(locks) = fs::read_to_string("/proc/locks") else { return Vec::new() };
    let mut pids = holders(&locks, &file);
    pids.sort_unstable();
    pids.dedup();
    let program = |pid: i32| {
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        User { pid, program: name.trim().to_owned() }
    };
    pids.into_iter().map(program).collect()
}

/// The processes with a lock on a file. A process outside of our namespace has no number here.
fn holders(locks: &str, file: &Path) -> Vec<i32> {
    let Ok(metadata) = fs::metadata(file) else { return Vec::new() };
    let (device, inode) = (metadata.st_dev(), metadata.st_ino());
    let wanted =
        format!("{:02x}:{:02x}:{inode}", rustix::fs::major(device), rustix::fs::minor(device));
    // `1: FLOCK  ADVISORY  READ 4711 fe:01:123 0 EOF`. Those that wait for a lock have an arrow.
    let held = locks.lines().filter(|line| !line.contains("->"));
    let pid = held.filter_map(|line| {
        let mut words = line.split_whitespace().skip(4);
        let pid = words.next()?.parse().ok().filter(|pid| *pid > 0)?;
        (words.next()? == wanted).then_some(pid)
    });
    pid.collect()
}

/// The users of a set, in a few words; empty if there are none.
pub(super) fn describe(store: &Store, hash: &str, users: &[User]) -> String {
    if users.is_empty() && store.is_held(hash) {
        return "a process that can't be seen from here".to_owned();
    }
    let described = users.iter().map(|user| match user.program.as_str() {
        "" => format!("process {}", user.pid),
        program => format!("{program} ({})", user.pid),
    });
    described.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn a_process_that_holds_a_lock_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let file = File::create(&path).unwrap();
        let locks = || fs::read_to_string("/proc/locks").unwrap();
        assert!(holders(&locks(), &path).is_empty());
        file.lock_shared().unwrap();
        let own = i32::try_from(std::process::id()).unwrap();
        assert_eq!(holders(&locks(), &path), [own]);
        assert!(holders(&locks(), &folder.path().join("other")).is_empty());
    }
}
