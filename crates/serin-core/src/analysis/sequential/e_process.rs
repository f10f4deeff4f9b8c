//! The evidence about one kind of bad request.
//!
//! Each informative look multiplies the evidence for every odds ratio of the
//! [`Grid`] by how much better it explains the look than the margin does. Under
//! the hypothesis "at the margin or better" each such factor is one on average,
//! whatever the split, the baseline or their past. Products, mixtures and roots
//! of such factors are *e-processes*: the probability that one ever reaches 1/α
//! is at most α (Ville), so it may be evaluated after every scrape.
//!
//! Two mixtures are kept.
//!
//! - The *alarm* against the canary also mixes over when it turned bad: an hour
//!   of healthy traffic must not outweigh the errors that follow. Start times
//!   share a prior: most of it on the beginning, the rest on later looks, ever
//!   less.
//! - The *curve* is the plain likelihood of every odds ratio over the current
//!   step. It shows non-inferiority, and gives the estimate and its interval.

use serde::{Deserialize, Serialize};

use super::fixed::Fixed;
use super::grid::{GRID_POINTS, Grid, POINTS_PER_SIDE};
use super::overdispersion::Overdispersion;
use crate::analysis::contingency_table::{ContingencyTable, OddsRatio};
use crate::analysis::measurement::{Arms, Counts};
use crate::analysis::verdict::Estimate;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct EProcess {
    pub kind: BadKind,
    /// Counts since the release began.
    pub seen: Arms<Counts>,
    /// Counts since the evidence was last in the canary's favour.
    pub suspect: Arms<Counts>,
    /// Counts of the canary while the primary was idle.
    idle: Counts,
    /// Informative looks.
    checks: u32,
    /// Log-evidence that the canary has become worse, per odds ratio above the
    /// margin.
    alarm: [Fixed; POINTS_PER_SIDE],
    /// Log-likelihood ratio of this step against the margin, per odds ratio.
    below: [Fixed; POINTS_PER_SIDE],
    above: [Fixed; POINTS_PER_SIDE],
    overdispersion: Overdispersion,
}

/// Kinds of bad request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum BadKind {
    Failed,
    /// Slower than this many microseconds.
    Slower(u64),
}

/// Prior of a canary that is bad from the first look on; the n-th look after
/// it has (1 − FIRST_CHECK_PRIOR) / n(n+1).
const FIRST_CHECK_PRIOR: f64 = 0.75;
/// Requests from which on a look is scaled down.
const MAX_TABLE_REQUESTS: u64 = 2_000_000;
/// Logs whose exponentials are negligible, and near the maximum of a float.
const MIN_LOG: f64 = -700.0;
const MAX_LOG: f64 = 700.0;

impl EProcess {
    pub fn new(kind: BadKind, seen: Arms<Counts>) -> Self {
        EProcess {
            kind,
            seen,
            suspect: Arms::default(),
            idle: Counts::default(),
            checks: 0,
            alarm: [Fixed::of(MIN_LOG); POINTS_PER_SIDE],
            below: [Fixed::default(); POINTS_PER_SIDE],
            above: [Fixed::default(); POINTS_PER_SIDE],
            overdispersion: Overdispersion::default(),
        }
    }

    pub fn next_release(&self) -> Self {
        EProcess { overdispersion: self.overdispersion.clone(), ..EProcess::new(self.kind, Arms::default()) }
    }

    /// Adds one look.
    pub fn update(&mut self, grid: &Grid, look: Arms<Counts>) {
        for total in [&mut self.seen, &mut self.suspect] {
            total.canary.add(look.canary);
            total.primary.add(look.primary);
        }
        if look.primary.total() == 0 {
            self.idle.add(look.canary);
        } else {
            self.idle = Counts::default();
        }
        if let Some(gains) = log_likelihood_ratios(grid, look, self.overdispersion.variance_inflation()) {
            let (below, above) = (&gains[..POINTS_PER_SIDE], &gains[POINTS_PER_SIDE + 1..]);
            let start = start_prior(self.checks);
            for (alarm, gain) in self.alarm.iter_mut().zip(above) {
                *alarm = log((exp(*alarm) + start) * self.overdispersion.damp(*gain).exp());
            }
            let curve = self.below.iter_mut().zip(below).chain(self.above.iter_mut().zip(above));
            curve.for_each(|(point, gain)| *point = point.plus(*gain));
            self.checks = self.checks.saturating_add(1);
        }
        if self.e_value(grid) < 1.0 {
            self.suspect = Arms::default();
        }
        // Last, so that a look is never discounted by itself.
        self.overdispersion.update(look.primary);
    }

    /// A new step: non-inferiority must be shown on its own traffic.
    pub fn begin_step(&mut self) {
        self.below = [Fixed::default(); POINTS_PER_SIDE];
        self.above = [Fixed::default(); POINTS_PER_SIDE];
    }

    /// The evidence that the canary is, or has become, worse than the margin allows.
    pub fn e_value(&self, grid: &Grid) -> f64 {
        let started = mean(self.alarm.map(exp));
        let alarm = started + remaining_prior(self.checks);
        match self.record_e_value(grid) {
            Some(evidence) => (alarm + evidence) / 2.0,
            None => alarm,
        }
    }

    /// With all traffic on the canary, it is compared with the primary's record
    /// of this release. The record is one sample however often it is used, so
    /// this is one comparison of all counts since with all counts before, and no
    /// product of many.
    fn record_e_value(&self, grid: &Grid) -> Option<f64> {
        let table = Arms { canary: self.idle, primary: self.seen.primary };
        let gains = log_likelihood_ratios(grid, table, self.overdispersion.variance_inflation())?;
        Some(mean(gains[POINTS_PER_SIDE + 1..].iter().map(|&gain| gain.min(MAX_LOG).exp())))
    }

    /// The evidence of this step that the canary is within the margin.
    pub fn non_inferiority_e_value(&self) -> f64 {
        mean(self.below.map(exp))
    }

    /// See [`Overdispersion`].
    pub fn variance_inflation(&self) -> f64 {
        self.overdispersion.variance_inflation()
    }

    pub fn primary_is_idle(&self) -> bool {
        self.idle.total() > 0
    }

    /// The odds ratio of this step, and the interval that holds it with
    /// probability 1 − `risk` over all looks together.
    ///
    /// From either end odds ratios are rejected as long as those beyond them
    /// explain the step 2/`risk` times better: the true one is rejected only if
    /// its own e-process ever gets that far.
    pub fn estimate(&self, grid: &Grid, risk: f64) -> Option<Estimate> {
        let logs: [f64; GRID_POINTS] = std::array::from_fn(|i| match i {
            POINTS_PER_SIDE => 0.0,
            0..POINTS_PER_SIDE => self.below[i].get(),
            _ => self.above[i - POINTS_PER_SIDE - 1].get(),
        });
        let best = logs.iter().copied().fold(f64::MIN, f64::max);
        if logs.iter().all(|&log| log == best) {
            return None;
        }
        let likelihood = logs.map(|log| (log - best).exp());
        let total: f64 = likelihood.iter().sum();
        let points = likelihood.into_iter().zip(grid.odds());
        let mean = points.clone().map(|(likelihood, odds)| likelihood * odds.log()).sum::<f64>() / total;
        Some(Estimate {
            value: mean.exp(),
            low: confidence_bound(points.clone(), total, risk),
            high: confidence_bound(points.rev(), total, risk),
        })
    }
}

fn confidence_bound<'a>(
    points: impl Iterator<Item = (f64, &'a OddsRatio)>,
    total: f64,
    risk: f64,
) -> Option<f64> {
    let (mut beyond, mut left) = (total, GRID_POINTS as f64);
    points
        .take_while(|(likelihood, _)| {
            beyond -= likelihood;
            left -= 1.0;
            left > 0.0 && beyond / left >= likelihood * 2.0 / risk
        })
        .last()
        .map(|(_, odds)| odds.ratio())
}

/// For every odds ratio, how much better it explains the look than the margin
/// does, as a log; none if the look is not informative. Dividing by the variance
/// inflation takes a root, under which an e-process stays one.
fn log_likelihood_ratios(
    grid: &Grid,
    look: Arms<Counts>,
    variance_inflation: f64,
) -> Option<[f64; GRID_POINTS]> {
    let Arms { canary, primary } = downscale(look);
    let table = ContingencyTable {
        canary: canary.total(),
        primary: primary.total(),
        events: canary.bad() + primary.bad(),
    };
    table.is_informative().then(|| {
        let logs = table.log_likelihood(canary.bad(), grid.odds());
        logs.map(|log| (log - logs[POINTS_PER_SIDE]) / variance_inflation)
    })
}

/// Scales down a table of too many requests, so that absurd counts from a
/// provider cannot make a look take hours.
fn downscale(look: Arms<Counts>) -> Arms<Counts> {
    let by = look.canary.total().saturating_add(look.primary.total()) / MAX_TABLE_REQUESTS + 1;
    look.map(|counts| Counts::of_bad(counts.bad() / by, counts.total() / by))
}

/// The prior of turning bad at the n-th look, counted from zero.
fn start_prior(look: u32) -> f64 {
    match f64::from(look) {
        0.0 => FIRST_CHECK_PRIOR,
        n => (1.0 - FIRST_CHECK_PRIOR) / (n * (n + 1.0)),
    }
}

/// The prior left for all later looks after n of them.
fn remaining_prior(looks: u32) -> f64 {
    match f64::from(looks) {
        0.0 => 1.0,
        n => (1.0 - FIRST_CHECK_PRIOR) / n,
    }
}

fn exp(log: Fixed) -> f64 {
    log.get().min(MAX_LOG).exp()
}

fn log(evidence: f64) -> Fixed {
    Fixed::of(evidence.ln().clamp(MIN_LOG, MAX_LOG))
}

fn mean(of_side: impl IntoIterator<Item = f64>) -> f64 {
    of_side.into_iter().sum::<f64>() / POINTS_PER_SIDE as f64
}
