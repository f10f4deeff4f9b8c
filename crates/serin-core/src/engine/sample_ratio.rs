//! The sample ratio mismatch test: do the request counts match the split? A
//! mismatch holds the release, since no judgement of the canary means anything
//! then.

use std::time::Duration;

use super::{
    check::CheckResult,
    decider::Decider,
    plan::{
        metrics::{decode_state, encode_state},
        steps::Step,
    },
};
use crate::{
    analysis::{
        measurement::Arms,
        sample_ratio::{SampleRatioState, SampleRatioTest, Tolerance},
        verdict::{InconclusiveReason, JudgeOutcome},
    },
    api::Weight,
};

/// How far apart in time the counts of the arms may be: the scrape interval of
/// most servers.
const SCRAPE_SKEW: Duration = Duration::from_secs(30);

/// Requests a second that a pod may count without any route: three probes every
/// ten seconds, and scrapes of its metrics.
const UNROUTED_RPS: f64 = 0.5;

impl Decider<'_> {
    /// Can the split of this step be verified by counting requests?
    pub fn sample_ratio_applies(&self, step: &Step) -> bool {
        let split = &step.split;
        let divides = Weight::ZERO < split.canary && split.canary < Weight::FULL;
        // A cookie or a header keeps users on one arm, whatever the weight.
        let sticky = self.plan.affinity.is_some() || !split.matches.is_empty();
        self.plan.verifies_split && divides && !sticky
    }

    /// Adds the requests that a check counted, and their duration. Only a full
    /// check can hold the release.
    pub fn update_sample_ratio(
        &mut self,
        step: &Step,
        requests: (Arms<u64>, Duration),
        full: bool,
    ) -> CheckResult {
        let tolerance = self.tolerance();
        let stored = &mut self.release().state.sample_ratio;
        let mut evidence: SampleRatioState = decode_state(stored.as_ref());
        let expected = step.split.canary.percent() / 100.0;
        let verdict = SampleRatioTest::default().check(&mut evidence, expected, requests, tolerance);
        let check_result = match verdict.outcome {
            JudgeOutcome::Fail { .. }
            | JudgeOutcome::BeyondLimit
            | JudgeOutcome::Inconclusive { reason: InconclusiveReason::TooFewSamples } => {
                CheckResult::Inconclusive(with_remedy(&verdict.message))
            }
            JudgeOutcome::Pass { .. } | JudgeOutcome::Inconclusive { .. } => CheckResult::PassedEarly,
        };
        if full && matches!(verdict.outcome, JudgeOutcome::Fail { .. }) {
            evidence.require_clearance();
        }
        *stored = encode_state(&evidence);
        check_result
    }

    /// The last mismatch, until enough requests matched the split again.
    pub fn sample_ratio_warning(&self, step: &Step) -> Option<String> {
        let stored = self.status.release.as_ref()?.state.sample_ratio.as_ref();
        let evidence: SampleRatioState = decode_state(stored.filter(|_| self.sample_ratio_applies(step)));
        evidence.pending_clearance().as_deref().map(with_remedy)
    }

    fn tolerance(&self) -> Tolerance {
        let ready = Arms {
            canary: self.observed.target.as_ref().map_or(0, |target| target.pods.ready),
            primary: self.observed.primary.as_ref().map_or(0, |primary| primary.pods.ready),
        };
        Tolerance { read_skew: SCRAPE_SKEW, unrouted_rps: ready.map(|pods| UNROUTED_RPS * f64::from(*pods)) }
    }
}

fn with_remedy(mismatch: &str) -> String {
    format!("{mismatch}; see which requests bypass it, or set spec.analysis.verifySplit: false")
}
