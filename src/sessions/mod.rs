//! The sessions of all clients: their handles, their bounds, and what is told of those that are gone.

pub(crate) mod gone;
pub(crate) mod journal;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use isolator_pool::engine::limits::Resources;
use isolator_pool::lock::lock;
use isolator_pool::packages::PackageSet;
use isolator_pool::pool::admission::Client;
use isolator_pool::pool::pools::{OpenError, OpenReceipt, Pools};
use isolator_pool::pool::session::{EndReason, Session, SessionRequest};
use serde::Serialize;
use tokio::time::Instant;

use self::gone::{Gone, Graveyard, Why};
use self::journal::Journal;
use crate::config::{Config, Language, SessionsConfig};
use crate::hex::hex;
use crate::policy::Policies;

/// Random bytes of a handle, so that nobody can guess one.
const HANDLE_BYTES: usize = 16;

/// How often a session that is in use is looked at when it is time for it to end.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// What counts for a session at least, in bytes, whatever its sandbox says.
const LEAST_MEMORY: u64 = 4 << 20;

/// The sessions of a server; cheap to clone.
#[derive(Clone)]
pub(crate) struct Sessions {
    config: SessionsConfig,
    /// How many one client can have.
    of_one: usize,
    pools: Arc<Pools>,
    book: Arc<Book>,
}

/// All that is known of sessions.
#[derive(Default)]
struct Book {
    entries: Mutex<Entries>,
    opened: AtomicU64,
    evicted: AtomicU64,
    undone: AtomicU64,
}

#[derive(Default)]
struct Entries {
    open: HashMap<String, Arc<OpenSession>>,
    /// Places that are taken for sessions which are being opened, with their clients.
    opening: Vec<Client>,
    gone: Graveyard,
}

/// A session of a client.
pub(crate) struct OpenSession {
    /// Its handle.
    pub id: String,
    /// Whose it is.
    pub client: Client,
    /// Its language.
    pub language: Arc<Language>,
    /// What its sandbox may use.
    pub resources: Resources,
    /// The sandbox.
    pub session: Session,
    /// The packages that its cells can import from, if it asked for some.
    pub packages: Option<BoundSet>,
    /// The configuration that it was opened with.
    pub config: Arc<Config>,
    /// What it has run.
    pub journal: Mutex<Journal>,
    /// How long it can be unused.
    pub idle_timeout: Duration,
    max_age: Duration,
    opened: Instant,
    used: Mutex<Instant>,
    /// Calls that use it now.
    calls: AtomicUsize,
}

/// Counts for operators.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct SessionCounts {
    /// Sessions that are open.
    pub open: usize,
    /// Of these, those in which a cell runs.
    pub running: usize,
    /// Of these, those that are frozen.
    pub frozen: usize,
    /// Memory of all of them after their last cells, in bytes.
    pub memory_bytes: u64,
    /// All that were opened since the start.
    pub opened: u64,
    /// Those of them that were ended to make room or free memory.
    pub evicted: u64,
    /// Cells that were undone.
    pub undone_cells: u64,
}

/// A session that was asked for.
pub(crate) struct Wish {
    /// Its language.
    pub language: Arc<Language>,
    /// What its sandbox may use.
    pub resources: Resources,
    /// How long it can be unused, if its client asks for less than usual.
    pub idle_timeout: Option<Duration>,
    /// The packages that its cells can import from, if it asks for some.
    pub packages: Option<BoundSet>,
}

/// A set of packages for a session.
#[derive(Debug, Clone)]
pub(crate) struct BoundSet {
    /// What was asked for: names of sets, and requirements.
    pub asked: Vec<String>,
    /// The set.
    pub set: Arc<PackageSet>,
}

/// Why there is no new session.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OpenFailure {
    /// All that can be there are in use.
    #[error("all {0} sessions that can be open are in use at this moment")]
    AllInUse(usize),
    /// There are no random names.
    #[error("the kernel returned no random bytes: {0}")]
    Random(#[from] getrandom::Error),
    /// There is no sandbox for it.
    #[error(transparent)]
    Open(#[from] OpenError),
}

/// Why a handle leads to no session.
#[derive(Debug)]
pub(crate) enum NoSession {
    /// This client never had such a session, or it is forgotten.
    Unknown,
    /// It is gone.
    Gone(Box<Gone>),
}

impl OpenSession {
    /// When it ends if it is not used again.
    fn ends_at(&self) -> (Instant, Why) {
        // A call that uses it prolongs it.
        let used = if self.is_in_use() { Instant::now() } else { *lock(&self.used) };
        let idle = used + self.idle_timeout;
        let oldest = self.opened + self.max_age;
        if idle <= oldest {
            (idle, Why::Idle(self.idle_timeout))
        } else {
            (oldest, Why::TooOld(self.max_age))
        }
    }

    /// The same for the client, as a date in RFC 3339's form.
    pub(crate) fn expires_at(&self) -> String {
        let (at, _) = self.ends_at();
        let at = SystemTime::now() + at.saturating_duration_since(Instant::now());
        humantime::format_rfc3339_seconds(at).to_string()
    }

    /// The policies for its cells: those of now, or if its language was removed, those that it was opened with.
    pub(crate) fn policies<'a>(&'a self, now: &'a Config) -> &'a Policies {
        let is_there = now.languages.contains_key(&self.language.name);
        if is_there { &now.policies } else { &self.config.policies }
    }

    fn is_in_use(&self) -> bool {
        self.calls.load(Ordering::Relaxed) > 0 || self.session.is_running()
    }

    fn memory(&self) -> u64 {
        self.session.memory().max(LEAST_MEMORY)
    }
}

/// A call that uses a session. It does not expire meanwhile, and the time counts anew when this is dropped.
pub(crate) struct InUse(Arc<OpenSession>);

impl InUse {
    fn new(session: Arc<OpenSession>) -> Self {
        session.calls.fetch_add(1, Ordering::Relaxed);
        Self(session)
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

/// A place for a session that is being opened; given back when dropped.
struct Place {
    book: Arc<Book>,
    client: Client,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut entries = lock(&self.book.entries);
        if let Some(at) = entries.opening.iter().position(|client| *client == self.client) {
            entries.opening.swap_remove(at);
        }
    }
}

impl Sessions {
    /// For one client, or for several.
    pub(crate) fn new(config: SessionsConfig, has_one_client: bool, pools: Arc<Pools>) -> Self {
        let of_one = if has_one_client { config.max } else { config.max_per_client };
        Self { config, of_one, pools, book: Arc::default() }
    }

    /// The same sessions under another configuration. Those that are open keep what they have.
    pub(crate) fn reconfigured(
        &self,
        config: SessionsConfig,
        has_one_client: bool,
        pools: Arc<Pools>,
    ) -> Self {
        Self { book: Arc::clone(&self.book), ..Self::new(config, has_one_client, pools) }
    }

    /// Opens a session for a client, whose call has begun with this configuration. If there are too many, the one that was unused longest ends. Dropping the future opens none.
    ///
    /// # Errors
    ///
    /// See [`OpenFailure`].
    pub(crate) async fn open(
        &self,
        client: &Client,
        config: &Arc<Config>,
        wish: Wish,
    ) -> Result<(InUse, OpenReceipt), OpenFailure> {
        let place = self.make_room(client)?;
        let mut handle = [0; HANDLE_BYTES];
        getrandom::fill(&mut handle)?;
        let Wish { language, resources, idle_timeout, packages } = wish;
        let kernel = language.kernel_command(resources.memory);
        let asked = packages.as_ref().map_or_else(Vec::new, |bound| bound.asked.clone());
        let request = SessionRequest {
            kernel,
            resources,
            packages: packages.as_ref().map(|bound| Arc::clone(&bound.set)),
            checkpoints: self.config.checkpoints,
        };
        let (session, receipt) = self.pools.open_session(&language.name, client, &request).await?;
        let open = Arc::new(OpenSession {
            id: hex(&handle),
            client: client.clone(),
            language,
            resources,
            session,
            config: Arc::clone(config),
            journal: Mutex::new(Journal::new(self.config.journal).with_packages(asked)),
            packages,
            idle_timeout: idle_timeout
                .unwrap_or(self.config.idle_timeout)
                .min(self.config.idle_timeout),
            max_age: self.config.max_age,
            opened: Instant::now(),
            used: Mutex::new(Instant::now()),
            calls: AtomicUsize::new(0),
        });
        let in_use = InUse::new(Arc::clone(&open));
        lock(&self.book.entries).open.insert(open.id.clone(), Arc::clone(&open));
        drop(place);
        self.book.opened.fetch_add(1, Ordering::Relaxed);
        self.pools.track(watch(Arc::clone(&self.book), open));
        self.keep_to_memory();
        Ok((in_use, receipt))
    }

    /// Whether there is any.
    pub(crate) fn is_any_open(&self) -> bool {
        !lock(&self.book.entries).open.is_empty()
    }

    /// The session of a client, for a call.
    ///
    /// # Errors
    ///
    /// When the client has none with this handle.
    pub(crate) fn take(&self, client: &Client, id: &str) -> Result<InUse, NoSession> {
        let entries = lock(&self.book.entries);
        let open = entries.open.get(id).filter(|session| session.client == *client);
        match open {
            Some(session) if session.session.end_reason().is_none() => {
                Ok(InUse::new(Arc::clone(session)))
            }
            Some(session) => {
                // Its watcher has not seen it yet.
                let why = Why::Ended(session.session.end_reason().unwrap_or(EndReason::Closed));
                Err(NoSession::Gone(Box::new(gone_of(session, why))))
            }
            None => match entries.gone.find(client, id) {
                Some(gone) => Err(NoSession::Gone(Box::new(gone.clone()))),
                None => Err(NoSession::Unknown),
            },
        }
    }

    /// What a session of a client has run, whether it is open or gone, and its language.
    pub(crate) fn journal(&self, client: &Client, id: &str) -> Option<(String, Journal)> {
        let entries = lock(&self.book.entries);
        if let Some(open) = entries.open.get(id).filter(|session| session.client == *client) {
            return Some((open.language.name.clone(), lock(&open.journal).clone()));
        }
        entries.gone.find(client, id).map(|gone| (gone.language.clone(), gone.journal.clone()))
    }

    /// Changes the journal of a session, also if it has ended meanwhile: its end may be noted before its last step.
    pub(crate) fn note(&self, session: &OpenSession, change: impl FnOnce(&mut Journal)) {
        let mut entries = lock(&self.book.entries);
        let mut journal = lock(&session.journal);
        change(&mut journal);
        if let Some(gone) = entries.gone.of(&session.id) {
            gone.journal = journal.clone();
        }
    }

    /// Ends a session of a client, with what runs in it.
    ///
    /// # Errors
    ///
    /// When the client has none with this handle.
    pub(crate) fn close(&self, client: &Client, id: &str) -> Result<(), NoSession> {
        let session = self.take(client, id)?;
        self.book.end(&session.0, Why::Ended(EndReason::Closed));
        Ok(())
    }

    /// The sessions of a client, the oldest first.
    pub(crate) fn of(&self, client: &Client) -> Vec<Arc<OpenSession>> {
        let entries = lock(&self.book.entries);
        let own = entries.open.values().filter(|session| session.client == *client);
        let mut own: Vec<_> = own.cloned().collect();
        own.sort_by_key(|session| session.opened);
        own
    }

    /// Notes that cells were undone.
    pub(crate) fn count_undone(&self, cells: u32) {
        self.book.undone.fetch_add(u64::from(cells), Ordering::Relaxed);
    }

    /// Ends sessions until all together take no more memory than they may: those of the client with the most memory, the longest
    /// unused first. Sessions that are in use stay, and so do those of clients with less than their share.
    pub(crate) fn keep_to_memory(&self) {
        let most = self.config.memory.as_bytes();
        loop {
            let entries = lock(&self.book.entries);
            let mut of_clients: HashMap<&Client, u64> = HashMap::new();
            for session in entries.open.values() {
                *of_clients.entry(&session.client).or_default() += session.memory();
            }
            let total: u64 = of_clients.values().sum();
            let share = total / of_clients.len().max(1) as u64;
            let unused = entries.open.values().filter(|session| !session.is_in_use());
            let heaviest = unused.map(|session| of_clients[&session.client]).max();
            let heaviest = heaviest.filter(|memory| total > most && *memory >= share);
            let loser =
                longest_unused(&entries, |session| Some(of_clients[&session.client]) == heaviest);
            let loser = loser.filter(|_| heaviest.is_some());
            drop(of_clients);
            drop(entries);
            let Some(loser) = loser else { return };
            self.evict(&loser, Why::Memory(self.config.memory.as_mib()));
        }
    }

    /// Counts for operators.
    pub(crate) fn counts(&self) -> SessionCounts {
        let entries = lock(&self.book.entries);
        let count = |is: fn(&Session) -> bool| {
            entries.open.values().filter(|open| is(&open.session)).count()
        };
        SessionCounts {
            open: entries.open.len(),
            running: count(Session::is_running),
            frozen: count(Session::is_frozen),
            memory_bytes: entries.open.values().map(|session| session.session.memory()).sum(),
            opened: self.book.opened.load(Ordering::Relaxed),
            evicted: self.book.evicted.load(Ordering::Relaxed),
            undone_cells: self.book.undone.load(Ordering::Relaxed),
        }
    }

    /// Takes a place for a session. If none is free, the session that was unused longest ends: of the client itself if it has as many
    /// as it can have, otherwise of the client with the most.
    fn make_room(&self, client: &Client) -> Result<Place, OpenFailure> {
        loop {
            let mut entries = lock(&self.book.entries);
            let of_client = |client: &Client| {
                let open =
                    entries.open.values().filter(|session| session.client == *client).count();
                open + entries.opening.iter().filter(|other| *other == client).count()
            };
            let is_at_own_limit = of_client(client) >= self.of_one;
            let is_full = entries.open.len() + entries.opening.len() >= self.config.max;
            if !is_at_own_limit && !is_full {
                entries.opening.push(client.clone());
                return Ok(Place { book: Arc::clone(&self.book), client: client.clone() });
            }
            let (loser, why) = if is_at_own_limit {
                let loser = longest_unused(&entries, |session| session.client == *client);
                (loser, Why::TooManyOfClient(self.of_one))
            } else {
                let most = entries.open.values().filter(|session| !session.is_in_use());
                let most = most.map(|session| of_client(&session.client)).max();
                let loser =
                    longest_unused(&entries, |session| Some(of_client(&session.client)) == most);
                (loser, Why::TooMany(self.config.max))
            };
            drop(entries);
            let most = if is_at_own_limit { self.of_one } else { self.config.max };
            self.evict(&loser.ok_or(OpenFailure::AllInUse(most))?, why);
        }
    }

    fn evict(&self, session: &Arc<OpenSession>, why: Why) {
        self.book.evicted.fetch_add(1, Ordering::Relaxed);
        self.book.end(session, why);
    }
}

impl Book {
    /// Ends a session, and remembers why.
    fn end(&self, session: &Arc<OpenSession>, why: Why) {
        let mut entries = lock(&self.entries);
        if entries.open.remove(&session.id).is_some() {
            tracing::info!(client = %session.client, %why, "a session has ended");
            entries.gone.add(gone_of(session, why));
        }
        drop(entries);
        session.session.close();
    }
}

fn gone_of(session: &OpenSession, why: Why) -> Gone {
    Gone {
        id: session.id.clone(),
        client: session.client.clone(),
        language: session.language.name.clone(),
        why,
        journal: lock(&session.journal).clone(),
        since: Instant::now(),
    }
}

/// The session that was unused longest and is not in use.
fn longest_unused(
    entries: &Entries,
    may_lose: impl Fn(&OpenSession) -> bool,
) -> Option<Arc<OpenSession>> {
    let unused = entries.open.values().filter(|session| !session.is_in_use() && may_lose(session));
    unused.min_by_key(|session| *lock(&session.used)).cloned()
}

/// Ends a session when it is time, and notes its end whatever the reason.
async fn watch(book: Arc<Book>, session: Arc<OpenSession>) {
    loop {
        let (at, why) = session.ends_at();
        tokio::select! {
            reason = session.session.ended() => return book.end(&session, Why::Ended(reason)),
            () = tokio::time::sleep_until(at) => {}
        }
        if session.is_in_use() {
            tokio::time::sleep(LOOK_AGAIN).await;
        } else if session.ends_at().0 <= Instant::now() {
            return book.end(&session, why);
        }
    }
}
