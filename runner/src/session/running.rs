//! What runs a cell: the kernel's process, or a program of its own.

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use isolator_runner::wire::{Cell, CellRun, End, Failed, FailedCause, NoCheckpoint};
use rustix::process::{Pid, Signal, kill_process_group};

use super::Session;
use super::kernels::Begun;
use crate::packages;
use crate::process::{Process, Spawned};
use crate::processes::{self, Stat};
use crate::usage;

/// A cell that runs.
pub(super) struct Running {
    pub(super) started: Instant,
    /// The process that runs it.
    pub(super) pid: Pid,
    /// The number of its group, if it is a program.
    pub(super) program: Option<Process>,
    pub(super) stdout: Option<File>,
    pub(super) stderr: Option<File>,
    pub(super) no_checkpoint: Option<NoCheckpoint>,
    /// CPU time that its process had used before.
    pub(super) cpu_before: Duration,
    /// The processes that were there before a program.
    pub(super) found: HashSet<Pid>,
}

impl Session<'_> {
    /// `None` if there is nothing to run, or the kernel can't run it.
    pub(super) fn begin(&mut self, cell: &Cell, input: &[u8]) -> Result<Option<Running>, Failed> {
        let command = |message: String| Failed { cause: FailedCause::Command, message };
        match &cell.run {
            CellRun::Files => Ok(None),
            CellRun::Code { typescript, columns } => {
                let Some(kernels) = &mut self.kernels else {
                    return Err(command("the session has no kernel".to_owned()));
                };
                let Ok(begun) = kernels.begin(cell.number, *typescript, *columns, input) else {
                    return Ok(None);
                };
                let Begun { stdout, stderr, no_checkpoint } = begun;
                let pid = kernels.current.pid;
                Ok(Some(Running {
                    started: Instant::now(),
                    pid,
                    program: None,
                    stdout,
                    stderr,
                    // A process that was forked for the cell has used none.
                    cpu_before: if no_checkpoint.is_some() { cpu(pid) } else { Duration::ZERO },
                    no_checkpoint,
                    found: HashSet::new(),
                }))
            }
            CellRun::Program { argv, env, cwd } => {
                let folder = self.workdir.join(cwd);
                let found = processes::all().map_err(|error| command(error.to_string()))?;
                let started = Instant::now();
                let env = packages::variables(env, self.packages.as_ref());
                let process = Process::spawn(argv, &env, &folder, self.oom_score, Some(input))
                    .and_then(Spawned::supervised);
                let mut process =
                    process.map_err(|error| command(self.explain(argv, &folder, &error)))?;
                Ok(Some(Running {
                    started,
                    pid: process.pid,
                    stdout: process.stdout.take(),
                    stderr: process.stderr.take(),
                    program: Some(process),
                    no_checkpoint: None,
                    cpu_before: Duration::ZERO,
                    found,
                }))
            }
        }
    }

    fn explain(&self, argv: &[String], folder: &Path, error: &io::Error) -> String {
        if folder.is_dir() {
            format!("{}: {error}", argv.first().map_or("", String::as_str))
        } else {
            format!("there is no folder {}", folder.display())
        }
    }

    pub(super) fn interrupt(&self, running: &Running) {
        match (&running.program, &self.kernels) {
            // It has a group of its own. An error means that it has just ended.
            (Some(process), _) => drop(kill_process_group(process.pid, Signal::INT)),
            (None, Some(kernels)) => kernels.current.signal(Signal::INT),
            (None, None) => {}
        }
    }

    /// Kills what the cell has started, with its process. Tells whether that worked.
    pub(super) fn kill(&self, running: &Running) -> bool {
        match (&running.program, &self.kernels) {
            (Some(process), _) => {
                process.kill();
                processes::kill_all_but(&running.found)
            }
            (None, Some(kernels)) => kernels.kill_current(),
            (None, None) => true,
        }
    }

    pub(super) fn has_ended(&self, running: &Running) -> bool {
        match (&running.program, &self.kernels) {
            (Some(process), _) => self.reaped.contains_key(&process.pid),
            (None, Some(kernels)) => kernels.current.has_ended(),
            (None, None) => true,
        }
    }

    /// How the process of a cell ended, and the CPU time that the cell has used. `code` is what the kernel says.
    pub(super) fn end_of(&self, running: &Running, code: Option<i32>) -> (End, Duration) {
        let reaped = self.reaped.get(&running.pid);
        if let Some(reaped) = reaped.filter(|_| running.program.is_some()) {
            return (reaped.end, reaped.cpu);
        }
        let end = match (code, reaped) {
            (Some(code), _) => End::Code(code),
            (None, Some(reaped)) => reaped.end,
            (None, None) => Stat::of(running.pid).map_or(End::Signal(9), |stat| stat.end),
        };
        let used = reaped.map_or_else(|| cpu(running.pid), |reaped| reaped.cpu);
        (end, used.saturating_sub(running.cpu_before))
    }
}

/// CPU time of a process, and of those of its children that it has waited for.
fn cpu(pid: Pid) -> Duration {
    usage::process_cpu(pid) + Stat::of(pid).map_or(Duration::ZERO, |stat| stat.children_cpu)
}
