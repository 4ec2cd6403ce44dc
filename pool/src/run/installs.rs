//! Packages that the programs of a sandbox ask for while they run.
//!
//! The runner passes on the requests, an [`Installer`] finds a set for each, and the engine makes that visible in the running sandbox. A
//! request ends with its program, or with the sandbox; a set that is being given to the sandbox by then still is, and stays.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use async_trait::async_trait;
use isolator_runner::wire::{
    self, Installed, Kind, MAX_INSTALL_REQUEST, MAX_INSTALLS, MAX_PROGRESS, WireError, numbered,
    refused as refused_line,
};
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use super::exchange::{Aside, message};
use crate::engine::{Call, Engine, EngineError, Progress, SandboxSpec, bounded, refused};
use crate::lock::lock;
use crate::packages::PackageSet;
use crate::sandbox::reaper::Lease;
use crate::sandbox::{Armed, Sandbox};

/// Requests of one sandbox that can follow each other at once, and the time after which it can have one more.
const BURST: u32 = 32;
const ONE_MORE_AFTER: Duration = Duration::from_secs(1);

/// Shortest time between two reports of requests that were refused before the installer got them.
const REPORT_EVERY: Duration = Duration::from_secs(60);

/// Longest time that a request waits for its set.
pub const MAX_WAIT: Duration = Duration::from_secs(15 * 60);

/// The part of a server that finds the packages for a program's request. The request is the program's, so all of it is hostile.
#[async_trait]
pub trait Installer: fmt::Debug + Send + Sync + 'static {
    /// Finds a set for a request of a sandbox that was made from the image with this digest. Dropping the future stops waiting for it.
    async fn find(&self, request: &[u8], image: &str, say: Progress<'_>) -> Found;

    /// Notes requests that were refused unread, because the sandbox has asked too often or has too many sets.
    fn refused_unread(&self, requests: u64);

    /// Notes that the last set could not be placed in the sandbox, although the engine has given it.
    fn not_placed(&self);
}

/// The result of a request.
pub enum Found {
    /// An answer for the program: a line of JSON. The sandbox stays as it is.
    Answer(String),
    /// A set for the sandbox. It has everything of the set that the sandbox was given before.
    Set(Arc<PackageSet>, Bound),
}

/// Called when the sandbox has a set or was not given it. Returns the answer for the program.
pub type Bound = Box<dyn FnOnce(Result<(), EngineError>) -> String + Send>;

/// The requests of one sandbox. They end when this is dropped.
#[derive(Debug)]
pub(crate) struct Installs {
    shared: Arc<Shared>,
    tasks: TaskTracker,
    _end: DropGuard,
}

/// The state of the requests that their tasks share.
#[derive(Debug)]
struct Shared {
    installer: Option<Arc<dyn Installer>>,
    place: BindPlace,
    end: CancellationToken,
    requests: Mutex<Requests>,
    /// There is something to send.
    changed: Notify,
}

/// The sandbox that is given the sets. A request does not keep it.
struct BindPlace {
    engine: Arc<dyn Engine>,
    lease: Weak<Lease>,
    spec: Arc<SandboxSpec>,
}

impl fmt::Debug for BindPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BindPlace")
    }
}

#[derive(Debug)]
struct Requests {
    /// Those that wait, by their numbers. Cancelling one ends its wait.
    open: BTreeMap<u32, CancellationToken>,
    /// The newest line about the progress of each.
    progress: BTreeMap<u32, String>,
    answers: VecDeque<Installed>,
    /// Requests that can follow at once, and when that was so.
    left: u32,
    since: Instant,
    refused: RefusedUnread,
}

/// Requests that were refused before the installer got them.
#[derive(Debug, Default)]
struct RefusedUnread {
    /// Those since the last report.
    unreported: u64,
    reported: Option<Instant>,
}

impl Installs {
    /// The requests of a sandbox. Without an installer they are refused.
    pub(crate) fn new(
        sandbox: &Sandbox<Armed>,
        installer: Option<Arc<dyn Installer>>,
        tasks: &TaskTracker,
    ) -> Self {
        let place = BindPlace {
            engine: Arc::clone(&sandbox.engine),
            lease: Arc::downgrade(&sandbox.lease),
            spec: Arc::clone(&sandbox.spec),
        };
        let requests = Requests {
            open: BTreeMap::new(),
            progress: BTreeMap::new(),
            answers: VecDeque::new(),
            left: BURST,
            since: Instant::now(),
            refused: RefusedUnread::default(),
        };
        let end = CancellationToken::new();
        let _end = end.clone().drop_guard();
        let requests = Mutex::new(requests);
        let shared = Shared { installer, place, end, requests, changed: Notify::new() };
        Self { shared: Arc::new(shared), tasks: tasks.clone(), _end }
    }

    fn begin(&self, number: u32, request: &[u8]) -> Result<(), WireError> {
        let unexpected = || WireError::Unexpected(Kind::Install);
        let mut requests = lock(&self.shared.requests);
        let is_new = !requests.open.contains_key(&number);
        if !is_new || requests.waiting() >= MAX_INSTALLS || request.len() > MAX_INSTALL_REQUEST {
            return Err(unexpected());
        }
        let gone = self.shared.end.child_token();
        requests.open.insert(number, gone.clone());
        let refusal = match &self.shared.installer {
            None => Some(("off", "this server gives programs no packages while they run")),
            Some(_) if !requests.takes_one() => Some((
                "busy",
                "this sandbox has asked for packages too often in the last minute: try again later",
            )),
            Some(_) if !self.shared.place.has_room() => Some((
                "too_large",
                "this sandbox was given packages as often as it can be: install everything at once, in a new session",
            )),
            Some(_) => None,
        };
        if let Some((kind, reason)) = refusal {
            let count = requests.refused.count();
            if let (Some(installer), Some(count)) = (&self.shared.installer, count) {
                installer.refused_unread(count);
            }
            requests.answer(number, None, refused_line(kind, reason));
            self.shared.changed.notify_one();
            return Ok(());
        }
        let (shared, request) = (Arc::clone(&self.shared), request.to_vec());
        self.tasks.spawn(async move { shared.serve(number, &request, gone).await });
        Ok(())
    }

    fn end(&self, number: u32, rest: &[u8]) {
        let mut requests = lock(&self.shared.requests);
        requests.progress.remove(&number);
        requests.answers.retain(|it| it.install != number || it.packages.is_some());
        if let Some(gone) = requests.open.remove(&number) {
            gone.cancel();
        }
        if !rest.is_empty()
            && let Some(installer) = &self.shared.installer
        {
            installer.not_placed();
        }
    }
}

impl Shared {
    /// Serves a request until its program is gone. A set that was found in time is given to the sandbox in any case.
    async fn serve(&self, number: u32, request: &[u8], gone: CancellationToken) {
        let Some(installer) = &self.installer else { return };
        let say = |line: &str| self.say(number, line);
        let found = tokio::select! {
            biased;
            () = gone.cancelled() => return,
            found = tokio::time::timeout(MAX_WAIT, installer.find(request, &self.place.spec.image.digest, &say)) => found,
        };
        let (packages, answer) = match found {
            Ok(Found::Answer(answer)) => (None, answer),
            Ok(Found::Set(set, bound)) => match self.place.give(&set).await {
                Ok(packages) => (Some(packages), bound(Ok(()))),
                Err(error) => (None, bound(Err(error))),
            },
            Err(_) => {
                let minutes = MAX_WAIT.as_secs() / 60;
                let reason = format!(
                    "the packages are not there after {minutes} minutes; their build goes on, so try again later"
                );
                (None, refused_line("busy", &reason))
            }
        };
        lock(&self.requests).answer(number, packages, answer);
        self.changed.notify_one();
    }

    fn say(&self, number: u32, line: &str) {
        let mut requests = lock(&self.requests);
        if requests.open.contains_key(&number) {
            let line = line[..line.floor_char_boundary(MAX_PROGRESS)].to_owned();
            requests.progress.insert(number, line);
            self.changed.notify_one();
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let refused = lock(&self.requests).refused.unreported;
        if let Some(installer) = self.installer.as_ref().filter(|_| refused > 0) {
            installer.refused_unread(refused);
        }
    }
}

impl RefusedUnread {
    /// Counts one. Returns the number to report now, if the last report is long enough ago.
    fn count(&mut self) -> Option<u64> {
        self.unreported += 1;
        if self.reported.is_some_and(|reported| reported.elapsed() < REPORT_EVERY) {
            return None;
        }
        self.reported = Some(Instant::now());
        Some(std::mem::take(&mut self.unreported))
    }
}

impl BindPlace {
    /// Whether the sandbox can have another set.
    fn has_room(&self) -> bool {
        self.lease.upgrade().is_none_or(|lease| lease.has_room())
    }

    /// Gives the running sandbox a set, which is kept until the sandbox is removed.
    async fn give(&self, set: &Arc<PackageSet>) -> Result<wire::Packages, EngineError> {
        if self.spec.packages != Some(set.interpreter) {
            return Err(refused(Call::Bind, "its sandboxes have no place for such packages"));
        }
        bounded(Call::Provide, self.engine.provide(set, &self.spec.image)).await?;
        let gone = || refused(Call::Bind, "it is being removed");
        let lease = self.lease.upgrade().ok_or_else(gone)?;
        if !lease.keep(Arc::clone(set)) {
            return Err(refused(Call::Bind, "it has as many sets of packages as it can have"));
        }
        let folder = bounded(Call::Bind, self.engine.bind_running(lease.name(), set)).await?;
        Ok(wire::Packages { interpreter: set.interpreter, folder })
    }
}

impl Requests {
    /// Counts a request. Returns false if there were too many.
    fn takes_one(&mut self) -> bool {
        let now = Instant::now();
        let more = now.duration_since(self.since).as_secs() / ONE_MORE_AFTER.as_secs();
        if more > 0 {
            self.left = BURST.min(self.left.saturating_add(u32::try_from(more).unwrap_or(BURST)));
            self.since = now;
        }
        self.left.checked_sub(1).map(|left| self.left = left).is_some()
    }

    /// Programs of which the runner knows that they wait for an answer.
    fn waiting(&self) -> usize {
        self.open.len() + self.answers.iter().filter(|it| it.packages.is_none()).count()
    }

    /// Queues an answer. A program that is gone needs none, but the runner hears of the set.
    fn answer(&mut self, install: u32, packages: Option<wire::Packages>, answer: String) {
        self.progress.remove(&install);
        if self.open.remove(&install).is_some() || packages.is_some() {
            self.answers.push_back(Installed { install, packages, answer });
        }
    }

    /// The next frame to send.
    fn next_frame(&mut self) -> Option<Vec<u8>> {
        if let Some(installed) = self.answers.pop_front() {
            return message(Kind::Installed, &installed).ok().or_else(|| {
                let Installed { install, packages, .. } = installed;
                let answer = refused_line("failed", "the answer is too long");
                message(Kind::Installed, &Installed { install, packages, answer }).ok()
            });
        }
        let (number, line) = self.progress.pop_first()?;
        let mut frame = Vec::new();
        let payload = [&number.to_be_bytes()[..], line.as_bytes()].concat();
        wire::push_bytes(&mut frame, Kind::InstallProgress, &payload);
        Some(frame)
    }
}

#[async_trait]
impl Aside for Installs {
    async fn outgoing(&self) -> Vec<u8> {
        loop {
            let changed = self.shared.changed.notified();
            if let Some(frame) = lock(&self.shared.requests).next_frame() {
                return frame;
            }
            changed.await;
        }
    }

    fn take(&self, kind: Kind, payload: &[u8]) -> Result<bool, WireError> {
        match kind {
            Kind::Install => {
                let (number, request) = numbered(kind, payload)?;
                self.begin(number, request)?;
            }
            Kind::InstallEnded => {
                let (number, rest) = numbered(kind, payload)?;
                self.end(number, rest);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }
}
