//! A session of a client, and the calls that use it.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use isolator_pool::engine::limits::Resources;
use isolator_pool::lock::lock;
use isolator_pool::pool::admission::Client;
use isolator_pool::pool::session::Session;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::contexts::Contexts;
use super::journal::Journal;
use super::journals::Published;
use super::lifetime::{Lifetime, NextEnd};
use crate::config::{Config, Language};
use crate::packages::installing::{SandboxPackages, SandboxSet};
use crate::policy::Policies;

/// Least memory that counts for a session, in bytes.
const LEAST_MEMORY: u64 = 4 << 20;

/// A session of a client.
pub(crate) struct OpenSession {
    pub id: String,
    pub client: Client,
    pub language: Arc<Language>,
    /// The limits of its sandbox.
    pub resources: Resources,
    pub session: Session,
    /// The packages that its cells can import from, to which they can add.
    pub packages: Option<SandboxPackages>,
    /// The configuration that it was opened with.
    pub config: Arc<Config>,
    /// The steps that it has run.
    pub journal: Mutex<Journal>,
    /// What the server for journals has of them.
    pub(super) published: Mutex<Published>,
    /// Its contexts, for clients that use several.
    pub contexts: Contexts,
    /// How long it can be unused, if it has no deadline.
    pub idle_timeout: Duration,
    /// When it ends.
    pub(super) lifetime: Lifetime,
    pub(super) used: Mutex<Instant>,
    /// Calls that use it now.
    pub(super) calls: AtomicUsize,
    /// Whether a command holds it until it closes it.
    pub(super) is_held: AtomicBool,
    /// Kills the step of a command, if one runs or waits.
    pub(super) step: Mutex<Option<CancellationToken>>,
}

impl OpenSession {
    /// The set of packages that its cells can import from now.
    pub(crate) fn bound(&self) -> Option<SandboxSet> {
        self.packages.as_ref()?.bound()
    }

    /// How often its programs have got packages.
    pub(crate) fn installs(&self) -> u32 {
        self.packages.as_ref().map_or(0, SandboxPackages::installs)
    }

    /// When it ends if it is not used again.
    pub(super) fn next_end(&self) -> NextEnd {
        // A call that uses it prolongs it.
        let is_used = self.is_in_use() || self.is_held.load(Ordering::Relaxed);
        let used = if is_used { Instant::now() } else { *lock(&self.used) };
        self.lifetime.next_end(used)
    }

    /// The same as a time of the clock.
    pub(crate) fn ends_at(&self) -> SystemTime {
        let at = self.next_end().at;
        SystemTime::now() + at.saturating_duration_since(Instant::now())
    }

    /// When it was opened.
    pub(crate) fn opened_at(&self) -> SystemTime {
        self.lifetime.opened_at
    }

    /// Pauses it until its client resumes it; returns false if it is paused already.
    pub(crate) fn pause(&self) -> bool {
        self.lifetime.pause()
    }

    /// Whether its client has paused it.
    pub(crate) fn is_paused(&self) -> bool {
        self.lifetime.is_paused()
    }

    /// The same for the client, as a date in RFC 3339's form.
    pub(crate) fn expires_at(&self) -> String {
        humantime::format_rfc3339_seconds(self.ends_at()).to_string()
    }

    /// The policies for its cells: those of now, or if its language was removed, those that it was opened with.
    pub(crate) fn policies<'a>(&'a self, now: &'a Config) -> &'a Policies {
        let is_there = now.languages.contains_key(&self.language.name);
        if is_there { &now.policies } else { &self.config.policies }
    }

    /// Waits until it has reached its greatest age.
    pub(crate) async fn too_old(&self) {
        tokio::time::sleep_until(self.lifetime.oldest()).await;
    }

    /// Lets it have no idle timeout from now on, because a command holds it.
    pub(crate) fn hold(&self) {
        self.is_held.store(true, Ordering::Relaxed);
    }

    /// Begins a step that [`kill_step`](Self::kill_step) can kill until the result is dropped.
    pub(crate) fn begin_step(&self) -> Killable<'_> {
        let token = CancellationToken::new();
        *lock(&self.step) = Some(token.clone());
        Killable { session: self, token }
    }

    /// Kills the step of a command. Returns whether there is one.
    pub(crate) fn kill_step(&self) -> bool {
        lock(&self.step).take().map(|step| step.cancel()).is_some()
    }

    pub(super) fn is_too_old(&self) -> bool {
        self.lifetime.oldest() <= Instant::now()
    }

    pub(super) fn is_in_use(&self) -> bool {
        self.calls.load(Ordering::Relaxed) > 0 || self.session.is_running()
    }

    pub(super) fn memory(&self) -> u64 {
        self.session.memory().max(LEAST_MEMORY)
    }
}

/// A step of a command, which has one at a time in its session.
pub(crate) struct Killable<'a> {
    session: &'a OpenSession,
    token: CancellationToken,
}

impl Killable<'_> {
    /// Waits until it has to be killed.
    pub(crate) async fn killed(&self) {
        self.token.cancelled().await;
    }
}

impl Drop for Killable<'_> {
    fn drop(&mut self) {
        lock(&self.session.step).take();
    }
}

/// A call that uses a session. It does not expire meanwhile, and its idle time begins when this is dropped.
pub(crate) struct InUse(pub(super) Arc<OpenSession>);

impl InUse {
    pub(super) fn new(session: Arc<OpenSession>) -> Self {
        session.calls.fetch_add(1, Ordering::Relaxed);
        Self(session)
    }

    /// The same session for another holder.
    pub(crate) fn another(&self) -> Self {
        Self::new(self.shared())
    }

    /// Lets the session go on, if it is paused.
    pub(crate) fn resume(&self) {
        if self.is_paused() {
            self.lifetime.resume();
        }
    }

    /// The session, for what may come after the call.
    pub(crate) fn shared(&self) -> Arc<OpenSession> {
        Arc::clone(&self.0)
    }
}

impl std::ops::Deref for InUse {
    type Target = OpenSession;

    fn deref(&self) -> &OpenSession {
        &self.0
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        *lock(&self.0.used) = Instant::now();
        self.0.calls.fetch_sub(1, Ordering::Relaxed);
    }
}
