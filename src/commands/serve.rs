//! `isolator serve`: MCP on standard input and output, until the host closes it or a signal comes.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

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
    match app.engine.check().await {
        Ok(engine) => tracing::info!(engine, "using the engine"),
        // Calls are answered with this error until the engine is there.
        Err(error) => tracing::error!(%error, "no engine yet; see `isolator doctor`"),
    }
    app.sweep().await;
    let pools = Arc::new(app.start_pools(&config, Ahead::AsConfigured));
    let server = Server::new(Arc::new(config), Arc::clone(&pools));

    let served = serve_stdio(server).await;
    tracing::info!("stopping");
    pools.close(DRAIN).await?;
    served?;
    Ok(ExitCode::SUCCESS)
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
