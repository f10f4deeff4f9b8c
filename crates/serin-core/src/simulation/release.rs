//! A release decided by the engine, which is called when it asks to be, when pods become
//! ready, and with the results of its own measurements.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use super::cluster::Cluster;
use super::metric::MetricModel;
use super::source::{Reader, Source};
use super::traffic::{Scenario, Traffic};
use crate::analysis::measurement::Measurement;
use crate::api::canary::Phase;
use crate::engine::{
    Action,
    action::{Check, MetricWindow},
    decide,
    observed::CheckMeasurements,
};

/// How a release ended.
#[derive(Clone, Debug)]
pub struct Ending {
    pub outcome: Outcome,
    /// Seconds until the decision, since the canary has traffic, or since it differs.
    pub after: u64,
    /// Seconds from the push until the decision, and until nothing more happened.
    pub decided_at: f64,
    pub finished_at: f64,
    /// Failed requests that the canary served.
    pub bad: u64,
    /// All requests that the canary served.
    pub canary_requests: u64,
    pub why: String,
    pub timeline: Vec<TimelineEntry>,
}

/// A new phase, or a new share of the canary.
#[derive(Clone, Debug, PartialEq)]
pub struct TimelineEntry {
    /// Seconds since the push.
    pub at: f64,
    pub phase: Phase,
    /// Of all requests, 0 to 1.
    pub canary_share: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    RolledBack,
    Promoted,
    /// Neither within [`Setting::patience`].
    Held,
}

/// What a release is simulated with, besides its traffic.
#[derive(Clone, Debug)]
pub struct Setting {
    /// A cluster that is ready for a new revision.
    pub cluster: Cluster,
    /// By the metric's name.
    pub metrics: BTreeMap<String, MetricModel>,
    /// The share of requests that a match sends to the canary.
    pub matched: f64,
    /// How long a release may stay undecided.
    pub patience: SignedDuration,
}

/// Seconds for which sources have seen the pods before the release.
const LEAD: usize = 300;

/// More decisions than a release of this length can need.
const MAX_DECISIONS: usize = 1_000_000;

/// One release, from the push of its revision to its end.
pub fn release(setting: &Setting, scenario: &Scenario, run: u64) -> Ending {
    Simulation::new(setting, scenario, run).run()
}

struct Simulation<'a> {
    setting: &'a Setting,
    scenario: &'a Scenario,
    cluster: Cluster,
    traffic: Traffic<'a>,
    reader: Reader,
    /// Second 0 of the traffic.
    began: Timestamp,
    timeline: Vec<TimelineEntry>,
    decided: Option<(Outcome, f64)>,
}

impl<'a> Simulation<'a> {
    fn new(setting: &'a Setting, scenario: &'a Scenario, run: u64) -> Self {
        let mut cluster = setting.cluster.clone();
        let began = cluster.now;
        let mut traffic = Traffic::new(scenario, run);
        traffic.run_until(LEAD, Traffic::split(0.0));
        cluster.now += SignedDuration::from_secs(LEAD as i64);
        cluster.push();
        let reader = Reader::new(scenario.source, run);
        Self { setting, scenario, cluster, traffic, reader, began, timeline: Vec::new(), decided: None }
    }

    fn run(mut self) -> Ending {
        for _ in 0..MAX_DECISIONS {
            let now = self.seconds(self.cluster.now);
            self.traffic.run_until(now as usize, self.cluster.shares(self.setting.matched));
            let changed = self.step();
            self.note(now);
            let idle = matches!(self.cluster.status.phase, Phase::Failed | Phase::Succeeded);
            let late = now - LEAD as f64 > self.setting.patience.as_secs_f64();
            if !changed && (idle || late) {
                break;
            }
            if !changed {
                match self.cluster.next_change() {
                    Some(at) => self.cluster.now = at,
                    None => break,
                }
            }
        }
        self.into_ending()
    }

    /// Decides and performs once; reports whether a further decision may follow now.
    fn step(&mut self) -> bool {
        let phase = self.cluster.status.phase;
        let observed = self.cluster.observe();
        let decision = decide(&self.cluster.plan, &self.cluster.status, &observed, self.cluster.now);
        let mut changed = false;
        for action in &decision.actions {
            if let Action::Measure(check) = action {
                let already = self.cluster.measured.as_ref().is_some_and(|last| last.check == *check);
                changed |= !already;
                self.cluster.measured = Some(self.measure(check));
            } else {
                changed |= self.cluster.perform(action);
            }
        }
        self.cluster.record(&decision);
        changed || self.cluster.status.phase != phase
    }

    fn note(&mut self, now: f64) {
        let at = now - LEAD as f64;
        let phase = self.cluster.status.phase;
        let canary_share = self.cluster.shares(self.setting.matched).canary;
        let entry = TimelineEntry { at, phase, canary_share };
        let is_new = self
            .timeline
            .last()
            .is_none_or(|last| (last.phase, last.canary_share) != (entry.phase, entry.canary_share));
        if is_new {
            self.timeline.push(entry);
        }
        let outcome = match phase {
            Phase::Failed => Outcome::RolledBack,
            Phase::Promoting | Phase::Finalising | Phase::Succeeded => Outcome::Promoted,
            _ => return,
        };
        // A promotion may still be rolled back.
        if self.decided.is_none_or(|(before, _)| before != outcome) {
            self.decided = Some((outcome, now));
        }
    }

    fn into_ending(self) -> Ending {
        let finished = self.seconds(self.cluster.now);
        let (outcome, decided) = self.decided.unwrap_or((Outcome::Held, finished));
        let from = self.traffic.first_traffic.unwrap_or(LEAD) as f64 + self.scenario.onset;
        let (bad, canary_requests) = self.traffic.canary_served();
        Ending {
            outcome,
            after: (decided - from).max(0.0).round() as u64,
            decided_at: decided - LEAD as f64,
            finished_at: finished - LEAD as f64,
            bad,
            canary_requests,
            why: self.cluster.status.message.clone().unwrap_or_default(),
            timeline: self.timeline,
        }
    }

    fn seconds(&self, at: Timestamp) -> f64 {
        at.duration_since(self.began).as_millis() as f64 / 1e3
    }

    fn timestamp(&self, seconds: f64) -> Timestamp {
        self.began + SignedDuration::from_millis((seconds * 1e3) as i64)
    }

    fn measure(&self, check: &Check) -> CheckMeasurements {
        let now = self.cluster.now;
        let (mut available_until, mut known_until) = (BTreeMap::new(), BTreeMap::new());
        let mut results = BTreeMap::new();
        for window in &check.metrics {
            let name = window.metric.clone();
            let (result, until) = self.measure_one(window, now);
            results.insert(name.clone(), result);
            match self.scenario.source {
                Source::Scrape => {}
                Source::CloudWatch => {
                    available_until.insert(name, self.timestamp(until));
                }
                Source::Prometheus { .. } => {
                    let known = self.reader.known_until(until, self.scenario.pods);
                    known_until.insert(name, self.timestamp(known));
                }
            }
        }
        CheckMeasurements { check: check.clone(), at: now, available_until, known_until, results }
    }

    /// The measurement, and the second that it reaches to.
    fn measure_one(&self, window: &MetricWindow, now: Timestamp) -> (Measurement, f64) {
        let model = self.setting.metrics.get(&window.metric).copied().unwrap_or(MetricModel::Errors);
        let now = self.seconds(now).floor();
        let since = match model.window() {
            Some(length) => (now - length).max(0.0),
            None => self.seconds(window.since),
        };
        let (since, until) = self.reader.available(since, now);
        let result = match until <= since {
            true => Measurement::NoData,
            false => model.measure(&self.reader, &self.traffic, (since, until)),
        };
        (result, until)
    }
}
