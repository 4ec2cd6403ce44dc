//! A client of a server's standard streams. Every request is a line of JSON of the protocol's newest revision, which needs
//! no handshake, and calls can be made at the same time.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{ChildStdin, ChildStdout};
use tokio::sync::oneshot;
use tokio_util::task::TaskTracker;

/// The revision of the protocol.
const REVISION: &str = "2026-07-28";

/// The requests that wait for their answers; `None` once the server has closed its output.
type Waiting = Option<BTreeMap<u64, oneshot::Sender<Answer>>>;

/// A client. Dropping it closes the server's standard input.
pub struct StdioClient {
    input: tokio::sync::Mutex<(u64, ChildStdin)>,
    waiting: Arc<Mutex<Waiting>>,
}

#[derive(Deserialize)]
struct Answer {
    id: Option<u64>,
    #[serde(default)]
    result: Value,
    #[serde(default)]
    error: Value,
}

impl StdioClient {
    /// A client of the server with these streams.
    pub fn new(output: ChildStdout, input: ChildStdin) -> Self {
        let waiting = Arc::new(Mutex::new(Some(BTreeMap::new())));
        // It ends with the server, which closes its output.
        TaskTracker::new().spawn(read(output, Arc::clone(&waiting)));
        Self { input: tokio::sync::Mutex::new((0, input)), waiting }
    }

    /// Calls a tool and returns its result.
    ///
    /// # Errors
    ///
    /// When the server has ended, or answers with an error of the protocol.
    pub async fn call_tool(&self, name: &str, arguments: &Value) -> io::Result<Value> {
        let answer = self.send(name, arguments).await?;
        let Answer { result, error, .. } = answer.await.map_err(|_| ended())?;
        if error.is_null() { Ok(result) } else { Err(io::Error::other(error.to_string())) }
    }

    /// Sends a call. The answer comes through the channel.
    async fn send(&self, name: &str, arguments: &Value) -> io::Result<oneshot::Receiver<Answer>> {
        let (sender, answer) = oneshot::channel();
        let mut input = self.input.lock().await;
        let (id, input) = &mut *input;
        *id += 1;
        let request = json!({
            "jsonrpc": "2.0",
            "id": *id,
            "method": "tools/call",
            "params": {
                "name": name,
                "arguments": arguments,
                "_meta": {
                    "io.modelcontextprotocol/protocolVersion": REVISION,
                    "io.modelcontextprotocol/clientInfo": { "name": "isolator-bench", "version": "1" },
                    "io.modelcontextprotocol/clientCapabilities": {},
                },
            },
        });
        lock(&self.waiting).as_mut().ok_or_else(ended)?.insert(*id, sender);
        input.write_all(format!("{request}\n").as_bytes()).await?;
        Ok(answer)
    }
}

fn lock(waiting: &Mutex<Waiting>) -> MutexGuard<'_, Waiting> {
    waiting.lock().unwrap_or_else(PoisonError::into_inner)
}

fn ended() -> io::Error {
    io::Error::new(io::ErrorKind::BrokenPipe, "it has ended")
}

/// Passes answers to their requests, until the server closes its output.
async fn read(output: ChildStdout, waiting: Arc<Mutex<Waiting>>) {
    let mut lines = BufReader::new(output).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        // Notifications have no id.
        let Ok(Answer { id: Some(id), result, error }) = serde_json::from_str(&line) else {
            continue;
        };
        let sender = lock(&waiting).as_mut().and_then(|waiting| waiting.remove(&id));
        if let Some(sender) = sender {
            let _ = sender.send(Answer { id: Some(id), result, error });
        }
    }
    *lock(&waiting) = None;
}
