//! The threshold judge: a value within a range. Flagger's meaning of
//! `thresholdRange`: below `min` or above `max` fails, a bound itself passes,
//! and a missing bound does not matter.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::format::{number, percent, thousands};
use super::measurement::{Arms, Counts, Measurement};
use super::verdict::{Estimate, JudgeOutcome, Verdict};

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Threshold {
    min: Option<f64>,
    max: Option<f64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Error)]
pub enum ThresholdError {
    #[error("thresholdRange: {0} is not a number")]
    NotANumber(f64),
    #[error("thresholdRange: min {min} is above max {max}, so no value passes")]
    Empty { min: f64, max: f64 },
}

impl Threshold {
    pub fn new(min: Option<f64>, max: Option<f64>) -> Result<Self, ThresholdError> {
        if let Some(bound) = [min, max].into_iter().flatten().find(|bound| !bound.is_finite()) {
            return Err(ThresholdError::NotANumber(bound));
        }
        match (min, max) {
            (Some(min), Some(max)) if min > max => Err(ThresholdError::Empty { min, max }),
            _ => Ok(Threshold { min, max }),
        }
    }

    /// A value within the range.
    pub fn passing_value(&self) -> f64 {
        self.min.or(self.max).unwrap_or_default()
    }

    pub(super) fn min(&self) -> Option<f64> {
        self.min
    }

    pub(super) fn max(&self) -> Option<f64> {
        self.max
    }

    /// Judges the canary's value, or of counts its success rate in percent.
    /// Providers return NaN for no data.
    pub fn check(&self, measurement: &Measurement) -> Verdict {
        match measurement {
            Measurement::Scalar(value) if !value.is_nan() => {
                self.judge(*value, Arms::default(), format!("value {}", number(*value)))
            }
            Measurement::Scalar(_) => Verdict::no_data(),
            Measurement::Counts(arms) => match success_rate(arms.canary) {
                Some(rate) => self.judge(
                    rate,
                    arms.map(Counts::total),
                    format!(
                        "success rate {} of {} requests",
                        percent(rate / 100.0),
                        thousands(arms.canary.total())
                    ),
                ),
                None => Verdict::no_data(),
            },
            Measurement::PodCounts(_) => self.check(&measurement.clone().summed()),
            Measurement::Histogram(_)
            | Measurement::PodHistograms(_)
            | Measurement::Values(_)
            | Measurement::Samples(_)
            | Measurement::NoData
            | Measurement::Unavailable { .. } => {
                Verdict::wrong_measurement_kind("a single value or counts", measurement)
            }
        }
    }

    fn judge(&self, value: f64, samples: Arms<u64>, what: String) -> Verdict {
        let (outcome, relation) = match (self.min, self.max) {
            (Some(min), _) if value < min => (FAIL, format!("below the minimum {}", number(min))),
            (_, Some(max)) if value > max => (FAIL, format!("above the maximum {}", number(max))),
            (Some(min), Some(max)) => (PASS, format!("within {} to {}", number(min), number(max))),
            (Some(min), None) => (PASS, format!("not below {}", number(min))),
            (None, Some(max)) => (PASS, format!("not above {}", number(max))),
            (None, None) => (PASS, "and any value passes".into()),
        };
        let message = format!("{what}, {relation}");
        Verdict { outcome, estimate: Some(Estimate::exact(value)), samples, message }
    }
}

const PASS: JudgeOutcome = JudgeOutcome::Pass { non_inferior: false };
const FAIL: JudgeOutcome = JudgeOutcome::Fail { critical: false };

fn success_rate(counts: Counts) -> Option<f64> {
    counts.rate().map(|bad| 100.0 * (1.0 - bad))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::verdict::InconclusiveReason;

    #[track_caller]
    fn check(min: Option<f64>, max: Option<f64>, value: f64, passes: bool) {
        let verdict = Threshold::new(min, max).unwrap().check(&Measurement::Scalar(value));
        assert_eq!(verdict.outcome, if passes { PASS } else { FAIL }, "{}", verdict.message);
    }

    #[test]
    fn a_bound_belongs_to_its_range() {
        check(Some(99.0), None, 99.0, true);
        check(Some(99.0), None, 98.999, false);
        check(None, Some(500.0), 500.0, true);
        check(None, Some(500.0), 500.001, false);
        check(Some(0.0), Some(0.0), 0.0, true);
        check(None, None, f64::INFINITY, true);
        check(None, Some(1.0), f64::INFINITY, false);
    }

    #[test]
    fn not_a_number_is_no_data_and_never_bad() {
        let threshold = Threshold::new(Some(99.0), None).unwrap();
        for missing in
            [Measurement::Scalar(f64::NAN), Measurement::NoData, Measurement::Counts(Arms::default())]
        {
            let outcome = threshold.check(&missing).outcome;
            assert_eq!(outcome, JudgeOutcome::Inconclusive { reason: InconclusiveReason::NoData });
        }
        let outcome = threshold.check(&Measurement::Unavailable { why: "timeout".into() }).outcome;
        assert_eq!(outcome, JudgeOutcome::Inconclusive { reason: InconclusiveReason::Unavailable });
    }

    #[test]
    fn counts_are_judged_by_their_success_rate() {
        let arms = Arms { canary: Counts::of_bad(31, 1000), primary: Counts::of_bad(0, 19000) };
        let verdict = Threshold::new(Some(99.0), None).unwrap().check(&Measurement::Counts(arms));
        assert_eq!(verdict.outcome, FAIL);
        assert_eq!(verdict.message, "success rate 96.9 % of 1,000 requests, below the minimum 99");
    }

    #[test]
    fn a_range_that_nothing_can_meet_is_refused() {
        assert_eq!(Threshold::new(Some(2.0), Some(1.0)), Err(ThresholdError::Empty { min: 2.0, max: 1.0 }));
        assert!(Threshold::new(Some(f64::NAN), None).is_err());
    }
}
