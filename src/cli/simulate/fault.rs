//! `--fault`: how a simulated revision differs from the one before.

use std::fmt;
use std::str::FromStr;

use serin_core::simulation::{Difference, Scenario};

use crate::api::Duration;

/// Differences that come at once; none for a healthy revision.
#[derive(Clone, Debug, PartialEq)]
pub struct Fault {
    text: String,
    differences: Vec<Difference>,
}

#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error(
    "{part:?} is not a fault: write errors=2%, p99=+40%, p99=800ms, slow=1%:+800ms, pod=5% or none, with commas between faults that come at once"
)]
pub struct NotAFault {
    part: String,
}

impl Fault {
    pub fn none() -> Self {
        Self { text: "none".to_owned(), differences: Vec::new() }
    }

    /// A share of the requests fails.
    pub fn errors(share: f64) -> Self {
        Self { text: format!("errors={}%", share * 100.0), differences: vec![Difference::Errors(share)] }
    }

    pub fn is_none(&self) -> bool {
        self.differences.is_empty()
    }

    /// The traffic of a revision that differs in this way.
    pub fn of(&self, healthy: &Scenario, durations: bool) -> Scenario {
        Scenario { canary: self.differences.clone(), latency: durations, ..healthy.clone() }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for Fault {
    type Err = NotAFault;

    fn from_str(text: &str) -> Result<Self, NotAFault> {
        if text == "none" {
            return Ok(Self::none());
        }
        let part = |part: &str| difference(part).ok_or_else(|| NotAFault { part: part.to_owned() });
        let differences = text.split(',').map(part).collect::<Result<_, _>>()?;
        Ok(Self { text: text.to_owned(), differences })
    }
}

fn difference(part: &str) -> Option<Difference> {
    let (kind, value) = part.trim().split_once('=')?;
    match kind {
        "errors" => share(value).map(Difference::Errors),
        "pod" => share(value).map(Difference::OnePod),
        // Of log-normal durations every quantile grows by the same factor.
        "p99" => match value.strip_prefix('+') {
            Some(more) => percent(more).map(|more| Difference::Slower(1.0 + more)),
            None => {
                let p99: Duration = value.parse().ok()?;
                (!p99.get().is_zero()).then(|| Difference::Tail(p99.get().as_secs_f64()))
            }
        },
        "slow" => {
            let (part, by) = value.split_once(":+")?;
            let by: Duration = by.parse().ok()?;
            Some(Difference::Delayed(share(part)?, by.get().as_secs_f64()))
        }
        _ => None,
    }
}

/// `2%` as 0.02.
fn percent(text: &str) -> Option<f64> {
    let number: f64 = text.strip_suffix('%')?.parse().ok()?;
    (number.is_finite() && number >= 0.0).then_some(number / 100.0)
}

fn share(text: &str) -> Option<f64> {
    percent(text).filter(|share| *share <= 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_read_and_may_come_at_once() {
        let differences = |text: &str| text.parse::<Fault>().map(|fault| fault.differences);
        assert_eq!(differences("errors=2%"), Ok(vec![Difference::Errors(0.02)]));
        assert_eq!(differences("p99=800ms"), Ok(vec![Difference::Tail(0.8)]));
        assert_eq!(differences("none"), Ok(Vec::new()));
        assert_eq!(
            differences("errors=0.5%, p99=+50%,slow=1%:+800ms,pod=100%"),
            Ok(vec![
                Difference::Errors(0.005),
                Difference::Slower(1.5),
                Difference::Delayed(0.01, 0.8),
                Difference::OnePod(1.0)
            ])
        );
    }

    #[test]
    fn what_is_no_fault_is_refused_with_examples() {
        for text in
            ["", "errors", "errors=2", "errors=101%", "p99=40%", "slow=1%", "slow=1%:800ms", "none,none"]
        {
            let error = text.parse::<Fault>().expect_err(text);
            assert!(error.to_string().contains("errors=2%"), "{error}");
        }
    }
}
