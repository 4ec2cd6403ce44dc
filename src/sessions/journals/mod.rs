//! Journals on a Valkey or Redis server, so that a session can be replayed on another node when its own is lost.
//!
//! After each step, its session is put into a line ([`line`]), from which a task ([`writer`]) writes what is new: no answer waits for that. A journal
//! there is a list of records ([`stored`]) that only nodes with the key can make and read ([`seal`]). Its first record has all steps
//! that the session had then, and each further one the steps that came after. It is written anew when older steps have changed,
//! when the list has twice the size of a journal, and after each failure that leaves unknown what is there.

mod kept;
mod line;
mod probe;
mod seal;
mod stored;
mod valkey;
mod writer;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::SystemTime;

use isolator_pool::error_chain::error_chain;
use isolator_pool::lock::lock;
use isolator_pool::pool::admission::Client;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub(super) use self::line::Published;
use self::line::Writer;
pub(crate) use self::probe::{ProbeError, Probed, probe};
use self::seal::NodesKey;
pub(crate) use self::seal::SealError;
pub(crate) use self::stored::{KeptJournal, RecordError};
use self::valkey::Valkey;
pub(crate) use self::valkey::{ServerError, ValkeyError};
use super::OpenSession;
use crate::config::{JournalsConfig, SessionsConfig};
use crate::node::{Node, NodeName, is_handle};
use crate::nodes_key::{self, KeyError};

/// How many journals are read at once. Others wait.
const READS: usize = 4;

/// Bytes of all records of a journal for each byte that a node keeps of it, at most: text may be escaped with six bytes for one,
/// and a list grows to twice the size of its first record and one more.
const LIST_BYTES_PER_BYTE: usize = 20;

/// Bytes that are read of a journal at most.
const MAX_LIST_BYTES: usize = 256 << 20;

/// Why journals can't be kept.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OpenError {
    #[error(transparent)]
    Key(#[from] KeyError),
    #[error(transparent)]
    Server(#[from] ServerError),
}

/// Why the journal of a session can't be read from the server.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadError {
    #[error("the server for journals could not be asked")]
    Server(#[from] ValkeyError),
    #[error("the journal of this session can't be used")]
    Seal(#[from] SealError),
    #[error("the journal of this session can't be used")]
    Record(#[from] RecordError),
}

/// The journals on a server, if there is one; cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Journals(Option<Arc<Shared>>);

struct Shared {
    key: NodesKey,
    valkey: Valkey,
    /// Bytes of a journal that are read.
    most: usize,
    reads: Semaphore,
    /// The clients for which journals are read now.
    turns: Mutex<HashMap<Client, Weak<tokio::sync::Mutex<()>>>>,
    writer: Writer,
    tasks: TaskTracker,
    closing: CancellationToken,
    config: JournalsConfig,
    node: Option<NodeName>,
}

impl Shared {
    /// The lock of a client, which it has while a journal is read for it.
    fn turn_of(&self, client: &Client) -> Arc<tokio::sync::Mutex<()>> {
        let mut turns = lock(&self.turns);
        turns.retain(|_, turn| turn.strong_count() > 0);
        if let Some(turn) = turns.get(client).and_then(Weak::upgrade) {
            return turn;
        }
        let turn = Arc::default();
        turns.insert(client.clone(), Arc::downgrade(&turn));
        turn
    }
}

impl Journals {
    /// Begins to keep journals, if the configuration names a server. It need not be there yet.
    ///
    /// # Errors
    ///
    /// When a file that the configuration names can't be used.
    pub(crate) fn open(config: &SessionsConfig, node: &Node) -> Result<Self, OpenError> {
        let most = config.journal.as_usize();
        let config = config.journals.clone();
        let Some((key, valkey)) = server(&config)? else { return Ok(Self::default()) };
        let shared = Arc::new(Shared {
            key,
            valkey,
            most,
            reads: Semaphore::new(READS),
            turns: Mutex::default(),
            writer: Writer::new(most, config.max.as_usize()),
            tasks: TaskTracker::new(),
            closing: CancellationToken::new(),
            config,
            node: node.name().cloned(),
        });
        shared.tasks.spawn(writer::run(Arc::clone(&shared)));
        shared.tasks.spawn(writer::retry(Arc::clone(&shared)));
        let counting = writer::count_former(Arc::clone(&shared));
        shared.tasks.spawn(shared.closing.clone().run_until_cancelled_owned(counting));
        Ok(Self(Some(shared)))
    }

    /// Lets what is new in the journal of a session be written, and its end.
    pub(super) fn changed(&self, session: &Arc<OpenSession>) {
        if let Some(shared) = &self.0 {
            shared.writer.changed(session, false);
        }
    }

    /// The same for a session that has ended: from now on, its journal is kept only for its time.
    pub(super) fn ended(&self, session: &Arc<OpenSession>) {
        if let Some(shared) = &self.0 {
            shared.writer.changed(session, true);
        }
    }

    /// How many journals were written, and how many writings have failed, if they are kept on a server.
    pub(crate) fn counts(&self) -> Option<(u64, u64)> {
        self.0.as_ref().map(|shared| shared.writer.counts())
    }

    /// A note for the client if the journal of its session is not complete on the server; once for each failure.
    pub(super) fn note(&self, session: &OpenSession) -> Option<String> {
        self.0.as_ref()?.writer.note(session)
    }

    /// The journal of a client's session on any node. `None` if there is none.
    ///
    /// # Errors
    ///
    /// When the server does not answer in time, or what it sends was not written by a node.
    pub(crate) async fn read(
        &self,
        client: &Client,
        handle: &str,
    ) -> Result<Option<KeptJournal>, ReadError> {
        let Some(shared) = &self.0 else { return Ok(None) };
        // The server is not asked for what no node has made.
        if !is_handle(handle) {
            return Ok(None);
        }
        let Some(key) = shared.key.of_session(client, handle) else { return Ok(None) };
        let timeout = shared.config.timeout;
        // One at a time for each client, so that none keeps the others out.
        let own = shared.turn_of(client);
        let turns = async { (own.lock().await, shared.reads.acquire().await) };
        let turns = tokio::time::timeout(timeout, turns).await;
        let _turns = turns.map_err(|_| ValkeyError::Timeout(timeout))?;
        let most = shared.most.saturating_mul(LIST_BYTES_PER_BYTE).min(MAX_LIST_BYTES);
        let records = shared.valkey.records(&key.name, most).await.inspect_err(|error| {
            tracing::warn!(error = error_chain(error), "a journal could not be read");
        })?;
        if records.is_empty() {
            return Ok(None);
        }
        let most = shared.most;
        let read = tokio::task::spawn_blocking(move || {
            let (mut opened, mut generation) = (Vec::with_capacity(records.len()), None);
            for (at, record) in (0..).zip(records) {
                let (found, content) = key.open(generation, at, record)?;
                generation = Some(found);
                opened.push(content);
            }
            Ok(stored::restore(opened, most, SystemTime::now())?)
        });
        let read = read.await.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()));
        read.map(Some).inspect_err(|error: &ReadError| {
            tracing::warn!(%client, error = error_chain(error), "a journal from the server is refused");
        })
    }

    /// Writes what is new, for as long as one writing can take, and ends.
    pub(crate) async fn close(&self) {
        let Some(shared) = &self.0 else { return };
        shared.closing.cancel();
        shared.tasks.close();
        if tokio::time::timeout(shared.config.timeout, shared.tasks.wait()).await.is_err() {
            tracing::warn!("not all journals could be written before the end");
        }
    }
}

/// The key of the nodes and the server of a configuration, if it names one.
fn server(config: &JournalsConfig) -> Result<Option<(NodesKey, Valkey)>, OpenError> {
    let (Some(server), Some(key)) = (&config.server, &config.key_file) else { return Ok(None) };
    let key = NodesKey::from_bytes(&nodes_key::read(key, "sessions.journals.keyFile")?);
    let (password, authorities) = (config.password_file.as_deref(), config.ca_file.as_deref());
    let user = config.user.as_deref();
    let valkey = Valkey::new(server.clone(), user, password, authorities, config.timeout)?;
    Ok(Some((key, valkey)))
}
