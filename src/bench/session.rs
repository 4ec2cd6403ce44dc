//! A session of measuring: everything that the flows need, kept until all samples are taken.
//!
//! A server for each kind of pool on each engine runs all the time. They do not disturb each other, nor the plain
//! API beside them: a server that nobody calls does nothing, and after each sample its refill and
//! what it removes are waited for before the next is taken, whichever flow that is of.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use isolator_pool::engine::{Call, bounded};
use isolator_pool::sandbox::sweep;
use tempfile::TempDir;

use super::docker_api::RawDocker;
use super::engines::Side;
use super::error::BenchError;
use super::mcp_client::IsolatorProcess;
use super::programs::Workload;
use super::scenario::{PoolShape, Scenario, Served};
use super::schedule::Schedule;
use super::settings::{self, Server};
use super::throughput::{self, CLIENTS, Contender, Throughput, Turns};
use crate::config::{Config, EngineKind};

/// Longest time for one sample with everything around it; more than a server gives a program by
/// default, so that its answer comes first.
const PATIENCE: Duration = Duration::from_secs(120);

/// Pause after each sample: the engine's helpers end a moment after the container is gone.
const CALM: Duration = Duration::from_millis(50);

/// The pause doubles, up to this, each time a call did not find the pool as it should be.
const MAX_CALM: Duration = Duration::from_secs(3);

/// Calls in a row that may start otherwise than they should.
const MAX_DISCARDED: usize = 10;

/// The engines, and on each a server for each kind of pool.
pub struct Session {
    sides: Vec<Side>,
    docker: Option<RawDocker>,
    servers: BTreeMap<Scenario, IsolatorProcess>,
    /// Those whose throughput is measured.
    busy: BTreeMap<Contender, IsolatorProcess>,
    calm: Duration,
    program: PathBuf,
    /// The servers' configurations.
    directory: TempDir,
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
    /// When an engine is gone, or a server can't be started. Nothing is left then.
    pub async fn open(
        config: &Config,
        sides: Vec<Side>,
        program: &Path,
    ) -> Result<Self, BenchError> {
        let docker = match sides.iter().find(|side| side.kind == EngineKind::Docker) {
            Some(side) => Some(RawDocker::connect(config, &side.app).await?),
            None => None,
        };
        let directory = tempfile::tempdir().map_err(BenchError::Spawn)?;
        let (servers, busy, calm) = (BTreeMap::new(), BTreeMap::new(), CALM);
        let program = program.to_owned();
        let mut session = Self { sides, docker, servers, busy, calm, program, directory };
        for side in &session.sides {
            let names = side.subjects.iter().map(|subject| subject.language.name.clone());
            let languages = names.collect::<BTreeSet<_>>();
            for flow in side.flows {
                if let Some(Served { engine, pool, .. }) = flow.server() {
                    let server = Server { engine, languages: &languages, pool };
                    session.servers.insert(*flow, session.spawn(config, server)?);
                }
            }
        }
        Ok(session)
    }

    fn spawn(&self, config: &Config, server: Server<'_>) -> Result<IsolatorProcess, BenchError> {
        let file = settings::write(config, server, self.directory.path())?;
        IsolatorProcess::spawn(&self.program, &file, server.pool, server.languages.len())
    }

    /// Shakes hands with the servers and waits until their pools are full.
    ///
    /// # Errors
    ///
    /// When a server does not answer, or its pools stay empty.
    pub async fn connect(&mut self) -> Result<(), BenchError> {
        for side in &self.sides {
            for flow in side.flows {
                if let Some(server) = self.servers.get_mut(flow) {
                    server.connect(&side.app).await?;
                }
            }
        }
        Ok(())
    }

    /// The programs that are measured, each in all the flows that can start it, program by program.
    pub fn cells(&self) -> Vec<(Arc<Workload>, Scenario)> {
        let cell = |side: &Side, subject: &Arc<Workload>| {
            let subject = Arc::clone(subject);
            side.flows.iter().map(move |flow| (Arc::clone(&subject), *flow)).collect::<Vec<_>>()
        };
        let sides = self.sides.iter();
        let mut cells: Vec<_> =
            sides.flat_map(|side| side.subjects.iter().flat_map(|s| cell(side, s))).collect();
        cells.sort_by_key(|(subject, flow)| (subject.place(), *flow));
        cells
    }

    /// Tries every program once on each engine, which also brings what it is made of from disk into memory.
    /// Says which programs can't be measured, and why: those that need a library which is not there.
    ///
    /// # Errors
    ///
    /// When a program that needs nothing fails.
    pub async fn try_all(&mut self) -> Result<Vec<String>, BenchError> {
        let mut left_out = Vec::new();
        for index in 0..self.sides.len() {
            let flow = self.sides[index].trial();
            let mut fit = Vec::new();
            for subject in self.sides[index].subjects.clone() {
                match self.sample(&subject, flow).await {
                    Ok(_) => fit.push(subject),
                    Err(error @ (BenchError::Failed { .. } | BenchError::Output { .. }))
                        if subject.program.needs.is_some() =>
                    {
                        left_out.push(format!("{error} ({})", flow.label()));
                    }
                    Err(error) => return Err(error),
                }
            }
            self.sides[index].subjects = fit;
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
    pub async fn sample(
        &mut self,
        subject: &Workload,
        flow: Scenario,
    ) -> Result<Sample, BenchError> {
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
        subject: &Workload,
        flow: Scenario,
    ) -> Result<Option<Duration>, BenchError> {
        let Some(Served { engine, start, .. }) = flow.server() else {
            let docker = self.docker.as_ref().ok_or_else(|| not_there(flow.label()))?;
            return match flow {
                Scenario::DockerNaiveWarm => docker.naive_warm(subject).await.map(Some),
                _ => docker.cold(subject).await.map(Some),
            };
        };
        let side = self.sides.iter().find(|side| side.kind == engine);
        let (Some(side), Some(server)) = (side, self.servers.get_mut(&flow)) else {
            return Err(not_there(flow.label()));
        };
        let served = server.call(subject).await?;
        server.until_at_rest(&side.app).await?;
        Ok((served.start == start.as_str()).then_some(served.took))
    }

    /// Measures what the engines sustain, with servers of their own: those of the starts end before.
    /// `None` if there is nothing to run.
    ///
    /// # Errors
    ///
    /// When the engine or a server fails, or the program does not do what it should.
    pub async fn throughput(
        &mut self,
        config: &Config,
        until: Instant,
    ) -> Result<Option<Throughput>, BenchError> {
        stop(std::mem::take(&mut self.servers)).await?;
        let cells = self.cells();
        let Some((subject, _)) = cells.first() else { return Ok(None) };
        let size = subject.language.pool;
        let pool = PoolShape { size: size.size, hot: size.hot };
        let languages = BTreeSet::from([subject.language.name.clone()]);
        let mut contenders = BTreeMap::new();
        for (index, side) in self.sides.iter().enumerate() {
            let flows = cells.iter().filter(|(found, _)| Arc::ptr_eq(found, subject));
            for flow in flows.map(|(_, flow)| *flow).filter(|flow| side.flows.contains(flow)) {
                let contender = match flow.server() {
                    None => Contender::DockerCold,
                    Some(Served { engine: EngineKind::Embedded, .. }) => Contender::Embedded,
                    Some(_) => Contender::Isolator,
                };
                contenders.insert(contender, index);
            }
        }
        for (contender, side) in &contenders {
            if *contender != Contender::DockerCold {
                let side = &self.sides[*side];
                let server = Server { engine: side.kind, languages: &languages, pool };
                let server = self.spawn(config, server)?;
                self.busy.entry(*contender).or_insert(server).connect(&side.app).await?;
            }
        }
        let mut turns = Turns::new(contenders.keys().copied(), until);
        while let Some((contender, length)) = turns.next() {
            let slice = match (self.busy.get_mut(&contender), &self.docker) {
                (Some(server), _) => {
                    let call = async || server.call(subject).await.map(|_| ());
                    let slice = throughput::slice(pool.size + CLIENTS, length, call).await?;
                    // Its refill shall not be in the way of whose turn is next.
                    server.until_at_rest(&self.sides[contenders[&contender]].app).await?;
                    slice
                }
                (None, Some(docker)) => {
                    let cold = async || docker.cold(subject).await.map(|_| ());
                    throughput::slice(0, length, cold).await?
                }
                (None, None) => return Err(not_there(contender.label())),
            };
            turns.add(contender, slice);
            tokio::time::sleep(CALM).await;
        }
        stop(std::mem::take(&mut self.busy)).await?;
        Ok(Some(turns.into_throughput(subject)))
    }

    /// Stops the servers and removes everything that the session made.
    ///
    /// # Errors
    ///
    /// When something could not be removed; the next start of Isolator sweeps it.
    pub async fn close(self) -> Result<(), BenchError> {
        let Self { sides, docker, servers, busy, .. } = self;
        let finished = bounded(Call::Create, async {
            if let Some(docker) = docker {
                docker.finish().await;
            }
            Ok(())
        });
        let finished = finished.await;
        let stopped = stop(servers).await.and(stop(busy).await);
        let mut swept = Ok(());
        for Side { app, .. } in &sides {
            swept = swept.and(sweep::sweep_own(&*app.engine, &app.owner).await.map(|_| ()));
            if stopped.is_err() {
                app.sweep().await;
            }
        }
        stopped?;
        finished?;
        Ok(swept?)
    }
}

/// Stops servers, all of them whatever becomes of one.
async fn stop<K>(servers: BTreeMap<K, IsolatorProcess>) -> Result<(), BenchError> {
    let stopped = join_all(servers.into_values().map(IsolatorProcess::stop)).await;
    stopped.into_iter().collect()
}

fn not_there(what: &'static str) -> BenchError {
    BenchError::NotThere(what)
}
