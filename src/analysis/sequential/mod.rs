//! The default judge: is the canary worse than the primary, over the same time?
//!
//! It may look after every scrape and still rolls back at most `false_rollback`
//! of the releases whose canary is within the margin, all looks together. It
//! assumes nothing about the split, the error rate both arms share, or how
//! either moves: ramps and shared incidents are harmless.
//!
//! ```text
//! a look ─▶ Table ─▶ log-likelihood on the Grid ─▶ Stream (÷ Bursts) ─▶ Evidence ─▶ Verdict
//! ```
//!
//! Errors are one stream. Latency is one stream for each histogram bound
//! ("slower than 250 ms"), and their evidence is averaged.

mod bursts;
mod evidence;
mod fixed;
mod grid;
mod stream;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use self::grid::Grid;
use self::stream::{Bad, Stream};
use super::figures::{duration, number, percent, thousands};
use super::measurement::{Arms, Counts, Histogram, Measurement};
use super::verdict::{Doubt, Outcome, Verdict};

pub use self::evidence::Evidence;

/// What the judge promises and asks for. Its defaults are the product's.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Settings {
    /// The share of healthy releases that may be rolled back.
    pub false_rollback: f64,
    /// The share of canaries beyond the margin that may be certified.
    pub false_promotion: f64,
    /// How many times worse, as an odds ratio, a canary may be. Not one: pods
    /// differ a little in health, and that alone would raise alarms.
    pub margin: f64,
    /// Requests to the canary below which a look is not enough.
    pub min_requests: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Settings { false_rollback: 0.01, false_promotion: 0.01, margin: 1.5, min_requests: 20 }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Error)]
pub enum SettingsError {
    #[error("falseRollback: {0} is no risk; write one above 0 and below 0.5, such as 0.01")]
    FalseRollback(f64),
    #[error("falsePromotion: {0} is no risk; write one above 0 and below 0.5, such as 0.01")]
    FalsePromotion(f64),
    #[error(
        "margin: {0} is no margin; write how many times worse is still well, from 1 to 1000, such as 1.5"
    )]
    Margin(f64),
}

/// The judge, ready to look.
#[derive(Debug, Clone, PartialEq)]
pub struct Sequential {
    settings: Settings,
    grid: Grid,
}

impl TryFrom<Settings> for Sequential {
    type Error = SettingsError;

    fn try_from(mut settings: Settings) -> Result<Self, SettingsError> {
        let is_risk = |risk: f64| risk > 0.0 && risk < 0.5;
        if !is_risk(settings.false_rollback) {
            return Err(SettingsError::FalseRollback(settings.false_rollback));
        }
        if !is_risk(settings.false_promotion) {
            return Err(SettingsError::FalsePromotion(settings.false_promotion));
        }
        if !(1.0..=1000.0).contains(&settings.margin) {
            return Err(SettingsError::Margin(settings.margin));
        }
        settings.margin = (settings.margin * 1e3).round() / 1e3;
        Ok(Sequential { settings, grid: Grid::around(settings.margin) })
    }
}

/// The risk that the interval in a verdict misses the odds ratio.
const INTERVAL_RISK: f64 = 0.05;
/// Latency is certified for the bounds that at least this share of the
/// primary's requests is beyond; of slower ones there are too few to ever tell.
const CERTIFIED_TAIL: f64 = 0.01;
/// Whoever is this far on the way to being convicted, in logs, is not waved
/// through: more requests tell.
const SUSPICION: f64 = 0.5;
/// From here on bursts are worth a word.
const NOTABLE_BURSTS: f64 = 1.5;

impl Sequential {
    /// Takes in one look and gives the verdict on everything so far.
    pub fn look(&self, evidence: &mut Evidence, seen: &Measurement) -> Verdict {
        match self.weigh(evidence, seen) {
            Ok(outcome) => self.put_into_words(evidence, outcome),
            Err(verdict) => *verdict,
        }
    }

    /// As [`Sequential::look`], without the words.
    pub fn outcome(&self, evidence: &mut Evidence, seen: &Measurement) -> Outcome {
        self.weigh(evidence, seen).unwrap_or_else(|verdict| verdict.outcome)
    }

    fn weigh(&self, evidence: &mut Evidence, seen: &Measurement) -> Result<Outcome, Box<Verdict>> {
        if evidence.margin() != self.settings.margin {
            *evidence = Evidence::about(self.settings.margin);
        }
        match seen {
            Measurement::NoData => return Err(no_requests()),
            Measurement::Counts(Arms { canary, .. }) if canary.total() == 0 => return Err(no_requests()),
            Measurement::Histogram(Arms { canary, .. }) if canary.total() == 0 => return Err(no_requests()),
            Measurement::Counts(arms) => evidence.absorb(&self.grid, &[(Bad::Failed, *arms)]),
            Measurement::Histogram(arms) => {
                let kinds = slower_than_each_bound(arms);
                if kinds.is_empty() {
                    let sentence = "not judged: the histograms of canary and primary have no bound in common";
                    return Err(
                        Verdict::inconclusive(Doubt::Unfit, arms.map(Histogram::total), sentence).into()
                    );
                }
                evidence.absorb(&self.grid, &kinds);
            }
            Measurement::Scalar(_) | Measurement::Samples(_) | Measurement::Unavailable { .. } => {
                return Err(Verdict::unfit("counts or a histogram of canary and primary", seen).into());
            }
        }
        Ok(self.conclude(evidence))
    }

    fn conclude(&self, evidence: &mut Evidence) -> Outcome {
        if evidence.p_value() <= self.settings.false_rollback {
            Outcome::Fail { critical: false }
        } else if evidence.fresh() < self.settings.min_requests
            || evidence.seen().primary < self.settings.min_requests
        {
            Outcome::Inconclusive { doubt: Doubt::TooLittle }
        } else if evidence.against(&self.grid) >= self.settings.false_rollback.powf(-SUSPICION) {
            Outcome::Inconclusive { doubt: Doubt::Suspicion }
        } else {
            evidence.spend();
            Outcome::Pass { certified: self.certifies(evidence.streams()) }
        }
    }

    fn certifies(&self, streams: &[Stream]) -> bool {
        let mut telling = streams
            .iter()
            .filter(|s| {
                s.of == Bad::Failed || s.seen.primary.rate().is_some_and(|rate| rate >= CERTIFIED_TAIL)
            })
            .peekable();
        telling.peek().is_some() && telling.all(|s| s.in_favour() * self.settings.false_promotion >= 1.0)
    }

    fn put_into_words(&self, evidence: &Evidence, outcome: Outcome) -> Verdict {
        let Settings { false_rollback, false_promotion, margin, min_requests } = self.settings;
        let worst =
            evidence.streams().iter().max_by(|a, b| a.against(&self.grid).total_cmp(&b.against(&self.grid)));
        let times = number(margin);
        let finding = match outcome {
            Outcome::Fail { .. } => {
                format!("at least {times} times worse, chance of a false alarm < {}", percent(false_rollback))
            }
            Outcome::Pass { certified: true } => {
                format!("less than {times} times worse, chance of error < {}", percent(false_promotion))
            }
            Outcome::Pass { certified: false } => format!("nothing shows it to be {times} times worse"),
            Outcome::Inconclusive { doubt: Doubt::Suspicion } => {
                format!("it looks {times} times worse, and more requests must tell")
            }
            Outcome::Inconclusive { .. } if evidence.seen().primary < min_requests => format!(
                "too few requests to the primary, {} of the {} needed",
                thousands(evidence.seen().primary),
                thousands(min_requests)
            ),
            Outcome::Inconclusive { .. } => format!(
                "too few new requests to the canary, {} of the {} needed",
                thousands(evidence.fresh()),
                thousands(min_requests)
            ),
        };
        let sentence = match worst {
            Some(stream) => {
                let counts =
                    if matches!(outcome, Outcome::Fail { .. }) { stream.suspect } else { stream.seen };
                format!("{}: {finding}{}", comparison(stream.of, counts), caveats(stream))
            }
            None => format!("no request is beyond any latency bound: {finding}"),
        };
        let estimate = worst.and_then(|stream| stream.estimate(&self.grid, INTERVAL_RISK));
        Verdict { outcome, estimate, samples: evidence.seen(), sentence }
    }
}

/// A look without a request to the canary is no look. Nothing of it is taken
/// in, so the next one may cover its time as well.
fn no_requests() -> Box<Verdict> {
    Verdict::inconclusive(Doubt::NoData, Arms::default(), "no data: no requests to the canary were counted")
        .into()
}

fn slower_than_each_bound(arms: &Arms<Histogram>) -> Vec<(Bad, Arms<Counts>)> {
    arms.canary
        .bounds()
        .filter_map(|bound| {
            let canary = arms.canary.slower_than(bound)?;
            let primary = arms.primary.slower_than(bound)?;
            Some((Bad::Slower(bound), Arms { canary, primary }))
        })
        .collect()
}

/// `canary 3.1 % errors (31 of 1,000) vs primary 0.5 % (90 of 19,000)`
fn comparison(of: Bad, counts: Arms<Counts>) -> String {
    let what = match of {
        Bad::Failed => "errors".into(),
        Bad::Slower(bound) => format!("slower than {}", duration(bound)),
    };
    let share = |counts: Counts| counts.rate().map_or("no".into(), percent);
    let of_all = |counts: Counts| format!("({} of {})", thousands(counts.bad()), thousands(counts.total()));
    let Arms { canary, primary } = counts;
    format!(
        "canary {} {what} {} vs primary {} {}",
        share(canary),
        of_all(canary),
        share(primary),
        of_all(primary)
    )
}

fn caveats(stream: &Stream) -> String {
    let mut caveats = String::new();
    if stream.primary_is_idle() {
        caveats.push_str(match stream.seen.primary.total() {
            0 => "; the primary is idle, so there is nothing to compare with",
            _ => "; the primary is idle and stands by its earlier requests",
        });
    }
    let bursts = stream.burst_factor();
    if bursts > NOTABLE_BURSTS {
        caveats.push_str(&format!("; they come in bursts, so each counts for 1/{bursts:.1}"));
    }
    caveats
}
