//! The processes of the agent: their output goes to the calls that are attached, and nowhere if there are none.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use isolator_runner::wire::End;
use isolator_runner::wire::agent::{
    Answer, Failure, MAX_PROCESSES, MESSAGE_OVERHEAD, MessageKind, PIECE, ProcessInfo,
    StartProcess, StreamEnd, TerminalSize,
};
use rustix::event::PollFlags;
use rustix::process::Pid;

use super::channel::Channel;
use super::start::{self, Streams};
use super::streams::Stream;
use super::system;
use crate::changes::text;
use crate::process::{OomScore, would_block};

/// How long the end of a process is kept, and how many of them are.
const KEPT_FOR: Duration = Duration::from_secs(30);
const MAX_KEPT: usize = 256;

/// How long the rest of a terminal's output may take, if a process holds the terminal that lives on.
const TERMINAL_REST: Duration = Duration::from_millis(100);

/// Most bytes of that rest.
const MAX_TERMINAL_REST: u64 = 256 * 1024;

/// How long a terminal is left alone that no process has open.
const REOPENED_AFTER: Duration = Duration::from_millis(100);

/// Maximum number of pipes of processes that have ended. Older ones are closed, so a process that prints there gets an error.
const MAX_REST: usize = 64;

/// All processes of the agent.
#[derive(Default)]
pub(super) struct Processes {
    running: BTreeMap<u32, Process>,
    /// Those that have ended, the oldest first.
    kept: VecDeque<(u32, End, Instant)>,
    /// Pipes of processes that have ended, which others still hold. What comes there is lost.
    rest: VecDeque<File>,
    /// The number of processes, as the server knows it.
    reported: u32,
}

struct Process {
    pid: Pid,
    pidfd: OwnedFd,
    info: ProcessInfo,
    streams: Streams,
    /// Input that it has not read: the call, and what is left of it.
    input: VecDeque<(u32, VecDeque<u8>)>,
    /// Whether its standard input is closed after that.
    closes_input: bool,
    /// The calls that are attached.
    attached: Vec<u32>,
    /// Until when its terminal is not read, because no process has it open.
    closed_until: Option<Instant>,
    ended: Option<Ended>,
}

/// The end of a process, whose output was not taken yet.
struct Ended {
    end: End,
    /// Bytes that are left in its pipes, or may still come from its terminal. Others may print more, which comes too late.
    left: [u64; 2],
    /// Until when something may come from its terminal although nothing is there.
    until: Instant,
}

impl Processes {
    /// Starts a process, to which a call is attached.
    pub(super) fn start(
        &mut self,
        start: StartProcess,
        call: u32,
        home: &Path,
        oom_score: &OomScore,
    ) -> Result<u32, Failure> {
        if self.running.len() >= MAX_PROCESSES {
            return Err(Failure::TooManyProcesses);
        }
        let started = start::start(&start, home, oom_score)?;
        let pid = started.pid.as_raw_pid().unsigned_abs();
        let StartProcess { argv, env, tag, terminal, .. } = start;
        let (terminal, cwd) = (terminal.is_some(), text(&started.cwd));
        let info = ProcessInfo { pid, argv, env, cwd, tag, terminal };
        self.kept.retain(|(kept, ..)| *kept != pid);
        self.running.insert(
            pid,
            Process {
                pid: started.pid,
                pidfd: started.pidfd,
                info,
                streams: started.streams,
                input: VecDeque::new(),
                closes_input: false,
                attached: vec![call],
                closed_until: None,
                ended: None,
            },
        );
        Ok(pid)
    }

    /// Attaches a call to a process. Returns the end of one that has ended.
    pub(super) fn attach(&mut self, pid: u32, call: u32) -> Result<Option<End>, Failure> {
        self.forget_old();
        if let Some(process) = self.running.get_mut(&pid) {
            process.attached.push(call);
            return Ok(None);
        }
        let kept = self.kept.iter().find(|(kept, ..)| *kept == pid);
        kept.map(|(_, end, _)| Some(*end)).ok_or(Failure::NoProcess)
    }

    /// Those that run.
    pub(super) fn list(&self) -> VecDeque<ProcessInfo> {
        let running = self.running.values().filter(|process| process.ended.is_none());
        running.map(|process| process.info.clone()).collect()
    }

    /// Takes input for a process. The call is answered when the process has room for it.
    pub(super) fn input(&mut self, pid: u32, call: u32, bytes: Vec<u8>, channel: &mut Channel) {
        let process = self.running.get_mut(&pid).filter(|process| process.ended.is_none());
        let Some(process) = process else {
            return channel.answer(call, &Err(Failure::NoProcess));
        };
        if process.stdin().is_none() || process.closes_input {
            return channel.answer(call, &Err(Failure::NoInput));
        }
        process.input.push_back((call, bytes.into()));
        process.feed(channel);
    }

    /// Closes the standard input of a process, after the input that it has not read.
    pub(super) fn close_input(&mut self, pid: u32) -> Result<(), Failure> {
        let process = self.get(pid)?;
        match &mut process.streams {
            Streams::Pipes(stdin @ Some(_), _) => {
                process.closes_input = true;
                if process.input.is_empty() {
                    *stdin = None;
                }
                Ok(())
            }
            Streams::Pipes(None, _) | Streams::Terminal(_) => Err(Failure::NoInput),
        }
    }

    /// Sends a signal to the group of a process.
    pub(super) fn signal(&mut self, pid: u32, signal: i32) -> Result<(), Failure> {
        let group = self.get(pid)?.pid;
        match system::signal_group(group, signal) {
            Some(sent) => sent.map_err(|error| super::failure(&error)),
            None => Err(Failure::NoSignal(signal)),
        }
    }

    /// Changes the size of a terminal.
    pub(super) fn resize(&mut self, pid: u32, size: TerminalSize) -> Result<(), Failure> {
        match &self.get(pid)?.streams {
            Streams::Terminal(terminal) => {
                system::resize(terminal, size).map_err(|error| super::failure(&error))
            }
            Streams::Pipes(..) => Err(Failure::NoTerminal),
        }
    }

    fn get(&mut self, pid: u32) -> Result<&mut Process, Failure> {
        let process = self.running.get_mut(&pid);
        process.filter(|process| process.ended.is_none()).ok_or(Failure::NoProcess)
    }

    /// Forgets a call, whatever it is of a process.
    pub(super) fn cancel(&mut self, call: u32) {
        for process in self.running.values_mut() {
            process.attached.retain(|attached| *attached != call);
            process.input.retain(|(input, _)| *input != call);
        }
    }

    /// Adds the descriptors to poll: those of a process with its number, and others with zero.
    pub(super) fn fds<'a>(
        &'a self,
        streams: &BTreeMap<u32, Stream>,
        add: &mut impl FnMut(u32, BorrowedFd<'a>, PollFlags),
    ) {
        for (pid, process) in &self.running {
            if process.ended.is_none() {
                add(*pid, process.pidfd.as_fd(), PollFlags::IN);
            }
            let reads = process.room(streams) > 0;
            match &process.streams {
                Streams::Pipes(stdin, outputs) => {
                    if let Some(stdin) = stdin.as_ref().filter(|_| !process.input.is_empty()) {
                        add(*pid, stdin.as_fd(), PollFlags::OUT);
                    }
                    for output in outputs.iter().flatten().filter(|_| reads) {
                        add(*pid, output.as_fd(), PollFlags::IN);
                    }
                }
                Streams::Terminal(terminal) => {
                    let mut events = PollFlags::empty();
                    events.set(PollFlags::IN, reads);
                    events.set(PollFlags::OUT, !process.input.is_empty());
                    let is_closed = process.closed_until.is_some_and(|it| it > Instant::now());
                    if !events.is_empty() && !is_closed {
                        add(*pid, terminal.as_fd(), events);
                    }
                }
            }
        }
        for pipe in &self.rest {
            add(0, pipe.as_fd(), PollFlags::IN);
        }
    }

    /// Reads and writes a piece of each stream of a process.
    pub(super) fn go_on(
        &mut self,
        pid: u32,
        streams: &mut BTreeMap<u32, Stream>,
        channel: &mut Channel,
    ) {
        if let Some(process) = self.running.get_mut(&pid) {
            process.feed(channel);
            process.read(streams, channel);
        }
    }

    /// Notes that a process has ended.
    pub(super) fn ended(&mut self, pid: Pid, end: End) {
        let process = self.running.get_mut(&pid.as_raw_pid().unsigned_abs());
        if let Some(process) = process.filter(|process| process.ended.is_none()) {
            let left = match &process.streams {
                Streams::Pipes(_, outputs) => outputs.each_ref().map(|output| {
                    let left = output.as_ref().map(rustix::io::ioctl_fionread);
                    left.and_then(Result::ok).unwrap_or(0)
                }),
                Streams::Terminal(_) => [MAX_TERMINAL_REST, 0],
            };
            process.ended = Some(Ended { end, left, until: Instant::now() + TERMINAL_REST });
        }
    }

    /// Ends the calls of processes that have ended, once their output is taken. Tells the server how many run.
    pub(super) fn settle(&mut self, streams: &mut BTreeMap<u32, Stream>, channel: &mut Channel) {
        let mut over = Vec::new();
        for (pid, process) in &mut self.running {
            if process.ended.is_some() {
                process.read(streams, channel);
                if process.is_over() {
                    over.push(*pid);
                }
            }
        }
        for pid in over {
            if let Some(process) = self.running.remove(&pid) {
                self.end(process, streams, channel);
            }
        }
        let mut pipes = std::mem::take(&mut self.rest);
        pipes.retain_mut(|pipe| !matches!(read_some(pipe, PIECE), Read::Closed));
        self.rest = pipes;
        let running = self.running.values().filter(|process| process.ended.is_none()).count();
        let running = u32::try_from(running).unwrap_or(u32::MAX);
        if running != self.reported {
            self.reported = running;
            channel.say(MessageKind::Running, 0, &running.to_be_bytes());
        }
    }

    fn end(
        &mut self,
        process: Process,
        streams: &mut BTreeMap<u32, Stream>,
        channel: &mut Channel,
    ) {
        let Process { info, input, attached, ended, streams: own, .. } = process;
        for (call, _) in input {
            channel.answer(call, &Err(Failure::NoInput));
        }
        let Some(Ended { end, .. }) = ended else { return };
        for call in attached {
            streams.remove(&call);
            channel.end(call, &StreamEnd::Ended(end));
        }
        self.forget_old();
        self.kept.push_back((info.pid, end, Instant::now()));
        if let Streams::Pipes(_, outputs) = own {
            self.rest.extend(outputs.into_iter().flatten());
            let excess = self.rest.len().saturating_sub(MAX_REST);
            self.rest.drain(..excess);
        }
    }

    fn forget_old(&mut self) {
        let excess = self.kept.len().saturating_sub(MAX_KEPT - 1);
        self.kept.drain(..excess);
        self.kept.retain(|(_, _, since)| since.elapsed() < KEPT_FOR);
    }

    /// When there is something to do without an event.
    pub(super) fn due(&self) -> Option<Instant> {
        let now = Instant::now();
        let due = self.running.values().flat_map(|process| {
            let until = process.ended.as_ref().map(|ended| ended.until);
            [until, process.closed_until]
        });
        due.flatten().filter(|due| *due > now).min()
    }
}

impl Process {
    fn stdin(&mut self) -> Option<&mut File> {
        match &mut self.streams {
            Streams::Pipes(stdin, _) => stdin.as_mut(),
            Streams::Terminal(terminal) => Some(terminal),
        }
    }

    /// Bytes that the slowest of the attached calls can take.
    fn room(&self, streams: &BTreeMap<u32, Stream>) -> usize {
        let credit = |call: &u32| streams.get(call).map_or(u32::MAX, |stream| stream.credit);
        let least = self.attached.iter().map(credit).min().unwrap_or(u32::MAX);
        (least.saturating_sub(MESSAGE_OVERHEAD) as usize).min(PIECE)
    }

    /// Writes as much of the input as the process takes.
    fn feed(&mut self, channel: &mut Channel) {
        while let Some((call, rest)) = self.input.front_mut() {
            let (call, stdin) = (
                *call,
                match &mut self.streams {
                    Streams::Pipes(stdin, _) => stdin.as_mut(),
                    Streams::Terminal(terminal) => Some(terminal),
                },
            );
            let written = match stdin {
                Some(stdin) => stdin.write(rest.as_slices().0),
                None => Err(io::ErrorKind::BrokenPipe.into()),
            };
            match written {
                Ok(count) => {
                    rest.drain(..count);
                    if rest.is_empty() {
                        self.input.pop_front();
                        channel.answer(call, &Ok(Answer::Done));
                    }
                }
                Err(error) if would_block(&error) => return,
                Err(_) => {
                    for (call, _) in self.input.drain(..) {
                        channel.answer(call, &Err(Failure::NoInput));
                    }
                    self.closes_input = true;
                }
            }
        }
        if self.closes_input
            && let Streams::Pipes(stdin, _) = &mut self.streams
        {
            *stdin = None;
        }
    }

    /// Reads a piece of each of its outputs, if there is room for it.
    fn read(&mut self, streams: &mut BTreeMap<u32, Stream>, channel: &mut Channel) {
        for index in 0..2 {
            let room = self.room(streams);
            if room == 0 || !channel.has_room() {
                return;
            }
            let kinds = [MessageKind::Stdout, MessageKind::Stderr];
            let (output, kind, left) = match (&mut self.streams, &mut self.ended) {
                (Streams::Pipes(_, outputs), ended) => {
                    let left = ended.as_mut().map(|ended| &mut ended.left[index]);
                    (&mut outputs[index], kinds[index], left)
                }
                (Streams::Terminal(terminal), ended) => {
                    let now = Instant::now();
                    let read = read_some(terminal, room);
                    let (count, is_closed) = match &read {
                        Read::Some(bytes) => (bytes.len() as u64, false),
                        Read::Nothing => (0, false),
                        Read::Closed => (0, true),
                    };
                    self.closed_until = is_closed.then(|| now + REOPENED_AFTER);
                    if let Some(Ended { left: [left, _], until, .. }) = ended {
                        let is_last = is_closed || (count == 0 && now >= *until);
                        *left = if is_last { 0 } else { left.saturating_sub(count) };
                    }
                    if let Read::Some(bytes) = read {
                        pass_on(&self.attached, MessageKind::Terminal, &bytes, streams, channel);
                    }
                    return;
                }
            };
            let most = left
                .as_ref()
                .map_or(room, |left| room.min(usize::try_from(**left).unwrap_or(room)));
            let (Some(pipe), 1..) = (output.as_mut(), most) else { continue };
            match read_some(pipe, most) {
                Read::Some(bytes) => {
                    if let Some(left) = left {
                        *left = left.saturating_sub(bytes.len() as u64);
                    }
                    pass_on(&self.attached, kind, &bytes, streams, channel);
                }
                // A process can have taken out of the pipe what was in it.
                Read::Nothing => left.into_iter().for_each(|left| *left = 0),
                Read::Closed => *output = None,
            }
        }
    }

    /// Whether it has ended and its output was taken.
    fn is_over(&self) -> bool {
        let Some(Ended { left, .. }) = &self.ended else { return false };
        match &self.streams {
            Streams::Pipes(_, outputs) => {
                outputs.iter().zip(left).all(|(output, left)| output.is_none() || *left == 0)
            }
            Streams::Terminal(_) => left[0] == 0,
        }
    }
}

fn pass_on(
    attached: &[u32],
    kind: MessageKind,
    bytes: &[u8],
    streams: &mut BTreeMap<u32, Stream>,
    channel: &mut Channel,
) {
    for call in attached {
        if let Some(stream) = streams.get_mut(call) {
            stream.say(kind, *call, bytes, channel);
        }
    }
}

enum Read {
    Some(Vec<u8>),
    Nothing,
    Closed,
}

fn read_some(pipe: &mut File, most: usize) -> Read {
    let mut buffer = [0; PIECE];
    match pipe.read(&mut buffer[..most.min(PIECE)]) {
        Ok(0) => Read::Closed,
        Ok(count) => Read::Some(buffer[..count].to_vec()),
        Err(error) if would_block(&error) => Read::Nothing,
        Err(_) => Read::Closed,
    }
}
