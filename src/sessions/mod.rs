//! The sessions of all clients: their handles, their bounds, and records of those that are gone.

pub(crate) mod contexts;
pub(crate) mod gone;
pub(crate) mod journal;
pub(crate) mod journals;
mod lifetime;
mod open;
mod registry;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use isolator_pool::counts::Count;
use isolator_pool::engine::limits::Resources;
use isolator_pool::lock::lock;
use isolator_pool::packages::PackageSet;
use isolator_pool::pool::admission::Client;
use isolator_pool::pool::pools::{ExecuteError, OpenReceipt, Pools};
use isolator_pool::pool::session::{EndReason, Session, SessionRequest};
use isolator_pool::run::installs::Installer;
use serde::Serialize;
use tokio::time::Instant;

use self::contexts::Contexts;
use self::gone::{Gone, Why};
use self::journal::Journal;
use self::journals::{Journals, KeptJournal, ReadError};
use self::lifetime::Lifetime;
pub(crate) use self::lifetime::{AtDeadline, Deadline, TooLate};
pub(crate) use self::open::{InUse, OpenSession};
pub(crate) use self::registry::Registry;
use self::registry::{Evicted, Reservation, Unless, longest_unused, watch};
use crate::config::{Config, Language, SessionsConfig, WhenFull};
use crate::node::{LostHandle, Node, Thing};
use crate::notice::Notice;
use crate::packages::installing::SandboxPackages;

/// The sessions of a server; cheap to clone.
#[derive(Clone)]
pub(crate) struct Sessions {
    config: SessionsConfig,
    /// How many one client can have.
    of_one: usize,
    pools: Arc<Pools>,
    registry: Arc<Registry>,
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
    /// Memory of all of them in bytes, after their last cells or when they were frozen later.
    pub memory_bytes: u64,
    /// All that were opened since the start.
    pub opened: u64,
    /// Those of them that were ended to make room or free memory.
    pub evicted: u64,
    /// Cells that were undone.
    pub undone_cells: u64,
    /// Sessions that were opened with what another one had run.
    pub replayed: u64,
    /// Files, and parts of them, that clients have read.
    pub files_read: u64,
}

/// A session that was asked for.
pub(crate) struct Wish {
    pub language: Arc<Language>,
    /// The limits of its sandbox.
    pub resources: Resources,
    /// How long it can be unused, if its client asks for less than usual.
    pub idle_timeout: Option<Duration>,
    /// The set of packages that it begins with.
    pub set: Option<Arc<PackageSet>>,
    /// The packages that its cells can import from, to which they can add.
    pub packages: Option<SandboxPackages>,
    /// Serves the requests of its cells for packages.
    pub installer: Option<Arc<dyn Installer>>,
    /// Variables of its interpreter, added to those of the language.
    pub env: BTreeMap<String, String>,
    /// Its end instead of the idle timeout, counted from its opening, if its client sets one.
    pub deadline: Option<(Duration, AtDeadline)>,
    /// How long it can wait for a slot, if not for as long as others.
    pub max_queue: Option<Duration>,
}

/// Why no session was opened.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OpenFailure {
    /// All that can be there are in use.
    #[error("all {most} sessions that can be open are in use at this moment")]
    AllInUse {
        /// How many can be.
        most: usize,
        /// Whether they are all that one client can have.
        is_own_share: bool,
    },
    /// As many are open as can be, and none ends to make room.
    #[error(
        "{most} sessions {}, and none is ended to make room for another (sessions.whenFull)",
        if *.is_own_share { "of yours are open, as many as one client can have here" } else { "are open, as many as this server can have" }
    )]
    Full {
        /// How many can be.
        most: usize,
        /// Whether they are all that one client can have.
        is_own_share: bool,
    },
    /// The kernel has no random bytes for a handle.
    #[error("the kernel returned no random bytes: {0}")]
    Random(#[from] getrandom::Error),
    /// The pools have no sandbox for it.
    #[error(transparent)]
    Open(#[from] ExecuteError),
}

/// Why a handle leads to no session.
#[derive(Debug)]
pub(crate) enum NoSession {
    /// This client never had such a session, or it is forgotten.
    Unknown,
    Gone(Box<Gone>),
    /// Another node has made the handle, or this one before it was started again.
    Lost(Box<LostHandle>),
}

impl Sessions {
    /// For one client, or for several. Their handles have the name of the node.
    pub(crate) fn new(
        config: SessionsConfig,
        has_one_client: bool,
        pools: Arc<Pools>,
        node: &Node,
        journals: Journals,
    ) -> Self {
        let registry = Registry { node: node.clone(), journals, ..Registry::default() };
        Self::with_registry(config, has_one_client, pools, Arc::new(registry))
    }

    fn with_registry(
        config: SessionsConfig,
        has_one_client: bool,
        pools: Arc<Pools>,
        registry: Arc<Registry>,
    ) -> Self {
        let of_one = if has_one_client { config.max } else { config.max_per_client };
        registry.most_memory.store(config.memory.as_bytes(), Ordering::Relaxed);
        Self { config, of_one, pools, registry }
    }

    /// The same sessions under another configuration. Those that are open keep what they have.
    pub(crate) fn reconfigured(
        &self,
        config: SessionsConfig,
        has_one_client: bool,
        pools: Arc<Pools>,
    ) -> Self {
        Self::with_registry(config, has_one_client, pools, Arc::clone(&self.registry))
    }

    /// Opens a session for a client, whose call has begun with this configuration. If there are too many, the one that was unused
    /// longest ends, or it is refused. Also returns what to tell the client of its sessions that have ended so. Dropping the future opens none.
    pub(crate) async fn open(
        &self,
        client: &Client,
        config: &Arc<Config>,
        wish: Wish,
    ) -> Result<(InUse, OpenReceipt, Vec<String>), OpenFailure> {
        let (place, mut evicted) = self.make_room(client)?;
        let id = self.registry.node.new_handle()?;
        let Wish { language, resources, idle_timeout, set, packages, .. } = wish;
        let Wish { installer, env, deadline, max_queue, .. } = wish;
        let mut kernel = language.kernel_command(resources.memory);
        if let Some(kernel) = &mut kernel {
            kernel.env.extend(env);
        }
        let bound = packages.as_ref().and_then(SandboxPackages::bound);
        let request = SessionRequest {
            kernel,
            resources,
            packages: set,
            installer,
            checkpoints: self.config.checkpoints,
            max_queue,
        };
        let (session, receipt) = self.pools.open_session(&language.name, client, &request).await?;
        let SessionsConfig { max_age, idle_timeout: longest, .. } = self.config;
        let idle_timeout = idle_timeout.unwrap_or(longest).min(longest);
        let deadline = deadline.map(|(after, action)| Deadline::after(after.min(max_age), action));
        let open = Arc::new(OpenSession {
            id,
            client: client.clone(),
            language,
            resources,
            session,
            config: Arc::clone(config),
            journal: Mutex::new(
                Journal::new(self.config.journal.as_usize())
                    .with_packages(bound.map_or_else(Vec::new, |bound| bound.asked)),
            ),
            packages,
            idle_timeout,
            lifetime: Lifetime::new(idle_timeout, max_age, deadline),
            used: Mutex::new(Instant::now()),
            calls: AtomicUsize::new(0),
            is_held: AtomicBool::new(false),
            published: Mutex::default(),
            contexts: Contexts::new(),
            step: Mutex::new(None),
        });
        let in_use = InUse::new(Arc::clone(&open));
        lock(&self.registry.entries).open.insert(open.id.clone(), Arc::clone(&open));
        drop(place);
        self.registry.opened.add(1);
        self.registry.journals.changed(&open);
        self.pools.track(watch(Arc::clone(&self.registry), open));
        evicted.append(&mut self.registry.keep_to_memory());
        Ok((in_use, receipt, describe_own(&evicted, client)))
    }

    /// Whether there is any.
    pub(crate) fn is_any_open(&self) -> bool {
        !lock(&self.registry.entries).open.is_empty()
    }

    /// The session of a client, for a call. One that is paused goes on.
    ///
    /// # Errors
    ///
    /// When the client has none with this handle.
    pub(crate) fn take(&self, client: &Client, id: &str) -> Result<InUse, NoSession> {
        let session = self.registry.take(client, id)?;
        session.resume();
        Ok(session)
    }

    /// The sessions, without the pools in which they are opened.
    pub(crate) fn registry(&self) -> Arc<Registry> {
        Arc::clone(&self.registry)
    }

    /// The language and journal of a client's session, whether it is open, gone, or was on another node.
    ///
    /// # Errors
    ///
    /// When it is not on this node, and the server that keeps the journals of the others can't be asked.
    pub(crate) async fn journal(
        &self,
        client: &Client,
        id: &str,
    ) -> Result<Option<KeptJournal>, ReadError> {
        let own = self.own_journal(client, id);
        let missing = |kept: &KeptJournal| kept.journal.missing();
        let lacks = own.as_ref().map(missing);
        if lacks == Some(0) {
            return Ok(own);
        }
        // This node has given up steps to have room, which the server may still have.
        match (self.registry.journals.read(client, id).await, own) {
            (Ok(Some(read)), _) if lacks.is_none_or(|lacks| missing(&read) < lacks) => {
                Ok(Some(read))
            }
            (_, Some(own)) => Ok(Some(own)),
            (read, None) => read,
        }
    }

    fn own_journal(&self, client: &Client, id: &str) -> Option<KeptJournal> {
        let entries = lock(&self.registry.entries);
        if let Some(open) = entries.open.get(id).filter(|session| session.client == *client) {
            let (language, journal) = (open.language.name.clone(), lock(&open.journal).clone());
            return Some(KeptJournal { language, journal });
        }
        let gone = entries.gone.find(client, id)?;
        Some(KeptJournal { language: gone.language.clone(), journal: gone.journal.clone() })
    }

    /// A note for the client if the journal of its session may be incomplete for other nodes.
    pub(crate) fn journal_note(&self, session: &OpenSession) -> Option<String> {
        self.registry.journals.note(session)
    }

    /// The journals that are kept on a server.
    pub(crate) fn journals(&self) -> &Journals {
        &self.registry.journals
    }

    /// Why a handle that leads to no session and to no journal is lost, if a node has made it.
    pub(crate) fn lost(&self, id: &str) -> Option<Box<LostHandle>> {
        self.registry.node.lost(id, Thing::Session).map(Box::new)
    }

    /// Changes the journal of a session, also if it has ended meanwhile: its end may be noted before its last step.
    pub(crate) fn note(&self, session: &Arc<OpenSession>, change: impl FnOnce(&mut Journal)) {
        let mut entries = lock(&self.registry.entries);
        let mut journal = lock(&session.journal);
        change(&mut journal);
        if let Some(gone) = entries.gone.of(&session.id) {
            gone.journal = journal.clone();
        }
        drop((journal, entries));
        self.registry.journals.changed(session);
    }

    /// Ends a session of a client, with what runs in it.
    ///
    /// # Errors
    ///
    /// When the client has none with this handle.
    pub(crate) fn close(&self, client: &Client, id: &str) -> Result<(), NoSession> {
        let session = self.registry.take(client, id)?;
        self.registry.end(&session.0, Why::Ended(EndReason::Closed), Unless::Never);
        Ok(())
    }

    /// The sessions of a client, the oldest first.
    pub(crate) fn of(&self, client: &Client) -> Vec<Arc<OpenSession>> {
        let entries = lock(&self.registry.entries);
        let own = entries.open.values().filter(|session| session.client == *client);
        let mut own: Vec<_> = own.cloned().collect();
        own.sort_unstable_by_key(|session| session.lifetime.opened);
        own
    }

    /// The notice that the server is about to stop, and all sessions with it.
    pub(crate) fn notice(&self) -> Notice {
        self.registry.notice.clone()
    }

    /// What to tell a client that uses a session which is about to end with its server.
    pub(crate) fn about_the_end(&self) -> Option<String> {
        self.registry.notice.is_given().then(|| {
            "this server is about to stop, and the session ends with it: open another session and go on there; \
             open_session with replay runs the cells again where the journal can be read"
                .to_owned()
        })
    }

    /// Lets the calls end that only hold a session.
    pub(crate) fn release(&self) {
        self.registry.release.cancel();
    }

    /// Waits for [`release`](Self::release).
    pub(crate) async fn released(&self) {
        self.registry.release.cancelled().await;
    }

    /// Notes that cells were undone.
    pub(crate) fn count_undone(&self, cells: u32) {
        self.registry.undone.add(u64::from(cells));
    }

    /// Notes that a session was opened with what another one had run.
    pub(crate) fn count_replay(&self) {
        self.registry.replayed.add(1);
    }

    /// Notes that a client has read a file, or a part of it.
    pub(crate) fn count_read(&self) {
        self.registry.files_read.add(1);
    }

    /// How many have ended, by the kind of reason.
    pub(crate) fn ended(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Why::KINDS.into_iter().zip(self.registry.ended.each_ref().map(Count::get))
    }

    /// How many are open of each language.
    pub(crate) fn by_language(&self) -> BTreeMap<String, usize> {
        let mut found = BTreeMap::new();
        for open in lock(&self.registry.entries).open.values() {
            *found.entry(open.language.name.clone()).or_default() += 1;
        }
        found
    }

    /// Ends sessions until all together take no more memory than they may. Returns what to tell this client of its own.
    pub(crate) fn keep_to_memory(&self, client: &Client) -> Vec<String> {
        describe_own(&self.registry.keep_to_memory(), client)
    }

    /// The sessions in which a cell runs: client, language, and since when.
    pub(crate) fn running(&self) -> Vec<(Client, String, Instant)> {
        let entries = lock(&self.registry.entries);
        let running = |open: &Arc<OpenSession>| {
            let since = open.session.running_since()?;
            Some((open.client.clone(), open.language.name.clone(), since))
        };
        entries.open.values().filter_map(running).collect()
    }

    /// Counts for operators.
    pub(crate) fn counts(&self) -> SessionCounts {
        let entries = lock(&self.registry.entries);
        let count = |is: fn(&Session) -> bool| {
            entries.open.values().filter(|open| is(&open.session)).count()
        };
        SessionCounts {
            open: entries.open.len(),
            running: count(Session::is_running),
            frozen: count(Session::is_frozen),
            memory_bytes: entries.open.values().map(|session| session.session.memory()).sum(),
            opened: self.registry.opened.get(),
            evicted: self.registry.evicted.get(),
            undone_cells: self.registry.undone.get(),
            replayed: self.registry.replayed.get(),
            files_read: self.registry.files_read.get(),
        }
    }

    /// Takes a place for a session. If none is free, and the operator wants one to be made, the session that was unused longest ends: of the client itself if it has as many
    /// as it can have, otherwise of the client with the most.
    fn make_room(&self, client: &Client) -> Result<(Reservation, Vec<Evicted>), OpenFailure> {
        let mut evicted = Vec::new();
        loop {
            let mut entries = lock(&self.registry.entries);
            let of_client = |client: &Client| {
                let open =
                    entries.open.values().filter(|session| session.client == *client).count();
                open + entries.opening.iter().filter(|other| *other == client).count()
            };
            let is_at_own_limit = of_client(client) >= self.of_one;
            let is_full = entries.open.len() + entries.opening.len() >= self.config.max;
            if !is_at_own_limit && !is_full {
                entries.opening.push(client.clone());
                let place =
                    Reservation { registry: Arc::clone(&self.registry), client: client.clone() };
                return Ok((place, evicted));
            }
            let most = if is_at_own_limit { self.of_one } else { self.config.max };
            let is_own_share = is_at_own_limit;
            if self.config.when_full == WhenFull::Refuse {
                // A server that is full is so for all clients: then another one may have room for this one, too.
                let is_own_share = is_at_own_limit && !is_full;
                let most = if is_own_share { self.of_one } else { self.config.max };
                return Err(OpenFailure::Full { most, is_own_share });
            }
            let (loser, why) = if is_at_own_limit {
                // A client that sets the end of a session expects it to live until then.
                let loser = longest_unused(&entries, |session| {
                    session.client == *client && !session.lifetime.has_deadline()
                });
                (loser, Why::TooManyOfClient(self.of_one))
            } else {
                let most = entries.open.values().filter(|session| !session.is_in_use());
                let most = most.map(|session| of_client(&session.client)).max();
                let loser =
                    longest_unused(&entries, |session| Some(of_client(&session.client)) == most);
                (loser, Why::TooMany(self.config.max))
            };
            drop(entries);
            let session = loser.ok_or(OpenFailure::AllInUse { most, is_own_share })?;
            if self.registry.end(&session, why.clone(), Unless::InUse) {
                evicted.push(Evicted { session, why });
            }
        }
    }
}

/// Describes the sessions of a client that were ended to make room, and none of other clients.
fn describe_own(evicted: &[Evicted], client: &Client) -> Vec<String> {
    let own = evicted.iter().filter(|evicted| evicted.session.client == *client);
    own.map(|Evicted { session, why }| {
        format!(
            "your session {:?} has ended: {why}; open_session with replay runs its cells again",
            session.id
        )
    })
    .collect()
}
