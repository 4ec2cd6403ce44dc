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
    /// Whether it was forked for this session.
    pub(crate) is_forked: bool,
    /// Why it is not the one that was forked for it, unless that could not serve this session.
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
        let (forked, not_ready) = match (kernel.wanted, &forks) {
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
        let waiting = [first, second, replaced].into_iter().flatten();
        let Chosen { started, mut spares, not_ready: no_answer } =
            Chosen::of(forked, waiting, kernel, is_fit);
        let mut started = match started {
            Some(started) => started,
            None => {
                // Their memory may be what a new one needs.
                spares.drain(..).for_each(Parked::end);
                start_kernel(kernel, workdir, oom_score)?
            }
        };
        started.not_ready = not_ready.or(no_answer);
        Ok((started, spares))
    }
}

/// Interpreters that were asked to become the kernel of a session.
struct Chosen {
    /// The one that did.
    started: Option<StartedKernel>,
    /// The others, which were killed.
    spares: Vec<Parked>,
    /// Why the forked one is of no use for any session.
    not_ready: Option<String>,
}

impl Chosen {
    /// Asks the forked one first, if they are fit for the kernel at all.
    fn of(
        forked: Option<Parked>,
        waiting: impl Iterator<Item = Parked>,
        kernel: &Kernel,
        is_fit: bool,
    ) -> Self {
        let program = match kernel.interpreter {
            Interpreter::Python => paths::PYTHON_KERNEL,
            Interpreter::Node => paths::NODE_KERNEL,
        };
        let packages = kernel.packages.as_ref();
        let mut chosen = Self { started: None, spares: Vec::new(), not_ready: None };
        let forked = forked.into_iter().map(|parked| (parked, true));
        for (mut parked, is_forked) in forked.chain(waiting.map(|parked| (parked, false))) {
            let becomes_it = if is_fit && chosen.started.is_none() {
                parked.becomes_kernel(program, packages)
            } else {
                Ok(false)
            };
            if let Ok(true) = becomes_it {
                let Parked { process, channel, .. } = parked;
                let (preloaded, not_ready) = (true, None);
                chosen.started =
                    Some(StartedKernel { process, channel, preloaded, is_forked, not_ready });
                continue;
            }
            // One that declines may do so because of the files or packages of this session.
            if let (Err(error), true) = (becomes_it, is_forked) {
                chosen.not_ready = Some(format!("it did not become the kernel: {error}"));
            }
            parked.process.kill();
            chosen.spares.push(parked);
        }
        chosen
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
    let (preloaded, is_forked, not_ready) = (false, false, None);
    Ok(StartedKernel { process, channel, preloaded, is_forked, not_ready })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::io::Write as _;

    use super::*;

    /// What an interpreter does when it is asked to become a kernel.
    enum Does {
        Agree,
        Decline,
        Nothing,
    }

    /// One that waits, and its end of the channel while it does not decline.
    fn parked(does: &Does) -> (Parked, Option<UnixStream>) {
        let argv = ["sleep", "60"].map(str::to_owned);
        let (env, here) = (BTreeMap::new(), Path::new("/"));
        let score = OomScore::of_tests();
        let spawned = Process::spawn(&argv, &env, here, &score, None, None).unwrap();
        let process = spawned.supervised().unwrap();
        let (channel, mut theirs) = UnixStream::pair().unwrap();
        let theirs = match does {
            Does::Agree => {
                theirs.write_all(b".").unwrap();
                Some(theirs)
            }
            Does::Decline => None,
            Does::Nothing => Some(theirs),
        };
        (Parked { process, channel, memory: 0, has_modules: false }, theirs)
    }

    #[test]
    fn only_silence_of_a_forked_kernel_counts_against_its_template() {
        let kernel = Kernel {
            interpreter: Interpreter::Python,
            argv: vec!["python3".to_owned()],
            waiting: Vec::new(),
            env: BTreeMap::new(),
            wanted: Wanted::Forked,
            packages: None,
        };
        for (does, is_fit, is_forked, is_silent) in [
            (Does::Agree, true, true, false),
            (Does::Decline, true, false, false),
            (Does::Nothing, true, false, true),
            (Does::Agree, false, false, false),
        ] {
            let ((forked, _forked), (waiting, _waiting)) = (parked(&does), parked(&Does::Agree));
            let waits = waiting.process.pid;
            let Chosen { started, spares, not_ready } =
                Chosen::of(Some(forked), [waiting].into_iter(), &kernel, is_fit);
            assert_eq!(started.as_ref().map(|it| it.is_forked), is_fit.then_some(is_forked));
            assert_eq!(
                started.as_ref().is_some_and(|it| it.process.pid == waits),
                is_fit && !is_forked
            );
            assert_eq!(not_ready.is_some(), is_silent, "{not_ready:?}");
            spares.into_iter().for_each(Parked::end);
            if let Some(started) = started {
                started.process.kill();
            }
        }
    }
}
