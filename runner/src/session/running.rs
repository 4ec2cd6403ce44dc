//! A cell that runs, in the kernel's process or as a program.

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use isolator_runner::wire::{Bounds, Cell, CellRun, End, Failed, FailedCause, Kind, NoCheckpoint};
use rustix::process::{Pid, Signal, kill_process_group};

use super::Session;
use super::kernels::{Begun, Code, Kernels};
use crate::output::Output;
use crate::packages;
use crate::preload::Spares;
use crate::process::Process;
use crate::processes::{self, Stat};
use crate::request::NotRun;
use crate::usage::{self, Reaped};

/// A cell that runs.
pub(super) struct Running {
    pub(super) started: Instant,
    pub(super) deadline: Option<Instant>,
    /// The process that runs it.
    pub(super) pid: Pid,
    /// `None` for code, which the kernel runs.
    pub(super) program: Option<Program>,
    pub(super) output: Output,
    /// Why there is no checkpoint before it, if it could have one.
    pub(super) no_checkpoint: Option<NoCheckpoint>,
    /// What keeps its process from noticing an interruption.
    pub(super) hindrance: Hindrance,
    /// CPU time that its process had used before.
    cpu_before: Duration,
    /// Its process, once that has ended.
    reaped: Option<Reaped>,
}

/// What may keep code from noticing an interruption: the function that runs waits for a child process, as `execSync` does.
#[derive(Default)]
pub(super) struct Hindrance {
    /// The processes that were there before the cell, which live on.
    found: HashSet<Pid>,
    /// When the next step is due, if the code was interrupted.
    pub(super) next: Option<Instant>,
    steps: u32,
}

/// How long code may take to notice an interruption, before the child that it may wait for is ended.
const NOTICE: Duration = Duration::from_millis(250);

/// A program that runs.
pub(super) struct Program {
    pub(super) process: Process,
    pub(super) others: Others,
    /// CPU time of its processes that have ended.
    cpu: Duration,
}

/// The other processes of the sandbox.
pub(super) enum Others {
    /// They end with the program. Before it were only interpreters that it does not need.
    End(Spares),
    /// Those that were there before the program live on, and so do those that it leaves.
    Stay(HashSet<Pid>),
}

impl Running {
    /// A program that has started, or gone on, in a process.
    pub(super) fn program(
        mut process: Process,
        others: Others,
        started: Instant,
        cpu_before: Duration,
        bounds: &Bounds,
    ) -> Self {
        let pipes = [process.stdout.take(), process.stderr.take()];
        Self {
            started,
            deadline: started.checked_add(bounds.deadline),
            pid: process.pid,
            output: Output::new(pipes, &bounds.output),
            program: Some(Program { process, others, cpu: Duration::ZERO }),
            no_checkpoint: None,
            hindrance: Hindrance::default(),
            cpu_before,
            reaped: None,
        }
    }

    /// Whether the session ends with it.
    pub(super) fn ends_session(&self) -> bool {
        matches!(self.program, Some(Program { others: Others::End(_), .. }))
    }

    /// The interpreters that a run has left over.
    pub(super) fn spares(&mut self) -> Option<&mut Spares> {
        match self.program.as_mut().map(|program| &mut program.others) {
            Some(Others::End(spares)) => Some(spares),
            _ => None,
        }
    }

    /// Reaps all children that have ended, also those of earlier cells.
    pub(super) fn reap(&mut self) {
        while let Some(child) = usage::reap() {
            let is_own = child.pid == self.pid;
            if let Some(program) = &mut self.program {
                let is_other = match &mut program.others {
                    Others::End(spares) => spares.forget(child.pid),
                    Others::Stay(found) => found.contains(&child.pid),
                };
                let uncounted = if is_own { self.cpu_before } else { Duration::ZERO };
                if !is_other {
                    program.cpu += child.cpu.saturating_sub(uncounted);
                }
            }
            if is_own {
                self.reaped = Some(child);
            }
        }
    }

    /// How its process ended, and the CPU time that was used. `code` is what the kernel says.
    pub(super) fn end(&self, code: Option<i32>) -> (End, Duration) {
        let end = match (code, &self.reaped) {
            (Some(code), _) => End::Code(code),
            (None, Some(reaped)) => reaped.end,
            (None, None) => Stat::of(self.pid)
                .filter(|stat| stat.has_ended)
                .map_or(End::Signal(Signal::KILL.as_raw()), |stat| stat.end),
        };
        let used = match (&self.program, &self.reaped) {
            (Some(program), Some(_)) => return (end, program.cpu),
            (None, Some(reaped)) => reaped.cpu,
            (_, None) => cpu(self.pid),
        };
        (end, used.saturating_sub(self.cpu_before))
    }
}

impl Session<'_> {
    /// Begins a cell. `None` if there is nothing to run, or the kernel can't run it.
    pub(super) fn begin(&mut self, cell: &Cell, input: &[u8]) -> Result<Option<Running>, NotRun> {
        match &cell.run {
            CellRun::Files => Ok(None),
            CellRun::Code { typescript, columns, env, for_program } => {
                let Some(kernels) = &mut self.kernels else {
                    let message = format!("context {} has no interpreter", cell.context);
                    return Err(Failed { cause: FailedCause::Kernel, message }.into());
                };
                let code = Code {
                    number: cell.number,
                    typescript: *typescript,
                    columns: *columns,
                    env,
                    for_program: *for_program,
                    source: input,
                };
                let Ok(begun) = kernels.begin(&code) else { return Ok(None) };
                let Begun { pipes, no_checkpoint, found } = begun;
                let pid = kernels.current.pid;
                // A process that was forked for the cell has used none.
                let cpu_before = if no_checkpoint.is_some() { cpu(pid) } else { Duration::ZERO };
                // As in a run, the code may stop or kill the runner as soon as it runs.
                self.to_server.send_empty(Kind::Started)?;
                let started = Instant::now();
                kernels.go();
                Ok(Some(Running {
                    started,
                    deadline: started.checked_add(cell.bounds.deadline),
                    pid,
                    program: None,
                    output: Output::new(pipes, &cell.bounds.output),
                    cpu_before,
                    no_checkpoint,
                    hindrance: Hindrance { found, ..Hindrance::default() },
                    reaped: None,
                }))
            }
            CellRun::Program { argv, env, cwd } => {
                let folder = self.workdir.join(cwd);
                let found = processes::all().map_err(|error| command(error.to_string()))?;
                // As in a run, the program may kill the runner as soon as it starts.
                self.to_server.send_empty(Kind::Started)?;
                let started = Instant::now();
                let process = self.spawn(argv, env, &folder, input, None)?;
                let (others, unused) = (Others::Stay(found), Duration::ZERO);
                Ok(Some(Running::program(process, others, started, unused, &cell.bounds)))
            }
        }
    }

    /// Starts a program with the session's packages, and with a limit on its CPU time if one is given.
    ///
    /// # Errors
    ///
    /// When the command can't be started. If it has taken from the runner what that needs to supervise it, the runner is over: that is
    /// the program's doing.
    pub(super) fn spawn(
        &self,
        argv: &[String],
        env: &BTreeMap<String, String>,
        folder: &Path,
        input: &[u8],
        cpu_time: Option<Duration>,
    ) -> Result<Process, NotRun> {
        let env = packages::variables(env, self.packages.as_ref());
        let spawned = Process::spawn(argv, &env, folder, self.oom_score, Some(input), cpu_time);
        let spawned = spawned.map_err(|error| command(explain(argv, folder, &error)))?;
        Ok(spawned.supervised()?)
    }

    /// Interrupts it, as a terminal does. Node.js notices that when the child has ended for which it waits, so that ends a moment later.
    pub(super) fn interrupt(&self, running: &mut Running) {
        if running.program.is_none() && self.kernels.as_ref().is_some_and(Kernels::is_node) {
            running.hindrance.next.get_or_insert_with(|| Instant::now() + NOTICE);
        }
        match (&running.program, &self.kernels) {
            // It has a group of its own. An error means that it has just ended.
            (Some(program), _) => drop(kill_process_group(program.process.pid, Signal::INT)),
            (None, Some(kernels)) => kernels.current.signal(Signal::INT),
            (None, None) => {}
        }
    }

    /// Ends what keeps interrupted code from noticing it: the child that it has started last, then all of them.
    pub(super) fn end_hindrance(&self, running: &mut Running) {
        let hindrance = &mut running.hindrance;
        let Some(kernels) = self
            .kernels
            .as_ref()
            .filter(|_| hindrance.next.is_some_and(|next| next <= Instant::now()))
        else {
            return;
        };
        hindrance.steps += 1;
        hindrance.next = (hindrance.steps < 2).then(|| Instant::now() + NOTICE);
        if hindrance.steps > 1 || !processes::kill_last_child(kernels.current.pid, &hindrance.found)
        {
            kernels.kill_started(&hindrance.found);
        }
    }

    /// Kills all that it has started, with its process. Returns whether that worked.
    pub(super) fn kill(&self, running: &Running) -> bool {
        match (&running.program, &self.kernels) {
            (Some(Program { others: Others::End(_), .. }), _) => {
                processes::kill_everything();
                true
            }
            (Some(Program { process, others: Others::Stay(found), .. }), _) => {
                process.kill();
                processes::kill_all_but(found)
            }
            (None, Some(kernels)) => kernels.kill_current(),
            (None, None) => true,
        }
    }

    pub(super) fn has_ended(&self, running: &Running) -> bool {
        match (&running.program, &self.kernels) {
            (Some(_), _) => running.reaped.is_some(),
            (None, Some(kernels)) => kernels.current.has_ended(),
            (None, None) => true,
        }
    }
}

fn command(message: String) -> Failed {
    Failed { cause: FailedCause::Command, message }
}

fn explain(argv: &[String], folder: &Path, error: &io::Error) -> String {
    if folder.is_dir() {
        format!("{}: {error}", argv.first().map_or("", String::as_str))
    } else {
        format!("there is no folder {}", folder.display())
    }
}

/// CPU time of a process, and of those of its children that it has waited for.
fn cpu(pid: Pid) -> Duration {
    usage::process_cpu(pid) + Stat::of(pid).map_or(Duration::ZERO, |stat| stat.children_cpu)
}
