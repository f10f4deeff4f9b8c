//! Is the split what was asked for?
//!
//! A mesh that ignores a weight makes every other judgement moot, and the
//! requests themselves show it. Their counts are weighed against the asked
//! weight by a Dirichlet mixture (Lindon and Malek): again an e-process, so it
//! may be looked at after every scrape. Every step starts a mixture of its own
//! and the evidence of all steps multiplies.
//!
//! Meshes round weights, so a small deviation is no fault: the hypothesis is
//! the best explanation within a tolerance of the asked weight. A failed
//! verdict accuses the route, not the canary.

use serde::{Deserialize, Serialize};
use statrs::function::gamma::ln_gamma;
use thiserror::Error;

use super::figures::{percent, thousands};
use super::measurement::Arms;
use super::verdict::{Doubt, Estimate, Outcome, Verdict};

/// The check, with the risk of a false alarm over a whole release.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Split {
    false_alarm: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Error)]
pub enum SplitError {
    #[error("{0} is no risk of a false alarm; it must be above 0 and below 0.5")]
    FalseAlarm(f64),
}

/// What is remembered between looks: counts, the asked weight in millionths,
/// and the evidence of earlier steps in millionths of a nat. All integers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SplitEvidence {
    asked: u32,
    seen: Arms<u64>,
    earlier: i64,
    peak: i64,
}

/// How firmly the mixture holds on to the asked weight, in requests.
const FIRMNESS: f64 = 10_000.0;
/// How far off, as a share of the smaller weight, a split may be.
const TOLERANCE: f64 = 0.02;
/// Millionths in one.
const WHOLE: f64 = 1e6;

impl Default for Split {
    fn default() -> Self {
        Split { false_alarm: 0.001 }
    }
}

impl Split {
    pub fn new(false_alarm: f64) -> Result<Self, SplitError> {
        if false_alarm > 0.0 && false_alarm < 0.5 {
            Ok(Split { false_alarm })
        } else {
            Err(SplitError::FalseAlarm(false_alarm))
        }
    }

    /// Takes in the requests since the last look, while `asked` of all traffic
    /// (between 0 and 1) was to go to the canary.
    pub fn look(&self, evidence: &mut SplitEvidence, asked: f64, requests: Arms<u64>) -> Verdict {
        evidence.ask(asked);
        evidence.seen.canary = evidence.seen.canary.saturating_add(requests.canary);
        evidence.seen.primary = evidence.seen.primary.saturating_add(requests.primary);
        evidence.peak = evidence.peak.max(evidence.now());
        let seen = evidence.seen;
        let total = seen.canary.saturating_add(seen.primary);
        if total == 0 {
            return Verdict::inconclusive(Doubt::NoData, seen, "no requests to check the split by");
        }
        if !evidence.splits() {
            return Verdict::inconclusive(
                Doubt::Unfit,
                seen,
                "all traffic is asked for on one side: nothing is split",
            );
        }
        let share = seen.canary as f64 / total as f64;
        let facts = format!(
            "the canary got {} of the traffic ({} of {}), {} was asked for",
            percent(share),
            thousands(seen.canary),
            thousands(total),
            percent(evidence.asked()),
        );
        let (outcome, sentence) = if evidence.peak as f64 >= -self.false_alarm.ln() * WHOLE {
            let finding = format!(
                "{facts}: the route does not split as asked, chance of a false alarm < {}",
                percent(self.false_alarm)
            );
            (Outcome::Fail { critical: false }, finding)
        } else {
            (Outcome::Pass { certified: false }, facts)
        };
        Verdict {
            outcome,
            estimate: Some(Estimate { value: share, low: None, high: None }),
            samples: seen,
            sentence,
        }
    }
}

impl SplitEvidence {
    fn ask(&mut self, asked: f64) {
        let asked = (asked.clamp(0.0, 1.0) * WHOLE).round() as u32;
        if asked != self.asked {
            *self = SplitEvidence { asked, seen: Arms::default(), earlier: self.now(), peak: self.peak };
        }
    }

    fn asked(&self) -> f64 {
        f64::from(self.asked) / WHOLE
    }

    fn splits(&self) -> bool {
        self.asked > 0 && self.asked() < 1.0
    }

    /// The log-evidence of all steps, in millionths.
    fn now(&self) -> i64 {
        self.earlier.saturating_add((self.of_this_step() * WHOLE).round() as i64)
    }

    fn of_this_step(&self) -> f64 {
        let asked = self.asked();
        let [canary, primary] = [self.seen.canary as f64, self.seen.primary as f64];
        let all = canary + primary;
        if all == 0.0 || !self.splits() {
            return 0.0;
        }
        let slack = TOLERANCE * asked.min(1.0 - asked);
        let best = (canary / all).clamp(asked - slack, asked + slack);
        let [a, b] = [FIRMNESS * asked, FIRMNESS * (1.0 - asked)];
        ln_gamma(FIRMNESS) - ln_gamma(FIRMNESS + all) + ln_gamma(a + canary) - ln_gamma(a)
            + ln_gamma(b + primary)
            - ln_gamma(b)
            - canary * best.ln()
            - primary * (1.0 - best).ln()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn looking(steps: &[(f64, Arms<u64>)]) -> (SplitEvidence, Verdict) {
        let mut evidence = SplitEvidence::default();
        let verdicts: Vec<_> = steps
            .iter()
            .map(|(asked, requests)| Split::default().look(&mut evidence, *asked, *requests))
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
        let (_, verdict) = looking(&ramp);
        assert_eq!(verdict.outcome, Outcome::Pass { certified: false });
        assert_eq!(
            verdict.sentence,
            "the canary got 50 % of the traffic (500,000 of 1,000,000), 50 % was asked for"
        );
    }

    #[test]
    fn a_mesh_that_ignores_the_weight_is_found_and_not_forgotten() {
        let (_, verdict) = looking(&[(0.05, requests(500, 500)), (0.5, requests(500, 500))]);
        assert_eq!(verdict.outcome, Outcome::Fail { critical: false });
    }

    #[test]
    fn a_weight_that_a_mesh_rounds_is_no_fault() {
        let (_, verdict) = looking(&[(0.05, requests(50_900_000, 949_100_000))]);
        assert_eq!(verdict.outcome, Outcome::Pass { certified: false });
    }

    #[test]
    fn nothing_is_split_at_either_end_and_without_requests() {
        for (asked, counts) in [(0.0, requests(0, 100)), (1.0, requests(100, 3)), (0.3, requests(0, 0))] {
            let (_, verdict) = looking(&[(asked, counts)]);
            assert!(matches!(verdict.outcome, Outcome::Inconclusive { .. }), "{}", verdict.sentence);
        }
    }

    #[test]
    fn a_restart_in_the_middle_changes_nothing() {
        let (through, _) =
            looking(&[(0.05, requests(61, 939)), (0.05, requests(55, 945)), (0.2, requests(9, 91))]);
        let (mut resumed, _) = looking(&[(0.05, requests(61, 939))]);
        for (asked, counts) in [(0.05, requests(55, 945)), (0.2, requests(9, 91))] {
            resumed = serde_json::from_str(&serde_json::to_string(&resumed).unwrap()).unwrap();
            Split::default().look(&mut resumed, asked, counts);
        }
        assert_eq!(through, resumed);
    }
}
