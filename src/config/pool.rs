//! The sections `pool`: one for all languages, and one for each.

use std::fmt;
use std::time::Duration;

use isolator_pool::engine::limits::ByteSize;
use isolator_pool::pool::PoolSize;
use isolator_pool::pool::sizing::{MOST, Size};
use schemars::JsonSchema;
use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use super::check::Check;
use super::schema::follows;
use super::section::{Mib, Text, Unit as _, duration, section};

/// One thawed and one paused: the next request starts at once, the one after it almost at once.
const SIZE: SizeSetting = SizeSetting::Fixed(2);
const HOT: usize = 1;

/// A larger number is more likely a typing error.
const MAX_SIZE: usize = 1000;

/// A lower share makes no use of a pool, and a higher one is a promise that no pool can keep.
const TARGET: f64 = 0.99;
const MIN_TARGET: f64 = 0.5;
const MAX_TARGET: f64 = 0.9999;

/// Waiting sandboxes cost nothing but memory; this only limits how old they get.
const MAX_AGE: Duration = Duration::from_hours(1);

section! {
    /// Sandboxes that are kept ready: for all languages that don't set it, and together.
    #[derive(Clone)]
    pub struct PoolsConfig {
        /// How many sandboxes of each language are kept ready; 0: every start is cold. With {"min": 1, "max": 16} the number
        /// follows the calls.
        pub(super) size: SizeSetting = SIZE,
        /// If the number follows the calls, the share of them that should find a sandbox ready.
        #[schemars(range(min = MIN_TARGET, max = MAX_TARGET))]
        pub(super) target: f64 = TARGET,
        /// How many of the sandboxes stay thawed, which saves the time of thawing.
        pub(super) hot: usize = HOT,
        /// Age at which an unused sandbox is replaced, such as "30m".
        #[serde(with = "Text")]
        #[schemars(schema_with = "duration")]
        pub(super) max_age: Duration = MAX_AGE,
        /// Memory in MiB that the sandboxes of all languages may take together while they wait. It takes precedence over every size.
        /// Default: no bound.
        #[serde(rename = "memoryMB", with = "Mib")]
        #[schemars(with = "Option<u64>", range(min = 16, max = 1 << 24))]
        pub memory: Option<ByteSize> = None,
    }
}

section! {
    /// Sandboxes of a language that are kept ready. A key that is not set has the value for all languages.
    #[derive(Clone)]
    pub(super) struct PoolSettings {
        /// How many sandboxes are kept ready; 0: every start is cold. With {"min": 1, "max": 16} the number follows the calls.
        #[schemars(transform = follows)]
        pub(super) size: SizeSetting = SIZE,
        /// If the number follows the calls, the share of them that should find a sandbox ready.
        #[schemars(range(min = MIN_TARGET, max = MAX_TARGET))]
        #[schemars(transform = follows)]
        pub(super) target: f64 = TARGET,
        /// How many of the sandboxes stay thawed, which saves the time of thawing.
        #[schemars(transform = follows)]
        pub(super) hot: usize = HOT,
        /// Age at which an unused sandbox is replaced, such as "30m".
        #[serde(with = "Text")]
        #[schemars(schema_with = "duration")]
        #[schemars(transform = follows)]
        pub(super) max_age: Duration = MAX_AGE,
    }
}

/// A number of sandboxes, or the bounds of one that follows the calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(untagged)]
pub(super) enum SizeSetting {
    /// Always this number.
    Fixed(#[schemars(range(max = MAX_SIZE))] usize),
    /// As many as the calls need.
    Adaptive(Range),
}

/// The bounds of a number that follows the calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Range {
    /// Minimum number that is kept ready.
    pub(super) min: usize,
    /// Maximum number that is kept ready.
    #[schemars(range(min = 1, max = MOST))]
    pub(super) max: usize,
}

// By hand, because an untagged enum would first copy the value.
impl<'de> Deserialize<'de> for SizeSetting {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NumberOrRange;

        impl<'de> Visitor<'de> for NumberOrRange {
            type Value = SizeSetting;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number or a range")
            }

            fn visit_u64<E>(self, number: u64) -> Result<SizeSetting, E> {
                Ok(SizeSetting::Fixed(usize::try_from(number).unwrap_or(usize::MAX)))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<SizeSetting, A::Error> {
                Range::deserialize(MapAccessDeserializer::new(map)).map(SizeSetting::Adaptive)
            }
        }

        deserializer.deserialize_any(NumberOrRange)
    }
}

impl PoolsConfig {
    pub(super) fn check(&mut self, check: &Check<'_>) {
        if !check.is_set("pool.hot") {
            self.hot = self.hot.min(match self.size {
                SizeSetting::Fixed(size) => size,
                SizeSetting::Adaptive(range) => range.max,
            });
        }
    }
}

impl PoolSettings {
    /// Checks the settings at a path. `own` has the keys that the language itself sets.
    pub(super) fn check(&mut self, own: &Value, path: &str, check: &mut Check<'_>) -> PoolSize {
        let is_own = |key: &str| own.get(key).is_some();
        let place =
            |key: &str| if is_own(key) { format!("{path}.{key}") } else { format!("pool.{key}") };
        let size = match self.size {
            SizeSetting::Fixed(size) => Size::Fixed(size),
            SizeSetting::Adaptive(Range { min, max }) => {
                check.within(&format!("{}.min", place("size")), min, 0, max);
                Size::Adaptive { min, max, target: self.target }
            }
        };
        if let (true, Size::Fixed(_)) = (is_own("target"), size) {
            let message = "holds only for a size such as {\"min\": 1, \"max\": 8}";
            check.problem(format!("{path}.target"), message);
        }
        // A language's own size can be smaller than the common number of thawed sandboxes.
        let is_chosen = is_own("hot") || (!is_own("size") && check.is_set("pool.hot"));
        if self.hot > size.most() && is_chosen {
            let message = format!("{} is more than the pool's size of {}", self.hot, size.most());
            check.problem(place("hot"), message);
        }
        self.hot = self.hot.min(size.most());
        PoolSize { size, hot: self.hot, max_age: self.max_age }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::Config;

    fn parse(text: &str) -> Result<Config, Vec<String>> {
        let parsed = Config::parse(text, None, Path::new("/etc/isolator"));
        parsed.map_err(|problems| problems.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn a_size_can_follow_the_calls() {
        let config = parse(
            r#"{"pool": {"size": {"min": 1, "max": 16}, "target": 0.95, "hot": 2, "memoryMB": 512},
                "languageSettings": {"go": {"pool": {"size": 1}},
                "javascript": {"pool": {"size": {"min": 0, "max": 4}, "target": 0.9}}}}"#,
        )
        .unwrap();
        let of = |language: &str| config.languages[language].pool;
        assert_eq!(of("python").size, Size::Adaptive { min: 1, max: 16, target: 0.95 });
        assert_eq!(of("javascript").size, Size::Adaptive { min: 0, max: 4, target: 0.9 });
        assert_eq!((of("go").size, of("go").hot), (Size::Fixed(1), 1));
        assert_eq!(config.pool.memory, Some(ByteSize::mib(512)));
        assert_eq!(parse("{}").unwrap().pool.memory, None);
    }

    #[test]
    fn wrong_sizes_are_reported() {
        for (text, message) in [
            (
                r#"{"size": {"min": 3, "max": 2}}"#,
                "pool.size.min: expected a whole number from 0 to 2, not 3",
            ),
            (
                r#"{"size": {"min": 0, "max": 0}}"#,
                "pool.size.max: expected a whole number from 1 to 256, not 0",
            ),
            (r#"{"size": {"max": 4}}"#, "pool.size.min: is required here"),
            (
                r#"{"size": {"min": 1, "most": 4, "max": 4}}"#,
                "pool.size.most: there is no such key here; there are max, min",
            ),
            (
                r#"{"size": {"min": -1, "max": 4}}"#,
                "pool.size.min: expected a whole number of at least 0, not -1",
            ),
            (
                r#"{"size": "many"}"#,
                "pool.size: expected a whole number from 0 to 1000, or {\"max\": …, \"min\": …}, not \"many\"",
            ),
            (
                r#"{"size": {"min": 1, "max": 4}, "target": 1}"#,
                "pool.target: expected a number from 0.5 to 0.9999, not 1",
            ),
            (
                r#"{"size": {"min": 1, "max": 4}, "hot": 5}"#,
                "pool.hot: 5 is more than the pool's size of 4",
            ),
            (
                r#"{"memoryMB": 0}"#,
                "pool.memoryMB: expected a whole number from 16 to 16777216, not 0",
            ),
        ] {
            let problems = parse(&format!(r#"{{"pool": {text}}}"#)).unwrap_err();
            assert_eq!(problems[0], message, "{text}");
        }
        let own = r#"{"languageSettings": {"go": {"pool": {"size": 1, "target": 0.9}}}}"#;
        assert_eq!(
            parse(own).unwrap_err(),
            [
                "languageSettings.go.pool.target: holds only for a size such as {\"min\": 1, \"max\": 8}"
            ]
        );
        let own = r#"{"languageSettings": {"go": {"pool": {"memoryMB": 64}}}}"#;
        assert!(
            parse(own).unwrap_err()[0]
                .starts_with("languageSettings.go.pool.memoryMB: there is no such key")
        );
    }
}
