//! Several metrics, one ruling: all must pass to advance, any that fails
//! counts, a critical one at once. What is missing is treated as its metric
//! says, and by default holds: it never counts as bad by itself.

use serde::{Deserialize, Serialize};

use super::verdict::{Doubt, Outcome, Verdict};

/// What a metric without an answer means for the release.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Absence {
    /// Neither advance nor count against; wait for an answer.
    #[default]
    Hold,
    /// As bad as a failed check.
    Fail,
    /// As if the metric had not been asked for.
    Ignore,
}

/// How one metric counts among the others.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Standing {
    /// One failure of it is enough.
    pub critical: bool,
    pub on_no_data: Absence,
    pub on_unavailable: Absence,
}

/// A metric's verdict and how it counts.
#[derive(Debug, Clone, Copy)]
pub struct Judged<'a> {
    pub metric: &'a str,
    pub standing: Standing,
    pub verdict: &'a Verdict,
}

/// What all metrics together say about a look.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Ruling {
    pub call: Call,
    pub sentence: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Call {
    /// Everything passed, and was shown to be within the margin.
    Certified,
    /// Everything passed.
    Advance,
    /// Nothing failed, but not everything passed.
    Hold,
    /// A failed check.
    Fail,
    /// A failure that needs no second.
    FailAtOnce,
}

/// The gravest call of any metric, and who made it. Without metrics, or with
/// all of them ignored, nothing stands in the way; nothing is certified either.
pub fn rule(metrics: &[Judged]) -> Ruling {
    let calls: Vec<_> = metrics.iter().filter_map(|judged| Some((call(judged)?, judged))).collect();
    let gravest = calls.iter().map(|(call, _)| *call).max();
    let sentence = match gravest {
        None if metrics.is_empty() => "no metrics to judge by".to_string(),
        None => format!("without an answer and ignored: {}", names(metrics.iter())),
        Some(gravest) => {
            let callers = calls.iter().filter(|(call, _)| *call == gravest);
            let said: Vec<_> = callers.map(|(_, judged)| say(judged)).collect();
            said.join("; ")
        }
    };
    Ruling { call: gravest.unwrap_or(Call::Advance), sentence }
}

/// A metric's own call; none if it is to be ignored.
fn call(Judged { standing, verdict, .. }: &Judged) -> Option<Call> {
    let failed = |critical| if critical { Call::FailAtOnce } else { Call::Fail };
    let absent = |absence| match absence {
        Absence::Hold => Some(Call::Hold),
        Absence::Fail => Some(failed(standing.critical)),
        Absence::Ignore => None,
    };
    match verdict.outcome {
        Outcome::Pass { certified: true } => Some(Call::Certified),
        Outcome::Pass { certified: false } => Some(Call::Advance),
        Outcome::Fail { critical } => Some(failed(critical || standing.critical)),
        Outcome::Inconclusive { doubt: Doubt::NoData } => absent(standing.on_no_data),
        Outcome::Inconclusive { doubt: Doubt::Unavailable } => absent(standing.on_unavailable),
        Outcome::Inconclusive { doubt: Doubt::TooLittle | Doubt::Unfit } => Some(Call::Hold),
    }
}

fn say(judged: &Judged) -> String {
    format!("{}: {}", judged.metric, judged.verdict.sentence)
}

fn names<'a>(metrics: impl Iterator<Item = &'a Judged<'a>>) -> String {
    metrics.map(|judged| judged.metric).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::measurement::Arms;
    use proptest::prelude::*;

    fn verdict(outcome: Outcome) -> Verdict {
        Verdict { outcome, estimate: None, samples: Arms::default(), sentence: "so it is".into() }
    }

    const PASS: Outcome = Outcome::Pass { certified: false };
    const CERTIFIED: Outcome = Outcome::Pass { certified: true };
    const FAIL: Outcome = Outcome::Fail { critical: false };
    const NO_DATA: Outcome = Outcome::Inconclusive { doubt: Doubt::NoData };
    const UNAVAILABLE: Outcome = Outcome::Inconclusive { doubt: Doubt::Unavailable };
    const TOO_LITTLE: Outcome = Outcome::Inconclusive { doubt: Doubt::TooLittle };

    fn ruling(metrics: &[(Outcome, Standing)]) -> Ruling {
        let verdicts: Vec<_> = metrics.iter().map(|(outcome, _)| verdict(*outcome)).collect();
        let judged: Vec<_> = metrics
            .iter()
            .zip(&verdicts)
            .map(|((_, standing), verdict)| Judged { metric: "errors", standing: *standing, verdict })
            .collect();
        rule(&judged)
    }

    #[track_caller]
    fn check(outcomes: &[Outcome], expected: Call) {
        let metrics: Vec<_> = outcomes.iter().map(|outcome| (*outcome, Standing::default())).collect();
        assert_eq!(ruling(&metrics).call, expected);
    }

    #[test]
    fn all_must_pass_to_advance() {
        check(&[], Call::Advance);
        check(&[PASS, PASS], Call::Advance);
        check(&[PASS, TOO_LITTLE], Call::Hold);
        check(&[PASS, TOO_LITTLE, FAIL], Call::Fail);
        check(&[CERTIFIED, PASS], Call::Advance);
        check(&[CERTIFIED, CERTIFIED], Call::Certified);
    }

    #[test]
    fn no_answer_holds_unless_its_metric_says_otherwise() {
        check(&[PASS, NO_DATA], Call::Hold);
        check(&[PASS, UNAVAILABLE], Call::Hold);
        let fail = Standing { on_no_data: Absence::Fail, ..Standing::default() };
        assert_eq!(ruling(&[(NO_DATA, fail)]).call, Call::Fail);
        assert_eq!(ruling(&[(UNAVAILABLE, fail)]).call, Call::Hold);
        let ignore = Standing { on_unavailable: Absence::Ignore, ..Standing::default() };
        assert_eq!(ruling(&[(UNAVAILABLE, ignore), (CERTIFIED, ignore)]).call, Call::Certified);
        let all_ignored = ruling(&[(UNAVAILABLE, ignore)]);
        assert_eq!(all_ignored.call, Call::Advance);
        assert_eq!(all_ignored.sentence, "without an answer and ignored: errors");
    }

    #[test]
    fn a_critical_metric_fails_at_once() {
        let critical = Standing { critical: true, ..Standing::default() };
        assert_eq!(ruling(&[(FAIL, critical)]).call, Call::FailAtOnce);
        assert_eq!(ruling(&[(PASS, critical), (FAIL, Standing::default())]).call, Call::Fail);
        check(&[Outcome::Fail { critical: true }], Call::FailAtOnce);
    }

    #[test]
    fn the_sentence_names_only_who_made_the_call() {
        let (bad, good) = (verdict(FAIL), verdict(PASS));
        let standing = Standing::default();
        let ruling = rule(&[
            Judged { metric: "latency", standing, verdict: &good },
            Judged { metric: "errors", standing, verdict: &bad },
        ]);
        assert_eq!(ruling.sentence, "errors: so it is");
    }

    proptest! {
        #[test]
        fn a_worse_metric_never_makes_a_better_ruling(
            outcomes in prop::collection::vec(0..6usize, 0..6), more in 0..6usize,
        ) {
            let kinds = [CERTIFIED, PASS, TOO_LITTLE, NO_DATA, FAIL, Outcome::Fail { critical: true }];
            let mut metrics: Vec<_> = outcomes.iter().map(|&i| (kinds[i], Standing::default())).collect();
            let before = ruling(&metrics).call;
            let none = metrics.is_empty();
            metrics.push((kinds[more], Standing::default()));
            prop_assert!(ruling(&metrics).call >= before || none);
        }
    }
}
