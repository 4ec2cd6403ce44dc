//! The limits on what a caller can ask for: time, memory and cores.

use std::time::Duration;

use isolator_pool::engine::limits::{ByteSize, CpuShare};
use isolator_pool::quote::quoted;

use crate::config::RequestLimits;
use crate::duration;
use crate::request::arguments::InvalidArgument;

/// The engine refuses less, and a runner needs some.
const MIN_MEMORY: ByteSize = ByteSize::mib(16);

/// Least CPU time of a program.
const MIN_CPU: CpuShare = CpuShare::millis(10);

/// How long a program can run: a duration with its unit, or the default.
///
/// # Errors
///
/// When it is not a duration, or out of range.
pub(crate) fn timeout(
    text: Option<&str>,
    limits: &RequestLimits,
) -> Result<Duration, InvalidArgument> {
    let Some(text) = text else {
        return Ok(limits.default_timeout);
    };
    let wrong = |message: String| InvalidArgument::new("timeout", message);
    let timeout = duration::parse(text).map_err(|error| {
        let text = quoted(text);
        wrong(format!("{text} is not a duration: {error}"))
    })?;
    if timeout.is_zero() {
        return Err(wrong("must be longer than zero".to_owned()));
    }
    if timeout > limits.max_timeout {
        let most = duration::shown(limits.max_timeout);
        return Err(wrong(format!("{} is longer than the maximum of {most}", quoted(text))));
    }
    Ok(timeout)
}

/// How much CPU time each process can use. The most is one core for the longest run.
pub(crate) fn cpu_seconds(
    seconds: u64,
    limits: &RequestLimits,
) -> Result<Duration, InvalidArgument> {
    let most = limits.max_timeout.as_secs_f64().ceil();
    if seconds == 0 || seconds as f64 > most {
        let message = format!("{seconds} is not allowed: use 1 to {most}");
        return Err(InvalidArgument::new("cpu_limit_sec", message));
    }
    Ok(Duration::from_secs(seconds))
}

/// How much memory a program can use.
pub(crate) fn memory(
    field: &str,
    mb: u64,
    limits: &RequestLimits,
) -> Result<ByteSize, InvalidArgument> {
    let memory = ByteSize::bytes(mb.saturating_mul(1 << 20));
    if memory < MIN_MEMORY || memory > limits.max_memory {
        let message = format!("{mb} is not allowed: use {MIN_MEMORY} to {}", limits.max_memory);
        return Err(InvalidArgument::new(field, message));
    }
    Ok(memory)
}

/// How many cores a program can use.
pub(crate) fn cpu(cores: f64, limits: &RequestLimits) -> Result<CpuShare, InvalidArgument> {
    match CpuShare::from_cores(cores) {
        Some(cpu) if cpu >= MIN_CPU && cpu <= limits.max_cpu => Ok(cpu),
        _ => {
            let message = format!(
                "{cores} is not allowed: use {} to {} cores",
                MIN_CPU.as_cores(),
                limits.max_cpu.as_cores()
            );
            Err(InvalidArgument::new("cpus", message))
        }
    }
}
