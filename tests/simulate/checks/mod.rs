//! The invariants, checked at every write as the API server does it.
//!
//! A decision rests on the controller's caches, which lag behind the API server
//! ([`WriteTime`]). A condition counts as known if it held at some moment within
//! that lag, which is zero while the API server is healthy.

pub mod abort;
mod errors;
mod neighbours;
mod ready;
mod share;

use std::collections::BTreeSet;
use std::time::Duration;

use serin::api::CanaryStatus;
use serin::api::canary::Phase;
use serin::api::canary::status::{Outcome, PastRelease};
use serin::api::judge::OnMissing;
use serin::engine::Plan;
use serin::engine::plan::metrics::Judge;
use serin::engine::plan::steps::Strategy;

use crate::invariant::Invariant::{self, *};
use crate::invariant::{Coverage, Violation};
use crate::lag_clock::WriteTime;
use crate::model::{CanaryModel, Route, StableTarget, Workload};
use crate::traffic::{behaviour, is_slow};

/// Requests that a check needs, less a tolerance for rounding.
const MIN_REQUESTS: f64 = 18.0;

/// A canary without a ready pod must have lost its traffic by then.
const MAX_UNSERVED: Duration = Duration::from_secs(60);

pub type LawResult = Result<(), Violation>;

#[derive(Default)]
pub struct InvariantChecker {
    /// Names of the Leases by which replicas are members.
    pub members: BTreeSet<String>,
    /// A process ended or was frozen.
    pub interrupted: bool,
    pub coverage: Coverage,
}

impl InvariantChecker {
    /// An invariant that can be kept or violated by this write.
    fn law(&mut self, invariant: Invariant, kept: bool, details: impl FnOnce() -> String) -> LawResult {
        // A run without interruption does not exercise restarts and upgrades.
        if self.interrupted || !matches!(invariant, CrashSafe | UpgradeStartsNothing) {
            self.coverage.count(invariant);
        }
        forbid(invariant, !kept, details)
    }

    /// A process is about to write; a replica must be a member.
    pub fn check_request(&self, process: &str, elected: bool, request: impl FnOnce() -> String) -> LawResult {
        if elected && !self.members.iter().any(|member| member.starts_with(&format!("{process}-"))) {
            return Err(format!("a replica that lost its lease writes: {process} {}", request()).into());
        }
        Ok(())
    }

    /// The route is about to change to this one.
    pub fn check_route(&mut self, on: &CanaryModel, route: Route, now: WriteTime) -> LawResult {
        if !is_managed(on) {
            return Ok(());
        }
        let before = *on.route.now();
        let rises = route.canary > before.canary || (route.chosen && !before.chosen);
        if rises {
            self.check_rise(on, route, now)?;
        }
        let falls = route.canary < before.canary || (before.chosen && !route.chosen);
        if falls && route.stable == StableTarget::Primary {
            self.returns_to_a_ready_primary(on, now)?;
        }
        Ok(())
    }

    fn check_rise(&mut self, on: &CanaryModel, route: Route, now: WriteTime) -> LawResult {
        let status = on.status().cloned().unwrap_or_default();
        let plans = on.possible_plans();
        let serves = |target: &Option<Workload>| target.as_ref().is_some_and(|target| target.available > 0);
        self.law(WeightFollowsPlan, on.target.held_since(now.knowledge_cutoff(), serves), || {
            format!("the canary gets {route:?} and has no ready pod: {:?}", on.target.now())
        })?;
        let is_lost = |primary: &Option<Workload>| !serves(primary);
        if route.canary == 10_000 && on.primary.held_since(now.knowledge_cutoff(), is_lost) {
            // Around a primary that is lost, whatever the plan.
            return Ok(());
        }
        forbid(FreezeHolds, plans.iter().all(|plan| plan.suspend), || format!("{route:?} while suspended"))?;
        // A recorded weight may be restored: after an unrecorded write it has to be.
        let had = status.release.as_ref().map_or(0, |release| release.state.highest_weight.hundredths());
        let advances = route.canary > u64::from(had) || route.chosen;
        let frozen = plans.iter().all(|plan| now.is_frozen(plan));
        forbid(FreezeHolds, advances && frozen, || format!("{route:?} in a freeze"))?;
        let refused = status.phase == Phase::Failed
            && status.revisions.as_ref().is_some_and(|revisions| revisions.seen == revisions.rejected)
            && on.target.since() < now.knowledge_cutoff()
            && status
                .last_transition_time
                .as_ref()
                .is_some_and(|at| now.clock.duration_since(at.0).as_secs() > 5);
        let retried = on.release_causes > status.releases;
        forbid(FailureReturnsTraffic, refused && !retried, || {
            format!("{route:?} for a revision that was rolled back")
        })?;
        let along: Vec<_> =
            plans.iter().map(|plan| self.check_rise_along_plan(on, plan, route, now)).collect();
        match along.iter().any(Result::is_ok) {
            true => Ok(()),
            false => along.into_iter().next().unwrap_or_else(|| {
                forbid(WeightFollowsPlan, true, || "no plan allows any traffic".to_owned())
            }),
        }
    }

    fn check_rise_along_plan(
        &mut self,
        on: &CanaryModel,
        plan: &Plan,
        route: Route,
        now: WriteTime,
    ) -> LawResult {
        let before = *on.route.now();
        let switches = plan.strategy == Strategy::BlueGreen && route.canary == 10_000;
        if switches {
            return self.checked_long_enough(on, plan, plan.steps.len() - 1, before, now);
        }
        if on.restores_way_back(route) {
            return Ok(());
        }
        let weight = |at: usize| u64::from(plan.steps[at].split.canary.hundredths());
        let planned = (0..plan.steps.len()).find(|at| {
            weight(*at) == route.canary && plan.steps[*at].split.matches.is_empty() != route.chosen
        });
        self.law(WeightFollowsPlan, planned.is_some(), || format!("{route:?} is no step of the plan"))?;
        let release = on.status().and_then(|status| status.release.as_ref());
        let had = release.map_or(0, |release| u64::from(release.state.highest_weight.hundredths()));
        let had = had.max(before.canary);
        // A weight is restored that was withdrawn.
        if route.canary <= had && !route.chosen {
            return Ok(());
        }
        let skipped =
            (0..plan.steps.len()).map(weight).find(|weight| *weight > had && *weight < route.canary);
        self.law(WeightFollowsPlan, skipped.is_none(), || {
            format!("from {had} to {route:?}, past the step of {skipped:?}")
        })?;
        let earlier = 0..planned.unwrap_or(0);
        match earlier.rev().find(|at| weight(*at) > 0 && weight(*at) == before.canary) {
            Some(last) => self.checked_long_enough(on, plan, last, before, now),
            None => Ok(()),
        }
    }

    /// The step's weight was judged on its own traffic, for long enough.
    fn checked_long_enough(
        &mut self,
        on: &CanaryModel,
        plan: &Plan,
        at: usize,
        route: Route,
        now: WriteTime,
    ) -> LawResult {
        let step = &plan.steps[at];
        if plan.skip_analysis || step.checks == 0 || was_promoted_by_command(on) {
            return Ok(());
        }
        let (lasted, requests) = on.route_observation(route, now.at);
        // Checks of this step count even if an edit lengthened its interval later.
        let plans =
            on.plans.range(on.generation_at_route_start(route)..).filter_map(|(_, plan)| plan.as_ref());
        let intervals = plans.filter_map(|plan| Some(plan.steps.get(at)?.interval));
        let needed = intervals.fold(step.interval, Duration::min) * step.checks;
        let may_end_early = plan.metrics.iter().any(|metric| metric.policy.ends_on_evidence);
        if !may_end_early && step.split.reaches_canary() {
            let least = needed.saturating_sub(Duration::from_secs(1));
            self.law(WeightFollowsPlan, lasted >= least, || {
                format!("step {at} ended after {lasted:?} and takes {needed:?}")
            })?;
        }
        let judged = |name: &str| step.metrics.iter().any(|at| plan.metrics[*at].name == name);
        let needs_requests = plan.metrics.iter().any(|metric| {
            judged(&metric.name)
                && matches!(metric.policy.judge, Judge::Sequential(_))
                && metric.policy.on_no_data == OnMissing::Hold
        });
        if needs_requests {
            self.law(WeightFollowsPlan, requests >= MIN_REQUESTS, || {
                format!("step {at} ended after {requests:.1} counted requests")
            })?;
        }
        Ok(())
    }

    fn returns_to_a_ready_primary(&mut self, on: &CanaryModel, now: WriteTime) -> LawResult {
        let Some(status) = on.status() else { return Ok(()) };
        let Some(release) = &status.release else { return Ok(()) };
        let other =
            |primary: &Option<Workload>| primary.as_ref().is_none_or(|p| p.revision != release.revision);
        let begun = !on.primary.held_since(now.knowledge_cutoff(), other);
        let is_promoting = matches!(status.phase, Phase::Promoting | Phase::Finalising | Phase::Progressing);
        if !begun || !is_promoting {
            return Ok(());
        }
        let percents: Vec<u32> = on.possible_plans().iter().map(|plan| plan.primary_ready_percent).collect();
        let ready = |primary: &Option<Workload>| {
            primary.as_ref().is_some_and(|primary| {
                primary.revision == release.revision
                    && percents.iter().any(|percent| primary.is_ready(*percent))
            })
        };
        let dead = |target: &Option<Workload>| target.as_ref().is_none_or(|target| target.available == 0);
        let cutoff = now.knowledge_cutoff();
        // The target has changed since, and its pods run an unjudged revision.
        let pushed = on.release_causes > status.releases;
        let serves = |primary: &Option<Workload>| primary.as_ref().is_some_and(|p| p.available > 0);
        // The primary was awaited until the deadline.
        let awaited = release.state.stalled_on == "primary";
        let kept = on.primary.held_since(cutoff, ready)
            || on.target.held_since(cutoff, dead)
            || ((pushed || awaited) && on.primary.held_since(cutoff, serves));
        self.law(ReturnsToReadyPrimary, kept, || {
            format!("traffic returns to a primary that is not ready: {:?}", on.primary.now())
        })
    }

    /// The primary got another pod template.
    pub fn check_primary_change(
        &mut self,
        on: &mut CanaryModel,
        before: &Workload,
        now: WriteTime,
    ) -> LawResult {
        if !is_managed(on) {
            return Ok(());
        }
        let Some(primary) = on.primary.now().clone() else { return Ok(()) };
        let status = on.status().cloned().unwrap_or_default();
        let revisions = status.revisions.clone().unwrap_or_default();
        let releasing = status.release.as_ref().map(|release| release.revision.clone());
        let recorded =
            [&revisions.primary, &revisions.previous].map(|known| known.clone().unwrap_or_default());
        let restores = recorded.contains(&primary.revision);
        if releasing.as_ref() != Some(&primary.revision) || revisions.primary.as_ref() == releasing.as_ref() {
            return self.law(PromotedIsAnalysed, restores, || {
                format!("the primary got {primary:?} instead of {before:?}; the release is {releasing:?}")
            });
        }
        if on.lost_primary_since_revision(&primary.revision) {
            // Promoted before, and again after the primary came back from its backup.
            return Ok(());
        }
        let plans = on.possible_plans();
        forbid(FreezeHolds, plans.iter().all(|plan| plan.suspend), || "promoted while suspended".to_owned())?;
        let frozen = plans.iter().all(|plan| now.is_frozen(plan));
        forbid(FreezeHolds, frozen, || "promoted in a freeze".to_owned())?;
        let judged = plans.iter().any(|plan| {
            // The switch of Blue/Green comes after the judgement.
            let route = match plan.strategy {
                Strategy::BlueGreen => Route { canary: 0, chosen: false, stable: StableTarget::Primary },
                Strategy::Canary | Strategy::AB => on.overwritten.unwrap_or(*on.route.now()),
            };
            self.checked_long_enough(on, plan, plan.steps.len() - 1, route, now).is_ok()
        });
        self.law(PromotedIsAnalysed, judged, || "promoted before its last step was judged".to_owned())?;
        forbid(PromotedIsAnalysed, is_measurably_worse(on, before, &primary, now), || {
            format!("{} was promoted in place of {} although it is worse", primary.code, before.code)
        })?;
        let analysed = on.analysed.get(&primary.revision).cloned().unwrap_or_default();
        self.law(PromotedIsAnalysed, analysed.iter().all(|code| *code == primary.code), || {
            format!("{} was promoted, and analysed were {analysed:?}", primary.code)
        })?;
        let promoted = on.promotions.entry(status.releases).or_default();
        promoted.push(primary.revision.clone());
        let times = promoted.iter().filter(|revision| **revision == primary.revision).count();
        self.law(CrashSafe, times == 1, || format!("release {} was promoted {times} times", status.releases))
    }

    /// Traffic has been routed for `length` to a canary without a ready pod, while
    /// the controller could react.
    pub fn check_unserved_traffic(
        &mut self,
        on: &CanaryModel,
        length: Duration,
        now: WriteTime,
    ) -> LawResult {
        let serves =
            |primary: &Option<Workload>| primary.as_ref().is_some_and(|primary| primary.available > 0);
        let served = serves(on.primary.now()) && now.at.saturating_sub(on.primary.since()) > MAX_UNSERVED;
        let suspended = on.possible_plans().iter().all(|plan| plan.suspend);
        if !is_managed(on) || suspended || !served {
            return Ok(());
        }
        self.law(WeightFollowsPlan, length < MAX_UNSERVED, || {
            format!("for {length:?} requests go to a canary without a ready pod")
        })
    }

    /// The controller is about to record a status.
    pub fn check_status(
        &mut self,
        on: &CanaryModel,
        before: &CanaryStatus,
        after: &CanaryStatus,
        now: WriteTime,
    ) -> LawResult {
        let started = after.releases.saturating_sub(before.releases);
        self.law(CrashSafe, after.releases >= before.releases && started <= 2, || {
            format!("releases went from {} to {}", before.releases, after.releases)
        })?;
        self.law(UpgradeStartsNothing, after.releases <= on.release_causes, || {
            format!("release {} began after {} causes for one", after.releases, on.release_causes)
        })?;
        let plans = on.possible_plans();
        let frozen = !plans.is_empty() && plans.iter().all(|plan| now.is_frozen(plan));
        if before.phase == Phase::Waiting && frozen {
            self.law(FreezeHolds, after.phase != Phase::Progressing, || {
                "a release starts in a freeze".to_owned()
            })?;
        }
        Ok(())
    }

    /// A release ended.
    pub fn check_past_release(&mut self, on: &CanaryModel, past: &PastRelease) -> LawResult {
        let Some(target) = on.target.now() else { return Ok(()) };
        if past.outcome != Outcome::RolledBack {
            return Ok(());
        }
        let images = on.analysed.get(&past.revision).cloned().unwrap_or_else(|| vec![target.code.clone()]);
        let bad = |image: &String| behaviour(image).error_rate > 0.0 || is_slow(&behaviour(image));
        if past.reason.contains("checks failed") || past.reason.contains(" failed (") {
            self.law(EvidenceRollsBack, on.has_negative_evidence || images.iter().any(bad), || {
                format!("{images:?} was rolled back without evidence: {}", past.reason)
            })?;
        }
        let data_deadline = on.possible_plans().iter().any(|plan| plan.deadline.no_data.is_some());
        if past.reason.starts_with("no progress") && !data_deadline {
            self.law(EvidenceRollsBack, !past.reason.contains("neither good nor bad"), || {
                format!("rolled back for missing data: {}", past.reason)
            })?;
        }
        Ok(())
    }

    /// All faults ended long ago: has this Canary settled?
    pub fn check_settled(&mut self, on: &CanaryModel, settled: bool) -> LawResult {
        let status = on.status().map(|status| (status.phase, status.message.clone()));
        self.law(RevisionIsNotLost, settled, || format!("{} is not settled: {status:?}", on.name))?;
        if status.is_some_and(|(phase, _)| phase == Phase::Failed) {
            let route = *on.route.now();
            self.law(FailureReturnsTraffic, !route.reaches_canary(), || {
                format!("{} failed and its canary gets {route:?}", on.name)
            })?;
        }
        Ok(())
    }
}

/// A write that must not happen. Its absence exercises nothing, and is not counted.
fn forbid(invariant: Invariant, violated: bool, details: impl FnOnce() -> String) -> LawResult {
    match violated {
        true => Err(Violation { invariant: Some(invariant), details: details() }),
        false => Ok(()),
    }
}

/// The backup of the primary's manifest was written, with this revision.
pub fn check_backup(on: &CanaryModel, revision: &str) -> LawResult {
    let status = on.status().cloned().unwrap_or_default();
    let promoted = status.revisions.and_then(|revisions| revisions.primary);
    let releasing = status.release.map(|release| release.revision);
    let may_follow_up =
        matches!(status.phase, Phase::Progressing | Phase::WaitingPromotion | Phase::Promoting);
    let overwritten = may_follow_up && releasing.as_deref() == Some(revision) && promoted != releasing;
    forbid(CrashSafe, overwritten, || format!("{revision} is being promoted, and backed up as the previous"))
}

fn is_managed(on: &CanaryModel) -> bool {
    let Some(canary) = &on.canary else { return false };
    let phase = on.status().map_or(Phase::Initializing, |status| status.phase);
    canary.metadata.deletion_timestamp.is_none()
        && !matches!(phase, Phase::Initializing | Phase::Terminating | Phase::Terminated)
}

/// Every possible plan measures the defect, and the canary got enough requests to
/// detect it.
fn is_measurably_worse(on: &CanaryModel, before: &Workload, after: &Workload, now: WriteTime) -> bool {
    let (old, new) = (behaviour(&before.code), behaviour(&after.code));
    let release = on.status().map_or(0, |status| status.releases);
    let of_release = on.request_counts.earlier_routes.range((release, 0, false)..(release + 1, 0, false));
    let earlier: f64 = of_release.map(|(_, (_, read))| *read).sum();
    let requests = earlier + on.request_counts.at_last_scrape - on.request_counts.at_route_start;
    let (lasted, read) = on.route_observation(*on.route.now(), now.at);
    let detects = |plan: &&Plan| {
        let step = plan.steps.last().expect("a plan has steps");
        let judged = |name: &str| {
            let metric =
                step.metrics.iter().map(|at| &plan.metrics[*at]).find(|metric| metric.name == name)?;
            Some(match metric.policy.judge {
                Judge::Threshold(_) => 1.0,
                Judge::Sequential(_) | Judge::MannWhitney(_) => 400.0,
            })
        };
        let checks = lasted.as_secs_f64() / step.interval.as_secs_f64();
        let enough =
            |name: &str| judged(name).is_some_and(|needed| requests >= needed) && read >= 10.0 * checks;
        let errors = new.error_rate > old.error_rate && enough("request-success-rate");
        let slow = is_slow(&new) && !is_slow(&old) && enough("request-duration");
        !plan.skip_analysis && step.checks > 0 && (errors || slow)
    };
    let plans = on.possible_plans();
    !plans.is_empty() && plans.iter().all(detects) && !was_promoted_by_command(on)
}

/// A user commanded the promotion of this release.
fn was_promoted_by_command(on: &CanaryModel) -> bool {
    on.status().is_some_and(|status| on.promoted_by_command == Some(status.releases))
}
