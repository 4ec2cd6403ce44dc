//! The state that the launcher and the two processes of a sandbox share while it is made. They run one after the other.

use std::cell::Cell;
use std::ffi::CStr;
use std::fmt;
use std::io;

use rustix::io::Errno;

use super::Maker;
use super::borrowed::Born;
use super::ready::Ready;
use crate::engine::embedded::cgroups::MadeGroups;

/// A step of making a sandbox, in the order in which they are taken.
#[derive(Debug, Clone, Copy)]
pub(super) enum Step<'a> {
    Begin,
    Groups,
    Owner,
    Users,
    Mapping,
    RootUser,
    Namespaces,
    Session,
    HostName,
    Loopback,
    KernelFiles(&'a CStr),
    Devices,
    Root,
    OldRoot,
    Mount(&'a CStr),
    ReadOnly(&'a CStr),
    Hide(&'a CStr),
    Directory,
    Streams,
    Limits,
    Capabilities,
    User,
    Filter,
    Start,
}

impl fmt::Display for Step<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = |f: &mut fmt::Formatter<'_>, what: &str, path: &CStr| {
            write!(f, "{what} {}", path.to_string_lossy())
        };
        f.write_str(match self {
            Self::Begin => "make a process",
            Self::Groups => "join its control groups",
            Self::Owner => "become the user who may enter it",
            Self::Users => "make a user namespace",
            Self::Mapping => "map its users",
            Self::RootUser => "become root of its user namespace",
            Self::Namespaces => "make its namespaces",
            Self::Session => "begin a session",
            Self::HostName => "set its host name",
            Self::Loopback => "bring up its loopback interface",
            Self::KernelFiles(kind) => return path(f, "make its file system", kind),
            Self::Devices => "make its devices",
            Self::Root => "enter its root",
            Self::OldRoot => "leave the root of the machine",
            Self::Mount(at) => return path(f, "mount", at),
            Self::ReadOnly(at) => return path(f, "make read-only", at),
            Self::Hide(at) => return path(f, "hide", at),
            Self::Directory => "enter its working directory",
            Self::Streams => "open its streams",
            Self::Limits => "set its limits",
            Self::Capabilities => "give up its capabilities",
            Self::User => "become its user",
            Self::Filter => "load its filter of system calls",
            Self::Start => "start its program",
        })
    }
}

/// One attempt to make a sandbox.
pub(super) struct Attempt<'a> {
    pub(super) maker: &'a Maker,
    pub(super) ready: &'a Ready,
    pub(super) groups: &'a MadeGroups,
    /// The last step that was begun.
    step: Cell<Step<'a>>,
    failed: Cell<Option<Errno>>,
    /// Process 1, once there is one.
    pub(super) born: Cell<Born>,
    /// The step that fails, in tests.
    #[cfg(test)]
    pub(super) fails_at: Option<usize>,
    #[cfg(test)]
    pub(super) steps: Cell<usize>,
}

/// Why a sandbox was not made: the step, and its error.
#[derive(Debug, thiserror::Error)]
pub(in super::super) enum StepError {
    /// The kernel's error.
    #[error("the sandbox could not {step}: {source}")]
    Failed {
        step: String,
        #[source]
        source: io::Error,
    },
    /// Something killed one of its processes.
    #[error("the sandbox was killed when it was about to {0}")]
    Killed(String),
}

impl<'a> Attempt<'a> {
    pub(super) fn new(maker: &'a Maker, ready: &'a Ready, groups: &'a MadeGroups) -> Self {
        Self {
            maker,
            ready,
            groups,
            step: Cell::new(Step::Begin),
            failed: Cell::new(None),
            born: Cell::new(Born { pid: 0, pidfd: -1 }),
            #[cfg(test)]
            fails_at: None,
            #[cfg(test)]
            steps: Cell::new(0),
        }
    }

    /// Begins a step.
    #[cfg_attr(not(test), allow(clippy::unnecessary_wraps))]
    pub(super) fn begin(&self, step: Step<'a>) -> Result<(), Errno> {
        self.step.set(step);
        #[cfg(test)]
        {
            let number = self.steps.replace(self.steps.get() + 1);
            if self.fails_at == Some(number) {
                return Err(Errno::NOANO);
            }
        }
        Ok(())
    }

    /// Notes the error of the step that was begun last.
    pub(super) fn fail(&self, error: Errno) {
        self.failed.set(Some(error));
    }

    /// Whether process 1 has begun to become its program. It may have become it.
    pub(super) fn has_started(&self) -> bool {
        self.failed.get().is_none() && matches!(self.step.get(), Step::Start)
    }

    /// The error of an attempt that has failed.
    pub(super) fn error(&self) -> StepError {
        let step = self.step.get().to_string();
        match self.failed.get() {
            Some(error) => StepError::Failed { step, source: error.into() },
            None => StepError::Killed(step),
        }
    }
}
