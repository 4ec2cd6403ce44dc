//! The standard variables `OTEL_…` that the SDK leaves to the program. A wrong value is logged at the start.

use std::env;
use std::ops::RangeInclusive;
use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::resource::{EnvResourceDetector, TelemetryResourceDetector};
use opentelemetry_sdk::trace::{
    BatchConfig, BatchConfigBuilder, OTEL_BSP_EXPORT_TIMEOUT, OTEL_BSP_EXPORT_TIMEOUT_DEFAULT,
    OTEL_BSP_MAX_EXPORT_BATCH_SIZE, OTEL_BSP_MAX_EXPORT_BATCH_SIZE_DEFAULT,
    OTEL_BSP_MAX_QUEUE_SIZE, OTEL_BSP_MAX_QUEUE_SIZE_DEFAULT, OTEL_BSP_SCHEDULE_DELAY,
    OTEL_BSP_SCHEDULE_DELAY_DEFAULT,
};

/// The longest queue. The SDK takes its memory at the start.
const LONGEST_QUEUE: u64 = 1 << 16;

/// The longest time in milliseconds. With no time at all, the SDK would look without a pause.
const TIMES_MS: RangeInclusive<u64> = 1..=3_600_000;

/// How long a request to the collector may take.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Variables of the protocol over HTTP that the SDK does not support, each of them also with `TRACES_` in its name.
const UNSUPPORTED: [&str; 3] = ["CERTIFICATE", "CLIENT_KEY", "CLIENT_CERTIFICATE"];

/// The value of a variable. An empty one is the same as none.
fn set(name: &str) -> Option<String> {
    env::var(name).ok().map(|value| value.trim().to_owned()).filter(|value| !value.is_empty())
}

/// Whether traces are asked for: nothing is sent without the address of a collector.
pub(super) fn is_wanted() -> bool {
    if let Some(value) = set("OTEL_SDK_DISABLED") {
        if value.eq_ignore_ascii_case("true") {
            return false;
        }
        if !value.eq_ignore_ascii_case("false") {
            tracing::warn!(value, "OTEL_SDK_DISABLED must be true or false; false is used");
        }
    }
    let Some(exporters) = set("OTEL_TRACES_EXPORTER") else {
        return set("OTEL_EXPORTER_OTLP_ENDPOINT").is_some()
            || set("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT").is_some();
    };
    let names: Vec<_> = exporters.split(',').map(|name| name.trim().to_ascii_lowercase()).collect();
    let is_wanted = names.iter().any(|name| name == "otlp");
    let is_odd = |name: &&String| match &***name {
        "otlp" => false,
        "none" => is_wanted,
        _ => true,
    };
    if names.iter().any(|name| is_odd(&name)) {
        let used = if is_wanted { "otlp" } else { "none" };
        tracing::warn!(
            value = exporters,
            used,
            "OTEL_TRACES_EXPORTER: the exporters of this server are otlp and none"
        );
    }
    is_wanted
}

/// Says which variables have no effect.
pub(super) fn warn_unsupported() {
    for name in ["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"] {
        if let Some(value) = set(name).filter(|it| !it.eq_ignore_ascii_case("http/protobuf")) {
            tracing::warn!(
                value,
                used = "http/protobuf",
                "{name}: collectors take http/protobuf at port 4318"
            );
        }
    }
    for name in UNSUPPORTED {
        for name in [name.to_owned(), format!("TRACES_{name}")] {
            let name = format!("OTEL_EXPORTER_OTLP_{name}");
            if set(&name).is_some() {
                tracing::warn!(
                    "{name} has no effect; SSL_CERT_FILE can name certificates to trust"
                );
            }
        }
    }
    // The SDK reports all other errors.
    let ratio = set("OTEL_TRACES_SAMPLER_ARG").and_then(|value| value.parse::<f64>().ok());
    if let Some(ratio) = ratio.filter(|ratio| !(0.0..=1.0).contains(ratio)) {
        let used = if ratio > 1.0 { 1 } else { 0 };
        tracing::warn!(value = ratio, used, "OTEL_TRACES_SAMPLER_ARG must be from 0 to 1");
    }
}

/// The resource of the spans. A later word counts more, and the service's own variable most.
pub(super) fn resource() -> Resource {
    let builder = Resource::builder_empty()
        .with_service_name("isolator")
        .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
        .with_detectors(&[
            Box::new(TelemetryResourceDetector),
            Box::new(EnvResourceDetector::new()),
        ]);
    match set("OTEL_SERVICE_NAME") {
        Some(name) => builder.with_service_name(name).build(),
        None => builder.build(),
    }
}

/// How many spans wait, and how they are sent.
pub(super) fn batches() -> (BatchConfig, usize) {
    let count = |name, usual: usize| {
        usize::try_from(number(name, usual as u64, 1..=LONGEST_QUEUE)).unwrap_or(usual)
    };
    let queue = count(OTEL_BSP_MAX_QUEUE_SIZE, OTEL_BSP_MAX_QUEUE_SIZE_DEFAULT);
    let batch = count(OTEL_BSP_MAX_EXPORT_BATCH_SIZE, OTEL_BSP_MAX_EXPORT_BATCH_SIZE_DEFAULT);
    let delay = time(OTEL_BSP_SCHEDULE_DELAY, OTEL_BSP_SCHEDULE_DELAY_DEFAULT);
    let builder = BatchConfigBuilder::default().with_max_queue_size(queue);
    let builder = builder.with_max_export_batch_size(batch).with_scheduled_delay(delay);
    (builder.build(), queue)
}

/// How long sending a batch may take. The SDK's processor has no bound of its own.
pub(super) fn timeout() -> Duration {
    let of_all = time("OTEL_EXPORTER_OTLP_TIMEOUT", REQUEST_TIMEOUT);
    let request = time("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", of_all);
    request.min(time(OTEL_BSP_EXPORT_TIMEOUT, OTEL_BSP_EXPORT_TIMEOUT_DEFAULT))
}

fn time(name: &str, usual: Duration) -> Duration {
    let usual = u64::try_from(usual.as_millis()).unwrap_or(u64::MAX);
    Duration::from_millis(number(name, usual, TIMES_MS))
}

fn number(name: &str, usual: u64, allowed: RangeInclusive<u64>) -> u64 {
    let Some(value) = set(name) else { return usual };
    let number = value.parse::<u64>().ok();
    let used = number.map_or(usual, |it| it.clamp(*allowed.start(), *allowed.end()));
    if number != Some(used) {
        let (least, most) = (allowed.start(), allowed.end());
        tracing::warn!(value, used, "{name} must be a whole number from {least} to {most}");
    }
    used
}
