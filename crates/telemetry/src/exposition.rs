//! Metrics as Prometheus reads them, for programs whose figures are read again for each scrape:
//! metric families in the `prometheus` crate's model, written by its encoder.

use prometheus::proto::{Counter, Gauge, LabelPair, Metric, MetricFamily, MetricType};
use prometheus::{Error, TextEncoder};

/// Whether a metric only grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// Only grows, until its program starts again.
    Counter,
    /// Grows and falls.
    Gauge,
}

/// The metric families of one scrape.
#[derive(Clone, Debug, Default)]
pub struct Exposition {
    families: Vec<MetricFamily>,
}

impl Exposition {
    /// The text's media type in HTTP.
    pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

    /// Begins a metric: its samples follow. A metric without samples is left out.
    pub fn metric(&mut self, name: &str, kind: MetricKind, help: &str) {
        let mut family = MetricFamily::default();
        family.set_name(name.to_owned());
        family.set_help(help.to_owned());
        family.set_field_type(match kind {
            MetricKind::Counter => MetricType::COUNTER,
            MetricKind::Gauge => MetricType::GAUGE,
        });
        self.families.push(family);
    }

    /// Adds a sample to the metric that was begun last; without one it does nothing.
    pub fn sample(&mut self, labels: &[(&str, &str)], value: f64) {
        let Some(family) = self.families.last_mut() else { return };
        let labels = labels.iter().map(|(name, value)| {
            let mut label = LabelPair::default();
            label.set_name((*name).to_owned());
            label.set_value((*value).to_owned());
            label
        });
        let mut metric = Metric::from_label(labels.collect());
        match family.get_field_type() {
            MetricType::COUNTER => {
                let mut counter = Counter::default();
                counter.set_value(value);
                metric.set_counter(counter);
            }
            _ => {
                let mut gauge = Gauge::default();
                gauge.set_value(value);
                metric.set_gauge(gauge);
            }
        }
        family.mut_metric().push(metric);
    }

    /// Returns the text.
    ///
    /// # Errors
    ///
    /// A metric has no name.
    pub fn encode(self) -> Result<String, Error> {
        let filled: Vec<_> =
            self.families.into_iter().filter(|family| !family.get_metric().is_empty()).collect();
        TextEncoder::new().encode_to_string(&filled)
    }
}

/// Returns a count as Prometheus has it: exact up to 2^53.
#[allow(clippy::cast_precision_loss, reason = "Prometheus has no other numbers")]
pub const fn count(number: u64) -> f64 {
    number as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_escaped_and_metrics_without_samples_are_left_out() {
        let mut metrics = Exposition::default();

        metrics.metric("a_bytes", MetricKind::Gauge, "Some.");
        metrics.sample(&[("x", "q\"\\\n"), ("y", "2")], 1.5);
        metrics.sample(&[], count(7));
        metrics.metric("b_total", MetricKind::Counter, "None.");
        metrics.metric("c_total", MetricKind::Counter, "One.");
        metrics.sample(&[], count(1 << 40));

        assert_eq!(
            metrics.encode().unwrap(),
            "# HELP a_bytes Some.\n# TYPE a_bytes gauge\n\
             a_bytes{x=\"q\\\"\\\\\\n\",y=\"2\"} 1.5\na_bytes 7\n\
             # HELP c_total One.\n# TYPE c_total counter\nc_total 1099511627776\n"
        );
    }
}
