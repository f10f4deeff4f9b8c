//! The default judge: is the canary worse than the primary, over the same time?
//!
//! It may look after every scrape and still rolls back at most `false_rollback`
//! of the releases whose canary is within the margin, all looks together. It
//! assumes nothing about the split, the error rate both arms share, or how
//! either moves: ramps and shared incidents are harmless.
//!
//! ```text
//! look ─▶ ContingencyTable ─▶ log-likelihood on the Grid ─▶ EProcess (÷ Overdispersion) ─▶ Evidence
//!                                                         Verdict ◀─ Confirmation ◀─┘
//! ```
//!
//! Errors are one e-process, beside that of a [`TotalFailure`](total_failure), which
//! needs no primary, and that of each pod of the canary; arms whose [`pods`] differ are
//! worth less evidence. Latency is one e-process for each histogram bound
//! ("slower than 250 ms"), and their evidence is averaged; values, such as revenue, are one
//! for each of a few [`thresholds`]. No single look convicts
//! ([`confirmation`]), and nothing passes while the primary itself is far from its
//! usual self ([`baseline`]).

mod baseline;
mod compact;
mod confirmation;
#[cfg(test)]
mod cost;
mod e_process;
mod evidence;
mod fixed;
mod grid;
mod overdispersion;
mod pods;
mod power;
#[cfg(test)]
mod tests;
mod thresholds;
mod total_failure;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use self::e_process::{BadKind, EProcess};
use self::grid::{Distances, Grid};
use self::thresholds::MIN_VALUES;
use super::floor::Floor;
use super::format::{duration, number, percent, thousands};
use super::measurement::{Arms, Counts, Histogram, Measurement, Values, sum_of_histograms, sum_of_pods};
use super::verdict::{Estimate, InconclusiveReason, JudgeOutcome, Verdict};

pub use self::confirmation::Look;
use self::evidence::Conviction;
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
    /// A pass needs that a canary this many times worse would have been found.
    pub min_power: Option<f64>,
    /// An absolute limit beside the comparison.
    pub floor: Option<Floor>,
    /// Of a metric of values: which of them are worse.
    pub worse_values: Option<WorseValues>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum WorseValues {
    /// As with revenue.
    Lower,
    /// As with the length of a queue.
    Higher,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            false_rollback: 0.01,
            false_promotion: 0.01,
            margin: 1.5,
            min_requests: 20,
            min_power: None,
            floor: None,
            worse_values: None,
        }
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
    #[error("minPower: {power} is not above the margin of {margin}; raise it, or lower the margin")]
    MinPower { power: f64, margin: f64 },
}

/// The judge, with validated settings.
#[derive(Debug, Clone, PartialEq)]
pub struct Sequential {
    settings: Settings,
    grid: Grid,
}

impl Sequential {
    pub fn settings(&self) -> &Settings {
        &self.settings
    }
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
        if let Some(power) = settings.min_power.filter(|power| *power <= settings.margin) {
            return Err(SettingsError::MinPower { power, margin: settings.margin });
        }
        settings.margin = (settings.margin * 1e3).round() / 1e3;
        let distances = if settings.worse_values.is_some() { Distances::VALUES } else { Distances::RARE };
        Ok(Sequential { settings, grid: Grid::around(settings.margin, distances) })
    }
}

/// The risk that the interval in a verdict misses the odds ratio.
const INTERVAL_RISK: f64 = 0.05;
/// Non-inferior latency is shown at the bounds that at least this share of the
/// primary's requests is beyond; slower requests are too rare for it.
const NON_INFERIORITY_TAIL: f64 = 0.01;
/// A canary with this part of the log-evidence for a failure does not pass.
const SUSPICION_EXPONENT: f64 = 0.5;
/// How many times worse a canary is that should be found before it is promoted.
const MUCH_WORSE: f64 = 3.0;
/// A share of bad requests that worries nobody.
const CLEAN_SHARE: f64 = 0.01;
/// Overdispersion from which on a verdict mentions it.
const NOTABLE_OVERDISPERSION: f64 = 1.5;

impl Sequential {
    /// Adds one look at both arms at the same moment, and returns the verdict on
    /// everything so far.
    pub fn check(&self, evidence: &mut Evidence, measurement: &Measurement) -> Verdict {
        self.check_at(evidence, measurement, Look { full: true, ..Look::default() })
    }

    /// As [`Sequential::check`], without the message.
    pub fn outcome(&self, evidence: &mut Evidence, measurement: &Measurement) -> JudgeOutcome {
        let look = Look { full: true, ..Look::default() };
        self.update_evidence(evidence, measurement, look).unwrap_or_else(|verdict| verdict.outcome)
    }

    /// Adds one look and returns the verdict on everything so far.
    pub fn check_at(&self, evidence: &mut Evidence, measurement: &Measurement, look: Look) -> Verdict {
        match self.update_evidence(evidence, measurement, look) {
            Ok(outcome) => self.describe(evidence, outcome),
            Err(verdict) => *verdict,
        }
    }

    fn update_evidence(
        &self,
        evidence: &mut Evidence,
        measurement: &Measurement,
        look: Look,
    ) -> Result<JudgeOutcome, Box<Verdict>> {
        let convicts = -self.settings.false_rollback.ln();
        if evidence.margin() != self.settings.margin {
            *evidence = Evidence::for_margin(self.settings.margin);
        }
        let is_sudden = match measurement {
            Measurement::NoData => return Err(no_requests()),
            Measurement::Counts(Arms { canary, .. }) if canary.total() == 0 => return Err(no_requests()),
            Measurement::Histogram(Arms { canary, .. }) if canary.total() == 0 => return Err(no_requests()),
            Measurement::PodCounts(by_pod) => {
                let arms = by_pod.map(sum_of_pods);
                if arms.canary.total() == 0 {
                    return Err(no_requests());
                }
                evidence.update_pods(by_pod, look);
                let convicts = convicts - (1.0 - pods::RISK_SHARE).ln();
                evidence.update(&self.grid, &[(BadKind::Failed, arms)], look, convicts)
            }
            Measurement::Counts(arms) => {
                evidence.update(&self.grid, &[(BadKind::Failed, *arms)], look, convicts)
            }
            Measurement::Histogram(arms) => {
                let kinds = slower_than_each_bound(arms);
                if kinds.is_empty() {
                    return Err(no_common_bound(arms.map(Histogram::total)));
                }
                evidence.update(&self.grid, &kinds, look, convicts)
            }
            Measurement::PodHistograms(by_pod) => {
                let arms = by_pod.map(sum_of_histograms);
                if arms.canary.total() == 0 {
                    return Err(no_requests());
                }
                let kinds = slower_than_each_bound(&arms);
                if kinds.is_empty() {
                    return Err(no_common_bound(arms.map(Histogram::total)));
                }
                evidence.update_slow_pods(by_pod, &arms.primary, look);
                let convicts = convicts - (1.0 - pods::RISK_SHARE).ln();
                evidence.update(&self.grid, &kinds, look, convicts)
            }
            Measurement::Values(arms) if self.settings.worse_values.is_some() => {
                let arms = arms.map(Values::with_zeros);
                if arms.canary.total() == 0 {
                    return Err(no_requests());
                }
                let kinds = self.beyond_each_threshold(evidence, &arms)?;
                evidence.update(&self.grid, &kinds, look, convicts)
            }
            Measurement::Scalar(_)
            | Measurement::Samples(_)
            | Measurement::Values(_)
            | Measurement::Unavailable { .. } => {
                return Err(Verdict::wrong_measurement_kind(
                    "counts or a histogram of canary and primary",
                    measurement,
                )
                .into());
            }
        };
        let beyond = self.check_floor(evidence, measurement, look)?;
        Ok(self.conclude(evidence, beyond, is_sudden, look))
    }

    /// An error while the values that the primary had before are unknown.
    fn beyond_each_threshold(
        &self,
        evidence: &mut Evidence,
        arms: &Arms<Histogram>,
    ) -> Result<Vec<(BadKind, Arms<Counts>)>, Box<Verdict>> {
        let requests = arms.map(Histogram::total);
        let Some(thresholds) = evidence.update_thresholds(&arms.primary) else {
            let message = match evidence.known_values() {
                known if known < MIN_VALUES => format!(
                    "the first release learns the usual values of the primary, {} of the {} needed",
                    thousands(known),
                    thousands(MIN_VALUES)
                ),
                _ => "the bounds of the histogram do not divide the values of the primary yet".to_owned(),
            };
            return Err(Verdict::inconclusive(InconclusiveReason::TooFewSamples, requests, message).into());
        };
        let kind = |bound: u64| match self.settings.worse_values {
            Some(WorseValues::Higher) => BadKind::Above(bound),
            Some(WorseValues::Lower) | None => BadKind::AtMost(bound),
        };
        let counts = |arm: &Histogram, bound: u64| {
            let above = beyond(arm, bound)?;
            Some(match kind(bound) {
                BadKind::AtMost(_) => Counts::of_good(above.bad(), above.total()),
                BadKind::Failed | BadKind::Slower(_) | BadKind::Above(_) => above,
            })
        };
        let kinds: Vec<_> = thresholds
            .into_iter()
            .filter_map(|bound| {
                let arms =
                    Arms { canary: counts(&arms.canary, bound)?, primary: counts(&arms.primary, bound)? };
                Some((kind(bound), arms))
            })
            .collect();
        match kinds.is_empty() {
            true => Err(no_common_bound(requests)),
            false => Ok(kinds),
        }
    }

    /// At the end of a check: whether the canary is beyond its absolute limit. An
    /// error if the primary is too.
    fn check_floor(
        &self,
        evidence: &mut Evidence,
        measurement: &Measurement,
        look: Look,
    ) -> Result<bool, Box<Verdict>> {
        let Some(floor) = self.settings.floor.filter(|_| !look.warming_up) else { return Ok(false) };
        let arms = evidence.add_limited(floor.counts(measurement));
        if !look.full || arms.canary.total() < self.settings.min_requests {
            return Ok(false);
        }
        evidence.clear_limited();
        let beyond = arms.map(|counts| counts.rate().is_some_and(|rate| rate > floor.limit()));
        if beyond.canary && beyond.primary && evidence.convicted().is_none() {
            let message = format!(
                "incident: both arms are beyond the limit of thresholdRange, {}",
                comparison(BadKind::Failed, arms)
            );
            let requests = arms.map(Counts::total);
            return Err(Verdict::inconclusive(InconclusiveReason::Incident, requests, message).into());
        }
        Ok(beyond.canary)
    }

    fn conclude(
        &self,
        evidence: &mut Evidence,
        beyond_limit: bool,
        is_sudden: bool,
        look: Look,
    ) -> JudgeOutcome {
        let inconclusive = |reason| JudgeOutcome::Inconclusive { reason };
        if evidence.convicted().is_some() {
            JudgeOutcome::Fail { critical: false }
        } else if beyond_limit {
            JudgeOutcome::BeyondLimit
        } else if look.warming_up {
            inconclusive(InconclusiveReason::WarmingUp)
        } else if evidence.fresh().canary < self.settings.min_requests
            || evidence.lacks_control(self.settings.min_requests)
        {
            inconclusive(InconclusiveReason::TooFewSamples)
        } else if is_sudden
            || evidence.log_e_value() >= -self.settings.false_rollback.ln() * SUSPICION_EXPONENT
        {
            inconclusive(InconclusiveReason::Suspected)
        } else if evidence.incident().is_some() {
            inconclusive(InconclusiveReason::Incident)
        } else if self.settings.min_power.is_some_and(|power| !self.could_find(evidence, power)) {
            inconclusive(InconclusiveReason::TooFewSamples)
        } else {
            evidence.clear_fresh();
            JudgeOutcome::Pass { non_inferior: self.is_non_inferior(evidence.streams()) }
        }
    }

    /// Would a canary that is much worse have passed unseen? Unless neither arm has a bad
    /// request and the canary enough good ones.
    pub fn has_low_power(&self, evidence: &Evidence) -> bool {
        let is_clean =
            clean_canary_bound(evidence.streams(), evidence.seen()).is_some_and(|bound| bound <= CLEAN_SHARE);
        !is_clean && !self.could_find(evidence, MUCH_WORSE)
    }

    /// Would a canary this many times worse have been found?
    fn could_find(&self, evidence: &Evidence, times: f64) -> bool {
        self.power(evidence).is_some_and(|found| found <= times)
    }

    /// How many times worse a canary would have been found by now.
    fn power(&self, evidence: &Evidence) -> Option<f64> {
        power::detectable(evidence.streams(), &self.grid, self.settings.false_rollback)
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
        let Settings { false_rollback, false_promotion, margin, min_requests, min_power, .. } = self.settings;
        let worst = evidence.streams().iter().max_by(|a, b| a.log_e_value().total_cmp(&b.log_e_value()));
        let times = number(margin);
        // Of many bounds the worst is shown.
        let risk = INTERVAL_RISK / evidence.streams().len().max(1) as f64;
        let estimate = worst.and_then(|stream| stream.estimate(&self.grid, risk));
        let one_burst = estimate.is_some_and(|Estimate { low, .. }| low.is_some_and(|low| low > margin));
        let finding = match outcome {
            JudgeOutcome::Fail { .. } => {
                format!("at least {times} times worse, chance of a false alarm < {}", percent(false_rollback))
            }
            JudgeOutcome::Pass { non_inferior: true } => {
                format!("less than {times} times worse, chance of error < {}", percent(false_promotion))
            }
            JudgeOutcome::Pass { non_inferior: false } if one_burst => {
                format!("it looked {times} times worse, and later requests do not confirm it")
            }
            JudgeOutcome::Pass { non_inferior: false } => {
                format!("nothing shows it to be {times} times worse; {}", self.describe_power(evidence))
            }
            JudgeOutcome::BeyondLimit => "it is beyond the limit of thresholdRange".to_owned(),
            JudgeOutcome::Inconclusive { reason: InconclusiveReason::WarmingUp } => {
                "its pods are young, and only total failure counts".to_owned()
            }
            JudgeOutcome::Inconclusive { reason: InconclusiveReason::Incident } => {
                return self.describe_incident(evidence, outcome);
            }
            JudgeOutcome::Inconclusive { reason: InconclusiveReason::Suspected } => {
                format!("it looks {times} times worse, and more requests must confirm it")
            }
            JudgeOutcome::Inconclusive { .. } if evidence.lacks_control(min_requests) => format!(
                "too few requests to the primary, {} of the {} needed",
                thousands(evidence.fresh().primary),
                thousands(min_requests)
            ),
            JudgeOutcome::Inconclusive { .. } if evidence.fresh().canary >= min_requests => format!(
                "too little evidence, and minPower asks that {} times worse would be found; {}",
                number(min_power.unwrap_or(margin)),
                self.describe_power(evidence)
            ),
            JudgeOutcome::Inconclusive { .. } => format!(
                "too few new requests to the canary, {} of the {} needed",
                thousands(evidence.fresh().canary),
                thousands(min_requests)
            ),
        };
        let interval = match outcome {
            JudgeOutcome::Pass { .. } | JudgeOutcome::Fail { .. } => estimate.and_then(describe_interval),
            JudgeOutcome::BeyondLimit | JudgeOutcome::Inconclusive { .. } => None,
        }
        .unwrap_or_default();
        let message = match (evidence.total_failure(), worst) {
            (None, Some(worst)) if evidence.convicted() == Some(Conviction::Pod) => {
                let stream = evidence.pod_stream().unwrap_or(worst);
                let (pod, canary) = evidence.suspect_pod().unwrap_or(("unknown", stream.seen.canary));
                let counts = Arms { canary, primary: stream.seen.primary };
                format!("pod {pod} of the {}: {finding}", comparison(stream.kind, counts))
            }
            (Some(canary), _) => format!(
                "canary fails {} of its requests ({} of {}), whatever the primary does: chance of a false alarm < {}",
                canary.rate().map_or("no".into(), percent),
                thousands(canary.bad()),
                thousands(canary.total()),
                percent(false_rollback)
            ),
            (None, Some(stream)) => {
                let failed = matches!(outcome, JudgeOutcome::Fail { .. });
                let counts = if failed { stream.suspect } else { stream.seen };
                let culprit = evidence.culprit().filter(|_| failed).map_or(String::new(), |(pod, counts)| {
                    let (bad, total) = (thousands(counts.bad()), thousands(counts.total()));
                    format!("; it is its pod {pod} ({bad} of {total}), the others are not")
                });
                format!(
                    "{}: {finding}{interval}{culprit}{}",
                    comparison(stream.kind, counts),
                    caveats(stream)
                )
            }
            (None, None) => format!("nothing bad to compare: {finding}"),
        };
        Verdict { outcome, estimate, samples: evidence.seen(), message }
    }

    /// `a canary 4 times worse would have shown with 90 %`. Without a failure on
    /// either arm no ratio is known, but a bound of the canary's own share is.
    fn describe_power(&self, evidence: &Evidence) -> String {
        match self.power(evidence) {
            Some(times) => format!("a canary {} times worse would have shown with 90 %", one_decimal(times)),
            None => match clean_canary_bound(evidence.streams(), evidence.seen()) {
                Some(bound) => format!("its share is below {} with 95 %", percent(bound)),
                None => "even a far worse canary would hardly have shown".to_owned(),
            },
        }
    }

    fn describe_incident(&self, evidence: &Evidence, outcome: JudgeOutcome) -> Verdict {
        let primary = match evidence.incident() {
            Some(incident) if incident.usual > 0.0 => format!(
                "the primary fails {} of its requests, usually {}, and the canary is no better",
                percent(incident.recent),
                percent(incident.usual)
            ),
            Some(incident) => {
                format!(
                    "the primary fails {} of its requests, and the canary is no better",
                    percent(incident.recent)
                )
            }
            None => "both arms are broken".to_owned(),
        };
        let message = format!("incident: {primary}; `serin promote` accepts that");
        Verdict { outcome, estimate: None, samples: evidence.seen(), message }
    }
}

/// The share of bad requests that the canary is below, with a confidence of 95 % at any
/// time: for `n` requests without a bad one 3/n, as (1 - 3/n)^n is 5 %. None if either
/// arm has a bad one, or where that says nothing.
fn clean_canary_bound(streams: &[EProcess], Arms { canary: requests, .. }: Arms<u64>) -> Option<f64> {
    let is_clean = |stream: &EProcess| (stream.seen.canary.bad(), stream.seen.primary.bad()) == (0, 0);
    (streams.iter().all(is_clean) && requests >= 30).then(|| 3.0 / requests as f64)
}

/// `; its odds are 2.9 to 12 times the primary's with 95 %`
fn describe_interval(Estimate { low, high, .. }: Estimate) -> Option<String> {
    let range = match (low.map(one_decimal), high.map(one_decimal)) {
        (Some(low), Some(high)) => format!("{low} to {high}"),
        (Some(low), None) => format!("more than {low}"),
        (None, Some(high)) => format!("less than {high}"),
        (None, None) => return None,
    };
    Some(format!("; its odds are {range} times the primary's with 95 %"))
}

/// `4`, `2.3`
fn one_decimal(value: f64) -> String {
    number((value * 10.0).round() / 10.0)
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

fn no_common_bound(requests: Arms<u64>) -> Box<Verdict> {
    let message = "not judged: the histograms of canary and primary have no bound in common";
    Verdict::inconclusive(InconclusiveReason::WrongMeasurementKind, requests, message).into()
}

fn slower_than_each_bound(arms: &Arms<Histogram>) -> Vec<(BadKind, Arms<Counts>)> {
    arms.canary
        .bounds()
        .filter_map(|bound| {
            let (canary, primary) = (beyond(&arms.canary, bound)?, beyond(&arms.primary, bound)?);
            Some((BadKind::Slower(bound), Arms { canary, primary }))
        })
        .collect()
}

/// Requests beyond a bound. An arm without requests has no bounds to agree on: its pods were
/// not read in this look, and those of the other arm wait for it.
fn beyond(arm: &Histogram, bound: u64) -> Option<Counts> {
    if arm.total() == 0 { Some(Counts::default()) } else { arm.slower_than(bound) }
}

/// `canary 3.1 % errors (31 of 1,000) vs primary 0.5 % (90 of 19,000)`; of values that
/// are worse the lower they are, the share above the threshold.
fn comparison(of: BadKind, counts: Arms<Counts>) -> String {
    let what = match of {
        BadKind::Failed => "errors".into(),
        BadKind::Slower(bound) => format!("slower than {}", duration(bound)),
        BadKind::AtMost(0) => "with a value".into(),
        BadKind::Above(bound) | BadKind::AtMost(bound) => format!("above {}", number(bound as f64 / 1e6)),
    };
    let counts = match of {
        BadKind::AtMost(_) => counts.map(|counts| Counts::of_good(counts.bad(), counts.total())),
        BadKind::Failed | BadKind::Slower(_) | BadKind::Above(_) => counts,
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
        caveats.push_str("; the primary is idle, so there is nothing to compare with");
    }
    let inflation = stream.variance_inflation();
    if inflation > NOTABLE_OVERDISPERSION {
        caveats.push_str(&format!("; they come in bursts, so each counts for 1/{inflation:.1}"));
    }
    caveats
}
