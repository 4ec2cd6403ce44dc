//! The part of agents that a fuzzer calls.

use isolator_runner::wire::Kind;
use isolator_runner::wire::agent::{MessageKind, cost};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::messages::{CallKind, Calls, Heard, Open, Queued, State};

/// The calls that wait for answers when the agent says something: the first two are without a stream.
const KINDS: [CallKind; 7] = [
    CallKind::Plain,
    CallKind::Input,
    CallKind::Write,
    CallKind::Process,
    CallKind::Content,
    CallKind::Entries,
    CallKind::Events,
];

/// The messages of an agent that one call has heard.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HeardOfAgent {
    /// Whether it has a stream.
    pub is_stream: bool,
    /// Credit that its pieces have taken.
    pub used: u64,
    /// Number of answers.
    pub answers: usize,
    /// Number of ends: of its stream, and for other reasons.
    pub ends: usize,
    /// Whether anything came after its end.
    pub goes_on_after_the_end: bool,
}

/// The messages that calls hear of an agent that says this, in pieces of that size. Each stream begins with this much credit.
pub fn heard_of_agent(said: &[u8], cut: usize, credit: u32) -> Vec<HeardOfAgent> {
    let now = Instant::now();
    let mut calls = Calls::new(now);
    let mut receivers = Vec::new();
    for kind in KINDS {
        let (heard, receiver) = mpsc::unbounded_channel();
        let number = calls.begin(Open { heard, kind, credit, state: State::New });
        calls.queue.push_back(Queued::new(number, MessageKind::Request, b"{}", None));
        receivers.push((kind, receiver));
    }
    // One more was cancelled.
    let (heard, _) = mpsc::unbounded_channel();
    let (kind, state) = (CallKind::Content, State::Asked(now));
    let cancelled = calls.begin(Open { heard, kind, credit, state });
    while calls.take_frames(now).is_some() {}
    calls.cancel(cancelled);
    for piece in said.chunks(cut.max(1)) {
        let payload = [&1_u32.to_be_bytes()[..], piece].concat();
        calls.take(Kind::AgentSaid, &payload, now).expect("an agent is never the runner's fault");
    }
    receivers
        .into_iter()
        .map(|(kind, mut receiver)| {
            let mut all = HeardOfAgent { is_stream: kind.goes_on(), ..HeardOfAgent::default() };
            while let Ok(heard) = receiver.try_recv() {
                all.goes_on_after_the_end |= all.ends > 0;
                match heard {
                    Heard::Answer(_) => all.answers += 1,
                    Heard::Piece(_, body) => all.used += u64::from(cost(body.len())),
                    Heard::End(_) | Heard::Broken(_) => all.ends += 1,
                }
            }
            all
        })
        .collect()
}
