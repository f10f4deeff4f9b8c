//! Recordings of systems' metrics pages.
//!
//! A line is a series as a system shows it, and what it does each half minute:
//! `+12` is a counter that grows by twelve, `12` a gauge that stays. Lines are
//! in sections: `[canary]`, `[primary]`, and others for what belongs to
//! neither.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::support::prometheus::Prometheus;

/// The window of counts.
pub const WINDOW: Duration = Duration::from_secs(300);

const SAMPLE_INTERVAL: Duration = Duration::from_secs(30);

/// The recording begins this long before it is played, and goes on after: a
/// test that is slow still asks about the middle of it.
const BEFORE: u32 = 30;
const AFTER: u32 = 16;

pub struct Recording(Vec<Series>);

struct Series {
    section: String,
    name: String,
    labels: Vec<(String, String)>,
    samples: SampleSeries,
}

#[derive(Clone, Copy)]
enum SampleSeries {
    Increasing(f64),
    Constant(f64),
}

impl Recording {
    pub fn read(system: &str) -> Recording {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/templates/recordings");
        let path = folder.join(format!("{system}.txt"));
        let text = std::fs::read_to_string(&path)
            .unwrap_or_else(|error| panic!("a recording of {system} at {}: {error}", path.display()));
        let mut section = String::new();
        let mut series = Vec::new();
        for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            match line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
                Some(name) => section = name.to_owned(),
                None => series.push(Series::read(&section, line)),
            }
        }
        Recording(series)
    }

    /// The histograms in a section: what each bucket, in seconds or as a value, grows by
    /// within the window.
    pub fn buckets(&self, section: &str) -> Vec<(f64, u64)> {
        let steps = (WINDOW.as_secs() / SAMPLE_INTERVAL.as_secs()) as f64;
        let mut buckets = BTreeMap::<String, f64>::new();
        let of_section = self.0.iter().filter(|series| series.section == section);
        let mut unit = 1000.0;
        for series in of_section.filter(|series| series.name.ends_with("_bucket")) {
            let le = series.labels.iter().find(|(label, _)| label == "le");
            let SampleSeries::Increasing(by) = series.samples else { panic!("buckets grow") };
            *buckets.entry(le.expect("a bucket has a bound").1.clone()).or_default() += by * steps;
            let in_units = ["_seconds_", "_value_"].iter().any(|unit| series.name.contains(unit));
            unit = if in_units { 1.0 } else { 1000.0 };
        }
        let bound = |le: &str| le.parse::<f64>().expect("a number") / unit;
        buckets.into_iter().map(|(le, count)| (bound(&le), count as u64)).collect()
    }
}

impl Series {
    fn read(section: &str, line: &str) -> Series {
        let parts = line.split_once('{').zip(line.rsplit_once("} "));
        let ((name, _), (head, course)) = parts.unwrap_or_else(|| panic!("no series: {line}"));
        let labels = head[name.len() + 1..].split("\",").map(|label| {
            let (label, value) = label.split_once("=\"").unwrap_or_else(|| panic!("no label: {label}"));
            (label.to_owned(), value.trim_end_matches('"').to_owned())
        });
        let number = |text: &str| text.parse().unwrap_or_else(|_| panic!("no number: {line}"));
        let course = match course.strip_prefix('+') {
            Some(by) => SampleSeries::Increasing(number(by)),
            None => SampleSeries::Constant(number(course)),
        };
        Series {
            section: section.to_owned(),
            name: name.to_owned(),
            labels: labels.collect(),
            samples: course,
        }
    }

    /// In the JSON of OTLP, which every Prometheus takes.
    fn points(&self, middle: Timestamp) -> Value {
        let attributes: Vec<Value> = self
            .labels
            .iter()
            .map(|(label, value)| json!({"key": label, "value": {"stringValue": value}}))
            .collect();
        let points: Vec<Value> = (0..=BEFORE + AFTER)
            .map(|step| {
                let at = middle - SAMPLE_INTERVAL * BEFORE + SAMPLE_INTERVAL * step;
                let value = match self.samples {
                    // It has counted before anybody looked.
                    SampleSeries::Increasing(by) => 1000.0 + by * f64::from(step),
                    SampleSeries::Constant(at) => at,
                };
                let value = if value.is_nan() { json!("NaN") } else { json!(value) };
                json!({"attributes": attributes, "timeUnixNano": at.as_nanosecond().to_string(), "asDouble": value})
            })
            .collect();
        json!({"name": self.name, "gauge": {"dataPoints": points}})
    }
}

/// Gives the recordings to a Prometheus as if it had read them all along. A
/// sample of every series is at the moment that is returned.
pub async fn play(prometheus: &Prometheus, recordings: impl Iterator<Item = &Recording>) -> Timestamp {
    let middle = Timestamp::from_second(Timestamp::now().as_second()).expect("now is a time");
    let client = reqwest::Client::builder().no_proxy().build().expect("an HTTP client");
    for recording in recordings {
        let metrics: Vec<Value> = recording.0.iter().map(|series| series.points(middle)).collect();
        let all = json!({"resourceMetrics": [{"scopeMetrics": [{"metrics": metrics}]}]});
        let url = format!("{}/api/v1/otlp/v1/metrics", prometheus.url());
        let answer = client.post(url).json(&all).send().await.expect("a Prometheus that listens");
        let status = answer.status();
        assert!(status.is_success(), "{status}: {}", answer.text().await.unwrap_or_default());
    }
    middle
}
