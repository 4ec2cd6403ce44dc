//! Programs of ours in sandboxes, while a set is built.

use std::time::Duration;

use async_trait::async_trait;
use isolator_pool::OutputLimits;
use isolator_pool::engine::ToolGroup;
use isolator_pool::pool::admission::Client;
use isolator_pool::pool::pools::ExecuteError;
use isolator_pool::pool::pools::Pools;
use isolator_pool::run::RunRequest;
use isolator_pool::run::outcome::Outcome;
use isolator_pool::run::workspace::Workspace;

use super::watch::Bounds;
use crate::config::Language;

/// Attempts to get a sandbox, and the pause after each.
const TRIES: u32 = 4;
const TRY_AGAIN: Duration = Duration::from_secs(2);

/// Runs programs of ours in sandboxes.
#[async_trait]
pub(crate) trait Sandboxes: Send + Sync {
    /// Runs a program in a fresh sandbox of the language.
    async fn run(&self, language: &str, request: &RunRequest) -> Result<Outcome, ExecuteError>;

    /// A group with limits for a tool, if the engine has such groups.
    async fn tool_group(&self, name: String, bounds: &Bounds) -> Option<Box<dyn ToolGroup>>;

    /// The digest of the language's image, if it is known.
    fn image(&self, language: &str) -> Option<String>;
}

#[async_trait]
impl Sandboxes for Pools {
    async fn run(&self, language: &str, request: &RunRequest) -> Result<Outcome, ExecuteError> {
        let executed = self.execute(language, &Client::Server, request).await;
        executed.map(|(outcome, _)| outcome)
    }

    async fn tool_group(&self, name: String, bounds: &Bounds) -> Option<Box<dyn ToolGroup>> {
        Self::tool_group(self, name, bounds.memory, bounds.tasks).await
    }

    fn image(&self, language: &str) -> Option<String> {
        Self::image(self, language)
    }
}

/// The request for a program of ours in a sandbox of the language.
pub(super) fn request(
    language: &Language,
    name: &str,
    workspace: Workspace,
    timeout: Duration,
    output: OutputLimits,
) -> RunRequest {
    let resources = language.sandbox.resources;
    let argv = language.argv(name, &[name.to_owned()], resources.memory);
    RunRequest {
        env: language.env.clone(),
        ..RunRequest::new(argv, workspace, timeout, resources, output)
    }
}

/// Runs a program of ours. A server that is busy is asked again.
pub(super) async fn run(
    sandboxes: &dyn Sandboxes,
    language: &str,
    request: RunRequest,
) -> Result<Outcome, ExecuteError> {
    let mut tries = 1;
    loop {
        match sandboxes.run(language, &request).await {
            Err(error) if tries < TRIES => {
                tracing::info!(language, %error, "no sandbox for building packages was free; trying again");
                tokio::time::sleep(TRY_AGAIN).await;
                tries += 1;
            }
            result => return result,
        }
    }
}
