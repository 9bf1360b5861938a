//! Metrics as Prometheus reads them, for programs that have few.

use std::fmt::{Display, Write as _};

/// What a metric is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Goes up only.
    Counter,
    /// Goes up and down.
    Gauge,
}

/// A text of metrics that is being written.
#[derive(Clone, Debug, Default)]
pub struct Exposition {
    text: String,
}

impl Exposition {
    /// The text's type in HTTP.
    pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

    /// Begins a metric: its samples follow.
    pub fn metric(&mut self, name: &str, kind: Kind, help: &str) {
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
        };
        // Writing to a text can't fail.
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    /// Adds a sample of the metric that was begun last.
    pub fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        self.text.push_str(name);
        for (index, (label, value)) in labels.iter().enumerate() {
            let open = if index == 0 { '{' } else { ',' };
            let _ = write!(self.text, "{open}{label}=\"{}\"", escaped(value));
        }
        let close = if labels.is_empty() { "" } else { "}" };
        let _ = writeln!(self.text, "{close} {value}");
    }

    /// Returns the text.
    pub fn into_text(self) -> String {
        self.text
    }
}

fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_may_hold_anything() {
        let mut text = Exposition::default();

        text.metric("a_bytes", Kind::Gauge, "Some.");
        text.sample("a_bytes", &[("x", "q\"\\\n"), ("y", "2")], 1.5);
        text.sample("a_bytes", &[], 7);

        assert_eq!(
            text.into_text(),
            "# HELP a_bytes Some.\n# TYPE a_bytes gauge\n\
             a_bytes{x=\"q\\\"\\\\\\n\",y=\"2\"} 1.5\na_bytes 7\n"
        );
    }
}
