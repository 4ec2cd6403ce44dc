//! The task that sends spans to the collector. No call waits for it: what it can't send in time is dropped and counted.

use std::env;
use std::sync::Arc;
use std::time::{Duration, Instant};

use opentelemetry::Context;
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{Span, SpanData, SpanExporter as _, SpanProcessor};
use reqwest::redirect::Policy;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::TraceCounts;

/// How many spans wait at most, how many are sent together, how long the first of them waits, and how long sending may take;
/// each with the variable that sets another value.
const QUEUE: (&str, u64) = ("OTEL_BSP_MAX_QUEUE_SIZE", 2048);
const BATCH: (&str, u64) = ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", 512);
const DELAY_MS: (&str, u64) = ("OTEL_BSP_SCHEDULE_DELAY", 5000);
const TIMEOUT_MS: (&str, u64) = ("OTEL_BSP_EXPORT_TIMEOUT", 30_000);

/// The largest queue, whatever the variable says.
const LONGEST_QUEUE: u64 = 1 << 16;

/// How long the last spans can take when the server stops.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// Shortest time between two lines in the log about spans that were lost.
const BETWEEN_LINES: Duration = Duration::from_secs(60);

/// Puts spans that have ended into the queue.
#[derive(Debug)]
pub(super) struct Queue {
    spans: mpsc::Sender<SpanData>,
    counts: Arc<TraceCounts>,
}

impl Queue {
    pub(super) fn new(most: usize, counts: Arc<TraceCounts>) -> (Self, mpsc::Receiver<SpanData>) {
        let (spans, received) = mpsc::channel(most);
        (Self { spans, counts }, received)
    }
}

impl SpanProcessor for Queue {
    fn on_start(&self, _span: &mut Span, _context: &Context) {}

    fn on_end(&self, span: SpanData) {
        if span.span_context.is_sampled() && self.spans.try_send(span).is_err() {
            self.counts.dropped.add(1);
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _timeout: Duration) -> OTelSdkResult {
        Ok(())
    }
}

/// The task.
#[derive(Debug, Default)]
pub(super) struct Exporting {
    tasks: TaskTracker,
    ending: CancellationToken,
}

impl Exporting {
    /// Lets the task send what waits, for a moment.
    pub(super) async fn close(&self) {
        self.ending.cancel();
        self.tasks.close();
        if tokio::time::timeout(CLOSE_TIMEOUT, self.tasks.wait()).await.is_err() {
            tracing::warn!("the last spans could not be sent to the collector in time");
        }
    }
}

/// Starts it, with the collector that the environment names.
pub(super) fn start(
    resource: &Resource,
    counts: Arc<TraceCounts>,
) -> Result<(Exporting, Queue), String> {
    for name in ["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"] {
        if let Ok(protocol) = env::var(name)
            && !["", "http/protobuf"].contains(&protocol.as_str())
        {
            tracing::warn!(
                protocol,
                "{name}: traces are sent as http/protobuf, which collectors take at port 4318"
            );
        }
    }
    // Fails if it was installed before, which is fine: this program has only one provider.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = reqwest::Client::builder().redirect(Policy::none()).build();
    let exporter = SpanExporter::builder()
        .with_http()
        .with_http_client(client.map_err(|error| error.to_string())?)
        .with_protocol(Protocol::HttpBinary)
        .build();
    let mut exporter = exporter.map_err(|error| error.to_string())?;
    exporter.set_resource(resource);
    let most = number(QUEUE).clamp(1, LONGEST_QUEUE);
    let (queue, spans) =
        Queue::new(usize::try_from(most).unwrap_or(usize::MAX), Arc::clone(&counts));
    let exporting = Exporting::default();
    let sending = Sending {
        exporter,
        counts,
        batch: usize::try_from(number(BATCH).clamp(1, most)).unwrap_or(usize::MAX),
        delay: Duration::from_millis(number(DELAY_MS)),
        timeout: Duration::from_millis(number(TIMEOUT_MS).max(1)),
        told: None,
    };
    exporting.tasks.spawn(sending.run(spans, exporting.ending.clone()));
    Ok((exporting, queue))
}

/// A number of the environment.
fn number((name, usual): (&str, u64)) -> u64 {
    env::var(name).ok().and_then(|value| value.trim().parse().ok()).unwrap_or(usual)
}

struct Sending {
    exporter: SpanExporter,
    counts: Arc<TraceCounts>,
    batch: usize,
    delay: Duration,
    timeout: Duration,
    told: Option<Instant>,
}

impl Sending {
    /// Sends what comes, until all that came before the end is sent.
    async fn run(mut self, mut spans: mpsc::Receiver<SpanData>, ending: CancellationToken) {
        loop {
            let mut batch = Vec::new();
            tokio::select! {
                biased;
                () = ending.cancelled() => break,
                received = spans.recv() => match received {
                    Some(span) => batch.push(span),
                    None => return,
                },
            }
            let fill = async {
                while batch.len() < self.batch {
                    let room = self.batch - batch.len();
                    if spans.recv_many(&mut batch, room).await == 0 {
                        break;
                    }
                }
            };
            tokio::select! {
                () = ending.cancelled() => {}
                _ = tokio::time::timeout(self.delay, fill) => {}
            }
            self.send(batch).await;
        }
        spans.close();
        let mut rest = Vec::new();
        while spans.recv_many(&mut rest, self.batch).await > 0 {
            self.send(std::mem::take(&mut rest)).await;
        }
    }

    async fn send(&mut self, batch: Vec<SpanData>) {
        let count = batch.len() as u64;
        let sent = tokio::time::timeout(self.timeout, self.exporter.export(batch)).await;
        let error = match sent {
            Ok(Ok(())) => {
                self.counts.exported.add(count);
                self.told = None;
                return;
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no answer within {:?}", self.timeout),
        };
        self.counts.dropped.add(count);
        if self.told.is_none_or(|told| told.elapsed() >= BETWEEN_LINES) {
            self.told = Some(Instant::now());
            tracing::warn!(error, lost = count, "the collector takes no spans, so they are lost");
        }
    }
}
