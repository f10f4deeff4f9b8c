//! The laws that every decision must keep, on any history.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serin::{
    api::{
        Weight,
        canary::{
            CanaryStatus, HookType, Phase,
            status::{GateState, GateStatus, Outcome},
        },
        condition::{Condition, ConditionStatus, DEGRADED, READY},
    },
    engine::{
        Action, Decision, Observed, Plan, Reason,
        action::{GateScope, Purpose, Split, Stable},
        observed::{Failure, GateReply},
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
    /// Was the latest full check good? By release and step.
    pub latest_check: BTreeMap<(u64, u32), bool>,
    /// Releases with a bad measurement or a gate that was refused.
    pub with_negative_evidence: BTreeSet<u64>,
    /// Releases that a person promoted.
    pub promoted_by_command: BTreeSet<u64>,
}

/// The invariants that one Canary's decisions can break.
pub const EXERCISED: [Invariant; 13] = {
    use Invariant::*;
    [
        PromotedIsAnalysed,
        WeightFollowsPlan,
        FailureReturnsTraffic,
        ReturnsToReadyPrimary,
        EvidenceRollsBack,
        RevisionIsNotLost,
        CrashSafe,
        FreezeHolds,
        UpgradeStartsNothing,
        AbortReturnsTraffic,
        ShareIsJudged,
        ReadyIsTrue,
        LastingErrorIsShown,
    ]
};

const AFTER_A_GOOD_CHECK: &str = "no step is left while its latest check is not good";
const READY_IS_TRUE: &str = "Ready is true only while the primary is ready and has all traffic";

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
    pub now: Timestamp,
}

impl Laws<'_> {
    /// Checks every law, and counts those that could have been broken.
    pub fn violations(&self, coverage: &mut Coverage) -> Vec<Violation> {
        use Invariant::*;
        let laws: [(Option<Invariant>, &str, Verdict); 22] = [
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
                Some(WeightFollowsPlan),
                "a revision that was not judged loses the traffic of the one before it",
                self.withdraws_from_an_unjudged_revision(),
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
                "while suspended, only a failed release returns its traffic",
                self.plan.suspend.then_some(self.decision.actions.iter().all(|action| {
                    self.decision.status.phase == Phase::Failed && action.purpose() == Purpose::Protect
                })),
            ),
            (
                Some(UpgradeStartsNothing),
                "a revision that was seen before starts no release",
                self.starts_only_new_revisions(),
            ),
            (
                Some(AbortReturnsTraffic),
                "an abort returns the traffic to a primary that serves",
                self.abort_returns_traffic(),
            ),
            (
                Some(ShareIsJudged),
                "only the revision of the release gets a share",
                self.routes_only_to_the_released_revision(),
            ),
            (Some(ShareIsJudged), AFTER_A_GOOD_CHECK, self.leaves_a_step_after_a_good_check()),
            (Some(ReadyIsTrue), READY_IS_TRUE, self.ready_is_true()),
            (Some(LastingErrorIsShown), "a lasting failure is on the object", self.shows_failures()),
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

    /// Nobody judged the revision that the target's pods run by now, and the
    /// primary has a pod to serve in its place.
    fn replaces_unjudged_pods(&self) -> bool {
        let after = self.after();
        let judged = after.release.as_ref().map(|release| &release.revision);
        let target = self.seen.target.as_ref().map(|target| &target.revision);
        let primary_serves = self.seen.primary.as_ref().is_some_and(|primary| primary.pods.can_serve());
        (after.phase == Phase::Waiting || target != judged) && primary_serves
    }

    fn withdraws_from_an_unjudged_revision(&self) -> Verdict {
        let reaches = self.seen.split.as_ref().is_some_and(Split::reaches_canary);
        let idle = self.after().release.is_none() || self.plan.suspend;
        (!idle && reaches && self.replaces_unjudged_pods())
            .then(|| self.routed().any(|split| !split.reaches_canary()))
    }

    /// After a failed promotion, a canary that serves goes on serving, unless it
    /// runs an unjudged revision by now.
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
        let spared = broken && canary_serves && reached && !self.replaces_unjudged_pods();
        (stopped && restoring && spared && !self.has_awaited_restore())
            .then(|| self.routed().all(|split| split.stable == Stable::Previous))
    }

    /// The release ended so long ago that a primary which can serve gets the traffic before
    /// it is ready: within a minute of an abort, else after the deadline if it has the
    /// promoted revision again.
    fn has_awaited_restore(&self) -> bool {
        let since = self.after().last_transition_time.as_ref().map_or(self.now, |at| at.0);
        let aborted = self.after().history.first().is_some_and(|past| past.outcome == Outcome::Aborted);
        let promoted = self.after().revisions.as_ref().and_then(|revisions| revisions.primary.clone());
        let right = self.seen.primary.as_ref().is_some_and(|primary| primary.revision == promoted);
        let deadline = self.plan.deadline.after;
        let limit = if aborted { deadline.min(Duration::from_secs(45)) } else { deadline };
        let awaited = self.now.duration_since(since);
        let was_stepped_back = awaited < -SignedDuration::from_mins(1);
        let is_over = awaited >= SignedDuration::try_from(limit).unwrap_or(SignedDuration::MAX);
        (aborted || right) && (was_stepped_back || is_over)
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
        let may_return = ready || self.replaces_unjudged_pods() || self.awaited_primary_serves();
        (promoting && begun && canary_serves && same_release && returns).then_some(may_return)
    }

    /// The promoted primary did not become ready within the deadline, and can serve.
    fn awaited_primary_serves(&self) -> bool {
        let state = self.before.release.as_ref().map(|release| &release.state);
        let since =
            state.filter(|state| state.stalled_on == "primary").and_then(|s| s.stalled_since.as_ref());
        let deadline = SignedDuration::try_from(self.plan.deadline.after).unwrap_or(SignedDuration::MAX);
        let serves = self.seen.primary.as_ref().is_some_and(|primary| primary.pods.can_serve());
        self.before.phase == Phase::Finalising
            && serves
            && since.is_some_and(|since| self.now.duration_since(since.0) >= deadline)
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
                let failing = self.seen.failures.iter().any(|it| it.purpose != Purpose::Maintain);
                self.plan.deadline.no_data.is_some() || unready || misrouted || copying || failing
            }
            RollbackCause::CanaryDied { times } => {
                let reaches = self.seen.split.as_ref().is_some_and(Split::reaches_canary);
                canary.ready == 0 && reaches && *times == 3
            }
            RollbackCause::RouteRefused { .. } => self.seen.route_refused.is_some(),
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

    fn abort_returns_traffic(&self) -> Verdict {
        let (before, after) = (&self.before.last_command, self.after().last_command.as_ref()?);
        let aborted = before.as_ref() != Some(after) && after.verb == "abort" && after.accepted;
        let reaches = self.seen.split.as_ref().is_some_and(Split::reaches_canary);
        let restoring = self.after().release.as_ref().is_some_and(|release| release.state.restoring);
        let serves = self.seen.primary.as_ref().is_some_and(|primary| primary.pods.can_serve());
        let failed = self.after().phase == Phase::Failed;
        let delayed = failed && self.after().history.first().is_some_and(|it| it.outcome == Outcome::Aborted);
        let due = if restoring { delayed && self.has_awaited_restore() } else { aborted && failed };
        (due && reaches && serves).then(|| self.routed().any(|split| !split.reaches_canary()))
    }

    fn routes_only_to_the_released_revision(&self) -> Verdict {
        let released = self.after().release.as_ref().map(|release| &release.revision);
        let target = self.seen.target.as_ref().map(|target| &target.revision);
        self.routed().any(Split::reaches_canary).then_some(released == target)
    }

    fn leaves_a_step_after_a_good_check(&self) -> Verdict {
        let (before, after) = (self.before, self.after());
        let index = |status: &CanaryStatus| status.step.as_ref().map(|step| step.index);
        let same_plan =
            before.release.as_ref().is_some_and(|release| release.state.plan == self.plan.fingerprint);
        let (from, to) = (index(before)?, index(after)?);
        let is_judged = !self.plan.skip_analysis && self.plan.steps.get(from as usize)?.checks > 0;
        (to > from && same_plan && is_judged && before.releases == after.releases)
            .then(|| self.model.latest_check.get(&(after.releases, from)).copied().unwrap_or(false))
    }

    fn ready_is_true(&self) -> Verdict {
        let ready = |it: &Condition| it.type_ == READY && it.status == ConditionStatus::True;
        let primary_is_ready = self
            .seen
            .primary
            .as_ref()
            .is_some_and(|primary| primary.pods.are_ready(self.plan.primary_ready_percent));
        let claimed = self.after().conditions.iter().any(ready) && !self.seen.deleting;
        claimed.then(|| primary_is_ready && self.seen.split == Some(Split::all_primary()))
    }

    fn shows_failures(&self) -> Verdict {
        let degraded = self.after().conditions.iter().find(|condition| condition.type_ == DEGRADED);
        let shown = |failure: &Failure| degraded.is_some_and(|it| it.message.contains(&failure.message));
        (!self.seen.failures.is_empty()).then(|| self.seen.failures.iter().all(shown))
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
