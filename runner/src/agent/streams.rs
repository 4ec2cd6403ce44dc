//! The streams of calls: each goes on in steps, while it has credit.

use std::collections::VecDeque;
use std::fs::File;
use std::os::fd::BorrowedFd;

use isolator_runner::wire::agent::{Entry, MessageKind, ProcessInfo, cost};

use super::channel::Channel;
use super::listing::Listing;
use super::removal::Removal;
use super::watching::Watching;
use super::writing::Writing;

/// A stream.
pub(super) struct Stream {
    /// Credit that is left.
    pub(super) credit: u32,
    /// Credit that the piece needs that waits, if one does.
    pub(super) needs: u32,
    pub(super) work: Work,
}

/// The work of a stream.
pub(super) enum Work {
    /// Passes on the output of a process.
    Process,
    /// Lists processes.
    Processes(VecDeque<ProcessInfo>),
    /// Reads a file.
    Read(File),
    /// Lists a folder. An entry may be waiting for credit.
    List(Listing, Option<Entry>),
    /// Removes a folder. It has no pieces; its call is answered at the end.
    Remove(Removal),
    /// Writes a file.
    Write(Writing),
    /// Watches files.
    Watch(Watching),
}

impl Stream {
    pub(super) fn new(work: Work, credit: u32) -> Self {
        Self { credit, needs: 0, work }
    }

    pub(super) fn process(credit: u32) -> Self {
        Self::new(Work::Process, credit)
    }

    pub(super) fn processes(list: VecDeque<ProcessInfo>, credit: u32) -> Self {
        Self::new(Work::Processes(list), credit)
    }

    /// Whether it goes on without an event.
    pub(super) fn can_go_on(&self) -> bool {
        match &self.work {
            Work::Process | Work::Write(_) => false,
            Work::Remove(_) => true,
            Work::Watch(watching) => self.has_credit() && watching.has_pending(),
            Work::Processes(_) | Work::Read(_) | Work::List(..) => self.has_credit(),
        }
    }

    /// The descriptor to poll, if it waits for one.
    pub(super) fn fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.work {
            Work::Watch(watching) if !watching.has_pending() => Some(watching.fd()),
            _ => None,
        }
    }

    /// Whether a byte can be sent, and the piece that waits.
    fn has_credit(&self) -> bool {
        self.credit > cost(0) && self.credit >= self.needs
    }

    /// Sends a piece, which is no longer than the credit.
    pub(super) fn say(&mut self, kind: MessageKind, call: u32, body: &[u8], channel: &mut Channel) {
        self.credit = self.credit.saturating_sub(cost(body.len()));
        self.needs = 0;
        channel.say(kind, call, body);
    }
}
