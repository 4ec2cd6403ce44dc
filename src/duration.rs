//! Durations in words, such as `1h 30m`: the only place that reads such texts.

use std::time::Duration;

/// Every unit that can follow a number. The [page about the configuration](../docs/configuration.md) lists them. There is
/// no unit for months, because `M` is usually meant as minutes.
pub(crate) const UNITS: [&str; 30] = [
    "ns", "us", "ms", "millis", "s", "sec", "secs", "second", "seconds", "m", "min", "mins",
    "minute", "minutes", "h", "hr", "hrs", "hour", "hours", "d", "day", "days", "w", "week",
    "weeks", "y", "yr", "yrs", "year", "years",
];

/// The longest duration, 10,000 years of 365.25 days. It can be added to any time of a clock.
const MAX: Duration = Duration::from_secs(10_000 * 31_557_600);

/// The error of a text that is no duration. It completes a sentence such as `"5M" is not a duration`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum DurationError {
    /// It has a unit that may mean months.
    #[error("write m for minutes, or d for days")]
    Months,
    /// It is too long to be meant.
    #[error("the longest is 10000y")]
    TooLong,
    /// It is something else.
    #[error("write a number and a unit, such as 500ms, 45s, 5m, 2h or 90d")]
    Malformed,
}

pub(crate) fn parse(text: &str) -> Result<Duration, DurationError> {
    for word in text.split(|c: char| !c.is_alphabetic()).filter(|word| !word.is_empty()) {
        match word {
            "M" | "mo" | "mon" | "month" | "months" => return Err(DurationError::Months),
            word if UNITS.contains(&word) => {}
            _ => return Err(DurationError::Malformed),
        }
    }
    let duration = humantime::parse_duration(text).map_err(|error| match error {
        humantime::DurationError::NumberOverflow => DurationError::TooLong,
        _ => DurationError::Malformed,
    })?;
    if duration > MAX { Err(DurationError::TooLong) } else { Ok(duration) }
}

/// A duration in a form that can be read again. `humantime` shows long ones in months.
pub(crate) fn shown(duration: Duration) -> String {
    const DAY: u64 = 24 * 3600;
    const MONTH_IN_DAYS: u64 = 30;
    let days = duration.as_secs() / DAY;
    if days < MONTH_IN_DAYS {
        return humantime::format_duration(duration).to_string();
    }
    let rest = duration - Duration::from_secs(days * DAY);
    if rest.is_zero() {
        format!("{days}d")
    } else {
        format!("{days}d {}", humantime::format_duration(rest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_unit_of_the_documentation_is_one_and_no_other() {
        for unit in UNITS {
            assert!(parse(&format!("3{unit}")).is_ok(), "{unit}");
            assert!(parse(&format!("1d 3 {unit}")).is_ok(), "{unit}");
        }
        for (text, seconds) in [("5m", 300), ("1h 30m", 5400), ("90d", 7_776_000), ("2 min", 120)] {
            assert_eq!(parse(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        for (text, error) in [
            ("5M", DurationError::Months),
            ("1h 30M", DurationError::Months),
            ("2 months", DurationError::Months),
            ("5S", DurationError::Malformed),
            ("5", DurationError::Malformed),
            ("-5s", DurationError::Malformed),
            ("five minutes", DurationError::Malformed),
            ("", DurationError::Malformed),
            ("10001y", DurationError::TooLong),
            ("99999999999999999999s", DurationError::TooLong),
        ] {
            assert_eq!(parse(text), Err(error), "{text}");
        }
    }

    #[test]
    fn durations_that_are_shown_can_be_read_again() {
        let days = |days: u64| Duration::from_secs(days * 24 * 3600);
        for (time, expected) in [
            (Duration::from_nanos(1), "1ns"),
            (Duration::from_secs(5000), "1h 23m 20s"),
            (days(1), "1day"),
            (days(90), "90d"),
            (days(90) + Duration::from_millis(1500), "90d 1s 500ms"),
            (MAX, "3652500d"),
        ] {
            assert_eq!(shown(time), expected);
            assert_eq!(parse(expected), Ok(time));
        }
    }
}
