//! Admission: how many requests run at once, how many may wait, and whose turn it is.
//!
//! Clients share the slots. A free slot goes to the waiting client with the fewest running requests, and no
//! client may run more than its limit. When the queue is full, the client with the most queued requests loses
//! its newest one to a client with fewer (in packet queues this is called "longest queue drop"). So a client
//! that floods the server only slows down itself.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::oneshot;

use crate::lock::lock;
use crate::pool::pace::Pace;

/// The limits of admission.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AdmissionLimits {
    /// Requests that run at the same time.
    pub running: usize,
    /// How many of them one client may run, if the server has several: some slots are always left for others.
    pub running_of_one: usize,
    /// Requests that may wait for a slot.
    pub queue: usize,
    /// Longest wait.
    pub wait: Duration,
}

/// The sender of a request. Requests of one client are served in the order of their arrival.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Client(Arc<str>);

impl Client {
    /// The only client of a server with one host.
    pub fn host() -> Self {
        Self::named("host")
    }

    /// Its name.
    pub(crate) fn name(&self) -> &str {
        &self.0
    }

    /// One of several clients.
    pub fn named(name: &str) -> Self {
        Self(name.into())
    }
}

impl fmt::Display for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
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
        /// How long it takes to serve those that wait, at the pace of the last ones.
        served_in: Option<Duration>,
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
        /// How long it takes to serve those that still wait, at the pace of the last ones.
        served_in: Option<Duration>,
    },
    /// The server is stopping.
    #[error("the server is shutting down")]
    Closed,
}

/// When to try again, in whole seconds, because the pace of the last requests says no more.
fn when(served_in: Option<Duration>) -> String {
    match served_in.map(|time| time.as_secs_f64().ceil() as u64) {
        None => "in a moment".to_owned(),
        Some(0 | 1) => "in about a second".to_owned(),
        Some(seconds) => format!("in about {seconds} seconds"),
    }
}

/// The gate in front of the pools.
#[derive(Debug, Clone)]
pub(crate) struct Admission {
    limits: AdmissionLimits,
    turns: Arc<Mutex<Turns>>,
}

/// The running and waiting requests.
#[derive(Debug, Default)]
struct Turns {
    is_closed: bool,
    running: usize,
    waiting: usize,
    /// The number of the next request.
    number: u64,
    /// The clients with running or waiting requests.
    clients: HashMap<Client, ClientQueue>,
    pace: Pace,
}

#[derive(Debug, Default)]
struct ClientQueue {
    running: usize,
    waiting: VecDeque<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    number: u64,
    turn: oneshot::Sender<Result<Admitted, AdmissionError>>,
}

/// The right to run; given back when dropped.
#[derive(Debug)]
pub(crate) struct Admitted {
    admission: Admission,
    client: Client,
}

impl Admission {
    pub(crate) fn new(limits: AdmissionLimits) -> Self {
        Self { limits, turns: Arc::default() }
    }

    /// Waits for a slot. Dropping the future leaves the queue.
    pub(crate) async fn enter(&self, client: &Client) -> Result<Admitted, AdmissionError> {
        let (place, mut turn) = {
            let turns = &mut *lock(&self.turns);
            if turns.is_closed {
                return Err(AdmissionError::Closed);
            }
            if turns.running < self.limits.running && turns.may_start_another(client, self.limits) {
                // Nobody else is waiting who may run: a free slot is handed on at once.
                return Ok(turns.admit(self, client));
            }
            if turns.waiting >= self.limits.queue {
                self.make_room(turns, client)?;
            }
            let (sender, turn) = oneshot::channel();
            (self.enqueue(turns, client, sender), turn)
        };
        let answer = tokio::time::timeout(self.limits.wait, &mut turn).await;
        drop(place);
        match answer {
            Ok(answer) => answer.unwrap_or(Err(AdmissionError::Closed)),
            // The turn may have come at this very moment.
            Err(_) => turn.try_recv().unwrap_or_else(|_| {
                let turns = lock(&self.turns);
                Err(AdmissionError::WaitedTooLong {
                    running: turns.running,
                    wait: self.limits.wait,
                    served_in: turns.pace.time_for(turns.waiting + 1),
                })
            }),
        }
    }

    fn enqueue(
        &self,
        turns: &mut Turns,
        client: &Client,
        turn: oneshot::Sender<Result<Admitted, AdmissionError>>,
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

    /// Refuses the newest request of the client with the longest queue, unless that is this client.
    fn make_room(&self, turns: &mut Turns, client: &Client) -> Result<(), AdmissionError> {
        let Turns { clients, waiting, running, pace, .. } = turns;
        let (running, queue) = (*running, self.limits.queue);
        let served_in = pace.time_for(*waiting + 1);
        let full = AdmissionError::QueueFull { running, queue, served_in };
        let own = clients.get(client).map_or(0, |share| share.waiting.len());
        let longest = clients.values_mut().max_by_key(|share| share.waiting.len());
        match longest {
            // With one more request, this client's queue would be as long.
            Some(share) if share.waiting.len() > own + 1 => {
                if let Some(last) = share.waiting.pop_back() {
                    *waiting -= 1;
                    // The receiver may be gone, which is fine.
                    let _ = last.turn.send(Err(full));
                }
                Ok(())
            }
            _ => Err(full),
        }
    }

    pub(crate) fn running(&self) -> usize {
        lock(&self.turns).running
    }

    pub(crate) fn waiting(&self) -> usize {
        lock(&self.turns).waiting
    }

    /// The clients with running or waiting requests, and how many those are.
    pub(crate) fn clients(&self) -> Vec<(Client, usize, usize)> {
        let turns = lock(&self.turns);
        let of = |(client, share): (&Client, &ClientQueue)| {
            (client.clone(), share.running, share.waiting.len())
        };
        turns.clients.iter().map(of).collect()
    }

    /// Refuses all requests from now on.
    pub(crate) fn close(&self) {
        let mut turns = lock(&self.turns);
        turns.is_closed = true;
        turns.waiting = 0;
        for share in turns.clients.values_mut() {
            // Dropping the senders tells them.
            share.waiting.clear();
        }
    }
}

impl Turns {
    fn admit(&mut self, admission: &Admission, client: &Client) -> Admitted {
        self.running += 1;
        self.clients.entry(client.clone()).or_default().running += 1;
        Admitted { admission: admission.clone(), client: client.clone() }
    }

    fn may_start_another(&self, client: &Client, limits: AdmissionLimits) -> bool {
        let running = self.clients.get(client).map_or(0, |share| share.running);
        *client == Client::host() || running < limits.running_of_one
    }

    /// The next request to run: of the clients that may start another, the one with the fewest running, and then
    /// the one that came first.
    fn next(&mut self, limits: AdmissionLimits) -> Option<(Client, Waiting)> {
        let waiting = self.clients.iter().filter_map(|(client, share)| {
            let first = share.waiting.front()?;
            self.may_start_another(client, limits).then_some((share.running, first.number, client))
        });
        let client = waiting.min_by_key(|(running, number, _)| (*running, *number))?.2.clone();
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
        let mut turns = lock(&self.admission.turns);
        turns.running -= 1;
        let is_busy = turns.waiting > 0;
        turns.pace.served(is_busy);
        if let Some(share) = turns.clients.get_mut(&self.client) {
            share.running -= 1;
        }
        let handed_on = turns.next(self.admission.limits).map(|(client, waiting)| {
            let admitted = turns.admit(&self.admission, &client);
            waiting.turn.send(Ok(admitted))
        });
        turns.forget_if_idle(&self.client);
        drop(turns);
        // If the receiver is gone this gives the slot back, which takes the lock again.
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
mod tests {
    use super::*;

    fn admission(running: usize, queue: usize) -> Arc<Admission> {
        let wait = Duration::from_secs(5);
        Arc::new(Admission::new(AdmissionLimits { running, running_of_one: running, queue, wait }))
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_queue_refuses_at_once_and_a_long_wait_ends() {
        let (admission, host) = (admission(1, 1), Client::host());
        let running = admission.enter(&host).await.unwrap();
        let mut second = Box::pin(admission.enter(&host));
        assert!(futures_util::poll!(&mut second).is_pending());
        assert!(matches!(admission.enter(&host).await, Err(AdmissionError::QueueFull { .. })));
        assert!(matches!(second.await, Err(AdmissionError::WaitedTooLong { .. })));
        assert_eq!(admission.waiting(), 0);
        drop(running);
        assert!(admission.enter(&host).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_refused_is_told_when_those_that_wait_are_served() {
        let (admission, ran) = (admission(1, 40), Arc::default());
        let first = line_up(&admission, "a", 41, &ran);
        tokio::time::sleep(Duration::from_millis(105)).await;
        let second = line_up(&admission, "b", 10, &ran);
        tokio::task::yield_now().await;
        // In the full queue, the one with most requests loses one.
        drop(admission.enter(&Client::host()).await);
        let mut refused = Vec::new();
        for task in first.into_iter().chain(second) {
            refused.extend(task.await.unwrap().err());
        }
        let [error @ AdmissionError::QueueFull { served_in: Some(time), .. }] = &refused[..] else {
            panic!("{refused:?}");
        };
        assert_eq!(*time, Duration::from_millis(410));
        assert!(error.to_string().ends_with("try again in about a second"), "{error}");
    }

    #[tokio::test]
    async fn a_waiter_that_gives_up_frees_its_place() {
        let (admission, host) = (admission(1, 1), Client::host());
        let _running = admission.enter(&host).await.unwrap();
        {
            let mut waiter = Box::pin(admission.enter(&host));
            assert!(futures_util::poll!(&mut waiter).is_pending());
            assert_eq!(admission.waiting(), 1);
        }
        assert_eq!(admission.waiting(), 0);
    }

    #[tokio::test]
    async fn closing_refuses_waiting_and_new_requests() {
        let (admission, host) = (admission(1, 1), Client::host());
        let _running = admission.enter(&host).await.unwrap();
        let mut waiter = Box::pin(admission.enter(&host));
        assert!(futures_util::poll!(&mut waiter).is_pending());
        admission.close();
        assert!(matches!(waiter.await, Err(AdmissionError::Closed)));
        assert!(matches!(admission.enter(&host).await, Err(AdmissionError::Closed)));
    }

    /// Lets `count` requests of a client wait, and notes the client's name when each has run.
    fn line_up(
        admission: &Arc<Admission>,
        name: &'static str,
        count: usize,
        ran: &Arc<Mutex<Vec<&'static str>>>,
    ) -> Vec<tokio::task::JoinHandle<Result<(), AdmissionError>>> {
        let one = || {
            let (admission, ran) = (Arc::clone(admission), Arc::clone(ran));
            #[expect(clippy::disallowed_methods, reason = "a test waits for its tasks")]
            tokio::spawn(async move {
                let _admitted = admission.enter(&Client::named(name)).await?;
                tokio::time::sleep(Duration::from_millis(10)).await;
                lock(&ran).push(name);
                Ok(())
            })
        };
        std::iter::repeat_with(one).take(count).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn a_flooding_client_is_served_no_more_than_others() {
        let admission = admission(2, 100);
        let ran = Arc::default();
        let mut requests = line_up(&admission, "flood", 50, &ran);
        tokio::time::sleep(Duration::from_millis(5)).await;
        requests.extend(line_up(&admission, "other", 3, &ran));
        for request in requests {
            request.await.unwrap().unwrap();
        }
        let ran = lock(&ran).clone();
        // Two had begun before; from then on every second one is the other's.
        let last = ran.iter().rposition(|name| *name == "other").unwrap();
        assert!(last <= 7, "{ran:?}");
        assert_eq!((ran.len(), admission.running(), admission.waiting()), (53, 0, 0));
        assert!(lock(&admission.turns).clients.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn one_client_leaves_slots_for_others_unless_it_is_the_host() {
        let wait = Duration::from_secs(5);
        let limits = AdmissionLimits { running: 4, running_of_one: 3, queue: 10, wait };
        let admission = Admission::new(limits);
        let (one, other) = (Client::named("one"), Client::named("other"));
        let mut running = Vec::new();
        for _ in 0..3 {
            running.push(admission.enter(&one).await.unwrap());
        }
        let mut fourth = Box::pin(admission.enter(&one));
        assert!(futures_util::poll!(&mut fourth).is_pending());
        // The other does not wait behind it, and what it gives back is not for the one.
        drop(admission.enter(&other).await.unwrap());
        assert!(futures_util::poll!(&mut fourth).is_pending());
        assert_eq!((admission.running(), admission.waiting()), (3, 1));
        running.pop();
        running.push(fourth.await.unwrap());
        let refused = admission.enter(&one).await.unwrap_err();
        assert_eq!(refused, AdmissionError::WaitedTooLong { running: 3, wait, served_in: None });
        drop(running);

        let host = Client::host();
        let mut all = Vec::new();
        for _ in 0..4 {
            all.push(admission.enter(&host).await.unwrap());
        }
        assert_eq!(admission.running(), 4);
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_queue_admits_a_client_with_fewer_requests_in_it() {
        let admission = admission(1, 10);
        let ran = Arc::default();
        let flood = line_up(&admission, "flood", 11, &ran);
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!((admission.running(), admission.waiting()), (1, 10));
        let full = admission.enter(&Client::named("flood")).await;
        assert!(matches!(full, Err(AdmissionError::QueueFull { .. })));
        let others = line_up(&admission, "other", 7, &ran);
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!(admission.waiting(), 10, "no more than there are places");
        let count = async |requests: Vec<tokio::task::JoinHandle<Result<(), _>>>| {
            let mut served = 0;
            for request in requests {
                served += usize::from(request.await.unwrap().is_ok());
            }
            served
        };
        assert_eq!((count(flood).await, count(others).await), (1 + 5, 5), "half for each");
    }

    #[tokio::test(start_paused = true)]
    async fn the_turn_of_a_request_that_is_gone_goes_to_the_next() {
        let admission = admission(1, 10);
        let host = Client::host();
        let running = admission.enter(&host).await.unwrap();
        let mut gone = Box::pin(admission.enter(&host));
        let mut next = Box::pin(admission.enter(&host));
        assert!(futures_util::poll!(&mut gone).is_pending());
        assert!(futures_util::poll!(&mut next).is_pending());
        drop(running);
        // It has the turn, but has not noticed.
        drop(gone);
        let admitted = next.await.unwrap();
        assert_eq!((admission.running(), admission.waiting()), (1, 0));
        drop(admitted);
        assert_eq!(admission.running(), 0);
    }
}
