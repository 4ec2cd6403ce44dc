//! What a number of samples says.

use std::time::Duration;

use serde::{Serialize, Serializer};

/// Samples in numbers, in milliseconds where they are written as JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// How many there are.
    pub n: usize,
    /// The smallest.
    #[serde(rename = "min_ms", serialize_with = "as_ms")]
    pub min: Duration,
    /// The median.
    #[serde(rename = "p50_ms", serialize_with = "as_ms")]
    pub p50: Duration,
    /// 95 of 100 are not above.
    #[serde(rename = "p95_ms", serialize_with = "as_ms")]
    pub p95: Duration,
    /// 99 of 100 are not above.
    #[serde(rename = "p99_ms", serialize_with = "as_ms")]
    pub p99: Duration,
    /// The largest.
    #[serde(rename = "max_ms", serialize_with = "as_ms")]
    pub max: Duration,
}

impl Summary {
    /// Sums samples up; `None` if there are none.
    pub fn of(samples: &[Duration]) -> Option<Self> {
        let mut sorted = samples.to_vec();
        sorted.sort_unstable();
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let at = |share| quantile(&sorted, share);
        Some(Self { n: sorted.len(), min, p50: at(0.5), p95: at(0.95), p99: at(0.99), max })
    }
}

/// The value below which `share` of the sorted samples lie, on the line between the two nearest: of
/// few samples the nearest alone would jump.
fn quantile(sorted: &[Duration], share: f64) -> Duration {
    let place = (sorted.len() - 1) as f64 * share;
    let (low, high) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
    low + (high - low).mul_f64(place.fract())
}

/// Milliseconds, to the microsecond.
pub(crate) fn ms(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e6).round() / 1e3
}

fn as_ms<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(ms(*duration))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn samples(ms: impl IntoIterator<Item = u64>) -> Vec<Duration> {
        ms.into_iter().map(Duration::from_millis).collect()
    }

    #[test]
    fn nothing_has_no_summary() {
        assert_eq!(Summary::of(&[]), None);
    }

    #[test]
    fn one_sample_is_all_of_its_numbers() {
        let one = Duration::from_millis(7);
        let summary = Summary::of(&[one]).unwrap();
        assert_eq!(summary, Summary { n: 1, min: one, p50: one, p95: one, p99: one, max: one });
    }

    #[test]
    fn the_order_of_samples_does_not_count() {
        let summary = Summary::of(&samples((0..=100).rev())).unwrap();
        let expected = samples([0, 50, 95, 99, 100]);
        let Summary { n, min, p50, p95, p99, max } = summary;
        assert_eq!((n, vec![min, p50, p95, p99, max]), (101, expected));
    }

    #[test]
    fn between_two_samples_lies_a_line() {
        let summary = Summary::of(&samples([10, 20])).unwrap();
        assert_eq!(ms(summary.p50), 15.0);
        assert_eq!(ms(summary.p95), 19.5);
    }

    #[test]
    fn json_has_milliseconds() {
        let json = serde_json::to_value(Summary::of(&samples([1, 2])).unwrap()).unwrap();
        let expected = json!({
            "n": 2, "min_ms": 1.0, "p50_ms": 1.5, "p95_ms": 1.95, "p99_ms": 1.99, "max_ms": 2.0,
        });
        assert_eq!(json, expected);
    }

    proptest! {
        #[test]
        fn the_numbers_are_in_order(ms in prop::collection::vec(0_u64..100_000, 1..50)) {
            let Summary { min, p50, p95, p99, max, .. } = Summary::of(&samples(ms)).unwrap();
            prop_assert!(min <= p50 && p50 <= p95 && p95 <= p99 && p99 <= max);
        }
    }
}
