//! Isolator as a host uses it: a child process that speaks MCP on its standard streams.

use std::io;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::json;
use tokio::process::{Child, Command};

use crate::error::BenchError;
use crate::quiescence::Quiescence;
use crate::scenario::PoolShape;
use crate::stdio_client::StdioClient;
use crate::target::Target;
use crate::workload::Workload;
use isolator_pool::engine::SandboxName;

/// The tool that runs a program.
const EXECUTE_CODE: &str = "execute_code";

/// Longest time that a server may take to remove everything and end. Its own limit is shorter.
const STOP_TIMEOUT: Duration = Duration::from_secs(30);

/// A server and its client. Dropping it closes the server's standard input, and it then removes what
/// it has by itself; [`Self::stop`] also waits for that. It is never killed before, because what a
/// killed server had stays until the next one starts.
pub struct IsolatorProcess {
    child: Child,
    client: Option<StdioClient>,
    quiescence: Quiescence,
}

/// An answered call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServedCall {
    /// From the request to its answer.
    pub took: Duration,
    /// How it got its sandbox, in the words of its receipt.
    pub start: String,
    /// CPU time of the program.
    pub cpu: Duration,
}

/// The parts of an answer that are used.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Answered {
    structured_content: Report,
    #[serde(rename = "_meta")]
    meta: Option<Meta>,
    is_error: bool,
}

#[derive(Deserialize)]
struct Report {
    stdout: String,
    stderr: String,
    cpu_ms: f64,
}

#[derive(Deserialize)]
struct Meta {
    #[serde(rename = "isolator/receipt")]
    receipt: Receipt,
}

#[derive(Deserialize)]
struct Receipt {
    start: String,
}

impl IsolatorProcess {
    /// Starts the server; [`Self::connect`] comes next.
    ///
    /// # Errors
    ///
    /// When the program can't be started.
    pub fn spawn(
        program: &Path,
        settings: &Path,
        pool: PoolShape,
        languages: usize,
    ) -> Result<Self, BenchError> {
        let mut command = Command::new(program);
        command.arg("--config").arg(settings).arg("serve");
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        // The settings have what these variables say, and must hold alone.
        for (name, _) in std::env::vars_os() {
            if name.as_encoded_bytes().starts_with(b"ISOLATOR_") {
                command.env_remove(name);
            }
        }
        // Ctrl-C is for this process, which then stops its servers one way, and not in a race.
        command.process_group(0);
        if std::env::var_os("RUST_LOG").is_none() {
            // What a server says of its start and its end is of no interest, its troubles are.
            command.env("RUST_LOG", "warn");
        }
        let child = command.spawn().map_err(BenchError::Spawn)?;
        let quiescence = Quiescence::new(child.id().unwrap_or_default(), pool, languages);
        Ok(Self { child, client: None, quiescence })
    }

    /// Waits until the pools on `target` are full.
    ///
    /// # Errors
    ///
    /// When its pools stay empty.
    pub async fn connect(&mut self, target: &Target) -> Result<(), BenchError> {
        if let (Some(output), Some(input)) = (self.child.stdout.take(), self.child.stdin.take()) {
            self.client = Some(StdioClient::new(output, input));
        }
        self.wait_until_quiescent(target).await
    }

    /// Waits until the pools are full again after a call. There must have been one.
    ///
    /// # Errors
    ///
    /// When they do not become full.
    pub async fn wait_until_quiescent(&mut self, target: &Target) -> Result<(), BenchError> {
        self.quiescence.wait(target).await
    }

    /// The number of the process.
    pub fn process(&self) -> u32 {
        self.child.id().unwrap_or_default()
    }

    /// The sandboxes that waited when it was quiescent last.
    pub(crate) fn waiting(&self) -> Vec<SandboxName> {
        self.quiescence.waiting()
    }

    /// Runs the program.
    ///
    /// # Errors
    ///
    /// When there is no answer, or the program did not do what it should.
    pub async fn call(&self, workload: &Workload) -> Result<ServedCall, BenchError> {
        let arguments = json!({
            "language": workload.program.language,
            "entrypoint_code": workload.program.code,
        });
        let client = self.client.as_ref();
        let client = client.ok_or_else(|| BenchError::Spawn(io::ErrorKind::NotConnected.into()))?;
        let began = Instant::now();
        let answer = client.call_tool(EXECUTE_CODE, &arguments).await;
        let took = began.elapsed();

        let answer = answer.map_err(BenchError::Call)?;
        let Ok(Answered {
            structured_content: report,
            meta: Some(Meta { receipt }),
            is_error: false,
        }) = Answered::deserialize(&answer)
        else {
            let text = answer["content"][0]["text"].as_str().unwrap_or_default().trim().to_owned();
            return Err(BenchError::Failed { program: workload.label(), answer: text });
        };
        let printed = report.stdout + &report.stderr;
        let expected = workload.program.prints;
        if printed != expected {
            return Err(BenchError::Output { program: workload.label(), printed, expected });
        }
        let cpu = Duration::from_secs_f64(report.cpu_ms / 1000.0);
        Ok(ServedCall { took, start: receipt.start, cpu })
    }

    /// Closes the server's standard input, as a host does, and waits for its end.
    ///
    /// # Errors
    ///
    /// When it does not end well.
    pub async fn stop(mut self) -> Result<(), BenchError> {
        drop(self.child.stdin.take());
        drop(self.client.take());
        match tokio::time::timeout(STOP_TIMEOUT, self.child.wait()).await {
            Ok(Ok(status)) if status.success() => Ok(()),
            Ok(Ok(status)) => Err(BenchError::Stop(status)),
            Ok(Err(error)) => Err(BenchError::Spawn(error)),
            Err(_) => {
                let _ = self.child.kill().await;
                Err(BenchError::Killed(STOP_TIMEOUT))
            }
        }
    }
}
