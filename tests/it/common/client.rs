//! A client of a server's standard streams. Calls can be made at the same time.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use rmcp::model::{CallToolResult, ErrorData};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout};
use tokio::sync::oneshot;

/// Why a request has no result.
#[derive(Debug)]
pub(crate) enum RequestError {
    /// The server answered with an error of the protocol.
    Protocol(ErrorData),
    /// The server has ended.
    Ended,
}

impl fmt::Display for RequestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Protocol(error) => error.fmt(f),
            Self::Ended => f.write_str("the server has ended"),
        }
    }
}

type Result<T> = std::result::Result<T, RequestError>;

/// The requests that wait for their answers; `None` once the server has closed its output.
type Waiting = Arc<Mutex<Option<BTreeMap<u64, oneshot::Sender<Result<Value>>>>>>;

type Input = Arc<tokio::sync::Mutex<ChildStdin>>;

/// A client. Dropping it and all its calls closes the server's standard input.
pub(crate) struct Client {
    input: Input,
    waiting: Waiting,
    last: Mutex<u64>,
}

/// A call without its answer.
pub(crate) struct PendingCall {
    id: u64,
    answer: oneshot::Receiver<Result<Value>>,
    input: Input,
}

#[derive(Deserialize)]
struct Message {
    id: Option<u64>,
    result: Option<Value>,
    error: Option<ErrorData>,
}

impl Client {
    /// Opens a session with a server whose streams are piped.
    pub(crate) async fn open(server: &mut Child) -> Result<Self> {
        let output = server.stdout.take().expect("it is piped");
        let input = server.stdin.take().expect("it is piped");
        let waiting = Arc::new(Mutex::new(Some(BTreeMap::new())));
        #[expect(clippy::disallowed_methods, reason = "it ends with the server")]
        tokio::spawn(read(output, Arc::clone(&waiting)));
        let client =
            Self { input: Arc::new(tokio::sync::Mutex::new(input)), waiting, last: Mutex::new(0) };
        let information = json!({ "name": "test", "version": "1" });
        let hello = json!({ "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": information });
        client.request::<Value>("initialize", hello).await?;
        write(&client.input, &json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }))
            .await?;
        Ok(client)
    }

    /// Makes a request and waits for its result.
    pub(crate) async fn request<T: DeserializeOwned>(
        &self,
        method: &str,
        parameters: Value,
    ) -> Result<T> {
        let PendingCall { answer, .. } = self.send(method, parameters).await?;
        let result = answer.await.map_err(|_| RequestError::Ended)??;
        Ok(serde_json::from_value(result).expect("a result of the protocol"))
    }

    /// Calls a tool.
    pub(crate) async fn call_tool(&self, name: &str, arguments: Value) -> Result<CallToolResult> {
        self.request("tools/call", json!({ "name": name, "arguments": arguments })).await
    }

    /// Starts a call without waiting for its answer.
    pub(crate) async fn begin(&self, name: &str, arguments: Value) -> Result<PendingCall> {
        self.send("tools/call", json!({ "name": name, "arguments": arguments })).await
    }

    async fn send(&self, method: &str, parameters: Value) -> Result<PendingCall> {
        let id = {
            let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
            *last += 1;
            *last
        };
        let (sender, answer) = oneshot::channel();
        {
            let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            waiting.as_mut().ok_or(RequestError::Ended)?.insert(id, sender);
        }
        let request = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": parameters });
        write(&self.input, &request).await?;
        Ok(PendingCall { id, answer, input: Arc::clone(&self.input) })
    }
}

impl PendingCall {
    /// Waits for the answer.
    pub(crate) async fn answer(self) -> CallToolResult {
        let result = self.answer.await.expect("the server runs").expect("an answer");
        serde_json::from_value(result).expect("the result of a tool")
    }

    /// Cancels the call.
    pub(crate) async fn cancel(self) {
        let parameters = json!({ "requestId": self.id });
        let cancelled =
            json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": parameters });
        write(&self.input, &cancelled).await.expect("the server runs");
    }
}

async fn write(input: &Input, message: &Value) -> Result<()> {
    let line = format!("{message}\n");
    input.lock().await.write_all(line.as_bytes()).await.map_err(|_| RequestError::Ended)
}

/// Passes answers to their requests, until the server closes its output.
async fn read(output: ChildStdout, waiting: Waiting) {
    let mut lines = BufReader::new(output).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let message: Message = serde_json::from_str(&line).expect("a message");
        // Notifications have no id.
        let Some(id) = message.id else { continue };
        let mut waiting = waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sender) = waiting.as_mut().and_then(|waiting| waiting.remove(&id)) {
            let error = message.error.map(RequestError::Protocol);
            let _ = sender.send(error.map_or(Ok(message.result.unwrap_or_default()), Err));
        }
    }
    *waiting.lock().unwrap_or_else(PoisonError::into_inner) = None;
}
