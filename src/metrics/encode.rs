//! The encoding of metrics: one type for all values, so that each function is compiled once.

use std::fmt;

use isolator_pool::counts::{BOUNDS, Times};
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;

/// Labels with their values.
pub(super) type Labels<'a, const N: usize> = [(&'static str, &'a str); N];

/// The value of a metric.
pub(super) enum Value<'a> {
    Count(u64),
    Seconds(f64),
    Times(&'a Times),
}

impl From<u64> for Value<'_> {
    fn from(count: u64) -> Self {
        Self::Count(count)
    }
}

impl From<usize> for Value<'_> {
    fn from(count: usize) -> Self {
        Self::Count(count as u64)
    }
}

impl From<u32> for Value<'_> {
    fn from(count: u32) -> Self {
        Self::Count(count.into())
    }
}

impl From<f64> for Value<'_> {
    fn from(seconds: f64) -> Self {
        Self::Seconds(seconds)
    }
}

impl<'a> From<&'a Times> for Value<'a> {
    fn from(times: &'a Times) -> Self {
        Self::Times(times)
    }
}

/// Writes families of metrics.
pub(super) struct Families<'a>(pub DescriptorEncoder<'a>);

impl Families<'_> {
    /// Writes a family. It is compiled once, and not for each kind of iterator.
    fn family<'l>(
        &mut self,
        (name, help, kind): (&str, &str, MetricType),
        metrics: &mut dyn Iterator<Item = (Vec<(&'static str, &'l str)>, Value<'l>)>,
    ) -> fmt::Result {
        let is_gauge = matches!(kind, MetricType::Gauge);
        let mut family = self.0.encode_descriptor(name, help, None, kind)?;
        for (labels, value) in metrics {
            write_value(family.encode_family(&labels)?, is_gauge, &value)?;
        }
        Ok(())
    }

    /// Writes a family of one metric without labels.
    pub(super) fn single(
        &mut self,
        name: &str,
        help: &str,
        kind: MetricType,
        value: &Value<'_>,
    ) -> fmt::Result {
        let is_gauge = matches!(kind, MetricType::Gauge);
        write_value(self.0.encode_descriptor(name, help, None, kind)?, is_gauge, value)
    }

    pub(super) fn counters<'l, const N: usize, T: Into<Value<'l>>>(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = (Labels<'l, N>, T)>,
    ) -> fmt::Result {
        self.family((name, help, MetricType::Counter), &mut values.into_iter().map(metric))
    }

    pub(super) fn counter(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        self.single(name, help, MetricType::Counter, &value.into())
    }

    pub(super) fn gauges<'l, const N: usize, T: Into<Value<'l>>>(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = (Labels<'l, N>, T)>,
    ) -> fmt::Result {
        self.family((name, help, MetricType::Gauge), &mut values.into_iter().map(metric))
    }

    pub(super) fn gauge<'v>(
        &mut self,
        name: &str,
        help: &str,
        value: impl Into<Value<'v>>,
    ) -> fmt::Result {
        self.single(name, help, MetricType::Gauge, &value.into())
    }

    pub(super) fn histograms<'l, const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = (Labels<'l, N>, &'l Times)>,
    ) -> fmt::Result {
        self.family((name, help, MetricType::Histogram), &mut values.into_iter().map(metric))
    }
}

fn metric<'l, const N: usize, T: Into<Value<'l>>>(
    (labels, value): (Labels<'l, N>, T),
) -> (Vec<(&'static str, &'l str)>, Value<'l>) {
    (labels.to_vec(), value.into())
}

fn write_value(mut to: MetricEncoder<'_>, is_gauge: bool, value: &Value<'_>) -> fmt::Result {
    match value {
        Value::Count(count) if is_gauge => to.encode_gauge(count),
        Value::Seconds(seconds) if is_gauge => to.encode_gauge(seconds),
        Value::Count(count) => to.encode_counter::<NoLabelSet, u64, f64>(count, None),
        Value::Seconds(seconds) => to.encode_counter::<NoLabelSet, f64, f64>(seconds, None),
        Value::Times(times) => write_times(to, times),
    }
}

/// Writes times as a histogram.
fn write_times(mut to: MetricEncoder<'_>, times: &Times) -> fmt::Result {
    let bounds = BOUNDS.into_iter().chain([f64::INFINITY]);
    let buckets: Vec<_> = bounds.zip(times.buckets()).collect();
    // The buckets are read one after the other, and the count must be their sum.
    let count = buckets.iter().map(|(_, count)| count).sum();
    to.encode_histogram::<NoLabelSet>(times.sum().as_secs_f64(), count, &buckets, None)
}
