//! Pieces of text that every chat shows.

use std::fmt::Write as _;

use super::{MetricLine, Notification};
use crate::api::{
    Weight,
    canary::{metric::BUILT_IN, status::Verdict},
};

/// At most so many characters; what was cut shows.
pub fn truncate(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        None => text.to_owned(),
        Some(_) => text.chars().take(most.saturating_sub(1)).chain(['…']).collect(),
    }
}

/// The canary's share as a bar of twenty cells. Something is never shown as
/// nothing, and not all never as all.
pub fn bar(weight: Weight) -> String {
    const CELLS: u32 = 20;
    let hundredths = u32::from(weight.hundredths());
    let full = match hundredths {
        0 => 0,
        10_000 => CELLS,
        some => ((some * CELLS + 5_000) / 10_000).clamp(1, CELLS - 1),
    };
    let cells = |cell: &str, count: u32| cell.repeat(count as usize);
    format!("{}{} {weight} %", cells("█", full), cells("░", CELLS - full))
}

/// The metrics as a table in a fixed-width font.
pub fn table(metrics: &[MetricLine]) -> String {
    const MAX_NAME_CHARS: usize = 40;
    let name = |metric: &MetricLine| truncate(&metric.name, MAX_NAME_CHARS);
    let width = metrics.iter().map(|metric| name(metric).chars().count()).max().unwrap_or(0).max(6);
    let mut table = format!("{:width$}  {:12}  {:>10}  {:>10}", "metric", "verdict", "canary", "primary");
    for metric in metrics {
        let value = |value: Option<f64>| number(value).map_or("–".to_owned(), |text| text + unit(metric));
        let (canary, primary) = (value(metric.canary), value(metric.primary));
        let verdict = verdict(metric.verdict);
        let _ = write!(table, "\n{:width$}  {verdict:12}  {canary:>10}  {primary:>10}", name(metric));
    }
    table
}

/// Why each metric that did not pass did not, unless the sentence says so.
pub fn failing_metrics(notification: &Notification) -> Vec<String> {
    let is_said = |metric: &MetricLine| notification.sentence.contains(&metric.reason);
    let troubled =
        notification.metrics.iter().filter(|metric| metric.verdict != Verdict::Pass && !is_said(metric));
    troubled.map(|metric| format!("{}: {}", metric.name, metric.reason)).collect()
}

pub fn verdict(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Pass => "pass",
        Verdict::Fail => "fail",
        Verdict::Inconclusive => "inconclusive",
    }
}

/// Of the metrics that everybody has.
fn unit(metric: &MetricLine) -> &'static str {
    let [success_rate, duration] = BUILT_IN;
    match metric.name.as_str() {
        name if name == success_rate => " %",
        name if name == duration => " ms",
        _ => "",
    }
}

fn number(value: Option<f64>) -> Option<String> {
    let value = value?;
    if value != 0.0 && (value.abs() < 0.001 || value.abs() >= 1e7) {
        return Some(format!("{value:.2e}"));
    }
    let text = format!("{value:.3}");
    Some(text.trim_end_matches('0').trim_end_matches('.').to_owned())
}
