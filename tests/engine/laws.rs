//! The laws that every decision must keep, on any history.

use std::collections::{BTreeMap, BTreeSet};

use serin::{
    api::{
        Weight,
        canary::{
            CanaryStatus, HookType, Phase,
            status::{GateState, GateStatus},
        },
    },
    engine::{
        Action, Decision, Observed, Plan, Reason,
        action::{GateScope, Split, Stable},
        observed::GateReply,
        plan::steps::Strategy,
        report::RollbackCause,
    },
};

use crate::invariant::{Coverage, Invariant, Violation};

/// The evidence that was delivered, counted independently of the engine.
#[derive(Default)]
pub struct Model {
    /// Full checks with good measurements, by release and step.
    pub passed_checks: BTreeMap<(u64, u32), BTreeSet<u32>>,
    /// Releases with a bad measurement or a gate that was refused.
    pub with_negative_evidence: BTreeSet<u64>,
    /// Releases that a person promoted.
    pub promoted_by_command: BTreeSet<u64>,
}

/// Of one law on one decision: was it kept? `None` where the state leaves no way
/// to break it.
type Verdict = Option<bool>;

/// One decision with all that the laws need to know of it.
pub struct Laws<'a> {
    pub plan: &'a Plan,
    pub model: &'a Model,
    pub before: &'a CanaryStatus,
    pub seen: &'a Observed,
    pub decision: &'a Decision,
    pub window_open: bool,
}

impl Laws<'_> {
    /// Checks every law, and counts those that could have been broken.
    pub fn violations(&self, coverage: &mut Coverage) -> Vec<Violation> {
        use Invariant::*;
        let laws: [(Option<Invariant>, &str, Verdict); 16] = [
            (
                Some(PromotedIsAnalysed),
                "only analysed revisions are promoted",
                self.promotes_only_analysed_revisions(),
            ),
            (
                Some(WeightFollowsPlan),
                "a canary gets traffic only while it can serve",
                self.routes_to_a_serving_canary(),
            ),
            (
                Some(WeightFollowsPlan),
                "weights rise along the plan, after the current step was judged",
                self.rises_along_the_plan(),
            ),
            (
                Some(WeightFollowsPlan),
                "a canary without a ready pod loses its traffic",
                self.withdraws_from_a_dead_canary(),
            ),
            (
                Some(FailureReturnsTraffic),
                "a broken primary gets no traffic back",
                self.spares_a_broken_primary(),
            ),
            (
                Some(FailureReturnsTraffic),
                "without a release no traffic goes to the canary",
                self.keeps_traffic_on_the_primary(),
            ),
            (
                Some(FailureReturnsTraffic),
                "a failed canary loses its traffic at once",
                self.withdraws_traffic_at_once(),
            ),
            (
                Some(ReturnsToReadyPrimary),
                "traffic returns to a ready primary",
                self.returns_to_a_ready_primary(),
            ),
            (
                Some(ReturnsToReadyPrimary),
                "a promotion is recorded once the primary is ready with it",
                self.records_promotion_when_ready(),
            ),
            (Some(EvidenceRollsBack), "only evidence rolls back", self.rolls_back_on_evidence()),
            (
                Some(FreezeHolds),
                "nothing advances in a freeze",
                (!self.window_open).then(|| !self.advances()),
            ),
            (
                Some(FreezeHolds),
                "nothing is done while suspended",
                self.plan.suspend.then_some(self.decision.actions.is_empty()),
            ),
            (
                Some(UpgradeStartsNothing),
                "a revision that was seen before starts no release",
                self.starts_only_new_revisions(),
            ),
            (None, "a gate is opened by the reply to its own call", self.opens_gates_by_their_own_replies()),
            (None, "a paused release does not advance", self.was_paused().then(|| !self.advances())),
            (None, "a canary is scaled down only without traffic", self.scales_down_without_traffic()),
        ];
        let mut violations = Vec::new();
        for (invariant, details, verdict) in laws {
            if let (Some(_), Some(invariant)) = (verdict, invariant) {
                coverage.count(invariant);
            }
            if verdict == Some(false) {
                violations.push(Violation { invariant, details: details.to_owned() });
            }
        }
        violations
    }

    fn after(&self) -> &CanaryStatus {
        &self.decision.status
    }

    fn routed(&self) -> impl Iterator<Item = &Split> {
        self.decision.actions.iter().filter_map(|action| match action {
            Action::Route(split) => Some(split),
            _ => None,
        })
    }

    fn was_paused(&self) -> bool {
        self.before.release.as_ref().is_some_and(|release| release.paused)
            && self.after().last_command == self.before.last_command
    }

    fn rises(&self) -> bool {
        self.after().canary_weight > self.before.canary_weight
    }

    /// Starts, advances or promotes.
    fn advances(&self) -> bool {
        let starts = self.before.phase == Phase::Waiting && self.after().phase == Phase::Progressing;
        let promotes = self.decision.actions.iter().any(|action| matches!(action, Action::Promote { .. }));
        let step = |status: &CanaryStatus| status.step.as_ref().map(|step| (status.releases, step.index));
        let edited = matches!(self.decision.report.reason, Reason::StepsChanged { .. });
        let steps = step(self.after()) > step(self.before) && self.after().step.is_some() && !edited;
        starts || promotes || steps || self.rises()
    }

    fn promotes_only_analysed_revisions(&self) -> Verdict {
        let promoted: Vec<_> = self
            .decision
            .actions
            .iter()
            .filter_map(|action| match action {
                Action::Promote { revision } => Some(revision),
                _ => None,
            })
            .collect();
        let releases = self.after().releases;
        let last = self.plan.steps.len() as u32 - 1;
        let was_judged = self.plan.skip_analysis
            || self.before.phase == Phase::Promoting
            || self.model.promoted_by_command.contains(&releases)
            || self.after().last_command != self.before.last_command
            || self.judged(releases, last);
        let is_released = |revision: &&String| {
            let release = self.after().release.as_ref().is_some_and(|r| r.revision == **revision);
            release && self.seen.target.as_ref().is_some_and(|target| target.revision == **revision)
        };
        (!promoted.is_empty()).then(|| was_judged && promoted.iter().all(is_released))
    }

    fn judged(&self, release: u64, step: u32) -> bool {
        let needed = self.plan.steps[step as usize].checks as usize;
        let good = self.model.passed_checks.get(&(release, step)).map_or(0, BTreeSet::len);
        good >= needed
    }

    fn routes_to_a_serving_canary(&self) -> Verdict {
        let serves = self.seen.target.as_ref().is_some_and(|target| target.pods.ready > 0);
        self.routed().any(Split::reaches_canary).then_some(serves)
    }

    fn withdraws_from_a_dead_canary(&self) -> Verdict {
        let running = matches!(self.after().phase, Phase::Progressing | Phase::WaitingPromotion);
        let dead = self.seen.target.as_ref().is_none_or(|target| target.pods.ready == 0);
        let reaches = self.seen.split.as_ref().is_some_and(Split::reaches_canary);
        (running && dead && reaches && !self.plan.suspend)
            .then(|| self.routed().any(|split| !split.reaches_canary()))
    }

    /// After a failed promotion, a canary that serves goes on serving.
    fn spares_a_broken_primary(&self) -> Verdict {
        let restoring = self.after().release.as_ref().is_some_and(|release| release.state.restoring);
        let ready =
            self.seen.primary.as_ref().is_some_and(|p| p.pods.are_ready(self.plan.primary_ready_percent));
        let canary_serves = self.seen.target.as_ref().is_some_and(|target| target.pods.ready > 0);
        let promoted = self.after().revisions.as_ref().and_then(|revisions| revisions.primary.clone());
        let right = self.seen.primary.as_ref().is_some_and(|primary| primary.revision == promoted);
        let broken = !ready || !right;
        let stopped = matches!(self.after().phase, Phase::Failed | Phase::Waiting);
        let reached = self.seen.split.as_ref().is_some_and(Split::reaches_canary);
        (stopped && restoring && broken && canary_serves && reached)
            .then(|| self.routed().all(|split| split.stable == Stable::Previous))
    }

    fn rises_along_the_plan(&self) -> Verdict {
        let (before, after) = (self.before, self.after());
        let same_release = before.releases == after.releases;
        let index = |status: &CanaryStatus| status.step.as_ref().map(|step| step.index);
        let same_plan =
            before.release.as_ref().is_some_and(|release| release.state.plan == self.plan.fingerprint);
        let mut next_step = None;
        if let (true, true, Some(from), Some(to)) = (same_release, same_plan, index(before), index(after))
            && to > from
        {
            next_step = Some(to == from + 1 && self.judged(after.releases, from));
        }
        if !self.rises() || next_step == Some(false) {
            return next_step;
        }
        let ready = self.seen.target.as_ref().is_some_and(|target| {
            target.pods.desired > 0 && target.pods.are_ready(self.plan.canary_ready_percent)
        });
        let planned = match index(after) {
            _ if after.phase == Phase::Promoting => self.plan.strategy == Strategy::BlueGreen,
            Some(step) => self.plan.steps[step as usize].split.canary == after.canary_weight,
            None => false,
        };
        Some(ready && planned)
    }

    fn keeps_traffic_on_the_primary(&self) -> Verdict {
        let running = matches!(
            self.after().phase,
            Phase::Progressing | Phase::WaitingPromotion | Phase::Promoting | Phase::Finalising
        );
        (!running && self.routed().next().is_some())
            .then(|| self.routed().all(|split| !split.reaches_canary()))
    }

    fn withdraws_traffic_at_once(&self) -> Verdict {
        let stopped = matches!(
            self.after().phase,
            Phase::Initialized | Phase::Succeeded | Phase::Failed | Phase::Waiting
        );
        let reaches = self.seen.split.as_ref().is_some_and(Split::reaches_canary);
        let primary = self.seen.primary.as_ref();
        let serves = primary.is_some_and(|primary| primary.pods.can_serve());
        let promoted = self.after().revisions.as_ref().and_then(|revisions| revisions.primary.as_ref());
        let right = primary.is_some_and(|primary| primary.revision.as_ref() == promoted);
        let restoring = self.after().release.as_ref().is_some_and(|release| release.state.restoring);
        (stopped && !self.plan.suspend && reaches && serves && right && !restoring)
            .then(|| self.routed().any(|split| !split.reaches_canary()))
    }

    fn returns_to_a_ready_primary(&self) -> Verdict {
        let promoting = matches!(self.before.phase, Phase::Promoting | Phase::Finalising);
        let after = self.after();
        let had = self.seen.split.as_ref().map_or(Weight::ZERO, |split| split.canary);
        let primary = self.seen.primary.as_ref();
        let begun = primary.is_some_and(|primary| {
            primary.revision.as_deref()
                == self.before.release.as_ref().map(|release| release.revision.as_str())
        });
        let ready = primary.is_some_and(|primary| primary.pods.are_ready(self.plan.primary_ready_percent));
        let canary_serves = self.seen.target.as_ref().is_some_and(|target| target.pods.ready > 0);
        let same_release = after.releases == self.before.releases;
        let returns = self.routed().any(|split| split.canary < had && split.stable == Stable::Primary);
        (promoting && begun && canary_serves && same_release && returns).then_some(ready)
    }

    fn records_promotion_when_ready(&self) -> Verdict {
        let promoted =
            |status: &CanaryStatus| status.revisions.as_ref().and_then(|revisions| revisions.primary.clone());
        let (before, after) = (promoted(self.before), promoted(self.after()));
        let rolled_back_by_command = self.after().last_command != self.before.last_command;
        let ready = self.seen.primary.as_ref().is_some_and(|primary| {
            rolled_back_by_command
                || primary.pods.are_ready(self.plan.primary_ready_percent) && primary.revision == after
        });
        (before != after).then_some(ready)
    }

    fn rolls_back_on_evidence(&self) -> Verdict {
        let report = &self.decision.report;
        let reports = report.preceding.iter().chain([report]);
        let cause = reports.map(|report| &report.reason).find_map(|reason| match reason {
            Reason::RolledBack { cause, .. } => Some(cause),
            _ => None,
        })?;
        let canary = self.seen.target.as_ref().map(|target| target.pods).unwrap_or_default();
        let primary = self.seen.primary.as_ref().map(|primary| primary.pods).unwrap_or_default();
        Some(match cause {
            RollbackCause::Checks { .. } | RollbackCause::Metric { .. } => {
                self.model.with_negative_evidence.contains(&self.before.releases)
            }
            RollbackCause::Deadline { .. } => {
                let unready = canary.desired == 0
                    || !canary.are_ready(self.plan.canary_ready_percent)
                    || !primary.are_ready(self.plan.primary_ready_percent);
                let planned = match &self.before.step {
                    // An edit may have removed the step.
                    Some(step) => {
                        let planned = self.plan.steps.get(step.index as usize);
                        let planned = planned.map_or_else(Split::all_primary, |step| step.split.clone());
                        Split { canary: self.before.canary_weight, ..planned }
                    }
                    None => Split::all_primary(),
                };
                let misrouted = self.seen.split.as_ref() != Some(&planned);
                // The copy to the primary was requested and never observed.
                let copying = self.before.phase == Phase::Promoting;
                self.plan.deadline.explicit || unready || misrouted || copying
            }
            RollbackCause::GateExpired { .. }
            | RollbackCause::ApprovalRefused { .. }
            | RollbackCause::RollbackGate { .. } => return None,
            RollbackCause::Aborted { .. } | RollbackCause::PromotionRolledBack { .. } => {
                self.after().last_command != self.before.last_command
            }
        })
    }

    /// The engine's part of an upgrade: the caller hashes the target in the form
    /// of the recorded revision, and an unchanged revision starts nothing.
    fn starts_only_new_revisions(&self) -> Verdict {
        let target = self.seen.target.as_ref().map(|target| &target.revision)?;
        let recorded = self.before.revisions.as_ref().and_then(|revisions| revisions.seen.as_ref())?;
        let commanded = self.after().last_command != self.before.last_command;
        (target == recorded && !commanded).then_some(self.after().releases == self.before.releases)
    }

    fn opens_gates_by_their_own_replies(&self) -> Verdict {
        let after = self.after();
        let opened =
            |gate: &&GateStatus| gate.state == GateState::Open && gate.type_ != Some(HookType::PostRollout);
        let is_legitimate = |gate: &GateStatus| {
            let was_open = after.releases == self.before.releases && self.before.gates.contains(gate);
            let answered = self.seen.gate_results.iter().any(|result| {
                let call = &result.call;
                matches!(result.reply, GateReply::Yes { .. })
                    && (call.release, call.kind, &call.gate) == (after.releases, gate.type_, &gate.name)
                    && call.scope == gate.step.map_or(GateScope::Release, GateScope::Step)
            });
            was_open || answered
        };
        let mut opened = after.gates.iter().filter(opened).peekable();
        opened.peek()?;
        Some(opened.all(is_legitimate))
    }

    fn scales_down_without_traffic(&self) -> Verdict {
        let scales_down = self.decision.actions.iter().any(|action| {
            matches!(action, Action::ScaleCanary { replicas: 0 } | Action::ScaleDownCanary { .. })
        });
        scales_down.then(|| self.seen.split.as_ref().is_some_and(|split| !split.reaches_canary()))
    }
}
