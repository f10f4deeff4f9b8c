//! Text fragments shared by all chats.

use std::fmt::Write as _;

use super::{MetricLine, Notification};
use crate::api::{
    Weight,
    canary::{metric::BUILT_IN, status::Verdict},
};

/// Longer URLs are left out of messages.
pub const MAX_URL: usize = 1500;

/// At most `max` characters; an ellipsis marks cut text.
pub fn truncate(text: &str, max: usize) -> String {
    match text.char_indices().nth(max) {
        None => text.to_owned(),
        Some(_) => text.chars().take(max.saturating_sub(1)).chain(['…']).collect(),
    }
}

/// The canary's share as a bar of twenty cells: empty only at 0 %, full only at
/// 100 %.
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

/// All verdicts in one line.
pub fn summary(metrics: &[MetricLine]) -> String {
    let of = |wanted: Verdict| -> Vec<&str> {
        metrics.iter().filter(|metric| metric.verdict == wanted).map(|metric| metric.name.as_str()).collect()
    };
    let (failed, unsure) = (of(Verdict::Fail), of(Verdict::Inconclusive));
    match (failed.as_slice(), unsure.as_slice()) {
        ([], []) if metrics.is_empty() => "no metric was judged".to_owned(),
        ([], []) => format!("pass: {}", of(Verdict::Pass).join(", ")),
        ([], unsure) => format!("inconclusive: {}", unsure.join(", ")),
        (failed, _) => format!("fail: {}", failed.join(", ")),
    }
}

/// Reasons of the metrics that did not pass, except those in the sentence.
pub fn failing_metrics(notification: &Notification) -> Vec<String> {
    let in_sentence = |metric: &MetricLine| notification.sentence.contains(&metric.reason);
    let failing =
        notification.metrics.iter().filter(|metric| metric.verdict != Verdict::Pass && !in_sentence(metric));
    failing.map(|metric| format!("{}: {}", metric.name, metric.reason)).collect()
}

pub fn verdict(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Pass => "pass",
        Verdict::Fail => "fail",
        Verdict::Inconclusive => "inconclusive",
    }
}

/// Of the built-in metrics.
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
