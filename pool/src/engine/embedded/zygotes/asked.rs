//! The modules that programs ask for.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

/// How often a set of modules must be asked for, with no longer pause between, before a template is made for it.
const OFTEN: u32 = 3;
const PAUSE: Duration = Duration::from_secs(10 * 60);

/// Most sets that are counted. The one that was asked for the longest time ago is forgotten.
const MOST_SETS: usize = 64;

/// How often each set was asked for, by image.
#[derive(Debug, Default)]
pub(super) struct Asked(HashMap<(String, Vec<String>), Count>);

#[derive(Debug)]
struct Count {
    times: u32,
    last: Instant,
}

impl Asked {
    /// Counts that a program asks for a set, sorted, of modules of an image. Returns whether that is often.
    pub(super) fn count(&mut self, digest: &str, modules: &[String]) -> bool {
        let now = Instant::now();
        let key = (digest.to_owned(), modules.to_vec());
        if !self.0.contains_key(&key) && self.0.len() >= MOST_SETS {
            let oldest = self.0.iter().min_by_key(|(_, count)| count.last);
            if let Some(oldest) = oldest.map(|(key, _)| key.clone()) {
                self.0.remove(&oldest);
            }
        }
        let count = self.0.entry(key).or_insert(Count { times: 0, last: now });
        count.times = if now - count.last > PAUSE { 1 } else { count.times.saturating_add(1) };
        count.last = now;
        count.times >= OFTEN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_set_is_asked_for_often_if_the_pauses_are_short() {
        let mut asked = Asked::default();
        let set = ["scipy".to_owned()];
        let mut count = |digest| asked.count(digest, &set);
        assert_eq!([count("a"), count("a"), count("b"), count("a")], [false, false, false, true]);
        tokio::time::advance(PAUSE * 2).await;
        assert!(!count("a"));
    }

    #[tokio::test(start_paused = true)]
    async fn the_oldest_set_is_forgotten() {
        let mut asked = Asked::default();
        for number in 0..MOST_SETS * 2 {
            asked.count("a", &[format!("m{number}")]);
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        assert_eq!(asked.0.len(), MOST_SETS);
        assert!(asked.0.keys().all(|(_, set)| set[0] != "m0"));
    }
}
