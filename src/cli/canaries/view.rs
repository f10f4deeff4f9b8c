//! The view of one Canary: objects in, lines out. Pure.

use jiff::Timestamp;
use kube::ResourceExt as _;

use super::{history::outcome, length, relative, state};
use crate::api::canary::status::{GateState, GateStatus, MetricStatus, Phase, Verdict};
use crate::api::{Canary, CanaryStatus};
use crate::cli::inventory::table;
use crate::cli::paint::{Line, Tone, plain, wrap};
use crate::engine::names::name_of;
use crate::engine::plan::steps::{Step, steps};
use crate::workload::images::Images;

/// What `serin status` reads.
pub struct Scene<'a> {
    pub canary: &'a Canary,
    pub images: &'a Images,
    /// A sentence for each pod in trouble.
    pub pods: &'a [String],
    pub now: Timestamp,
    /// Releases of the history to show.
    pub past: usize,
}

/// Columns before the text of a part.
const INDENT: usize = 10;

pub fn render(scene: &Scene<'_>, width: usize) -> Vec<Line> {
    let width = width.clamp(40, 120);
    let Some(status) = &scene.canary.status else {
        let unseen =
            "The controller has not seen this Canary yet: is `serin run` running, and for this namespace?";
        let mut lines = vec![title(scene, width), Line::new()];
        lines.extend(wrap(unseen, width.saturating_sub(2)).into_iter().map(|text| plain(format!(" {text}"))));
        return lines;
    };
    let mut lines = vec![title(scene, width), Line::new()];
    lines.extend(weights(scene, status, width));
    lines.push(Line::new());
    if let Some(track) = track(scene.canary, status) {
        lines.push(track);
        lines.push(Line::new());
    }
    lines.extend(part("now", Tone::Plain, status.message.as_deref().unwrap_or_default(), width));
    let next = status.next_deadline.as_ref().filter(|next| next.at.0 > scene.now);
    let next = match (next, state(scene.canary)) {
        (Some(next), _) => {
            Some(format!("{}, at {}: {}", relative(next.at.0, scene.now), clock(next.at.0), next.reason))
        }
        (None, "AwaitingApproval") => Some("nothing by itself: it waits for the approval".to_owned()),
        (None, "AwaitingGate") => Some("nothing until the gate opens".to_owned()),
        (None, "Paused") => {
            Some(format!("nothing by itself: serin resume {} ends the pause", named(scene.canary)))
        }
        (None, "Suspended") => Some("nothing until spec.suspend is false".to_owned()),
        (None, "Refused") => Some("nothing until that is corrected".to_owned()),
        _ => None,
    };
    lines.extend(next.iter().flat_map(|text| part("next", Tone::Plain, text, width)));
    for metric in &status.metrics {
        lines.extend(verdict(metric, width));
    }
    for gate in status.gates.iter().filter(|_| status.release.is_some()) {
        lines.extend(gate_lines(gate, scene, width));
    }
    for pod in scene.pods {
        lines.extend(part("pod ✗", Tone::Bad, pod, width));
    }
    for (at, past) in status.history.iter().take(scene.past).enumerate() {
        let (outcome, tone) = outcome(past.outcome);
        let took = length(past.finished_at.0.duration_since(past.started_at.0));
        let text = format!(
            "{} {outcome} {} after {took}, at most {} %{}{}",
            name_of(status, &past.revision),
            relative(past.finished_at.0, scene.now),
            past.highest_weight,
            if past.reason.is_empty() { "" } else { ": " },
            past.reason
        );
        lines.extend(part(if at == 0 { "before" } else { "" }, tone_of(tone), &text, width));
    }
    lines
}

fn tone_of(tone: table::Tone) -> Tone {
    match tone {
        table::Tone::Plain => Tone::Plain,
        table::Tone::Dim => Tone::Dim,
        table::Tone::Good => Tone::Good,
        table::Tone::Bad => Tone::Bad,
    }
}

fn title(scene: &Scene<'_>, width: usize) -> Line {
    let canary = scene.canary;
    let state = state(canary);
    let tone = match state {
        "Succeeded" | "Initialized" => Tone::Good,
        "Failed" | "Refused" | "Degraded" => Tone::Bad,
        _ => Tone::Canary,
    };
    let name = format!(" {}/{}  ", canary.namespace().unwrap_or_default(), canary.name_any());
    let target = &canary.spec.target_ref;
    let right = format!("{:?} {} ", target.kind, target.name);
    let used = name.chars().count() + state.len() + right.chars().count();
    let gap = " ".repeat(width.saturating_sub(used).max(1));
    vec![(Tone::Bold, name), (tone, state.to_owned()), (Tone::Plain, gap), (Tone::Dim, right)]
}

/// The split as a bar, and below it who gets which part.
fn weights(scene: &Scene<'_>, status: &CanaryStatus, width: usize) -> [Line; 2] {
    let columns = width.saturating_sub(2);
    let percent = status.canary_weight.percent();
    let canary =
        ((columns as f64 * percent / 100.0).round() as usize).clamp(usize::from(percent > 0.0), columns);
    let arm = |name: &str, image: &Option<String>, weight: String| match image {
        Some(image) => format!("{name} {image} {weight} %"),
        None => format!("{name} {weight} %"),
    };
    let left = arm("primary", &scene.images.primary, status.canary_weight.complement().to_string());
    let idle = status.release.is_none() && percent == 0.0;
    let right = match idle {
        true => String::new(),
        false => arm("canary", &scene.images.target, status.canary_weight.to_string()),
    };
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

/// The steps of the release: done, current, to come.
fn track(canary: &Canary, status: &CanaryStatus) -> Option<Line> {
    let current = status.step.as_ref().filter(|_| status.release.is_some())?;
    let analysis = &canary.spec.analysis;
    let provider = canary.spec.provider.or(status.route.as_ref().map(|route| route.provider));
    let names: Vec<&str> = analysis.metrics.iter().map(|metric| metric.name.as_str()).collect();
    let (_, steps) = steps(analysis, provider, std::time::Duration::from_secs(60), &names).ok()?;
    let mut line = vec![(Tone::Dim, format!(" {:<9}", "steps"))];
    let promoting = matches!(status.phase, Phase::Promoting | Phase::Finalising);
    for (at, step) in steps.iter().enumerate() {
        let (mark, tone) = match at.cmp(&(current.index as usize)) {
            std::cmp::Ordering::Less => ("✓", Tone::Good),
            std::cmp::Ordering::Equal if promoting => ("✓", Tone::Good),
            std::cmp::Ordering::Equal => ("●", Tone::Canary),
            std::cmp::Ordering::Greater => ("○", Tone::Dim),
        };
        line.push((tone, format!("{mark} {}  ", step_label(step))));
    }
    line.push(if promoting {
        (Tone::Canary, "● promote".into())
    } else {
        (Tone::Dim, "○ promote".into())
    });
    Some(line)
}

fn step_label(step: &Step) -> String {
    let weight = format!("{} %", step.split.canary);
    match step.name.is_empty() || step.name == weight {
        true => weight,
        false => step.name.clone(),
    }
}

fn verdict(metric: &MetricStatus, width: usize) -> Vec<Line> {
    let (tone, mark) = match metric.verdict {
        Verdict::Pass => (Tone::Good, "✓"),
        Verdict::Fail => (Tone::Bad, "✗"),
        Verdict::Inconclusive => (Tone::Dim, "…"),
    };
    part(&format!("metric {mark}"), tone, &format!("{}: {}", metric.name, metric.reason), width)
}

fn gate_lines(gate: &GateStatus, scene: &Scene<'_>, width: usize) -> Vec<Line> {
    let (tone, mark, state) = match gate.state {
        GateState::Waiting => (Tone::Canary, "●", "waits"),
        GateState::Open => (Tone::Good, "✓", "open"),
        GateState::Refused => (Tone::Bad, "✗", "refused"),
        GateState::Expired => (Tone::Bad, "✗", "expired"),
    };
    let mut text = format!("{}: {state}", gate.name);
    if let Some(since) = &gate.since {
        text.push_str(&format!(" since {}", length(scene.now.duration_since(since.0))));
    }
    if let Some(by) = &gate.by {
        text.push_str(&format!(", by {by}"));
    }
    if let Some(expires) = gate.expires_at.as_ref().filter(|_| gate.state == GateState::Waiting) {
        text.push_str(&format!(", expires {}", relative(expires.0, scene.now)));
    }
    if !gate.message.is_empty() {
        text.push_str(&format!(" ({})", gate.message));
    }
    let mut lines = part(&format!("gate {mark}"), tone, &text, width);
    if gate.state == GateState::Waiting {
        let command = format!("serin approve {} --gate '{}'", named(scene.canary), gate.name);
        lines.push(vec![(Tone::Plain, " ".repeat(INDENT)), (Tone::Bold, command)]);
    }
    lines
}

/// The Canary as arguments of a command.
fn named(canary: &Canary) -> String {
    format!("{} -n {}", canary.name_any(), canary.namespace().unwrap_or_default())
}

/// The time of the day, in UTC as in all messages.
fn clock(at: Timestamp) -> String {
    at.strftime("%H:%M:%S UTC").to_string()
}

/// The keys of `--watch`, or what became of the last one.
pub fn key_line(note: &str) -> Line {
    match note.is_empty() {
        true => vec![(Tone::Dim, " p pause  r resume  a approve  x abort  q quit".to_owned())],
        false => vec![(Tone::Bold, format!(" {note}"))],
    }
}

/// A label, and a sentence beside it.
fn part(label: &str, tone: Tone, text: &str, width: usize) -> Vec<Line> {
    let broken = wrap(text, width.saturating_sub(INDENT + 1));
    let lines = broken.into_iter().enumerate().map(|(at, text)| {
        let before = if at == 0 { format!(" {label:<9}") } else { " ".repeat(INDENT) };
        let label_tone = if tone == Tone::Plain { Tone::Dim } else { tone };
        vec![(label_tone, before), (Tone::Plain, text)]
    });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::cli::paint::paint;

    fn drawn(status: Value, width: usize) -> String {
        let canary = json!({
            "apiVersion": "serin.dev/v1alpha1", "kind": "Canary",
            "metadata": { "name": "web", "namespace": "shop" },
            "spec": {
                "provider": "istio",
                "targetRef": { "apiVersion": "apps/v1", "kind": "Deployment", "name": "web" },
                "service": { "port": 80 },
                "analysis": { "stepWeights": [5, 25, 50] },
            },
            "status": status,
        });
        let canary: Canary = serde_json::from_value(canary).unwrap();
        let images = Images { primary: Some("web:v1".into()), target: Some("web:v2".into()) };
        let pods = ["web-6c5-x2: app is in CrashLoopBackOff, restarted 4 times, exit code 137".to_owned()];
        let now = "2026-01-01T00:10:00Z".parse().unwrap();
        let scene = Scene { canary: &canary, images: &images, pods: &pods, now, past: 3 };
        render(&scene, width)
            .iter()
            .map(|line| paint(line, 200, false).trim_end().to_owned() + "\n")
            .collect()
    }

    #[test]
    fn a_release_shows_its_split_steps_verdicts_gates_and_pods() {
        let status = json!({
            "phase": "Progressing", "canaryWeight": 25, "message": "Waiting for approval: 25 %.",
            "step": { "index": 1, "total": 3, "progress": "2/3" },
            "release": {
                "revision": "v1-2", "trigger": "PodTemplate",
                "startedAt": "2026-01-01T00:00:00Z", "lastProgressAt": "2026-01-01T00:05:00Z",
            },
            "nextDeadline": { "at": "2026-01-01T00:10:30Z", "reason": "the next check" },
            "metrics": [{ "name": "request-success-rate", "verdict": "Pass", "reason": "canary 0 % errors (0 of 900)" }],
            "gates": [{ "name": "25 %", "state": "Waiting", "since": "2026-01-01T00:06:00Z" }],
            "history": [{
                "revision": "v1-1", "outcome": "RolledBack", "reason": "aborted", "highestWeight": 5,
                "startedAt": "2025-12-31T22:00:00Z", "finishedAt": "2025-12-31T22:10:00Z",
            }],
        });
        let expected = " \
shop/web  AwaitingApproval                    Deployment web

 █████████████████████████████████████████████░░░░░░░░░░░░░░░
 primary web:v1 75 %                       canary web:v2 25 %

 steps    ✓ 5 %  ● 25 %  ○ 50 %  ○ promote

 now      Waiting for approval: 25 %.
 next     in 30 s, at 00:10:30 UTC: the next check
 metric ✓ request-success-rate: canary 0 % errors (0 of 900)
 gate ●   25 %: waits since 4 min
          serin approve web -n shop --gate '25 %'
 pod ✗    web-6c5-x2: app is in CrashLoopBackOff, restarted 4
          times, exit code 137
 before   v1-1 rolled back 2 h ago after 10 min, at most 5 %:
          aborted
";
        assert_eq!(drawn(status, 62), expected);
    }

    #[test]
    fn a_canary_that_no_controller_has_seen_is_said_to_be() {
        assert!(drawn(Value::Null, 80).contains("is `serin run` running"));
    }
}
