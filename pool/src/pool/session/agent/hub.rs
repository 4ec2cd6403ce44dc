//! The calls to the agent of a session that are under way, and the messages to be sent.

use std::sync::{Arc, Mutex};

use isolator_runner::wire::agent::{
    MAX_ATTACHED, MAX_CALLS, MAX_REQUEST, MESSAGE_HEADER, MessageKind,
};
use isolator_runner::wire::{Kind, WireError};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::time::Instant;

use super::error::{AgentLoss, Broken, TooMany};
use super::messages::{CallKind, Calls, Heard, Heards, Open, Queued, State};
use crate::lock::lock;
use crate::pool::admission::AdmissionError;
use crate::pool::session::EndReason;
use crate::run::exchange::Aside;

/// Bytes for an agent that are on their way. The runner holds twice as much before it kills an agent that does not read.
const WINDOW: usize = 512 * 1024;

/// The calls to the agent of a session, between their callers and the task of the session.
#[derive(Debug)]
pub(crate) struct Hub {
    calls: Mutex<Calls>,
    /// There is something to send, or to wait for.
    changed: Notify,
    /// Whether there are calls.
    is_working: watch::Sender<bool>,
    /// Bytes that can be queued.
    room: Arc<Semaphore>,
}

impl Hub {
    /// No calls yet, and no agent.
    pub(crate) fn new() -> Self {
        Self {
            calls: Mutex::new(Calls::new(Instant::now())),
            changed: Notify::new(),
            is_working: watch::Sender::new(false),
            room: Arc::new(Semaphore::new(WINDOW)),
        }
    }

    /// Begins a call. Returns its number, the credit that its stream begins with, and the end on which it hears.
    ///
    /// # Errors
    ///
    /// When there are too many, or the session has ended.
    pub(super) fn begin(&self, kind: CallKind) -> Result<(u32, u32, Heards), Broken> {
        let mut calls = lock(&self.calls);
        if let Some(reason) = &calls.ended {
            return Err(Broken::Ended(reason.clone()));
        }
        if calls.open.len() >= MAX_CALLS {
            return Err(Broken::TooMany(TooMany::Calls));
        }
        let is_attached = |open: &&Open| open.kind == CallKind::Process;
        if kind == CallKind::Process
            && calls.open.values().filter(is_attached).count() >= MAX_ATTACHED
        {
            return Err(Broken::TooMany(TooMany::Attached));
        }
        let window = kind.credit(calls.open.len() + 1);
        let (sender, heard) = mpsc::unbounded_channel();
        let number = calls.begin(Open { heard: sender, kind, credit: window, state: State::New });
        self.tell(&calls);
        Ok((number, window, heard))
    }

    /// Waits until that number of bytes can be queued. `None` if the session has ended.
    pub(super) async fn room(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        Arc::clone(&self.room).acquire_many_owned(bytes).await.ok()
    }

    /// Queues a message of a call.
    pub(super) fn queue(
        &self,
        call: u32,
        kind: MessageKind,
        body: &[u8],
        room: Option<OwnedSemaphorePermit>,
    ) {
        let mut calls = lock(&self.calls);
        if calls.open.contains_key(&call) {
            calls.queue.push_back(Queued::new(call, kind, body, room));
            self.changed.notify_one();
        }
    }

    /// Gives the agent credit for more of a stream.
    pub(super) fn give_credit(&self, call: u32, credit: u32) {
        let mut calls = lock(&self.calls);
        if let Some(open) = calls.open.get_mut(&call) {
            open.credit += credit;
            let message = Queued::new(call, MessageKind::Credit, &credit.to_be_bytes(), None);
            calls.queue.push_back(message);
            self.changed.notify_one();
        }
    }

    /// Ends a call whose caller has gone away.
    pub(super) fn cancel(&self, call: u32) {
        let mut calls = lock(&self.calls);
        calls.cancel(call);
        self.tell(&calls);
    }

    /// Whether there are calls: then the sandbox has to run.
    pub(crate) fn is_working(&self) -> bool {
        *self.is_working.borrow()
    }

    /// Waits until that is no longer so.
    pub(crate) async fn works(&self, is_working: bool) {
        // The sender is in `self`, so the wait ends only with the value.
        let _ = self.is_working.subscribe().wait_for(|now| *now == is_working).await;
    }

    /// Whether the agent has processes that run, as it says.
    pub(crate) fn has_processes(&self) -> bool {
        lock(&self.calls).running > 0
    }

    /// The sandbox has just been thawed.
    pub(crate) fn thawed(&self) {
        lock(&self.calls).progress = Instant::now();
    }

    /// Refuses all calls, because the session does not get a slot.
    pub(crate) fn refuse(&self, error: &AdmissionError) {
        self.end_calls(&Broken::NotAdmitted(error.clone()));
    }

    /// Ends all calls, because the session is paused. Its processes and later calls go on after that.
    pub(crate) fn pause(&self) {
        self.end_calls(&Broken::Paused);
    }

    /// Ends all calls. The agent hears of those that it knows when it runs.
    fn end_calls(&self, broken: &Broken) {
        let mut calls = lock(&self.calls);
        let open: Vec<u32> = calls.open.keys().copied().collect();
        for number in open {
            if let Some(call) = calls.open.get(&number) {
                // The caller may have gone away.
                let _ = call.heard.send(Heard::Broken(broken.clone()));
            }
            calls.cancel(number);
        }
        self.tell(&calls);
    }

    /// Ends all calls, and refuses others.
    pub(crate) fn close(&self, reason: EndReason) {
        let mut calls = lock(&self.calls);
        calls.break_off(|_| true, &Broken::Ended(reason.clone()));
        calls.ended.get_or_insert(reason);
        self.room.close();
        self.tell(&calls);
    }

    /// Tells the task of the session whether there are calls, and that something may have changed.
    fn tell(&self, calls: &Calls) {
        let has_calls = !calls.open.is_empty();
        self.is_working
            .send_if_modified(|is_working| std::mem::replace(is_working, has_calls) != has_calls);
        self.changed.notify_one();
    }
}

#[async_trait::async_trait]
impl Aside for Hub {
    /// Ends the agent if it has not answered in time.
    async fn outgoing(&self) -> Vec<u8> {
        loop {
            let changed = self.changed.notified();
            let late_at = {
                let mut calls = lock(&self.calls);
                if let Some(frames) = calls.take_frames(Instant::now()) {
                    return frames;
                }
                calls.late_at()
            };
            let late = async {
                match late_at {
                    Some(time) => tokio::time::sleep_until(time).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = changed => {}
                () = late => {
                    let mut calls = lock(&self.calls);
                    if calls.late_at().is_some_and(|time| Instant::now() >= time) {
                        calls.kill(AgentLoss::Late);
                    }
                    self.tell(&calls);
                }
            }
        }
    }

    /// An agent that breaks the protocol is killed.
    fn take(&self, kind: Kind, payload: &[u8]) -> Result<bool, WireError> {
        if !matches!(kind, Kind::AgentSaid | Kind::AgentEnded) {
            return Ok(false);
        }
        let mut calls = lock(&self.calls);
        let taken = calls.take(kind, payload, Instant::now());
        self.tell(&calls);
        taken.map(|()| true)
    }
}

/// The longest message fits into the room.
const _: () = assert!(MAX_REQUEST + MESSAGE_HEADER < WINDOW);

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[test]
    fn a_refusal_ends_calls_in_every_state() {
        let hub = Hub::new();
        let (asked, _, mut asked_ear) = hub.begin(CallKind::Plain).unwrap();
        hub.queue(asked, MessageKind::Request, b"{}", None);
        assert!(hub.outgoing().now_or_never().is_some());
        let (new, _, mut new_ear) = hub.begin(CallKind::Plain).unwrap();
        hub.queue(new, MessageKind::Request, b"{}", None);
        hub.refuse(&AdmissionError::Closed);
        for ear in [&mut asked_ear, &mut new_ear] {
            let heard = ear.try_recv();
            assert!(matches!(heard, Ok(Heard::Broken(Broken::NotAdmitted(_)))), "{heard:?}");
        }
        assert!(!hub.is_working());
        // The agent hears that the call that it knows has ended.
        assert!(hub.outgoing().now_or_never().is_some());
        assert!(hub.outgoing().now_or_never().is_none());
    }
}
