//! MCP on standard input and output: one JSON-RPC message a line.
//!
//! rmcp's own transport drops lines that are not valid JSON, so that callers wait until their timeout, and does not
//! report the end of the input. This one answers every line that is no message, and reports when the input has ended. The
//! session goes on until everything that was asked before is answered.

use std::collections::HashSet;
use std::io;
use std::sync::{Arc, Mutex as StdMutex};
use std::time::Duration;

use futures_util::StreamExt;
use isolator_pool::lock::lock;
use rmcp::RoleServer;
use rmcp::model::{ClientNotification, ErrorData, GetExtensions as _, RequestId};
use rmcp::service::{RxJsonRpcMessage, TxJsonRpcMessage};
use rmcp::transport::Transport;
use rmcp::transport::io::{StdioReader, StdioWriter, stdio_pipes};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::io::AsyncWriteExt;
use tokio::sync::{Mutex, Notify};
use tokio_util::codec::{AnyDelimiterCodec, AnyDelimiterCodecError, FramedRead};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::message::{self, Limits, MAX_MESSAGE, Shortened};

/// How often it is checked after the end of the input whether somebody still reads answers.
const CHECK_READER: Duration = Duration::from_millis(100);

/// The transport.
pub(crate) struct Stdio {
    lines: FramedRead<StdioReader, AnyDelimiterCodec>,
    /// The reader says once that it has ended after each line that was too long.
    after_error: bool,
    /// There is no more input.
    is_over: bool,
    output: Arc<Mutex<StdioWriter>>,
    unanswered: Arc<Unanswered>,
    replies: TaskTracker,
    ended: CancellationToken,
    limits: Limits,
}

impl Stdio {
    /// The process's standard streams. `ended` is cancelled when the input has ended.
    pub(crate) fn new(ended: CancellationToken, limits: Limits) -> Self {
        let (input, output) = stdio_pipes();
        let codec = AnyDelimiterCodec::new_with_max_length(b"\n".into(), b"\n".into(), MAX_MESSAGE);
        Self {
            lines: FramedRead::new(input, codec),
            after_error: false,
            is_over: false,
            output: Arc::new(Mutex::new(output)),
            unanswered: Arc::default(),
            replies: TaskTracker::new(),
            ended,
            limits,
        }
    }

    /// Answers a line that can't be read. The write is a task of its own, because receiving may be cancelled at
    /// any point, and half a line must never be written.
    fn refuse(&self, line: &[u8], error: &ErrorData) {
        // The identifier is the caller's, and may be as long as the message.
        tracing::warn!(error = %error.message, "a message was refused");
        let answer = message::refusal(line, error);
        let output = Arc::clone(&self.output);
        self.replies.spawn(async move {
            if let Err(error) = write(&output, answer).await {
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
            // The parser says less of what is wrong.
            let mut message = serde_json::from_slice(text).map_err(|_| message::explain(text))?;
            if let (RxJsonRpcMessage::<RoleServer>::Request(call), Some(arguments)) =
                (&mut message, arguments)
            {
                call.request.extensions_mut().insert(arguments.clone());
            }
            Ok(message)
        });
        match read {
            Ok(message) => return Some(message),
            Err(error) if message::is_one_way(line) => {
                tracing::warn!(error = %error.message, "a line that is no request was ignored");
            }
            Err(error) => self.refuse(line, &error),
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
        let unanswered = Arc::clone(&self.unanswered);
        async move {
            let written = write(&output, serde_json::to_vec(&message)?).await;
            match &message {
                TxJsonRpcMessage::<RoleServer>::Response(answer) => unanswered.remove(&answer.id),
                TxJsonRpcMessage::<RoleServer>::Error(answer) => {
                    answer.id.iter().for_each(|id| unanswered.remove(id));
                }
                _ => {}
            }
            written
        }
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleServer>> {
        while !self.is_over {
            match self.lines.next().await {
                Some(Ok(line)) if line.trim_ascii().is_empty() => {}
                Some(Ok(line)) => {
                    if let Some(message) = self.parse(&line) {
                        self.unanswered.note(&message);
                        return Some(message);
                    }
                }
                Some(Err(AnyDelimiterCodecError::MaxChunkLengthExceeded)) => {
                    self.after_error = true;
                    let message = format!("the message is longer than {MAX_MESSAGE} bytes");
                    self.refuse(b"", &ErrorData::invalid_request(message, None));
                }
                Some(Err(AnyDelimiterCodecError::Io(error))) => {
                    tracing::error!(%error, "standard input can't be read");
                    break;
                }
                None if self.after_error => self.after_error = false,
                None => break,
            }
        }
        // It may be cancelled from here on, and called again.
        self.is_over = true;
        self.ended.cancel();
        self.unanswered.wait().await;
        None
    }

    async fn close(&mut self) -> Result<(), io::Error> {
        self.replies.close();
        self.replies.wait().await;
        self.output.lock().await.flush().await
    }
}

/// The requests that are not answered yet.
#[derive(Default)]
struct Unanswered {
    ids: StdMutex<HashSet<RequestId>>,
    removed: Notify,
}

impl Unanswered {
    fn note(&self, message: &RxJsonRpcMessage<RoleServer>) {
        match message {
            RxJsonRpcMessage::<RoleServer>::Request(request) => {
                lock(&self.ids).insert(request.id.clone());
            }
            RxJsonRpcMessage::<RoleServer>::Notification(message) => {
                // Nobody waits for it any more, so it is not answered.
                if let ClientNotification::CancelledNotification(cancelled) = &message.notification
                    && let Some(id) = &cancelled.params.request_id
                {
                    self.remove(id);
                }
            }
            _ => {}
        }
    }

    fn remove(&self, id: &RequestId) {
        lock(&self.ids).remove(id);
        self.removed.notify_waiters();
    }

    /// Waits until there is none, or nobody reads the answers.
    async fn wait(&self) {
        while !lock(&self.ids).is_empty() && has_reader() {
            let _ = tokio::time::timeout(CHECK_READER, self.removed.notified()).await;
        }
    }
}

/// Whether the other end of standard output is open.
fn has_reader() -> bool {
    let stdout = io::stdout();
    let mut polled = [PollFd::new(&stdout, PollFlags::empty())];
    let is_known = poll(&mut polled, Some(&Timespec::default())).is_ok();
    !is_known || !polled[0].revents().intersects(PollFlags::ERR | PollFlags::HUP)
}

async fn write(output: &Mutex<StdioWriter>, mut line: Vec<u8>) -> io::Result<()> {
    line.push(b'\n');
    let mut output = output.lock().await;
    output.write_all(&line).await?;
    output.flush().await
}
