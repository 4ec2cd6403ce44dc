//! Metrics in Prometheus format, and the status of the server for operators.
//!
//! Requests only add to atomic numbers. The rest is looked up when metrics are requested; values that take time are cached. No
//! label has a value that a client chooses.

mod encode;
mod families;
mod history;
pub(crate) mod operations;
pub(crate) mod reloads;
pub(crate) mod requests;
mod sources;
mod status;
mod waiting;

use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use isolator_pool::pool::pools::Pools;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, prometheus_text, text};
use prometheus_client::registry::Registry;

use self::history::{History, INTERVAL};
pub(crate) use self::sources::{Held, Sources};
pub(crate) use self::status::{Reason, Status};
use self::waiting::WaitingSandboxes;

/// A format of metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    /// Prometheus' text format.
    Prometheus,
    /// `OpenMetrics`.
    OpenMetrics,
}

impl Format {
    /// Its media type.
    pub(crate) const fn media_type(self) -> &'static str {
        match self {
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// The metrics of a server; cheap to clone.
#[derive(Clone)]
pub(crate) struct Metrics(Arc<Inner>);

struct Inner {
    look: Box<dyn Fn() -> Sources + Send + Sync>,
    waiting: Arc<WaitingSandboxes>,
    history: History,
    /// When the server began, in seconds since 1970.
    began: f64,
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

impl Metrics {
    /// The metrics of a server that starts now. `look` returns the current sources, which change with the configuration.
    pub(crate) fn new(look: impl Fn() -> Sources + Send + Sync + 'static) -> Self {
        let began = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self(Arc::new(Inner {
            look: Box::new(look),
            waiting: Arc::default(),
            history: History::default(),
            began: began.as_secs_f64(),
        }))
    }

    /// Records the history. Never returns; dropping the future ends it.
    pub(crate) async fn watch(self) -> Infallible {
        loop {
            self.0.history.look(&self.pools());
            tokio::time::sleep(INTERVAL).await;
        }
    }

    /// The pools of the configuration.
    pub(crate) fn pools(&self) -> Arc<Pools> {
        (self.0.look)().pools
    }

    /// The state of the server, which is not ready for these reasons.
    pub(crate) fn status(&self, not_ready: &[Reason]) -> Status {
        let sources = (self.0.look)();
        self.0.waiting.look(&sources.pools);
        let Inner { waiting, history, began, .. } = &*self.0;
        Status::of(&sources, &waiting.known(), history.intervals(), *began, not_ready)
    }

    /// All metrics as they are now. Only the memory of idle sandboxes may be older.
    pub(crate) fn written(&self, format: Format) -> Result<String, fmt::Error> {
        self.0.waiting.look(&self.pools());
        let mut registry = Registry::default();
        registry.register_collector(Box::new(self.clone()));
        let mut written = String::new();
        match format {
            Format::Prometheus => prometheus_text::encode(&mut written, &registry)?,
            Format::OpenMetrics => text::encode(&mut written, &registry)?,
        }
        Ok(written)
    }
}

impl Collector for Metrics {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Inner { look, waiting, began, .. } = &*self.0;
        families::write(encoder, &look(), &waiting.known(), *began)
    }
}
