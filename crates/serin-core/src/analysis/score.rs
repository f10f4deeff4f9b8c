//! Kayenta's score of several metrics: the weighted share of those that passed,
//! with a marginal range between pass and fail.
//!
//! Inconclusive metrics have no share in it, and without any verdict there is no
//! score: missing data is not a perfect result.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::format::percent;
use super::measurement::Arms;
use super::verdict::{Estimate, InconclusiveReason, JudgeOutcome, Verdict};

/// The shares (0 to 1) from which a score passes, and below which it fails.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Score {
    pass: f64,
    marginal: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Error)]
pub enum ScoreError {
    #[error(
        "passScore {pass} and marginalScore {marginal} must both be from 0 to 1, and passScore not below marginalScore"
    )]
    Order { pass: f64, marginal: f64 },
}

impl Default for Score {
    fn default() -> Self {
        Score { pass: 0.95, marginal: 0.75 }
    }
}

impl Score {
    pub fn new(pass: f64, marginal: f64) -> Result<Self, ScoreError> {
        if 0.0 <= marginal && marginal <= pass && pass <= 1.0 {
            Ok(Score { pass, marginal })
        } else {
            Err(ScoreError::Order { pass, marginal })
        }
    }

    /// Judges metrics together, each by its weight. A critical failure of one
    /// metric fails the score critically.
    pub fn combine(&self, metrics: impl IntoIterator<Item = (JudgeOutcome, f64)>) -> Verdict {
        let (mut passed, mut all, mut critical) = (0.0, 0.0, false);
        for (outcome, weight) in metrics {
            match outcome {
                JudgeOutcome::Pass { .. } => passed += weight,
                JudgeOutcome::Fail { critical: true } => critical = true,
                JudgeOutcome::Fail { critical: false } => {}
                JudgeOutcome::BeyondLimit => {}
                JudgeOutcome::Inconclusive { .. } => continue,
            }
            all += weight;
        }
        if critical {
            return self.verdict(JudgeOutcome::Fail { critical }, 0.0, "a metric failed critically");
        }
        if all <= 0.0 {
            return Verdict::inconclusive(
                InconclusiveReason::NoData,
                Arms::default(),
                "no metric has a verdict to score",
            );
        }
        match passed / all {
            score if score >= self.pass => {
                self.verdict(JudgeOutcome::Pass { non_inferior: false }, score, "enough to pass")
            }
            score if score < self.marginal => {
                self.verdict(JudgeOutcome::Fail { critical: false }, score, "too little")
            }
            score => self.verdict(
                JudgeOutcome::Inconclusive { reason: InconclusiveReason::TooFewSamples },
                score,
                "neither pass nor fail",
            ),
        }
    }

    fn verdict(&self, outcome: JudgeOutcome, score: f64, finding: &str) -> Verdict {
        let message = format!(
            "score {}: {finding} (passes from {}, fails below {})",
            percent(score),
            percent(self.pass),
            percent(self.marginal)
        );
        Verdict { outcome, estimate: Some(Estimate::exact(score)), samples: Arms::default(), message }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASS: JudgeOutcome = JudgeOutcome::Pass { non_inferior: false };
    const FAIL: JudgeOutcome = JudgeOutcome::Fail { critical: false };
    const NO_DATA: JudgeOutcome = JudgeOutcome::Inconclusive { reason: InconclusiveReason::NoData };

    #[test]
    fn weights_decide_between_pass_middle_and_fail() {
        let score = Score::default();
        for (failing, expected) in [
            (5.0, PASS),
            (6.0, JudgeOutcome::Inconclusive { reason: InconclusiveReason::TooFewSamples }),
            (26.0, FAIL),
        ] {
            assert_eq!(
                score.combine([(PASS, 100.0 - failing), (FAIL, failing)]).outcome,
                expected,
                "{failing}"
            );
        }
        assert_eq!(
            score.combine([(PASS, 1.0), (JudgeOutcome::Fail { critical: true }, 0.0)]).outcome,
            JudgeOutcome::Fail { critical: true }
        );
    }

    #[test]
    fn missing_data_is_no_perfect_score() {
        assert_eq!(Score::default().combine([(NO_DATA, 1.0)]).outcome, NO_DATA);
        assert_eq!(Score::default().combine([(NO_DATA, 9.0), (FAIL, 1.0)]).outcome, FAIL);
    }

    #[test]
    fn a_pass_below_the_margin_is_refused() {
        assert!(Score::new(0.5, 0.75).is_err());
        assert!(Score::new(95.0, 75.0).is_err());
    }
}
