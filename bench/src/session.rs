//! A session of measuring: everything that the scenarios need, kept until all samples are taken.
//!
//! A server for each kind of pool on each engine runs all the time. They do not disturb each other, nor the plain
//! API beside them: a server that nobody calls does nothing, and after each sample its refill and
//! what it removes are waited for before the next is taken, of whichever scenario.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use isolator_pool::engine::{Call, bounded};
use isolator_pool::sandbox::sweep;
use tempfile::TempDir;

use crate::docker_api::RawDocker;
use crate::error::BenchError;
use crate::mcp_client::IsolatorProcess;
use crate::scenario::{PoolShape, Scenario, ServerSpec};
use crate::schedule::Schedule;
use crate::settings;
use crate::target::Target;
use crate::throughput::Contender;
use crate::workload::Workload;

/// Longest time for one sample with everything around it; more than a server gives a program by
/// default, so that its answer comes first.
const SAMPLE_TIMEOUT: Duration = Duration::from_secs(120);

/// Pause after each sample: the engine's helpers end a moment after the container is gone.
pub(crate) const SETTLE_PAUSE: Duration = Duration::from_millis(50);

/// The pause doubles, up to this, each time a call did not find the pool as it should be.
const MAX_SETTLE_PAUSE: Duration = Duration::from_secs(3);

/// Calls in a row that may not start as they should.
const MAX_DISCARDED: usize = 10;

/// The engines, and on each a server for each kind of pool.
pub struct Session {
    pub(crate) targets: Vec<Target>,
    pub(crate) docker: Option<RawDocker>,
    pub(crate) servers: BTreeMap<Scenario, IsolatorProcess>,
    /// The servers that many requests come to.
    pub(crate) busy: BTreeMap<Contender, IsolatorProcess>,
    settle_pause: Duration,
    program: PathBuf,
    /// The servers' configurations.
    directory: TempDir,
}

/// A sample of one scenario.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sample {
    /// From the request to its answer.
    pub took: Duration,
    /// Calls before it that did not start as they should.
    pub discarded: usize,
}

impl Session {
    /// Starts the servers; [`Self::connect`] comes next. `program` is the binary.
    ///
    /// # Errors
    ///
    /// When an engine is gone, or a server can't be started. Nothing is left then.
    pub async fn open(targets: Vec<Target>, program: &Path) -> Result<Self, BenchError> {
        let plain = targets.iter().find_map(|target| Some((target.docker.as_ref()?, target)));
        let mut session = Self {
            docker: match plain {
                Some((address, target)) => Some(RawDocker::connect(address, target).await?),
                None => None,
            },
            targets,
            servers: BTreeMap::new(),
            busy: BTreeMap::new(),
            settle_pause: SETTLE_PAUSE,
            program: program.to_owned(),
            directory: tempfile::tempdir().map_err(BenchError::Spawn)?,
        };
        for target in &session.targets {
            let names = target.workloads.iter().map(|workload| workload.program.language);
            let languages = names.map(str::to_owned).collect();
            for scenario in target.scenarios {
                if let Some(ServerSpec { pool, .. }) = scenario.server() {
                    let server = session.spawn(target, &languages, pool)?;
                    session.servers.insert(*scenario, server);
                }
            }
        }
        Ok(session)
    }

    pub(crate) fn spawn(
        &self,
        target: &Target,
        languages: &BTreeSet<String>,
        pool: PoolShape,
    ) -> Result<IsolatorProcess, BenchError> {
        let file = settings::write(&target.settings, languages, pool, self.directory.path())?;
        IsolatorProcess::spawn(&self.program, &file, pool, languages.len())
    }

    /// Shakes hands with the servers and waits until their pools are full.
    ///
    /// # Errors
    ///
    /// When a server does not answer, or its pools stay empty.
    pub async fn connect(&mut self) -> Result<(), BenchError> {
        for target in &self.targets {
            for scenario in target.scenarios {
                if let Some(server) = self.servers.get_mut(scenario) {
                    server.connect(target).await?;
                }
            }
        }
        Ok(())
    }

    /// The programs that are measured, each in all the scenarios that can start it, program by program.
    pub fn cells(&self) -> Vec<(Arc<Workload>, Scenario)> {
        let cell = |target: &Target, workload: &Arc<Workload>| {
            let workload = Arc::clone(workload);
            target
                .scenarios
                .iter()
                .map(move |scenario| (Arc::clone(&workload), *scenario))
                .collect::<Vec<_>>()
        };
        let targets = self.targets.iter();
        let mut cells: Vec<_> = targets
            .flat_map(|target| target.workloads.iter().flat_map(|s| cell(target, s)))
            .collect();
        cells.sort_by_key(|(workload, scenario)| (workload.place(), *scenario));
        cells
    }

    /// Tries every program once on each engine, which also brings what it is made of from disk into memory.
    /// Returns which programs can't be measured, and why: those that need a library that is missing.
    ///
    /// # Errors
    ///
    /// When a program that needs nothing fails.
    pub async fn try_all(&mut self) -> Result<Vec<String>, BenchError> {
        let mut left_out = Vec::new();
        for index in 0..self.targets.len() {
            let scenario = self.targets[index].trial();
            let mut fit = Vec::new();
            for workload in self.targets[index].workloads.clone() {
                match self.sample(&workload, scenario).await {
                    Ok(_) => fit.push(workload),
                    Err(error @ (BenchError::Failed { .. } | BenchError::Output { .. }))
                        if workload.program.needs.is_some() =>
                    {
                        left_out.push(format!("{error} ({})", scenario.label()));
                    }
                    Err(error) => return Err(error),
                }
            }
            self.targets[index].workloads = fit;
        }
        Ok(left_out)
    }

    /// Takes samples until the time is over and every cell has at least one.
    ///
    /// # Errors
    ///
    /// When a sample can't be taken.
    pub async fn measure(
        &mut self,
        schedule: &mut Schedule,
        until: Instant,
    ) -> Result<(), BenchError> {
        while let Some(cell) = schedule.next(until.saturating_duration_since(Instant::now())) {
            let began = Instant::now();
            let sample = self.sample(&cell.workload, cell.scenario).await?;
            cell.samples.push(sample.took);
            cell.discarded += sample.discarded;
            cell.spent += began.elapsed();
        }
        Ok(())
    }

    /// Takes one sample, and waits until everything is quiescent again.
    ///
    /// # Errors
    ///
    /// When the engine or a server fails, or the program does not do what it should.
    pub async fn sample(
        &mut self,
        workload: &Workload,
        scenario: Scenario,
    ) -> Result<Sample, BenchError> {
        let what = || format!("{} ({})", workload.label(), scenario.label());
        for discarded in 0..MAX_DISCARDED {
            let attempt =
                tokio::time::timeout(SAMPLE_TIMEOUT, self.attempt(workload, scenario)).await;
            let attempt = attempt.unwrap_or_else(|_| {
                Err(BenchError::Deadline { what: what(), deadline: SAMPLE_TIMEOUT })
            })?;
            tokio::time::sleep(self.settle_pause).await;
            if let Some(took) = attempt {
                return Ok(Sample { took, discarded });
            }
            self.settle_pause = (self.settle_pause * 2).min(MAX_SETTLE_PAUSE);
        }
        Err(BenchError::WrongStart { what: what(), discarded: MAX_DISCARDED })
    }

    /// `None` if the call did not start as it should.
    async fn attempt(
        &mut self,
        workload: &Workload,
        scenario: Scenario,
    ) -> Result<Option<Duration>, BenchError> {
        let Some(ServerSpec { kind, start, .. }) = scenario.server() else {
            let docker = self.docker.as_ref().ok_or_else(|| no_such(scenario.label()))?;
            return match scenario {
                Scenario::DockerNaiveWarm => docker.naive_warm(workload).await.map(Some),
                _ => docker.cold(workload).await.map(Some),
            };
        };
        let target = self.targets.iter().find(|target| target.kind == kind);
        let (Some(target), Some(server)) = (target, self.servers.get_mut(&scenario)) else {
            return Err(no_such(scenario.label()));
        };
        let served = server.call(workload).await?;
        server.wait_until_quiescent(target).await?;
        Ok((served.start == start.as_str()).then_some(served.took))
    }

    /// Stops the servers and removes everything that the session made.
    ///
    /// # Errors
    ///
    /// When something could not be removed; the next start of Isolator sweeps it.
    pub async fn close(self) -> Result<(), BenchError> {
        let Self { targets, docker, servers, busy, .. } = self;
        let finished = bounded(Call::Create, async {
            if let Some(docker) = docker {
                docker.finish().await;
            }
            Ok(())
        });
        let finished = finished.await;
        let stopped = stop(servers).await.and(stop(busy).await);
        let mut swept = Ok(());
        for Target { engine, instance, .. } in &targets {
            swept = swept.and(sweep::sweep_own(&**engine, instance).await.map(|_| ()));
            if stopped.is_err()
                && let Err(error) = sweep::sweep(&**engine, instance).await
            {
                tracing::warn!(%error, "leftovers could not be swept");
            }
        }
        stopped?;
        finished?;
        Ok(swept?)
    }
}

/// Stops all servers, even if one of them fails to stop.
pub(crate) async fn stop<K>(servers: BTreeMap<K, IsolatorProcess>) -> Result<(), BenchError> {
    let stopped = join_all(servers.into_values().map(IsolatorProcess::stop)).await;
    stopped.into_iter().collect()
}

pub(crate) fn no_such(what: &'static str) -> BenchError {
    BenchError::NoSuchScenario(what)
}
