//! MCP on standard input and output: one JSON-RPC message a line.
//!
//! rmcp's own transport drops lines that are not valid JSON, so that callers wait until their timeout, and does not
//! report the end of the input. This one answers every line that is no message, and reports when the input has ended. The
//! session goes on until everything that was asked before is answered.

use std::collections::HashSet;
use std::io;
use std::sync::{Arc, Mutex as StdMutex, OnceLock};
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

/// How often it is checked after the end of the input whether the host still reads answers.
const CHECK_READER: Duration = Duration::from_millis(100);

/// The state of the standard streams.
#[derive(Debug, Clone, Default)]
pub(crate) struct Streams {
    /// Cancelled when the input has ended.
    pub(crate) input_ended: CancellationToken,
    /// Cancelled when the output can't be written.
    pub(crate) output_failed: CancellationToken,
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
    /// There is no more input.
    is_over: bool,
    output: Arc<Output>,
    unanswered: Arc<Unanswered>,
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
            is_over: false,
            output: Arc::new(Output { writer: Mutex::new(output), streams: streams.clone() }),
            unanswered: Arc::default(),
            replies: TaskTracker::new(),
            streams,
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
            if let Err(error) = output.write(answer).await {
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
            let written = output.write(serde_json::to_vec(&message)?).await;
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
        self.streams.input_ended.cancel();
        self.unanswered.wait().await;
        None
    }

    async fn close(&mut self) -> Result<(), io::Error> {
        self.replies.close();
        self.replies.wait().await;
        self.output.writer.lock().await.flush().await
    }
}

/// Standard output, to which one line is written after another.
struct Output {
    writer: Mutex<StdioWriter>,
    streams: Streams,
}

impl Output {
    async fn write(&self, mut line: Vec<u8>) -> io::Result<()> {
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
            self.streams.output_failed.cancel();
        }
        written
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
                // The host does not wait for it any more, so it is not answered.
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

    /// Waits until there is none, or the host reads no answers.
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
