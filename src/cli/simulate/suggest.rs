//! `--suggest`: steps and an interval that would decide within a time.

use std::time::Duration;

use anyhow::Context as _;
use serin_core::simulation::release::release;
use serin_core::simulation::{Ending, Outcome, Scenario, Setting};

use super::Args;
use super::input::Input;
use super::rows::{Progress, Seeds, Summary, on_all_cores};
use crate::api::canary::Analysis;
use crate::api::{self, Weight};

/// Steps that are tried, from careful to bold.
const STEP_LISTS: [&[f64]; 7] = [
    &[1.0, 5.0, 20.0, 50.0],
    &[5.0, 10.0, 20.0, 50.0, 80.0],
    &[5.0, 10.0, 25.0, 50.0],
    &[5.0, 20.0, 50.0],
    &[10.0, 30.0, 60.0],
    &[10.0, 50.0],
    &[25.0, 50.0],
];

/// Releases by which candidates are compared.
const TRIALS: u64 = 60;

/// Bad revisions that a suggestion must find.
const REQUIRED_SHARE: f64 = 0.95;

/// The shortest interval that is suggested.
const SHORTEST: Duration = Duration::from_secs(10);

pub struct Suggestion {
    pub weights: Vec<f64>,
    pub interval: Duration,
    /// Of a healthy revision: seconds from the push until it is promoted.
    pub promotion_seconds: f64,
    /// Of the worst of the faults.
    pub found: Summary,
    /// Whether it finds as many as it must.
    pub suffices: bool,
}

/// The candidate that finds the faults at the fewest failed requests; the one that finds
/// most, if none finds enough.
pub fn suggest(
    input: &Input,
    setting: &Setting,
    healthy: &Scenario,
    args: &Args,
    within: Duration,
) -> anyhow::Result<Suggestion> {
    let durations = true;
    let progress = Progress::new(STEP_LISTS.len() as u64 * TRIALS * args.faults.len() as u64);
    let mut best: Option<Suggestion> = None;
    for weights in STEP_LISTS {
        let starts = 2 * args.pod_start.get();
        let interval = within.saturating_sub(starts) / weights.len() as u32;
        if interval < SHORTEST {
            continue;
        }
        let interval = Duration::from_secs(interval.as_secs());
        let analysis = with_steps(&input.canary.spec.analysis, weights, interval);
        let candidate = input.setting_of(&analysis, args.pods, args.pod_start.get(), setting.matched)?;
        let good = release(&candidate, &Scenario { latency: durations, ..healthy.clone() }, args.seed << 32);
        if good.outcome != Outcome::Promoted || good.finished_at > within.as_secs_f64() {
            continue;
        }
        let of_fault = |fault: &super::Fault| {
            let scenario = fault.of(healthy, durations);
            let seeds = Seeds { first: args.seed << 32, count: TRIALS };
            let endings: Vec<Ending> =
                on_all_cores(&seeds, &progress, |run| release(&candidate, &scenario, run));
            Summary::of(&endings)
        };
        let worst = args.faults.iter().filter(|fault| !fault.is_none()).map(of_fault);
        let Some(found) = worst.min_by_key(|one| one.rolled_back) else { break };
        let suffices = found.share(found.rolled_back).0 >= REQUIRED_SHARE;
        let next = Suggestion {
            weights: weights.to_vec(),
            interval,
            promotion_seconds: good.finished_at,
            found,
            suffices,
        };
        if best.as_ref().is_none_or(|best| next.is_better_than(best)) {
            best = Some(next);
        }
    }
    progress.clear();
    best.with_context(|| {
        format!(
            "no steps promote a healthy revision within {}; allow more time, or a shorter --pod-start",
            api::Duration::from(within)
        )
    })
}

impl Suggestion {
    fn is_better_than(&self, other: &Self) -> bool {
        let failed = |one: &Self| super::rows::quantile(&one.found.failed_requests, 0.5).unwrap_or(u64::MAX);
        match (self.suffices, other.suffices) {
            (true, true) => failed(self) < failed(other),
            (false, false) => self.found.rolled_back > other.found.rolled_back,
            (suffices, _) => suffices,
        }
    }

    /// The fields of `spec.analysis`.
    pub fn yaml(&self) -> String {
        let weights: Vec<String> = self.weights.iter().map(ToString::to_string).collect();
        format!(
            "analysis:\n  interval: {}\n  stepWeights: [{}]\n",
            api::Duration::from(self.interval),
            weights.join(", ")
        )
    }
}

fn with_steps(analysis: &Analysis, weights: &[f64], interval: Duration) -> Analysis {
    let weight = |percent: &f64| Weight::from_percent(*percent).ok();
    Analysis {
        interval: Some(interval.into()),
        step_weights: weights.iter().filter_map(weight).collect(),
        step_weight: None,
        iterations: None,
        steps: Vec::new(),
        max_weight: None,
        mirror: false,
        match_: Vec::new(),
        ..analysis.clone()
    }
}
