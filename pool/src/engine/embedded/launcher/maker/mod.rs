//! The maker: from a plan to a running sandbox.
//!
//! Three processes take part, and one of them runs at a time. The launcher prepares what needs its rights or is the same for
//! all sandboxes: control groups, the mounts of the root and of devices, the filter of system calls, all text. Then it starts
//! the *joining process*, and that starts process 1. Both [borrow](borrowed) the launcher's memory, so nothing is copied for
//! them; the launcher reads there which step failed. They allocate nothing that they keep.
//!
//! | step | why here |
//! |---|---|
//! | Launcher: make groups, set their limits, mount the root and the devices | Its rights are needed. Limits hold before the first process is in the group. |
//! | Joining process: join the groups | With the launcher's rights, and before anything is made, so that all of it counts. Before the namespace of control groups, or a program could see the names of other sandboxes. |
//! | become the owner; make the user namespace; have it mapped; become its root | Every later step has only the rights of a sandbox's root, so a hostile image or a bug in a later step gains nothing on the machine. The namespaces that follow belong to it. |
//! | make all other namespaces, with process 1 in them | At once: there is no moment with some of them. |
//! | Process 1: a new session; no new privileges; host name; loopback | Loopback needs a right that is given up later. |
//! | make `/proc`, `/sys`, and devices where the launcher can't | The kernel allows these only to a process that sees the machine's. |
//! | enter the root, leave the machine's | Before the first look at the image: a link in an image leads nowhere but into the image. |
//! | mount everything else at descriptors, through no link | An image can't move a mount somewhere else, such as that of the workspace over `/proc`. |
//! | make parts of `/proc` read-only, hide others | After all mounts, so that none lies over them, and by a descriptor of the new `/proc`: no fake of it can be hidden instead. What hides files must be the null device. |
//! | working directory, streams; all other descriptors close with the start | No descriptor of the machine gets into the program. The directory is found in the sandbox, so it is not outside. |
//! | limits of the process | After the last descriptor is opened: they may allow fewer. |
//! | capabilities, group, user | After everything that needs them, and the bounding set first, because that needs one, too. |
//! | signals, filter, start | The filter comes last: it refuses nearly all calls above. |
//!
//! When a step fails, its process ends, and the launcher has the step and the error. When a process is killed, the launcher kills
//! the other, because it must not go on in memory that is used again. When the launcher dies, the kernel kills both, because it
//! is process 1 of their namespace.

mod attempt;
mod borrowed;
mod files;
mod joining;
mod open_root;
mod process_one;
mod ready;
#[cfg(test)]
mod tests;

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::path::Path;

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use seccompiler::BpfProgram;

use self::attempt::Attempt;
pub(super) use self::attempt::StepError;
use self::borrowed::Stack;
pub(super) use self::ready::DEVICES;
use self::ready::{Ready, below_root};
use crate::engine::embedded::cgroups::OpenGroups;
use crate::engine::embedded::plan::{Plan, Role};
use crate::engine::hidden_paths::{READ_ONLY, hidden};
use crate::engine::seccomp::{self, Filtered};

/// Makes sandboxes.
pub(super) struct Maker {
    /// Maps the users of sandboxes.
    mapper: OwnedFd,
    /// Of the joining process and of process 1.
    stacks: [Stack; 2],
    groups: OpenGroups,
    can_make_devices: bool,
    hidden: Hidden,
    read_only: Vec<CString>,
    program_filter: Vec<BpfProgram>,
    template_filter: Vec<BpfProgram>,
}

/// What is hidden from sandboxes.
struct Hidden {
    paths: Vec<String>,
    /// The paths below `/proc`, and below `/sys`.
    in_proc: Vec<CString>,
    in_sys: Vec<CString>,
}

impl Hidden {
    fn new(paths: Vec<String>) -> io::Result<Self> {
        Ok(Self { in_proc: below("/proc", &paths)?, in_sys: below("/sys", &paths)?, paths })
    }
}

fn below(folder: &str, paths: &[String]) -> io::Result<Vec<CString>> {
    let paths = paths.iter().filter_map(|path| Path::new(path).strip_prefix(folder).ok());
    paths.map(below_root).collect()
}

/// Why a sandbox was not made. The server gets the message.
#[derive(Debug, thiserror::Error)]
pub(super) enum MakeError {
    #[error("the sandbox's control groups can't be made: {0}")]
    Groups(#[source] io::Error),
    #[error("the sandbox's files can't be prepared: {0}")]
    NotPrepared(#[source] io::Error),
    #[error(transparent)]
    Step(#[from] StepError),
    #[error("the sandbox's first process can't be made: {0}")]
    NoProcess(#[source] io::Error),
}

impl Maker {
    /// A maker in a launcher, whose mounts are there. The calling process must have a single thread.
    pub(super) fn new(mapper: OwnedFd) -> io::Result<Self> {
        let filter = |filtered| seccomp::kernel_programs(filtered).map_err(io::Error::other);
        borrowed::close_memory()?;
        Ok(Self {
            mapper,
            stacks: [Stack::new()?, Stack::new()?],
            groups: OpenGroups::default(),
            can_make_devices: ready::can_make_devices(),
            hidden: Hidden::new(hidden())?,
            read_only: below("/proc", &READ_ONLY.map(str::to_owned))?,
            program_filter: filter(Filtered::Program)?,
            template_filter: filter(Filtered::Template)?,
        })
    }

    fn filter(&self, role: Role) -> &[BpfProgram] {
        match role {
            Role::Template => &self.template_filter,
            Role::Program { .. } | Role::Build { .. } => &self.program_filter,
        }
    }

    /// Makes a sandbox and starts its program, with these streams. Returns its process 1.
    pub(super) fn make(
        &mut self,
        plan: &Plan,
        streams: [OwnedFd; 3],
    ) -> Result<OwnedFd, MakeError> {
        let groups = plan.groups.as_ref().map(|groups| self.groups.make(groups)).transpose();
        let groups = groups.map_err(MakeError::Groups)?.unwrap_or_default();
        let ready = Ready::new(plan, streams, self.can_make_devices).and_then(|ready| {
            self.hide_new_processors()?;
            Ok(ready)
        });
        let made = ready
            .map_err(MakeError::NotPrepared)
            .and_then(|ready| self.run(&Attempt::new(self, &ready, &groups)));
        if made.is_err() {
            groups.remove();
        }
        made
    }

    /// Notes what more is to be hidden since a processor has come online.
    fn hide_new_processors(&mut self) -> io::Result<()> {
        let paths = hidden();
        if paths != self.hidden.paths {
            self.hidden = Hidden::new(paths)?;
        }
        Ok(())
    }

    /// Runs the two processes.
    #[allow(unsafe_code)]
    fn run(&self, attempt: &Attempt<'_>) -> Result<OwnedFd, MakeError> {
        let group = attempt.groups.born_in.as_ref().map(AsFd::as_fd);
        let argument = std::ptr::from_ref(attempt).cast_mut().cast();
        // SAFETY: only the joining process uses the first stack, and it only reads what is prepared here.
        let joining = unsafe { borrowed::child(&self.stacks[0], group, joining::run, argument) };
        let joining = joining.map_err(MakeError::NoProcess)?;
        let ended = waitpid(Some(joining), WaitOptions::empty());
        let was_killed = !ended.is_ok_and(|ended| ended.is_some_and(|(_, how)| how.exited()));
        let born = attempt.born.get();
        let Some(pid) = Pid::from_raw(born.pid) else { return Err(attempt.error().into()) };
        // SAFETY: the kernel has made this descriptor for process 1, and nothing else knows it.
        let process = unsafe { OwnedFd::from_raw_fd(born.pidfd) };
        if was_killed || !attempt.has_started() {
            // It may still be there, and use the memory. It was not reaped, so the number is its own.
            let _ = kill_process(pid, Signal::KILL);
            let _ = waitpid(Some(pid), WaitOptions::empty());
            return Err(attempt.error().into());
        }
        Ok(process)
    }
}
