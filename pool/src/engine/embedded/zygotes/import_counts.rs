//! Counts of the modules that programs have imported, and the budget for importing them ahead.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

/// How often a set of modules must be imported, with no longer pause between, before a template is made for it.
const OFTEN: u32 = 3;
const PAUSE: Duration = Duration::from_secs(10 * 60);

/// Maximum number of sets, and of clients, that are counted. The one that was seen the longest time ago is forgotten.
const MOST_SETS: usize = 64;
const MOST_CLIENTS: usize = 256;

/// How often each set was imported, by image, and the CPU time of each client.
#[derive(Debug, Default)]
pub(super) struct ImportCounts {
    sets: HashMap<(String, Vec<String>), Count>,
    budgets: HashMap<String, Budget>,
}

#[derive(Debug)]
struct Count {
    times: u32,
    last: Instant,
}

/// The CPU time of a client's programs that named modules, and that of the templates which were made for them. A program can name
/// modules without importing them, so templates may not cost more than the programs did.
#[derive(Debug)]
struct Budget {
    used: Duration,
    spent: Duration,
    last: Instant,
}

impl ImportCounts {
    /// Counts that a program of a client, which took so much CPU time, has imported a set, sorted, of modules of an image. Returns
    /// whether a template should be made for it.
    pub(super) fn count(
        &mut self,
        digest: &str,
        modules: &[String],
        client: &str,
        cpu: Duration,
    ) -> bool {
        let last = Instant::now();
        let key = (digest.to_owned(), modules.to_vec());
        make_room(&mut self.sets, &key, MOST_SETS, |count| count.last);
        let count = self.sets.entry(key).or_insert(Count { times: 0, last });
        count.times = if last - count.last > PAUSE { 1 } else { count.times.saturating_add(1) };
        count.last = last;
        let is_often = count.times >= OFTEN;
        let budget = self.budget(client);
        budget.used = budget.used.saturating_add(cpu);
        is_often && budget.spent <= budget.used
    }

    /// Charges a client for a template.
    pub(super) fn charge(&mut self, client: &str, cpu: Duration) {
        let budget = self.budget(client);
        budget.spent = budget.spent.saturating_add(cpu);
    }

    fn budget(&mut self, client: &str) -> &mut Budget {
        let last = Instant::now();
        let client = client.to_owned();
        make_room(&mut self.budgets, &client, MOST_CLIENTS, |budget| budget.last);
        let zero = Budget { used: Duration::ZERO, spent: Duration::ZERO, last };
        let budget = self.budgets.entry(client).or_insert(zero);
        budget.last = last;
        budget
    }
}

/// Forgets the oldest entry, if a new one would be one too many.
fn make_room<K: Clone + Eq + std::hash::Hash, V>(
    map: &mut HashMap<K, V>,
    key: &K,
    most: usize,
    last: impl Fn(&V) -> Instant,
) {
    if map.contains_key(key) || map.len() < most {
        return;
    }
    let oldest = map.iter().min_by_key(|(_, value)| last(value)).map(|(key, _)| key.clone());
    oldest.map(|oldest| map.remove(&oldest));
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn a_set_is_imported_often_if_the_pauses_are_short() {
        let mut counts = ImportCounts::default();
        let set = ["scipy".to_owned()];
        let mut count = |digest| counts.count(digest, &set, "client", LONG);
        assert_eq!([count("a"), count("a"), count("b"), count("a")], [false, false, false, true]);
        tokio::time::advance(PAUSE * 2).await;
        assert!(!count("a"));
    }

    #[tokio::test(start_paused = true)]
    async fn the_oldest_set_and_the_oldest_client_are_forgotten() {
        let mut counts = ImportCounts::default();
        for number in 0..MOST_CLIENTS * 2 {
            counts.count("a", &[format!("m{number}")], &format!("c{number}"), LONG);
            tokio::time::advance(LONG).await;
        }
        assert_eq!((counts.sets.len(), counts.budgets.len()), (MOST_SETS, MOST_CLIENTS));
        assert!(counts.sets.keys().all(|(_, set)| set[0] != "m0"));
        assert!(!counts.budgets.contains_key("c0"));
    }

    #[tokio::test(start_paused = true)]
    async fn templates_of_a_client_cost_no_more_than_its_programs() {
        let mut counts = ImportCounts::default();
        let short = Duration::from_millis(5);
        let often = |counts: &mut ImportCounts, module: &str, client: &str, cpu| {
            (0..OFTEN).any(|_| counts.count("a", &[module.to_owned()], client, cpu))
        };
        assert!(often(&mut counts, "m1", "one", short));
        counts.charge("one", LONG);
        assert!(!often(&mut counts, "m2", "one", short));
        assert!(often(&mut counts, "m3", "another", short));
        assert!(often(&mut counts, "m4", "one", LONG));
    }
}
