//! What a transport adds to a request: its client, and what the transport needs or has taken out of it.

use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use isolator_pool::lock::lock;
use isolator_pool::pool::admission::Client;
use tokio_util::sync::CancellationToken;

use crate::calls::{Elsewhere, HasRun};
use crate::mcp::progress;
use crate::request::understand::given::Object;

/// The client of a request. A transport with several clients adds it to each request.
#[derive(Debug, Clone)]
pub(crate) struct ConnectedClient {
    pub client: Client,
    /// Cancelled when the client has disconnected and will not come back for the answer.
    pub gone: CancellationToken,
}

/// The arguments of a call that a transport has taken out of its message, to add them to the request: they are too long
/// to be parsed with it, or have numbers that would change.
#[derive(Debug, Clone)]
pub(crate) struct TakenArguments(Arc<Mutex<Object>>);

/// How a call was served, for a transport that says it in the head of its answer. The transport adds it to the request.
#[derive(Debug, Clone, Default)]
pub(crate) struct HowCalled {
    told: Arc<OnceLock<(HasRun, Option<Elsewhere>)>>,
    /// How long the call can wait for a slot, if not for as long as others.
    max_queue: Option<Duration>,
}

impl HowCalled {
    /// For a call that can wait this long for a slot.
    pub(crate) fn within(max_queue: Option<Duration>) -> Self {
        Self { max_queue, ..Self::default() }
    }

    /// How long the call can wait for a slot, if not for as long as others. If it tells its progress, the answer begins with that.
    pub(super) fn max_queue(&self, has_progress: bool) -> Option<Duration> {
        let most = if has_progress { progress::MAX_INTERVAL * 3 / 4 } else { Duration::MAX };
        self.max_queue.map(|max_queue| max_queue.min(most))
    }

    /// Tells the transport. A request is called once.
    pub(super) fn tell(&self, has_run: HasRun, elsewhere: Option<Elsewhere>) {
        let _ = self.told.set((has_run, elsewhere));
    }

    /// Whether the call has run, and how it is refused if another server may serve it; `None` if it has no answer yet, or is no
    /// call of a tool.
    pub(crate) fn told(&self) -> Option<(HasRun, Option<Elsewhere>)> {
        self.told.get().copied()
    }
}

impl TakenArguments {
    /// Wraps arguments.
    pub(crate) fn new(arguments: Object) -> Self {
        Self(Arc::new(Mutex::new(arguments)))
    }

    /// Moves the arguments out. A request is called once, and what is left of it would be in memory until its end.
    pub(super) fn take(&self) -> Object {
        std::mem::take(&mut *lock(&self.0))
    }
}
