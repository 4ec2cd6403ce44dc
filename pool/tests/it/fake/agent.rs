//! The agent of a session in a fake sandbox. It does what the paths and programs of its calls say.

use std::collections::VecDeque;

use isolator_runner::wire::agent::{
    self, AgentEnd, AgentEnded, Answer, Entry, EntryKind, Failure, Message, MessageDecoder,
    MessageKind, ProcessInfo, Request, StreamEnd,
};
use isolator_runner::wire::{End, Kind, header};

use super::runner::Runner;

/// The agents of a session.
#[derive(Default)]
pub(super) struct FakeAgent {
    /// The number of the newest one.
    number: u32,
    /// Whether it is there.
    is_there: bool,
    decoder: MessageDecoder,
    consumed: u64,
    /// The file that is read, what is left of it, and its credit.
    reading: Option<(u32, usize, u32)>,
    /// The list of processes that is sent, what is left of it, and its credit.
    listing: Option<(u32, VecDeque<Vec<u8>>, u32)>,
    /// The call that is attached to its process.
    attached: Option<u32>,
}

/// The number of the only process.
pub(crate) const PID: u32 = 7;

impl Runner {
    /// Takes a frame for an agent, as a runner does.
    pub(super) async fn agent(&mut self, kind: Kind, payload: &[u8]) -> std::io::Result<()> {
        let (number, bytes) = payload.split_first_chunk().expect("the number of an agent");
        let number = u32::from_be_bytes(*number);
        if kind == Kind::EndAgent {
            self.agent.is_there &= self.agent.number != number;
            return Ok(());
        }
        if number > self.agent.number {
            self.agent = FakeAgent { number, is_there: true, ..FakeAgent::default() };
        }
        if !self.agent.is_there {
            return Ok(());
        }
        self.agent.decoder.feed(bytes);
        let mut said = Vec::new();
        while let Some(message) = self.agent.decoder.next_message().expect("messages") {
            self.agent.consumed += (agent::MESSAGE_HEADER + message.2.len()) as u64;
            if let Some(cause) = self.agent.take(message, &mut said) {
                self.agent.is_there = false;
                return self.send(Kind::AgentEnded, &AgentEnded { agent: number, cause }).await;
            }
        }
        if self.agent.is_deaf() {
            return Ok(());
        }
        let consumed = self.agent.consumed.to_be_bytes();
        agent::push(&mut said, MessageKind::Consumed, 0, &consumed);
        for piece in said.chunks(30_000) {
            let frame = [&number.to_be_bytes()[..], piece].concat();
            self.write(&header(Kind::AgentSaid, frame.len())).await?;
            self.write(&frame).await?;
        }
        Ok(())
    }
}

impl FakeAgent {
    /// One that was stopped reads nothing, and says nothing.
    fn is_deaf(&self) -> bool {
        self.consumed >= DEAF
    }

    /// Takes a message. Returns its end, if that is what the message asks for.
    fn take(&mut self, message: Message, said: &mut Vec<u8>) -> Option<AgentEnd> {
        let (kind, call, body) = message;
        let answer = |said: &mut Vec<u8>, call, answer: &Result<Answer, Failure>| {
            agent::push(said, MessageKind::Answer, call, &serde_json::to_vec(answer).unwrap());
        };
        let end = |said: &mut Vec<u8>, call, end: &StreamEnd| {
            agent::push(said, MessageKind::End, call, &serde_json::to_vec(end).unwrap());
        };
        match kind {
            MessageKind::Request => {}
            MessageKind::Credit => {
                let more = u32::from_be_bytes(body.try_into().unwrap());
                if let Some((number, _, credit)) = &mut self.reading
                    && *number == call
                {
                    *credit += more;
                }
                if let Some((number, _, credit)) = &mut self.listing
                    && *number == call
                {
                    *credit += more;
                }
                self.read(said);
                self.list(said);
                return None;
            }
            MessageKind::Cancel => {
                if self.attached == Some(call) {
                    self.attached = None;
                }
                return None;
            }
            MessageKind::Input if body[4..] == b"end"[..] => {
                answer(said, call, &Ok(Answer::Done));
                if let Some(attached) = self.attached.take() {
                    end(said, attached, &StreamEnd::Ended(End::Code(0)));
                }
                agent::push(said, MessageKind::Running, 0, &0_u32.to_be_bytes());
                return None;
            }
            MessageKind::Finish => {
                answer(said, call, &Ok(Answer::Entry(entry())));
                end(said, call, &StreamEnd::Complete);
                return None;
            }
            // A process that does not read its input.
            _ => return None,
        }
        let request: Request = serde_json::from_slice(&body).expect("a request");
        match request {
            Request::Stat(path) => match path.as_str() {
                "entry" => answer(said, call, &Ok(Answer::Entry(entry()))),
                "missing" => answer(said, call, &Err(Failure::System(2))),
                "silence" => {}
                "deaf" => self.consumed = DEAF,
                "die" => return Some(AgentEnd::Ended),
                "not-started" => return Some(AgentEnd::NotStarted(11)),
                "garbage" => said.extend_from_slice(&[0xff; 64]),
                "long" => {
                    said.extend_from_slice(&[MessageKind::Answer as u8, 0, 0, 0, 1, 0xff, 0, 0, 0])
                }
                "twice" => {
                    let written = Ok(Answer::Done);
                    (0..10).for_each(|_| answer(said, call, &written));
                }
                "other-call" => answer(said, call + 1000, &Ok(Answer::Done)),
                "call-zero" => end(said, 0, &StreamEnd::Complete),
                "flood" => {
                    for count in 0..10_000_u32 {
                        agent::push(said, MessageKind::Running, 0, &(count % 2).to_be_bytes());
                    }
                }
                "read-too-much" => {
                    let consumed = (self.consumed + 1000).to_be_bytes();
                    agent::push(said, MessageKind::Consumed, 0, &consumed);
                }
                "read-backwards" => {
                    for _ in 0..2 {
                        agent::push(said, MessageKind::Consumed, 0, &1_u64.to_be_bytes());
                    }
                }
                "too-many" => {
                    agent::push(said, MessageKind::Running, 0, &1_000_000_u32.to_be_bytes())
                }
                "piece" => agent::push(said, MessageKind::Content, call, b"x"),
                "end" => end(said, call, &StreamEnd::Complete),
                "no-json" => agent::push(said, MessageKind::Answer, call, b"{"),
                "request" => agent::push(said, MessageKind::Request, call, b"{}"),
                "other-answer" => answer(said, call, &Ok(Answer::Size(5))),
                other => panic!("no agent does {other:?}"),
            },
            Request::Read(path, credit) => {
                answer(said, call, &Ok(Answer::Size(0)));
                match path.as_str() {
                    "too-much" => {
                        for _ in 0..100 {
                            agent::push(said, MessageKind::Content, call, &[b'x'; agent::PIECE]);
                        }
                    }
                    "empty-pieces" => {
                        for _ in 0..10_000 {
                            agent::push(said, MessageKind::Content, call, b"");
                        }
                    }
                    "of-another-kind" => agent::push(said, MessageKind::Stdout, call, b"x"),
                    bytes => {
                        self.reading = Some((call, bytes.parse().expect("a number"), credit));
                        self.read(said);
                    }
                }
            }
            Request::Start(start, _) => match start.argv[0].as_str() {
                "run" => {
                    answer(said, call, &Ok(Answer::Process(PID)));
                    agent::push(said, MessageKind::Stdout, call, b"hello");
                    agent::push(said, MessageKind::Running, 0, &1_u32.to_be_bytes());
                    self.attached = Some(call);
                }
                other => panic!("no process does {other:?}"),
            },
            Request::Processes(credit) => {
                answer(said, call, &Ok(Answer::Done));
                let bodies = LONG_PROCESSES.map(process);
                self.listing = Some((call, bodies.into(), credit));
                self.list(said);
            }
            Request::Write(_) => answer(said, call, &Ok(Answer::Done)),
            Request::Attach(pid, _) => answer(said, call, &Ok(Answer::Process(pid))),
            other => panic!("no agent takes {other:?}"),
        }
        None
    }

    /// Sends as much of the file as there is credit for.
    fn read(&mut self, said: &mut Vec<u8>) {
        let Some((call, left, credit)) = &mut self.reading else { return };
        loop {
            let piece = (*left).min(agent::PIECE);
            if piece == 0 {
                let end = serde_json::to_vec(&StreamEnd::Complete).unwrap();
                agent::push(said, MessageKind::End, *call, &end);
                self.reading = None;
                return;
            }
            let Some(rest) = credit.checked_sub(agent::cost(piece)) else { return };
            (*left, *credit) = (*left - piece, rest);
            agent::push(said, MessageKind::Content, *call, &vec![b'x'; piece]);
        }
    }

    /// Sends as much of the list as there is credit for.
    fn list(&mut self, said: &mut Vec<u8>) {
        let Some((call, left, credit)) = &mut self.listing else { return };
        while let Some(body) = left.front() {
            let Some(rest) = credit.checked_sub(agent::cost(body.len())) else { return };
            agent::push(said, MessageKind::Process, *call, body);
            *credit = rest;
            left.pop_front();
        }
        let end = serde_json::to_vec(&StreamEnd::Complete).unwrap();
        agent::push(said, MessageKind::End, *call, &end);
        self.listing = None;
    }
}

/// Lengths of the arguments of the processes that are listed.
const LONG_PROCESSES: [usize; 4] = [150_000, 180_000, 1000, 190_000];

fn process(length: usize) -> Vec<u8> {
    let info = ProcessInfo {
        pid: PID,
        tag: None,
        argv: vec!["x".repeat(length)],
        env: Default::default(),
        cwd: "/".to_owned(),
        terminal: false,
    };
    serde_json::to_vec(&info).unwrap()
}

/// Bytes that only one that was stopped has read.
const DEAF: u64 = 1 << 60;

fn entry() -> Entry {
    Entry {
        name: "entry".to_owned(),
        path: "/entry".to_owned(),
        kind: EntryKind::File,
        size: 1,
        mode: 0o644,
        owner: "root".to_owned(),
        group: "root".to_owned(),
        modified: (0, 0),
    }
}
