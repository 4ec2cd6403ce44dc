//! The calls to the agent of a session that are under way, and the messages to be sent.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use isolator_runner::wire::agent::{
    Answer, MAX_ATTACHED, MAX_BODY, MAX_CALLS, MAX_REQUEST, MESSAGE_HEADER, MessageKind, Request,
};
use isolator_runner::wire::{Kind, WireError};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::time::Instant;

use super::call::{Call, Ear, Heard};
use super::error::{AgentLoss, Broken, TooMany};
use super::messages::{Calls, Open, Queued, State};
use crate::lock::lock;
use crate::pool::admission::AdmissionError;
use crate::pool::session::EndReason;
use crate::run::exchange::Aside;

/// Bytes for an agent that are on their way. The runner holds twice as much before it kills an agent that does not read.
const WINDOW: usize = 512 * 1024;

/// Credit of a stream: of the first ones, and of the others. All streams of a session together hold 6 MiB at most.
const CREDIT: (u32, u32) = (64 * 1024, 32 * 1024);
const LARGE_STREAMS: usize = 32;

/// Credit of a list, which is taken at once.
const LIST_CREDIT: u32 = MAX_BODY as u32 + 64 * 1024;

/// Longest time that an agent may take for an answer, and for removing a folder with everything in it.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
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

    fn credit(self, open: usize) -> u32 {
        match self {
            Self::Plain | Self::Long | Self::Input | Self::Write => 0,
            Self::Entries | Self::Processes => LIST_CREDIT,
            Self::Process | Self::Content | Self::Events if open <= LARGE_STREAMS => CREDIT.0,
            Self::Process | Self::Content | Self::Events => CREDIT.1,
        }
    }
}

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

    /// Calls the agent, and waits for its answer.
    ///
    /// # Errors
    ///
    /// When it is a failure, or there is none.
    pub(super) async fn call(
        self: &Arc<Self>,
        kind: CallKind,
        request: impl FnOnce(u32) -> Request,
    ) -> Result<(Answer, Call), Broken> {
        let mut call = self.begin(kind)?;
        let body = serde_json::to_vec(&request(call.window)).map_err(|_| Broken::Nonsense)?;
        if body.len() > MAX_REQUEST {
            return Err(Broken::TooLong(body.len(), MAX_REQUEST));
        }
        call.send(MessageKind::Request, &body).await?;
        let answer = call.answer().await?;
        Ok((answer, call))
    }

    /// Sends input to a process, and waits until it has room for it.
    ///
    /// # Errors
    ///
    /// When it has none, or ends before it.
    pub(super) async fn input(self: &Arc<Self>, pid: u32, bytes: &[u8]) -> Result<(), Broken> {
        let mut call = self.begin(CallKind::Input)?;
        call.send(MessageKind::Input, &[&pid.to_be_bytes(), bytes].concat()).await?;
        call.answer().await.map(drop)
    }

    fn begin(self: &Arc<Self>, kind: CallKind) -> Result<Call, Broken> {
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
        Ok(Call { hub: Arc::clone(self), number, window, used: 0, ear: Ear::new(heard) })
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

    /// Refuses the calls that have not been sent, because the session does not get a slot.
    pub(crate) fn refuse(&self, error: &AdmissionError) {
        let mut calls = lock(&self.calls);
        calls.break_off(|state| state == State::New, &Broken::NotAdmitted(error.clone()));
        self.tell(&calls);
    }

    /// Ends all calls, because the session is paused. Its processes and later calls go on after that.
    pub(crate) fn pause(&self) {
        let mut calls = lock(&self.calls);
        let open: Vec<u32> = calls.open.keys().copied().collect();
        for number in open {
            if let Some(call) = calls.open.get(&number) {
                // The caller may have gone away.
                let _ = call.heard.send(Heard::Broken(Broken::Paused));
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
