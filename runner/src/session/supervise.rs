//! Supervises a cell until it has ended: its output, its time, and messages of the server.

use std::fs::File;
use std::io;
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use isolator_runner::wire::{self, CellEnd, End, Exit, KillReason, Kind, Occasion, WireError};
use rustix::event::{PollFd, PollFlags};

use super::Session;
use super::channel::Said;
use super::running::{Others, Program, Running};
use super::shown::ShownSoFar;
use crate::poll::{self, readable};
use crate::{cgroup, processes, unpack};

/// How often orphans are reaped while nothing else happens. They count against the process limit
/// until then.
const REAP_EVERY: Duration = Duration::from_millis(100);

/// How long a cell without a checkpoint may take to end when it is interrupted.
const INTERRUPT_GRACE: Duration = Duration::from_secs(1);

/// How long a process may take to be gone when it was killed.
const END_TIMEOUT: Duration = Duration::from_secs(5);

/// The same for a run. The server waits 5 seconds for the report, which must come before that.
const RUN_END_TIMEOUT: Duration = Duration::from_secs(3);

/// Longest wait for the pipes to close once every process was killed. Their ends are closed as
/// soon as the kernel is done with the processes; this is for one that is stuck in the kernel.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(500);

/// How often the channel of a kernel is read before the runner looks at everything else again.
const READS_AT_ONCE: usize = 16;

/// How a cell has ended.
pub(super) struct Ended {
    exit: Exit,
    /// The pipes that other processes still hold.
    pub(super) pipes: [Option<File>; 2],
    /// How its code ended, as the kernel says.
    pub(super) said: Option<CellEnd>,
    /// Whether the process that ran it is gone.
    pub(super) is_gone: bool,
    pub(super) shown_dropped: u32,
    /// Whether its processes could not be killed.
    pub(super) is_lost: bool,
}

impl Session<'_> {
    /// Passes on the output of a cell until it has ended or was killed. Up to `shown` bytes of what it shows are sent.
    ///
    /// # Errors
    ///
    /// When the server's end of the stream is gone, or the runner can't go on.
    pub(super) fn supervise(
        &mut self,
        mut running: Running,
        input: &[u8],
        shown: u64,
    ) -> io::Result<Ended> {
        let mut shown = ShownSoFar::new(shown);
        if let Some(kernels) = self.kernels.as_mut().filter(|_| running.program.is_none()) {
            let early = std::mem::take(&mut kernels.early);
            shown.dropped = early.dropped;
            for forms in early.things {
                shown.pass_on(Occasion::Background, forms, self.to_server)?;
            }
        }
        let mut killed = None;
        let mut kill_at = None;
        let mut give_up_at: Option<Instant> = None;
        let mut next_look = Instant::now() + REAP_EVERY;
        let mut said = None;
        let mut is_lost = false;
        let is_gone = loop {
            let started = running.started;
            let until = [
                running.deadline.filter(|_| killed.is_none()),
                kill_at,
                give_up_at,
                running.hindrance.next,
                running.spares().and_then(|spares| spares.end_at(started)),
                self.to_server.flush_at(),
            ];
            let until = until.into_iter().flatten().fold(next_look, Instant::min);
            let left = until.saturating_duration_since(Instant::now());
            let is_asked = self.wait_for_events(&running, left)?;
            if let Some(alone) = running.spares().and_then(|spares| spares.end_if_due(started)) {
                self.to_server.send(Kind::Alone, &alone)?;
            }
            self.to_server.flush_if_due()?;
            self.background.read();
            if self.agents.relay(self.to_server)? {
                self.versions.note_shared();
            }
            self.installs.relay(is_asked, self.to_server)?;
            if let Some(program) = &mut running.program {
                program.process.stdin.feed(input);
            }
            running.output.read(self.to_server)?;
            let broke = running.program.is_none() && !self.listen(&mut shown, &mut said)?;
            running.reap();
            if said.is_some() {
                break false;
            }
            if self.has_ended(&running) {
                break true;
            }
            self.end_hindrance(&mut running);
            if Instant::now() >= next_look {
                next_look = Instant::now() + REAP_EVERY;
                self.save_memory(true);
                if kill_at.is_some() {
                    // An interpreter can miss an interruption.
                    self.interrupt(&mut running);
                }
            }
            let is_cancelled = self.is_cancelled(&mut running)?;
            if killed.is_none() {
                killed = if running.deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                    Some(KillReason::Deadline)
                } else if is_cancelled || broke {
                    Some(KillReason::Cancelled)
                } else if running.output.is_too_long() {
                    Some(KillReason::OutputLimit)
                } else {
                    None
                };
                if killed.is_some() {
                    if running.no_checkpoint.is_some() && !broke {
                        // Perhaps its state can be kept.
                        self.interrupt(&mut running);
                        kill_at = Some(Instant::now() + INTERRUPT_GRACE);
                    } else {
                        kill_at = Some(Instant::now());
                    }
                }
            }
            if kill_at.is_some_and(|time| Instant::now() >= time) {
                kill_at = None;
                let timeout = if running.ends_session() { RUN_END_TIMEOUT } else { END_TIMEOUT };
                give_up_at = Some(Instant::now() + timeout);
                is_lost |= !self.kill(&running);
            }
            if give_up_at.is_some_and(|time| Instant::now() >= time) {
                is_lost = true;
                break true;
            }
        };
        // The rest of the pipes' content, and their end.
        for _ in 0..2 {
            running.output.read(self.to_server)?;
        }
        if running.ends_session() && !running.output.is_closed() {
            // Background children end with the program, as they do with a container.
            processes::kill_everything();
            running.output.drain(DRAIN_TIMEOUT, self.to_server)?;
        }
        let wall = running.started.elapsed();
        if running.program.is_none() && !is_gone {
            self.listen(&mut shown, &mut said)?;
        }
        let (end, cpu) = running.end(said.map(|(_, code)| code));
        // A cell that ended by itself in the very moment of its kill was not killed.
        let killed = killed.filter(|_| {
            matches!(end, End::Signal(_)) || matches!(said, Some((CellEnd::Interrupted, _)))
        });
        let ([stdout, stderr], pipes) = running.output.finish(self.to_server)?;
        let ended = Ended::without_run(end);
        Ok(Ended {
            exit: Exit { killed, wall, cpu, stdout, stderr, ..ended.exit },
            pipes,
            said: said.map(|(end, _)| end),
            is_gone,
            shown_dropped: shown.dropped,
            is_lost,
        })
    }

    /// Waits until something happens. Returns whether a program has a request for packages.
    fn wait_for_events(&self, running: &Running, timeout: Duration) -> io::Result<bool> {
        // What a thread of an earlier cell shows can come together with the kernel's word that it is ready.
        let has_message = self.kernels.as_ref().is_some_and(|it| it.current.channel.has_message());
        if running.program.is_none() && has_message {
            return Ok(false);
        }
        let mut fds = Vec::with_capacity(8);
        fds.extend(running.output.pipes().map(|pipe| readable(pipe.as_fd())));
        fds.extend(self.background.fds().map(readable));
        fds.extend(self.agents.fds());
        if !self.is_abandoned {
            fds.push(readable(self.from_server.get_ref().as_fd()));
        }
        match (&running.program, &self.kernels) {
            (Some(Program { process, others, .. }), _) => {
                fds.push(readable(process.pidfd.as_fd()));
                fds.extend(process.stdin.pipe().map(|pipe| PollFd::new(pipe, PollFlags::OUT)));
                if let Others::End(spares) = others {
                    fds.extend(spares.dying().map(readable));
                }
            }
            (None, Some(kernels)) => {
                fds.push(readable(kernels.current.pidfd()));
                if !kernels.current.channel.is_closed {
                    fds.push(readable(kernels.current.channel.fd()));
                }
            }
            (None, None) => {}
        }
        fds.extend(self.installs.fds());
        poll::wait(&mut fds, timeout)?;
        Ok(self.installs.is_asked(fds.last()))
    }

    /// Takes the kernel's messages. Returns whether it keeps to the protocol.
    fn listen(
        &mut self,
        shown: &mut ShownSoFar,
        said: &mut Option<(CellEnd, i32)>,
    ) -> io::Result<bool> {
        let Some(kernels) = &mut self.kernels else { return Ok(false) };
        let mut reads = READS_AT_ONCE;
        while said.is_none() {
            match kernels.current.channel.next_within(&mut reads) {
                Ok(Some(Said::Shown { is_result, forms })) => {
                    let occasion = if is_result { Occasion::Result } else { Occasion::Cell };
                    shown.pass_on(occasion, forms, self.to_server)?;
                }
                Ok(Some(Said::TooLong)) => shown.dropped += 1,
                // Nothing has asked for them.
                Ok(Some(Said::Loaded | Said::Completed(_))) => {}
                Ok(Some(Said::Ended { end, code })) => {
                    let end = match end {
                        0 => CellEnd::Ended,
                        1 => CellEnd::Raised,
                        2 => CellEnd::Interrupted,
                        3 => CellEnd::Exited,
                        _ => return Ok(false),
                    };
                    *said = Some((end, code));
                }
                Ok(Some(Said::Ready(_) | Said::Started(_) | Said::Prepared(_))) | Err(_) => {
                    return Ok(false);
                }
                Ok(None) => return Ok(true),
            }
        }
        Ok(true)
    }

    /// Takes the server's messages while the cell runs. Returns whether the cell is cancelled.
    fn is_cancelled(&mut self, running: &mut Running) -> io::Result<bool> {
        let mut is_cancelled = false;
        while !self.is_abandoned && super::is_readable(&self.from_server)? {
            match wire::read_frame(&mut self.from_server)? {
                Some((kind @ (Kind::Installed | Kind::InstallProgress), payload)) => {
                    self.installed(kind, &payload)?;
                }
                // Instead of cancelling a run, the server removes its sandbox, or is gone.
                None if running.ends_session() => {
                    self.is_abandoned = true;
                    self.installs.close();
                }
                Some((Kind::Interrupt, _)) => self.interrupt(running),
                Some((Kind::Cancel, _)) => is_cancelled = true,
                Some((kind @ (Kind::Agent | Kind::EndAgent), payload)) => {
                    self.versions.note_shared();
                    self.agent(kind, &payload)?;
                }
                Some((Kind::Measure, _)) => self.measure()?,
                Some((kind, _)) => return Err(WireError::Unexpected(kind).into()),
                None => return Err(io::ErrorKind::UnexpectedEof.into()),
            }
        }
        Ok(is_cancelled)
    }
}

impl Ended {
    /// A cell that only brought files.
    pub(super) fn with_its_files() -> Self {
        Self { is_gone: false, ..Self::without_run(End::Code(0)) }
    }

    /// A cell whose kernel was gone before.
    pub(super) fn never_began(is_lost: bool) -> Self {
        Self { said: Some(CellEnd::NotBegun), is_lost, ..Self::without_run(End::Signal(9)) }
    }

    fn without_run(end: End) -> Self {
        let (exit, pipes) = (Exit::of(end), [None, None]);
        Self { exit, pipes, said: None, is_gone: true, shown_dropped: 0, is_lost: false }
    }

    /// The report, apart from the files and from the time before the start. `before` is from then.
    pub(super) fn into_exit(self, before: &cgroup::Counters, disks: &[String]) -> Exit {
        let after = cgroup::Counters::read();
        Exit {
            peak_memory: cgroup::peak_memory(),
            oom_kills: after.oom_kills.saturating_sub(before.oom_kills),
            refused_forks: after.refused_forks.saturating_sub(before.refused_forks),
            full_disks: disks.iter().filter(|path| unpack::is_full(path)).cloned().collect(),
            ..self.exit
        }
    }
}
