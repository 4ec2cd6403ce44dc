//! `isolator gc`: removes what dead servers left behind, and nothing of the living.

use std::process::ExitCode;

use isolator_pool::sweep;

use crate::app::App;
use crate::commands::say;
use crate::config::Config;

/// Sweeps once.
pub async fn gc(config: Config) -> anyhow::Result<ExitCode> {
    let app = App::new(&config).await?;
    let swept = sweep::sweep(&*app.engine, &app.owner).await?;
    say(&format!("removed {} sandboxes and {} volumes", swept.sandboxes, swept.shared));
    Ok(ExitCode::SUCCESS)
}
