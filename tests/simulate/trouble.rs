//! Trouble that lasts, one letter each. A letter has dice of its own, so that
//! switching it off changes no other.

use std::time::Duration;

use jiff::SignedDuration;
use serde_json::{Value, json};
use serin::api::canary::Phase;
use serin::engine::command::Verb;

use super::dice::Dice;
use super::letters::image;
use super::refusals::{refusal, status_refusal};
use super::scenario::{ACTIVE_PERIOD, Dependency, Event, Gate, Scenario};
use super::specs::subject;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Letter {
    /// Writes or watches of one kind are refused for a while.
    Refusal,
    /// The status may not be written for a while.
    StatusRefused,
    /// An autoscaler or a disruption budget is deleted and comes back.
    CompanionLost,
    /// The AnalysisTemplate of a metric is deleted and comes back.
    TemplateLost,
    /// The target is deleted and created again.
    TargetRecreated,
    /// The same, with other selector labels.
    TargetRelabelled,
    /// The primary is deleted.
    PrimaryLost,
    /// A push in the middle of any phase.
    PushInPhase,
    /// An abort in the middle of a release.
    AbortInPhase,
    /// Somebody scales the idle target up, and then only its config changes.
    ConfigAtRest,
    /// Somebody reverts the target's replicas every few seconds.
    ReplicasReverted,
    /// Somebody reverts the route every few seconds.
    RouteReverted,
    /// A revision whose pods die as soon as they have had traffic for a while.
    DiesUnderTraffic,
    /// Many pods that start slowly, one after the other.
    SlowRollout,
    /// Dozens of hooks of one Canary never respond.
    HooksHang,
    /// The wall clock is stepped, back and forth.
    ClockStepped,
}

use Letter::*;

/// Each letter with the share of seeds that have it.
const LETTERS: [(Letter, f64); 16] = [
    (Refusal, 0.3),
    (CompanionLost, 0.1),
    (TemplateLost, 0.1),
    (TargetRecreated, 0.1),
    (TargetRelabelled, 0.06),
    (PrimaryLost, 0.08),
    (PushInPhase, 0.3),
    (ConfigAtRest, 0.12),
    (ReplicasReverted, 0.08),
    (RouteReverted, 0.08),
    (DiesUnderTraffic, 0.06),
    (SlowRollout, 0.03),
    (HooksHang, 0.06),
    (AbortInPhase, 0.25),
    (StatusRefused, 0.05),
    (ClockStepped, 0.08),
];

/// Phases without a release.
const AT_REST: &[Phase] = &[Phase::Initialized, Phase::Succeeded, Phase::Failed];

pub fn add_trouble(seed: u64, scenario: &mut Scenario) {
    for (number, (letter, share)) in LETTERS.into_iter().enumerate() {
        let dice = Dice::of_letter(seed, number as u64);
        if dice.happens(share) {
            add_letter(&dice, letter, scenario);
        }
    }
}

fn add_letter(dice: &Dice, letter: Letter, scenario: &mut Scenario) {
    let end = ACTIVE_PERIOD.as_secs_f64();
    let mut on = dice.below(scenario.canaries.len() as u64) as usize;
    if letter == HooksHang {
        // Another Canary must not notice it.
        if scenario.canaries.len() == 1 {
            scenario.canaries.push(subject(dice, "shop"));
        }
        on = scenario.canaries.len() - 1;
    }
    let Scenario { canaries, events, .. } = scenario;
    let setup = &mut canaries[on];
    let at = dice.time(30.0, end - 200.0);
    match letter {
        Refusal | StatusRefused => {
            setup.has_budget |= dice.happens(0.3);
            let refusal = match letter {
                StatusRefused => status_refusal(dice, on, setup),
                _ => refusal(dice, on, setup),
            };
            let number = refusal.number;
            // A release needs most of what is refused.
            let pushed = Event::Push { on, image: image(dice, setup, 40) };
            events.push((at, Event::Refuse(refusal)));
            events.push((at + dice.time(0.1, 20.0), pushed));
            events.push((at + dice.time(60.0, 500.0), Event::Allow(number)));
        }
        AbortInPhase => {
            for _ in 0..1 + dice.below(2) {
                let phases: &[Phase] = dice.pick(&[
                    &[Phase::Progressing] as &[Phase],
                    &[Phase::Progressing],
                    &[Phase::WaitingPromotion],
                    &[Phase::Promoting],
                ]);
                let (after, verb) = (dice.time(0.001, 60.0), Verb::Abort);
                let then = Box::new(Event::Command { on, verb });
                events.push((dice.time(0.0, end / 2.0), Event::When { on, phases, after, then }));
            }
        }
        CompanionLost => {
            let what = match setup.has_autoscaler && dice.happens(0.5) {
                true => Dependency::Autoscaler,
                false => Dependency::Budget,
            };
            setup.has_budget |= what == Dependency::Budget;
            lose_for_a_while(dice, on, what, events);
        }
        TemplateLost => {
            setup.has_template = true;
            let name = format!("{}-errors", setup.name);
            let metric =
                json!({"name": "template", "templateRef": {"name": name}, "thresholdRange": {"min": 0}});
            match &mut setup.spec["analysis"]["metrics"] {
                Value::Array(metrics) => metrics.push(metric),
                none => *none = json!([metric]),
            }
            lose_for_a_while(dice, on, Dependency::Template, events);
        }
        TargetRecreated => {
            let after = dice.time(0.1, 60.0);
            events.push((at, Event::RecreateTarget { on, after, label: None }));
        }
        TargetRelabelled => {
            // A label is added, gets another value, or is renamed.
            for label in [("tier", "two"), dice.pick(&[("tier", "three"), ("layer", "two")])] {
                let after = dice.time(0.1, 60.0);
                let at = dice.time(30.0, end - 200.0);
                events.push((at, Event::RecreateTarget { on, after, label: Some(label) }));
            }
        }
        ClockStepped => {
            for _ in 0..1 + dice.below(3) {
                let seconds = dice.pick(&[3, 40, 300, 3600, 20_000]) + dice.below(60) as i64;
                let seconds = if dice.happens(0.5) { seconds } else { -seconds };
                let at = dice.time(30.0, end - 60.0);
                events.push((at, Event::StepClock(SignedDuration::from_secs(seconds))));
            }
        }
        PrimaryLost => events.push((at, Event::Lose { on, what: Dependency::Primary })),
        PushInPhase => {
            for number in 0..1 + dice.below(3) {
                let phases: &[Phase] = dice.pick(&[
                    &[Phase::Initializing] as &[Phase],
                    &[Phase::Waiting],
                    &[Phase::Progressing],
                    &[Phase::WaitingPromotion],
                    &[Phase::Promoting],
                    &[Phase::Promoting],
                    &[Phase::Finalising],
                    &[Phase::Failed],
                ]);
                let then = Box::new(Event::Push { on, image: image(dice, setup, 20 + number) });
                let after = dice.pick(&[Duration::ZERO, dice.time(0.001, 2.0), dice.time(2.0, 30.0)]);
                events.push((dice.time(0.0, end / 2.0), Event::When { on, phases, after, then }));
            }
        }
        ConfigAtRest => {
            setup.reads_config = true;
            let value = format!("rest{}", dice.pick(&["", "", "-errors-25"]));
            let replicas = 1 + dice.below(3) as u32;
            let scale = Box::new(Event::Scale { on, primary: false, replicas });
            let edit = Box::new(Event::EditConfig { on, value });
            let (first, second) = (dice.time(20.0, 40.0), dice.time(45.0, 90.0));
            if !setup.has_autoscaler {
                events.push((at, Event::When { on, phases: AT_REST, after: first, then: scale }));
            }
            events.push((at, Event::When { on, phases: AT_REST, after: second, then: edit }));
        }
        ReplicasReverted => {
            let (replicas, every) = (1 + dice.below(4) as u32, dice.time(5.0, 60.0));
            events.push((at, Event::RevertReplicas { on, replicas, every, times: 20 }));
        }
        RouteReverted => {
            let every = dice.time(3.0, 40.0);
            events.push((at, Event::RevertRoute { on, every, times: 20 + dice.below(20) as u32 }));
        }
        DiesUnderTraffic => {
            let image = format!("{}:v30-dies", setup.name);
            events.push((at, Event::Push { on, image }));
        }
        SlowRollout => {
            setup.replicas = 14 + dice.below(4) as u32;
            setup.rolls_one_by_one = true;
            let image = format!("{}:v31-delay-45s", setup.name);
            events.push((dice.time(30.0, 120.0), Event::Push { on, image }));
        }
        HooksHang => {
            let kinds = ["pre-rollout", "rollout", "event", "confirm-rollout", "rollback"];
            let hook = |number: u64| {
                let timeout = dice.pick(&["10s", "60s", "10m"]);
                json!({
                    "name": format!("hang{number}"), "type": dice.pick(&kinds), "timeout": timeout,
                    "url": format!("http://gates/{}/hang", setup.name),
                })
            };
            let hooks: Vec<Value> = (0..24 + dice.below(24)).map(hook).collect();
            setup.spec["analysis"]["webhooks"] = json!(hooks);
            let begin = dice.time(0.0, 60.0);
            events.push((begin, Event::Gate { on, hook: "hang", mode: Gate::Unreachable }));
        }
    }
}

fn lose_for_a_while(dice: &Dice, on: usize, what: Dependency, events: &mut Vec<(Duration, Event)>) {
    let at = dice.time(30.0, ACTIVE_PERIOD.as_secs_f64() - 200.0);
    events.push((at, Event::Lose { on, what }));
    events.push((at + dice.time(5.0, 400.0), Event::Restore { on, what }));
}
