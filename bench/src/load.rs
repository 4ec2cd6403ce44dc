//! Many requests: what the engines sustain, of one program and of all of them, and what they do with a burst.
//!
//! The servers have the configured pools, and are others than those of the starts, which end before.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use serde::Serialize;

use crate::error::BenchError;
use crate::session::{SETTLE_PAUSE, Session, no_such, stop};
use crate::statistics::Summary;
use crate::target::Target;
use crate::throughput::{self, CLIENTS, Contender, Throughput, Turns};
use crate::workload::Workload;

/// How many requests a burst has.
pub const BURSTS: [usize; 4] = [1, 8, 32, 128];

/// A burst that would take longer is left out: requests would wait longer than a server lets them.
const LONGEST_BURST: Duration = Duration::from_secs(20);

/// What came of many requests.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Load {
    /// Some clients that never stop asking for the same program.
    pub throughput: Option<Throughput>,
    /// Some clients that never stop asking for all programs in turn.
    pub mixed: Option<Throughput>,
    /// Requests that come at once.
    pub bursts: Vec<Burst>,
    /// What the sandboxes that wait take, where the engine can tell.
    pub waiting: Vec<Waiting>,
}

/// Proportional memory (PSS) of the sandboxes that wait: what they share counts for each in equal parts.
#[derive(Debug, Clone, Serialize)]
pub struct Waiting {
    /// Whose.
    pub contender: Contender,
    /// How many there are, of all languages.
    pub sandboxes: usize,
    /// What they take, in bytes.
    pub bytes: u64,
    /// What the templates take that they are forked from, in bytes.
    pub templates_bytes: u64,
}

/// Requests that came at once.
#[derive(Debug, Clone, Serialize)]
pub struct Burst {
    /// The program and its language.
    pub program: String,
    /// Who answered.
    pub contender: Contender,
    /// How long each answer took.
    #[serde(flatten)]
    pub summary: Summary,
}

/// When each part ends.
#[derive(Debug, Clone, Copy)]
pub struct LoadDeadlines {
    /// The same program all the time.
    pub throughput: Instant,
    /// All programs in turn.
    pub mixed: Instant,
    /// Bursts.
    pub bursts: Instant,
}

/// How long to wait before memory is measured.
const CALM: Duration = Duration::from_secs(3);

impl Session {
    /// Measures what comes of many requests.
    ///
    /// # Errors
    ///
    /// When the engine or a server fails, or the program does not do what it should.
    pub async fn load(&mut self, deadlines: LoadDeadlines) -> Result<Load, BenchError> {
        stop(std::mem::take(&mut self.servers)).await?;
        let mut workloads: Vec<_> =
            self.cells().into_iter().map(|(workload, _)| workload).collect();
        workloads.dedup_by(|a, b| Arc::ptr_eq(a, b));
        let Some(first) = workloads.first().cloned() else { return Ok(Load::default()) };
        let targets = std::mem::take(&mut self.targets);
        let loaded = self.load_on(&targets, &workloads, &first, deadlines).await;
        self.targets = targets;
        let load = loaded?;
        stop(std::mem::take(&mut self.busy)).await?;
        Ok(load)
    }

    async fn load_on(
        &mut self,
        targets: &[Target],
        workloads: &[Arc<Workload>],
        first: &Arc<Workload>,
        deadlines: LoadDeadlines,
    ) -> Result<Load, BenchError> {
        let mut contenders = BTreeMap::new();
        for target in targets {
            if target.workloads.iter().any(|found| Arc::ptr_eq(found, first)) {
                let found = target.scenarios.iter().map(|scenario| Contender::of(*scenario));
                contenders.extend(found.map(|contender| (contender, target)));
            }
        }
        let languages = workloads.iter().map(|workload| workload.program.language.to_owned());
        let languages: BTreeSet<_> = languages.collect();
        for (contender, target) in &contenders {
            if *contender != Contender::DockerCold {
                let server = self.spawn(target, &languages, first.pool)?;
                self.busy.entry(*contender).or_insert(server).connect(target).await?;
            }
        }
        let alone = std::slice::from_ref(first);
        let throughput = self.sustained(&contenders, alone, deadlines.throughput).await?;
        let has_all = |target: &&Target| target.workloads.len() == workloads.len();
        let mixed = if workloads.len() > 1 && contenders.values().all(has_all) {
            Some(self.sustained(&contenders, workloads, deadlines.mixed).await?)
        } else {
            None
        };
        let of_language =
            workloads.iter().filter(|found| found.program.language == first.program.language);
        let mut bursts = Vec::new();
        for workload in of_language {
            bursts.extend(self.bursts(&contenders, workload, deadlines.bursts).await?);
        }
        let mut waiting = Vec::new();
        // Modules are imported when nothing has come for a moment.
        tokio::time::sleep(CALM).await;
        for (contender, target) in &contenders {
            let Some(server) = self.busy.get(contender) else { continue };
            let names = server.waiting();
            let sandboxes = names.len();
            if let Some(memory) = target.engine.memory(names).await {
                let (bytes, templates_bytes) = (memory.sandboxes, memory.templates);
                waiting.push(Waiting { contender: *contender, sandboxes, bytes, templates_bytes });
            }
        }
        Ok(Load { throughput: Some(throughput), mixed, bursts, waiting })
    }

    /// What is sustained of programs in turn.
    async fn sustained(
        &mut self,
        contenders: &BTreeMap<Contender, &Target>,
        workloads: &[Arc<Workload>],
        until: Instant,
    ) -> Result<Throughput, BenchError> {
        let ahead = workloads[0].pool.size + CLIENTS;
        let number = AtomicUsize::new(0);
        let next = || &*workloads[number.fetch_add(1, Ordering::Relaxed) % workloads.len()];
        let mut turns = Turns::new(contenders.keys().copied(), until);
        while let Some((contender, length)) = turns.next() {
            let slice = match (self.busy.get_mut(&contender), &self.docker) {
                (Some(server), _) => {
                    let call = async || server.call(next()).await.map(|_| ());
                    let slice = throughput::slice(ahead, length, call).await?;
                    // Its refill must not disturb the next slice.
                    server.wait_until_quiescent(contenders[&contender]).await?;
                    slice
                }
                (None, Some(docker)) => {
                    let cold = async || docker.cold(next()).await.map(|_| ());
                    throughput::slice(0, length, cold).await?
                }
                (None, None) => return Err(no_such(contender.label())),
            };
            turns.add(contender, slice);
            tokio::time::sleep(SETTLE_PAUSE).await;
        }
        let label = match workloads {
            [one] => one.label(),
            _ => "all programs in turn".to_owned(),
        };
        Ok(turns.into_throughput(label))
    }

    /// Bursts of each size, as long as there is time. The smallest always comes.
    async fn bursts(
        &mut self,
        contenders: &BTreeMap<Contender, &Target>,
        workload: &Workload,
        until: Instant,
    ) -> Result<Vec<Burst>, BenchError> {
        let mut bursts = Vec::new();
        // How long a request of the last burst took, by contender.
        let mut pace = BTreeMap::new();
        for size in BURSTS {
            for (contender, target) in contenders {
                let expected = pace.get(contender).map(|one: &Duration| *one * size as u32);
                let left = until.saturating_duration_since(Instant::now()).min(LONGEST_BURST);
                if expected.is_some_and(|expected| expected > left) {
                    continue;
                }
                let began = Instant::now();
                let requests = 0..size;
                let took = match (self.busy.get_mut(contender), &self.docker) {
                    (Some(server), _) => {
                        let one = async |_| server.call(workload).await.map(|_| began.elapsed());
                        let took = try_join_all(requests.map(one)).await?;
                        server.wait_until_quiescent(target).await?;
                        took
                    }
                    (None, Some(docker)) => {
                        let one = async |_| docker.cold(workload).await.map(|_| began.elapsed());
                        try_join_all(requests.map(one)).await?
                    }
                    (None, None) => return Err(no_such(contender.label())),
                };
                pace.insert(*contender, began.elapsed() / size as u32);
                let program = workload.label();
                let burst = |summary| Burst { program, contender: *contender, summary };
                bursts.extend(Summary::of(&took).map(burst));
                tokio::time::sleep(SETTLE_PAUSE).await;
            }
        }
        Ok(bursts)
    }
}
