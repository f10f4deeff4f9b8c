//! The laws that every pass must keep, whatever happened before.

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

/// What was really judged, counted without the engine's help.
#[derive(Default)]
pub struct Model {
    /// Good full looks that were delivered, by release and step.
    pub passed_checks: BTreeMap<(u64, u32), BTreeSet<u32>>,
    /// Releases that anything ever spoke against.
    pub with_negative_evidence: BTreeSet<u64>,
    /// Releases that a person promoted.
    pub promoted_by_command: BTreeSet<u64>,
}

/// One pass, and the laws it must keep.
pub struct Laws<'a> {
    pub plan: &'a Plan,
    pub model: &'a Model,
    pub before: &'a CanaryStatus,
    pub seen: &'a Observed,
    pub decision: &'a Decision,
}

impl Laws<'_> {
    /// Those that it does not.
    pub fn violated(&self, window_open: bool) -> Vec<&'static str> {
        let laws: [(&'static str, bool); 15] = [
            ("1: what is promoted was analysed", self.promotes_only_analysed_revisions()),
            ("2: a canary gets traffic only while it can serve", self.routes_to_a_serving_canary()),
            ("2: shares rise along the plan, after the present one was judged", self.rises_along_the_plan()),
            ("2: a canary that is down loses its traffic", self.withdraws_from_a_dead_canary()),
            ("3: a broken primary gets nothing back", self.spares_a_broken_primary()),
            ("3: without a release nothing goes to the canary", self.keeps_traffic_on_the_primary()),
            ("3: a lost canary loses its traffic at once", self.withdraws_traffic_at_once()),
            ("4: traffic comes home to a ready primary", self.returns_to_a_ready_primary()),
            ("4: a promotion is done once the primary is ready with it", self.records_promotion_when_ready()),
            ("5: only evidence rolls back", self.rolls_back_on_evidence()),
            ("a gate is opened by the answer to its own question", self.opens_gates_by_their_own_answers()),
            ("8: nothing moves in a freeze", window_open || !self.moves()),
            ("8: nothing moves while suspended", !self.plan.suspend || self.decision.actions.is_empty()),
            ("a paused release does not move", !self.was_paused() || !self.moves()),
            ("a canary is emptied only without traffic", self.scales_down_without_traffic()),
        ];
        laws.into_iter().filter(|(_, kept)| !kept).map(|(law, _)| law).collect()
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
    fn moves(&self) -> bool {
        let starts = self.before.phase == Phase::Waiting && self.after().phase == Phase::Progressing;
        let promotes = self.decision.actions.iter().any(|action| matches!(action, Action::Promote { .. }));
        let step = |status: &CanaryStatus| status.step.as_ref().map(|step| (status.releases, step.index));
        let edited = matches!(self.decision.report.reason, Reason::StepsChanged { .. });
        let steps = step(self.after()) > step(self.before) && self.after().step.is_some() && !edited;
        starts || promotes || steps || self.rises()
    }

    fn promotes_only_analysed_revisions(&self) -> bool {
        self.decision.actions.iter().all(|action| {
            let Action::Promote { revision } = action else { return true };
            let release = self.after().release.as_ref().unwrap();
            let is_target = self.seen.target.as_ref().is_some_and(|target| target.revision == *revision);
            let releases = self.after().releases;
            let last = self.plan.steps.len() as u32 - 1;
            let was_judged = self.plan.skip_analysis
                || self.before.phase == Phase::Promoting
                || self.model.promoted_by_command.contains(&releases)
                || self.after().last_command != self.before.last_command
                || self.judged(releases, last);
            release.revision == *revision && is_target && was_judged
        })
    }

    fn judged(&self, release: u64, step: u32) -> bool {
        let needed = self.plan.steps[step as usize].checks as usize;
        let good = self.model.passed_checks.get(&(release, step)).map_or(0, BTreeSet::len);
        good >= needed
    }

    fn routes_to_a_serving_canary(&self) -> bool {
        let serves = self.seen.target.as_ref().is_some_and(|target| target.pods.ready > 0);
        self.routed().all(|split| !split.reaches_canary() || serves)
    }

    fn withdraws_from_a_dead_canary(&self) -> bool {
        let running = matches!(self.after().phase, Phase::Progressing | Phase::WaitingPromotion);
        let dead = self.seen.target.as_ref().is_none_or(|target| target.pods.ready == 0);
        let reaches = self.seen.split.as_ref().is_some_and(Split::reaches_canary);
        !(running && dead && reaches)
            || self.plan.suspend
            || self.routed().any(|split| !split.reaches_canary())
    }

    /// After a promotion that failed, a canary that serves goes on serving.
    fn spares_a_broken_primary(&self) -> bool {
        let restoring = self.after().release.as_ref().is_some_and(|release| release.state.restoring);
        let ready =
            self.seen.primary.as_ref().is_some_and(|p| p.pods.are_ready(self.plan.primary_ready_percent));
        let canary_serves = self.seen.target.as_ref().is_some_and(|target| target.pods.ready > 0);
        let promoted = self.after().revisions.as_ref().and_then(|revisions| revisions.primary.clone());
        let right = self.seen.primary.as_ref().is_some_and(|primary| primary.revision == promoted);
        let broken = !ready || !right;
        let resting = matches!(self.after().phase, Phase::Failed | Phase::Waiting);
        let reached = self.seen.split.as_ref().is_some_and(Split::reaches_canary);
        !(resting && restoring && broken && canary_serves && reached)
            || self.routed().all(|split| split.stable == Stable::Previous)
    }

    fn rises_along_the_plan(&self) -> bool {
        let (before, after) = (self.before, self.after());
        let same_release = before.releases == after.releases;
        let index = |status: &CanaryStatus| status.step.as_ref().map(|step| step.index);
        let same_plan =
            before.release.as_ref().is_some_and(|release| release.state.plan == self.plan.fingerprint);
        if let (true, true, Some(from), Some(to)) = (same_release, same_plan, index(before), index(after))
            && (to > from + 1 || (to == from + 1 && !self.judged(after.releases, from)))
        {
            return false;
        }
        if !self.rises() {
            return true;
        }
        let ready = self.seen.target.as_ref().is_some_and(|target| {
            target.pods.desired > 0 && target.pods.are_ready(self.plan.canary_ready_percent)
        });
        let planned = match index(after) {
            _ if after.phase == Phase::Promoting => self.plan.strategy == Strategy::BlueGreen,
            Some(step) => self.plan.steps[step as usize].split.canary == after.canary_weight,
            None => false,
        };
        ready && planned
    }

    fn keeps_traffic_on_the_primary(&self) -> bool {
        let running = matches!(
            self.after().phase,
            Phase::Progressing | Phase::WaitingPromotion | Phase::Promoting | Phase::Finalising
        );
        running || self.routed().all(|split| !split.reaches_canary())
    }

    fn withdraws_traffic_at_once(&self) -> bool {
        let resting = matches!(
            self.after().phase,
            Phase::Initialized | Phase::Succeeded | Phase::Failed | Phase::Waiting
        );
        let reaches = self.seen.split.as_ref().is_some_and(Split::reaches_canary);
        let primary = self.seen.primary.as_ref();
        let serves = primary.is_some_and(|primary| primary.pods.can_serve());
        let promoted = self.after().revisions.as_ref().and_then(|revisions| revisions.primary.as_ref());
        let right = primary.is_some_and(|primary| primary.revision.as_ref() == promoted);
        let restoring = self.after().release.as_ref().is_some_and(|release| release.state.restoring);
        !resting
            || self.plan.suspend
            || !reaches
            || !serves
            || !right
            || restoring
            || self.routed().any(|split| !split.reaches_canary())
    }

    fn returns_to_a_ready_primary(&self) -> bool {
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
        if !promoting || !begun || !canary_serves || after.releases != self.before.releases {
            return true;
        }
        self.routed().all(|split| {
            let comes_home = split.canary < had && split.stable == Stable::Primary;
            !comes_home || ready
        })
    }

    fn records_promotion_when_ready(&self) -> bool {
        let promoted =
            |status: &CanaryStatus| status.revisions.as_ref().and_then(|revisions| revisions.primary.clone());
        let (before, after) = (promoted(self.before), promoted(self.after()));
        let taken_back = self.after().last_command != self.before.last_command;
        let Some(primary) = &self.seen.primary else { return before == after };
        let ready = primary.pods.are_ready(self.plan.primary_ready_percent) && primary.revision == after;
        before == after || taken_back || ready
    }

    fn rolls_back_on_evidence(&self) -> bool {
        let report = &self.decision.report;
        let mut said = report.preceding.iter().chain([report]).map(|report| &report.reason);
        let Some(Reason::RolledBack { cause, .. }) = said.find(|r| matches!(r, Reason::RolledBack { .. }))
        else {
            return true;
        };
        let accused = self.model.with_negative_evidence.contains(&self.before.releases);
        let canary = self.seen.target.as_ref().map(|target| target.pods).unwrap_or_default();
        let primary = self.seen.primary.as_ref().map(|primary| primary.pods).unwrap_or_default();
        match cause {
            RollbackCause::Checks { .. } | RollbackCause::Metric { .. } => accused,
            RollbackCause::Deadline { .. } => {
                let unready = canary.desired == 0
                    || !canary.are_ready(self.plan.canary_ready_percent)
                    || !primary.are_ready(self.plan.primary_ready_percent);
                let asked = self.before.canary_weight;
                let wanted = match &self.before.step {
                    // An edit may have taken the step away.
                    Some(step) => {
                        let planned = self.plan.steps.get(step.index as usize);
                        let planned = planned.map_or_else(Split::all_primary, |step| step.split.clone());
                        Split { canary: asked, ..planned }
                    }
                    None => Split::all_primary(),
                };
                let astray = self.seen.split.as_ref() != Some(&wanted);
                // Copying to the primary was asked for and never seen.
                let copying = self.before.phase == Phase::Promoting;
                self.plan.deadline.explicit || unready || astray || copying
            }
            RollbackCause::GateExpired { .. }
            | RollbackCause::ApprovalRefused { .. }
            | RollbackCause::RollbackGate { .. } => true,
            RollbackCause::Aborted { .. } | RollbackCause::PromotionRolledBack { .. } => {
                self.after().last_command != self.before.last_command
            }
        }
    }

    fn opens_gates_by_their_own_answers(&self) -> bool {
        let after = self.after();
        let opened =
            |gate: &&GateStatus| gate.state == GateState::Open && gate.type_ != Some(HookType::PostRollout);
        after.gates.iter().filter(opened).all(|gate| {
            let known = after.releases == self.before.releases && self.before.gates.contains(gate);
            let answered = self.seen.gate_results.iter().any(|answer| {
                let question = &answer.call;
                matches!(answer.reply, GateReply::Yes { .. })
                    && (question.release, question.kind, &question.gate)
                        == (after.releases, gate.type_, &gate.name)
                    && question.scope == gate.step.map_or(GateScope::Release, GateScope::Step)
            });
            known || answered
        })
    }

    fn scales_down_without_traffic(&self) -> bool {
        let empties = self.decision.actions.iter().any(|action| {
            matches!(action, Action::ScaleCanary { replicas: 0 } | Action::ScaleDownCanary { .. })
        });
        !empties || self.seen.split.as_ref().is_some_and(|split| !split.reaches_canary())
    }
}
