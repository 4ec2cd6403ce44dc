//! A session of measuring: everything that the flows need, kept until all samples are taken.
//!
//! A server for each kind of pool runs all the time. They do not disturb each other, nor the plain
//! API beside them: a server that nobody calls does nothing, and after each sample its refill and
//! what it removes are waited for before the next is taken, whichever flow that is of.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use isolator_pool::engine::{Call, bounded};
use isolator_pool::sweep;
use tempfile::TempDir;

use super::docker_api::RawDocker;
use super::error::BenchError;
use super::flow::Flow;
use super::mcp_client::IsolatorProcess;
use super::programs::Subject;
use super::schedule::Schedule;
use super::settings;
use crate::app::App;
use crate::config::Config;

/// Longest time for one sample with everything around it; more than a server gives a program by
/// default, so that its answer comes first.
const PATIENCE: Duration = Duration::from_secs(120);

/// Pause after each sample: the engine's helpers end a moment after the container is gone.
const CALM: Duration = Duration::from_millis(50);

/// The pause doubles, up to this, each time a call did not find the pool as it should be.
const MAX_CALM: Duration = Duration::from_secs(3);

/// Calls in a row that may start otherwise than they should.
const MAX_DISCARDED: usize = 10;

/// The engine, and a server for each kind of pool.
pub struct Session {
    app: App,
    docker: RawDocker,
    servers: BTreeMap<Flow, IsolatorProcess>,
    calm: Duration,
    /// The servers' configurations.
    _directory: TempDir,
}

/// A sample of one flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sample {
    /// From the request to its answer.
    pub took: Duration,
    /// Calls before it that did not start as they had to.
    pub discarded: usize,
}

impl Session {
    /// Starts the servers; [`Self::connect`] comes next. `program` is the binary.
    ///
    /// # Errors
    ///
    /// When there is no engine, or a server can't be started. Nothing is left then.
    pub async fn open(
        config: &Config,
        app: App,
        program: &Path,
        subjects: &[Arc<Subject>],
    ) -> Result<Self, BenchError> {
        let languages: BTreeSet<_> = subjects.iter().map(|s| s.language.name.clone()).collect();
        let docker = RawDocker::connect(config, &app).await?;
        let directory = tempfile::tempdir().map_err(BenchError::Spawn)?;
        let mut servers = BTreeMap::new();
        for flow in Flow::ALL {
            if let Some((pool, _)) = flow.server() {
                let file = settings::write(config, &languages, pool, directory.path())?;
                let server = IsolatorProcess::spawn(program, &file, pool, languages.len())?;
                servers.insert(flow, server);
            }
        }
        Ok(Self { app, docker, servers, calm: CALM, _directory: directory })
    }

    /// Shakes hands with the servers and waits until their pools are full.
    ///
    /// # Errors
    ///
    /// When a server does not answer, or its pools stay empty.
    pub async fn connect(&mut self) -> Result<(), BenchError> {
        for server in self.servers.values_mut() {
            server.connect(&self.docker).await?;
        }
        Ok(())
    }

    /// Tries every program once, which also brings what it is made of from disk into memory.
    /// Returns the programs that can be measured, and why others can't: those that need a library
    /// which is not there.
    ///
    /// # Errors
    ///
    /// When a program that needs nothing fails.
    pub async fn try_all(
        &mut self,
        subjects: Vec<Arc<Subject>>,
    ) -> Result<(Vec<Arc<Subject>>, Vec<BenchError>), BenchError> {
        let (mut fit, mut left_out) = (Vec::new(), Vec::new());
        for subject in subjects {
            match self.sample(&subject, Flow::IsolatorCold).await {
                Ok(_) => fit.push(subject),
                Err(error @ (BenchError::Failed { .. } | BenchError::Output { .. }))
                    if subject.program.needs.is_some() =>
                {
                    left_out.push(error);
                }
                Err(error) => return Err(error),
            }
        }
        Ok((fit, left_out))
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
            let sample = self.sample(&cell.subject, cell.flow).await?;
            cell.samples.push(sample.took);
            cell.discarded += sample.discarded;
            cell.spent += began.elapsed();
        }
        Ok(())
    }

    /// Takes one sample, and waits until everything is at rest again.
    ///
    /// # Errors
    ///
    /// When the engine or a server fails, or the program does not do what it should.
    pub async fn sample(&mut self, subject: &Subject, flow: Flow) -> Result<Sample, BenchError> {
        let what = || format!("{} ({})", subject.label(), flow.label());
        for discarded in 0..MAX_DISCARDED {
            let attempt = tokio::time::timeout(PATIENCE, self.attempt(subject, flow)).await;
            let attempt = attempt.unwrap_or_else(|_| {
                Err(BenchError::Deadline { what: what(), deadline: PATIENCE })
            })?;
            tokio::time::sleep(self.calm).await;
            if let Some(took) = attempt {
                return Ok(Sample { took, discarded });
            }
            self.calm = (self.calm * 2).min(MAX_CALM);
        }
        Err(BenchError::NeverAsWanted { what: what(), discarded: MAX_DISCARDED })
    }

    /// `None` if the call did not start as it had to.
    async fn attempt(
        &mut self,
        subject: &Subject,
        flow: Flow,
    ) -> Result<Option<Duration>, BenchError> {
        let (Some((_, wanted)), Some(server)) = (flow.server(), self.servers.get_mut(&flow)) else {
            return match flow {
                Flow::DockerNaiveWarm => self.docker.naive_warm(subject).await.map(Some),
                _ => self.docker.cold(subject).await.map(Some),
            };
        };
        let served = server.call(subject).await?;
        server.until_at_rest(&self.docker).await?;
        Ok((served.start == wanted.as_str()).then_some(served.took))
    }

    /// Stops the servers and removes everything that the session made.
    ///
    /// # Errors
    ///
    /// When something could not be removed; the next start of Isolator sweeps it.
    pub async fn close(self) -> Result<(), BenchError> {
        let Self { app, docker, servers, .. } = self;
        let finished = bounded(Call::Create, async {
            docker.finish().await;
            Ok(())
        });
        let finished = finished.await;
        let stopped = join_all(servers.into_values().map(IsolatorProcess::stop)).await;
        let swept = sweep::sweep_own(&*app.engine, &app.owner).await;
        if let Some(error) = stopped.into_iter().find_map(Result::err) {
            app.sweep().await;
            return Err(error);
        }
        finished?;
        swept?;
        Ok(())
    }
}
