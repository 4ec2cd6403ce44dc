//! How much of its limits a session uses: samples that its task takes, once a client wants them.
//!
//! The runner measures its sandbox when it is asked, also while a cell runs. A sandbox that is frozen is not thawed for that: it takes
//! no CPU time, and its memory and files stay as they are.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::{Duration, SystemTime};

use isolator_runner::wire::session::Usage;
use isolator_runner::wire::{self, Kind, WireError};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::Session;
use super::agent::Hub;
use crate::engine::limits::Resources;
use crate::lock::lock;
use crate::run::exchange::Aside;
use crate::run::installs::Installs;

/// Time between two samples, and from the beginning to the first one: CPU time is counted from then.
const EVERY: Duration = Duration::from_secs(5);
const FIRST_AFTER: Duration = Duration::from_millis(500);

/// Maximum number of samples that are kept, those of the last hour.
const MAX_SAMPLES: usize = 720;

/// A sample.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct UsageSample {
    /// When it was taken.
    pub at: SystemTime,
    /// CPU time since the sample before, as a part of what its limit allows: from 0 to 1.
    pub cpu: f64,
    /// Bytes that count towards its limit of memory.
    pub memory: u64,
    /// Of these, bytes of files that the kernel can drop at any time.
    pub cache: u64,
    /// Bytes that files take in the file systems that its programs can write to.
    pub disk: u64,
    /// Size of these file systems, in bytes.
    pub disk_size: u64,
}

/// The samples of a session.
#[derive(Debug)]
pub(crate) struct Samples {
    taken: Mutex<Taken>,
    /// A client wants samples from now on.
    wanted: Notify,
    limits: Resources,
}

#[derive(Debug, Default)]
struct Taken {
    samples: VecDeque<UsageSample>,
    /// When the next one is due. `None` if no client wants any.
    due: Option<Instant>,
    /// Whether the runner has been asked and has not answered.
    is_asked: bool,
    /// The runner's last answer.
    last: Option<(Instant, Usage)>,
}

impl Session {
    /// Lets samples be taken from now on.
    pub fn sample_usage(&self) {
        self.shared.usage.begin();
    }

    /// The samples of the last hour, the oldest first.
    pub fn usage(&self) -> Vec<UsageSample> {
        lock(&self.shared.usage.taken).samples.iter().copied().collect()
    }
}

impl Samples {
    /// No samples, for a sandbox with these limits.
    pub(crate) fn new(limits: Resources) -> Self {
        Self { taken: Mutex::default(), wanted: Notify::new(), limits }
    }

    fn begin(&self) {
        lock(&self.taken).due.get_or_insert_with(Instant::now);
        self.wanted.notify_one();
    }

    /// Waits until a sample is due.
    pub(super) async fn due(&self) {
        loop {
            let wanted = self.wanted.notified();
            let due = lock(&self.taken).due;
            match due {
                Some(time) => return tokio::time::sleep_until(time).await,
                None => wanted.await,
            }
        }
    }

    /// Adds a sample of a sandbox that is frozen, which has this memory.
    pub(super) fn add_frozen(&self, memory: u64) {
        let mut taken = lock(&self.taken);
        let now = Instant::now();
        taken.due = Some(now + EVERY);
        if let Some((_, usage)) = taken.last {
            let usage = Usage { memory: Some(memory), ..usage };
            taken.last = Some((now, usage));
            let sample = self.sample(usage, 0.0);
            taken.add(sample);
        }
    }

    /// Whether the runner has to be asked. It is asked once at a time.
    fn ask(&self) -> bool {
        let mut taken = lock(&self.taken);
        taken.due = Some(Instant::now() + EVERY);
        !std::mem::replace(&mut taken.is_asked, true)
    }

    /// Takes the runner's answer. Returns false if it was not asked.
    fn answered(&self, usage: Usage) -> bool {
        let mut taken = lock(&self.taken);
        if !std::mem::take(&mut taken.is_asked) {
            return false;
        }
        let now = Instant::now();
        match taken.last.replace((now, usage)) {
            Some((before, then)) => {
                let time = now.duration_since(before).as_secs_f64() * self.limits.cpu.as_cores();
                let cpu = usage.cpu.saturating_sub(then.cpu).as_secs_f64();
                let sample = self.sample(usage, if time > 0.0 { cpu / time } else { 0.0 });
                taken.add(sample);
            }
            None => taken.due = Some(now + FIRST_AFTER),
        }
        true
    }

    fn sample(&self, usage: Usage, cpu: f64) -> UsageSample {
        let memory = usage.memory.unwrap_or(0).min(self.limits.memory.as_bytes());
        UsageSample {
            at: SystemTime::now(),
            cpu: cpu.clamp(0.0, 1.0),
            memory,
            cache: usage.cache.min(memory),
            disk: usage.disk.min(usage.disk_size),
            disk_size: usage.disk_size,
        }
    }
}

impl Taken {
    fn add(&mut self, sample: UsageSample) {
        if self.samples.len() >= MAX_SAMPLES {
            self.samples.pop_front();
        }
        self.samples.push_back(sample);
    }
}

/// The messages of a session that are no part of an exchange: those of its agent, its samples, and requests for packages.
pub(super) struct OtherMessages<'a> {
    pub(super) agent: &'a Hub,
    pub(super) usage: &'a Samples,
    pub(super) installs: &'a Installs,
}

#[async_trait::async_trait]
impl Aside for OtherMessages<'_> {
    async fn outgoing(&self) -> Vec<u8> {
        loop {
            tokio::select! {
                message = self.agent.outgoing() => return message,
                message = self.installs.outgoing() => return message,
                () = self.usage.due() => {
                    if self.usage.ask() {
                        return wire::header(Kind::Measure, 0).to_vec();
                    }
                }
            }
        }
    }

    fn take(&self, kind: Kind, payload: &[u8]) -> Result<bool, WireError> {
        if kind != Kind::Measured {
            return Ok(self.agent.take(kind, payload)? || self.installs.take(kind, payload)?);
        }
        let is_answer = self.usage.answered(wire::parse_message(kind, payload)?);
        if is_answer { Ok(true) } else { Err(WireError::Unexpected(kind)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::limits::{ByteSize, CpuShare};

    fn samples() -> Samples {
        Samples::new(Resources { memory: ByteSize::mib(100), cpu: CpuShare::millis(2000) })
    }

    fn usage(cpu_ms: u64) -> Usage {
        let cpu = Duration::from_millis(cpu_ms);
        Usage { cpu, memory: Some(7 << 20), cache: 1 << 20, disk: 3, disk_size: 5 }
    }

    #[tokio::test(start_paused = true)]
    async fn cpu_time_is_a_part_of_the_limit_and_a_frozen_sandbox_takes_none() {
        let samples = samples();
        samples.begin();
        samples.due().await;
        assert!(samples.ask() && !samples.ask());
        assert!(samples.answered(usage(1000)));
        // Only the second answer says how much CPU time was taken since.
        assert!(lock(&samples.taken).samples.is_empty());
        samples.due().await;
        assert!(samples.ask() && samples.answered(usage(1500)));
        samples.due().await;
        samples.add_frozen(6 << 20);
        let all: Vec<_> = lock(&samples.taken).samples.iter().copied().collect();
        let [awake, frozen] = all[..] else { panic!("{all:?}") };
        assert!((0.4..=0.5).contains(&awake.cpu), "{awake:?}");
        assert_eq!((awake.memory, awake.disk, awake.disk_size), (7 << 20, 3, 5));
        assert_eq!((frozen.cpu, frozen.memory), (0.0, 6 << 20));
    }

    #[tokio::test(start_paused = true)]
    async fn a_runner_that_was_not_asked_has_no_answer() {
        let samples = samples();
        assert!(!samples.answered(usage(0)));
        samples.begin();
        // Nothing is known of a sandbox that is frozen before it was measured.
        samples.add_frozen(1);
        assert!(lock(&samples.taken).samples.is_empty());
    }

    #[test]
    fn the_oldest_samples_make_room() {
        let samples = samples();
        lock(&samples.taken).last = Some((Instant::now(), usage(0)));
        (0..MAX_SAMPLES as u64 + 3).for_each(|memory| samples.add_frozen(memory));
        let taken = lock(&samples.taken);
        assert_eq!(taken.samples.len(), MAX_SAMPLES);
        assert_eq!(taken.samples[0].memory, 3);
    }
}
