//! Prometheus' text format, or OpenMetrics for clients that accept it.
//!
//! Written by hand: a library's registry stores series, and ours are computed at
//! each scrape; and `prometheus-client` supports OpenMetrics only.

use std::{borrow::Cow, fmt::Write as _};

use http::HeaderMap;

use crate::telemetry::DurationHistogram;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Prometheus,
    OpenMetrics,
}

impl Format {
    /// By the `Accept` header; OpenMetrics must be named to be chosen.
    pub fn negotiate(headers: &HeaderMap) -> Self {
        let (mut open, mut plain) = (0.0_f64, 0.0_f64);
        for accept in headers.get_all(http::header::ACCEPT).iter().filter_map(|value| value.to_str().ok()) {
            for choice in accept.split(',') {
                let mut parts = choice.split(';').map(str::trim);
                let kind = parts.next().unwrap_or_default().to_ascii_lowercase();
                let quality = parts.find_map(|part| part.strip_prefix("q=")?.parse().ok()).unwrap_or(1.0);
                match kind.as_str() {
                    "application/openmetrics-text" => open = open.max(quality),
                    "text/plain" | "text/*" | "*/*" => plain = plain.max(quality),
                    _ => {}
                }
            }
        }
        if open > 0.0 && open >= plain { Self::OpenMetrics } else { Self::Prometheus }
    }

    pub fn content_type(self) -> &'static str {
        match self {
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Gauge,
    /// Its series end in `_total`.
    Counter,
    Histogram,
    /// Its series end in `_info` and are 1.
    Info,
}

pub struct Exposition {
    format: Format,
    text: String,
}

impl Exposition {
    pub fn new(format: Format) -> Self {
        Self { format, text: String::with_capacity(16 * 1024) }
    }

    /// Begins a family. All of its series must be written before the next family.
    pub fn family(&mut self, name: &str, kind: Kind, help: &str) -> Family<'_> {
        let suffix = match kind {
            Kind::Gauge | Kind::Histogram => "",
            Kind::Counter => "_total",
            Kind::Info => "_info",
        };
        let series = format!("{name}{suffix}");
        let (documented, kind) = match (self.format, kind) {
            (_, Kind::Gauge) => (name, "gauge"),
            (_, Kind::Histogram) => (name, "histogram"),
            (Format::OpenMetrics, Kind::Counter) => (name, "counter"),
            (Format::OpenMetrics, Kind::Info) => (name, "info"),
            (Format::Prometheus, Kind::Counter) => (series.as_str(), "counter"),
            (Format::Prometheus, Kind::Info) => (series.as_str(), "gauge"),
        };
        // Writing to a String cannot fail.
        let _ = write!(self.text, "# HELP {documented} {help}\n# TYPE {documented} {kind}\n");
        Family { text: &mut self.text, series }
    }

    pub fn finish(mut self) -> String {
        if self.format == Format::OpenMetrics {
            self.text.push_str("# EOF\n");
        }
        self.text
    }
}

pub struct Family<'a> {
    text: &'a mut String,
    series: String,
}

/// Names and values, in writing order.
pub type Labels<'a> = [(&'a str, &'a str)];

impl Family<'_> {
    pub fn put(&mut self, labels: &Labels<'_>, value: f64) {
        self.write(Sample { suffix: "", labels, bucket: None, value });
    }

    pub fn put_histogram(&mut self, labels: &Labels<'_>, histogram: &DurationHistogram) {
        for (bound, count) in histogram.cumulative() {
            self.write(Sample { suffix: "_bucket", labels, bucket: Some(bound), value: count as f64 });
        }
        self.write(Sample { suffix: "_sum", labels, bucket: None, value: histogram.sum });
        self.write(Sample { suffix: "_count", labels, bucket: None, value: histogram.count() as f64 });
    }

    fn write(&mut self, Sample { suffix, labels, bucket, value }: Sample<'_>) {
        let Self { text, series } = self;
        text.push_str(series);
        text.push_str(suffix);
        let bound = bucket.map(number);
        let bound = bound.as_deref().map(|bound| ("le", bound));
        let mut open = '{';
        for (name, value) in labels.iter().copied().chain(bound) {
            text.push(open);
            let _ = write!(text, "{name}=\"{}\"", escaped(value));
            open = ',';
        }
        if open == ',' {
            text.push('}');
        }
        let _ = writeln!(text, " {}", number(value));
    }
}

/// One line of a family.
struct Sample<'a> {
    suffix: &'a str,
    labels: &'a Labels<'a>,
    /// Upper bound, the label `le`.
    bucket: Option<f64>,
    value: f64,
}

/// One form per number: clients compare bucket bounds as text.
fn number(value: f64) -> Cow<'static, str> {
    match value {
        f64::INFINITY => "+Inf".into(),
        f64::NEG_INFINITY => "-Inf".into(),
        value if value.is_nan() => "NaN".into(),
        value => format!("{value:?}").into(),
    }
}

fn escaped(value: &str) -> Cow<'_, str> {
    if !value.contains(['\\', '"', '\n']) {
        return Cow::Borrowed(value);
    }
    Cow::Owned(value.replace('\\', r"\\").replace('"', r#"\""#).replace('\n', r"\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn negotiated(accept: &str) -> Format {
        let mut headers = HeaderMap::new();
        headers.insert(http::header::ACCEPT, accept.parse().unwrap());
        Format::negotiate(&headers)
    }

    #[test]
    fn the_format_is_negotiated_by_the_client() {
        assert_eq!(Format::negotiate(&HeaderMap::new()), Format::Prometheus);
        assert_eq!(negotiated("*/*"), Format::Prometheus);
        assert_eq!(negotiated("text/html,application/xml;q=0.9,*/*;q=0.8"), Format::Prometheus);
        let prometheus = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,\
            application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;q=0.4,\
            text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
        assert_eq!(negotiated(prometheus), Format::OpenMetrics);
        assert_eq!(
            negotiated("text/plain;version=0.0.4;q=0.9,application/openmetrics-text;q=0.1"),
            Format::Prometheus
        );
        assert_eq!(negotiated("application/openmetrics-text;q=0"), Format::Prometheus);
    }

    #[test]
    fn both_formats_write_the_same_numbers() {
        let write = |format| {
            let mut text = Exposition::new(format);
            text.family("app", Kind::Info, "What it is.").put(&[("version", "1")], 1.0);
            text.family("calls", Kind::Counter, "Calls.").put(&[("by", "a \"b\"\\\nc")], 3.0);
            let mut histogram = DurationHistogram::with_buckets(&[0.5, 1.0]);
            histogram.observe(0.75);
            text.family("took_seconds", Kind::Histogram, "Time.").put_histogram(&[], &histogram);
            text.finish()
        };
        let numbers = "took_seconds_bucket{le=\"0.5\"} 0.0\ntook_seconds_bucket{le=\"1.0\"} 1.0\n\
            took_seconds_bucket{le=\"+Inf\"} 1.0\ntook_seconds_sum 0.75\ntook_seconds_count 1.0\n";
        assert_eq!(
            write(Format::Prometheus),
            format!(
                "# HELP app_info What it is.\n# TYPE app_info gauge\napp_info{{version=\"1\"}} 1.0\n\
                 # HELP calls_total Calls.\n# TYPE calls_total counter\n\
                 calls_total{{by=\"a \\\"b\\\"\\\\\\nc\"}} 3.0\n\
                 # HELP took_seconds Time.\n# TYPE took_seconds histogram\n{numbers}"
            )
        );
        assert_eq!(
            write(Format::OpenMetrics),
            format!(
                "# HELP app What it is.\n# TYPE app info\napp_info{{version=\"1\"}} 1.0\n\
                 # HELP calls Calls.\n# TYPE calls counter\n\
                 calls_total{{by=\"a \\\"b\\\"\\\\\\nc\"}} 3.0\n\
                 # HELP took_seconds Time.\n# TYPE took_seconds histogram\n{numbers}# EOF\n"
            )
        );
    }
}
