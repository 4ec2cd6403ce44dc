//! The first process of a sandbox. It joins what the sandbox's process 1 must be born in: its control groups and its user
//! namespace.

use std::ffi::c_void;

use rustix::io::{Errno, write};
use rustix::process::Uid;
use rustix::thread::{
    CapabilitySet, CapabilitySets, Gid, UnshareFlags, capabilities, set_capabilities,
    set_keep_capabilities, set_thread_res_gid, set_thread_res_uid, unshare_unsafe,
};

use super::attempt::{Attempt, Step};
use super::{borrowed, process_one};
use crate::engine::embedded::launcher::user_namespace;
use crate::engine::embedded::plan::Role;

/// All namespaces of a sandbox except its users' (`CLONE_NEW*` in `linux/sched.h`): mount, network, IPC, host name, groups.
const NAMESPACES: u64 = 0x0002_0000 | 0x4000_0000 | 0x0800_0000 | 0x0400_0000 | 0x0200_0000;

/// Its processes.
const PROCESSES: u64 = 0x2000_0000;

/// The code of the process.
#[allow(unsafe_code)]
pub(super) extern "C" fn run(attempt: *mut c_void) -> ! {
    // SAFETY: the launcher passes this, and stands still.
    let attempt = unsafe { &*attempt.cast::<Attempt<'_>>() };
    if let Err(error) = join(attempt) {
        attempt.fail(error);
    }
    borrowed::exit()
}

fn join(attempt: &Attempt<'_>) -> Result<(), Errno> {
    let ready = attempt.ready;
    // First of all, with the launcher's rights. All memory that the kernel takes for the sandbox counts there.
    attempt.begin(Step::Groups)?;
    for processes in &attempt.groups.joined {
        write(processes, b"0")?;
    }
    if let Some(users) = ready.users {
        if let Some(owner) = users.entered_by {
            attempt.begin(Step::Owner)?;
            become_user(owner)?;
        }
        attempt.begin(Step::Users)?;
        #[allow(unsafe_code)]
        // SAFETY: the process has a single thread, and of the descriptors that it shares none is for a namespace.
        unsafe {
            unshare_unsafe(UnshareFlags::NEWUSER)?;
        }
        attempt.begin(Step::Mapping)?;
        // Package managers and forks of a template set their groups. Nothing else has a use for it.
        let is_build = matches!(ready.role, Role::Build { .. });
        let sets_groups = is_build || users.entered_by.is_some();
        user_namespace::ask(&attempt.maker.mapper, users.ids, sets_groups)?;
        attempt.begin(Step::RootUser)?;
        set_thread_res_gid(Gid::ROOT, Gid::ROOT, Gid::ROOT)?;
        set_thread_res_uid(Uid::ROOT, Uid::ROOT, Uid::ROOT)?;
        borrowed::close_memory()?;
    }
    attempt.begin(Step::Namespaces)?;
    let processes = if ready.role == Role::Template { 0 } else { PROCESSES };
    let argument = std::ptr::from_ref(attempt).cast_mut().cast();
    let stack = &attempt.maker.stacks[1];
    #[allow(unsafe_code)]
    // SAFETY: only this process uses the second stack, and the new one only reads what the launcher has prepared.
    let made = unsafe {
        borrowed::sibling(
            stack,
            NAMESPACES | processes,
            attempt.born.as_ptr(),
            process_one::run,
            argument,
        )
    };
    made.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
}

/// Becomes another user, with the rights of before: the namespace then belongs to that user, and some machines let only root
/// make one.
fn become_user(user: u32) -> Result<(), Errno> {
    set_keep_capabilities(true)?;
    let user = Uid::from_raw(user);
    set_thread_res_uid(user, user, user)?;
    borrowed::close_memory()?;
    let permitted = capabilities(None)?.permitted;
    let inheritable = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: permitted, permitted, inheritable })
}
