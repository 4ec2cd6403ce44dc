//! Values of the configuration, held against their bounds.

use std::time::Duration;

use isolator_pool::engine::limits::{ByteSize, CpuShare};

use super::Problem;
use super::defaults::{CPUS, MAX_MEMORY_MB, MEMORY_MB, MIN_MEMORY_MB};

/// Collects problems, so that all are reported at once.
#[derive(Default)]
pub(super) struct Check {
    pub(super) problems: Vec<Problem>,
}

impl Check {
    pub(super) fn problem(&mut self, path: impl Into<String>, message: impl Into<String>) {
        self.problems.push(Problem { path: path.into(), message: message.into() });
    }

    /// What is wrong with a regular expression. The library draws it over several lines, the last of which says it.
    pub(super) fn pattern(&mut self, path: impl Into<String>, error: &regex::Error) {
        let drawn = error.to_string();
        let said = drawn.lines().last().unwrap_or_default().trim_start_matches("error: ");
        self.problem(path, format!("is not a regular expression: {said}"));
    }

    /// The number, or a problem and the default if it is out of range.
    pub(super) fn within<T>(&mut self, path: &str, value: T, least: T, most: T, default: T) -> T
    where
        T: PartialOrd + std::fmt::Display + Copy,
    {
        if value >= least && value <= most {
            return value;
        }
        self.problem(path, format!("expected a number from {least} to {most}, not {value}"));
        default
    }

    pub(super) fn memory(&mut self, path: &str, mb: u64) -> ByteSize {
        ByteSize::mib(self.within(path, mb, MIN_MEMORY_MB, MAX_MEMORY_MB, MEMORY_MB))
    }

    pub(super) fn cpu(&mut self, path: &str, cores: f64) -> CpuShare {
        // The engine refuses less than a hundredth.
        let cores = self.within(path, cores, 0.01, 1024.0, CPUS);
        CpuShare::from_cores(cores).unwrap_or(CpuShare::millis(500))
    }

    pub(super) fn duration(
        &mut self,
        path: &str,
        value: Option<Duration>,
        default: Duration,
    ) -> Duration {
        match value {
            Some(Duration::ZERO) => {
                self.problem(path, "a duration of zero is not allowed");
                default
            }
            value => value.unwrap_or(default),
        }
    }
}
