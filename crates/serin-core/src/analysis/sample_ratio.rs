//! The sample ratio mismatch test: does the route split by its weight?
//!
//! A mesh that ignores a weight makes every other judgement meaningless, and the
//! request counts show it. They are tested against the expected weight by a
//! Dirichlet mixture (Lindon and Malek): again an e-process, so it may be
//! evaluated after every scrape. Every step starts a mixture of its own and the
//! evidence of all steps multiplies.
//!
//! Meshes round weights, so the hypothesis is the best explanation within a
//! small deviation from the expected weight. Requests that no route sent are
//! allowed for in the route's favour ([`Tolerance`]). A failed verdict is about
//! the route, not the canary; and as a route can be repaired, it is cleared by
//! as many matching requests as failed it
//! ([`SampleRatioState::require_clearance`]).

use std::time::Duration;

use serde::{Deserialize, Serialize};
use statrs::function::gamma::ln_gamma;
use thiserror::Error;

use super::format::{percent, thousands};
use super::measurement::Arms;
use super::verdict::{Estimate, InconclusiveReason, JudgeOutcome, Verdict};

/// The test, with the risk of a false alarm over a whole release.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SampleRatioTest {
    false_alarm: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Error)]
pub enum SampleRatioError {
    #[error("{0} is no risk of a false alarm; it must be above 0 and below 0.5")]
    FalseAlarm(f64),
}

/// State between looks: the expected weight in millionths, counts of this step
/// and their duration, the log-evidence of earlier steps and of this one in
/// millionths of a nat, and the counts of the last mismatch. All integers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SampleRatioState {
    expected: u32,
    seen: Arms<u64>,
    duration_ms: u64,
    earlier_steps: i64,
    current_step: i64,
    mismatch_counts: Arms<u64>,
}

/// Allowance for counting errors, in favour of the route.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Tolerance {
    /// How far the times of the two counts may be apart, and from the window.
    pub read_skew: Duration,
    /// Requests a second, at most, that no route sent to an arm: probes, scrapes.
    pub unrouted_rps: Arms<f64>,
}

/// Concentration of the mixture around the expected weight, in requests.
const DIRICHLET_CONCENTRATION: f64 = 10_000.0;
/// Allowed deviation of a split, as a share of the smaller weight.
const MAX_RELATIVE_DEVIATION: f64 = 0.02;
const MISMATCH: &str = "the route does not split by its weight";
/// Millionths in one.
const MILLIONTHS: f64 = 1e6;

impl Default for SampleRatioTest {
    fn default() -> Self {
        SampleRatioTest { false_alarm: 0.001 }
    }
}

impl SampleRatioTest {
    pub fn new(false_alarm: f64) -> Result<Self, SampleRatioError> {
        if false_alarm > 0.0 && false_alarm < 0.5 {
            Ok(SampleRatioTest { false_alarm })
        } else {
            Err(SampleRatioError::FalseAlarm(false_alarm))
        }
    }

    /// Adds the requests since the last look and their duration; `expected` is
    /// the canary's weight (between 0 and 1) in that time.
    pub fn check(
        &self,
        evidence: &mut SampleRatioState,
        expected: f64,
        (requests, lasted): (Arms<u64>, Duration),
        tolerance: Tolerance,
    ) -> Verdict {
        evidence.set_expected(expected);
        evidence.seen.canary = evidence.seen.canary.saturating_add(requests.canary);
        evidence.seen.primary = evidence.seen.primary.saturating_add(requests.primary);
        evidence.duration_ms = evidence.duration_ms.saturating_add(lasted.as_millis() as u64);
        evidence.current_step = (evidence.step_log_evidence(tolerance) * MILLIONTHS).round() as i64;
        let seen = evidence.seen;
        let total = evidence.total();
        if !evidence.is_split() {
            return Verdict::inconclusive(
                InconclusiveReason::WrongMeasurementKind,
                seen,
                "all traffic goes to one arm: nothing is split",
            );
        }
        if total == 0 {
            return Verdict::inconclusive(
                InconclusiveReason::NoData,
                seen,
                "no requests to verify the split",
            );
        }
        let facts = evidence.describe(seen);
        let (outcome, message) = if evidence.log_evidence() as f64 >= -self.false_alarm.ln() * MILLIONTHS {
            let finding =
                format!("{facts}: {MISMATCH}, chance of a false alarm < {}", percent(self.false_alarm));
            (JudgeOutcome::Fail { critical: false }, finding)
        } else if let Some(mismatch) = evidence.pending_clearance() {
            (JudgeOutcome::Inconclusive { reason: InconclusiveReason::TooFewSamples }, mismatch)
        } else {
            (JudgeOutcome::Pass { non_inferior: false }, facts)
        };
        Verdict {
            outcome,
            estimate: Some(Estimate { value: seen.canary as f64 / total as f64, low: None, high: None }),
            samples: seen,
            message,
        }
    }
}

impl SampleRatioState {
    /// After a mismatch: starts over, and needs as many matching requests as
    /// there were.
    pub fn require_clearance(&mut self) {
        *self = SampleRatioState {
            expected: self.expected,
            mismatch_counts: self.seen,
            ..SampleRatioState::default()
        };
    }

    /// The last mismatch, and the requests still needed to clear it.
    pub fn pending_clearance(&self) -> Option<String> {
        let missing = total(self.mismatch_counts).saturating_sub(self.total());
        (missing > 0).then(|| {
            let facts = self.describe(self.mismatch_counts);
            format!("{facts}: {MISMATCH}; {} more requests must show that it does now", thousands(missing))
        })
    }

    fn describe(&self, seen: Arms<u64>) -> String {
        let all = total(seen);
        format!(
            "the canary got {} of the traffic ({} of {}), its weight is {}",
            percent(seen.canary as f64 / all as f64),
            thousands(seen.canary),
            thousands(all),
            percent(self.expected()),
        )
    }

    fn set_expected(&mut self, expected: f64) {
        let expected = (expected.clamp(0.0, 1.0) * MILLIONTHS).round() as u32;
        if expected != self.expected {
            *self = SampleRatioState {
                expected,
                earlier_steps: self.log_evidence(),
                ..SampleRatioState::default()
            };
        }
    }

    fn expected(&self) -> f64 {
        f64::from(self.expected) / MILLIONTHS
    }

    fn is_split(&self) -> bool {
        self.expected > 0 && self.expected() < 1.0
    }

    fn total(&self) -> u64 {
        total(self.seen)
    }

    /// The log-evidence of all steps, in millionths.
    fn log_evidence(&self) -> i64 {
        self.earlier_steps.saturating_add(self.current_step)
    }

    fn step_log_evidence(&self, tolerance: Tolerance) -> f64 {
        let expected = self.expected();
        if self.total() == 0 || !self.is_split() {
            return 0.0;
        }
        let Arms { canary, primary } = tolerance.most_favourable_counts(
            expected,
            self.seen.map(|count| *count as f64),
            self.duration_ms as f64 / 1e3,
        );
        let all = canary + primary;
        let slack = MAX_RELATIVE_DEVIATION * expected.min(1.0 - expected);
        let best = (canary / all).clamp(expected - slack, expected + slack);
        let [a, b] = [DIRICHLET_CONCENTRATION * expected, DIRICHLET_CONCENTRATION * (1.0 - expected)];
        ln_gamma(DIRICHLET_CONCENTRATION) - ln_gamma(DIRICHLET_CONCENTRATION + all) + ln_gamma(a + canary)
            - ln_gamma(a)
            + ln_gamma(b + primary)
            - ln_gamma(b)
            - canary * best.ln()
            - primary * (1.0 - best).ln()
    }
}

fn total(seen: Arms<u64>) -> u64 {
    seen.canary.saturating_add(seen.primary)
}

impl Tolerance {
    /// The counts within the tolerance that match the weight best. Time before
    /// the step had smaller weights: it can only have added to the primary.
    fn most_favourable_counts(&self, expected: f64, counts: Arms<f64>, seconds: f64) -> Arms<f64> {
        let Arms { canary, primary } = counts;
        let odds = expected / (1.0 - expected);
        let skewed = match self.read_skew.as_secs_f64() {
            0.0 => 0.0,
            skew => (skew / seconds).min(1.0),
        };
        let certain = (1.0 - 2.0 * skewed).max(0.0);
        if canary > odds * primary {
            let least = canary * certain - self.unrouted_rps.canary * seconds;
            Arms { canary: least.max(odds * primary), primary }
        } else {
            let earlier = skewed * (canary + primary);
            let least = primary * certain - earlier - self.unrouted_rps.primary * seconds;
            Arms { canary, primary: least.max(canary / odds) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn check_steps(steps: &[(f64, Arms<u64>)]) -> (SampleRatioState, Verdict) {
        let mut evidence = SampleRatioState::default();
        let verdicts: Vec<_> = steps
            .iter()
            .map(|(expected, requests)| {
                SampleRatioTest::default().check(
                    &mut evidence,
                    *expected,
                    (*requests, MINUTE),
                    Tolerance::default(),
                )
            })
            .collect();
        (evidence, verdicts.into_iter().next_back().unwrap())
    }

    fn requests(canary: u64, primary: u64) -> Arms<u64> {
        Arms { canary, primary }
    }

    #[test]
    fn a_split_by_weight_passes_through_a_ramp() {
        let ramp = [0.05, 0.2, 0.5]
            .map(|weight| (weight, requests((weight * 1e6) as u64, ((1.0 - weight) * 1e6) as u64)));
        let (_, verdict) = check_steps(&ramp);
        assert_eq!(verdict.outcome, JudgeOutcome::Pass { non_inferior: false });
        assert_eq!(
            verdict.message,
            "the canary got 50 % of the traffic (500,000 of 1,000,000), its weight is 50 %"
        );
    }

    #[test]
    fn a_mismatch_of_one_step_fails_the_next_too() {
        let (_, verdict) = check_steps(&[(0.05, requests(500, 500)), (0.5, requests(500, 500))]);
        assert_eq!(verdict.outcome, JudgeOutcome::Fail { critical: false });
    }

    #[test]
    fn a_repaired_route_is_cleared_by_as_many_requests() {
        let (mut evidence, verdict) = check_steps(&[(0.05, requests(500, 500))]);
        assert_eq!(verdict.outcome, JudgeOutcome::Fail { critical: false });
        evidence.require_clearance();
        let mut check = || {
            SampleRatioTest::default().check(
                &mut evidence,
                0.05,
                (requests(25, 475), MINUTE),
                Tolerance::default(),
            )
        };
        let verdict = check();
        assert_eq!(verdict.outcome, JudgeOutcome::Inconclusive { reason: InconclusiveReason::TooFewSamples });
        assert_eq!(
            verdict.message,
            "the canary got 50 % of the traffic (500 of 1,000), its weight is 5 %: the route does not split by \
             its weight; 500 more requests must show that it does now"
        );
        assert_eq!(check().outcome, JudgeOutcome::Pass { non_inferior: false });
    }

    #[test]
    fn the_tolerance_favours_the_route() {
        let judged = |expected, counts, tolerance| {
            SampleRatioTest::default()
                .check(&mut SampleRatioState::default(), expected, (counts, MINUTE), tolerance)
                .outcome
        };
        let pass = JudgeOutcome::Pass { non_inferior: false };
        let fail = JudgeOutcome::Fail { critical: false };
        // Two pods of the canary are probed ten times a second.
        let probes =
            Tolerance { read_skew: Duration::ZERO, unrouted_rps: Arms { canary: 10.0, primary: 10.0 } };
        assert_eq!(judged(0.05, requests(2_100, 29_100), Tolerance::default()), fail);
        assert_eq!(judged(0.05, requests(2_100, 29_100), probes), pass);
        assert_eq!(judged(0.05, requests(9_000, 29_100), probes), fail);
        // A quarter of the minute had no weight at all.
        let skewed = Tolerance { read_skew: MINUTE / 4, unrouted_rps: Arms::default() };
        assert_eq!(judged(0.8, requests(18_000, 12_000), Tolerance::default()), fail);
        assert_eq!(judged(0.8, requests(18_000, 12_000), skewed), pass);
        assert_eq!(judged(0.05, requests(15_000, 15_000), skewed), fail);
    }

    #[test]
    fn a_rounded_weight_is_no_mismatch() {
        let (_, verdict) = check_steps(&[(0.05, requests(50_900_000, 949_100_000))]);
        assert_eq!(verdict.outcome, JudgeOutcome::Pass { non_inferior: false });
    }

    #[test]
    fn full_weights_and_missing_requests_are_inconclusive() {
        for (weight, counts) in [(0.0, requests(0, 100)), (1.0, requests(100, 3)), (0.3, requests(0, 0))] {
            let (_, verdict) = check_steps(&[(weight, counts)]);
            assert!(matches!(verdict.outcome, JudgeOutcome::Inconclusive { .. }), "{}", verdict.message);
        }
    }

    #[test]
    fn a_restart_in_the_middle_changes_nothing() {
        let (through, _) =
            check_steps(&[(0.05, requests(61, 939)), (0.05, requests(55, 945)), (0.2, requests(9, 91))]);
        let (mut resumed, _) = check_steps(&[(0.05, requests(61, 939))]);
        for (weight, counts) in [(0.05, requests(55, 945)), (0.2, requests(9, 91))] {
            resumed = serde_json::from_str(&serde_json::to_string(&resumed).unwrap()).unwrap();
            SampleRatioTest::default().check(&mut resumed, weight, (counts, MINUTE), Tolerance::default());
        }
        assert_eq!(through, resumed);
    }
}
