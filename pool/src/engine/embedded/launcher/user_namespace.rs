//! User namespaces that a template may enter: they belong to its user.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;

use rustix::process::{Pid, Signal, Uid, WaitOptions, kill_process, waitpid};
use rustix::thread::{
    CapabilitySet, CapabilitySets, UnshareFlags, capabilities, set_capabilities,
    set_keep_capabilities, set_thread_res_uid, unshare_unsafe,
};
use serde_json::{Value, json};
use syscalls::{Sysno, syscall};

use crate::engine::embedded::host::Ids;

/// Makes a namespace that belongs to a user, and maps its users. The calling process must have a single thread.
pub(super) fn make(owner: u32, ids: Ids) -> io::Result<File> {
    let (mut said, mut says) = io::pipe()?;
    let child = fork()?;
    let Some(child) = child else {
        let is_made = enter(owner).is_ok();
        let _ = says.write_all(&[u8::from(is_made)]);
        loop {
            // The parent ends it.
            rustix::event::pause();
        }
    };
    drop(says);
    let made = (|| {
        let mut is_made = [0];
        said.read_exact(&mut is_made)?;
        if is_made != [1] {
            return Err(io::Error::other("the namespace can't be made"));
        }
        let directory = format!("/proc/{}", child.as_raw_pid());
        let map = format!("0 {} {}", ids.first, ids.count);
        fs::write(format!("{directory}/uid_map"), &map)?;
        fs::write(format!("{directory}/gid_map"), &map)?;
        File::open(format!("{directory}/ns/user"))
    })();
    let _ = kill_process(child, Signal::KILL);
    let _ = waitpid(Some(child), WaitOptions::empty());
    made
}

/// Forks. The calling process must have a single thread. `None` in the child.
#[allow(unsafe_code)]
pub(super) fn fork() -> io::Result<Option<Pid>> {
    // SAFETY: the process has a single thread, so the child has all of it.
    let pid = unsafe { syscall!(Sysno::clone, libc_sigchld(), 0, 0, 0, 0) };
    let pid = pid.map_err(|error| io::Error::from_raw_os_error(error.into_raw()))?;
    Ok(Pid::from_raw(pid as i32))
}

const fn libc_sigchld() -> usize {
    17
}

/// Becomes the owner, with the rights of before, and enters a new namespace.
#[allow(unsafe_code)]
fn enter(owner: u32) -> io::Result<()> {
    set_keep_capabilities(true)?;
    let owner = Uid::from_raw(owner);
    set_thread_res_uid(owner, owner, owner)?;
    // Some machines let only root make namespaces.
    let permitted: CapabilitySet = capabilities(None)?.permitted;
    set_capabilities(
        None,
        CapabilitySets { effective: permitted, permitted, inheritable: CapabilitySet::empty() },
    )?;
    // SAFETY: the process has a single thread and shares its descriptors with no other.
    Ok(unsafe { unshare_unsafe(UnshareFlags::NEWUSER) }?)
}

/// Lets a sandbox join a namespace instead of making its own.
pub(super) fn join(spec: &mut Value, namespace: &File) {
    let linux = &mut spec["linux"];
    for kind in ["uidMappings", "gidMappings"] {
        linux[kind] = json!([]);
    }
    let namespaces = linux["namespaces"].as_array_mut().into_iter().flatten();
    for entry in namespaces.filter(|entry| entry["type"] == "user") {
        entry["path"] = json!(format!("/proc/self/fd/{}", namespace.as_raw_fd()));
    }
}
