//! Users, the environment, and faults of the API server.

use std::time::Duration;

use kube_local::faults::FaultPlan;
use serde_json::json;
use serin::engine::command::Verb;

use super::dice::Dice;
use super::scenario::{ACTIVE_PERIOD, CanarySetup, Event, Gate, Metrics};
use super::specs::{HOOKS, edit};

pub fn user_events(dice: &Dice, on: usize, subject: &CanarySetup, events: &mut Vec<(Duration, Event)>) {
    let end = ACTIVE_PERIOD.as_secs_f64();
    let mut images = vec![format!("{}:v1", subject.name)];
    let mut at = dice.time(20.0, 90.0);
    for number in 2..2 + 1 + dice.below(5) {
        let back = images.len() > 1 && dice.happens(0.12);
        let image = if back { dice.pick(&images) } else { image(dice, subject, number) };
        images.push(image.clone());
        events.push((at, Event::Push { on, image }));
        if subject.reads_config && dice.happens(0.3) {
            events.push((at + dice.time(0.0, 120.0), Event::EditConfig { on, value: number.to_string() }));
        }
        // Some follow at once, most after the previous release.
        at += if dice.happens(0.2) { dice.time(0.1, 20.0) } else { dice.time(40.0, 240.0) };
        if at > ACTIVE_PERIOD {
            break;
        }
    }
    for _ in 0..dice.below(4) {
        let at = dice.time(30.0, end);
        events.push((at, edit(dice, on, subject)));
    }
    if dice.happens(0.15) {
        let at = dice.time(30.0, end - 200.0);
        events.push((at, Event::Edit { on, spec: json!({"suspend": true}) }));
        events.push((at + dice.time(1.0, 200.0), Event::Edit { on, spec: json!({"suspend": false}) }));
    }
    if dice.happens(0.35) {
        for _ in 0..1 + dice.below(3) {
            let verb = dice.pick(&[
                Verb::Abort,
                Verb::Promote,
                Verb::Pause,
                Verb::Resume,
                Verb::Resume,
                Verb::Retry,
                Verb::Rollback,
            ]);
            events.push((dice.time(60.0, end), Event::Command { on, verb }));
        }
    }
    for _ in 0..dice.below(6) {
        events.push((dice.time(60.0, end), Event::Answer { on, yes: dice.happens(0.8) }));
    }
    if dice.happens(0.12) {
        let at = dice.time(60.0, end - 120.0);
        events.push((at, Event::Delete { on }));
        if dice.happens(0.7) {
            events.push((at + dice.time(1.0, 100.0), Event::Create { on }));
        }
    }
}

pub fn image(dice: &Dice, subject: &CanarySetup, number: u64) -> String {
    let suffix = match dice.below(20) {
        0..3 => "-errors-25",
        3..5 => "-slow-2s",
        5 => "-never-ready",
        6 => "-crash",
        7 => "-delay-40s",
        8..12 => "-delay-3s",
        _ => "",
    };
    format!("{}:v{number}{suffix}", subject.name)
}

pub fn environment_events(
    dice: &Dice,
    on: usize,
    subject: &CanarySetup,
    events: &mut Vec<(Duration, Event)>,
) {
    let end = ACTIVE_PERIOD.as_secs_f64();
    for _ in 0..dice.below(4) {
        let rate = dice.pick(&[0.0, 1.0, 40.0, 100.0, 100.0]);
        events.push((dice.time(30.0, end), Event::Traffic { on, rate }));
    }
    if dice.happens(0.4) {
        let at = dice.time(30.0, end - 300.0);
        let mode = dice.pick(&[Metrics::Gone, Metrics::Hanging, Metrics::Garbage]);
        events.push((at, Event::Metrics { on, mode }));
        events.push((at + dice.time(5.0, 300.0), Event::Metrics { on, mode: Metrics::Available }));
    }
    for (hook, _) in HOOKS {
        if dice.happens(0.4) {
            let slow = Gate::Slow(dice.time(0.5, 20.0));
            let mode = dice.pick(&[Gate::Yes, Gate::No, slow, Gate::Unreachable]);
            events.push((dice.time(0.0, end), Event::Gate { on, hook, mode }));
        }
    }
    if dice.happens(0.3) {
        let replicas = 1 + dice.below(4) as u32;
        let primary = subject.has_autoscaler || dice.happens(0.7);
        events.push((dice.time(30.0, end), Event::Scale { on, primary, replicas }));
    }
    for _ in 0..dice.below(3) {
        let (primary, all) = (dice.happens(0.4), dice.happens(0.5));
        events.push((dice.time(30.0, end), Event::KillPods { on, primary, all }));
    }
}

/// Faults of the API server and restarts of the controller.
pub fn fault_events(dice: &Dice, replicas: bool, events: &mut Vec<(Duration, Event)>) {
    let end = ACTIVE_PERIOD.as_secs_f64();
    if dice.happens(0.7) {
        let at = dice.time(0.0, end / 2.0);
        events.push((at, Event::Faults(random_faults(dice))));
        events.push((at + dice.time(60.0, end / 2.0), Event::Faults(FaultPlan::default())));
    }
    if dice.happens(0.6) {
        for _ in 0..1 + dice.below(4) {
            let after = if dice.happens(0.5) { Duration::ZERO } else { dice.time(0.1, 60.0) };
            let (gently, both) = (dice.happens(0.4), dice.happens(0.5));
            events.push((dice.time(5.0, end - 60.0), Event::Restart { gently, after, both }));
        }
    }
    if replicas {
        for _ in 0..1 + dice.below(3) {
            let (length, which) = (dice.time(1.0, 60.0), dice.below(2) as usize);
            events.push((dice.time(5.0, end - 60.0), Event::Freeze { which, length }));
        }
    }
}

fn random_faults(dice: &Dice) -> FaultPlan {
    let p = |most: f64| if dice.happens(0.6) { most * dice.below(100) as f64 / 100.0 } else { 0.0 };
    FaultPlan {
        conflict: p(0.2),
        too_many_requests: p(0.1),
        error_before: p(0.15),
        error_after: p(0.15),
        slow_request: p(0.3),
        slow_response: p(0.3),
        latency: Duration::from_millis(dice.pick(&[50, 300, 1000])),
        watch_dropped: p(0.1),
        watch_delayed: p(0.4),
        watch_expired: p(0.05),
    }
}
