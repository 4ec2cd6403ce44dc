//! The way of spans to the collector: the SDK's batch processor, with a bound that counts what is lost. No call waits for it.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use isolator_pool::lock::lock;
use opentelemetry::Context;
use opentelemetry_otlp::{
    ExporterBuildError, Protocol, SpanExporter, WithExportConfig as _, WithHttpConfig as _,
};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{
    BatchSpanProcessor, Span, SpanData, SpanExporter as Exporter, SpanProcessor,
};
use reqwest::blocking::Client;
use reqwest::redirect::Policy;
use tracing::instrument::WithSubscriber as _;
use tracing::subscriber::NoSubscriber;

use super::{TraceCounts, environment};

/// Shortest time between two lines in the log about spans that were lost.
const BETWEEN_LINES: Duration = Duration::from_secs(60);

/// Why spans can't be sent.
#[derive(Debug, thiserror::Error)]
pub(super) enum NoExporter {
    /// The environment names no usable address.
    #[error(transparent)]
    Exporter(#[from] ExporterBuildError),
    /// There are no certificates to trust.
    #[error(transparent)]
    Client(#[from] reqwest::Error),
    /// The library has a mistake.
    #[error("the HTTP client panicked")]
    Panicked,
}

/// The processor that sends to the collector of the environment.
pub(super) fn to_collector(counts: Arc<TraceCounts>) -> Result<impl SpanProcessor, NoExporter> {
    let timeout = environment::timeout();
    let exporter = SpanExporter::builder()
        .with_http()
        .with_http_client(client(timeout)?)
        .with_protocol(Protocol::HttpBinary)
        .with_timeout(timeout)
        .build()?;
    let (config, most) = environment::batches();
    let waiting = QueuedSpans::new(most, counts);
    let exporter = Counted { exporter, waiting: Arc::clone(&waiting) };
    let processor = BatchSpanProcessor::builder(exporter).with_batch_config(config).build();
    Ok(Bounded { processor, waiting })
}

/// The SDK's thread sends with it. It has a runtime of its own, so it can't be made on a thread of another.
fn client(timeout: Duration) -> Result<Client, NoExporter> {
    // Fails if it was installed before, which is fine: this program has only one provider.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let build = || Client::builder().redirect(Policy::none()).timeout(timeout).build();
    let built = thread::scope(|scope| scope.spawn(build).join());
    Ok(built.map_err(|_| NoExporter::Panicked)??)
}

/// The spans that wait, and those that were lost.
#[derive(Debug)]
pub(super) struct QueuedSpans {
    spans: AtomicUsize,
    most: usize,
    counts: Arc<TraceCounts>,
    logged: Mutex<Option<Instant>>,
}

impl QueuedSpans {
    pub(super) fn new(most: usize, counts: Arc<TraceCounts>) -> Arc<Self> {
        Arc::new(Self { spans: AtomicUsize::new(0), most, counts, logged: Mutex::default() })
    }

    fn lost(&self, count: u64, why: &str) {
        self.counts.dropped.add(count);
        let mut logged = lock(&self.logged);
        if logged.is_none_or(|logged| logged.elapsed() >= BETWEEN_LINES) {
            *logged = Some(Instant::now());
            tracing::warn!(
                why,
                lost = count,
                "spans for the collector are lost; check it and OTEL_EXPORTER_OTLP_ENDPOINT"
            );
        }
    }
}

/// A processor that gets no more spans than may wait. The SDK's own bound does not tell how many it drops.
#[derive(Debug)]
pub(super) struct Bounded<P> {
    pub(super) processor: P,
    pub(super) waiting: Arc<QueuedSpans>,
}

impl<P: SpanProcessor> SpanProcessor for Bounded<P> {
    fn on_start(&self, span: &mut Span, context: &Context) {
        self.processor.on_start(span, context);
    }

    fn on_end(&self, span: SpanData) {
        if self.waiting.spans.fetch_add(1, Ordering::Relaxed) < self.waiting.most {
            self.processor.on_end(span);
        } else {
            self.waiting.spans.fetch_sub(1, Ordering::Relaxed);
            self.waiting.lost(1, "too many wait for it");
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.processor.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.processor.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.processor.set_resource(resource);
    }
}

/// An exporter whose spans are counted.
#[derive(Debug)]
struct Counted {
    exporter: SpanExporter,
    waiting: Arc<QueuedSpans>,
}

impl Exporter for Counted {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let count = batch.len();
        self.waiting.spans.fetch_sub(count, Ordering::Relaxed);
        // The exporter would log each batch that is lost.
        let sent = self.exporter.export(batch).with_subscriber(NoSubscriber::default()).await;
        match sent {
            Ok(()) => self.waiting.counts.exported.add(count as u64),
            Err(error) => self.waiting.lost(count as u64, &error.to_string()),
        }
        // The processor could only log it again.
        Ok(())
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}
