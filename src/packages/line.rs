//! The queue of builds that wait for their turn. It is fair among clients, as that of calls is: a client with many builds waits
//! behind its own ones, and not before those of others. The sets of the configuration come first.

use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use isolator_pool::pool::admission::{
    Admission, AdmissionError, AdmissionLimits, Admitted, Client,
};
use tokio::sync::watch;

use super::asked::Plan;
use super::jobs::MOST_BUILDS;
use super::refusal::Refusal;

/// Builds that run at the same time. The others wait for their turn.
const AT_ONCE: usize = 2;

/// Longest wait for a turn.
const LONGEST_WAIT: Duration = Duration::from_secs(60 * 60);

/// A queue for one client, or for several, of which none has all turns at once.
pub(super) fn new(has_one_client: bool) -> Admission {
    let limits = AdmissionLimits {
        running: AT_ONCE,
        running_of_one: if has_one_client { AT_ONCE } else { AT_ONCE - 1 },
        queue: MOST_BUILDS - AT_ONCE,
        wait: LONGEST_WAIT,
    };
    Admission::new(limits, Some(Client::Server))
}

/// Waits for the turn of a build: the first turn that any of the clients that ask for it gets.
pub(super) async fn turn(
    line: &Admission,
    plan: &Plan,
    mut clients: watch::Receiver<Vec<Client>>,
) -> Result<Admitted, Refusal> {
    // A set of the configuration is built for the server, whichever client asks for it.
    if plan.key.set.is_some() {
        return line.enter(&Client::Server).await.map_err(refused);
    }
    let mut places = FuturesUnordered::new();
    let mut known = 0;
    loop {
        let new = clients.borrow_and_update()[known..].to_vec();
        known += new.len();
        places.extend(new.into_iter().map(async |client| line.enter(&client).await));
        tokio::select! {
            biased;
            Some(turn) = places.next() => match turn {
                // Another client's place may still get a turn.
                Err(_) if !places.is_empty() => {}
                turn => return turn.map_err(refused),
            },
            Ok(()) = clients.changed() => {}
        }
    }
}

fn refused(error: AdmissionError) -> Refusal {
    match error {
        AdmissionError::QueueFull { queue: waiting, .. } => {
            Refusal::Busy { waiting, what: "sets of packages wait to be built" }
        }
        AdmissionError::WaitedTooLong { running: waiting, .. } => {
            Refusal::Busy { waiting, what: "sets of packages are being built, which takes long" }
        }
        AdmissionError::Closed => Refusal::Stopping,
    }
}
