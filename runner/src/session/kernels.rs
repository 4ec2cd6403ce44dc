//! The processes of a session's kernel: the one that is the session, and its checkpoints.
//!
//! Before a cell, a kernel of Python forks, as soon as the cell before it has been answered. The child runs the cell and becomes the
//! session. The parent waits: it is the session as it was before the cell. If the cell has to be undone the child is killed, and its
//! parent goes on. The processes share their memory until one
//! of them writes, so a checkpoint costs what the cells after it have changed.

mod code;
mod completing;
mod early;
mod ending;
mod loading;
mod process;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use isolator_runner::wire::{Interpreter, NoCheckpoint};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open};

pub(super) use self::code::Code;
pub(super) use self::early::Early;
pub(super) use self::process::KernelProcess;
use self::process::{handed_over, pipe};
use super::channel::{Channel, Said};
use crate::output::last_line;
use crate::poll::{self, readable};
use crate::preload::StartedKernel;
use crate::{processes, usage};

/// How long a kernel may take to be ready for cells.
const READY_TIMEOUT: Duration = Duration::from_secs(15);

/// How long it may take to get ready for a cell: it reads the code and forks, which copies the tables of its memory.
const BEGIN_TIMEOUT: Duration = Duration::from_secs(10);

/// How long it may be silent before the runner ends what may block it, and how often.
const NUDGE_EVERY: Duration = Duration::from_secs(1);

/// CPU time after which a kernel that has not begun must be busy with something else. A fork of several GB takes a tenth of it.
const BUSY: Duration = Duration::from_secs(2);

/// How long a checkpoint may take to read the message that makes it the session again.
const RESUME_TIMEOUT: Duration = Duration::from_secs(2);

/// All processes of a kernel.
pub(super) struct Kernels {
    interpreter: Interpreter,
    /// The one that is the session.
    pub(super) current: KernelProcess,
    /// As it was before earlier cells, the oldest first.
    checkpoints: Vec<KernelProcess>,
    most: usize,
    /// Whether the newest checkpoint is that of the next cell.
    is_prepared: bool,
    /// Whether no checkpoint of the next cell could be made.
    is_refused: bool,
    /// Whether the process that is the session did not do what it was asked. It is not asked again.
    is_deaf: bool,
    /// Whether the kernel still loads what cells need. Its first checkpoint is made when it says that it has, because other calls must not
    /// wait for that, or else by the first cell.
    is_loading: bool,
    /// Things that were shown since the last cell.
    pub(super) early: Early,
    /// The pipes of a kernel that can't be given new ones for each cell.
    pub(super) own_pipes: [Option<File>; 2],
    /// The pipes of a process that is the session again since the last undo.
    pub(super) resumed_pipes: [Option<File>; 2],
    /// The processes of the kernels of other contexts, which undoing a cell must not end.
    neighbours: HashSet<Pid>,
}

/// What comes after a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Follows {
    /// The cell that it was made for. No task of earlier cells runs before.
    Cell,
    /// A pause, in which tasks of earlier cells go on.
    Pause,
}

/// The answer that a kernel was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expected {
    /// To get ready for a cell.
    Started,
    /// To make a checkpoint.
    Prepared,
}

/// How a kernel has done what it was asked.
enum Answered {
    /// In a child, with a checkpoint before it.
    InChild(KernelProcess),
    /// Without a child: there is a checkpoint already, or there can't be one.
    Alone(Result<(), NoCheckpoint>),
}

/// A cell whose kernel is ready: its code runs after [`Kernels::go`].
pub(super) struct Begun {
    pub(super) pipes: [Option<File>; 2],
    /// Why there is no checkpoint before it, if there is none.
    pub(super) no_checkpoint: Option<NoCheckpoint>,
    /// The processes that were there before it.
    pub(super) found: HashSet<Pid>,
}

impl Kernels {
    /// Waits until a kernel that was started can take cells. Keeps up to `most` checkpoints. Also returns its version, and pipes on
    /// which nothing of a cell comes.
    ///
    /// # Errors
    ///
    /// When it does not get ready.
    pub(super) fn new(
        interpreter: Interpreter,
        started: StartedKernel,
        most: u32,
    ) -> io::Result<(Self, String, [Option<File>; 2])> {
        let StartedKernel { process, channel, .. } = started;
        let (mut stdout, mut stderr) = (process.stdout, process.stderr);
        let mut channel = Channel::new(channel.into())?;
        if interpreter == Interpreter::Node {
            channel = handed_over(&channel)?;
        }
        let mut current = KernelProcess {
            pid: process.pid,
            pidfd: process.pidfd,
            channel,
            depth: 0,
            found: None,
        };
        let until = Instant::now() + READY_TIMEOUT;
        let version = loop {
            match current.channel.next()? {
                Some(Said::Ready(version)) => break version,
                Some(_) => return Err(io::ErrorKind::InvalidData.into()),
                None if current.channel.is_closed || current.has_ended() => {
                    let message = match last_line(stderr.as_mut()) {
                        Some(last) => format!("it ended and said {last:?}"),
                        None => "it ended and printed no error".to_owned(),
                    };
                    return Err(io::Error::other(message));
                }
                None => wait(&[current.channel.fd(), current.pidfd()], until)?,
            }
        };
        let own_pipes = match interpreter {
            Interpreter::Python => [None, None],
            Interpreter::Node => [stdout.take(), stderr.take()],
        };
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        let kernels = Self {
            interpreter,
            current,
            checkpoints: Vec::new(),
            most,
            is_prepared: false,
            is_refused: false,
            is_deaf: false,
            is_loading: interpreter == Interpreter::Python,
            early: Early::default(),
            own_pipes,
            resumed_pipes: [None, None],
            neighbours: HashSet::new(),
        };
        Ok((kernels, version, [stdout, stderr]))
    }

    /// Whether all cells print on the same pipes.
    pub(super) fn prints_on_own_pipes(&self) -> bool {
        self.is_node()
    }

    pub(super) fn is_node(&self) -> bool {
        self.interpreter == Interpreter::Node
    }

    /// How many cells can be undone.
    pub(super) fn checkpoints(&self) -> u32 {
        let now = self.current.depth;
        let earlier = self.checkpoints.iter().rev().filter(|process| process.depth < now);
        earlier.take(self.most).last().map_or(0, |oldest| self.current.depth - oldest.depth)
    }

    /// The processes of the kernel, which belong to no cell.
    pub(super) fn pids(&self) -> HashSet<Pid> {
        self.checkpoints.iter().chain([&self.current]).map(|process| process.pid).collect()
    }

    /// Has the kernel get ready for a cell, which takes all the time and finds all that can go wrong before its code.
    ///
    /// # Errors
    ///
    /// When it does not.
    pub(super) fn begin(&mut self, code: &Code<'_>) -> io::Result<Begun> {
        if self.is_deaf {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.is_loading = false;
        self.forget_prepared_if_gone();
        let found = processes::all()?;
        let makes_checkpoint = self.most > 0 && !self.is_prepared;
        let head = code.head(self.interpreter, makes_checkpoint)?;
        let message: [&[u8]; 2] = [&head, code.source];
        if self.interpreter == Interpreter::Node {
            self.current.channel.send(b'C', &message, &[], BEGIN_TIMEOUT)?;
            let answered = self.wait_for_begin(None, Expected::Started)?;
            let pipes = std::mem::take(&mut self.own_pipes);
            return Ok(self.begun(answered, found, pipes));
        }
        let ((stdout, out), (stderr, err)) = (pipe()?, pipe()?);
        let (ours, theirs) = UnixStream::pair()?;
        let channel = Channel::new(ours.into())?;
        let passed = [out.as_fd(), err.as_fd(), theirs.as_fd()];
        self.current.channel.send(b'C', &message, &passed, BEGIN_TIMEOUT)?;
        drop((out, err, theirs));
        let answered = self.wait_for_begin(Some(channel), Expected::Started)?;
        Ok(self.begun(answered, found, [Some(stdout), Some(stderr)]))
    }

    /// Lets the code of the cell run for which the kernel is ready.
    pub(super) fn go(&self) {
        // It has read all else, so there is room. An error means that it has just ended, which is found where the cell is supervised.
        let _ = self.current.channel.send(b'G', &[], &[], Duration::ZERO);
    }

    /// Notes that the kernel is ready for a cell. `found` are the processes that were there before.
    fn begun(
        &mut self,
        answered: Answered,
        found: HashSet<Pid>,
        pipes: [Option<File>; 2],
    ) -> Begun {
        let was_prepared = std::mem::take(&mut self.is_prepared);
        self.is_refused = false;
        let no_checkpoint = match answered {
            Answered::InChild(child) => {
                self.checkpoints.push(std::mem::replace(&mut self.current, child));
                None
            }
            Answered::Alone(checkpoint) => checkpoint.err().filter(|_| !was_prepared),
        };
        self.current.depth += 1;
        self.current.found.get_or_insert_with(|| found.clone());
        Begun { pipes, no_checkpoint, found }
    }

    /// The checkpoint of the next cell can have been killed since it was made, for example when memory ran out. Then the cell needs
    /// another one.
    fn forget_prepared_if_gone(&mut self) {
        if self.is_prepared
            && let Some(gone) = self.checkpoints.pop_if(|process| process.has_ended())
        {
            self.is_prepared = false;
            // Processes that its cell has started end with the process that is the session now.
            self.current.found = self.current.found.take().or(gone.found);
        }
    }

    /// Waits until the kernel has done what it was asked. `channel` is that of a child, if it may make one.
    fn wait_for_begin(
        &mut self,
        mut channel: Option<Channel>,
        expects: Expected,
    ) -> io::Result<Answered> {
        let began = Instant::now();
        let until = began + BEGIN_TIMEOUT;
        let mut nudge_at = began + NUDGE_EVERY;
        let cpu_before = usage::process_cpu(self.current.pid);
        loop {
            if let Some(child) = &mut channel
                && let Some(said) = child.next()?
            {
                let (Said::Started(Ok(())) | Said::Prepared(Ok(())), Some(pid)) =
                    (said, child.sender)
                else {
                    return Err(io::ErrorKind::InvalidData.into());
                };
                // It may have ended already, but was not reaped, so its number is still its own.
                let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
                let depth = self.current.depth;
                let channel = channel.take().ok_or(io::ErrorKind::InvalidData)?;
                let child = KernelProcess { pid, pidfd, channel, depth, found: None };
                return Ok(Answered::InChild(child));
            }
            let said = self.current.channel.next()?;
            let has_said = said.is_some();
            match said {
                Some(Said::Started(checkpoint)) => return Ok(Answered::Alone(checkpoint)),
                Some(Said::Prepared(checkpoint)) if expects == Expected::Prepared => {
                    return Ok(Answered::Alone(checkpoint));
                }
                // It comes too late, or was not asked for.
                Some(Said::Loaded | Said::Prepared(_) | Said::Completed(_)) => {}
                Some(Said::Shown { forms, .. }) => self.early.add(forms),
                Some(Said::TooLong) => self.early.dropped = self.early.dropped.saturating_add(1),
                Some(Said::Ready(_) | Said::Ended { .. }) => {
                    return Err(io::ErrorKind::InvalidData.into());
                }
                None if self.current.channel.is_closed || self.current.has_ended() => {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                None => {}
            }
            // It may say something without end.
            if Instant::now() >= until {
                return Err(io::ErrorKind::TimedOut.into());
            }
            if has_said {
                continue;
            }
            let KernelProcess { channel: parent, pidfd, .. } = &self.current;
            let waited = match channel.as_ref().filter(|child| !child.is_closed) {
                Some(child) => wait(&[child.fd(), parent.fd(), pidfd.as_fd()], until.min(nudge_at)),
                None => wait(&[parent.fd(), pidfd.as_fd()], until.min(nudge_at)),
            };
            match waited {
                Err(error) if error.kind() == io::ErrorKind::TimedOut && nudge_at < until => {
                    nudge_at += NUDGE_EVERY;
                    let used = usage::process_cpu(self.current.pid).saturating_sub(cpu_before);
                    if used > BUSY {
                        return Err(error);
                    }
                    self.nudge();
                }
                waited => waited?,
            }
        }
    }

    /// Ends what may keep a kernel from what it was asked to do: an earlier cell can have stopped its process, or have left a loop
    /// in Node.js. A kernel of Python looks whether a task of an earlier cell keeps it from a message, and ends only that task.
    fn nudge(&self) {
        // One that goes on could begin its cell before the interruption comes, which would end that.
        self.current.signal(Signal::INT);
        self.current.signal(Signal::CONT);
    }

    /// Makes the checkpoint of the next cell, if that can be done, and gives up one that is too many. Both take longer than a short
    /// cell, so they are done when the last one has been answered. Of a kernel that could make none since then, nothing is asked: a task
    /// that is busy by now would be interrupted, and no cell has come for which it has to be.
    pub(super) fn prepare(&mut self, follows: Follows) {
        if self.most == 0
            || self.is_loading
            || self.is_prepared
            || self.is_refused
            || self.is_deaf
            || self.interpreter != Interpreter::Python
        {
            return;
        }
        match self.fork_ahead(follows) {
            Ok(Answered::InChild(child)) => {
                self.checkpoints.push(std::mem::replace(&mut self.current, child));
                self.is_prepared = true;
            }
            // The next cell tries again.
            Ok(Answered::Alone(_)) => self.is_refused = true,
            // The next cell reports it.
            Err(_) => self.is_deaf = true,
        }
        if self.checkpoints.len() > self.most + usize::from(self.is_prepared) {
            self.give_up_oldest();
        }
    }

    fn fork_ahead(&mut self, follows: Follows) -> io::Result<Answered> {
        let (ours, theirs) = UnixStream::pair()?;
        let channel = Channel::new(ours.into())?;
        let follows = [u8::from(follows == Follows::Cell)];
        self.current.channel.send(b'P', &[&follows], &[theirs.as_fd()], BEGIN_TIMEOUT)?;
        drop(theirs);
        self.wait_for_begin(Some(channel), Expected::Prepared)
    }

    /// If a cell has not begun in the process that was made for it: goes back to the checkpoint of that process. Returns how many
    /// cells that undoes, which is more than none if that checkpoint is gone, too. `None` if no process was made, or none is left.
    pub(super) fn undo_prepared(&mut self) -> Option<u32> {
        if !self.is_prepared || !self.kill_current() {
            return None;
        }
        self.undo_for(Follows::Cell)
    }

    /// Gives up the oldest checkpoint, but not that of the next cell: the cell would not know that it has none, and it takes no
    /// memory before the cell begins. Returns whether there was one.
    pub(super) fn give_up_oldest(&mut self) -> bool {
        let has_one = self.checkpoints.len() > usize::from(self.is_prepared);
        if has_one {
            // The end of its channel ends it.
            drop(self.checkpoints.remove(0));
        }
        has_one
    }

    /// Whether more than the newest checkpoint is there.
    pub(super) fn has_old_checkpoints(&self) -> bool {
        self.checkpoints.len() > 1 + usize::from(self.is_prepared)
    }

    /// Notes which processes of other contexts' kernels live on when a cell is undone.
    pub(super) fn set_neighbours(&mut self, pids: HashSet<Pid>) {
        self.neighbours = pids;
    }

    /// Notes processes that cells of other contexts have started. Undoing a cell does not end them.
    pub(super) fn note_others(&mut self, started: &HashSet<Pid>) {
        let processes = self.checkpoints.iter_mut().chain([&mut self.current]);
        processes
            .filter_map(|process| process.found.as_mut())
            .for_each(|found| found.extend(started));
    }

    /// The newest checkpoint that is there becomes the session, whose process was killed before. Returns how many cells that undoes;
    /// `None` if there is none.
    pub(super) fn undo(&mut self) -> Option<u32> {
        self.undo_for(Follows::Pause)
    }

    /// The same, for a cell that follows at once unless this undoes others.
    fn undo_for(&mut self, follows: Follows) -> Option<u32> {
        let now = self.current.depth;
        self.is_prepared = false;
        while let Some(process) = self.checkpoints.pop() {
            let follows = if process.depth == now { follows } else { Follows::Pause };
            self.current = process;
            if self.resume(follows) {
                return Some(now - self.current.depth);
            }
            // The cell that it has run is undone as well, with everything that it has started.
            if !self.kill_current() {
                return None;
            }
        }
        None
    }

    /// Makes a checkpoint the session again. Returns whether it answers: a cell may have killed it just now.
    fn resume(&mut self, follows: Follows) -> bool {
        let process = &self.current;
        // A cell may have stopped it.
        process.signal(Signal::CONT);
        let (Ok((stdout, out)), Ok((stderr, err))) = (pipe(), pipe()) else { return false };
        let passed = [out.as_fd(), err.as_fd()];
        if process.has_ended() || process.channel.send(b'R', &[], &passed, RESUME_TIMEOUT).is_err()
        {
            return false;
        }
        self.resumed_pipes = [Some(stdout), Some(stderr)];
        // The process that has shown them is gone.
        self.early = Early::default();
        (self.is_refused, self.is_deaf) = (false, false);
        self.prepare(follows);
        !self.is_deaf
    }

    /// Undoes that number of cells. Returns how many were undone: zero if there is no such checkpoint. `None` if the session is gone.
    pub(super) fn rewind(&mut self, cells: u32) -> Option<u32> {
        let depth = self.current.depth.checked_sub(cells);
        let found = self.checkpoints.iter().position(|process| Some(process.depth) == depth);
        let (Some(at), 1..) = (found, cells) else { return Some(0) };
        let later = self.checkpoints.get(at + 1).unwrap_or(&self.current);
        let mut keep: HashSet<_> =
            self.checkpoints[..=at].iter().map(|process| process.pid).collect();
        if let Some(found) = &later.found {
            let younger = self.checkpoints[at + 1..].iter().chain([&self.current]);
            let younger: HashSet<_> = younger.map(|process| process.pid).collect();
            keep.extend(found.difference(&younger));
            keep.extend(&self.neighbours);
            if !processes::kill_all_but(&keep) {
                return None;
            }
        }
        self.checkpoints.truncate(at + 1);
        self.undo()
    }
}

/// Waits until one of them is ready.
fn wait(fds: &[BorrowedFd<'_>], until: Instant) -> io::Result<()> {
    let mut fds: Vec<_> = fds.iter().map(|fd| readable(*fd)).collect();
    if poll::wait(&mut fds, until.saturating_duration_since(Instant::now()))? {
        Ok(())
    } else {
        Err(io::ErrorKind::TimedOut.into())
    }
}
