//! One cell of a session, from its start to its end.

use std::io;
use std::time::{Duration, Instant};

use isolator_runner::wire::{
    self, Cell, CellEnd, CellEnded, CellRun, End, Exit, Failed, KillReason, Kind, Occasion,
    StreamCount,
};
use rustix::event::{PollFd, PollFlags, poll};

use super::Session;
use super::channel::Said;
use super::kernels::Kernels;
use super::running::Running;
use super::shown::ShownSoFar;
use crate::output::Keeper;
use crate::program::{self, REAP_EVERY, pass_on, send_tail};
use crate::{cgroup, changes};

/// How long a cell without a checkpoint may take to end when it is interrupted.
const INTERRUPT_GRACE: Duration = Duration::from_secs(1);

/// How often the channel of a kernel is read before the runner looks at everything else again.
const READS_AT_ONCE: usize = 16;

/// How long a process may take to be gone when it was killed.
const END_TIMEOUT: Duration = Duration::from_secs(5);

/// From this part of the memory on, the oldest checkpoints are given up, in percent.
const SHORT_OF_MEMORY: u64 = 80;

/// How a cell has ended.
struct Ended {
    as_program: program::Ended,
    /// What its kernel says of its end.
    said: Option<CellEnd>,
    /// Whether the process that ran it is gone.
    is_gone: bool,
    shown_dropped: u32,
    /// Whether what it has started could not be killed.
    is_lost: bool,
}

impl Session<'_> {
    /// Runs a cell. The outer error is the server's stream, the inner one says why nothing ran.
    pub(super) fn run(
        &mut self,
        cell: &Cell,
        input: &[u8],
        unpack: Duration,
    ) -> io::Result<Result<CellEnded, Failed>> {
        self.save_memory(false);
        let before = cgroup::Counters::read();
        let is_code = matches!(cell.run, CellRun::Code { .. });
        if let Some(kernels) = &mut self.kernels
            && is_code
        {
            // What was printed between the cells is not this one's.
            let (stdout, stderr) = &mut kernels.own_pipes;
            for pipe in [stdout, stderr].into_iter().flatten() {
                self.background.read_from(pipe);
            }
        }
        let began = Instant::now();
        let (running, undone_before) = match self.begin_or_undo(cell, input) {
            Ok(begun) => begun,
            Err(failed) => return Ok(Err(failed)),
        };
        let spawn = began.elapsed();
        let (running, ended) = match running {
            None if cell.run == CellRun::Files => (None, Ended::with_its_files()),
            Some(mut running) => {
                self.to_server.send_empty(Kind::Started)?;
                let ended = self.supervise(cell, input, &mut running)?;
                (Some(running), ended)
            }
            None => {
                // Its kernel was gone, or did not listen. That is the doing of an earlier cell.
                self.to_server.send_empty(Kind::Started)?;
                let is_lost = undone_before == 0
                    && self.kernels.as_mut().is_some_and(|kernels| !kernels.kill_unfit());
                (None, Ended::never_began(is_lost))
            }
        };
        // A kernel that was gone when its cell came may have been killed since the last answer.
        let before = if running.is_some() { before } else { std::mem::take(&mut self.counted) };
        let no_checkpoint = running.as_ref().and_then(|running| running.no_checkpoint);
        let (mut undone, is_alive) = match undone_before {
            0 => self.undo_if_gone(&ended, is_code),
            // The kernel has gone back already.
            cells => (cells, true),
        };
        if running.is_none() && undone > 0 {
            // The kernel has not counted it.
            undone += 1;
        }
        if let Some(running) = running {
            self.keep_pipes(running, is_code);
        }
        self.reap();
        let exit = ended.as_program.into_exit(&before, &cell.disks);
        self.counted = cgroup::Counters::read();
        let background_dropped = self.background.send(self.to_server)?;
        let (more_files, in_tmp) = match &cell.files {
            Some(wanted) => {
                let complete =
                    changes::send(&self.workdir, &mut self.listing, wanted, self.to_server)?;
                self.listing.turn();
                (!complete, changes::in_tmp(exit.wall))
            }
            None => (false, Vec::new()),
        };
        Ok(Ok(CellEnded {
            exit: Exit { more_files, in_tmp, unpack, spawn, ..exit },
            end: is_code.then_some(ended.said.unwrap_or(CellEnd::Died)),
            undone,
            no_checkpoint,
            checkpoints: self.kernels.as_ref().map_or(0, |kernels| kernels.checkpoints()),
            is_alive,
            memory: cgroup::memory(),
            background_dropped,
            shown_dropped: ended.shown_dropped,
        }))
    }

    /// Begins a cell. `None` if there is nothing to run, or the kernel can't run it. Also returns how many cells before it are undone
    /// because of that; zero if that is still to be done.
    fn begin_or_undo(
        &mut self,
        cell: &Cell,
        input: &[u8],
    ) -> Result<(Option<Running>, u32), Failed> {
        let running = self.begin(cell, input)?;
        if running.is_some() || !matches!(cell.run, CellRun::Code { .. }) {
            return Ok((running, 0));
        }
        match self.kernels.as_mut().and_then(Kernels::undo_prepared) {
            // The process that waited for the cell is gone, and its checkpoint is the same.
            Some(0) => Ok((self.begin(cell, input)?, 0)),
            // The cell expects the cells before it, so it does not run without them.
            undone => Ok((None, undone.unwrap_or(0))),
        }
    }

    fn supervise(&mut self, cell: &Cell, input: &[u8], running: &mut Running) -> io::Result<Ended> {
        let mut stdout = Keeper::new(cell.output.head, cell.output.tail);
        let mut stderr = Keeper::new(cell.output.head, cell.output.tail);
        let mut shown = ShownSoFar::new(cell.shown);
        if let Some(kernels) = self.kernels.as_mut().filter(|_| running.program.is_none()) {
            let early = std::mem::take(&mut kernels.early);
            shown.dropped = early.dropped;
            for forms in early.things {
                shown.pass_on(Occasion::Background, forms, self.to_server)?;
            }
        }
        let deadline = running.started.checked_add(cell.deadline);
        let mut killed = None;
        let mut kill_at = None;
        let mut give_up_at: Option<Instant> = None;
        let mut next_look = Instant::now() + REAP_EVERY;
        let mut said = None;
        let mut is_lost = false;
        let is_gone = loop {
            let flush_at = self.to_server.flush_at();
            let until = [
                deadline.filter(|_| killed.is_none()),
                kill_at,
                give_up_at,
                flush_at,
                Some(next_look),
            ];
            let until = until.into_iter().flatten().min().unwrap_or(next_look);
            self.wait_for_events(running, until.saturating_duration_since(Instant::now()))?;
            self.to_server.flush_if_due()?;
            self.background.read();
            if let Some(process) = &mut running.program {
                process.stdin.feed(input);
            }
            pass_on(&mut running.stdout, &mut stdout, Kind::Stdout, self.to_server)?;
            pass_on(&mut running.stderr, &mut stderr, Kind::Stderr, self.to_server)?;
            let broke = running.program.is_none() && !self.listen(&mut shown, &mut said)?;
            self.reap();
            if said.is_some() {
                break false;
            }
            if self.has_ended(running) {
                break true;
            }
            if Instant::now() >= next_look {
                next_look = Instant::now() + REAP_EVERY;
                self.save_memory(true);
                if kill_at.is_some() {
                    // An interpreter can miss an interruption.
                    self.interrupt(running);
                }
            }
            let is_cancelled = self.told_meanwhile(running)?;
            if killed.is_none() {
                killed = if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                    Some(KillReason::Deadline)
                } else if is_cancelled || broke {
                    Some(KillReason::Cancelled)
                } else if stdout.total() + stderr.total() > cell.output.kill {
                    Some(KillReason::OutputLimit)
                } else {
                    None
                };
                if killed.is_some() {
                    let has_no_checkpoint =
                        running.program.is_none() && running.no_checkpoint.is_some();
                    if has_no_checkpoint && !broke {
                        // Perhaps its state can be kept.
                        self.interrupt(running);
                        kill_at = Some(Instant::now() + INTERRUPT_GRACE);
                    } else {
                        kill_at = Some(Instant::now());
                    }
                }
            }
            if kill_at.is_some_and(|time| Instant::now() >= time) {
                kill_at = None;
                give_up_at = Some(Instant::now() + END_TIMEOUT);
                is_lost |= !self.kill(running);
            }
            if give_up_at.is_some_and(|time| Instant::now() >= time) {
                is_lost = true;
                break true;
            }
        };
        let wall = running.started.elapsed();
        // What a pipe holds, and its end.
        for _ in 0..2 {
            pass_on(&mut running.stdout, &mut stdout, Kind::Stdout, self.to_server)?;
            pass_on(&mut running.stderr, &mut stderr, Kind::Stderr, self.to_server)?;
        }
        if running.program.is_none() && !is_gone {
            self.listen(&mut shown, &mut said)?;
        }
        let (end, cpu) = self.end_of(running, said.map(|(_, code)| code));
        // A cell that ended by itself in the very moment of its kill was not killed.
        let killed = killed.filter(|_| {
            matches!(end, End::Signal(_)) || matches!(said, Some((CellEnd::Interrupted, _)))
        });
        let stdout = send_tail(stdout, Kind::Stdout, self.to_server)?;
        let stderr = send_tail(stderr, Kind::Stderr, self.to_server)?;
        Ok(Ended {
            as_program: program::Ended { end, killed, wall, cpu, stdout, stderr },
            said: said.map(|(end, _)| end),
            is_gone,
            shown_dropped: shown.dropped,
            is_lost,
        })
    }

    fn wait_for_events(&self, running: &Running, timeout: Duration) -> io::Result<()> {
        let mut fds = Vec::with_capacity(8);
        for pipe in [&running.stdout, &running.stderr].into_iter().flatten() {
            fds.push(PollFd::new(pipe, PollFlags::IN));
        }
        fds.extend(self.background.fds().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        fds.push(PollFd::new(self.from_server.get_ref(), PollFlags::IN));
        match (&running.program, &self.kernels) {
            (Some(process), _) => {
                fds.push(PollFd::new(&process.pidfd, PollFlags::IN));
                fds.extend(process.stdin.pipe().map(|pipe| PollFd::new(pipe, PollFlags::OUT)));
            }
            (None, Some(kernels)) => {
                fds.push(PollFd::from_borrowed_fd(kernels.current.pidfd(), PollFlags::IN));
                if !kernels.current.channel.is_closed {
                    fds.push(PollFd::from_borrowed_fd(kernels.current.channel.fd(), PollFlags::IN));
                }
            }
            (None, None) => {}
        }
        let timeout = timeout.try_into().map_err(io::Error::other)?;
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Takes what the kernel says. Tells whether it keeps to the protocol.
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

    /// Takes what the server says while the cell runs. Tells whether nobody waits for it anymore.
    fn told_meanwhile(&mut self, running: &Running) -> io::Result<bool> {
        let mut is_cancelled = false;
        while super::is_readable(&self.from_server)? {
            match wire::read_frame(&mut self.from_server).map_err(io::Error::other)? {
                Some((Kind::Interrupt, _)) => self.interrupt(running),
                Some((Kind::Cancel, _)) => is_cancelled = true,
                Some((kind, _)) => {
                    return Err(io::Error::other(format!("unexpected {kind:?} frame")));
                }
                None => return Err(io::ErrorKind::UnexpectedEof.into()),
            }
        }
        Ok(is_cancelled)
    }

    /// If the kernel's process is gone, its newest checkpoint is the session. Returns how many cells that undoes, and whether the session
    /// goes on.
    fn undo_if_gone(&mut self, ended: &Ended, is_code: bool) -> (u32, bool) {
        if ended.is_lost {
            program::kill_everything();
            return (0, false);
        }
        match &mut self.kernels {
            Some(kernels) if is_code && ended.is_gone => {
                // It may have left some that are not its children anymore.
                if !kernels.kill_current() {
                    return (0, false);
                }
                match kernels.undo() {
                    Some(cells) => (cells, true),
                    None => (0, false),
                }
            }
            _ => (0, true),
        }
    }

    /// What still holds the cell's pipes belongs to later cells.
    fn keep_pipes(&mut self, running: Running, is_code: bool) {
        let Running { stdout, stderr, .. } = running;
        match &mut self.kernels {
            Some(kernels) if is_code && kernels.prints_on_own_pipes() => {
                kernels.own_pipes = (stdout, stderr);
            }
            _ => {
                self.background.add(stdout);
                self.background.add(stderr);
            }
        }
    }

    /// Gives up old checkpoints if memory is short, but never that of the next cell. While a cell runs, the one before it stays, too.
    fn save_memory(&mut self, is_running: bool) {
        let Some(kernels) = &mut self.kernels else { return };
        while cgroup::memory_limit()
            .zip(cgroup::memory())
            .is_some_and(|(limit, used)| used / 100 > limit / 100 * SHORT_OF_MEMORY / 100)
        {
            if (is_running && !kernels.has_old_checkpoints()) || !kernels.give_up_oldest() {
                return;
            }
            // It takes a moment until its memory is free.
            std::thread::sleep(Duration::from_millis(5));
            if is_running {
                return;
            }
        }
    }
}

impl Ended {
    /// A cell that only brought files.
    fn with_its_files() -> Self {
        Self { is_gone: false, ..Self::without_run(End::Code(0), false) }
    }

    /// A cell whose kernel was gone before.
    fn never_began(is_lost: bool) -> Self {
        Self { said: Some(CellEnd::NotBegun), ..Self::without_run(End::Signal(9), is_lost) }
    }

    fn without_run(end: End, is_lost: bool) -> Self {
        let as_program = program::Ended {
            end,
            killed: None,
            wall: Duration::ZERO,
            cpu: Duration::ZERO,
            stdout: StreamCount::default(),
            stderr: StreamCount::default(),
        };
        Self { as_program, said: None, is_gone: true, shown_dropped: 0, is_lost }
    }
}
