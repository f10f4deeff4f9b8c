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
use thiserror::Error;

use super::compact::{Reader, Writer};
use super::fixed::Fixed;
use super::grid::{GRID_POINTS, Grid, POINTS_PER_SIDE};
use super::overdispersion::{Overdispersion, RecentBursts};
use crate::analysis::contingency_table::{ContingencyTable, OddsRatio};
use crate::analysis::measurement::{Arms, Counts};
use crate::analysis::verdict::Estimate;

/// Stored as one short text ([`compact`](super::compact)): a histogram has two dozen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub(crate) struct EProcess {
    pub kind: BadKind,
    /// Counts since the release began.
    pub seen: Arms<Counts>,
    /// Counts since the evidence was last in the canary's favour.
    pub suspect: Arms<Counts>,
    /// Counts that are not compared yet: one arm had no requests since.
    pending: Arms<Counts>,
    /// Informative looks.
    checks: u32,
    /// Log-evidence that the canary has become worse, per odds ratio above the
    /// margin.
    alarm: [Fixed; POINTS_PER_SIDE],
    /// Log-likelihood ratio of this step against the margin, per odds ratio.
    below: [Fixed; POINTS_PER_SIDE],
    above: [Fixed; POINTS_PER_SIDE],
    overdispersion: Overdispersion,
    bursts: RecentBursts,
    /// The largest gain of the last informative look.
    last_gain: Fixed,
}

/// Kinds of bad request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BadKind {
    Failed,
    /// Slower than this many microseconds.
    Slower(u64),
    /// A value above this many millionths.
    Above(u64),
    /// A value of at most this many millionths.
    AtMost(u64),
}

impl BadKind {
    fn write(self, writer: &mut Writer) {
        let (tag, bound) = match self {
            BadKind::Failed => (0, 0),
            BadKind::Slower(bound) => (1, bound),
            BadKind::Above(bound) => (2, bound),
            BadKind::AtMost(bound) => (3, bound),
        };
        writer.count(tag);
        writer.count(bound);
    }

    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        match (reader.count()?, reader.count()?) {
            (0, _) => Some(BadKind::Failed),
            (1, bound) => Some(BadKind::Slower(bound)),
            (2, bound) => Some(BadKind::Above(bound)),
            (3, bound) => Some(BadKind::AtMost(bound)),
            _ => None,
        }
    }
}

/// Prior of a canary that is bad from the first look on; the n-th look after
/// it has (1 − FIRST_CHECK_PRIOR) / n(n+1).
const FIRST_CHECK_PRIOR: f64 = 0.75;
/// How much less likely, as a log, the next odds ratio of the grid is: canaries are more
/// often somewhat bad than very bad, and the latter are found anyway.
const ODDS_PRIOR_FALL: f64 = 0.2;
/// The log-evidence that a look adds at most beyond that of the informative look before
/// it. One clump of retries is one event, however many requests it has; a canary that is
/// bad is so at the next look as well. Enough for one look to raise suspicion. A limit
/// that earlier looks set keeps the error bound.
const MAX_SUDDEN_GAIN: f64 = 3.0;
/// Ways to fill a table from which on it is scaled down: they are its cost.
const MAX_TABLE_FILLINGS: u64 = 200_000;
/// Of all tables of a look, however many bounds a histogram has.
const MAX_LOOK_FILLINGS: u64 = 1_000_000;
/// Requests beyond which a count is nonsense.
const MAX_REQUESTS: u64 = 1_000_000_000_000_000;
/// Logs whose exponentials are negligible, and near the maximum of a float.
pub(super) const MIN_LOG: f64 = -700.0;
const MAX_LOG: f64 = 700.0;

impl EProcess {
    pub fn new(kind: BadKind, seen: Arms<Counts>) -> Self {
        EProcess {
            kind,
            seen,
            suspect: Arms::default(),
            pending: Arms::default(),
            checks: 0,
            alarm: [Fixed::of(MIN_LOG); POINTS_PER_SIDE],
            below: [Fixed::default(); POINTS_PER_SIDE],
            above: [Fixed::default(); POINTS_PER_SIDE],
            overdispersion: Overdispersion::default(),
            bursts: RecentBursts::default(),
            last_gain: Fixed::default(),
        }
    }

    pub fn next_release(&self) -> Self {
        EProcess { overdispersion: self.overdispersion.clone(), ..EProcess::new(self.kind, Arms::default()) }
    }

    /// Adds one look. A window in which an arm has no requests is not compared: requests
    /// of an earlier window are no control for it. `fillings` limits the table. Returns whether
    /// the look had more evidence than one may add, see [`MAX_SUDDEN_GAIN`].
    pub fn update(&mut self, grid: &Grid, look: Arms<Counts>, fillings: u64) -> bool {
        for total in [&mut self.seen, &mut self.suspect, &mut self.pending] {
            total.canary.add(look.canary);
            total.primary.add(look.primary);
        }
        if self.pending.canary.total() == 0 || self.pending.primary.total() == 0 {
            return false;
        }
        let mut is_sudden = false;
        let look = std::mem::take(&mut self.pending);
        let inflation = self.overdispersion.variance_inflation();
        if let Some(gains) = log_likelihood_ratios(grid, look, inflation, fillings) {
            let (below, above) = (&gains[..POINTS_PER_SIDE], &gains[POINTS_PER_SIDE + 1..]);
            let start = start_prior(self.checks);
            let most = MAX_SUDDEN_GAIN + self.last_gain.get();
            for (alarm, gain) in self.alarm.iter_mut().zip(above) {
                *alarm = log(log_add(alarm.get(), start.ln()) + gain.min(most));
            }
            self.last_gain = Fixed::of(above.iter().copied().fold(0.0, f64::max));
            is_sudden = self.last_gain.get() > most;
            let curve = self.below.iter_mut().zip(below).chain(self.above.iter_mut().zip(above));
            curve.for_each(|(point, gain)| *point = point.plus(*gain));
            self.checks = self.checks.saturating_add(1);
        }
        if self.log_e_value() < 0.0 {
            self.suspect = Arms::default();
        }
        // Last, so that a look is never discounted by itself.
        self.overdispersion.update(look.primary);
        self.bursts.update(look);
        is_sudden
    }

    /// Drops an alarm that later requests did not confirm: the canary is as suspect
    /// as at the beginning of a release. Evidence only ever shrinks by this, so the
    /// error bound still holds.
    pub fn drop_alarm(&mut self) {
        if log_mixture(&self.alarm) > FIRST_CHECK_PRIOR.ln() {
            self.alarm = [log(FIRST_CHECK_PRIOR.ln()); POINTS_PER_SIDE];
        }
        self.suspect = Arms::default();
    }

    /// A new step: non-inferiority must be shown on its own traffic.
    pub fn begin_step(&mut self) {
        self.below = [Fixed::default(); POINTS_PER_SIDE];
        self.above = [Fixed::default(); POINTS_PER_SIDE];
    }

    /// The log of the evidence that the canary is, or has become, worse than the margin
    /// allows. Beyond one it is a root of that by the bursts of the last minutes.
    pub fn log_e_value(&self) -> f64 {
        let evidence = self.raw_log_e_value();
        if evidence > 0.0 { evidence / self.recent_bursts() } else { evidence }
    }

    /// The same without regard to the bursts of the last minutes.
    pub fn raw_log_e_value(&self) -> f64 {
        log_add(log_mixture(&self.alarm), remaining_prior(self.checks).ln())
    }

    /// The evidence of this step that the canary is within the margin.
    pub fn non_inferiority_e_value(&self) -> f64 {
        mean(self.below.map(exp))
    }

    /// See [`Overdispersion`].
    pub fn variance_inflation(&self) -> f64 {
        self.overdispersion.variance_inflation()
    }

    /// Of the primary, see [`Overdispersion`].
    pub fn overdispersion_pairs(&self) -> f64 {
        self.overdispersion.pairs()
    }

    /// See [`RecentBursts`].
    pub fn recent_bursts(&self) -> f64 {
        self.bursts.variance_inflation()
    }

    /// The canary has requests that cannot be compared with any of the primary.
    pub fn primary_is_idle(&self) -> bool {
        self.pending.canary.total() > 0 && self.pending.primary.total() == 0
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

impl From<EProcess> for String {
    fn from(stream: EProcess) -> String {
        let EProcess {
            kind,
            seen,
            suspect,
            pending,
            checks,
            alarm,
            below,
            above,
            overdispersion,
            bursts,
            last_gain,
        } = stream;
        let mut writer = Writer::default();
        kind.write(&mut writer);
        for Arms { canary, primary } in [seen, suspect, pending] {
            [canary, primary].iter().for_each(|counts| writer.counts(*counts));
        }
        writer.count(u64::from(checks));
        [alarm, below, above].iter().for_each(|row| writer.row(row));
        overdispersion.write(&mut writer);
        bursts.write(&mut writer);
        writer.fixed(last_gain);
        writer.text()
    }
}

#[derive(Debug, Error)]
#[error("no evidence of this judge")]
pub(crate) struct InvalidStream;

impl TryFrom<String> for EProcess {
    type Error = InvalidStream;

    fn try_from(text: String) -> Result<Self, InvalidStream> {
        let mut reader = Reader::new(&text);
        let stream = EProcess::read(&mut reader).ok_or(InvalidStream)?;
        reader.end().map(|()| stream).ok_or(InvalidStream)
    }
}

impl EProcess {
    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let arms =
            |reader: &mut Reader<'_>| Some(Arms { canary: reader.counts()?, primary: reader.counts()? });
        Some(EProcess {
            kind: BadKind::read(reader)?,
            seen: arms(reader)?,
            suspect: arms(reader)?,
            pending: arms(reader)?,
            checks: u32::try_from(reader.count()?).ok()?,
            alarm: reader.row()?,
            below: reader.row()?,
            above: reader.row()?,
            overdispersion: Overdispersion::read(reader)?,
            bursts: RecentBursts::read(reader)?,
            last_gain: reader.fixed()?,
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
    fillings: u64,
) -> Option<[f64; GRID_POINTS]> {
    // The good requests are the events where they are fewer: the same likelihood, at the
    // inverse odds ratios, for less work.
    let both = |of: fn(&Counts) -> u64| of(&look.canary) as f64 + of(&look.primary) as f64;
    let mostly_bad = both(Counts::bad) > both(Counts::total) / 2.0;
    let good = |counts: &Counts| Counts::of_good(counts.bad(), counts.total());
    let Arms { canary, primary } = downscale(if mostly_bad { look.map(good) } else { look }, fillings);
    let table = ContingencyTable {
        canary: canary.total(),
        primary: primary.total(),
        events: canary.bad() + primary.bad(),
    };
    table.is_informative().then(|| {
        let odds = if mostly_bad { grid.inverse() } else { grid.odds() };
        let logs = table.log_likelihood(canary.bad(), odds);
        logs.map(|log| (log - logs[POINTS_PER_SIDE]) / variance_inflation)
    })
}

/// Ways to fill each of so many tables of a look.
pub(super) fn fillings_of_each(tables: usize) -> u64 {
    MAX_TABLE_FILLINGS.min(MAX_LOOK_FILLINGS / tables.max(1) as u64)
}

/// Scales down a table that can be filled in more ways, so that absurd counts from a
/// provider cannot make a look take hours. Rare events are never scaled down, however
/// many requests there are.
pub(super) fn downscale(look: Arms<Counts>, fillings: u64) -> Arms<Counts> {
    let look = look.map(|counts| {
        let by = counts.total() / MAX_REQUESTS + 1;
        Counts::of_bad(counts.bad() / by, counts.total() / by)
    });
    let both = look.canary.bad() + look.primary.bad();
    let by = both.min(look.canary.total()) / fillings.max(1) + 1;
    look.map(|counts| Counts::of_bad(counts.bad() / by, counts.total() / by))
}

/// The prior of turning bad at the n-th look, counted from zero.
pub(super) fn start_prior(look: u32) -> f64 {
    match f64::from(look) {
        0.0 => FIRST_CHECK_PRIOR,
        n => (1.0 - FIRST_CHECK_PRIOR) / (n * (n + 1.0)),
    }
}

/// The prior left for all later looks after n of them.
pub(super) fn remaining_prior(looks: u32) -> f64 {
    match f64::from(looks) {
        0.0 => 1.0,
        n => (1.0 - FIRST_CHECK_PRIOR) / n,
    }
}

pub(super) fn exp(log: Fixed) -> f64 {
    log.get().min(MAX_LOG).exp()
}

/// To store; the smallest ones are as good as none.
pub(super) fn log(evidence: f64) -> Fixed {
    Fixed::of(evidence.max(MIN_LOG))
}

/// The log of a sum, from logs.
pub(super) fn log_add(a: f64, b: f64) -> f64 {
    let most = a.max(b);
    most + ((a - most).exp() + (b - most).exp()).ln()
}

/// The log of the mean, from logs.
pub(super) fn log_mean(logs: &[Fixed]) -> f64 {
    let sum = logs.iter().map(|log| log.get()).reduce(log_add);
    sum.map_or(MIN_LOG, |sum| sum - (logs.len() as f64).ln())
}

/// The log of the mean over odds ratios by their prior, from logs.
fn log_mixture(logs: &[Fixed; POINTS_PER_SIDE]) -> f64 {
    let prior = |rank: usize| -ODDS_PRIOR_FALL * rank as f64;
    let all = (0..logs.len()).map(|rank| prior(rank).exp()).sum::<f64>();
    let sum = logs.iter().enumerate().map(|(rank, log)| log.get() + prior(rank)).reduce(log_add);
    sum.map_or(MIN_LOG, |sum| sum - all.ln())
}

fn mean(of_side: impl IntoIterator<Item = f64>) -> f64 {
    of_side.into_iter().sum::<f64>() / POINTS_PER_SIDE as f64
}
