//! `isolator serve`: MCP on standard input and output, until the host closes it or a signal comes.

use std::convert::Infallible;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use isolator_pool::engine::{Call, bounded};
use rmcp::ServiceExt;
use rmcp::transport::async_rw::AsyncRwTransport;
use rmcp::transport::io::stdio_pipes;
use tokio::signal::unix::{SignalKind, signal};

use crate::app::{Ahead, App};
use crate::config::Config;
use crate::server::Server;

/// How long running programs may go on when the server stops. The host that asked for them is
/// usually gone by then.
const DRAIN: Duration = Duration::from_secs(2);

/// Longest message on standard input, in bytes: the largest request with all its files in base64,
/// and room for its code.
const MAX_LINE: usize = 32 << 20;

/// Serves until it is told to stop, then removes everything.
pub async fn serve(config: Config) -> anyhow::Result<ExitCode> {
    let app = App::new(&config)?;
    let pools = Arc::new(app.start_pools(&config, Ahead::AsConfigured));
    let server = Server::new(Arc::new(config), Arc::clone(&pools));

    // A host waits for its first answer, whatever the engine is doing.
    let served = tokio::select! {
        served = serve_stdio(server) => served,
        never = look_around(&app) => match never {},
    };
    tracing::info!("stopping");
    pools.close(DRAIN).await?;
    served?;
    Ok(ExitCode::SUCCESS)
}

/// Says which engine is there and sweeps what dead instances left. Never ends by itself.
async fn look_around(app: &App) -> Infallible {
    match bounded(Call::Check, app.engine.check()).await {
        Ok(engine) => {
            tracing::info!(engine, "using the engine");
            app.sweep().await;
        }
        // Calls are answered with this error until the engine is there.
        Err(error) => tracing::error!(%error, "no engine yet; see `isolator doctor`"),
    }
    std::future::pending().await
}

async fn serve_stdio(server: Server) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hang_up = signal(SignalKind::hangup())?;
    let (input, output) = stdio_pipes();
    let transport = AsyncRwTransport::new_server(input, output).with_max_line_length(MAX_LINE);
    let serve = async {
        server.serve(transport).await?.waiting().await?;
        anyhow::Ok(())
    };
    tokio::select! {
        served = serve => served,
        _ = terminate.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
        _ = hang_up.recv() => Ok(()),
    }
}
