//! Admission: limits on the requests that run and wait, and the order in which they get their turns.
//!
//! Clients share the slots. A free slot goes to the waiting client with the fewest running requests, of several
//! to the one with the oldest last turn, and no client may run more than its limit. When the queue is full,
//! the client with the most queued requests loses its newest one to a client with fewer (in packet queues this is
//! called "longest queue drop"). So a client that floods the server only slows down itself.
//!
//! Programs that run may wait for packages, which the server builds with programs of its own. So these have slots of their own.
//!
//! The sandbox of a session keeps its slot for a moment after a call, because it still runs. Such a slot *rests*: it is called back
//! as soon as a request waits that could use it.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::lock::lock;
use crate::pool::pace::Pace;

mod client;

pub use self::client::{Client, Place};

/// Requests of the server itself that run at the same time, where they have slots of their own.
const SERVER_RUNNING: usize = 2;

/// The limits of admission.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AdmissionLimits {
    /// Maximum number of requests that run at the same time.
    pub running: usize,
    /// Maximum number of them for one client, if the server has several: some slots are always left for others.
    pub running_of_one: usize,
    /// Maximum number of requests that wait for a slot.
    pub queue: usize,
    /// Longest wait.
    pub wait: Duration,
}

/// Why a request was not admitted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AdmissionError {
    /// The queue is full.
    #[error("{running} requests are running and {queue} are waiting: try again {}", when(*served_in))]
    QueueFull {
        /// Requests that run.
        running: usize,
        /// Requests that wait.
        queue: usize,
        /// Time to serve those that wait, at the pace of the last ones.
        served_in: Option<Duration>,
        /// Whether slots are free, and the client runs as many requests as it may.
        is_own_share: bool,
    },
    /// The request waited as long as it was allowed to.
    #[error(
        "{running} requests are running and this one waited {wait:?} for its turn: try again {}",
        when(*served_in)
    )]
    WaitedTooLong {
        /// Requests that run.
        running: usize,
        /// How long the request waited.
        wait: Duration,
        /// Time to serve those that still wait, at the pace of the last ones.
        served_in: Option<Duration>,
        /// Whether slots are free, and the client runs as many requests as it may.
        is_own_share: bool,
    },
    /// The server is stopping.
    #[error("the server is shutting down")]
    Closed,
}

/// Advice when to try again, in whole seconds, because the pace of the last requests is no more exact.
fn when(served_in: Option<Duration>) -> String {
    match served_in.map(|time| time.as_secs_f64().ceil() as u64) {
        None => "in a moment".to_owned(),
        Some(0 | 1) => "in about a second".to_owned(),
        Some(seconds) => format!("in about {seconds} seconds"),
    }
}

/// The gate in front of the pools, and of other things that clients share. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Admission {
    turns: Arc<Mutex<Turns>>,
}

/// The running and waiting requests.
#[derive(Debug)]
struct Turns {
    limits: AdmissionLimits,
    /// The client that comes before all others, if there is one. Its requests always find room in the queue.
    first: Option<Client>,
    /// Whether requests of the server have slots of their own.
    has_server_slots: bool,
    is_closed: bool,
    running: usize,
    waiting: usize,
    /// The number of the next request.
    number: u64,
    /// Number of turns so far.
    turns: u64,
    /// The clients with running or waiting requests.
    clients: HashMap<Client, ClientQueue>,
    /// Those of the running requests whose slots rest, the longest rest first.
    resting: Vec<Resting>,
    pace: Pace,
}

/// A slot that rests.
#[derive(Debug)]
struct Resting {
    number: u64,
    client: Client,
    wanted: CancellationToken,
}

#[derive(Debug, Default)]
struct ClientQueue {
    running: usize,
    /// The number of its last turn.
    last_turn: u64,
    waiting: VecDeque<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    number: u64,
    turn: oneshot::Sender<Turn>,
}

/// The answer to a request that waits.
type Turn = Result<Admitted, AdmissionError>;

/// A slot that was handed on. If the request has gone away, dropping this gives the slot back, which takes the lock.
struct HandedOn {
    _refused: Option<Turn>,
}

/// The right to run; given back when dropped.
#[derive(Debug)]
pub struct Admitted {
    pub(crate) admission: Admission,
    pub(crate) client: Client,
    /// If it rests: its number, and the signal that another request wants it.
    resting: Option<(u64, CancellationToken)>,
}

impl Admitted {
    /// Lets the slot rest: its work is done. Its holder gives it back as soon as it is [wanted](Self::wanted).
    pub(crate) fn rest(&mut self) {
        if self.resting.is_some() {
            return;
        }
        let turns = &mut *lock(&self.admission.turns);
        let number = turns.number;
        turns.number += 1;
        let wanted = CancellationToken::new();
        turns.resting.push(Resting { number, client: self.client.clone(), wanted: wanted.clone() });
        turns.pace.served(turns.waiting > 0);
        turns.call_back();
        self.resting = Some((number, wanted));
    }

    /// Whether it rests.
    pub(crate) fn is_resting(&self) -> bool {
        self.resting.is_some()
    }

    /// Uses the slot again.
    pub(crate) fn work(&mut self) {
        if let Some((number, _)) = self.resting.take() {
            lock(&self.admission.turns).resting.retain(|resting| resting.number != number);
        }
    }

    /// Waits until it rests and another request wants it.
    pub(crate) async fn wanted(&self) {
        match &self.resting {
            Some((_, wanted)) => wanted.cancelled().await,
            None => std::future::pending().await,
        }
    }
}

impl Admission {
    /// A gate where all clients have the same rights, except that `first` comes before all others. That one must have bounds of
    /// its own.
    pub fn new(limits: AdmissionLimits, first: Option<Client>) -> Self {
        let turns = Turns {
            limits,
            first,
            has_server_slots: false,
            is_closed: false,
            running: 0,
            waiting: 0,
            number: 0,
            turns: 0,
            clients: HashMap::new(),
            resting: Vec::new(),
            pace: Pace::default(),
        };
        Self { turns: Arc::new(Mutex::new(turns)) }
    }

    /// A gate where the requests of the server itself have slots of their own.
    pub(crate) fn with_server_slots(limits: AdmissionLimits) -> Self {
        let admission = Self::new(limits, None);
        lock(&admission.turns).has_server_slots = true;
        admission
    }

    /// Changes the limits. Requests that run go on, even if they are more than may run now.
    pub(crate) fn set_limits(&self, limits: AdmissionLimits) {
        lock(&self.turns).limits = limits;
        loop {
            let handed_on = self.hand_on(&mut lock(&self.turns));
            if handed_on.is_none() {
                return;
            }
        }
    }

    /// Lets the next request run, if one may.
    fn hand_on(&self, turns: &mut Turns) -> Option<HandedOn> {
        let (client, waiting) = turns.next()?;
        let admitted = turns.admit(self, &client);
        Some(HandedOn { _refused: waiting.turn.send(Ok(admitted)).err() })
    }

    /// Waits for a slot. Dropping the future leaves the queue.
    ///
    /// # Errors
    ///
    /// See [`AdmissionError`].
    pub async fn enter(&self, client: &Client) -> Result<Admitted, AdmissionError> {
        self.enter_within(client, None).await
    }

    /// Waits for a slot, and no longer than `most`.
    ///
    /// # Errors
    ///
    /// See [`AdmissionError`].
    pub async fn enter_within(
        &self,
        client: &Client,
        most: Option<Duration>,
    ) -> Result<Admitted, AdmissionError> {
        let (place, mut turn, wait) = {
            let turns = &mut *lock(&self.turns);
            if turns.is_closed {
                return Err(AdmissionError::Closed);
            }
            if turns.may_run(client) {
                // No other request waits that may run: a free slot is handed on at once.
                return Ok(turns.admit(self, client));
            }
            // A slot that rests is there in a moment.
            if turns.waiting >= turns.limits.queue + turns.resting.len() {
                turns.make_room(client)?;
            }
            let (sender, turn) = oneshot::channel();
            let place = self.enqueue(turns, client, sender);
            turns.call_back();
            (place, turn, most.map_or(turns.limits.wait, |most| most.min(turns.limits.wait)))
        };
        let answer = tokio::time::timeout(wait, &mut turn).await;
        drop(place);
        match answer {
            Ok(answer) => answer.unwrap_or(Err(AdmissionError::Closed)),
            // The turn may have come at this very moment.
            Err(_) => turn.try_recv().unwrap_or_else(|_| {
                let turns = lock(&self.turns);
                Err(AdmissionError::WaitedTooLong {
                    running: turns.busy(),
                    wait,
                    served_in: turns.pace.time_for(turns.waiting + 1),
                    is_own_share: turns.is_own_share(client),
                })
            }),
        }
    }

    fn enqueue(
        &self,
        turns: &mut Turns,
        client: &Client,
        turn: oneshot::Sender<Turn>,
    ) -> QueuePlace {
        let number = turns.number;
        turns.number += 1;
        turns.waiting += 1;
        turns
            .clients
            .entry(client.clone())
            .or_default()
            .waiting
            .push_back(Waiting { number, turn });
        QueuePlace { turns: Arc::clone(&self.turns), client: client.clone(), number }
    }

    /// Requests that run. Slots that rest are not counted.
    pub(crate) fn running(&self) -> usize {
        lock(&self.turns).busy()
    }

    pub(crate) fn waiting(&self) -> usize {
        lock(&self.turns).waiting
    }

    /// The clients with running or waiting requests, and the number of each.
    pub(crate) fn clients(&self) -> Vec<(Client, usize, usize)> {
        let turns = lock(&self.turns);
        let of = |(client, share): (&Client, &ClientQueue)| {
            let resting = turns.resting.iter().filter(|resting| resting.client == *client).count();
            let (running, waiting) = (share.running - resting, share.waiting.len());
            (running + waiting > 0).then(|| (client.clone(), running, waiting))
        };
        turns.clients.iter().filter_map(of).collect()
    }

    /// Refuses all requests from now on.
    pub(crate) fn close(&self) {
        let mut turns = lock(&self.turns);
        turns.is_closed = true;
        turns.waiting = 0;
        for share in turns.clients.values_mut() {
            // Their receivers see that the senders are dropped.
            share.waiting.clear();
        }
    }
}

impl Turns {
    fn admit(&mut self, admission: &Admission, client: &Client) -> Admitted {
        self.running += 1;
        self.turns += 1;
        let share = self.clients.entry(client.clone()).or_default();
        share.running += 1;
        share.last_turn = self.turns;
        Admitted { admission: admission.clone(), client: client.clone(), resting: None }
    }

    /// Requests that run and don't rest.
    fn busy(&self) -> usize {
        self.running - self.resting.len()
    }

    /// Calls back as many resting slots as the waiting requests could use.
    fn call_back(&self) {
        let mut of_any = 0;
        for (client, share) in &self.clients {
            let may_start = share.waiting.len().min(self.may_start(client));
            of_any += may_start;
            let own = self.resting.iter().filter(|resting| resting.client == *client);
            // It runs as many as it may, so only a slot of its own helps.
            own.take(share.waiting.len() - may_start).for_each(|resting| resting.wanted.cancel());
        }
        self.resting.iter().take(of_any).for_each(|resting| resting.wanted.cancel());
    }

    /// Refuses the newest request of the client with the longest queue, unless that is this client.
    fn make_room(&mut self, client: &Client) -> Result<(), AdmissionError> {
        let (running, is_own_share) = (self.busy(), self.is_own_share(client));
        let Self { clients, waiting, pace, limits, first, .. } = self;
        let queue = limits.queue;
        let served_in = pace.time_for(*waiting + 1);
        let full =
            |is_own_share| AdmissionError::QueueFull { running, queue, served_in, is_own_share };
        let own = clients.get(client).map_or(0, |share| share.waiting.len());
        let is_first = first.as_ref() == Some(client);
        let others = clients.iter_mut().filter(|(other, _)| first.as_ref() != Some(*other));
        let longest = others.map(|(_, share)| share).max_by_key(|share| share.waiting.len());
        match longest {
            // With one more request, this client's queue would be as long.
            Some(share)
                if share.waiting.len() > own + 1 || is_first && !share.waiting.is_empty() =>
            {
                if let Some(last) = share.waiting.pop_back() {
                    *waiting -= 1;
                    // The receiver may be gone, which is fine.
                    let _ = last.turn.send(Err(full(false)));
                }
                Ok(())
            }
            _ if is_first => Ok(()),
            _ => Err(full(is_own_share)),
        }
    }

    /// Number of further requests of a client that may run.
    fn may_start(&self, client: &Client) -> usize {
        let running = self.clients.get(client).map_or(0, |share| share.running);
        match client {
            Client::Host => usize::MAX,
            Client::Server if self.has_server_slots => SERVER_RUNNING.saturating_sub(running),
            _ => self.limits.running_of_one.saturating_sub(running),
        }
    }

    fn may_start_another(&self, client: &Client) -> bool {
        self.may_start(client) > 0
    }

    /// Requests of the server that run in slots of their own.
    fn in_server_slots(&self) -> usize {
        let share = self.clients.get(&Client::Server).filter(|_| self.has_server_slots);
        share.map_or(0, |share| share.running)
    }

    /// Whether there is a slot for requests of clients.
    fn has_slot(&self) -> bool {
        self.running - self.in_server_slots() < self.limits.running
    }

    /// Whether a request of a client may run now.
    fn may_run(&self, client: &Client) -> bool {
        let has_own_slot = self.has_server_slots && *client == Client::Server;
        (has_own_slot || self.has_slot()) && self.may_start_another(client)
    }

    /// Whether a request of a client waits only because the client runs as many as it may.
    fn is_own_share(&self, client: &Client) -> bool {
        *client != Client::Server && self.has_slot() && !self.may_start_another(client)
    }

    /// The next request to run, if there is a slot: of the clients that may start another, the one that comes before all others, then
    /// the one with the fewest running, then the one with the oldest last turn, and then the one that came first.
    fn next(&mut self) -> Option<(Client, Waiting)> {
        let waiting = self.clients.iter().filter_map(|(client, share)| {
            let first = share.waiting.front()?;
            let is_behind = self.first.as_ref() != Some(client);
            let rank = (is_behind, share.running, share.last_turn, first.number);
            self.may_run(client).then_some((rank, client))
        });
        let client = waiting.min_by_key(|(rank, _)| *rank)?.1.clone();
        let first = self.clients.get_mut(&client)?.waiting.pop_front()?;
        self.waiting -= 1;
        Some((client, first))
    }

    /// Forgets a client without requests.
    fn forget_if_idle(&mut self, client: &Client) {
        let is_gone = |share: &ClientQueue| share.running == 0 && share.waiting.is_empty();
        if self.clients.get(client).is_some_and(is_gone) {
            self.clients.remove(client);
        }
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        let has_rested = self.resting.is_some();
        self.work();
        let mut turns = lock(&self.admission.turns);
        turns.running -= 1;
        if !has_rested {
            let is_busy = turns.waiting > 0;
            turns.pace.served(is_busy);
        }
        if let Some(share) = turns.clients.get_mut(&self.client) {
            share.running -= 1;
        }
        let handed_on = self.admission.hand_on(&mut turns);
        turns.forget_if_idle(&self.client);
        turns.call_back();
        drop(turns);
        drop(handed_on);
    }
}

/// A place in the queue; dropping it leaves the queue.
struct QueuePlace {
    turns: Arc<Mutex<Turns>>,
    client: Client,
    number: u64,
}

impl Drop for QueuePlace {
    fn drop(&mut self) {
        let mut turns = lock(&self.turns);
        if let Some(share) = turns.clients.get_mut(&self.client)
            && let Some(at) = share.waiting.iter().position(|other| other.number == self.number)
        {
            share.waiting.remove(at);
            turns.waiting -= 1;
        }
        turns.forget_if_idle(&self.client);
    }
}

#[cfg(test)]
mod tests;
