//! The end of a server over HTTP, in steps, so that a load balancer in front of several loses no call.
//!
//! 1. The notice: `/readyz` and the agent check say that the server is not ready, and all calls are served (`http.drainNotice`).
//! 2. The drain: new calls are refused, and those that run go on (`http.drain`). Then everything is removed.
//! 3. The last answers are sent. Connections of a balancer are answered for a moment longer.
//!
//! Another signal ends the first two steps at once.

use std::time::Duration;

use tokio::time::Instant;

use super::{ANSWERS_TIMEOUT, close};
use crate::commands::notify::Service;
use crate::commands::signals::stop_signal_but_hang_up;
use crate::mcp::server::Server;
use crate::transport::http::{Ending, Local};

/// How long connections are accepted, and answered with a refusal, after the last call could be served. A balancer that has not
/// seen `/readyz` yet sends such a call to another server; one whose connection is closed at that moment could not know whether it ran.
const LINGER: Duration = Duration::from_secs(1);

/// How often connections are looked at meanwhile.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Stops a server, up to the point where its connections are closed.
///
/// # Errors
///
/// When signals can't be listened for, or not everything was removed.
pub(super) async fn stop(
    server: &Server,
    service: &Service,
    local: Option<&Local>,
    ending: &Ending,
) -> anyhow::Result<()> {
    let mut again = std::pin::pin!(stop_signal_but_hang_up()?);
    service.stopping();
    let notice = server.notice();
    notice.give();
    let config = server.setup().config;
    let is_at_once = tokio::select! {
        () = tokio::time::sleep(notice.left(config.http.drain_notice)) => false,
        signal = &mut again => {
            tracing::info!(signal, "stopping at once");
            true
        }
    };
    let refused_since = Instant::now();
    ending.draining.cancel();
    if let Some(local) = local {
        local.drain();
    }
    server.changes().close();
    // A reload may have changed it.
    let config = server.setup().config;
    let drain = if is_at_once { Duration::ZERO } else { config.http.drain };
    let closed = {
        let mut closing = std::pin::pin!(close(server, drain));
        tokio::select! {
            closed = &mut closing => closed,
            signal = &mut again, if !is_at_once => {
                tracing::info!(signal, "stopping at once");
                server.setup().pools.end_running();
                closing.await
            }
        }
    };
    // Calls are refused by now, and those that were running have been answered.
    ending.answers.close();
    let _ = tokio::time::timeout(ANSWERS_TIMEOUT, ending.answers.wait()).await;
    let is_balanced = config.node.name.is_some() || !config.http.drain_notice.is_zero();
    if is_balanced && !is_at_once {
        while refused_since.elapsed() < LINGER && !ending.connections.is_empty() {
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }
    // What is being answered now would be cut.
    ending.closed.cancel();
    let _ = tokio::time::timeout(ANSWERS_TIMEOUT, ending.answers.wait()).await;
    ending.stop.cancel();
    closed
}
