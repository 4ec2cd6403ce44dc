//! A container engine that exists only in memory, and a server's pools on top of it.
//!
//! The engine keeps exact books of what it was asked for. Every breach of the rules of a sandbox's
//! life is noted where it happens and fails the test at its end: a panic inside a task of the pools
//! would only vanish. The runners inside its sandboxes speak the real wire protocol.

// Each test binary uses a part of this.
#![allow(dead_code)]

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::ops::Deref;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::StreamExt;
use isolator_pool::OutputLimits;
use isolator_pool::admission::AdmissionLimits;
use isolator_pool::engine::{
    Call, Channel, Engine, EngineError, Found, Image, Labels, Progress, SandboxName, SandboxSpec,
    SandboxState, Whose,
};
use isolator_pool::images::{ImageBuilder, ImageProvider, PullPolicy};
use isolator_pool::limits::{ByteSize, CpuShare, FixedLimits, Resources};
use isolator_pool::outcome::Outcome;
use isolator_pool::owner::Owner;
use isolator_pool::pool::{PoolSize, PoolStatus, Start};
use isolator_pool::pools::{ExecuteError, PoolSpec, Pools, PoolsLimits, Receipt};
use isolator_pool::run::RunRequest;
use isolator_pool::workspace::{WorkspaceBuilder, WorkspaceLimits};
use isolator_runner::wire::{
    self, End, Exit, Failed, FailedCause, FrameDecoder, HEADER_LEN, Job, Kind, Ready, StreamCount,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// The image that is there from the start.
pub(crate) const IMAGE: &str = "language:1";

/// The pool that a [`World`] has unless told otherwise.
pub(crate) const POOL: &str = "language";

const CALLS: usize = Call::Sweep as usize + 1;

pub(crate) const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

pub(crate) const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

/// What goes wrong with a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Nothing.
    Fine,
    /// The next so many calls are refused.
    Fail(u32),
    /// Every call is refused.
    Broken,
    /// There is never an answer, and nothing happens.
    Hang,
    /// There is never an answer, but what was asked for happens this much later. Only of `create`.
    Late(Duration),
    /// The container ends instead.
    EndsContainer,
}

/// How a runner comes to be parked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Park {
    /// As it should.
    Ready,
    /// As it should, but its container ends this much later.
    Dies(Duration),
    /// It says nothing.
    Silence,
    /// Its stream ends at once.
    Eof,
    /// It speaks another version.
    Version(u32),
    /// It sends bytes that are no frames.
    Garbage,
    /// It announces a frame longer than any may be.
    Oversize,
    /// It sends a frame that is none of a parked runner's.
    Unexpected,
}

#[derive(Debug, Clone, Copy)]
struct Plan {
    delay: Duration,
    fault: Fault,
}

/// What the engine knows of one sandbox.
#[derive(Debug)]
struct Record {
    state: SandboxState,
    in_flight: Option<Call>,
    /// A call on it failed or was given up: nothing but removal may follow.
    given_up: bool,
    /// Its removal was asked for.
    removing: bool,
    armed: bool,
    ready: bool,
    jobs: usize,
    end: CancellationToken,
}

impl Default for Record {
    fn default() -> Self {
        Self {
            state: SandboxState::Gone,
            in_flight: None,
            given_up: false,
            removing: false,
            armed: false,
            ready: false,
            jobs: 0,
            end: CancellationToken::new(),
        }
    }
}

impl Record {
    fn exists(&self) -> bool {
        self.state != SandboxState::Gone
    }
}

struct Books {
    plans: [Plan; CALLS],
    calls: [usize; CALLS],
    in_flight: [usize; CALLS],
    peak: [usize; CALLS],
    sandboxes: BTreeMap<SandboxName, Record>,
    created: usize,
    removed: usize,
    images: BTreeMap<String, Image>,
    registry: BTreeSet<String>,
    pulls: usize,
    builds: usize,
    prepared: BTreeSet<String>,
    park: Park,
    breaches: Vec<String>,
}

/// The engine. Its clones are one engine.
#[derive(Clone)]
pub(crate) struct FakeEngine {
    books: Arc<Mutex<Books>>,
    labels: Labels,
    tasks: TaskTracker,
}

impl FakeEngine {
    fn new(labels: Labels) -> Self {
        let books = Books {
            plans: [Plan { delay: Duration::ZERO, fault: Fault::Fine }; CALLS],
            calls: [0; CALLS],
            in_flight: [0; CALLS],
            peak: [0; CALLS],
            sandboxes: BTreeMap::new(),
            created: 0,
            removed: 0,
            images: BTreeMap::from([(IMAGE.to_owned(), image(IMAGE, 1))]),
            registry: BTreeSet::new(),
            pulls: 0,
            builds: 0,
            prepared: BTreeSet::new(),
            park: Park::Ready,
            breaches: Vec::new(),
        };
        Self { books: Arc::new(Mutex::new(books)), labels, tasks: TaskTracker::new() }
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How long a call takes from now on.
    pub(crate) fn delay(&self, call: Call, delay: Duration) {
        self.books().plans[call as usize].delay = delay;
    }

    /// How long the calls on a sandbox take from now on.
    pub(crate) fn delay_all(&self, delay: Duration) {
        use Call::{Arm, Create, Pause, Remove, Resume, State, Update};
        for call in [Create, Arm, Pause, Resume, Update, State, Remove] {
            self.delay(call, delay);
        }
    }

    /// What goes wrong with a call from now on. Calls that hang already go on hanging.
    pub(crate) fn fault(&self, call: Call, fault: Fault) {
        self.books().plans[call as usize].fault = fault;
    }

    /// Nothing goes wrong from now on.
    pub(crate) fn heal(&self) {
        let mut books = self.books();
        for plan in &mut books.plans {
            plan.fault = Fault::Fine;
        }
        books.park = Park::Ready;
    }

    pub(crate) fn park(&self, park: Park) {
        self.books().park = park;
    }

    pub(crate) fn calls(&self, call: Call) -> usize {
        self.books().calls[call as usize]
    }

    /// The most calls of a kind that were ever under way at once.
    pub(crate) fn peak(&self, call: Call) -> usize {
        self.books().peak[call as usize]
    }

    pub(crate) fn in_flight(&self, call: Call) -> usize {
        self.books().in_flight[call as usize]
    }

    /// Sandboxes that exist.
    pub(crate) fn live(&self) -> usize {
        self.books().sandboxes.values().filter(|record| record.exists()).count()
    }

    pub(crate) fn created(&self) -> usize {
        self.books().created
    }

    pub(crate) fn builds(&self) -> usize {
        self.books().builds
    }

    pub(crate) fn pulls(&self) -> usize {
        self.books().pulls
    }

    /// Makes an image available for pulling.
    pub(crate) fn publish(&self, name: &str) {
        self.books().registry.insert(name.to_owned());
    }

    /// Puts an image there behind the server's back.
    pub(crate) fn put_image(&self, name: &str) {
        self.store(name);
    }

    /// Removes an image behind the server's back.
    pub(crate) fn lose_image(&self, name: &str) {
        self.books().images.remove(name);
    }

    /// Ends the container of a sandbox that waits for a job, chosen by `pick`; whether there was
    /// one.
    pub(crate) fn kill_parked(&self, pick: usize) -> bool {
        let mut books = self.books();
        let mut parked: Vec<_> = books
            .sandboxes
            .values_mut()
            .filter(|record| has_processes(record).is_ok() && record.ready && record.jobs == 0)
            .collect();
        if parked.is_empty() {
            return false;
        }
        let at = pick % parked.len();
        end(parked[at], SandboxState::Stopped);
        true
    }

    /// Panics if a rule was broken.
    pub(crate) fn assert_no_breach(&self) {
        let books = self.books();
        assert!(books.breaches.is_empty(), "{:#?}", books.breaches);
    }

    /// Panics if a rule was broken, or if anything is left.
    pub(crate) fn assert_clean(&self) {
        self.assert_no_breach();
        let books = self.books();
        let left: Vec<_> = books.sandboxes.iter().filter(|(_, record)| record.exists()).collect();
        assert!(left.is_empty(), "left behind: {left:#?}");
        assert_eq!(books.created, books.removed, "created and removed");
    }

    /// Whether no call is under way.
    pub(crate) fn is_idle(&self) -> bool {
        self.books().in_flight == [0; CALLS]
    }

    /// Panics if a call is still under way that nobody has given up.
    pub(crate) fn assert_idle(&self) {
        assert_eq!(self.books().in_flight, [0; CALLS], "calls under way");
    }

    fn begin(&self, call: Call, name: Option<&SandboxName>) -> (Flight, Plan) {
        let mut books = self.books();
        let at = call as usize;
        books.calls[at] += 1;
        books.in_flight[at] += 1;
        books.peak[at] = books.peak[at].max(books.in_flight[at]);
        if let Some(name) = name {
            let record = books.sandboxes.entry(name.clone()).or_default();
            let breach = breach(call, record);
            record.in_flight = Some(call);
            record.removing |= call == Call::Remove;
            if let Some(breach) = breach {
                books.breaches.push(format!("{call:?} of {name}: {breach}"));
            }
        }
        let plan = books.plans[at];
        if let Fault::Fail(times) = plan.fault {
            books.plans[at].fault = if times > 1 { Fault::Fail(times - 1) } else { Fault::Fine };
        }
        (Flight { engine: self.clone(), call, name: name.cloned(), landed: false }, plan)
    }

    /// Does what the plan says before the call itself happens.
    async fn answer(&self, call: Call, name: Option<&SandboxName>) -> Result<Flight, EngineError> {
        let (flight, plan) = self.begin(call, name);
        if !plan.delay.is_zero() {
            tokio::time::sleep(plan.delay).await;
        }
        let refused = |message: &str| EngineError::Refused { call, message: message.to_owned() };
        match plan.fault {
            Fault::Fine => return Ok(flight),
            Fault::Fail(_) | Fault::Broken => return Err(refused("it does not want to")),
            Fault::Hang => {}
            Fault::Late(delay) => {
                let (engine, name) = (self.clone(), name.cloned());
                self.tasks.spawn(async move {
                    tokio::time::sleep(delay).await;
                    let name = name.expect("only sandboxes come late");
                    engine.appear(&name);
                });
            }
            Fault::EndsContainer => {
                let mut books = self.books();
                let record = name.and_then(|name| books.sandboxes.get_mut(name));
                if let Some(record) = record.filter(|record| record.exists()) {
                    end(record, SandboxState::Stopped);
                }
                return Err(refused("the container has ended"));
            }
        }
        std::future::pending().await
    }

    fn appear(&self, name: &SandboxName) {
        let mut books = self.books();
        books.created += 1;
        let record = books.sandboxes.entry(name.clone()).or_default();
        record.state = SandboxState::Running;
    }

    fn note(&self, breach: String) {
        self.books().breaches.push(breach);
    }
}

type Answer = Result<(), EngineError>;

/// What is wrong with asking for `call` now.
fn breach(call: Call, record: &Record) -> Option<String> {
    if let Some(other) = record.in_flight {
        return Some(format!("while {other:?} is under way"));
    }
    if call == Call::Remove {
        return None;
    }
    if record.removing {
        return Some("after its removal".to_owned());
    }
    if record.given_up {
        return Some("after a call that failed or was given up".to_owned());
    }
    match call {
        Call::Create if record.exists() => Some("twice".to_owned()),
        Call::Arm if record.armed => Some("twice".to_owned()),
        Call::Pause | Call::Resume if !record.ready => Some("before it was ready".to_owned()),
        Call::Pause | Call::Resume if record.jobs > 0 => Some("with a job in it".to_owned()),
        _ => None,
    }
}

fn end(record: &mut Record, state: SandboxState) {
    record.state = state;
    record.end.cancel();
}

/// A call under way. Dropped before it has landed, it has failed or was given up.
struct Flight {
    engine: FakeEngine,
    call: Call,
    name: Option<SandboxName>,
    landed: bool,
}

impl Flight {
    /// Ends the call well, together with what it changes.
    fn land(mut self) {
        self.landed = true;
    }

    /// Ends the call on a sandbox, together with what it changes; if that is an error, the call
    /// has failed.
    fn land_with<T>(
        mut self,
        change: impl FnOnce(&mut Record) -> Result<T, &'static str>,
    ) -> Result<T, EngineError> {
        let name = self.name.clone().expect("a call on a sandbox");
        let changed = change(self.engine.books().sandboxes.entry(name).or_default());
        self.landed = changed.is_ok();
        let call = self.call;
        changed.map_err(|message| EngineError::Refused { call, message: message.to_owned() })
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        let mut books = self.engine.books();
        books.in_flight[self.call as usize] -= 1;
        if let Some(record) = self.name.as_ref().and_then(|name| books.sandboxes.get_mut(name)) {
            record.in_flight = None;
            record.given_up |= !self.landed;
        }
    }
}

fn has_processes(record: &Record) -> Result<(), &'static str> {
    match record.state {
        SandboxState::Running | SandboxState::Paused => Ok(()),
        SandboxState::Stopped | SandboxState::Gone => Err("there is no such process"),
    }
}

#[async_trait]
impl Engine for FakeEngine {
    async fn check(&self) -> Result<String, EngineError> {
        self.answer(Call::Check, None).await?.land();
        Ok("fake".to_owned())
    }

    async fn warnings(&self) -> Result<Vec<String>, EngineError> {
        Ok(Vec::new())
    }

    async fn prepare(&self, image: &Image) -> Result<(), EngineError> {
        let flight = self.answer(Call::Prepare, None).await?;
        self.books().prepared.insert(image.digest.clone());
        flight.land();
        Ok(())
    }

    async fn find_image(&self, name: &str) -> Result<Option<Image>, EngineError> {
        self.answer(Call::FindImage, None).await?.land();
        Ok(self.books().images.get(name).cloned())
    }

    async fn pull_image(&self, name: &str, progress: Progress<'_>) -> Result<(), EngineError> {
        self.books().pulls += 1;
        progress("pulling");
        let flight = self.answer(Call::FetchImage, None).await?;
        if !self.books().registry.contains(name) {
            return Err(EngineError::NoSuchImage(name.to_owned()));
        }
        self.store(name);
        flight.land();
        Ok(())
    }

    async fn create(&self, name: &SandboxName, spec: &SandboxSpec) -> Result<(), EngineError> {
        let flight = self.answer(Call::Create, Some(name)).await?;
        if !self.books().images.values().any(|image| image.digest == spec.image.digest) {
            return Err(EngineError::NoSuchImage(spec.image.name.clone()));
        }
        if !self.books().prepared.contains(&spec.image.digest) {
            self.note(format!("{name} was created before {} was prepared", spec.image.name));
        }
        self.appear(name);
        flight.land();
        Ok(())
    }

    async fn arm(&self, name: &SandboxName) -> Result<Channel, EngineError> {
        let flight = self.answer(Call::Arm, Some(name)).await?;
        let park = self.books().park;
        let end = flight.land_with(|record| {
            has_processes(record)?;
            record.armed = true;
            Ok(record.end.clone())
        })?;
        let (server, inside) = tokio::io::duplex(PIPE);
        let runner = Runner { engine: self.clone(), name: name.clone(), stream: inside };
        self.tasks.spawn(async move {
            tokio::select! {
                biased;
                () = end.cancelled() => {}
                _ = runner.live(park) => {}
            }
        });
        let (output, input) = tokio::io::split(server);
        let output = futures_util::stream::unfold(output, async |mut output| {
            let mut piece = vec![0; PIPE];
            let read = output.read(&mut piece).await.unwrap_or(0);
            piece.truncate(read);
            (read > 0).then(|| (Ok(Bytes::from(piece)), output))
        });
        Ok(Channel { input: Box::new(input), output: output.boxed() })
    }

    async fn pause(&self, name: &SandboxName) -> Result<(), EngineError> {
        let flight = self.answer(Call::Pause, Some(name)).await?;
        flight.land_with(|record| {
            has_processes(record)?;
            record.state = SandboxState::Paused;
            Ok(())
        })
    }

    async fn resume(&self, name: &SandboxName) -> Result<(), EngineError> {
        let flight = self.answer(Call::Resume, Some(name)).await?;
        flight.land_with(|record| {
            has_processes(record)?;
            record.state = SandboxState::Running;
            Ok(())
        })
    }

    async fn update(&self, name: &SandboxName, _: Resources) -> Result<(), EngineError> {
        self.answer(Call::Update, Some(name)).await?.land_with(|record| has_processes(record))
    }

    async fn state(&self, name: &SandboxName) -> Result<SandboxState, EngineError> {
        self.answer(Call::State, Some(name)).await?.land_with(|record| Ok(record.state))
    }

    async fn remove(&self, name: &SandboxName) -> Result<(), EngineError> {
        let flight = self.answer(Call::Remove, Some(name)).await?;
        let existed = flight.land_with(|record| {
            let existed = record.exists();
            end(record, SandboxState::Gone);
            Ok(existed)
        })?;
        self.books().removed += usize::from(existed);
        Ok(())
    }

    async fn list(&self) -> Result<Vec<Found>, EngineError> {
        self.answer(Call::List, None).await?.land();
        let books = self.books();
        let found = books.sandboxes.iter().filter(|(_, record)| record.exists());
        Ok(found
            .map(|(name, _)| Found { name: name.clone(), labels: self.labels.clone() })
            .collect())
    }

    async fn sweep_shared(&self, _: Whose<'_>) -> Result<usize, EngineError> {
        self.answer(Call::Sweep, None).await?.land();
        Ok(0)
    }
}

impl FakeEngine {
    /// Puts a new image on the engine under the name.
    fn store(&self, name: &str) {
        let mut books = self.books();
        let version = books.pulls + books.builds;
        books.images.insert(name.to_owned(), image(name, version));
    }
}

/// Builds images whose names start with `built/`, on the engine whose clone it is.
#[async_trait]
impl ImageBuilder for FakeEngine {
    fn makes(&self, name: &str) -> bool {
        name.starts_with("built/")
    }

    async fn build(&self, name: &str, progress: Progress<'_>) -> Result<(), EngineError> {
        self.books().builds += 1;
        progress("building");
        let flight = self.answer(Call::FetchImage, None).await?;
        self.store(name);
        flight.land();
        Ok(())
    }
}

fn image(name: &str, version: usize) -> Image {
    Image { name: name.to_owned(), digest: format!("sha256:{name}@{version}"), ..Image::default() }
}

/// Bytes that the stream to a runner holds.
const PIPE: usize = 64 << 10;

/// The first process of a sandbox.
struct Runner {
    engine: FakeEngine,
    name: SandboxName,
    stream: DuplexStream,
}

impl Runner {
    /// From the start to the end of the stream.
    async fn live(mut self, park: Park) -> std::io::Result<()> {
        match park {
            Park::Ready => self.ready(wire::VERSION).await?,
            Park::Dies(after) => {
                self.ready(wire::VERSION).await?;
                tokio::time::sleep(after).await;
                self.end_container(SandboxState::Stopped);
                return Ok(());
            }
            Park::Silence => std::future::pending().await,
            Park::Eof => return Ok(()),
            Park::Version(version) => self.ready(version).await?,
            Park::Garbage => self.stream.write_all(&[0xff; 64]).await?,
            Park::Oversize => self.stream.write_all(&OVERSIZE).await?,
            Park::Unexpected => self.stream.write_all(&wire::header(Kind::Exit, 0)).await?,
        }
        self.serve().await
    }

    async fn ready(&mut self, version: u32) -> std::io::Result<()> {
        self.record(|record| record.ready = true);
        self.send(Kind::Ready, &Ready { version }).await
    }

    /// Takes a job, then does what its first argument says.
    async fn serve(mut self) -> std::io::Result<()> {
        let mut decoder = FrameDecoder::default();
        let mut piece = vec![0; PIPE];
        let mut job: Option<Job> = None;
        let mut stdin = Vec::new();
        loop {
            let Some((kind, payload)) = decoder.next_frame().expect("frames of the server") else {
                let read = self.stream.read(&mut piece).await?;
                if read == 0 {
                    return Ok(());
                }
                decoder.feed(&piece[..read]);
                continue;
            };
            match kind {
                Kind::Job => {
                    let taken: Job = wire::parse_message(kind, &payload).expect("a job");
                    self.take_job();
                    if taken.argv[0] == "fail-half-way" {
                        self.fail(&taken.argv[1]).await?;
                        // The stream stays open, but nobody reads it any more.
                        std::future::pending::<()>().await;
                    }
                    job = Some(taken);
                }
                Kind::Stdin => stdin.extend(payload),
                Kind::Go => break,
                _ => {}
            }
        }
        let job = job.expect("a job comes before Go");
        let jobs = self.engine.books().sandboxes.values().map(|record| record.jobs).sum::<usize>();
        match job.argv[0].as_str() {
            "not-started" => return Ok(()),
            "second-time" if jobs == 1 => return Ok(()),
            _ => {}
        }
        self.stream.write_all(&wire::header(Kind::Started, 0)).await?;
        self.run(&job.argv, &stdin).await
    }

    fn take_job(&self) {
        let breach = self.record(|record| {
            record.jobs += 1;
            match record {
                Record { jobs: 2.., .. } => Some("has got a second job"),
                Record { state: SandboxState::Paused, .. } => Some("has got a job but is paused"),
                // One that has just ended is nobody's fault.
                _ => None,
            }
        });
        if let Some(breach) = breach {
            self.engine.note(format!("{} {breach}", self.name));
        }
    }

    async fn run(mut self, argv: &[String], stdin: &[u8]) -> std::io::Result<()> {
        let number = |at: usize| argv[at].parse::<u64>().expect("a number");
        match argv[0].as_str() {
            "run" => {
                tokio::time::sleep(ms(number(1))).await;
                self.print(Kind::Stdout, stdin).await?;
                self.exit().await
            }
            "second-time" => self.exit().await,
            "flood" => {
                for _ in 0..number(1) {
                    self.print(Kind::Stdout, &vec![b'o'; number(2) as usize]).await?;
                    self.print(Kind::Stderr, &vec![b'e'; number(2) as usize]).await?;
                }
                self.exit().await
            }
            "silence" => std::future::pending().await,
            "eof" => {
                self.print(Kind::Stdout, b"so far").await?;
                self.stream.write_all(&wire::header(Kind::Stdout, 9)[..HEADER_LEN - 1]).await
            }
            "stop" => {
                self.end_container(SandboxState::Stopped);
                Ok(())
            }
            "vanish" => {
                self.engine.books().removed += 1;
                self.end_container(SandboxState::Gone);
                Ok(())
            }
            "garbage" => self.write_and_wait(&[0xff; 64]).await,
            "oversize" => self.write_and_wait(&OVERSIZE).await,
            "unexpected" => self.write_and_wait(&wire::header(Kind::Ready, 0)).await,
            "fail" => self.fail(&argv[1]).await,
            other => panic!("no runner does {other:?}"),
        }
    }

    async fn write_and_wait(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.stream.write_all(bytes).await?;
        std::future::pending().await
    }

    async fn print(&mut self, kind: Kind, bytes: &[u8]) -> std::io::Result<()> {
        let mut buffer = Vec::new();
        wire::push_bytes(&mut buffer, kind, bytes);
        self.stream.write_all(&buffer).await
    }

    async fn send<T: serde::Serialize>(&mut self, kind: Kind, message: &T) -> std::io::Result<()> {
        let mut buffer = Vec::new();
        wire::push_message(&mut buffer, kind, message).expect("a short message");
        self.stream.write_all(&buffer).await
    }

    async fn exit(&mut self) -> std::io::Result<()> {
        let exit = Exit {
            end: End::Code(0),
            killed: None,
            wall: Duration::ZERO,
            cpu: Duration::ZERO,
            peak_memory: None,
            oom_kills: 0,
            refused_forks: 0,
            full_disks: Vec::new(),
            stdout: StreamCount::default(),
            stderr: StreamCount::default(),
            unpack: Duration::ZERO,
            spawn: Duration::ZERO,
        };
        self.send(Kind::Exit, &exit).await
    }

    async fn fail(&mut self, cause: &str) -> std::io::Result<()> {
        let cause = match cause {
            "workspace-full" => FailedCause::WorkspaceFull,
            "workspace" => FailedCause::Workspace,
            "command" => FailedCause::Command,
            "protocol" => FailedCause::Protocol,
            other => panic!("no such cause: {other:?}"),
        };
        self.send(Kind::Failed, &Failed { cause, message: "words of the system".to_owned() }).await
    }

    fn record<T>(&self, change: impl FnOnce(&mut Record) -> T) -> T {
        change(self.engine.books().sandboxes.get_mut(&self.name).expect("its own sandbox"))
    }

    fn end_container(&self, state: SandboxState) {
        self.record(|record| end(record, state));
    }
}

/// The header of a frame of 4 GiB.
const OVERSIZE: [u8; HEADER_LEN] = [Kind::Stdout as u8, 0xff, 0xff, 0xff, 0xff];

/// What a test starts with.
pub(crate) struct Setup {
    /// Name and image of each pool.
    pub(crate) pools: Vec<(&'static str, &'static str)>,
    pub(crate) size: usize,
    pub(crate) hot: usize,
    pub(crate) max_age: Duration,
    pub(crate) running: usize,
    pub(crate) queue: usize,
    pub(crate) wait: Duration,
    pub(crate) refills: usize,
    pub(crate) policy: PullPolicy,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            pools: vec![(POOL, IMAGE)],
            size: 2,
            hot: 0,
            max_age: secs(24 * 60 * 60),
            running: 4,
            queue: 8,
            wait: secs(60),
            refills: 2,
            policy: PullPolicy::Missing,
        }
    }
}

/// An engine and the pools on it.
pub(crate) struct World {
    pub(crate) engine: FakeEngine,
    pub(crate) pools: Arc<Pools>,
    pub(crate) tasks: TaskTracker,
    _directory: tempfile::TempDir,
}

impl Deref for World {
    type Target = Pools;

    fn deref(&self) -> &Pools {
        &self.pools
    }
}

impl World {
    /// Starts the pools on a healthy engine.
    pub(crate) fn start(setup: Setup) -> Self {
        Self::start_with(setup, |_| {})
    }

    /// Starts the pools on an engine that was prepared.
    pub(crate) fn start_with(setup: Setup, prepare: impl FnOnce(&FakeEngine)) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let owner = Arc::new(Owner::register(directory.path()).unwrap());
        let engine = FakeEngine::new(owner.labels().clone());
        prepare(&engine);
        let images =
            ImageProvider::new(Arc::new(engine.clone()), Arc::new(engine.clone()), setup.policy);
        let size = PoolSize { size: setup.size, hot: setup.hot, max_age: setup.max_age };
        let specs = setup
            .pools
            .iter()
            .map(|(name, image)| ((*name).to_owned(), PoolSpec { sandbox: sandbox(image), size }))
            .collect();
        let limits = PoolsLimits {
            admission: AdmissionLimits {
                running: setup.running,
                queue: setup.queue,
                wait: setup.wait,
            },
            refills: setup.refills,
        };
        let pools = Pools::start(Arc::new(engine.clone()), images, owner, limits, specs);
        let pools = Arc::new(pools);
        Self { engine, pools, tasks: TaskTracker::new(), _directory: directory }
    }

    /// Starts the pools and waits until they are full.
    pub(crate) async fn full(setup: Setup) -> Self {
        let world = Self::start(setup);
        world.fill().await;
        world
    }

    /// Runs in the first pool.
    pub(crate) async fn run(&self, request: &RunRequest) -> Result<Done, ExecuteError> {
        self.pools.execute(POOL, request).await
    }

    /// Runs in the first pool, as a task of its own.
    pub(crate) fn spawn(
        &self,
        request: RunRequest,
    ) -> tokio::task::JoinHandle<Result<Done, ExecuteError>> {
        let pools = Arc::clone(&self.pools);
        self.tasks.spawn(async move { pools.execute(POOL, &request).await })
    }

    /// State of the only pool.
    pub(crate) fn pool(&self) -> PoolStatus {
        self.pools.status().into_values().next().unwrap()
    }

    pub(crate) fn is_full(&self) -> bool {
        let statuses = self.pools.status();
        statuses.values().all(|pool| pool.hot + pool.paused == pool.size && pool.making == 0)
    }

    /// Waits until the pools are full and nothing is left over.
    pub(crate) async fn fill(&self) {
        until("the pools are full", || {
            let size: usize = self.pools.status().values().map(|pool| pool.size).sum();
            self.is_full() && self.engine.live() == size
        })
        .await;
    }

    /// Starts counted so far: hot, warm, queued, cold.
    pub(crate) fn starts(&self) -> [u64; 4] {
        self.pool().starts
    }

    /// Closes the pools and checks the engine's books.
    pub(crate) async fn end(self) {
        self.pools.close(secs(60)).await.expect("everything was removed");
        self.assert_clean().await;
    }

    /// What is held and what is under way, for a test that fails.
    pub(crate) fn describe(&self) -> String {
        let books = self.engine.books();
        let left: Vec<_> = books.sandboxes.iter().filter(|(_, record)| record.exists()).collect();
        let (load, pool) = (self.pools.load(), self.pool());
        format!("{load:?}, {pool:?}, calls under way {:?}, left {left:#?}", books.in_flight)
    }

    /// Waits a little for tasks that are just about to end, then checks as `assert_clean` does.
    pub(crate) async fn assert_clean_soon(&self) {
        tokio::time::sleep(ms(20)).await;
        until("nothing runs", || self.pools.load() == (0, 0) && self.pool().making == 0).await;
        self.assert_clean().await;
    }

    /// Checks that nothing is held, under way or left.
    pub(crate) async fn assert_clean(&self) {
        settle().await;
        assert_eq!(self.pools.load(), (0, 0), "requests that run and wait");
        for (name, pool) in self.pools.status() {
            let there = (pool.hot, pool.paused, pool.making);
            assert_eq!(there, (0, 0, 0), "what {name} has");
        }
        self.engine.assert_idle();
        self.engine.assert_clean();
    }
}

/// What a request comes to.
pub(crate) type Done = (Outcome, Receipt);

/// Waits for what is bound to happen, up to ten virtual minutes.
pub(crate) async fn until(what: &str, condition: impl Fn() -> bool) {
    for _ in 0..100_000 {
        if condition() {
            return;
        }
        tokio::time::sleep(ms(6)).await;
    }
    panic!("it never came to pass that {what}");
}

/// Lets everything happen that takes no time.
pub(crate) async fn settle() {
    tokio::time::sleep(ms(1)).await;
}

/// Polls a future at most `polls` times; its output, if it came to that. With `woken`, returns
/// only when the future would be polled once more.
pub(crate) async fn poll_times<F: Future>(
    future: F,
    polls: usize,
    woken: bool,
) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut polled = 0;
    std::future::poll_fn(|context| {
        if polled == polls {
            return Poll::Ready(None);
        }
        polled += 1;
        match future.as_mut().poll(context) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if polled == polls && !woken => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// The limits of a sandbox, unless a request wants others.
pub(crate) const RESOURCES: Resources =
    Resources { memory: ByteSize::mib(256), cpu: CpuShare::millis(1000) };

/// A request whose runner does what `argv` says.
pub(crate) fn request(argv: &[&str]) -> RunRequest {
    RunRequest {
        argv: argv.iter().map(|&argument| argument.to_owned()).collect(),
        env: BTreeMap::new(),
        workspace: WorkspaceBuilder::new(WorkspaceLimits { files: 8, total: 1 << 24 }).build(),
        stdin: b"hello".to_vec(),
        timeout: secs(30),
        resources: RESOURCES,
        output: OutputLimits { head: 1 << 16, tail: 1 << 16, kill: 1 << 24 },
    }
}

/// A request that takes so many milliseconds and prints its standard input.
pub(crate) fn run_for(millis: u64) -> RunRequest {
    request(&["run", &millis.to_string()])
}

/// How a request that has to succeed started.
pub(crate) fn started(done: Result<Done, ExecuteError>) -> Start {
    let (outcome, receipt) = done.expect("an outcome");
    assert_eq!(outcome.stdout.head, b"hello");
    receipt.start
}

fn sandbox(image: &str) -> SandboxSpec {
    SandboxSpec {
        image: Image { name: image.to_owned(), ..Image::default() },
        resources: RESOURCES,
        limits: FixedLimits {
            pids: 64,
            open_files: 256,
            workspace: ByteSize::mib(16),
            tmp: ByteSize::mib(16),
            inodes: 1024,
            shm: ByteSize::mib(1),
        },
        workdir: "/workspace".to_owned(),
        user: (1000, 1000),
        network: "none".to_owned(),
        cap_drop: vec!["ALL".to_owned()],
        readonly_root: true,
        runtime: None,
    }
}

/// Numbers that are random enough and the same for the same seed (xorshift).
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// A number below `sides`.
    pub(crate) fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % sides
    }
}
