//! Traces of calls for OpenTelemetry, if the standard variables `OTEL_…` ask for them.
//!
//! Nothing is recorded while a call runs: when it is answered, its receipt has the times, and its spans are made from that. So
//! tracing costs a call some microseconds after its end, and nothing without the variables. Code, files and output are in no
//! span.

mod environment;
mod exporting;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use isolator_pool::counts::Count;
use opentelemetry::propagation::{Extractor, TextMapPropagator as _};
use opentelemetry::trace::{
    Span as _, SpanKind, Status, TraceContextExt as _, Tracer as _, TracerProvider as _,
};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkError;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider, SpanProcessor};
use tracing::subscriber::{NoSubscriber, with_default};

use crate::hex::short_digest;
use crate::result::receipt::{ReceiptReport, Stages};

/// The longest text of a client in a span, in characters.
const MAX_TEXT: usize = 128;

/// The longest `tracestate` that is passed on. The standard asks for at least this.
const MAX_STATE: usize = 512;

/// How long the last spans can take when the server stops.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// The stages of a receipt that come one after the other, and those of a run, which is the last of them.
const STAGES: [&str; 6] = ["packages", "queue", "checkout", "limit", "bind", "run"];
const OF_RUN: [&str; 3] = ["unpack", "spawn", "program"];

/// The traces of a server, if it makes any; cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Traces(Option<Arc<Inner>>);

#[derive(Debug)]
struct Inner {
    tracer: SdkTracer,
    provider: SdkTracerProvider,
    counts: Arc<TraceCounts>,
    transport: &'static str,
}

/// Counts for operators.
#[derive(Debug, Default)]
pub(crate) struct TraceCounts {
    /// Spans that the collector has taken.
    pub exported: Count,
    /// Spans that were lost, because too many waited or the collector did not take them.
    pub dropped: Count,
}

/// A call as it comes.
#[derive(Debug)]
pub(crate) struct Origin<'a> {
    /// The tool, if there is one of that name.
    pub tool: Option<&'a str>,
    /// The revision of the protocol.
    pub version: Option<String>,
    /// The identifier of the request, as its client has chosen it.
    pub request: String,
    /// The session of the protocol, if its revision has that.
    pub protocol_session: Option<String>,
    /// The handle of the session that the call uses, if it does.
    pub session: Option<String>,
    /// The client's own span, as it says.
    pub traceparent: Option<&'a str>,
    /// The `tracestate` that goes with it.
    pub tracestate: Option<&'a str>,
}

/// A call that has begun.
#[derive(Debug)]
pub(crate) struct CallTrace {
    inner: Arc<Inner>,
    began: SystemTime,
    parent: Context,
    name: String,
    attributes: Vec<KeyValue>,
}

impl Traces {
    /// Those that the environment asks for; `transport` is `pipe` or `tcp`.
    pub(crate) fn from_environment(transport: &'static str) -> Self {
        if !environment::is_wanted() {
            return Self(None);
        }
        environment::warn_unsupported();
        let counts = Arc::new(TraceCounts::default());
        match exporting::to_collector(Arc::clone(&counts)) {
            Ok(processor) => {
                let inner = Inner::new(environment::resource(), processor, counts, transport);
                Self(Some(Arc::new(inner)))
            }
            Err(error) => {
                tracing::warn!(
                    %error,
                    "there are no traces; see the variables OTEL_EXPORTER_OTLP_…"
                );
                Self(None)
            }
        }
    }

    pub(crate) fn begin<'a>(&self, origin: impl FnOnce() -> Origin<'a>) -> Option<CallTrace> {
        let inner = Arc::clone(self.0.as_ref()?);
        let origin = origin();
        let Origin { tool, version, request, protocol_session, session, traceparent, tracestate } =
            origin;
        let tool = tool.unwrap_or("_OTHER").to_owned();
        let mut attributes = vec![
            KeyValue::new("mcp.method.name", "tools/call"),
            KeyValue::new("gen_ai.operation.name", "execute_tool"),
            KeyValue::new("gen_ai.tool.name", tool.clone()),
            KeyValue::new("jsonrpc.request.id", shortened(&request)),
            KeyValue::new("network.transport", inner.transport),
        ];
        attributes.extend(version.map(|it| KeyValue::new("mcp.protocol.version", it)));
        // These identifiers let their holder act for the client, so a collector gets only digests.
        let of_id = |name, id: Option<String>| id.map(|id| KeyValue::new(name, short_digest(&id)));
        attributes.extend(of_id("mcp.session.id", protocol_session));
        attributes.extend(of_id("isolator.session", session));
        let parent = parent(traceparent, tracestate);
        let name = format!("tools/call {tool}");
        Some(CallTrace { inner, began: SystemTime::now(), parent, name, attributes })
    }

    /// Begins the trace of a request of an API.
    pub(crate) fn begin_request(
        &self,
        method: &'static str,
        route: &'static str,
        traceparent: Option<&str>,
        tracestate: Option<&str>,
    ) -> Option<CallTrace> {
        let inner = Arc::clone(self.0.as_ref()?);
        let attributes = vec![
            KeyValue::new("http.request.method", method),
            KeyValue::new("http.route", route),
            KeyValue::new("network.transport", inner.transport),
        ];
        let parent = parent(traceparent, tracestate);
        let name = format!("{method} {route}");
        Some(CallTrace { inner, began: SystemTime::now(), parent, name, attributes })
    }

    /// Counts for operators; `None` if there are no traces.
    pub(crate) fn counts(&self) -> Option<&TraceCounts> {
        self.0.as_ref().map(|inner| &*inner.counts)
    }

    /// Sends what waits, for a moment. Later spans are lost.
    pub(crate) async fn close(&self) {
        let Some(inner) = &self.0 else { return };
        let provider = inner.provider.clone();
        // The SDK would log its end; the message below replaces that.
        let shut_down = move || {
            with_default(NoSubscriber::default(), || provider.shutdown_with_timeout(CLOSE_TIMEOUT))
        };
        match tokio::task::spawn_blocking(shut_down).await {
            Ok(Ok(()) | Err(OTelSdkError::AlreadyShutdown)) => {}
            _ => tracing::warn!("the last spans could not be sent to the collector in time"),
        }
    }
}

impl Inner {
    fn new(
        resource: Resource,
        processor: impl SpanProcessor + 'static,
        counts: Arc<TraceCounts>,
        transport: &'static str,
    ) -> Self {
        // The sampler is that of OTEL_TRACES_SAMPLER.
        let builder = SdkTracerProvider::builder().with_resource(resource);
        let provider = builder.with_span_processor(processor).build();
        let tracer = provider.tracer("isolator");
        Self { tracer, provider, counts, transport }
    }
}

impl CallTrace {
    /// The request of an API was answered. `code` is the status of HTTP, and an error from 500 on.
    pub(crate) fn end_request(
        mut self,
        code: u16,
        status: Option<&str>,
        receipt: Option<&ReceiptReport>,
    ) {
        self.attributes.push(KeyValue::new("http.response.status_code", i64::from(code)));
        let error = (code >= 500).then_some("_OTHER");
        self.end(error, status, receipt);
    }

    /// The call was answered. `error` is the type of its error, and `receipt` how its program was served, if one ran.
    pub(crate) fn end(
        self,
        error: Option<&'static str>,
        status: Option<&str>,
        receipt: Option<&ReceiptReport>,
    ) {
        let Self { inner, began, parent, name, mut attributes } = self;
        let ended = SystemTime::now();
        attributes.extend(error.map(|error| KeyValue::new("error.type", error)));
        attributes.extend(status.map(|it| KeyValue::new("isolator.status", it.to_owned())));
        attributes.extend(receipt.map(|it| KeyValue::new("isolator.start", it.start)));
        let builder = inner.tracer.span_builder(name);
        let builder =
            builder.with_kind(SpanKind::Server).with_start_time(began).with_attributes(attributes);
        let mut span = inner.tracer.build_with_context(builder, &parent);
        if error.is_some() {
            span.set_status(Status::error(""));
        }
        let call = parent.with_span(span);
        if let Some(receipt) = receipt {
            inner.stages(&call, &receipt.ms, &STAGES, ended);
        }
        call.span().end_with_timestamp(ended);
    }
}

impl Inner {
    /// Makes the spans of stages that came one after the other, the last of which ended at `ended`. Only starting a program is
    /// counted within the program's own time, so it begins with that.
    fn stages(&self, parent: &Context, ms: &Stages, names: &[&'static str], ended: SystemTime) {
        let mut ended = ended;
        for name in names.iter().rev() {
            let Some(time) = ms.named(name) else { continue };
            let time = Duration::try_from_secs_f64(time / 1e3).unwrap_or_default();
            let (began, over) = match *name {
                "spawn" => (ended, ended.checked_add(time).unwrap_or(ended)),
                _ => (ended.checked_sub(time).unwrap_or(ended), ended),
            };
            let builder = self.tracer.span_builder(*name).with_start_time(began);
            let stage = parent.with_span(self.tracer.build_with_context(builder, parent));
            if *name == "run" {
                self.stages(&stage, ms, &OF_RUN, ended);
            }
            stage.span().end_with_timestamp(over);
            ended = began;
        }
    }
}

/// The span of a client that a call continues. All of it is the client's word: it decides where the call is shown, and nothing
/// else. An invalid `traceparent` is ignored, and so is `baggage`.
fn parent(traceparent: Option<&str>, tracestate: Option<&str>) -> Context {
    let Some(traceparent) = traceparent else { return Context::new() };
    let state = tracestate.filter(|state| state.len() <= MAX_STATE);
    let mut given = HashMap::from([("traceparent", traceparent)]);
    given.extend(state.map(|state| ("tracestate", state)));
    TraceContextPropagator::new().extract_with_context(&Context::new(), &TraceHeaders(given))
}

struct TraceHeaders<'a>(HashMap<&'static str, &'a str>);

impl Extractor for TraceHeaders<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).copied()
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().copied().collect()
    }
}

fn shortened(text: &str) -> String {
    text.chars().take(MAX_TEXT).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::exporting::{Bounded, QueuedSpans};
    use super::*;
    use opentelemetry_sdk::error::OTelSdkResult;
    use opentelemetry_sdk::trace::{Span, SpanData};

    /// A processor whose queue is emptied only by the test.
    #[derive(Debug)]
    struct Ended(mpsc::Sender<SpanData>);

    impl SpanProcessor for Ended {
        fn on_start(&self, _span: &mut Span, _context: &Context) {}

        fn on_end(&self, span: SpanData) {
            drop(self.0.send(span));
        }

        fn force_flush(&self) -> OTelSdkResult {
            Ok(())
        }

        fn shutdown_with_timeout(&self, _timeout: Duration) -> OTelSdkResult {
            Ok(())
        }
    }

    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn traces(most: usize) -> (Traces, mpsc::Receiver<SpanData>) {
        let counts = Arc::new(TraceCounts::default());
        let (ended, spans) = mpsc::channel();
        let waiting = QueuedSpans::new(most, Arc::clone(&counts));
        let processor = Bounded { processor: Ended(ended), waiting };
        let inner = Inner::new(environment::resource(), processor, counts, "pipe");
        (Traces(Some(Arc::new(inner))), spans)
    }

    fn origin(traceparent: Option<&'static str>) -> Origin<'static> {
        let version = Some("2025-11-25".to_owned());
        let tracestate = Some("a=1");
        Origin {
            tool: Some("execute_code"),
            version,
            request: "7".repeat(500),
            protocol_session: None,
            session: Some("secret".to_owned()),
            traceparent,
            tracestate,
        }
    }

    fn receipt() -> ReceiptReport {
        let ms = Stages {
            queue: 1.0,
            checkout: Some(2.0),
            limit: Some(0.0),
            unpack: Some(1.0),
            spawn: Some(2.0),
            program: Some(30.0),
            run: Some(40.0),
            total: 43.0,
            ..Stages::default()
        };
        let (image, start) = (String::new(), "hot");
        ReceiptReport {
            start,
            preloaded: None,
            image,
            packages: None,
            frozen: None,
            checkpoints: None,
            ms,
        }
    }

    #[test]
    fn stages_are_children_of_a_call_and_the_call_of_its_client() {
        let (traces, spans) = traces(100);
        let trace = traces.begin(|| origin(Some(PARENT))).unwrap();
        trace.end(Some("tool_error"), Some("error"), Some(&receipt()));
        let found: Vec<_> = std::iter::from_fn(|| spans.try_recv().ok()).collect();
        let named = |name: &str| found.iter().find(|span| span.name == name).unwrap();
        let call = named("tools/call execute_code");
        assert_eq!(call.span_context.trace_id().to_string(), "0af7651916cd43dd8448eb211c80319c");
        assert_eq!(call.parent_span_id.to_string(), "b7ad6b7169203331");
        assert_eq!((&call.span_kind, &call.status), (&SpanKind::Server, &Status::error("")));
        assert_eq!(call.span_context.trace_state().header(), "a=1");
        let text = |key: &str| {
            let found = call.attributes.iter().find(|attribute| attribute.key.as_str() == key);
            found.map(|attribute| attribute.value.to_string())
        };
        assert_eq!(text("isolator.start").as_deref(), Some("hot"));
        assert_eq!(text("jsonrpc.request.id").unwrap().len(), MAX_TEXT);
        assert_eq!(text("isolator.session").as_deref(), Some("2bb80d537b1da3e3"));
        assert_eq!(text("mcp.session.id"), None);
        for (child, parent, ms) in [
            ("queue", "tools/call execute_code", 1),
            ("checkout", "tools/call execute_code", 2),
            ("run", "tools/call execute_code", 40),
            ("spawn", "run", 2),
            ("program", "run", 30),
        ] {
            let (child, parent) = (named(child), named(parent));
            assert_eq!(child.parent_span_id, parent.span_context.span_id());
            assert_eq!(child.end_time.duration_since(child.start_time).unwrap().as_millis(), ms);
        }
        assert_eq!(named("queue").end_time, named("checkout").start_time);
        assert_eq!(named("spawn").start_time, named("program").start_time);
        assert_eq!(named("unpack").end_time, named("program").start_time);
        assert_eq!(found.len(), 8);
    }

    #[test]
    fn invalid_traceparents_are_ignored() {
        let (traces, spans) = traces(100);
        for wrong in ["", "00-x-y-01", "00-00000000000000000000000000000000-b7ad6b7169203331-01"] {
            traces.begin(|| origin(Some(wrong))).unwrap().end(None, None, None);
            let span = spans.try_recv().unwrap();
            assert_eq!(span.parent_span_id, opentelemetry::SpanId::INVALID, "{wrong}");
            assert_eq!(span.status, Status::Unset);
        }
        // A client that does not want to be traced is not.
        let unsampled = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";
        traces.begin(|| origin(Some(unsampled))).unwrap().end(None, None, None);
        assert!(spans.try_recv().is_err());
    }

    #[test]
    fn spans_beyond_the_queue_are_counted_and_dropped() {
        let (traces, spans) = traces(3);
        for _ in 0..5 {
            traces.begin(|| origin(None)).unwrap().end(None, None, None);
        }
        assert_eq!((traces.counts().unwrap().dropped.get(), spans.try_iter().count()), (2, 3));
    }
}
