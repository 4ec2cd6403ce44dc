//! MCP on standard input and output: one JSON-RPC message a line.
//!
//! rmcp's own transport drops lines that are not valid JSON, so that callers wait until their timeout, and does not
//! report the end of the input. This one answers a message that it can't read, if it finds an identifier, and reports
//! when the input has ended.

use std::io;
use std::sync::{Arc, OnceLock};

use futures_util::StreamExt;
use rmcp::RoleServer;
use rmcp::model::{ErrorCode, ErrorData, GetExtensions as _, RequestId};
use rmcp::service::{RxJsonRpcMessage, TxJsonRpcMessage};
use rmcp::transport::Transport;
use rmcp::transport::io::{StdioReader, StdioWriter, stdio_pipes};
use tokio::io::AsyncWriteExt;
use tokio::sync::Mutex;
use tokio_util::codec::{AnyDelimiterCodec, AnyDelimiterCodecError, FramedRead};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::message::{self, Limits, MAX_MESSAGE, Shortened};

/// What becomes of the standard streams.
#[derive(Debug, Clone, Default)]
pub(crate) struct Streams {
    /// Cancelled when the input has ended, or the output can't be written.
    pub(crate) ended: CancellationToken,
    failure: Arc<OnceLock<io::Error>>,
}

impl Streams {
    /// Why the output can't be written, if it can't. A host that has closed it wants no more.
    pub(crate) fn failure(&self) -> Option<&io::Error> {
        self.failure.get().filter(|error| error.kind() != io::ErrorKind::BrokenPipe)
    }
}

/// The transport.
pub(crate) struct Stdio {
    lines: FramedRead<StdioReader, AnyDelimiterCodec>,
    /// The reader says once that it has ended after each line that was too long.
    after_error: bool,
    output: Arc<Output>,
    replies: TaskTracker,
    streams: Streams,
    limits: Limits,
}

impl Stdio {
    /// The process's standard streams. `streams` says what becomes of them.
    pub(crate) fn new(streams: Streams, limits: Limits) -> Self {
        let (input, output) = stdio_pipes();
        let codec = AnyDelimiterCodec::new_with_max_length(b"\n".into(), b"\n".into(), MAX_MESSAGE);
        Self {
            lines: FramedRead::new(input, codec),
            after_error: false,
            output: Arc::new(Output { writer: Mutex::new(output), streams: streams.clone() }),
            replies: TaskTracker::new(),
            streams,
            limits,
        }
    }

    /// Answers a request that can't be read. The write is a task of its own, because receiving may be cancelled at
    /// any point, and half a line must never be written.
    fn refuse(&self, id: Option<RequestId>, error: ErrorData) {
        // The identifier is the caller's, and may be as long as the message.
        tracing::warn!(error = %error.message, "a message was refused");
        let message = TxJsonRpcMessage::<RoleServer>::error(error, id);
        let output = Arc::clone(&self.output);
        self.replies.spawn(async move {
            if let Err(error) = output.write(&message).await {
                tracing::debug!(%error, "a refusal could not be sent");
            }
        });
    }

    fn parse(&self, line: &[u8]) -> Option<RxJsonRpcMessage<RoleServer>> {
        let read = self.limits.check(line).and_then(|shortened| {
            let (text, arguments) = match &shortened {
                Some(Shortened { text, arguments }) => (text.as_slice(), Some(arguments)),
                None => (line, None),
            };
            let mut message = serde_json::from_slice(text).map_err(|error| {
                let message = format!("the message can't be read: {error}");
                ErrorData::new(ErrorCode::PARSE_ERROR, message, None)
            })?;
            if let (RxJsonRpcMessage::<RoleServer>::Request(call), Some(arguments)) =
                (&mut message, arguments)
            {
                call.request.extensions_mut().insert(arguments.clone());
            }
            Ok(message)
        });
        match read {
            Ok(message) => return Some(message),
            Err(error) if message::is_request(line) => self.refuse(message::find_id(line), error),
            // Nobody waits for an answer.
            Err(error) => {
                tracing::warn!(error = %error.message, "a line that is not a request was ignored");
            }
        }
        None
    }
}

impl Transport<RoleServer> for Stdio {
    type Error = io::Error;

    fn send(
        &mut self,
        message: TxJsonRpcMessage<RoleServer>,
    ) -> impl Future<Output = Result<(), io::Error>> + Send + 'static {
        let output = Arc::clone(&self.output);
        async move { output.write(&message).await }
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleServer>> {
        loop {
            match self.lines.next().await {
                Some(Ok(line)) if line.trim_ascii().is_empty() => {}
                Some(Ok(line)) => {
                    if let Some(message) = self.parse(&line) {
                        return Some(message);
                    }
                }
                Some(Err(AnyDelimiterCodecError::MaxChunkLengthExceeded)) => {
                    self.after_error = true;
                    let message = format!("the message is longer than {MAX_MESSAGE} bytes");
                    self.refuse(None, ErrorData::invalid_request(message, None));
                }
                Some(Err(AnyDelimiterCodecError::Io(error))) => {
                    tracing::error!(%error, "standard input can't be read");
                    break;
                }
                None if self.after_error => self.after_error = false,
                None => break,
            }
        }
        self.streams.ended.cancel();
        None
    }

    async fn close(&mut self) -> Result<(), io::Error> {
        self.replies.close();
        self.replies.wait().await;
        self.output.writer.lock().await.flush().await
    }
}

struct Output {
    writer: Mutex<StdioWriter>,
    streams: Streams,
}

impl Output {
    async fn write(&self, message: &TxJsonRpcMessage<RoleServer>) -> io::Result<()> {
        let mut line = serde_json::to_vec(message)?;
        line.push(b'\n');
        let mut writer = self.writer.lock().await;
        let written = match writer.write_all(&line).await {
            Ok(()) => writer.flush().await,
            failed => failed,
        };
        if let Err(error) = &written {
            // Nothing can be answered any more.
            let error =
                error.raw_os_error().map_or(error.kind().into(), io::Error::from_raw_os_error);
            let _ = self.streams.failure.set(error);
            self.streams.ended.cancel();
        }
        written
    }
}
