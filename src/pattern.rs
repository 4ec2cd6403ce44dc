//! Regular expressions that are constants.

/// A constant regular expression, compiled at its first use.
macro_rules! pattern {
    ($text:expr) => {
        std::sync::LazyLock::new(|| {
            let text = $text;
            regex::Regex::new(&text).expect("a constant pattern is valid")
        })
    };
}

pub(crate) use pattern;
