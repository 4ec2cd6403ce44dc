//! The running program, supervised until it ends or is killed.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use isolator_runner::wire::{End, Exit, Job, KillReason, Kind, StreamCount};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, Signal};

use crate::frame_writer::FrameWriter;
use crate::output::Keeper;
use crate::preload::Spares;
use crate::process::{Process, would_block};
use crate::{cgroup, unpack, usage};

/// Read from a pipe at once: what a Linux pipe holds by default.
const CHUNK: usize = 64 * 1024;

/// How often orphans are reaped while the program is silent. They count against the process limit
/// until then.
pub(crate) const REAP_EVERY: Duration = Duration::from_millis(100);

/// Longest wait for the pipes to close once every process was killed. Their ends are closed as
/// soon as the kernel is done with the processes; this is for one that is stuck in the kernel.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(500);

/// A started program.
pub(crate) struct Program {
    process: Process,
    stdin: Vec<u8>,
    started: Instant,
    /// CPU time of ended children.
    cpu: Duration,
    /// CPU time of children that does not count as the program's.
    uncounted_cpu: HashMap<Pid, Duration>,
    spares: Spares,
}

/// How the program, or a cell, ended.
pub(crate) struct Ended {
    pub(crate) end: End,
    pub(crate) killed: Option<KillReason>,
    pub(crate) wall: Duration,
    pub(crate) cpu: Duration,
    pub(crate) stdout: StreamCount,
    pub(crate) stderr: StreamCount,
}

impl Ended {
    /// The report, apart from the files and from what was done before the start. `before` is what was counted then.
    pub(crate) fn into_exit(self, before: &cgroup::Counters, disks: &[String]) -> Exit {
        let after = cgroup::Counters::read();
        Exit {
            end: self.end,
            killed: self.killed,
            wall: self.wall,
            cpu: self.cpu,
            peak_memory: cgroup::peak_memory(),
            oom_kills: after.oom_kills.saturating_sub(before.oom_kills),
            refused_forks: after.refused_forks.saturating_sub(before.refused_forks),
            full_disks: disks.iter().filter(|path| unpack::is_full(path)).cloned().collect(),
            stdout: self.stdout,
            stderr: self.stderr,
            more_files: false,
            in_tmp: Vec::new(),
            unpack: Duration::ZERO,
            spawn: Duration::ZERO,
            preloaded: false,
        }
    }
}

impl Program {
    /// A program in a process that was started at `started`, or that went on to it then.
    /// `uncounted_cpu` is CPU time of children that the program has no part in.
    pub(crate) fn new(
        process: Process,
        stdin: Vec<u8>,
        started: Instant,
        uncounted_cpu: HashMap<Pid, Duration>,
        spares: Spares,
    ) -> Self {
        Self { process, stdin, started, cpu: Duration::ZERO, uncounted_cpu, spares }
    }

    /// Passes on output until the program has ended or was killed, together with all processes that it left.
    ///
    /// # Errors
    ///
    /// When the server's end of the stream is gone.
    pub(crate) fn supervise(
        mut self,
        job: &Job,
        frame_writer: &mut FrameWriter<File>,
    ) -> io::Result<Ended> {
        let mut stdout = Keeper::new(job.output.head, job.output.tail);
        let mut stderr = Keeper::new(job.output.head, job.output.tail);
        let deadline = self.started.checked_add(job.deadline);
        let mut killed = None;
        let mut end = None;
        let mut drain_until: Option<Instant> = None;

        loop {
            let now = Instant::now();
            let until = if end.is_some() { drain_until } else { deadline };
            let until = [until, self.spares.end_at(self.started), frame_writer.flush_at()]
                .into_iter()
                .flatten()
                .min();
            let left = until.map_or(REAP_EVERY, |until| until.saturating_duration_since(now));
            self.wait_for_events(end.is_none(), left.min(REAP_EVERY))?;
            if let Some(alone) = self.spares.end_if_due(self.started) {
                frame_writer.send(Kind::Alone, &alone)?;
            }
            frame_writer.flush_if_due()?;

            self.process.stdin.feed(&self.stdin);
            self.pass_output_on(&mut stdout, &mut stderr, frame_writer)?;

            if end.is_none() && killed.is_none() {
                killed = if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                    Some(KillReason::Deadline)
                } else if stdout.total() + stderr.total() > job.output.kill {
                    Some(KillReason::OutputLimit)
                } else {
                    None
                };
                if killed.is_some() {
                    kill_everything();
                }
            }
            if end.is_none() {
                end = self.reap();
                if end.is_some() {
                    self.process.stdin.close();
                    // What a pipe holds, and its end.
                    for _ in 0..2 {
                        self.pass_output_on(&mut stdout, &mut stderr, frame_writer)?;
                    }
                    if !self.is_drained() {
                        // Background children end with the program, as they do with a container.
                        kill_everything();
                        drain_until = Some(Instant::now() + DRAIN_TIMEOUT);
                    }
                }
            }
            let expired = drain_until.is_some_and(|until| Instant::now() >= until);
            if let Some(end) = end
                && (self.is_drained() || expired)
            {
                // A program that ended by itself in the very moment of its kill was not killed.
                let killed = killed.filter(|_| matches!(end, End::Signal(_)));
                let wall = self.started.elapsed();
                let stdout = send_tail(stdout, Kind::Stdout, frame_writer)?;
                let stderr = send_tail(stderr, Kind::Stderr, frame_writer)?;
                return Ok(Ended { end, killed, wall, cpu: self.cpu, stdout, stderr });
            }
        }
    }

    fn pass_output_on(
        &mut self,
        stdout: &mut Keeper,
        stderr: &mut Keeper,
        frame_writer: &mut FrameWriter<File>,
    ) -> io::Result<()> {
        pass_on(&mut self.process.stdout, stdout, Kind::Stdout, frame_writer)?;
        pass_on(&mut self.process.stderr, stderr, Kind::Stderr, frame_writer)
    }

    /// Whether both of its output pipes are closed.
    fn is_drained(&self) -> bool {
        self.process.stdout.is_none() && self.process.stderr.is_none()
    }

    fn wait_for_events(&self, running: bool, timeout: Duration) -> io::Result<()> {
        let mut fds = Vec::with_capacity(6);
        let Process { stdin, stdout, stderr, pidfd, .. } = &self.process;
        for pipe in [stdout, stderr].into_iter().flatten() {
            fds.push(PollFd::new(pipe, PollFlags::IN));
        }
        if let Some(pipe) = stdin.pipe() {
            fds.push(PollFd::new(pipe, PollFlags::OUT));
        }
        if running {
            fds.push(PollFd::from_borrowed_fd(pidfd.as_fd(), PollFlags::IN));
            fds.extend(self.spares.dying().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        }
        let timeout = timeout.try_into().map_err(io::Error::other)?;
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Reaps all children that have ended; returns how the program ended, if it did.
    fn reap(&mut self) -> Option<End> {
        let mut end = None;
        while let Some(child) = usage::reap() {
            let uncounted_cpu = self.uncounted_cpu.get(&child.pid).copied().unwrap_or_default();
            self.cpu += child.cpu.saturating_sub(uncounted_cpu);
            self.spares.reaped(child.pid);
            if child.pid == self.process.pid {
                end = Some(child.end);
            }
        }
        end
    }
}

/// Reads what a pipe holds, a chunk at most, so that neither stream starves the other. Sends what
/// belongs to the head.
pub(crate) fn pass_on(
    pipe: &mut Option<File>,
    keeper: &mut Keeper,
    kind: Kind,
    frame_writer: &mut FrameWriter<File>,
) -> io::Result<()> {
    let Some(file) = pipe else { return Ok(()) };
    let mut buffer = [0; CHUNK];
    match file.read(&mut buffer) {
        Ok(0) => *pipe = None,
        Ok(count) => frame_writer.queue(kind, keeper.push(&buffer[..count]))?,
        Err(error) if would_block(&error) => {}
        Err(_) => *pipe = None,
    }
    Ok(())
}

pub(crate) fn send_tail(
    keeper: Keeper,
    kind: Kind,
    frame_writer: &mut FrameWriter<File>,
) -> io::Result<StreamCount> {
    let (tail, count) = keeper.finish();
    frame_writer.queue(kind, &tail)?;
    Ok(count)
}

/// Kills every process of the sandbox except the runner and process 1, in one call, so that a fork bomb can't
/// outrun it. The group of process 1, negated as `kill` wants it, is −1: everything the
/// caller may signal. [`crate::park`] made sure that this is a sandbox.
pub(crate) fn kill_everything() {
    // An error means that nobody was left.
    let _ = rustix::process::kill_process_group(Pid::INIT, Signal::KILL);
}
