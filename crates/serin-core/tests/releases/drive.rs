//! A release decided by the engine, woken only when it asks to be, and by the
//! results of its own measurements.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use serin::{
    analysis::measurement::Measurement,
    api::canary::Phase,
    engine::{Action, action::Check, decide, observed::CheckMeasurements},
};

use crate::world::{World, canary};
use crate::{
    source::{Reader, Source},
    traffic::{Scenario, Traffic},
};

/// How a release ended.
#[derive(Clone, Debug)]
pub struct Ending {
    pub outcome: Outcome,
    /// Seconds since the canary has traffic, or since it differs.
    pub after: u64,
    /// Failed requests that the canary served.
    pub bad: u64,
    pub why: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    RolledBack,
    Promoted,
    /// Neither within [`LIMIT`].
    Held,
}

/// Seconds after which nobody waits any more.
const LIMIT: usize = 2 * 3600;

/// A world in which the primary runs, ready for a new revision.
pub fn prepared(scenario: &Scenario) -> World {
    let durations = if scenario.latency { ", {name: request-duration}" } else { "" };
    let steps = scenario.analysis.replace("steps: [", "stepWeights: [");
    World::initialized(&canary(&format!(
        "warmup: {}, {steps}, metrics: [{{name: request-success-rate}}{durations}]",
        scenario.warmup
    )))
}

/// One release, from the push of its revision to its end.
pub fn release(mut world: World, scenario: &Scenario, run: u64, checks: u32) -> Ending {
    world.plan.steps.iter_mut().for_each(|step| step.checks = checks);
    let began = world.now;
    let mut traffic = Traffic::new(scenario, run);
    let reader = Reader::new(scenario.source, run);
    let seconds = |at: Timestamp| at.duration_since(began).as_millis() as f64 / 1e3;
    // Sources have seen the pods before the release.
    let lead = 300;
    traffic.run_until(lead, 0.0);
    world.now += SignedDuration::from_secs(lead as i64);
    world.push("v1-b");
    loop {
        let now = seconds(world.now);
        traffic.run_until(now as usize, world.split.canary.percent() / 100.0);
        let decision = decide(&world.plan, &world.status, &world.observe(), world.now);
        let mut measured = false;
        for action in &decision.actions {
            match action {
                Action::Measure(check) => {
                    let already = world.measured.as_ref().is_some_and(|last| last.check == *check);
                    measured |= !already;
                    world.measured = Some(measure(check, &traffic, &reader, scenario, (world.now, began)));
                }
                other => {
                    world.perform(other);
                    measured = true;
                }
            }
        }
        world.record(&decision);
        let outcome = match world.status.phase {
            Phase::Failed => Some(Outcome::RolledBack),
            Phase::Promoting | Phase::Finalising | Phase::Succeeded => Some(Outcome::Promoted),
            _ if now as usize > lead + LIMIT => Some(Outcome::Held),
            _ => None,
        };
        if let Some(outcome) = outcome {
            let from = traffic.first_traffic.unwrap_or(lead) as f64 + scenario.onset;
            return Ending {
                outcome,
                after: (now - from).max(0.0).round() as u64,
                bad: traffic.bad_served(),
                why: world.status.message.clone().unwrap_or_default(),
            };
        }
        if !measured {
            let next = world.next_wake.unwrap_or(world.now + SignedDuration::from_hours(3));
            world.now = next.max(world.now);
        }
    }
}

fn measure(
    check: &Check,
    traffic: &Traffic<'_>,
    reader: &Reader,
    scenario: &Scenario,
    (now, began): (Timestamp, Timestamp),
) -> CheckMeasurements {
    let seconds = |at: Timestamp| at.duration_since(began).as_millis() as f64 / 1e3;
    let timestamp = |at: f64| began + SignedDuration::from_millis((at * 1e3) as i64);
    let mut results = BTreeMap::new();
    let (mut available_until, mut known_until) = (BTreeMap::new(), BTreeMap::new());
    for window in &check.metrics {
        let (since, until) = reader.available(seconds(window.since), seconds(now).floor());
        let result = match window.metric.as_str() {
            _ if until <= since => Measurement::NoData,
            "request-duration" => reader.durations(traffic, (since, until)),
            _ => reader.errors(traffic, (since, until)),
        };
        results.insert(window.metric.clone(), result);
        match scenario.source {
            Source::Scrape => {}
            Source::CloudWatch => {
                available_until.insert(window.metric.clone(), timestamp(until));
            }
            Source::Prometheus { .. } => {
                let known = reader.known_until(until, scenario.pods);
                known_until.insert(window.metric.clone(), timestamp(known));
            }
        }
    }
    CheckMeasurements { check: check.clone(), at: now, available_until, known_until, results }
}
