//! The view of the demo: a scene in, lines out. Pure.

use std::time::Duration;

use super::load::{RATE, RecentStats, RequestTotals, SLOW_THRESHOLD};
use super::story::{Release, ReleaseResult};
use crate::api::CanaryStatus;
use crate::api::canary::status::{MetricStatus, Verdict};
use crate::cli::paint::{Line, Tone, plain, wrap};

/// Fixed, so that the lines below do not move.
const LINES_PER_METRIC: usize = 2;

/// Space reserved before the first verdicts.
const MIN_METRICS: usize = 2;

/// Input of [`render`].
pub struct Scene<'a> {
    pub name: &'a str,
    pub elapsed: Duration,
    /// The versions that the arms run.
    pub primary: &'a str,
    pub canary: &'a str,
    /// The running release and its number.
    pub release: Option<(&'a Release, usize)>,
    pub releases: usize,
    pub status: &'a CanaryStatus,
    pub message: &'a str,
    pub recent: [RecentStats; 2],
    pub totals: RequestTotals,
    pub journal: &'a [JournalEntry],
    /// None once it is of no use.
    pub kubeconfig: Option<&'a String>,
}

#[derive(Clone, Debug)]
pub struct JournalEntry {
    pub at: Duration,
    pub tone: Tone,
    pub message: String,
}

pub fn render(scene: &Scene<'_>, width: usize, height: usize) -> Vec<Line> {
    let width = width.clamp(40, 120);
    let mut lines = vec![title(scene, width), Line::new()];
    lines.push(heading(scene, width));
    lines.push(Line::new());
    lines.extend(weights(scene, width));
    lines.push(Line::new());
    lines.extend(table(scene));
    lines.push(Line::new());
    let first = lines.len();
    lines.extend(scene.status.metrics.iter().flat_map(|metric| verdict(metric, width)));
    if scene.status.metrics.is_empty() && scene.release.is_some() {
        lines.push(vec![(Tone::Dim, " … no verdict yet".to_owned())]);
    }
    // As many lines as with verdicts, so that the lines below do not move.
    lines.resize(lines.len().max(first + MIN_METRICS * LINES_PER_METRIC), Line::new());
    lines.push(Line::new());
    let hints: Vec<Line> = match scene.kubeconfig {
        None => Vec::new(),
        Some(kubeconfig) => vec![
            vec![(Tone::Dim, format!(" export KUBECONFIG={kubeconfig}"))],
            vec![(Tone::Dim, " kubectl get canaries,trafficsplits,pods   # in another terminal".to_owned())],
        ],
    };
    // The journal fills the remaining height, newest lines at the bottom.
    let room = height.saturating_sub(lines.len() + hints.len() + 2);
    let journal: Vec<Line> = scene.journal.iter().flat_map(|entry| journal_lines(entry, width)).collect();
    lines.extend_from_slice(&journal[journal.len().saturating_sub(room)..]);
    lines.push(Line::new());
    lines.extend(hints);
    lines
}

/// One entry of the journal, broken into lines.
pub fn journal_lines(entry: &JournalEntry, width: usize) -> Vec<Line> {
    let broken = wrap(&entry.message, width.saturating_sub(8));
    let lines = broken.into_iter().enumerate().map(|(at, text)| {
        let time = if at == 0 { clock(entry.at) } else { " ".repeat(5) };
        vec![(Tone::Dim, format!(" {time} ")), (entry.tone, text)]
    });
    lines.collect()
}

/// Printed after the last release.
pub fn summary(ended: &[ReleaseResult], totals: RequestTotals, elapsed: Duration, width: usize) -> Vec<Line> {
    let width = width.clamp(40, 120);
    let mut lines = vec![
        Line::new(),
        vec![(
            Tone::Bold,
            format!(" {:<9}{:<13}{:>14}{:>10}", "release", "outcome", "bad requests", "seconds"),
        )],
    ];
    for release in ended {
        let bad = format!("{} of {}", thousands(release.totals.bad), thousands(release.totals.requests));
        let tone = if release.as_expected { Tone::Good } else { Tone::Bad };
        lines.push(vec![
            (Tone::Plain, format!(" {:<9}", release.version)),
            (tone, format!("{:<13}", outcome_label(release.outcome))),
            (Tone::Plain, format!("{bad:>14}{:>10.1}", release.duration.as_secs_f64())),
        ]);
        let reason = wrap(&release.reason, width.saturating_sub(11));
        lines.extend(reason.into_iter().map(|text| vec![(Tone::Dim, format!("          {text}"))]));
    }
    lines.push(Line::new());
    lines.push(plain(format!(
        " {} requests in {:.0} s, {} bad (failed, or slower than {} ms).",
        thousands(totals.requests),
        elapsed.as_secs_f64(),
        thousands(totals.bad),
        SLOW_THRESHOLD.as_millis(),
    )));
    lines
}

pub fn outcome_label(outcome: crate::api::canary::status::Outcome) -> &'static str {
    use crate::api::canary::status::Outcome;
    match outcome {
        Outcome::Promoted => "promoted",
        Outcome::RolledBack => "rolled back",
        Outcome::Aborted => "aborted",
        Outcome::Superseded => "superseded",
    }
}

pub fn clock(time: Duration) -> String {
    format!("{:02}:{:02}", time.as_secs() / 60, time.as_secs() % 60)
}

fn title(scene: &Scene<'_>, width: usize) -> Line {
    let left = format!(" serin demo  {}", scene.name);
    let right =
        format!("{RATE} requests/s, {} bad so far · {} ", thousands(scene.totals.bad), clock(scene.elapsed));
    let gap = width.saturating_sub(left.chars().count() + right.chars().count()).max(1);
    vec![(Tone::Bold, left), (Tone::Plain, " ".repeat(gap)), (Tone::Dim, right)]
}

fn heading(scene: &Scene<'_>, width: usize) -> Line {
    let Some((release, number)) = scene.release else {
        let [message] = wrap_to(scene.message, width.saturating_sub(3));
        return vec![(Tone::Dim, format!(" {message}"))];
    };
    let state = match &scene.status.step {
        // Until it starts, the status is about the previous release.
        _ if scene.status.releases < number as u64 => "about to begin".to_owned(),
        Some(step) => format!("step {}", step.progress),
        None => format!("{:?}", scene.status.phase),
    };
    vec![
        (Tone::Dim, format!(" {number} of {}  ", scene.releases)),
        (Tone::Bold, release.version.to_owned()),
        (Tone::Plain, format!(" {}  ", release.description)),
        (Tone::Dim, state),
    ]
}

fn weights(scene: &Scene<'_>, width: usize) -> [Line; 2] {
    let columns = width.saturating_sub(2);
    let percent = scene.status.canary_weight.percent();
    let canary = (columns as f64 * percent / 100.0).round() as usize;
    // Any traffic gets at least one cell.
    let canary = canary.clamp(usize::from(percent > 0.0), columns);
    let left =
        format!("{} {} %", arm_label("primary", scene.primary), scene.status.canary_weight.complement());
    let right = format!("{} {} %", arm_label("canary", scene.canary), scene.status.canary_weight);
    let gap = columns.saturating_sub(left.chars().count() + right.chars().count()).max(1);
    let right_tone = if percent > 0.0 { Tone::Canary } else { Tone::Dim };
    [
        vec![
            (Tone::Primary, format!(" {}", "█".repeat(columns - canary))),
            (Tone::Canary, "░".repeat(canary)),
        ],
        vec![(Tone::Primary, format!(" {left}")), (Tone::Plain, " ".repeat(gap)), (right_tone, right)],
    ]
}

fn table(scene: &Scene<'_>) -> Vec<Line> {
    let mut lines = vec![vec![(
        Tone::Dim,
        format!(" {:<20}{:>12}{:>12}{:>12}{:>14}", "", "success", "median", "p99", "requests/s"),
    )]];
    let arms = [("primary", scene.primary, Tone::Primary), ("canary", scene.canary, Tone::Canary)];
    for ((arm, version, tone), recent) in arms.into_iter().zip(scene.recent) {
        let beside = scene.recent[0];
        let worse =
            recent.success_ratio.zip(beside.success_ratio).is_some_and(|(own, other)| own + 0.005 < other);
        let slower = recent.p99.zip(beside.p99).is_some_and(|(own, other)| own > other * 2);
        let mark = |bad: bool| if bad { Tone::Bad } else { Tone::Plain };
        let time =
            |time: Option<Duration>| time.map_or("–".to_owned(), |time| format!("{} ms", time.as_millis()));
        lines.push(vec![
            (tone, format!(" {:<20}", arm_label(arm, version))),
            (
                mark(worse),
                format!(
                    "{:>12}",
                    recent.success_ratio.map_or("–".to_owned(), |rate| format!("{:.2} %", rate * 100.0))
                ),
            ),
            (Tone::Plain, format!("{:>12}", time(recent.median))),
            (mark(slower), format!("{:>12}", time(recent.p99))),
            (Tone::Plain, format!("{:>14.0}", recent.per_second)),
        ]);
    }
    lines
}

fn verdict(metric: &MetricStatus, width: usize) -> Vec<Line> {
    let (tone, mark) = match metric.verdict {
        Verdict::Pass => (Tone::Good, "✓"),
        Verdict::Fail => (Tone::Bad, "✗"),
        Verdict::Inconclusive => (Tone::Dim, "…"),
    };
    let name = format!(" {mark} {:<21}", metric.name);
    let indent = name.chars().count();
    let sentences: [String; LINES_PER_METRIC] = wrap_to(&metric.reason, width.saturating_sub(indent + 2));
    let mut lines = Vec::new();
    for (at, text) in sentences.into_iter().enumerate() {
        let before = if at == 0 { name.clone() } else { " ".repeat(indent) };
        lines.push(vec![(tone, before), (Tone::Plain, text)]);
    }
    lines
}

/// Exactly `LINES` lines; an ellipsis at the end marks cut text.
fn wrap_to<const LINES: usize>(text: &str, width: usize) -> [String; LINES] {
    let mut broken = wrap(text, width).into_iter();
    let mut lines = std::array::from_fn(|_| broken.next().unwrap_or_default());
    if let (Some(last), Some(_)) = (lines.last_mut(), broken.next()) {
        last.push('…');
    }
    lines
}

/// An arm and its version, if known.
fn arm_label(arm: &str, version: &str) -> String {
    format!("{arm} {version}").trim_end().to_owned()
}

fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Weight;
    use crate::cli::paint::paint;

    fn drawn(weight: f64, width: usize, height: usize) -> Vec<String> {
        let status = CanaryStatus {
            canary_weight: Weight::from_percent(weight).unwrap(),
            metrics: vec![MetricStatus {
                name: "request-success-rate".into(),
                verdict: Verdict::Pass,
                reason: "nothing shows it to be 1.5 times worse ".repeat(9),
                at: None,
                canary: None,
                primary: None,
                canary_count: None,
                primary_count: None,
                evidence: None,
                times_worse: None,
                low_power: false,
                failures: 0,
                inconclusives: 0,
                measured_until: None,
                analysis_state: None,
            }],
            ..CanaryStatus::default()
        };
        let entry = |n: u64| JournalEntry {
            at: Duration::from_secs(n),
            tone: Tone::Plain,
            message: format!("entry {n}"),
        };
        let journal: Vec<JournalEntry> = (0..50).map(entry).collect();
        let kubeconfig = "k".to_owned();
        let scene = Scene {
            name: "default/shop",
            elapsed: Duration::from_secs(61),
            primary: "v1",
            canary: "v2",
            release: None,
            releases: 3,
            status: &status,
            message: "Revision v3 is rolled back: request-success-rate failed, and so on and so forth at length.",
            recent: [RecentStats::default(); 2],
            totals: RequestTotals { requests: 12_345, failed: 1_000, bad: 1_234 },
            journal: &journal,
            kubeconfig: Some(&kubeconfig),
        };
        render(&scene, width, height).iter().map(|line| paint(line, 500, false)).collect()
    }

    #[test]
    fn the_bar_shows_the_weights() {
        let bar = |weight| drawn(weight, 102, 30)[4].trim_start().to_owned();
        assert_eq!(bar(25.0), format!("{}{}", "█".repeat(75), "░".repeat(25)));
        assert_eq!(bar(0.0), "█".repeat(100));
        assert_eq!(bar(0.01).matches('░').count(), 1);
        assert_eq!(bar(100.0), "░".repeat(100));
    }

    #[test]
    fn the_newest_entries_are_shown_and_everything_fits() {
        for height in [24, 32, 60] {
            let lines = drawn(10.0, 80, height);
            assert!(lines.len() < height, "{} lines of {height}", lines.len());
            assert!(lines.iter().any(|line| line.ends_with("entry 49")), "{lines:#?}");
        }
    }

    #[test]
    fn a_heading_that_is_too_long_is_cut_between_words() {
        assert_eq!(drawn(0.0, 60, 30)[2], " Revision v3 is rolled back: request-success-rate failed,…");
        assert!(drawn(0.0, 120, 30)[2].ends_with(" at length."));
    }

    #[test]
    fn thousands_are_set_apart() {
        assert_eq!([1, 999, 1_000, 12_345_678].map(thousands), ["1", "999", "1,000", "12,345,678"]);
    }
}
