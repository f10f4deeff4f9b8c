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
//! ([`SplitEvidence::begin_again`]).

use std::time::Duration;

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

/// What is remembered between looks: the asked weight in millionths, counts of
/// this step and in how many milliseconds, the evidence of earlier steps and of
/// this one in millionths of a nat, and the counts that convicted the route. All
/// integers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SplitEvidence {
    asked: u32,
    seen: Arms<u64>,
    lasted: u64,
    earlier: i64,
    latest: i64,
    convicted_by: Arms<u64>,
}

/// What else may be among the requests that are counted.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Leeway {
    /// How far apart the arms may be read, and from the moments that are meant.
    pub apart: Duration,
    /// Requests a second, at most, that no route led to an arm: probes, scrapes.
    pub unrouted: Arms<f64>,
}

/// How firmly the mixture holds on to the asked weight, in requests.
const FIRMNESS: f64 = 10_000.0;
/// How far off, as a share of the smaller weight, a split may be.
const TOLERANCE: f64 = 0.02;
const ACCUSED: &str = "the route does not split as asked";
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

    /// Takes in the requests since the last look and how long that was, while
    /// `asked` of all traffic (between 0 and 1) was to go to the canary.
    pub fn look(
        &self,
        evidence: &mut SplitEvidence,
        asked: f64,
        (requests, lasted): (Arms<u64>, Duration),
        leeway: Leeway,
    ) -> Verdict {
        evidence.ask(asked);
        evidence.seen.canary = evidence.seen.canary.saturating_add(requests.canary);
        evidence.seen.primary = evidence.seen.primary.saturating_add(requests.primary);
        evidence.lasted = evidence.lasted.saturating_add(lasted.as_millis() as u64);
        evidence.latest = (evidence.of_this_step(leeway) * WHOLE).round() as i64;
        let seen = evidence.seen;
        let total = evidence.total();
        if !evidence.splits() {
            return Verdict::inconclusive(
                Doubt::Unfit,
                seen,
                "all traffic is asked for on one side: nothing is split",
            );
        }
        if total == 0 {
            return Verdict::inconclusive(Doubt::NoData, seen, "no requests to check the split by");
        }
        let facts = evidence.facts(seen);
        let (outcome, sentence) = if evidence.now() as f64 >= -self.false_alarm.ln() * WHOLE {
            let finding =
                format!("{facts}: {ACCUSED}, chance of a false alarm < {}", percent(self.false_alarm));
            (Outcome::Fail { critical: false }, finding)
        } else if let Some(accusation) = evidence.accusation() {
            (Outcome::Inconclusive { doubt: Doubt::TooLittle }, accusation)
        } else {
            (Outcome::Pass { certified: false }, facts)
        };
        Verdict {
            outcome,
            estimate: Some(Estimate { value: seen.canary as f64 / total as f64, low: None, high: None }),
            samples: seen,
            sentence,
        }
    }
}

impl SplitEvidence {
    /// The route was convicted: what was seen is spent, and as much again must
    /// speak for it.
    pub fn begin_again(&mut self) {
        *self = SplitEvidence { asked: self.asked, convicted_by: self.seen, ..SplitEvidence::default() };
    }

    /// What the route is still accused of, and what would clear it.
    pub fn accusation(&self) -> Option<String> {
        let owed = total(self.convicted_by).saturating_sub(self.total());
        (owed > 0).then(|| {
            let facts = self.facts(self.convicted_by);
            format!("{facts}: {ACCUSED}; {} more requests are to show that it is mended", thousands(owed))
        })
    }

    fn facts(&self, seen: Arms<u64>) -> String {
        let all = total(seen);
        format!(
            "the canary got {} of the traffic ({} of {}), {} was asked for",
            percent(seen.canary as f64 / all as f64),
            thousands(seen.canary),
            thousands(all),
            percent(self.asked()),
        )
    }

    fn ask(&mut self, asked: f64) {
        let asked = (asked.clamp(0.0, 1.0) * WHOLE).round() as u32;
        if asked != self.asked {
            *self = SplitEvidence { asked, earlier: self.now(), ..SplitEvidence::default() };
        }
    }

    fn asked(&self) -> f64 {
        f64::from(self.asked) / WHOLE
    }

    fn splits(&self) -> bool {
        self.asked > 0 && self.asked() < 1.0
    }

    fn total(&self) -> u64 {
        total(self.seen)
    }

    /// The log-evidence of all steps, in millionths.
    fn now(&self) -> i64 {
        self.earlier.saturating_add(self.latest)
    }

    fn of_this_step(&self, leeway: Leeway) -> f64 {
        let asked = self.asked();
        if self.total() == 0 || !self.splits() {
            return 0.0;
        }
        let Arms { canary, primary } =
            leeway.in_favour(asked, self.seen.map(|count| *count as f64), self.lasted as f64 / 1e3);
        let all = canary + primary;
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

fn total(seen: Arms<u64>) -> u64 {
    seen.canary.saturating_add(seen.primary)
}

impl Leeway {
    /// Of what may truly have been routed, what speaks best for the route.
    /// Time that was taken for that of the step was one of smaller weights: it
    /// can only have added to the primary.
    fn in_favour(&self, asked: f64, seen: Arms<f64>, seconds: f64) -> Arms<f64> {
        let Arms { canary, primary } = seen;
        let odds = asked / (1.0 - asked);
        let blur = match self.apart.as_secs_f64() {
            0.0 => 0.0,
            apart => (apart / seconds).min(1.0),
        };
        let kept = (1.0 - 2.0 * blur).max(0.0);
        if canary > odds * primary {
            let least = canary * kept - self.unrouted.canary * seconds;
            Arms { canary: least.max(odds * primary), primary }
        } else {
            let earlier = blur * (canary + primary);
            let least = primary * kept - earlier - self.unrouted.primary * seconds;
            Arms { canary, primary: least.max(canary / odds) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn looking(steps: &[(f64, Arms<u64>)]) -> (SplitEvidence, Verdict) {
        let mut evidence = SplitEvidence::default();
        let verdicts: Vec<_> = steps
            .iter()
            .map(|(asked, requests)| {
                Split::default().look(&mut evidence, *asked, (*requests, MINUTE), Leeway::default())
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
    fn a_route_that_was_mended_is_cleared_by_as_many_requests() {
        let (mut evidence, verdict) = looking(&[(0.05, requests(500, 500))]);
        assert_eq!(verdict.outcome, Outcome::Fail { critical: false });
        evidence.begin_again();
        let mut look =
            || Split::default().look(&mut evidence, 0.05, (requests(25, 475), MINUTE), Leeway::default());
        let verdict = look();
        assert_eq!(verdict.outcome, Outcome::Inconclusive { doubt: Doubt::TooLittle });
        assert_eq!(
            verdict.sentence,
            "the canary got 50 % of the traffic (500 of 1,000), 5 % was asked for: the route does not split as \
             asked; 500 more requests are to show that it is mended"
        );
        assert_eq!(look().outcome, Outcome::Pass { certified: false });
    }

    #[test]
    fn the_route_has_the_benefit_of_the_doubt() {
        let judged = |asked, seen, leeway| {
            Split::default().look(&mut SplitEvidence::default(), asked, (seen, MINUTE), leeway).outcome
        };
        let pass = Outcome::Pass { certified: false };
        let fail = Outcome::Fail { critical: false };
        // Two pods of the canary are probed ten times a second.
        let probes = Leeway { apart: Duration::ZERO, unrouted: Arms { canary: 10.0, primary: 10.0 } };
        assert_eq!(judged(0.05, requests(2_100, 29_100), Leeway::default()), fail);
        assert_eq!(judged(0.05, requests(2_100, 29_100), probes), pass);
        assert_eq!(judged(0.05, requests(9_000, 29_100), probes), fail);
        // A quarter of the minute was one of no weight at all.
        let blur = Leeway { apart: MINUTE / 4, unrouted: Arms::default() };
        assert_eq!(judged(0.8, requests(18_000, 12_000), Leeway::default()), fail);
        assert_eq!(judged(0.8, requests(18_000, 12_000), blur), pass);
        assert_eq!(judged(0.05, requests(15_000, 15_000), blur), fail);
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
            Split::default().look(&mut resumed, asked, (counts, MINUTE), Leeway::default());
        }
        assert_eq!(through, resumed);
    }
}
