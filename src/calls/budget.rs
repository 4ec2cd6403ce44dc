//! Limits the memory of the requests being served, in total and for each client.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use isolator_pool::lock::lock;
use isolator_pool::pool::admission::Client;

/// Bytes that clients share. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Budget {
    taken: Arc<Mutex<Taken>>,
}

#[derive(Debug, Default)]
struct Taken {
    most: usize,
    most_of_one: usize,
    /// The bytes of all clients. One that has more than it can have, because of answers that it does not read, counts only with what
    /// it can have, so that it leaves the others theirs.
    all: usize,
    of: HashMap<Client, usize>,
}

impl Taken {
    /// Changes the bytes of a client by those that a share had and has.
    fn change(&mut self, client: &Client, had: usize, has: usize) {
        let own = self.of.entry(client.clone()).or_default();
        let counted = (*own).min(self.most_of_one);
        *own = *own - had + has;
        self.all = self.all - counted + (*own).min(self.most_of_one);
        if *own == 0 {
            self.of.remove(client);
        }
    }
}

/// Bytes of a client; given back when dropped.
#[derive(Debug)]
pub(crate) struct Share {
    budget: Budget,
    client: Client,
    bytes: usize,
}

impl Budget {
    /// A budget of `most` bytes for all clients and `most_of_one` for each.
    pub(crate) fn new(most: usize, most_of_one: usize) -> Self {
        let taken = Taken { most, most_of_one, ..Taken::default() };
        Self { taken: Arc::new(Mutex::new(taken)) }
    }

    /// Changes the number of bytes. Bytes that are taken stay taken.
    pub(crate) fn set_limits(&self, most: usize, most_of_one: usize) {
        let mut taken = lock(&self.taken);
        (taken.most, taken.most_of_one) = (most, most_of_one);
        taken.all = taken.of.values().map(|own| (*own).min(most_of_one)).sum();
    }

    /// A share of nothing, to begin with.
    pub(crate) fn share(&self, client: &Client) -> Share {
        Share { budget: self.clone(), client: client.clone(), bytes: 0 }
    }
}

impl Share {
    /// Takes more; returns whether there was enough.
    #[must_use]
    pub(crate) fn grow(&mut self, bytes: usize) -> bool {
        let mut taken = lock(&self.budget.taken);
        let Taken { most, most_of_one, .. } = *taken;
        let own = taken.of.get(&self.client).copied().unwrap_or_default();
        if bytes > most.saturating_sub(taken.all) || bytes > most_of_one.saturating_sub(own) {
            return false;
        }
        taken.change(&self.client, 0, bytes);
        self.bytes += bytes;
        true
    }

    /// A share of the same client that has its bytes from now on.
    pub(crate) fn take(&mut self) -> Self {
        let bytes = std::mem::take(&mut self.bytes);
        Self { budget: self.budget.clone(), client: self.client.clone(), bytes }
    }

    /// Whether there is room for so many more, and only the client has its share.
    pub(crate) fn is_own_limit(&self, bytes: usize) -> bool {
        let taken = lock(&self.budget.taken);
        bytes <= taken.most.saturating_sub(taken.all)
    }

    /// Takes `bytes` instead of those it has, even if that exceeds the budget: they are in memory already, and other
    /// requests of the client are refused until they are given back.
    pub(crate) fn replace(&mut self, bytes: usize) {
        lock(&self.budget.taken).change(&self.client, self.bytes, bytes);
        self.bytes = bytes;
    }

    /// Grows to `bytes` if it is smaller, as [`Self::replace`].
    pub(crate) fn at_least(&mut self, bytes: usize) {
        if bytes > self.bytes {
            self.replace(bytes);
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.replace(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_client_leaves_something_for_the_others() {
        let budget = Budget::new(100, 60);
        let (greedy, other) = (Client::named("greedy"), Client::named("other"));
        let (mut one, mut two) = (budget.share(&greedy), budget.share(&greedy));
        assert!(one.grow(40) && two.grow(20) && !two.grow(1) && two.is_own_limit(1));
        let mut others = budget.share(&other);
        assert!(others.grow(40) && !others.grow(1) && !others.is_own_limit(1));
        drop(one);
        assert!(others.grow(20) && !others.grow(1) && two.grow(20));
        two.replace(100);
        others.replace(200);
        assert!(!two.grow(1) && !others.grow(1), "each has more than it can have");
        let mut third = budget.share(&Client::named("third"));
        assert!(!third.grow(1), "two clients have all");
        others.replace(0);
        assert!(third.grow(40) && !third.grow(1), "one client has no more than its part");
        budget.set_limits(100, 30);
        assert!(others.grow(30) && !others.grow(1));
        drop((two, others, third));
        let taken = budget.taken.lock().unwrap();
        assert!(taken.all == 0 && taken.of.is_empty(), "{taken:?}");
    }
}
