//! The messages to and from the agent: queued, counted, and checked.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use isolator_runner::wire::agent::{
    self, AgentEnded, Answer, Failure, MAX_BODY, MAX_PROCESSES, MESSAGE_HEADER, MessageDecoder,
    MessageKind, StreamEnd,
};
use isolator_runner::wire::{self, Kind, WireError};
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::time::Instant;

use super::error::{AgentLoss, Broken};
use crate::pool::session::EndReason;

/// Most bytes of messages in one frame, if it is not a single message that is longer.
const BATCH: usize = 64 * 1024;

/// Longest time that an agent may take to read what it was sent. While a cell begins the runner passes nothing on, and that may take
/// 35 seconds.
const READ_TIMEOUT: Duration = Duration::from_secs(60);

/// Number of messages that an agent may send for each that it gets, apart from the pieces of streams.
const ALLOWED: u64 = 4;

/// Something that a call hears.
#[derive(Debug)]
pub(super) enum Heard {
    /// Its answer.
    Answer(Answer),
    /// A piece of its stream.
    Piece(MessageKind, Bytes),
    /// The end of its stream.
    End(StreamEnd),
    /// The end of the call, for another reason. Nothing follows.
    Broken(Broken),
}

impl Heard {
    /// Why there is nothing better.
    pub(super) fn broken(self) -> Broken {
        match self {
            Self::Broken(broken) => broken,
            Self::End(StreamEnd::Failed(failure)) => Broken::Failed(failure),
            Self::Answer(_) | Self::Piece(..) | Self::End(_) => Broken::Nonsense,
        }
    }
}

/// The receiving end of a call.
pub(super) type Heards = mpsc::UnboundedReceiver<Heard>;

/// Credit of a stream: of the first ones, and of the others. All of them together hold 16 MiB at most, apart from lists.
const CREDIT: (u32, u32) = (64 * 1024, 32 * 1024);
const LARGE_STREAMS: usize = 32;

/// Credit of a list, which is taken at once. An agent that waits has more than half of it, in which the longest message fits.
const LIST_CREDIT: u32 = 2 * agent::cost(MAX_BODY);

/// Longest time that an agent may take for an answer, and for removing a folder with everything in it.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
const LONG_TIMEOUT: Duration = Duration::from_secs(300);

/// The kind of a call: the messages that may follow its request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CallKind {
    /// An answer.
    Plain,
    /// An answer that may take longer.
    Long,
    /// An answer when there is room for the input, which may be never.
    Input,
    /// An answer for the request, and one when everything was written.
    Write,
    /// The output of a process.
    Process,
    /// The content of a file.
    Content,
    /// Entries of folders.
    Entries,
    /// Processes.
    Processes,
    /// Changes of files.
    Events,
}

impl CallKind {
    /// Whether messages follow the answer.
    pub(super) fn goes_on(self) -> bool {
        !matches!(self, Self::Plain | Self::Long | Self::Input)
    }

    /// Whether a message is one of its stream.
    pub(super) fn has(self, kind: MessageKind) -> bool {
        match self {
            Self::Plain | Self::Long | Self::Input | Self::Write => false,
            Self::Process => {
                matches!(kind, MessageKind::Stdout | MessageKind::Stderr | MessageKind::Terminal)
            }
            Self::Content => kind == MessageKind::Content,
            Self::Entries => kind == MessageKind::Entry,
            Self::Processes => kind == MessageKind::Process,
            Self::Events => kind == MessageKind::Event,
        }
    }

    /// Longest time until the answer.
    pub(super) fn timeout(self) -> Option<Duration> {
        match self {
            Self::Input => None,
            Self::Long => Some(LONG_TIMEOUT),
            _ => Some(ANSWER_TIMEOUT),
        }
    }

    pub(super) fn credit(self, open: usize) -> u32 {
        match self {
            Self::Plain | Self::Long | Self::Input | Self::Write => 0,
            Self::Entries | Self::Processes => LIST_CREDIT,
            // More than half of it, for the same reason: a path has 4 KiB, and each byte of it takes up to six in JSON.
            Self::Events => CREDIT.0,
            Self::Process | Self::Content if open <= LARGE_STREAMS => CREDIT.0,
            Self::Process | Self::Content => CREDIT.1,
        }
    }
}

/// A call that has not ended.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) heard: mpsc::UnboundedSender<Heard>,
    pub(super) kind: CallKind,
    /// Credit that the agent has left.
    pub(super) credit: u32,
    pub(super) state: State,
}

/// The state of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// Its request was not sent.
    New,
    /// It waits for an answer since then.
    Asked(Instant),
    /// It has its answer, and its stream goes on.
    Answered,
}

/// A message that was not sent yet.
#[derive(Debug)]
pub(super) struct Queued {
    call: u32,
    kind: MessageKind,
    message: Vec<u8>,
    room: Option<OwnedSemaphorePermit>,
}

impl Queued {
    pub(super) fn new(
        call: u32,
        kind: MessageKind,
        body: &[u8],
        room: Option<OwnedSemaphorePermit>,
    ) -> Self {
        let mut message = Vec::with_capacity(MESSAGE_HEADER + body.len());
        agent::push(&mut message, kind, call, body);
        Self { call, kind, message, room }
    }

    /// Whether an answer follows.
    fn asks(&self) -> bool {
        matches!(self.kind, MessageKind::Request | MessageKind::Input | MessageKind::Finish)
    }
}

/// An agent that breaks the protocol.
struct Broke;

/// All calls.
#[derive(Debug)]
pub(super) struct Calls {
    /// Why the session has ended, if it has.
    pub(super) ended: Option<EndReason>,
    pub(super) open: BTreeMap<u32, Open>,
    pub(super) queue: VecDeque<Queued>,
    /// Number of processes that run, as the agent says.
    pub(super) running: u32,
    /// When the agent has last read something, or got something after it had read everything.
    pub(super) progress: Instant,
    /// The number of the agent, which the next message starts if it is not there.
    agent: u32,
    /// The agent that is to be killed.
    to_kill: Option<u32>,
    last_call: u32,
    decoder: MessageDecoder,
    /// Bytes of messages to the agent: those that were sent, and those of them that it has read.
    sent: u64,
    consumed: u64,
    /// The room of messages that were sent and not read, and where each ends.
    unread: VecDeque<(u64, OwnedSemaphorePermit)>,
    /// Messages that the agent may send, apart from the pieces of streams.
    allowed: u64,
    /// Credit of streams that were cancelled. Some of their pieces may be on their way.
    cancelled: u64,
}

impl Calls {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            ended: None,
            open: BTreeMap::new(),
            queue: VecDeque::new(),
            running: 0,
            progress: now,
            agent: 1,
            to_kill: None,
            last_call: 0,
            decoder: MessageDecoder::default(),
            sent: 0,
            consumed: 0,
            unread: VecDeque::new(),
            allowed: 0,
            cancelled: 0,
        }
    }

    /// Notes a new call. Returns its number.
    pub(super) fn begin(&mut self, open: Open) -> u32 {
        // A session does not live as long as all numbers last.
        self.last_call += 1;
        self.open.insert(self.last_call, open);
        self.last_call
    }

    /// Ends a call. The agent hears of it if it knows the call.
    pub(super) fn cancel(&mut self, call: u32) {
        let Some(open) = self.open.remove(&call) else { return };
        self.queue.retain(|queued| queued.call != call);
        if open.state != State::New {
            self.cancelled += u64::from(open.credit);
            self.queue.push_back(Queued::new(call, MessageKind::Cancel, &[], None));
        }
    }

    /// The next frames for the runner.
    pub(super) fn take_frames(&mut self, now: Instant) -> Option<Vec<u8>> {
        let mut frames = Vec::new();
        if let Some(agent) = self.to_kill.take() {
            frames.extend_from_slice(&wire::header(Kind::EndAgent, size_of::<u32>()));
            frames.extend_from_slice(&agent.to_be_bytes());
            return Some(frames);
        }
        let mut messages = self.agent.to_be_bytes().to_vec();
        let empty = messages.len();
        if self.unread.is_empty() {
            self.progress = now;
        }
        while let Some(queued) = self.queue.pop_front() {
            if messages.len() > empty && messages.len() + queued.message.len() > BATCH {
                self.queue.push_front(queued);
                break;
            }
            if queued.asks()
                && let Some(open) = self.open.get_mut(&queued.call)
            {
                open.state = State::Asked(now);
            }
            self.sent += queued.message.len() as u64;
            self.allowed += ALLOWED;
            self.unread.extend(queued.room.map(|room| (self.sent, room)));
            messages.extend_from_slice(&queued.message);
        }
        if messages.len() == empty {
            return None;
        }
        wire::push_bytes(&mut frames, Kind::Agent, &messages);
        Some(frames)
    }

    /// When the agent is late, if it does not answer before.
    pub(super) fn late_at(&self) -> Option<Instant> {
        let answers = self.open.values().filter_map(|open| match open.state {
            State::Asked(since) => Some(since + open.kind.timeout()?),
            State::New | State::Answered => None,
        });
        let read = (!self.unread.is_empty()).then_some(self.progress + READ_TIMEOUT);
        answers.chain(read).min()
    }

    /// Takes a frame of an agent.
    pub(super) fn take(
        &mut self,
        kind: Kind,
        payload: &[u8],
        now: Instant,
    ) -> Result<(), WireError> {
        if kind == Kind::AgentEnded {
            let AgentEnded { agent, cause } = wire::parse_message(kind, payload)?;
            if agent == self.agent {
                self.lost(cause.into());
            }
            return Ok(());
        }
        let Some((agent, bytes)) = payload.split_first_chunk() else {
            return Err(WireError::Unexpected(kind));
        };
        if u32::from_be_bytes(*agent) != self.agent {
            // It was killed.
            return Ok(());
        }
        self.decoder.feed(bytes);
        loop {
            let taken = match self.decoder.next_message() {
                Ok(None) => return Ok(()),
                Ok(Some((kind, call, body))) => self.message(kind, call, body, now),
                Err(_) => Err(Broke),
            };
            if let Err(Broke) = taken {
                self.kill(AgentLoss::Protocol);
                return Ok(());
            }
        }
    }

    fn message(
        &mut self,
        kind: MessageKind,
        call: u32,
        body: Vec<u8>,
        now: Instant,
    ) -> Result<(), Broke> {
        match kind {
            MessageKind::Consumed => {
                self.allow()?;
                let consumed = u64::from_be_bytes(body.try_into().map_err(|_| Broke)?);
                if consumed <= self.consumed || consumed > self.sent {
                    return Err(Broke);
                }
                (self.consumed, self.progress) = (consumed, now);
                while self.unread.front().is_some_and(|(end, _)| *end <= consumed) {
                    self.unread.pop_front();
                }
                return Ok(());
            }
            MessageKind::Running => {
                self.allow()?;
                let running = u32::from_be_bytes(body.try_into().map_err(|_| Broke)?);
                if running as usize > MAX_PROCESSES {
                    return Err(Broke);
                }
                self.running = running;
                return Ok(());
            }
            _ => {}
        }
        let Some(open) = self.open.get_mut(&call) else {
            return self.too_late(kind, call, body.len());
        };
        match kind {
            MessageKind::Answer => {
                let State::Asked(_) = open.state else { return Err(Broke) };
                let answer: Result<Answer, Failure> =
                    serde_json::from_slice(&body).map_err(|_| Broke)?;
                let heard = match answer {
                    Ok(answer) => Heard::Answer(answer),
                    Err(failure) => Heard::Broken(Broken::Failed(failure)),
                };
                let ends = matches!(heard, Heard::Broken(_)) || !open.kind.goes_on();
                open.state = State::Answered;
                // The caller may have gone away.
                let _ = open.heard.send(heard);
                if ends {
                    self.open.remove(&call);
                }
            }
            MessageKind::End => {
                if open.state == State::New || !open.kind.goes_on() {
                    return Err(Broke);
                }
                let end: StreamEnd = serde_json::from_slice(&body).map_err(|_| Broke)?;
                let _ = open.heard.send(Heard::End(end));
                self.open.remove(&call);
            }
            _ => {
                if open.state != State::Answered || !open.kind.has(kind) {
                    return Err(Broke);
                }
                let left = open.credit.checked_sub(agent::cost(body.len()));
                open.credit = left.ok_or(Broke)?;
                let _ = open.heard.send(Heard::Piece(kind, Bytes::from(body)));
            }
        }
        Ok(())
    }

    /// A message of a call that has ended. It may have been on its way.
    fn too_late(&mut self, kind: MessageKind, call: u32, length: usize) -> Result<(), Broke> {
        if call == 0 || call > self.last_call {
            return Err(Broke);
        }
        match kind {
            MessageKind::Answer | MessageKind::End => self.allow(),
            _ => {
                let left = self.cancelled.checked_sub(u64::from(agent::cost(length)));
                self.cancelled = left.ok_or(Broke)?;
                Ok(())
            }
        }
    }

    fn allow(&mut self) -> Result<(), Broke> {
        self.allowed = self.allowed.checked_sub(1).ok_or(Broke)?;
        Ok(())
    }

    /// Ends the calls in one of these states.
    pub(super) fn break_off(&mut self, ends: impl Fn(State) -> bool, broken: &Broken) {
        self.open.retain(|_, open| {
            let goes_on = !ends(open.state);
            if !goes_on {
                // The caller may have gone away.
                let _ = open.heard.send(Heard::Broken(broken.clone()));
            }
            goes_on
        });
        let open = &self.open;
        let is_cancel = |queued: &Queued| queued.kind == MessageKind::Cancel;
        self.queue.retain(|queued| is_cancel(queued) || open.contains_key(&queued.call));
    }

    /// Ends the calls that the agent knows, because it has ended. The others get the next one.
    fn lost(&mut self, loss: AgentLoss) {
        self.break_off(|state| state != State::New, &Broken::Lost(loss));
        self.queue.retain(|queued| queued.kind != MessageKind::Cancel);
        let Self { agent, decoder, sent, consumed, allowed, cancelled, running, .. } = self;
        *agent = agent.wrapping_add(1);
        *decoder = MessageDecoder::default();
        (*sent, *consumed, *allowed, *cancelled, *running) = (0, 0, 0, 0, 0);
        self.unread.clear();
    }

    /// The same for an agent that is to be killed.
    pub(super) fn kill(&mut self, loss: AgentLoss) {
        self.to_kill = Some(self.agent);
        self.lost(loss);
    }
}
