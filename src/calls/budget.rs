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
    all: usize,
    of: HashMap<Client, usize>,
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
        taken.all += bytes;
        *taken.of.entry(self.client.clone()).or_default() += bytes;
        self.bytes += bytes;
        true
    }

    /// Whether there is room for so many more, and only the client has its share.
    pub(crate) fn is_own_limit(&self, bytes: usize) -> bool {
        let taken = lock(&self.budget.taken);
        bytes <= taken.most.saturating_sub(taken.all)
    }

    /// Takes `bytes` instead of those it has, even if that exceeds the budget: they are in memory already, and other
    /// requests are refused until they are given back.
    pub(crate) fn replace(&mut self, bytes: usize) {
        let mut taken = lock(&self.budget.taken);
        let own = taken.of.entry(self.client.clone()).or_default();
        *own = *own - self.bytes + bytes;
        taken.all = taken.all - self.bytes + bytes;
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
        let mut taken = lock(&self.budget.taken);
        taken.all -= self.bytes;
        if let Some(own) = taken.of.get_mut(&self.client) {
            *own -= self.bytes;
            if *own == 0 {
                taken.of.remove(&self.client);
            }
        }
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
        others.replace(200);
        assert!(!two.grow(1), "more than there is");
        others.replace(0);
        assert!(two.grow(1));
        drop((two, others));
        let taken = budget.taken.lock().unwrap();
        assert!(taken.all == 0 && taken.of.is_empty(), "{taken:?}");
    }
}
