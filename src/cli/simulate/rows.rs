//! The rows of a simulation: many releases of one kind, on all cores.

use std::io::{IsTerminal as _, Write as _};
use std::num::NonZero;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use serin_core::simulation::release::release;
use serin_core::simulation::{Ending, MetricModel, Outcome, Scenario, Setting, flagger};

use super::Args;
use super::fault::Fault;
use super::input::Input;
use crate::api::canary::metric::BUILT_IN;
use crate::engine::plan::metrics::Judge;
use crate::engine::plan::steps::Strategy;

/// Flagger's usual bounds, for metrics without a range.
const USUAL_SUCCESS_RATE: f64 = 99.0;
const USUAL_MILLISECONDS: f64 = 500.0;

pub struct Table {
    /// A release of a healthy revision, with its timeline.
    pub example: Ending,
    pub rows: Vec<Row>,
}

/// Releases with one fault.
pub struct Row {
    pub fault: Fault,
    pub serin: Summary,
    /// None if Flagger could not make these steps.
    pub flagger: Option<Summary>,
}

/// The ends of some releases.
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    pub releases: u64,
    pub promoted: u64,
    pub rolled_back: u64,
    /// Undecided within a day.
    pub held: u64,
    /// Seconds from the first request to the canary, or from the onset of the fault, until it
    /// was rolled back; rising.
    pub seconds: Vec<u64>,
    /// Failed requests that canaries served which were rolled back; rising.
    pub failed_requests: Vec<u64>,
    /// All requests that canaries served; rising.
    pub canary_requests: Vec<u64>,
}

impl Summary {
    pub fn of(endings: &[Ending]) -> Self {
        let count = |outcome| endings.iter().filter(|ending| ending.outcome == outcome).count() as u64;
        let rolled_back = || endings.iter().filter(|ending| ending.outcome == Outcome::RolledBack);
        let sorted = |mut values: Vec<u64>| {
            values.sort_unstable();
            values
        };
        Self {
            releases: endings.len() as u64,
            promoted: count(Outcome::Promoted),
            rolled_back: count(Outcome::RolledBack),
            held: count(Outcome::Held),
            seconds: sorted(rolled_back().map(|ending| ending.after).collect()),
            failed_requests: sorted(rolled_back().map(|ending| ending.bad).collect()),
            canary_requests: sorted(endings.iter().map(|ending| ending.canary_requests).collect()),
        }
    }

    /// The share of the releases, and its standard error; where none or all are meant, that
    /// of one more or less.
    pub fn share(&self, part: u64) -> (f64, f64) {
        let all = self.releases.max(1) as f64;
        let share = part as f64 / all;
        let near = share.clamp(1.0 / (all + 2.0), 1.0 - 1.0 / (all + 2.0));
        (share, (near * (1.0 - near) / all).sqrt())
    }
}

/// The value that this share of sorted values does not exceed.
pub fn quantile(sorted: &[u64], share: f64) -> Option<u64> {
    let last = sorted.len().checked_sub(1)?;
    sorted.get(((sorted.len() as f64 * share) as usize).min(last)).copied()
}

/// Plays a healthy revision and each fault.
pub fn play(input: &Input, setting: &Setting, healthy: &Scenario, args: &Args) -> anyhow::Result<Table> {
    let durations = setting
        .metrics
        .values()
        .any(|model| matches!(model, MetricModel::Durations | MetricModel::SlowQuantile(_)));
    let rule = rule(input, setting);
    let mut faults = vec![Fault::none()];
    faults.extend(args.faults.iter().filter(|fault| !fault.is_none()).cloned());
    let kinds = if rule.is_some() { 2 } else { 1 };
    let progress = Progress::new(args.releases * faults.len() as u64 * kinds);
    let mut rows = Vec::new();
    for fault in faults {
        let scenario = fault.of(healthy, durations);
        let seeds = Seeds { first: args.seed << 32, count: args.releases };
        let serin = on_all_cores(&seeds, &progress, |run| release(setting, &scenario, run));
        let flagger = rule.as_ref().map(|rule| {
            let endings = on_all_cores(&seeds, &progress, |run| flagger::release(rule, &scenario, run));
            Summary::of(&endings)
        });
        rows.push(Row { fault, serin: Summary::of(&serin), flagger });
    }
    progress.clear();
    let example = release(setting, &Fault::none().of(healthy, durations), args.seed << 32);
    Ok(Table { example, rows })
}

/// Flagger's rule with the weights and bounds of the Canary.
fn rule(input: &Input, setting: &Setting) -> Option<flagger::Rule> {
    let plan = &setting.cluster.plan;
    if plan.strategy != Strategy::Canary || plan.skip_analysis {
        return None;
    }
    let steps = || plan.steps.iter().filter(|step| step.split.canary.percent() > 0.0);
    let range = |name: &str| {
        let metric = input.canary.spec.analysis.metrics.iter().find(|metric| metric.name == name)?;
        let range = metric.threshold_range;
        Some((range.and_then(|range| range.min), range.and_then(|range| range.max), metric.threshold))
    };
    let min = range(BUILT_IN[0]).and_then(|(min, _, old)| min.or(old)).unwrap_or(USUAL_SUCCESS_RATE);
    let max = range(BUILT_IN[1]).map(|(_, max, old)| max.or(old).unwrap_or(USUAL_MILLISECONDS));
    let rule = flagger::Rule {
        weights: steps().map(|step| step.split.canary.percent() / 100.0).collect(),
        checks: steps().map(|step| step.checks).max().unwrap_or(1),
        interval: (plan.interval.as_secs() as usize).max(1),
        threshold: plan.threshold,
        min_success_rate: min,
        max_duration: max,
    };
    (!rule.weights.is_empty()).then_some(rule)
}

pub struct Seeds {
    pub first: u64,
    pub count: u64,
}

/// One ending for each seed, in their order.
pub fn on_all_cores(seeds: &Seeds, progress: &Progress, run: impl Fn(u64) -> Ending + Sync) -> Vec<Ending> {
    let threads = thread::available_parallelism().map_or(1, NonZero::get) as u64;
    let part = seeds.count.div_ceil(threads);
    thread::scope(|scope| {
        let start = |at: u64| {
            let run = &run;
            let (from, to) = ((at * part).min(seeds.count), ((at + 1) * part).min(seeds.count));
            scope.spawn(move || {
                let one = |index: u64| {
                    let ending = run(seeds.first + index);
                    progress.advance();
                    ending
                };
                (from..to).map(one).collect::<Vec<Ending>>()
            })
        };
        let parts: Vec<_> = (0..threads).map(start).collect();
        let joined = parts.into_iter().map(|part| match part.join() {
            Ok(endings) => endings,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        joined.flatten().collect()
    })
}

/// A bar on a terminal's standard error.
pub struct Progress {
    done: AtomicU64,
    all: u64,
    shown: bool,
}

const BAR_WIDTH: u64 = 40;

impl Progress {
    pub fn new(all: u64) -> Self {
        Self { done: AtomicU64::new(0), all: all.max(1), shown: std::io::stderr().is_terminal() }
    }

    fn advance(&self) {
        let done = self.done.fetch_add(1, Ordering::Relaxed) + 1;
        let filled = done * BAR_WIDTH / self.all;
        if self.shown && (filled > (done - 1) * BAR_WIDTH / self.all || done % 20 == 1) {
            let (full, rest) = ("█".repeat(filled as usize), "░".repeat((BAR_WIDTH - filled) as usize));
            let _ = write!(std::io::stderr().lock(), "\r{full}{rest} {done} of {} releases", self.all);
        }
    }

    pub fn clear(&self) {
        if self.shown {
            let _ = write!(std::io::stderr().lock(), "\r\x1b[K");
        }
    }
}

/// Metrics whose value no traffic decides, with what is assumed of them.
pub fn assumed(setting: &Setting) -> Vec<String> {
    let name = |(name, model): (&String, &MetricModel)| match model.is_of_traffic() {
        true => None,
        false => Some(name.clone()),
    };
    setting.metrics.iter().filter_map(name).collect()
}

/// Whether any metric is compared with the primary.
pub fn compares(setting: &Setting) -> bool {
    setting.cluster.plan.metrics.iter().any(|metric| matches!(metric.policy.judge, Judge::Sequential(_)))
}
