//! The caller of a request, as the transport that brought the request describes it.

use std::sync::{Arc, Mutex};

use http::request::Parts;
use isolator_pool::lock::lock;
use isolator_pool::pool::admission::Client;
use rmcp::RoleServer;
use rmcp::service::RequestContext;
use tokio_util::sync::CancellationToken;

use crate::calls::{CallOutcome, QueueDeadline};
use crate::mcp::progress;
use crate::request::understand::given::Object;
use crate::web::OutcomeSlot;

/// The header in which clients of older revisions name their session.
pub(super) const SESSION_HEADER: &str = "mcp-session-id";

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

/// A value that the transport added to a request: to the message itself, or to the HTTP request that brought it.
pub(super) fn extension<T: Clone + Send + Sync + 'static>(
    context: &RequestContext<RoleServer>,
) -> Option<&T> {
    let of_http = || context.extensions.get::<Parts>()?.extensions.get();
    context.extensions.get().or_else(of_http)
}

/// The caller that the transport named, or else the host, which ends with the transport.
pub(super) fn caller(context: &RequestContext<RoleServer>) -> ConnectedClient {
    extension(context)
        .cloned()
        .unwrap_or_else(|| ConnectedClient { client: Client::Host, gone: CancellationToken::new() })
}

/// When a call must have its turn, if its transport says so. The first notification of progress begins the answer.
pub(super) fn queue_deadline(
    context: &RequestContext<RoleServer>,
    has_progress: bool,
) -> Option<QueueDeadline> {
    let deadline = *extension::<QueueDeadline>(context)?;
    Some(if has_progress { deadline.or_within(progress::MAX_INTERVAL) } else { deadline })
}

/// Tells the transport whether a call has run.
pub(super) fn say_outcome(context: &RequestContext<RoleServer>, outcome: CallOutcome) {
    if let Some(slot) = extension::<OutcomeSlot>(context) {
        slot.set(outcome);
    }
}
