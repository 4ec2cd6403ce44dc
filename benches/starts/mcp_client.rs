//! Isolator as a host uses it: a child process that speaks MCP on its standard streams.

use std::time::{Duration, Instant};

use rmcp::model::CallToolRequestParams;
use rmcp::service::{RoleClient, RunningService, ServiceExt};
use rmcp::transport::TokioChildProcess;
use serde_json::json;
use tempfile::TempDir;
use tokio::process::Command;

use super::Program;

/// Pause after a call, which is not counted: the next call shall find a full pool.
const REFILL: Duration = Duration::from_millis(900);

/// A running server with its client.
pub(super) struct IsolatorProcess {
    client: RunningService<RoleClient, ()>,
    _directory: TempDir,
}

impl IsolatorProcess {
    /// Starts a server with one language and the pool's settings in JSON.
    pub(super) async fn start(language: &str, pool: &str) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let languages: serde_json::Map<_, _> = ["python", "javascript", "go"]
            .into_iter()
            .map(|name| (name.to_owned(), json!({ "enabled": name == language })))
            .collect();
        let pool: serde_json::Value = serde_json::from_str(pool).expect("JSON");
        let config = json!({ "languageSettings": languages, "pool": pool });
        let file = directory.path().join("isolator_config.json");
        std::fs::write(&file, config.to_string()).expect("the configuration");
        let mut command = Command::new(env!("CARGO_BIN_EXE_isolator"));
        command.arg("serve").arg("--config").arg(file);
        command.env("XDG_STATE_HOME", directory.path()).env("RUST_LOG", "error");
        let process = TokioChildProcess::new(command).expect("the server");
        let client = ().serve(process).await.expect("the handshake");
        tokio::time::sleep(4 * REFILL).await;
        Self { client, _directory: directory }
    }

    /// One call, which has to start in the given way.
    pub(super) async fn call(&self, program: &Program, start: &str) -> Duration {
        let arguments = json!({ "language": program.language, "entrypoint_code": program.code });
        let arguments = arguments.as_object().cloned().unwrap_or_default();
        let request = CallToolRequestParams::new("execute_code").with_arguments(arguments);
        let began = Instant::now();
        let result = self.client.call_tool(request).await.expect("an answer");
        let took = began.elapsed();
        let report = result.structured_content.expect("a report");
        assert_eq!(report["status"], "success", "{report}");
        assert_eq!(report["receipt"]["start"], start, "{report}");
        tokio::time::sleep(REFILL).await;
        took
    }

    /// Stops the server.
    pub(super) async fn stop(self) {
        self.client.cancel().await.expect("a clean end");
    }
}
