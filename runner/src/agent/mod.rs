//! The agent of a session: it starts processes and accesses files for clients, while cells run or not.
//!
//! It is a process of its own, with the rights of the sandbox's programs, so a mistake in it gives them nothing. It has one thread,
//! which never waits for one thing alone: everything that takes longer goes on in steps. What it says and keeps is bounded by the
//! credit that the server gives to each stream, so a slow reader stops only the process that it reads.

mod channel;
mod describe;
mod files;
mod listing;
mod opening;
mod processes;
mod removal;
mod start;
mod streams;
mod system;
mod users;
mod watching;
mod writing;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use isolator_runner::wire::agent::{Answer, Failure, MessageKind, Request, StreamEnd};
use rustix::event::{PollFd, PollFlags};
use rustix::fs::{Access, access};
use rustix::process::{
    DumpableBehavior, WaitId, WaitIdOptions, set_child_subreaper, set_dumpable_behavior, waitid,
};

use self::channel::Channel;
use self::processes::Processes;
use self::streams::Stream;
use self::users::Users;
use crate::poll;
use crate::process::OomScore;

/// The home of the programs' user, if the sandbox has one that can be written. Otherwise the workspace is the home.
const HOME: &str = "/home/user";

/// How often children are reaped that the agent does not know.
const REAP_EVERY: Duration = Duration::from_secs(1);

/// Longest wait when nothing is to be done.
const IDLE: Duration = Duration::from_secs(3600);

/// Serves the runner over standard input, until it closes that.
///
/// # Errors
///
/// When the system refuses what the agent needs, or the runner breaks the protocol.
pub(crate) fn serve(workdir: OsString) -> io::Result<()> {
    let oom_score = OomScore::open();
    // From here on no process of the same user can read this one's memory or descriptors.
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    // Orphans of its processes stay below the agent. So the runner knows that they belong to no cell.
    set_child_subreaper(Some(rustix::process::getpid()))?;
    let socket = io::stdin().as_fd().try_clone_to_owned()?;
    rustix::stdio::dup2_stdin(std::fs::File::open("/dev/null")?)?;
    let home = Path::new(HOME);
    let is_home = home.is_dir() && access(home, Access::WRITE_OK).is_ok();
    let home = if is_home { home.to_owned() } else { PathBuf::from(workdir) };
    Agent::new(socket, home, oom_score)?.run()
}

/// The agent.
struct Agent {
    channel: Channel,
    home: PathBuf,
    oom_score: OomScore,
    users: Users,
    processes: Processes,
    streams: BTreeMap<u32, Stream>,
}

/// A descriptor that is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    /// The channel to the runner.
    Channel,
    /// A pipe or the terminal of a process, or its end.
    Process(u32),
    /// What is left of processes that have ended.
    Rest,
    /// Changes of files.
    Watch(u32),
}

impl Agent {
    fn new(socket: OwnedFd, home: PathBuf, oom_score: OomScore) -> io::Result<Self> {
        Ok(Self {
            channel: Channel::new(socket)?,
            home,
            oom_score,
            users: Users::default(),
            processes: Processes::default(),
            streams: BTreeMap::new(),
        })
    }

    fn run(mut self) -> io::Result<()> {
        let mut may_have_children = false;
        loop {
            let timeout = self.timeout(may_have_children);
            let ready = self.wait(timeout)?;
            self.channel.write()?;
            if ready.contains(&Source::Channel) && !self.channel.receive()? {
                return Ok(());
            }
            while let Some((kind, call, body)) = self.channel.next()? {
                self.take(kind, call, &body)?;
            }
            self.channel.report_consumed();
            for source in &ready {
                match source {
                    Source::Process(pid) => {
                        self.processes.go_on(*pid, &mut self.streams, &mut self.channel);
                    }
                    Source::Watch(call) => self.go_on(*call),
                    Source::Channel | Source::Rest => {}
                }
            }
            may_have_children = self.reap();
            self.processes.settle(&mut self.streams, &mut self.channel);
            let can_go_on = |(call, stream): (&u32, &Stream)| stream.can_go_on().then_some(*call);
            let calls: Vec<_> = self.streams.iter().filter_map(can_go_on).collect();
            for call in calls {
                if self.channel.has_room() {
                    self.go_on(call);
                }
            }
            self.channel.write()?;
        }
    }

    /// How long nothing has to be done, if nothing happens.
    fn timeout(&self, may_have_children: bool) -> Duration {
        if self.channel.has_room() && self.streams.values().any(Stream::can_go_on) {
            return Duration::ZERO;
        }
        let idle = if may_have_children { REAP_EVERY } else { IDLE };
        let due = self.processes.due();
        due.map_or(idle, |due| due.saturating_duration_since(Instant::now()).min(idle))
    }

    /// Waits for descriptors. Returns those that are ready.
    fn wait(&self, timeout: Duration) -> io::Result<Vec<Source>> {
        let (mut sources, mut fds) = (Vec::new(), Vec::new());
        let mut add = |source: Source, fd, events| {
            sources.push(source);
            fds.push(PollFd::from_borrowed_fd(fd, events));
        };
        let mut events = PollFlags::empty();
        if self.channel.takes() {
            events |= PollFlags::IN;
        }
        if self.channel.is_full() {
            events |= PollFlags::OUT;
        }
        add(Source::Channel, self.channel.fd(), events);
        if self.channel.has_room() {
            self.processes.fds(&self.streams, &mut |pid, fd: BorrowedFd<'_>, events| {
                let source = if pid == 0 { Source::Rest } else { Source::Process(pid) };
                add(source, fd, events);
            });
            for (call, stream) in &self.streams {
                if let Some(fd) = stream.fd() {
                    add(Source::Watch(*call), fd, PollFlags::IN);
                }
            }
        }
        poll::wait(&mut fds, timeout)?;
        let is_ready = |fd: &PollFd<'_>| !fd.revents().is_empty();
        let ready = sources.into_iter().zip(&fds).filter(|(_, fd)| is_ready(fd));
        let mut ready: Vec<_> = ready.map(|(source, _)| source).collect();
        ready.dedup();
        Ok(ready)
    }

    /// Reaps children that have ended. Returns whether there are others.
    fn reap(&mut self) -> bool {
        while let Some(child) = crate::usage::reap() {
            self.processes.ended(child.pid, child.end);
        }
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        waitid(WaitId::All, options).is_ok()
    }

    fn take(&mut self, kind: MessageKind, call: u32, body: &[u8]) -> io::Result<()> {
        match kind {
            MessageKind::Request => {
                let request = serde_json::from_slice(body).map_err(io::Error::other)?;
                self.request(call, request);
            }
            MessageKind::Input => {
                let (pid, bytes) = body.split_first_chunk().ok_or(io::ErrorKind::InvalidData)?;
                let pid = u32::from_be_bytes(*pid);
                self.processes.input(pid, call, bytes.to_vec(), &mut self.channel);
            }
            MessageKind::Credit => {
                let credit = body.try_into().map_err(|_| io::ErrorKind::InvalidData)?;
                if let Some(stream) = self.streams.get_mut(&call) {
                    stream.credit = stream.credit.saturating_add(u32::from_be_bytes(credit));
                }
            }
            MessageKind::Data => self.data(call, body),
            MessageKind::Finish => self.finish(call),
            MessageKind::Cancel => {
                self.streams.remove(&call);
                self.processes.cancel(call);
            }
            _ => return Err(io::ErrorKind::InvalidData.into()),
        }
        Ok(())
    }

    fn request(&mut self, call: u32, request: Request) {
        let answer = match request {
            Request::Start(start, credit) => {
                let started = self.processes.start(start, call, &self.home, &self.oom_score);
                started.map(|pid| (Answer::Process(pid), Some(Stream::process(credit))))
            }
            Request::Attach(pid, credit) => match self.processes.attach(pid, call) {
                Ok(None) => Ok((Answer::Process(pid), Some(Stream::process(credit)))),
                Ok(Some(end)) => {
                    self.channel.answer(call, &Ok(Answer::Process(pid)));
                    return self.channel.end(call, &StreamEnd::Ended(end));
                }
                Err(failure) => Err(failure),
            },
            Request::Processes(credit) => {
                Ok((Answer::Done, Some(Stream::processes(self.processes.list(), credit))))
            }
            Request::CloseInput(pid) => self.processes.close_input(pid).map(done),
            Request::Signal(pid, signal) => self.processes.signal(pid, signal).map(done),
            Request::Resize(pid, size) => self.processes.resize(pid, size).map(done),
            Request::Remove(path) => return self.remove(call, &path),
            request => self.files(call, request),
        };
        let answer = answer.map(|(answer, stream)| {
            if let Some(stream) = stream {
                self.streams.insert(call, stream);
            }
            answer
        });
        self.channel.answer(call, &answer);
    }
}

fn done((): ()) -> (Answer, Option<Stream>) {
    (Answer::Done, None)
}

/// The failure of an error of the system.
fn failure(error: &io::Error) -> Failure {
    Failure::System(errno(error))
}

/// The number of an error. Errors of the standard library are about texts with zeros.
fn errno(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EINVAL)
}
