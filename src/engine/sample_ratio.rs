//! Do the requests bear the split out? What the judge of the split is told, and
//! what follows from its verdict: a route that does not split as asked holds
//! the release, for no judgement of the canary means anything then.

use std::time::Duration;

use super::{
    judge::{recall, remember},
    look::Looked,
    pass::Pass,
    steps::Step,
};
use crate::{
    analysis::{
        measurement::Arms,
        split::{Leeway, Split, SplitEvidence},
        verdict::{Doubt, Outcome},
    },
    api::Weight,
};

/// How far apart in time the arms may be counted: as often as most servers
/// read a pod, and most answers are not that old.
const APART: Duration = Duration::from_secs(30);

/// Requests a second that a pod may count although nobody routed them: three
/// probes every ten seconds, and those who read its metrics.
const UNROUTED: f64 = 0.5;

impl Pass<'_> {
    /// Is the split of this step one that can be checked?
    pub fn checks_split(&self, step: &Step) -> bool {
        let split = &step.split;
        let divides = Weight::ZERO < split.canary && split.canary < Weight::FULL;
        // Who was sent somewhere stays there, by a cookie or by a header.
        let sticks = self.plan.affinity || !split.matches.is_empty();
        self.plan.verifies_split && divides && !sticks
    }

    /// Takes in the requests that a look counted, and in what time. Only a full
    /// look holds the release; until then nothing comes of it.
    pub fn check_split(&mut self, step: &Step, requests: (Arms<u64>, Duration), full: bool) -> Looked {
        let leeway = self.leeway();
        let memory = &mut self.release().state.split;
        let mut evidence: SplitEvidence = recall(memory.as_ref());
        let asked = step.split.canary.percent() / 100.0;
        let verdict = Split::default().look(&mut evidence, asked, requests, leeway);
        let looked = match verdict.outcome {
            Outcome::Fail { .. } | Outcome::Inconclusive { doubt: Doubt::TooLittle } => {
                Looked::Doubt(with_way_out(&verdict.sentence))
            }
            Outcome::Pass { .. } | Outcome::Inconclusive { .. } => Looked::Certified,
        };
        if full && matches!(verdict.outcome, Outcome::Fail { .. }) {
            evidence.begin_again();
        }
        *memory = remember(&evidence);
        looked
    }

    /// What the route is accused of, until it is cleared.
    pub fn route_doubt(&self, step: &Step) -> Option<String> {
        let memory = self.status.release.as_ref()?.state.split.as_ref();
        let evidence: SplitEvidence = recall(memory.filter(|_| self.checks_split(step)));
        evidence.accusation().as_deref().map(with_way_out)
    }

    fn leeway(&self) -> Leeway {
        let ready = Arms {
            canary: self.seen.target.as_ref().map_or(0, |target| target.pods.ready),
            primary: self.seen.primary.as_ref().map_or(0, |primary| primary.pods.ready),
        };
        Leeway { apart: APART, unrouted: ready.map(|pods| UNROUTED * f64::from(*pods)) }
    }
}

fn with_way_out(accusation: &str) -> String {
    format!("{accusation}; see which requests go around it, or set spec.analysis.verifySplit: false")
}
