//! Flagger's rule on the same traffic: the canary's success rate and 99th percentile over the
//! last minute against fixed bounds, once in an interval; a failed check does not advance, and
//! so many of them roll back. Read from its scheduler (pkg/controller/scheduler.go of v1.43).

use super::release::{Ending, Outcome};
use super::source::Reader;
use super::traffic::{Scenario, Traffic};
use crate::analysis::measurement::{Arms, Counts, Measurement, SLOW_QUANTILE};

#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// Shares of the canary, rising.
    pub weights: Vec<f64>,
    /// Checks that each weight must pass.
    pub checks: u32,
    /// Seconds between checks.
    pub interval: usize,
    /// Failed checks that roll back.
    pub threshold: u32,
    /// In percent.
    pub min_success_rate: f64,
    /// Milliseconds; none if durations are not checked.
    pub max_duration: Option<f64>,
}

/// Seconds of the window of its built-in queries.
const WINDOW: usize = 60;

/// Seconds for which the pods run before the release.
const LEAD: usize = 300;

/// Checks after which a release counts as held.
const MAX_CHECKS: u32 = 10_000;

/// Failed and all requests of both arms in a window.
pub fn counts(reader: &Reader, traffic: &Traffic<'_>, window: (usize, usize)) -> Arms<Counts> {
    match reader.errors(traffic, (window.0 as f64, window.1 as f64)).summed() {
        Measurement::Counts(arms) => arms,
        _ => Arms::default(),
    }
}

/// One release by this rule.
pub fn release(rule: &Rule, scenario: &Scenario, run: u64) -> Ending {
    let (mut traffic, reader) = (Traffic::new(scenario, run), Reader::new(scenario.source, run));
    traffic.run_until(LEAD, Traffic::split(0.0));
    let (mut passed, mut failed) = (0, 0);
    for _ in 0..MAX_CHECKS {
        let step = (passed / rule.checks.max(1)) as usize;
        let Some(weight) = rule.weights.get(step) else {
            return ended(Outcome::Promoted, &traffic, scenario);
        };
        traffic.run_until(traffic.second + rule.interval, Traffic::split(*weight));
        match passes(rule, &reader, &traffic, scenario) {
            true => passed += 1,
            false => failed += 1,
        }
        if failed >= rule.threshold {
            return ended(Outcome::RolledBack, &traffic, scenario);
        }
    }
    ended(Outcome::Held, &traffic, scenario)
}

/// Without data its check fails.
fn passes(rule: &Rule, reader: &Reader, traffic: &Traffic<'_>, scenario: &Scenario) -> bool {
    let window = (traffic.second - WINDOW.min(traffic.second), traffic.second);
    let rate = counts(reader, traffic, window).canary.rate();
    let succeeds = rate.is_some_and(|rate| 100.0 * (1.0 - rate) >= rule.min_success_rate);
    let Some(limit) = rule.max_duration.filter(|_| scenario.latency) else { return succeeds };
    let durations = reader.durations(traffic, (window.0 as f64, window.1 as f64));
    let quantile = match durations {
        Measurement::Histogram(arms) => arms.canary.quantile(SLOW_QUANTILE),
        _ => None,
    };
    succeeds && quantile.is_some_and(|milliseconds| milliseconds <= limit)
}

pub fn ended(outcome: Outcome, traffic: &Traffic<'_>, scenario: &Scenario) -> Ending {
    let since = traffic.first_traffic.unwrap_or_default() as f64 + scenario.onset;
    let now = traffic.second as f64;
    let (bad, canary_requests) = traffic.canary_served();
    Ending {
        outcome,
        after: (now - since).max(0.0) as u64,
        decided_at: now - LEAD as f64,
        finished_at: now - LEAD as f64,
        bad,
        canary_requests,
        why: String::new(),
        timeline: Vec::new(),
    }
}
