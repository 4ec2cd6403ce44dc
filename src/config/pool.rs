//! Checks the sections `pool`.

use std::time::Duration;

use isolator_pool::engine::limits::ByteSize;
use isolator_pool::pool::PoolSize;
use isolator_pool::pool::sizing::{MOST, Size};

use super::check::Check;
use super::raw::{RawPool, RawPools, RawRange, RawSize};

/// One thawed and one paused: the next request starts at once, the one after it almost at once.
pub(super) const POOL_SIZE: usize = 2;
pub(super) const POOL_HOT: usize = 1;

/// Share of the calls that should find a sandbox ready.
pub(super) const POOL_TARGET: f64 = 0.99;

/// Waiting sandboxes cost nothing but memory; this only limits how old they get.
pub(super) const POOL_MAX_AGE: Duration = Duration::from_secs(60 * 60);

/// A larger number is more likely a typing error.
const MAX_POOL_SIZE: usize = 1000;

/// Less than that is no use of a pool, and more is a promise that nobody can keep.
const TARGETS: (f64, f64) = (0.5, 0.9999);

/// Memory that waiting sandboxes of all languages may take, in MiB.
const MEMORY_MB: (u64, u64) = (16, 1 << 24);

/// The pool of a language.
pub(super) fn pool(own: &RawPool, common: &RawPool, path: &str, check: &mut Check) -> PoolSize {
    let place = |own: bool, key: &str| {
        if own { format!("{path}.{key}") } else { format!("pool.{key}") }
    };
    let size_path = place(own.size.is_some(), "size");
    let size = match own.size.or(common.size).unwrap_or(RawSize::Fixed(POOL_SIZE)) {
        RawSize::Fixed(size) => {
            Size::Fixed(check.within(&size_path, size, 0, MAX_POOL_SIZE, POOL_SIZE))
        }
        RawSize::Adaptive(RawRange { min, max }) => {
            let max = check.within(&format!("{size_path}.max"), max, 1, MOST, MOST);
            let min = check.within(&format!("{size_path}.min"), min, 0, max, max);
            let target_path = place(own.target.is_some(), "target");
            let target = own.target.or(common.target).unwrap_or(POOL_TARGET);
            let target = check.within(&target_path, target, TARGETS.0, TARGETS.1, POOL_TARGET);
            Size::Adaptive { min, max, target }
        }
    };
    if let (Some(_), Size::Fixed(_)) = (own.target, size) {
        let message = "holds only for a size such as {\"min\": 1, \"max\": 8}";
        check.problem(format!("{path}.target"), message);
    }
    let hot = match own.hot.or(common.hot) {
        None => POOL_HOT.min(size.most()),
        Some(hot) if hot <= size.most() => hot,
        // A pool with its own size can be smaller than the common number of hot sandboxes.
        Some(_) if own.hot.is_none() && own.size.is_some() => size.most(),
        Some(hot) => {
            check.problem(
                place(own.hot.is_some(), "hot"),
                format!("{hot} is more than the pool's size of {}", size.most()),
            );
            size.most()
        }
    };
    let age_path = place(own.max_age.is_some(), "maxAge");
    let max_age = check.duration(&age_path, own.max_age.or(common.max_age), POOL_MAX_AGE);
    PoolSize { size, hot, max_age }
}

/// The memory that waiting sandboxes of all languages may take together, if there is a bound.
pub(super) fn memory(raw: &RawPools, check: &mut Check) -> Option<ByteSize> {
    let (least, most) = MEMORY_MB;
    raw.memory_mb.map(|mb| ByteSize::mib(check.within("pool.memoryMB", mb, least, most, most)))
}

/// A size as the configuration has it.
pub(super) fn raw_size(size: Size) -> RawSize {
    match size {
        Size::Fixed(size) => RawSize::Fixed(size),
        Size::Adaptive { min, max, .. } => RawSize::Adaptive(RawRange { min, max }),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::Config;

    fn parse(text: &str) -> Result<Config, Vec<String>> {
        let told =
            |problem: crate::config::Problem| format!("{}: {}", problem.path, problem.message);
        let parsed = Config::parse(text, None, Path::new("/etc/isolator"));
        parsed.map_err(|problems| problems.into_iter().map(told).collect())
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
        assert_eq!(config.pools.memory, Some(ByteSize::mib(512)));
        assert_eq!(parse("{}").unwrap().pools.memory, None);
    }

    #[test]
    fn wrong_sizes_are_told() {
        for (text, message) in [
            (
                r#"{"size": {"min": 3, "max": 2}}"#,
                "pool.size.min: expected a number from 0 to 2, not 3",
            ),
            (
                r#"{"size": {"min": 0, "max": 0}}"#,
                "pool.size.max: expected a number from 1 to 256, not 0",
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
                "pool.size: expected a whole number of at least 0, or {\"max\": …, \"min\": …}, not \"many\"",
            ),
            (
                r#"{"size": {"min": 1, "max": 4}, "target": 1}"#,
                "pool.target: expected a number from 0.5 to 0.9999, not 1",
            ),
            (
                r#"{"size": {"min": 1, "max": 4}, "hot": 5}"#,
                "pool.hot: 5 is more than the pool's size of 4",
            ),
            (r#"{"memoryMB": 0}"#, "pool.memoryMB: expected a number from 16 to 16777216, not 0"),
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
