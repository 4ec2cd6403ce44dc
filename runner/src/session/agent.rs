//! The agent of a session, as the runner sees it: a process that is started when the first message for it comes, and whose bytes are
//! passed on in both directions.
//!
//! The agent can be killed or stopped by any program of the sandbox. The runner never waits for it.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use isolator_runner::paths;
use isolator_runner::wire::agent::{AgentEnd, AgentEnded};
use isolator_runner::wire::{Kind, numbered};
use rustix::event::{PollFd, PollFlags};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::frame_writer::FrameWriter;
use crate::poll::{self, readable};
use crate::process::would_block;
use crate::processes;

/// Bytes that are kept for an agent that does not read. The server never has more than half of it on the way.
const MAX_UNSENT: usize = 1 << 20;

/// Bytes of an agent that are passed on at once. Cells are looked after in between.
const CHUNK: usize = 32 * 1024;

/// Bytes before those of the messages: the number of the agent.
const NUMBER: usize = 4;

/// The agents of a session, of which at most one is there.
#[derive(Default)]
pub(super) struct Agents {
    running: Option<Running>,
    /// Number of the newest one.
    number: u32,
}

/// An agent that runs.
struct Running {
    pidfd: OwnedFd,
    socket: UnixStream,
    unsent: Vec<u8>,
}

impl Agents {
    /// The descriptors to poll.
    pub(super) fn fds(&self) -> impl Iterator<Item = PollFd<'_>> {
        self.running.iter().flat_map(|running| {
            let mut socket = readable(running.socket.as_fd());
            if !running.unsent.is_empty() {
                socket = PollFd::new(&running.socket, PollFlags::IN | PollFlags::OUT);
            }
            [socket, readable(running.pidfd.as_fd())]
        })
    }

    /// Takes bytes for the agent, which is started if it is the next one.
    ///
    /// # Errors
    ///
    /// When the server's end of the stream is gone, or it has broken the protocol.
    pub(super) fn take(
        &mut self,
        payload: &[u8],
        workdir: &Path,
        to_server: &mut FrameWriter<File>,
    ) -> io::Result<()> {
        let (number, bytes) = numbered(Kind::Agent, payload)?;
        if number > self.number {
            self.end();
            self.number = number;
            match start(workdir) {
                Ok(running) => self.running = Some(running),
                Err(error) => {
                    let cause = AgentEnd::NotStarted(error.raw_os_error().unwrap_or_default());
                    return self.report(cause, to_server);
                }
            }
        }
        // Bytes for one that has ended are lost. The server hears of its end.
        let Some(running) = self.running.as_mut().filter(|_| number == self.number) else {
            return Ok(());
        };
        running.unsent.extend_from_slice(bytes);
        running.send();
        if running.unsent.len() > MAX_UNSENT {
            self.end();
            return self.report(AgentEnd::Deaf, to_server);
        }
        Ok(())
    }

    /// Kills the agent with this number.
    ///
    /// # Errors
    ///
    /// When the server has broken the protocol.
    pub(super) fn kill(&mut self, payload: &[u8]) -> io::Result<()> {
        let (number, _) = numbered(Kind::EndAgent, payload)?;
        if number == self.number {
            self.end();
        }
        Ok(())
    }

    /// Passes on bytes from and to the agent. Never waits for it. Returns whether it has said something: it may have written files.
    ///
    /// # Errors
    ///
    /// When the server's end of the stream is gone.
    pub(super) fn relay(&mut self, to_server: &mut FrameWriter<File>) -> io::Result<bool> {
        let Some(running) = &mut self.running else { return Ok(false) };
        running.send();
        let has_ended =
            poll::wait(&mut [readable(running.pidfd.as_fd())], Duration::ZERO).unwrap_or(true);
        let mut buffer = [0; NUMBER + CHUNK];
        buffer[..NUMBER].copy_from_slice(&self.number.to_be_bytes());
        match running.socket.read(&mut buffer[NUMBER..]) {
            Ok(0) => {}
            Ok(count) => {
                to_server.send_bytes(Kind::AgentSaid, &buffer[..NUMBER + count])?;
                return Ok(true);
            }
            Err(error) if would_block(&error) && !has_ended => return Ok(false),
            Err(_) => {}
        }
        self.end();
        self.report(AgentEnd::Ended, to_server)?;
        Ok(true)
    }

    /// Kills the agent, if it is there. It is reaped with the others.
    fn end(&mut self) {
        if let Some(running) = self.running.take() {
            // An error means that it has ended by itself.
            let _ = pidfd_send_signal(&running.pidfd, Signal::KILL);
            processes::forget_family();
        }
    }

    fn report(&self, cause: AgentEnd, to_server: &mut FrameWriter<File>) -> io::Result<()> {
        to_server.send(Kind::AgentEnded, &AgentEnded { agent: self.number, cause })
    }
}

impl Running {
    /// Writes as much as the socket takes.
    fn send(&mut self) {
        while !self.unsent.is_empty() {
            match self.socket.write(&self.unsent) {
                Ok(count) => drop(self.unsent.drain(..count)),
                // An error means that it is gone, which is noticed when it is read.
                Err(_) => return,
            }
        }
    }
}

/// Starts an agent. The processes that it starts are not killed with the cells.
fn start(workdir: &Path) -> io::Result<Running> {
    let (ours, theirs) = UnixStream::pair()?;
    ours.set_nonblocking(true)?;
    let child = Command::new(paths::RUNNER)
        .arg("agent")
        .arg(workdir)
        .current_dir(workdir)
        .stdin(OwnedFd::from(theirs))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()?;
    let pid = Pid::from_child(&child);
    let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
    processes::keep_family(pid);
    Ok(Running { pidfd, socket: ours, unsent: Vec::new() })
}
