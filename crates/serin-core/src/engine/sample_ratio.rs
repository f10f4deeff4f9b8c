//! Do the requests bear the split out? What the judge of the split is told, and
//! what follows from its verdict: a route that does not split as asked holds
//! the release, for no judgement of the canary means anything then.

use std::time::Duration;

use super::{
    check::CheckResult,
    decider::Decider,
    judge::{decode_state, encode_state},
    steps::Step,
};
use crate::{
    analysis::{
        measurement::Arms,
        sample_ratio::{SampleRatioState, SampleRatioTest, Tolerance},
        verdict::{InconclusiveReason, JudgeOutcome},
    },
    api::Weight,
};

/// How far apart in time the arms may be counted: as often as most servers
/// read a pod, and most answers are not that old.
const SCRAPE_SKEW: Duration = Duration::from_secs(30);

/// Requests a second that a pod may count although nobody routed them: three
/// probes every ten seconds, and those who read its metrics.
const UNROUTED_RPS: f64 = 0.5;

impl Decider<'_> {
    /// Is the split of this step one that can be checked?
    pub fn sample_ratio_applies(&self, step: &Step) -> bool {
        let split = &step.split;
        let divides = Weight::ZERO < split.canary && split.canary < Weight::FULL;
        // Who was sent somewhere stays there, by a cookie or by a header.
        let sticks = self.plan.affinity || !split.matches.is_empty();
        self.plan.verifies_split && divides && !sticks
    }

    /// Takes in the requests that a check counted, and in what time. Only a full
    /// check holds the release; until then nothing comes of it.
    pub fn update_sample_ratio(
        &mut self,
        step: &Step,
        requests: (Arms<u64>, Duration),
        full: bool,
    ) -> CheckResult {
        let tolerance = self.tolerance();
        let memory = &mut self.release().state.sample_ratio;
        let mut evidence: SampleRatioState = decode_state(memory.as_ref());
        let asked = step.split.canary.percent() / 100.0;
        let verdict = SampleRatioTest::default().check(&mut evidence, asked, requests, tolerance);
        let check_result = match verdict.outcome {
            JudgeOutcome::Fail { .. }
            | JudgeOutcome::Inconclusive { reason: InconclusiveReason::TooFewSamples } => {
                CheckResult::Inconclusive(with_remedy(&verdict.message))
            }
            JudgeOutcome::Pass { .. } | JudgeOutcome::Inconclusive { .. } => CheckResult::PassedEarly,
        };
        if full && matches!(verdict.outcome, JudgeOutcome::Fail { .. }) {
            evidence.require_clearance();
        }
        *memory = encode_state(&evidence);
        check_result
    }

    /// What the route is accused of, until it is cleared.
    pub fn sample_ratio_warning(&self, step: &Step) -> Option<String> {
        let memory = self.status.release.as_ref()?.state.sample_ratio.as_ref();
        let evidence: SampleRatioState = decode_state(memory.filter(|_| self.sample_ratio_applies(step)));
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

fn with_remedy(accusation: &str) -> String {
    format!("{accusation}; see which requests go around it, or set spec.analysis.verifySplit: false")
}
