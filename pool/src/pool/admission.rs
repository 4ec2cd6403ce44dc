//! Admission: how many requests run at once, how many may wait, and whose turn it is.
//!
//! Clients share what there is. A slot that becomes free goes to the one with the fewest running requests
//! among those who wait, and a queue that is full takes one who has fewer places in it than another, whose
//! last request is refused for it; and none may run more than its limit. So whoever floods the server is in
//! nobody's way but its own. (The second rule is known from packet queues as "longest queue drop".)

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::oneshot;

use crate::lock::lock;

/// The bounds of admission.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AdmissionLimits {
    /// Requests that run at the same time.
    pub running: usize,
    /// Those of them that may be of one client, where a server has several: whatever one of them runs, and for
    /// however long, something is left for the others.
    pub running_of_one: usize,
    /// Requests that may wait for one of those to end.
    pub queue: usize,
    /// Longest wait.
    pub wait: Duration,
}

/// Who asks. Requests of one client wait in the order in which they came.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Client(Arc<str>);

impl Client {
    /// The only one there is, where a server has one host.
    pub fn host() -> Self {
        Self::named("host")
    }

    /// One of several.
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
    #[error("{running} requests are running and {queue} are waiting: try again in a moment")]
    QueueFull {
        /// Requests that run.
        running: usize,
        /// Requests that wait.
        queue: usize,
    },
    /// The request waited as long as it may.
    #[error(
        "{running} requests are running and it was not this one's turn within {wait:?}: try again later"
    )]
    WaitedTooLong {
        /// Requests that run.
        running: usize,
        /// How long the request waited.
        wait: Duration,
    },
    /// The server is stopping.
    #[error("the server is shutting down")]
    Closed,
}

/// The gate in front of the pools.
#[derive(Debug, Clone)]
pub(crate) struct Admission {
    limits: AdmissionLimits,
    turns: Arc<Mutex<Turns>>,
}

/// Who runs and who waits.
#[derive(Debug, Default)]
struct Turns {
    is_closed: bool,
    running: usize,
    waiting: usize,
    /// The next to come.
    number: u64,
    /// Those who have something here.
    clients: HashMap<Client, Share>,
}

#[derive(Debug, Default)]
struct Share {
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
            if turns.running < self.limits.running && turns.may_have_more(client, self.limits) {
                // Nobody waits who may run: a slot does not become free without being handed on.
                return Ok(turns.admit(self, client));
            }
            if turns.waiting >= self.limits.queue {
                self.make_room(turns, client)?;
            }
            let (sender, turn) = oneshot::channel();
            (self.line_up(turns, client, sender), turn)
        };
        let answer = tokio::time::timeout(self.limits.wait, &mut turn).await;
        drop(place);
        match answer {
            Ok(answer) => answer.unwrap_or(Err(AdmissionError::Closed)),
            // It may have come in the very moment.
            Err(_) => turn.try_recv().unwrap_or_else(|_| {
                Err(AdmissionError::WaitedTooLong {
                    running: self.running(),
                    wait: self.limits.wait,
                })
            }),
        }
    }

    fn line_up(
        &self,
        turns: &mut Turns,
        client: &Client,
        turn: oneshot::Sender<Result<Admitted, AdmissionError>>,
    ) -> Place {
        let number = turns.number;
        turns.number += 1;
        turns.waiting += 1;
        turns
            .clients
            .entry(client.clone())
            .or_default()
            .waiting
            .push_back(Waiting { number, turn });
        Place { turns: Arc::clone(&self.turns), client: client.clone(), number }
    }

    /// Refuses the last request of the client with the longest queue, unless that is this one.
    fn make_room(&self, turns: &mut Turns, client: &Client) -> Result<(), AdmissionError> {
        let Turns { clients, waiting, running, .. } = turns;
        let full = AdmissionError::QueueFull { running: *running, queue: self.limits.queue };
        let own = clients.get(client).map_or(0, |share| share.waiting.len());
        let longest = clients.values_mut().max_by_key(|share| share.waiting.len());
        match longest {
            // With one place more, this one's would be as long.
            Some(share) if share.waiting.len() > own + 1 => {
                if let Some(last) = share.waiting.pop_back() {
                    *waiting -= 1;
                    // Who has gone does not need to know.
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

    /// Refuses everybody from now on.
    pub(crate) fn close(&self) {
        let mut turns = lock(&self.turns);
        turns.is_closed = true;
        turns.waiting = 0;
        for share in turns.clients.values_mut() {
            // They are told by the end of their channel.
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

    fn may_have_more(&self, client: &Client, limits: AdmissionLimits) -> bool {
        let running = self.clients.get(client).map_or(0, |share| share.running);
        *client == Client::host() || running < limits.running_of_one
    }

    /// LabelFilter turn it is: of those who may have one more who has the fewest running, and of those who came
    /// first.
    fn next(&mut self, limits: AdmissionLimits) -> Option<(Client, Waiting)> {
        let waiting = self.clients.iter().filter_map(|(client, share)| {
            let first = share.waiting.front()?;
            self.may_have_more(client, limits).then_some((share.running, first.number, client))
        });
        let client = waiting.min_by_key(|(running, number, _)| (*running, *number))?.2.clone();
        let first = self.clients.get_mut(&client)?.waiting.pop_front()?;
        self.waiting -= 1;
        Some((client, first))
    }

    /// Forgets a client that has nothing here any more.
    fn tidy(&mut self, client: &Client) {
        let is_gone = |share: &Share| share.running == 0 && share.waiting.is_empty();
        if self.clients.get(client).is_some_and(is_gone) {
            self.clients.remove(client);
        }
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        let mut turns = lock(&self.admission.turns);
        turns.running -= 1;
        if let Some(share) = turns.clients.get_mut(&self.client) {
            share.running -= 1;
        }
        let handed_on = turns.next(self.admission.limits).map(|(client, waiting)| {
            let admitted = turns.admit(&self.admission, &client);
            waiting.turn.send(Ok(admitted))
        });
        turns.tidy(&self.client);
        drop(turns);
        // Who has gone gives it back, which takes the lock again.
        drop(handed_on);
    }
}

/// A place in the queue, which is left when it is dropped.
struct Place {
    turns: Arc<Mutex<Turns>>,
    client: Client,
    number: u64,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut turns = lock(&self.turns);
        if let Some(share) = turns.clients.get_mut(&self.client)
            && let Some(at) = share.waiting.iter().position(|other| other.number == self.number)
        {
            share.waiting.remove(at);
            turns.waiting -= 1;
        }
        turns.tidy(&self.client);
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
    async fn closing_turns_away_those_who_wait_and_those_who_come() {
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
    async fn who_floods_is_served_no_more_than_who_asks_now_and_then() {
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
    async fn one_client_leaves_something_to_the_others_unless_it_is_the_host() {
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
        assert_eq!(refused, AdmissionError::WaitedTooLong { running: 3, wait });
        drop(running);

        let host = Client::host();
        let mut all = Vec::new();
        for _ in 0..4 {
            all.push(admission.enter(&host).await.unwrap());
        }
        assert_eq!(admission.running(), 4);
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_queue_has_room_for_who_has_less_in_it() {
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
    async fn a_turn_that_comes_to_somebody_who_has_gone_goes_on_to_the_next() {
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
