//! Seeds of what an agent says: a byte for the pieces in which it comes, a byte for the credit, and messages. The calls are those of
//! `heard_of_agent`, with the numbers from one.

use isolator_runner::wire::End;
use isolator_runner::wire::agent::{
    Answer, Entry, EntryKind, Failure, LeadsTo, MessageKind, StreamEnd, WatchEvent, WatchKind, push,
};
use serde::Serialize;

use super::Seeds;

struct Said(Vec<u8>);

impl Said {
    fn bytes(mut self, kind: MessageKind, call: u32, body: &[u8]) -> Self {
        push(&mut self.0, kind, call, body);
        self
    }

    fn json<T: Serialize>(self, kind: MessageKind, call: u32, body: &T) -> Self {
        let body = serde_json::to_vec(body).expect("a seed is valid");
        self.bytes(kind, call, &body)
    }

    fn answer(self, call: u32, answer: Result<Answer, Failure>) -> Self {
        self.json(MessageKind::Answer, call, &answer)
    }
}

pub(super) fn says() -> Seeds {
    let entry = Entry {
        name: "link".to_owned(),
        path: "/home/user/link".to_owned(),
        kind: EntryKind::Link { target: "file".to_owned(), leads_to: Some(LeadsTo::File) },
        size: 4,
        mode: 0o777,
        owner: "user".to_owned(),
        group: "1000".to_owned(),
        modified: (1_700_000_000, 5),
    };
    let event = WatchEvent { kind: WatchKind::Write, path: "/tmp/a".to_owned() };
    vec![
        (
            "everything",
            Said(vec![0, 9])
                .bytes(MessageKind::Consumed, 0, &20_u64.to_be_bytes())
                .answer(1, Ok(Answer::Folder(entry.clone(), true)))
                .answer(2, Ok(Answer::Done))
                .answer(3, Ok(Answer::Done))
                .json(MessageKind::End, 3, &StreamEnd::Failed(Failure::System(28)))
                .answer(4, Ok(Answer::Process(12)))
                .bytes(MessageKind::Running, 0, &1_u32.to_be_bytes())
                .bytes(MessageKind::Stdout, 4, b"hello\n")
                .bytes(MessageKind::Terminal, 4, b"\x1b[0m")
                .json(MessageKind::End, 4, &StreamEnd::Ended(End::Signal(9)))
                .answer(5, Ok(Answer::Size(3)))
                .bytes(MessageKind::Content, 5, b"abc")
                .json(MessageKind::End, 5, &StreamEnd::Complete)
                .answer(6, Ok(Answer::Done))
                .json(MessageKind::Entry, 6, &entry)
                .answer(7, Ok(Answer::Done))
                .json(MessageKind::Event, 7, &event)
                .bytes(MessageKind::Content, 8, b"too late")
                .0,
        ),
        ("failures", {
            let failures = [Failure::NotFile, Failure::TooManyProcesses, Failure::System(2)];
            let calls = (1..).zip(failures);
            calls.fold(Said(vec![5, 1]), |said, (call, failure)| said.answer(call, Err(failure))).0
        }),
        (
            "too_much",
            Said(vec![1, 1])
                .answer(5, Ok(Answer::Size(0)))
                .bytes(MessageKind::Content, 5, &[7; 500])
                .bytes(MessageKind::Content, 5, b"")
                .0,
        ),
        ("of_no_call", Said(vec![0, 3]).answer(900, Ok(Answer::Done)).0),
        ("a_lie", vec![0, 3, MessageKind::Entry as u8, 0, 0, 0, 6, 0xff, 0xff, 0xff, 0xff]),
    ]
}
