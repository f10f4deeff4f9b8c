//! The evidence about one kind of bad request.
//!
//! Each look that can tell the arms apart multiplies the evidence for every
//! odds ratio of the [`Grid`] by how much better it explains the look than the
//! margin does. Under the hypothesis "at the margin or better" each such
//! factor is one on average, whatever the split, the baseline or their past.
//! Products, mixtures and roots of such factors are *e-processes*: that one
//! ever reaches 1/α has probability at most α (Ville), so it may be looked at
//! after every scrape.
//!
//! Two mixtures are kept.
//!
//! - The *alarm* against the canary also mixes over when it turned bad: a
//!   canary that was well for an hour must not have an hour of credit to spend
//!   before anyone notices. Start times share a prior: most of it on the
//!   beginning, the rest on later looks, ever less.
//! - The *curve* is the plain likelihood of every odds ratio over the current
//!   step. It certifies a canary, and gives the estimate and its interval.

use serde::{Deserialize, Serialize};

use super::bursts::Bursts;
use super::fixed::Fixed;
use super::grid::{ALL, Grid, SIDE};
use crate::analysis::measurement::{Arms, Counts};
use crate::analysis::table::{Odds, Table};
use crate::analysis::verdict::Estimate;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Stream {
    pub of: Bad,
    /// Everything since the release began.
    pub seen: Arms<Counts>,
    /// What was seen since the evidence last was in the canary's favour.
    pub suspect: Arms<Counts>,
    /// What the canary did while the primary was idle.
    idle: Counts,
    /// Looks that told the arms apart.
    looks: u32,
    /// Log-evidence that the canary has become so much worse.
    alarm: [Fixed; SIDE],
    /// Log-likelihood of this step beside that of the margin.
    below: [Fixed; SIDE],
    above: [Fixed; SIDE],
    bursts: Bursts,
}

/// What makes a request bad.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Bad {
    Failed,
    /// Slower than so many microseconds.
    Slower(u64),
}

/// Prior of a canary that is bad from the first look on; the n-th look after
/// it has (1 − FROM_THE_START) / n(n+1).
const FROM_THE_START: f64 = 0.75;
/// Requests from which on a look is scaled down.
const ENOUGH: u64 = 2_000_000;
/// Logs whose exponentials are as good as nothing, and the most a float takes.
const NOTHING: f64 = -700.0;
const MOST: f64 = 700.0;

impl Stream {
    pub fn new(of: Bad, seen: Arms<Counts>) -> Self {
        Stream {
            of,
            seen,
            suspect: Arms::default(),
            idle: Counts::default(),
            looks: 0,
            alarm: [Fixed::of(NOTHING); SIDE],
            below: [Fixed::default(); SIDE],
            above: [Fixed::default(); SIDE],
            bursts: Bursts::default(),
        }
    }

    pub fn next_release(&self) -> Self {
        Stream { bursts: self.bursts.clone(), ..Stream::new(self.of, Arms::default()) }
    }

    /// Takes in one look.
    pub fn absorb(&mut self, grid: &Grid, look: Arms<Counts>) {
        for total in [&mut self.seen, &mut self.suspect] {
            total.canary.add(look.canary);
            total.primary.add(look.primary);
        }
        if look.primary.total() == 0 {
            self.idle.add(look.canary);
        } else {
            self.idle = Counts::default();
        }
        if let Some(gains) = gains(grid, look, self.bursts.factor()) {
            let (below, above) = (&gains[..SIDE], &gains[SIDE + 1..]);
            let start = start_prior(self.looks);
            for (alarm, gain) in self.alarm.iter_mut().zip(above) {
                *alarm = log((exp(*alarm) + start) * self.bursts.restrain(*gain).exp());
            }
            let curve = self.below.iter_mut().zip(below).chain(self.above.iter_mut().zip(above));
            curve.for_each(|(point, gain)| *point = point.plus(*gain));
            self.looks = self.looks.saturating_add(1);
        }
        if self.against(grid) < 1.0 {
            self.suspect = Arms::default();
        }
        // Last, so that a look is never discounted by itself.
        self.bursts.watch(look.primary);
    }

    /// A new step: what certifies the canary must come from its own traffic.
    pub fn begin_step(&mut self) {
        self.below = [Fixed::default(); SIDE];
        self.above = [Fixed::default(); SIDE];
    }

    /// The evidence that the canary is, or has become, worse than the margin allows.
    pub fn against(&self, grid: &Grid) -> f64 {
        let begun = mean(self.alarm.map(exp));
        let alarm = begun + not_yet_begun(self.looks);
        match self.against_the_record(grid) {
            Some(evidence) => (alarm + evidence) / 2.0,
            None => alarm,
        }
    }

    /// With all traffic on the canary there is no primary to compare it with
    /// but the primary's record of this release. The record is one sample
    /// however often it is consulted, so this is one comparison, of everything
    /// since with everything before, and no product of many.
    fn against_the_record(&self, grid: &Grid) -> Option<f64> {
        let table = Arms { canary: self.idle, primary: self.seen.primary };
        let gains = gains(grid, table, self.bursts.factor())?;
        Some(mean(gains[SIDE + 1..].iter().map(|&gain| gain.min(MOST).exp())))
    }

    /// The evidence of this step that the canary is better than the margin.
    pub fn in_favour(&self) -> f64 {
        mean(self.below.map(exp))
    }

    /// How much bad requests come in bursts; see [`Bursts`].
    pub fn burst_factor(&self) -> f64 {
        self.bursts.factor()
    }

    pub fn primary_is_idle(&self) -> bool {
        self.idle.total() > 0
    }

    /// The odds ratio of this step, and the interval that holds it with
    /// probability 1 − `risk` over all looks together.
    ///
    /// From either end odds ratios are struck off as long as those beyond them
    /// explain the step 2/`risk` times better: the true one is struck off only
    /// if its own e-process ever gets that far.
    pub fn estimate(&self, grid: &Grid, risk: f64) -> Option<Estimate> {
        let logs: [f64; ALL] = std::array::from_fn(|i| match i {
            SIDE => 0.0,
            0..SIDE => self.below[i].get(),
            _ => self.above[i - SIDE - 1].get(),
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
            low: last_struck_off(points.clone(), total, risk),
            high: last_struck_off(points.rev(), total, risk),
        })
    }
}

fn last_struck_off<'a>(points: impl Iterator<Item = (f64, &'a Odds)>, total: f64, risk: f64) -> Option<f64> {
    let (mut beyond, mut left) = (total, ALL as f64);
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
/// does, as a log; nothing if the look cannot tell. Dividing by the burst
/// factor takes a root, under which an e-process stays one.
fn gains(grid: &Grid, look: Arms<Counts>, burst_factor: f64) -> Option<[f64; ALL]> {
    let Arms { canary, primary } = thinned(look);
    let table =
        Table { canary: canary.total(), primary: primary.total(), events: canary.bad() + primary.bad() };
    table.informs().then(|| {
        let logs = table.log_likelihood(canary.bad(), grid.odds());
        logs.map(|log| (log - logs[SIDE]) / burst_factor)
    })
}

/// A table of too many requests is scaled down. It still has more than enough
/// to say, and a provider that answers nonsense cannot make a look take hours.
fn thinned(look: Arms<Counts>) -> Arms<Counts> {
    let by = look.canary.total().saturating_add(look.primary.total()) / ENOUGH + 1;
    look.map(|counts| Counts::of_bad(counts.bad() / by, counts.total() / by))
}

/// The prior of turning bad at the n-th look, counted from zero.
fn start_prior(look: u32) -> f64 {
    match f64::from(look) {
        0.0 => FROM_THE_START,
        n => (1.0 - FROM_THE_START) / (n * (n + 1.0)),
    }
}

/// The prior left for all later looks after n of them.
fn not_yet_begun(looks: u32) -> f64 {
    match f64::from(looks) {
        0.0 => 1.0,
        n => (1.0 - FROM_THE_START) / n,
    }
}

fn exp(log: Fixed) -> f64 {
    log.get().min(MOST).exp()
}

fn log(evidence: f64) -> Fixed {
    Fixed::of(evidence.ln().clamp(NOTHING, MOST))
}

fn mean(of_side: impl IntoIterator<Item = f64>) -> f64 {
    of_side.into_iter().sum::<f64>() / SIDE as f64
}
