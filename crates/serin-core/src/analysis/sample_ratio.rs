//! Is the split what was asked for?
//!
//! A mesh that ignores a weight makes every other judgement moot, and the
//! requests themselves show it. Their counts are weighed against the asked
//! weight by a Dirichlet mixture (Lindon and Malek): again an e-process, so it
//! may be looked at after every scrape. Every step starts a mixture of its own
//! and the evidence of all steps multiplies.
//!
//! Meshes round weights, so a small deviation is no fault: the hypothesis is
//! the best explanation within a tolerance of the asked weight. Nor is it the
//! route's fault what else is counted ([`Leeway`]): the route has the benefit
//! of the doubt. A failed verdict accuses the route, not the canary; and as a
//! route can be mended, it is cleared by as many requests as convicted it
//! ([`SampleRatioState::require_clearance`]).

use std::time::Duration;

use serde::{Deserialize, Serialize};
use statrs::function::gamma::ln_gamma;
use thiserror::Error;

use super::format::{percent, thousands};
use super::measurement::Arms;
use super::verdict::{Estimate, InconclusiveReason, JudgeOutcome, Verdict};

/// The check, with the risk of a false alarm over a whole release.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SampleRatioTest {
    false_alarm: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Error)]
pub enum SampleRatioError {
    #[error("{0} is no risk of a false alarm; it must be above 0 and below 0.5")]
    FalseAlarm(f64),
}

/// What is remembered between looks: the asked weight in millionths, counts of
/// this step and in how many milliseconds, the evidence of earlier steps and of
/// this one in millionths of a nat, and the counts that convicted the route. All
/// integers.
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

/// What else may be among the requests that are counted.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Tolerance {
    /// How far apart the arms may be read, and from the moments that are meant.
    pub read_skew: Duration,
    /// Requests a second, at most, that no route led to an arm: probes, scrapes.
    pub unrouted_rps: Arms<f64>,
}

/// How firmly the mixture holds on to the asked weight, in requests.
const DIRICHLET_CONCENTRATION: f64 = 10_000.0;
/// How far off, as a share of the smaller weight, a split may be.
const MAX_RELATIVE_DEVIATION: f64 = 0.02;
const MISMATCH: &str = "the route does not split as asked";
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

    /// Takes in the requests since the last look and how long that was, while
    /// `asked` of all traffic (between 0 and 1) was to go to the canary.
    pub fn check(
        &self,
        evidence: &mut SampleRatioState,
        asked: f64,
        (requests, lasted): (Arms<u64>, Duration),
        tolerance: Tolerance,
    ) -> Verdict {
        evidence.set_expected(asked);
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
                "all traffic is asked for on one side: nothing is split",
            );
        }
        if total == 0 {
            return Verdict::inconclusive(
                InconclusiveReason::NoData,
                seen,
                "no requests to check the split by",
            );
        }
        let facts = evidence.describe(seen);
        let (outcome, message) = if evidence.log_evidence() as f64 >= -self.false_alarm.ln() * MILLIONTHS {
            let finding =
                format!("{facts}: {MISMATCH}, chance of a false alarm < {}", percent(self.false_alarm));
            (JudgeOutcome::Fail { critical: false }, finding)
        } else if let Some(accusation) = evidence.pending_clearance() {
            (JudgeOutcome::Inconclusive { reason: InconclusiveReason::TooFewSamples }, accusation)
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
    /// The route was convicted: what was seen is spent, and as much again must
    /// speak for it.
    pub fn require_clearance(&mut self) {
        *self = SampleRatioState {
            expected: self.expected,
            mismatch_counts: self.seen,
            ..SampleRatioState::default()
        };
    }

    /// What the route is still accused of, and what would clear it.
    pub fn pending_clearance(&self) -> Option<String> {
        let owed = total(self.mismatch_counts).saturating_sub(self.total());
        (owed > 0).then(|| {
            let facts = self.describe(self.mismatch_counts);
            format!("{facts}: {MISMATCH}; {} more requests are to show that it is mended", thousands(owed))
        })
    }

    fn describe(&self, seen: Arms<u64>) -> String {
        let all = total(seen);
        format!(
            "the canary got {} of the traffic ({} of {}), {} was asked for",
            percent(seen.canary as f64 / all as f64),
            thousands(seen.canary),
            thousands(all),
            percent(self.expected()),
        )
    }

    fn set_expected(&mut self, asked: f64) {
        let asked = (asked.clamp(0.0, 1.0) * MILLIONTHS).round() as u32;
        if asked != self.expected {
            *self = SampleRatioState {
                expected: asked,
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
        let asked = self.expected();
        if self.total() == 0 || !self.is_split() {
            return 0.0;
        }
        let Arms { canary, primary } = tolerance.most_favourable_counts(
            asked,
            self.seen.map(|count| *count as f64),
            self.duration_ms as f64 / 1e3,
        );
        let all = canary + primary;
        let slack = MAX_RELATIVE_DEVIATION * asked.min(1.0 - asked);
        let best = (canary / all).clamp(asked - slack, asked + slack);
        let [a, b] = [DIRICHLET_CONCENTRATION * asked, DIRICHLET_CONCENTRATION * (1.0 - asked)];
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
    /// Of what may truly have been routed, what speaks best for the route.
    /// Time that was taken for that of the step was one of smaller weights: it
    /// can only have added to the primary.
    fn most_favourable_counts(&self, asked: f64, seen: Arms<f64>, seconds: f64) -> Arms<f64> {
        let Arms { canary, primary } = seen;
        let odds = asked / (1.0 - asked);
        let blur = match self.read_skew.as_secs_f64() {
            0.0 => 0.0,
            apart => (apart / seconds).min(1.0),
        };
        let kept = (1.0 - 2.0 * blur).max(0.0);
        if canary > odds * primary {
            let least = canary * kept - self.unrouted_rps.canary * seconds;
            Arms { canary: least.max(odds * primary), primary }
        } else {
            let earlier = blur * (canary + primary);
            let least = primary * kept - earlier - self.unrouted_rps.primary * seconds;
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
            .map(|(asked, requests)| {
                SampleRatioTest::default().check(
                    &mut evidence,
                    *asked,
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
    fn a_split_as_asked_passes_through_a_ramp() {
        let ramp = [0.05, 0.2, 0.5]
            .map(|asked| (asked, requests((asked * 1e6) as u64, ((1.0 - asked) * 1e6) as u64)));
        let (_, verdict) = check_steps(&ramp);
        assert_eq!(verdict.outcome, JudgeOutcome::Pass { non_inferior: false });
        assert_eq!(
            verdict.message,
            "the canary got 50 % of the traffic (500,000 of 1,000,000), 50 % was asked for"
        );
    }

    #[test]
    fn a_mesh_that_ignores_the_weight_is_found_and_not_forgotten() {
        let (_, verdict) = check_steps(&[(0.05, requests(500, 500)), (0.5, requests(500, 500))]);
        assert_eq!(verdict.outcome, JudgeOutcome::Fail { critical: false });
    }

    #[test]
    fn a_route_that_was_mended_is_cleared_by_as_many_requests() {
        let (mut evidence, verdict) = check_steps(&[(0.05, requests(500, 500))]);
        assert_eq!(verdict.outcome, JudgeOutcome::Fail { critical: false });
        evidence.require_clearance();
        let mut look = || {
            SampleRatioTest::default().check(
                &mut evidence,
                0.05,
                (requests(25, 475), MINUTE),
                Tolerance::default(),
            )
        };
        let verdict = look();
        assert_eq!(verdict.outcome, JudgeOutcome::Inconclusive { reason: InconclusiveReason::TooFewSamples });
        assert_eq!(
            verdict.message,
            "the canary got 50 % of the traffic (500 of 1,000), 5 % was asked for: the route does not split as \
             asked; 500 more requests are to show that it is mended"
        );
        assert_eq!(look().outcome, JudgeOutcome::Pass { non_inferior: false });
    }

    #[test]
    fn the_route_has_the_benefit_of_the_doubt() {
        let judged = |asked, seen, tolerance| {
            SampleRatioTest::default()
                .check(&mut SampleRatioState::default(), asked, (seen, MINUTE), tolerance)
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
        // A quarter of the minute was one of no weight at all.
        let blur = Tolerance { read_skew: MINUTE / 4, unrouted_rps: Arms::default() };
        assert_eq!(judged(0.8, requests(18_000, 12_000), Tolerance::default()), fail);
        assert_eq!(judged(0.8, requests(18_000, 12_000), blur), pass);
        assert_eq!(judged(0.05, requests(15_000, 15_000), blur), fail);
    }

    #[test]
    fn a_weight_that_a_mesh_rounds_is_no_fault() {
        let (_, verdict) = check_steps(&[(0.05, requests(50_900_000, 949_100_000))]);
        assert_eq!(verdict.outcome, JudgeOutcome::Pass { non_inferior: false });
    }

    #[test]
    fn nothing_is_split_at_either_end_and_without_requests() {
        for (asked, counts) in [(0.0, requests(0, 100)), (1.0, requests(100, 3)), (0.3, requests(0, 0))] {
            let (_, verdict) = check_steps(&[(asked, counts)]);
            assert!(matches!(verdict.outcome, JudgeOutcome::Inconclusive { .. }), "{}", verdict.message);
        }
    }

    #[test]
    fn a_restart_in_the_middle_changes_nothing() {
        let (through, _) =
            check_steps(&[(0.05, requests(61, 939)), (0.05, requests(55, 945)), (0.2, requests(9, 91))]);
        let (mut resumed, _) = check_steps(&[(0.05, requests(61, 939))]);
        for (asked, counts) in [(0.05, requests(55, 945)), (0.2, requests(9, 91))] {
            resumed = serde_json::from_str(&serde_json::to_string(&resumed).unwrap()).unwrap();
            SampleRatioTest::default().check(&mut resumed, asked, (counts, MINUTE), Tolerance::default());
        }
        assert_eq!(through, resumed);
    }
}
