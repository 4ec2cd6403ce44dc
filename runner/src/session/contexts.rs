//! The contexts of a session: several kernels over the same files, of which one runs a cell at a time.
//!
//! The kernel of the last cell is the current one. Before a cell of another context, that one's kernel takes its place.

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::path::Path;

use isolator_runner::wire::{
    CloseContext, ContextClosed, Failed, FailedCause, Kernel, Kind, OpenContext, Opened,
};
use rustix::process::Pid;

use super::Session;
use super::kernels::Kernels;
use crate::preload::start_kernel;
use crate::{cgroup, processes};

/// Maximum number of kernels, besides that of context 0.
const MAX_CONTEXTS: usize = 64;

/// The kernels that have to wait until a cell of their context comes.
#[derive(Default)]
pub(super) struct Contexts {
    /// The context of the session's current kernel.
    current: u32,
    waiting: BTreeMap<u32, Kernels>,
}

impl Contexts {
    /// The processes that were there before a cell began, if other kernels have to know which ones it starts.
    pub(super) fn processes_before(&self) -> Option<HashSet<Pid>> {
        // An error means that no cell can begin either.
        if self.waiting.is_empty() { None } else { processes::all().ok() }
    }

    /// Notes that the processes which were started since then belong to a cell of the current context: undoing a cell of another
    /// one does not end them.
    pub(super) fn note_started(&mut self, before: Option<HashSet<Pid>>) {
        let (Some(before), Ok(now)) = (before, processes::all()) else { return };
        let started: HashSet<_> = now.difference(&before).copied().collect();
        self.waiting.values_mut().for_each(|kernels| kernels.note_others(&started));
    }

    /// Gives up a checkpoint of a kernel that waits. Returns whether there was one.
    pub(super) fn give_up_oldest(&mut self) -> bool {
        self.waiting.values_mut().any(Kernels::give_up_oldest)
    }

    /// The processes of the kernels that wait.
    fn pids(&self) -> HashSet<Pid> {
        self.waiting.values().flat_map(Kernels::pids).collect()
    }
}

impl Session<'_> {
    /// Makes the kernel of a context the current one, if there is one.
    pub(super) fn switch_to(&mut self, context: u32) {
        let Self { kernels, contexts, .. } = self;
        if context != contexts.current {
            if let Some(before) = kernels.take() {
                contexts.waiting.insert(contexts.current, before);
            }
            *kernels = contexts.waiting.remove(&context);
            contexts.current = context;
        }
        if let Some(kernels) = kernels {
            kernels.set_neighbours(contexts.pids());
        }
    }

    /// Whether the session goes on if the current kernel is gone.
    pub(super) fn outlives_kernel(&self, keeps_session: bool) -> bool {
        keeps_session || self.contexts.current != 0
    }

    /// Starts the kernel of a context, in place of the one that it has.
    pub(super) fn open_context(&mut self, open: OpenContext) -> io::Result<bool> {
        match self.try_open_context(open) {
            Ok(opened) => self.to_server.send(Kind::Opened, &opened)?,
            Err(failed) => self.to_server.send(Kind::Failed, &failed)?,
        }
        Ok(true)
    }

    fn try_open_context(&mut self, open: OpenContext) -> Result<Opened, Failed> {
        let OpenContext { context, mut kernel, cwd } = open;
        let packages = self.packages.clone();
        kernel.packages = packages.filter(|set| set.interpreter == kernel.interpreter);
        let failed = |message| Failed { cause: FailedCause::Command, message };
        self.switch_to(context);
        self.end_kernel();
        if self.contexts.waiting.len() >= MAX_CONTEXTS {
            return Err(failed(format!("there are {MAX_CONTEXTS} contexts already")));
        }
        let folder = self.workdir.join(cwd);
        if !folder.is_dir() {
            let message = folder.display().to_string();
            return Err(Failed { cause: FailedCause::Folder, message });
        }
        // Only the cells of context 0 can be rewound: for others it is enough to undo the last one.
        let checkpoints = if context == 0 { self.checkpoints } else { self.checkpoints.min(1) };
        let (kernels, version) = self.start(&kernel, &folder, checkpoints).map_err(|error| {
            let command = kernel.argv.first().map_or("", String::as_str);
            failed(format!("{command}: {error}"))
        })?;
        self.kernels = Some(kernels);
        Ok(Opened { version: Some(version), memory: cgroup::memory(), ..Opened::default() })
    }

    fn start(
        &mut self,
        kernel: &Kernel,
        folder: &Path,
        checkpoints: u32,
    ) -> io::Result<(Kernels, String)> {
        let started = start_kernel(kernel, folder, self.oom_score)?;
        let (kernels, version, pipes) = Kernels::new(kernel.interpreter, started, checkpoints)?;
        self.background.add(pipes);
        Ok((kernels, version))
    }

    /// Ends the kernel of a context.
    pub(super) fn close_context(&mut self, close: CloseContext) -> io::Result<bool> {
        let was_open = if close.context == self.contexts.current {
            self.end_kernel()
        } else if let Some(kernels) = self.contexts.waiting.remove(&close.context) {
            // Processes that its cells have left go on to print.
            self.background.add(kernels.end());
            true
        } else {
            false
        };
        super::reap();
        self.to_server.send(Kind::ContextClosed, &ContextClosed { was_open })?;
        Ok(true)
    }

    /// Ends the current kernel. Returns whether there was one.
    pub(super) fn end_kernel(&mut self) -> bool {
        let Some(kernels) = self.kernels.take() else { return false };
        self.background.add(kernels.end());
        true
    }
}
