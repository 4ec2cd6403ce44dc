//! One cell of a session, from its start to its report.

use std::io;
use std::time::{Duration, Instant};

use isolator_runner::wire::{Cell, CellEnd, CellEnded, CellRun, Exit, Kind, UndoneFiles};

use super::Session;
use super::kernels::Kernels;
use super::running::Running;
use super::supervise::Ended;
use crate::request::NotRun;
use crate::{cgroup, changes, processes};

/// From this part of the memory on, the oldest checkpoints are given up, in percent.
const SHORT_OF_MEMORY: u64 = 80;

impl Session<'_> {
    /// Runs a cell.
    ///
    /// # Errors
    ///
    /// When nothing ran, or the session is over.
    pub(super) fn run(
        &mut self,
        cell: &Cell,
        input: &[u8],
        unpack: Duration,
    ) -> Result<CellEnded, NotRun> {
        let is_code = matches!(cell.run, CellRun::Code { .. });
        if is_code {
            self.switch_to(cell.context);
        }
        self.save_memory(false);
        let processes_before = self.contexts.processes_before();
        let before = cgroup::Counters::read();
        if let Some(kernels) = &mut self.kernels
            && is_code
        {
            // Output from between the cells does not belong to this one.
            for pipe in kernels.own_pipes.iter_mut().flatten() {
                self.background.read_from(pipe);
            }
        }
        let began = Instant::now();
        let (running, undone_before) = self.begin_or_undo(cell, input)?;
        let spawn = began.elapsed();
        let has_run = running.is_some();
        let no_checkpoint = running.as_ref().and_then(|running| running.no_checkpoint);
        let mut ended = match running {
            None if cell.run == CellRun::Files => Ended::with_its_files(),
            Some(running) => self.supervise(running, input, cell.shown)?,
            None => {
                // Its kernel was gone, or did not listen. That is the doing of an earlier cell.
                self.to_server.send_empty(Kind::Started)?;
                let is_lost = undone_before == 0
                    && self.kernels.as_mut().is_some_and(|kernels| !kernels.kill_unfit());
                Ended::never_began(is_lost)
            }
        };
        // A kernel that was gone when its cell came may have been killed since the last answer.
        let before = if has_run { before } else { std::mem::take(&mut self.counted) };
        let (mut undone, is_alive) = match undone_before {
            0 => self.undo_if_gone(&ended, is_code, cell.keeps_session),
            // The kernel has gone back already.
            cells => (cells, true),
        };
        if !has_run && undone > 0 {
            // The kernel has not counted it.
            undone += 1;
        }
        let undone_files =
            if undone > 0 && is_alive { self.undo_files(cell.context)? } else { None };
        // Processes that still hold the cell's pipes print for later cells.
        let pipes = std::mem::take(&mut ended.pipes);
        match &mut self.kernels {
            Some(kernels) if has_run && is_code && kernels.prints_on_own_pipes() => {
                kernels.own_pipes = pipes;
            }
            _ => self.background.add(pipes),
        }
        super::reap();
        self.contexts.note_started(processes_before);
        let Ended { said, shown_dropped, .. } = ended;
        let exit = ended.into_exit(&before, &cell.bounds.disks);
        self.counted = cgroup::Counters::read();
        let background_dropped = self.background.send(self.to_server)?;
        let (more_files, in_tmp) = changes::report(
            &self.workdir,
            &mut self.listing,
            cell.bounds.files.as_ref(),
            exit.wall,
            self.to_server,
        )?;
        if cell.bounds.files.is_some() {
            self.listing.turn();
        }
        Ok(CellEnded {
            exit: Exit { more_files, in_tmp, unpack, spawn, ..exit },
            end: is_code.then_some(said.unwrap_or(CellEnd::Died)),
            undone,
            undone_files,
            no_checkpoint,
            checkpoints: self.kernels.as_ref().map_or(0, |kernels| kernels.checkpoints()),
            is_alive,
            memory: cgroup::memory(),
            background_dropped,
            shown_dropped,
            is_kernel_gone: is_code && self.kernels.is_none(),
        })
    }

    /// Begins a cell. `None` if there is nothing to run, or the kernel can't run it. Also returns how many cells before it are undone
    /// because of that; zero if that is still to be done.
    fn begin_or_undo(
        &mut self,
        cell: &Cell,
        input: &[u8],
    ) -> Result<(Option<Running>, u32), NotRun> {
        let running = self.begin(cell, input)?;
        if running.is_some() || !matches!(cell.run, CellRun::Code { .. }) {
            return Ok((running, 0));
        }
        let undone = self.kernels.as_mut().and_then(Kernels::undo_prepared);
        self.listen_to_resumed();
        match undone {
            // The process that waited for the cell is gone, and its checkpoint is the same.
            Some(0) => Ok((self.begin(cell, input)?, 0)),
            // The cell expects the cells before it, so it does not run without them.
            undone => Ok((None, undone.unwrap_or(0))),
        }
    }

    /// If the kernel's process is gone, its newest checkpoint is the session. Returns how many cells that undoes, and whether the session
    /// goes on.
    fn undo_if_gone(&mut self, ended: &Ended, is_code: bool, keeps_session: bool) -> (u32, bool) {
        if ended.is_lost {
            processes::kill_everything();
            return (0, false);
        }
        let Some(kernels) = self.kernels.as_mut().filter(|_| is_code && ended.is_gone) else {
            return (0, true);
        };
        // It may have left some that are not its children anymore.
        if !kernels.kill_current() {
            return (0, false);
        }
        let undone = kernels.undo();
        self.listen_to_resumed();
        if let Some(cells) = undone {
            return (cells, true);
        }
        let lives_on = self.outlives_kernel(keeps_session);
        if lives_on {
            self.end_kernel();
        }
        (0, lives_on)
    }

    /// Has what a process that is the session again prints come with the next answer.
    pub(super) fn listen_to_resumed(&mut self) {
        if let Some(kernels) = &mut self.kernels {
            self.background.add(std::mem::take(&mut kernels.resumed_pipes));
        }
    }

    /// Puts the files back that were there when a context was in the state in which it is now, after cells were undone.
    ///
    /// # Errors
    ///
    /// When the server's end of the stream is gone.
    pub(super) fn undo_files(&mut self, context: u32) -> io::Result<Option<UndoneFiles>> {
        let Some(kernels) = &self.kernels else { return Ok(None) };
        let depth = kernels.current.depth;
        if self.agents.relay(self.to_server)? {
            self.versions.note_shared();
        }
        let Self { versions, listing, .. } = self;
        // They are reported to the client only if it does not know them.
        Ok(versions.undo(context, depth, |path, file| listing.sent(path, file)))
    }

    /// How much memory can be used before it is short, in bytes.
    pub(super) fn room(&self) -> Option<u64> {
        let (limit, used) = cgroup::memory_limit().zip(cgroup::memory())?;
        Some((limit / 100 * SHORT_OF_MEMORY).saturating_sub(used))
    }

    /// Gives up copies of files and old checkpoints if memory is short, but never that of the next cell. While a cell runs, the one before it stays, too.
    pub(super) fn save_memory(&mut self, is_running: bool) {
        let Some(kernels) = &mut self.kernels else { return };
        while cgroup::memory_limit()
            .zip(cgroup::memory())
            .is_some_and(|(limit, used)| used / 100 > limit / 100 * SHORT_OF_MEMORY / 100)
        {
            if self.versions.give_up() {
                continue;
            }
            let may_give_up = !is_running || kernels.has_old_checkpoints();
            if !(may_give_up && kernels.give_up_oldest() || self.contexts.give_up_oldest()) {
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
