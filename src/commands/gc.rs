//! `isolator gc`: removes what dead servers left behind, and nothing of running ones.

use std::env;
use std::process::ExitCode;

use isolator_pool::sandbox::sweep::{self, Swept};

use crate::app::App;
use crate::commands::{Work, say};
use crate::config::{Config, EngineKind};

/// Sweeps once; both engines, if either may have been used.
pub fn gc(config: Config) -> Work {
    Box::pin(async move {
        let app = App::new(&config).await?;
        let swept = sweep(&app).await;
        let mut more = Swept::default();
        if config.engine.kind == EngineKind::Auto && app.kind == EngineKind::Docker {
            // Left by servers that found no Docker.
            let embedded = App::on(EngineKind::Embedded, &config, env::current_exe()?).await?;
            more = sweep(&embedded).await?;
        }
        let mut swept = swept?;
        swept.sandboxes += more.sandboxes;
        swept.shared += more.shared;
        say(&format!("removed {swept}"))?;
        Ok(ExitCode::SUCCESS)
    })
}

async fn sweep(app: &App) -> anyhow::Result<Swept> {
    Ok(sweep::sweep(&*app.engine, &app.instance).await?)
}
