//! Items that are kept for callers: each has a random name, belongs to one client, and expires.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use isolator_pool::lock::lock;
use isolator_pool::pool::admission::Client;
use tokio::time::Instant;

use crate::node::{LostHandle, Node, Thing};

/// Longest time for which anything is kept, whatever the configuration says.
const MAX_KEEP_FOR: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// Maximum weight of the kept items.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Capacity {
    /// For all clients together.
    pub all: usize,
    /// For one of them.
    pub of_one: usize,
}

/// Items that are kept for their clients.
#[derive(Debug)]
pub(crate) struct Handles<T> {
    /// The node whose name the names have.
    node: Node,
    /// Maximum weight, and how long items are kept.
    bounds: Mutex<(Capacity, Duration)>,
    kept: Mutex<HashMap<String, Kept<T>>>,
}

#[derive(Debug)]
struct Kept<T> {
    client: Client,
    weight: usize,
    until: Instant,
    thing: Arc<T>,
}

/// Why an item can't be kept.
#[derive(Debug, thiserror::Error)]
pub(crate) enum KeepError {
    /// The capacity is used up.
    #[error("the server can't keep more")]
    Full,
    /// The kernel has no random bytes for a name.
    #[error("the kernel returned no random bytes: {0}")]
    Random(#[from] getrandom::Error),
}

impl<T> Handles<T> {
    /// Keeps items for `keep_for`.
    pub(crate) fn new(node: &Node, capacity: Capacity, keep_for: Duration) -> Self {
        let bounds = Mutex::new((capacity, keep_for.min(MAX_KEEP_FOR)));
        Self { node: node.clone(), bounds, kept: Mutex::default() }
    }

    /// Why a name that leads to nothing is lost, if a node has made it.
    pub(crate) fn lost(&self, name: &str, thing: Thing) -> Option<Box<LostHandle>> {
        self.node.lost(name, thing).map(Box::new)
    }

    /// Changes the maximum weight, and how long later items are kept.
    pub(crate) fn set_bounds(&self, capacity: Capacity, keep_for: Duration) {
        *lock(&self.bounds) = (capacity, keep_for.min(MAX_KEEP_FOR));
    }

    /// The maximum weight.
    pub(crate) fn capacity(&self) -> Capacity {
        lock(&self.bounds).0
    }

    /// Keeps an item for a client if there is room for it, and returns its name.
    pub(crate) fn keep(
        &self,
        client: &Client,
        weight: usize,
        thing: T,
    ) -> Result<String, KeepError> {
        let name = self.node.new_handle()?;
        let (capacity, keep_for) = *lock(&self.bounds);
        let mut kept = self.kept();
        let (all, own) = weights(&kept, client);
        if weight > capacity.all.saturating_sub(all) || weight > capacity.of_one.saturating_sub(own)
        {
            return Err(KeepError::Full);
        }
        let until = Instant::now() + keep_for;
        let thing = Arc::new(thing);
        kept.insert(name.clone(), Kept { client: client.clone(), weight, until, thing });
        Ok(name)
    }

    /// Keeps an item, and drops older ones to make room: the client's own, or those of the client with the most.
    ///
    /// # Errors
    ///
    /// When it is more than can ever be kept.
    pub(crate) fn keep_newest(
        &self,
        client: &Client,
        weight: usize,
        thing: T,
    ) -> Result<String, KeepError> {
        let capacity = self.capacity();
        if weight > capacity.all.min(capacity.of_one) {
            return Err(KeepError::Full);
        }
        let mut kept = self.kept();
        make_room(&mut kept, capacity, client, weight, |_, _| true);
        drop(kept);
        self.keep(client, weight, thing)
    }

    /// Notes what a thing weighs by now, and drops older things to make room for it, as [`keep_newest`] does, but only
    /// those that `can_go`. If that is not enough, it goes itself.
    ///
    /// [`keep_newest`]: Self::keep_newest
    pub(crate) fn weigh(&self, name: &str, weight: usize, can_go: impl Fn(&T) -> bool) {
        let capacity = self.capacity();
        let mut kept = self.kept();
        let Some(thing) = kept.get_mut(name) else { return };
        thing.weight = weight;
        let client = thing.client.clone();
        let other = |other: &str, thing: &T| other != name && can_go(thing);
        if !make_room(&mut kept, capacity, &client, 0, other) {
            kept.remove(name);
        }
    }

    /// A client's thing of that name. `None` if it has expired, or belongs to another client.
    pub(crate) fn get(&self, client: &Client, name: &str) -> Option<Arc<T>> {
        let kept = lock(&self.kept);
        let kept = kept.get(name).filter(|kept| kept.client == *client)?;
        (kept.until > Instant::now()).then(|| Arc::clone(&kept.thing))
    }

    /// How many things are there, and what they weigh together.
    pub(crate) fn held(&self) -> (usize, usize) {
        let kept = self.kept();
        (kept.len(), kept.values().map(|kept| kept.weight).sum())
    }

    /// The items that have not expired.
    fn kept(&self) -> MutexGuard<'_, HashMap<String, Kept<T>>> {
        let mut kept = lock(&self.kept);
        let now = Instant::now();
        kept.retain(|_, kept| kept.until > now);
        kept
    }
}

/// The weight of all clients' items, and of those of one client.
fn weights<T>(kept: &HashMap<String, Kept<T>>, client: &Client) -> (usize, usize) {
    let own = kept.values().filter(|kept| kept.client == *client).map(|kept| kept.weight).sum();
    (kept.values().map(|kept| kept.weight).sum(), own)
}

/// Drops items that `can_go`, the oldest first, until a client has room for `more`: its own, or those of the client with the most.
/// Returns whether there is room now.
fn make_room<T>(
    kept: &mut HashMap<String, Kept<T>>,
    capacity: Capacity,
    client: &Client,
    more: usize,
    can_go: impl Fn(&str, &T) -> bool,
) -> bool {
    loop {
        let (all, own) = weights(kept, client);
        let loser = if own + more > capacity.of_one {
            client.clone()
        } else if all + more > capacity.all {
            heaviest(kept).unwrap_or_else(|| client.clone())
        } else {
            return true;
        };
        let candidates =
            kept.iter().filter(|(name, kept)| kept.client == loser && can_go(name, &kept.thing));
        let oldest = candidates.min_by_key(|(_, kept)| kept.until).map(|(name, _)| name.clone());
        let Some(oldest) = oldest else { return false };
        kept.remove(&oldest);
    }
}

/// The client whose items weigh most, if there are any.
fn heaviest<T>(kept: &HashMap<String, Kept<T>>) -> Option<Client> {
    let mut of = HashMap::<&Client, usize>::new();
    for kept in kept.values() {
        *of.entry(&kept.client).or_default() += kept.weight;
    }
    let heaviest = of.into_iter().max_by_key(|(_, weight)| *weight);
    heaviest.map(|(client, _)| client.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn handles(all: usize, of_one: usize) -> Handles<&'static str> {
        Handles::new(&Node::default(), Capacity { all, of_one }, 10 * SECOND)
    }

    #[tokio::test(start_paused = true)]
    async fn a_thing_is_its_client_s_alone_and_expires() {
        let handles = handles(10, 10);
        let (one, two) = (Client::named("one"), Client::named("two"));
        let name = handles.keep(&one, 1, "thing").unwrap();
        assert!(name.len() == 32 && name != handles.keep(&one, 1, "other").unwrap());
        assert!(handles.get(&two, &name).is_none() && handles.get(&one, "").is_none());
        tokio::time::advance(9 * SECOND).await;
        assert_eq!(handles.get(&one, &name).as_deref(), Some(&"thing"));
        tokio::time::advance(SECOND).await;
        assert!(handles.get(&one, &name).is_none());
        assert!(handles.kept().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn the_client_with_the_most_loses_its_oldest_first() {
        let handles = handles(10, 8);
        let (greedy, modest) = (Client::named("greedy"), Client::named("modest"));
        let first = handles.keep_newest(&greedy, 4, "first").unwrap();
        tokio::time::advance(SECOND).await;
        let second = handles.keep_newest(&greedy, 4, "second").unwrap();
        assert!(matches!(handles.keep(&greedy, 1, "more"), Err(KeepError::Full)));
        let own = handles.keep_newest(&modest, 4, "own").unwrap();
        assert!(handles.get(&greedy, &first).is_none() && handles.get(&greedy, &second).is_some());
        handles.keep_newest(&greedy, 6, "third").unwrap();
        assert!(handles.get(&greedy, &second).is_none() && handles.get(&modest, &own).is_some());
        assert!(matches!(handles.keep_newest(&modest, 9, "too large"), Err(KeepError::Full)));
    }
}
