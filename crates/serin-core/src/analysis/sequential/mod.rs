//! The default judge: is the canary worse than the primary, over the same time?
//!
//! It may look after every scrape and still rolls back at most `false_rollback`
//! of the releases whose canary is within the margin, all looks together. It
//! assumes nothing about the split, the error rate both arms share, or how
//! either moves: ramps and shared incidents are harmless.
//!
//! ```text
//! look ─▶ ContingencyTable ─▶ log-likelihood on the Grid ─▶ EProcess (÷ Overdispersion) ─▶ Evidence ─▶ Verdict
//! ```
//!
//! Errors are one e-process. Latency is one e-process for each histogram bound
//! ("slower than 250 ms"), and their evidence is averaged.

mod e_process;
mod evidence;
mod fixed;
mod grid;
mod overdispersion;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use self::e_process::{BadKind, EProcess};
use self::grid::Grid;
use super::format::{duration, number, percent, thousands};
use super::measurement::{Arms, Counts, Histogram, Measurement};
use super::verdict::{InconclusiveReason, JudgeOutcome, Verdict};

pub use self::evidence::Evidence;

/// Settings of the judge. Their defaults are those of the CRD.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Settings {
    /// The share of healthy releases that may be rolled back.
    pub false_rollback: f64,
    /// The share of canaries beyond the margin that may be called non-inferior.
    pub false_promotion: f64,
    /// How many times worse, as an odds ratio, a canary may be. Not one: pods
    /// always differ a little, and that alone would raise alarms.
    pub margin: f64,
    /// New requests to the canary that a verdict needs.
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
        "margin: {0} is no margin; write how many times worse is still healthy, from 1 to 1000, such as 1.5"
    )]
    Margin(f64),
}

/// The judge, with validated settings.
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
/// Non-inferior latency is shown at the bounds that at least this share of the
/// primary's requests is beyond; slower requests are too rare for it.
const NON_INFERIORITY_TAIL: f64 = 0.01;
/// A canary with this part of the log-evidence for a failure does not pass.
const SUSPICION_EXPONENT: f64 = 0.5;
/// Overdispersion from which on a verdict mentions it.
const NOTABLE_OVERDISPERSION: f64 = 1.5;

impl Sequential {
    /// Adds one look and returns the verdict on everything so far.
    pub fn check(&self, evidence: &mut Evidence, measurement: &Measurement) -> Verdict {
        match self.update_evidence(evidence, measurement) {
            Ok(outcome) => self.describe(evidence, outcome),
            Err(verdict) => *verdict,
        }
    }

    /// As [`Sequential::check`], without the message.
    pub fn outcome(&self, evidence: &mut Evidence, measurement: &Measurement) -> JudgeOutcome {
        self.update_evidence(evidence, measurement).unwrap_or_else(|verdict| verdict.outcome)
    }

    fn update_evidence(
        &self,
        evidence: &mut Evidence,
        measurement: &Measurement,
    ) -> Result<JudgeOutcome, Box<Verdict>> {
        if evidence.margin() != self.settings.margin {
            *evidence = Evidence::for_margin(self.settings.margin);
        }
        match measurement {
            Measurement::NoData => return Err(no_requests()),
            Measurement::Counts(Arms { canary, .. }) if canary.total() == 0 => return Err(no_requests()),
            Measurement::Histogram(Arms { canary, .. }) if canary.total() == 0 => return Err(no_requests()),
            Measurement::Counts(arms) => evidence.update(&self.grid, &[(BadKind::Failed, *arms)]),
            Measurement::Histogram(arms) => {
                let kinds = slower_than_each_bound(arms);
                if kinds.is_empty() {
                    let message = "not judged: the histograms of canary and primary have no bound in common";
                    return Err(Verdict::inconclusive(
                        InconclusiveReason::WrongMeasurementKind,
                        arms.map(Histogram::total),
                        message,
                    )
                    .into());
                }
                evidence.update(&self.grid, &kinds);
            }
            Measurement::Scalar(_) | Measurement::Samples(_) | Measurement::Unavailable { .. } => {
                return Err(Verdict::wrong_measurement_kind(
                    "counts or a histogram of canary and primary",
                    measurement,
                )
                .into());
            }
        }
        Ok(self.conclude(evidence))
    }

    fn conclude(&self, evidence: &mut Evidence) -> JudgeOutcome {
        if evidence.p_value() <= self.settings.false_rollback {
            JudgeOutcome::Fail { critical: false }
        } else if evidence.fresh() < self.settings.min_requests
            || evidence.seen().primary < self.settings.min_requests
        {
            JudgeOutcome::Inconclusive { reason: InconclusiveReason::TooFewSamples }
        } else if evidence.e_value(&self.grid) >= self.settings.false_rollback.powf(-SUSPICION_EXPONENT) {
            JudgeOutcome::Inconclusive { reason: InconclusiveReason::Suspected }
        } else {
            evidence.clear_fresh();
            JudgeOutcome::Pass { non_inferior: self.is_non_inferior(evidence.streams()) }
        }
    }

    fn is_non_inferior(&self, streams: &[EProcess]) -> bool {
        let mut relevant = streams
            .iter()
            .filter(|s| {
                s.kind == BadKind::Failed
                    || s.seen.primary.rate().is_some_and(|rate| rate >= NON_INFERIORITY_TAIL)
            })
            .peekable();
        relevant.peek().is_some()
            && relevant.all(|s| s.non_inferiority_e_value() * self.settings.false_promotion >= 1.0)
    }

    fn describe(&self, evidence: &Evidence, outcome: JudgeOutcome) -> Verdict {
        let Settings { false_rollback, false_promotion, margin, min_requests } = self.settings;
        let worst =
            evidence.streams().iter().max_by(|a, b| a.e_value(&self.grid).total_cmp(&b.e_value(&self.grid)));
        let times = number(margin);
        let finding = match outcome {
            JudgeOutcome::Fail { .. } => {
                format!("at least {times} times worse, chance of a false alarm < {}", percent(false_rollback))
            }
            JudgeOutcome::Pass { non_inferior: true } => {
                format!("less than {times} times worse, chance of error < {}", percent(false_promotion))
            }
            JudgeOutcome::Pass { non_inferior: false } => {
                format!("nothing shows it to be {times} times worse")
            }
            JudgeOutcome::Inconclusive { reason: InconclusiveReason::Suspected } => {
                format!("it looks {times} times worse, and more requests must confirm it")
            }
            JudgeOutcome::Inconclusive { .. } if evidence.seen().primary < min_requests => format!(
                "too few requests to the primary, {} of the {} needed",
                thousands(evidence.seen().primary),
                thousands(min_requests)
            ),
            JudgeOutcome::Inconclusive { .. } => format!(
                "too few new requests to the canary, {} of the {} needed",
                thousands(evidence.fresh()),
                thousands(min_requests)
            ),
        };
        let message = match worst {
            Some(stream) => {
                let counts =
                    if matches!(outcome, JudgeOutcome::Fail { .. }) { stream.suspect } else { stream.seen };
                format!("{}: {finding}{}", comparison(stream.kind, counts), caveats(stream))
            }
            None => format!("no request is beyond any latency bound: {finding}"),
        };
        let estimate = worst.and_then(|stream| stream.estimate(&self.grid, INTERVAL_RISK));
        Verdict { outcome, estimate, samples: evidence.seen(), message }
    }
}

/// A look without a request to the canary is discarded; the next one covers its
/// time as well.
fn no_requests() -> Box<Verdict> {
    Verdict::inconclusive(
        InconclusiveReason::NoData,
        Arms::default(),
        "no data: no requests to the canary were counted",
    )
    .into()
}

fn slower_than_each_bound(arms: &Arms<Histogram>) -> Vec<(BadKind, Arms<Counts>)> {
    arms.canary
        .bounds()
        .filter_map(|bound| {
            let canary = arms.canary.slower_than(bound)?;
            let primary = arms.primary.slower_than(bound)?;
            Some((BadKind::Slower(bound), Arms { canary, primary }))
        })
        .collect()
}

/// `canary 3.1 % errors (31 of 1,000) vs primary 0.5 % (90 of 19,000)`
fn comparison(of: BadKind, counts: Arms<Counts>) -> String {
    let what = match of {
        BadKind::Failed => "errors".into(),
        BadKind::Slower(bound) => format!("slower than {}", duration(bound)),
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

fn caveats(stream: &EProcess) -> String {
    let mut caveats = String::new();
    if stream.primary_is_idle() {
        caveats.push_str(match stream.seen.primary.total() {
            0 => "; the primary is idle, so there is nothing to compare with",
            _ => "; the primary is idle, so its earlier requests are compared",
        });
    }
    let inflation = stream.variance_inflation();
    if inflation > NOTABLE_OVERDISPERSION {
        caveats.push_str(&format!("; they come in bursts, so each counts for 1/{inflation:.1}"));
    }
    caveats
}
