//! The fake engine, and its record of every call.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use isolator_pool::engine::images::{Former, ImageBuilder};
use isolator_pool::engine::{
    Call, EngineError, Image, Labels, Progress, SandboxName, SandboxState, refused,
};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::*;

/// The fault of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Nothing.
    Fine,
    /// This number of calls is refused.
    Fail(u32),
    /// Every call is refused.
    Broken,
    /// Every call finds the disk full.
    Full,
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

/// The fate of an interpreter that is started ahead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Preloading {
    /// It waits after so long.
    Takes(Duration),
    /// It waits at once, but one with modules after so long.
    Imports(Duration),
    /// Nothing is heard of it.
    Silence,
    /// The runner ends over it.
    Eof,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Plan {
    pub(super) delay: Duration,
    pub(super) fault: Fault,
}

/// The engine's record of one sandbox.
#[derive(Debug)]
pub(super) struct Record {
    pub(super) state: SandboxState,
    pub(super) in_flight: Option<Call>,
    /// A call on it that is not tried again failed or was given up: nothing but removal may follow.
    pub(super) given_up: bool,
    /// Its removal was asked for.
    pub(super) removing: bool,
    pub(super) armed: bool,
    pub(super) ready: bool,
    pub(super) preloaded: bool,
    pub(super) has_modules: bool,
    /// Forks in it that its runner does not know yet.
    pub(super) untold_forks: usize,
    /// A fork failed, or its request no longer waited.
    pub(super) fork_lost: bool,
    /// A kernel is forked into it, whose session is opened at the same time and does without it if need be.
    pub(super) awaits_kernel: bool,
    /// A job came while it was paused.
    pub(super) awaits_thaw: bool,
    pub(super) jobs: usize,
    /// Whether a cell of a session runs; `None` if there is no session.
    pub(super) cell_runs: Option<bool>,
    pub(super) end: CancellationToken,
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
            preloaded: false,
            has_modules: false,
            untold_forks: 0,
            fork_lost: false,
            awaits_kernel: false,
            awaits_thaw: false,
            jobs: 0,
            cell_runs: None,
            end: CancellationToken::new(),
        }
    }
}

impl Record {
    pub(super) fn exists(&self) -> bool {
        self.state != SandboxState::Gone
    }
}

pub(super) struct Books {
    pub(super) plans: [Plan; CALLS],
    pub(super) calls: [usize; CALLS],
    pub(super) in_flight: [usize; CALLS],
    pub(super) peak: [usize; CALLS],
    pub(super) sandboxes: BTreeMap<SandboxName, Record>,
    pub(super) created: usize,
    pub(super) removed: usize,
    pub(super) images: BTreeMap<String, Image>,
    pub(super) registry: BTreeSet<String>,
    pub(super) pulls: usize,
    pub(super) builds: usize,
    pub(super) prepared: BTreeSet<String>,
    pub(super) park: Park,
    pub(super) preloading: Preloading,
    pub(super) template: Template,
    /// The memory and the processes of each update.
    pub(super) updates: Vec<(u64, u32)>,
    /// The folders of sets that runners were given.
    pub(super) given: Vec<String>,
    /// Sets that were missed.
    pub(super) missed: Vec<String>,
    pub(super) breaches: Vec<String>,
}

/// The engine. Its clones are one engine.
#[derive(Clone)]
pub(crate) struct FakeEngine {
    pub(super) books: Arc<Mutex<Books>>,
    pub(super) labels: Labels,
    pub(super) tasks: TaskTracker,
}

impl FakeEngine {
    pub(super) fn new(labels: Labels) -> Self {
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
            preloading: Preloading::Takes(Duration::ZERO),
            template: Template::default(),
            updates: Vec::new(),
            given: Vec::new(),
            missed: Vec::new(),
            breaches: Vec::new(),
        };
        Self { books: Arc::new(Mutex::new(books)), labels, tasks: TaskTracker::new() }
    }

    pub(super) fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How long a call takes from now on.
    pub(crate) fn delay(&self, call: Call, delay: Duration) {
        self.books().plans[call as usize].delay = delay;
    }

    /// How long the calls on a sandbox take from now on.
    pub(crate) fn delay_all(&self, delay: Duration) {
        use Call::{Arm, Create, Pause, Preload, Remove, Resume, State, Update};
        for call in [Create, Arm, Preload, Pause, Resume, Update, State, Remove] {
            self.delay(call, delay);
        }
    }

    /// Sets the fault of a call from now on. Calls that hang already go on hanging.
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
        books.preloading = Preloading::Takes(Duration::ZERO);
        if books.template.forking != Forking::Never {
            books.template.forking = Forking::Comes;
        }
    }

    pub(crate) fn park(&self, park: Park) {
        self.books().park = park;
    }

    pub(crate) fn preloading(&self, preloading: Preloading) {
        self.books().preloading = preloading;
    }

    /// Sandboxes in which modules wait.
    pub(crate) fn with_modules(&self) -> usize {
        let books = self.books();
        books.sandboxes.values().filter(|record| record.exists() && record.has_modules).count()
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

    /// The memory that sandboxes were given since this was last asked, with this number of processes.
    pub(crate) fn given_memory(&self, processes: u32) -> Vec<u64> {
        let asked =
            self.books().updates.extract_if(.., |update| update.1 == processes).collect::<Vec<_>>();
        asked.into_iter().map(|(memory, _)| memory).collect()
    }

    /// The folders of sets that runners were given.
    pub(crate) fn given(&self) -> Vec<String> {
        self.books().given.clone()
    }

    /// The hashes of sets that were missed.
    pub(crate) fn missed_sets(&self) -> Vec<String> {
        self.books().missed.clone()
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
            .filter(|record| has_processes(record).is_ok() && record.ready)
            .filter(|record| record.jobs == 0 || record.state == SandboxState::Paused)
            .collect();
        if parked.is_empty() {
            return false;
        }
        let at = pick % parked.len();
        end(parked[at], SandboxState::Stopped);
        true
    }

    /// Freezes all sandboxes behind the server's back.
    pub(crate) fn freeze_all(&self) {
        let mut books = self.books();
        for record in books.sandboxes.values_mut().filter(|record| has_processes(record).is_ok()) {
            record.state = SandboxState::Paused;
        }
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

    /// Panics if a call is still under way that was not given up.
    pub(crate) fn assert_idle(&self) {
        assert_eq!(self.books().in_flight, [0; CALLS], "calls under way");
    }

    pub(super) fn begin(&self, call: Call, name: Option<&SandboxName>) -> (Flight, Plan) {
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
    pub(super) async fn answer(
        &self,
        call: Call,
        name: Option<&SandboxName>,
    ) -> Result<Flight, EngineError> {
        let (flight, plan) = self.begin(call, name);
        if !plan.delay.is_zero() {
            tokio::time::sleep(plan.delay).await;
        }
        let refused = |cause: &str| refused(call, cause);
        match plan.fault {
            Fault::Fine => return Ok(flight),
            Fault::Fail(_) | Fault::Broken => return Err(refused("it does not want to")),
            Fault::Full => return Err(EngineError::DiskFull("it is full".into())),
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

    pub(super) fn appear(&self, name: &SandboxName) {
        let mut books = self.books();
        books.created += 1;
        let record = books.sandboxes.entry(name.clone()).or_default();
        record.state = SandboxState::Running;
    }

    pub(super) fn note(&self, breach: String) {
        self.books().breaches.push(breach);
    }
}

impl FakeEngine {
    /// Puts a new image on the engine under the name.
    pub(super) fn store(&self, name: &str) {
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

    async fn build(
        &self,
        name: &str,
        _: Former,
        progress: Progress<'_>,
    ) -> Result<(), EngineError> {
        self.books().builds += 1;
        progress("building");
        let flight = self.answer(Call::FetchImage, None).await?;
        self.store(name);
        flight.land();
        Ok(())
    }
}

pub(super) fn image(name: &str, version: usize) -> Image {
    Image { name: name.to_owned(), digest: format!("sha256:{name}@{version}"), ..Image::default() }
}
