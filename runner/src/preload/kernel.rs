//! The kernel of a session: an interpreter that waited, or one that is started.

use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixStream;
use std::path::Path;

use isolator_runner::paths;
use isolator_runner::wire::{Interpreter, Kernel, Preload, Wanted};

use super::{Parked, Preloads, inherited_channel};
use crate::forks::Forks;
use crate::packages;
use crate::process::{OomScore, Process};
use crate::processes;

/// The interpreter that runs the cells of a session.
pub(crate) struct StartedKernel {
    pub(crate) process: Process,
    /// The channel of its messages.
    pub(crate) channel: UnixStream,
    /// Whether it was a waiting one, or was forked.
    pub(crate) preloaded: bool,
    /// Why it is not the one that was forked for it.
    pub(crate) not_ready: Option<String>,
}

impl Preloads {
    /// Kills all other processes: a fork that failed halfway may have left one.
    pub(crate) fn kill_others(&self) {
        let waiting = [&self.bare, &self.loaded, &self.replaced].into_iter().flatten();
        // One that can't be killed counts as a process of the session.
        let _ = processes::kill_all_but(&waiting.map(|parked| parked.process.pid).collect());
    }

    /// Ends all of them.
    pub(crate) fn end(self) {
        let Self { bare, loaded, replaced, .. } = self;
        [bare, loaded, replaced].into_iter().flatten().for_each(Parked::end);
    }

    /// Lets an interpreter that was forked for it, or one that waits, become the kernel of a session, or starts one. Also returns the
    /// others, which were killed and have to be ended.
    ///
    /// # Errors
    ///
    /// When none can be started.
    pub(crate) fn into_kernel(
        self,
        kernel: &Kernel,
        workdir: &Path,
        oom_score: &OomScore,
        forks: Option<Forks>,
    ) -> io::Result<(StartedKernel, Vec<Parked>)> {
        let Self { preload, bare, loaded, replaced, .. } = self;
        let (forked, mut not_ready) = match (kernel.wanted, &forks) {
            (Wanted::Forked, Some(forks)) => match Parked::accept(forks) {
                Ok((forked, _)) => (Some(forked), None),
                Err(problem) => (None, Some(problem)),
            },
            _ => (None, None),
        };
        // A cell must not find it.
        drop(forks);
        let is_like = |preload: &Preload| {
            (preload.interpreter, Path::new(&preload.workdir)) == (kernel.interpreter, workdir)
                && (&preload.argv, &preload.env) == (&kernel.waiting, &kernel.env)
        };
        let is_fit = preload.as_ref().is_some_and(is_like);
        let (first, second) = match kernel.wanted {
            Wanted::Loaded | Wanted::Forked => (loaded, bare),
            Wanted::Bare | Wanted::New => (bare, loaded),
        };
        let mut started = None;
        let program = match kernel.interpreter {
            Interpreter::Python => paths::PYTHON_KERNEL,
            Interpreter::Node => paths::NODE_KERNEL,
        };
        let packages = kernel.packages.as_ref();
        let mut spares = Vec::new();
        for mut parked in [forked, first, second, replaced].into_iter().flatten() {
            if is_fit && started.is_none() && parked.becomes_kernel(program, packages) {
                let not_ready = not_ready.take();
                let Parked { process, channel, .. } = parked;
                started = Some(StartedKernel { process, channel, preloaded: true, not_ready });
            } else {
                parked.process.kill();
                spares.push(parked);
            }
        }
        let started = match started {
            Some(started) => started,
            None => {
                // Their memory may be what a new one needs.
                spares.drain(..).for_each(Parked::end);
                StartedKernel { not_ready, ..start_kernel(kernel, workdir, oom_score)? }
            }
        };
        Ok((started, spares))
    }
}

/// Starts a kernel in a folder.
///
/// # Errors
///
/// When it can't be started.
pub(crate) fn start_kernel(
    kernel: &Kernel,
    folder: &Path,
    oom_score: &OomScore,
) -> io::Result<StartedKernel> {
    let (channel, their_end) = inherited_channel()?;
    let mut argv = kernel.argv.clone();
    argv.push(their_end.as_raw_fd().to_string());
    let env = packages::variables(&kernel.env, kernel.packages.as_ref());
    let process = Process::spawn(&argv, &env, folder, oom_score, Some(b""), None)?.supervised()?;
    Ok(StartedKernel { process, channel, preloaded: false, not_ready: None })
}
