//! The invariants, checked at every write as the API server does it.
//!
//! A decision rests on what the controller knew, which lags behind what is: by
//! what its watches had not told it yet, and by the time since it decided. What
//! was so at some moment within that counts as known. With a healthy API server
//! that is no time at all.

use std::time::Duration;

use jiff::Timestamp;
use serin::api::CanaryStatus;
use serin::api::canary::Phase;
use serin::api::canary::status::Outcome;
use serin::engine::Plan;
use serin::engine::judge::Judge;
use serin::engine::steps::Strategy;
use serin::local::node::behaviour::Behaviour;

use super::model::{CanaryModel, Route, StableTarget, Workload};
use super::traffic::is_slow;

/// Requests that a look needs, less what rounding may cost.
const MIN_REQUESTS: f64 = 18.0;

/// The moment of a write.
#[derive(Clone, Copy)]
pub struct WriteTime {
    /// Since the beginning.
    pub at: Duration,
    pub clock: Timestamp,
    /// How old the controller's knowledge may be.
    pub lag: Duration,
    /// How long ago it may have decided.
    pub decision_delay: Duration,
}

impl WriteTime {
    fn knowledge_cutoff(&self) -> Duration {
        self.at.saturating_sub(self.lag)
    }

    /// Closed now, and when it was decided.
    fn is_frozen(&self, plan: &Plan) -> bool {
        let before = self.clock.saturating_sub(self.decision_delay).unwrap_or(self.clock);
        plan.windows.check(self.clock).is_err() && plan.windows.check(before).is_err()
    }
}

pub type LawResult = Result<(), String>;

fn law(kept: bool, text: impl FnOnce() -> String) -> LawResult {
    if kept { Ok(()) } else { Err(text()) }
}

fn is_managed(on: &CanaryModel) -> bool {
    let Some(canary) = &on.canary else { return false };
    let phase = on.status().map_or(Phase::Initializing, |status| status.phase);
    canary.metadata.deletion_timestamp.is_none()
        && !matches!(phase, Phase::Initializing | Phase::Terminating | Phase::Terminated)
}

/// Traffic is about to be routed so.
pub fn check_route(on: &CanaryModel, route: Route, now: WriteTime) -> LawResult {
    if !is_managed(on) {
        return Ok(());
    }
    let before = *on.route.now();
    let status = on.status().cloned().unwrap_or_default();
    let rises = route.canary > before.canary || (route.chosen && !before.chosen);
    if rises {
        check_rise(on, before, route, &status, now)?;
    }
    let falls = route.canary < before.canary || (before.chosen && !route.chosen);
    if falls && route.stable == StableTarget::Primary {
        returns_to_a_ready_primary(on, &status, now)?;
    }
    Ok(())
}

fn check_rise(
    on: &CanaryModel,
    before: Route,
    route: Route,
    status: &CanaryStatus,
    now: WriteTime,
) -> LawResult {
    let plans = on.possible_plans();
    let serves = |target: &Option<Workload>| target.as_ref().is_some_and(|target| target.available > 0);
    law(on.target.held_since(now.knowledge_cutoff(), serves), || {
        format!("2: the canary gets {route:?} and has no ready pod: {:?}", on.target.now())
    })?;
    law(plans.iter().any(|plan| !plan.suspend), || format!("8: {route:?} while suspended"))?;
    // What it had on record it may get back: after a write that was not recorded
    // it has to.
    let had = status.release.as_ref().map_or(0, |release| release.state.highest_weight.hundredths());
    let advances = route.canary > u64::from(had) || route.chosen;
    law(!advances || plans.iter().any(|plan| !now.is_frozen(plan)), || format!("8: {route:?} in a freeze"))?;
    let refused = status.phase == Phase::Failed
        && status.revisions.as_ref().is_some_and(|revisions| revisions.seen == revisions.rejected)
        && on.target.since() < now.knowledge_cutoff()
        && status
            .last_transition_time
            .as_ref()
            .is_some_and(|at| now.clock.duration_since(at.0).as_secs() > 5);
    let retried = on.release_causes > status.releases;
    law(!refused || retried, || format!("3: {route:?} for a revision that was rolled back"))?;
    let fits = plans
        .iter()
        .map(|plan| check_rise_along_plan(on, plan, before, route, status, now))
        .collect::<Vec<_>>();
    match fits.iter().any(Result::is_ok) {
        true => Ok(()),
        false => fits.into_iter().next().unwrap_or(Err("2: no plan allows any traffic".to_owned())),
    }
}

fn check_rise_along_plan(
    on: &CanaryModel,
    plan: &Plan,
    before: Route,
    route: Route,
    status: &CanaryStatus,
    now: WriteTime,
) -> LawResult {
    let switches = plan.strategy == Strategy::BlueGreen && route.canary == 10_000;
    if switches {
        return checked_long_enough(on, plan, plan.steps.len() - 1, before, now);
    }
    let weight = |at: usize| u64::from(plan.steps[at].split.canary.hundredths());
    let planned = (0..plan.steps.len())
        .find(|at| weight(*at) == route.canary && plan.steps[*at].split.matches.is_empty() != route.chosen);
    let Some(planned) = planned else {
        return Err(format!("2: {route:?} is no step of the plan"));
    };
    let release = status.release.as_ref();
    let had = release.map_or(0, |release| u64::from(release.state.highest_weight.hundredths()));
    let had = had.max(before.canary);
    // Back to what it had before it went down.
    if route.canary <= had && !route.chosen {
        return Ok(());
    }
    let skipped = (0..plan.steps.len()).map(weight).find(|weight| *weight > had && *weight < route.canary);
    law(skipped.is_none(), || format!("2: from {had} to {route:?}, past the step of {skipped:?}"))?;
    let last = (0..planned).rev().find(|at| weight(*at) > 0 && weight(*at) == before.canary);
    match last {
        Some(last) => checked_long_enough(on, plan, last, before, now),
        None => Ok(()),
    }
}

/// This share was judged on its own traffic, for long enough.
fn checked_long_enough(on: &CanaryModel, plan: &Plan, at: usize, route: Route, now: WriteTime) -> LawResult {
    let step = &plan.steps[at];
    let early = plan.metrics.iter().any(|metric| metric.policy.ends_on_evidence);
    let waved = was_promoted_by_command(on);
    if plan.skip_analysis || step.checks == 0 || waved {
        return Ok(());
    }
    let (lasted, requests) = on.route_observation(route, now.at);
    // Looks taken in this step before somebody lengthened its interval count as
    // well.
    let plans = on.plans.range(on.generation_at_route_start(route)..).filter_map(|(_, plan)| plan.as_ref());
    let intervals = plans.filter_map(|plan| Some(plan.steps.get(at)?.interval));
    let needed = intervals.fold(step.interval, Duration::min) * step.checks;
    let known = needed.saturating_sub(Duration::from_secs(1));
    law(early || lasted >= known || !step.split.reaches_canary(), || {
        format!("2: on after {lasted:?} at step {at}, which takes {needed:?}")
    })?;
    let judged = |name: &str| step.metrics.iter().any(|at| plan.metrics[*at].name == name);
    let strict = plan.metrics.iter().any(|metric| {
        judged(&metric.name)
            && matches!(metric.policy.judge, Judge::Sequential(_))
            && metric.policy.on_no_data == serin::api::judge::OnMissing::Hold
    });
    law(!strict || requests >= MIN_REQUESTS, || {
        format!("2: on from step {at} after {requests:.1} requests that were counted")
    })
}

fn returns_to_a_ready_primary(on: &CanaryModel, status: &CanaryStatus, now: WriteTime) -> LawResult {
    let Some(release) = &status.release else { return Ok(()) };
    let other = |primary: &Option<Workload>| primary.as_ref().is_none_or(|p| p.revision != release.revision);
    let begun = !on.primary.held_since(now.knowledge_cutoff(), other);
    let is_promoting = matches!(status.phase, Phase::Promoting | Phase::Finalising | Phase::Progressing);
    if !begun || !is_promoting {
        return Ok(());
    }
    let percents: Vec<u32> = on.possible_plans().iter().map(|plan| plan.primary_ready_percent).collect();
    let ready = |primary: &Option<Workload>| {
        primary.as_ref().is_some_and(|primary| {
            primary.revision == release.revision && percents.iter().any(|percent| primary.is_ready(*percent))
        })
    };
    let dead = |target: &Option<Workload>| target.as_ref().is_none_or(|target| target.available == 0);
    law(
        on.primary.held_since(now.knowledge_cutoff(), ready)
            || on.target.held_since(now.knowledge_cutoff(), dead),
        || format!("4: traffic comes home to a primary that is not ready: {:?}", on.primary.now()),
    )
}

/// The primary got another template.
pub fn check_primary_change(on: &mut CanaryModel, before: &Workload, now: WriteTime) -> LawResult {
    if !is_managed(on) {
        return Ok(());
    }
    let Some(primary) = on.primary.now().clone() else { return Ok(()) };
    let status = on.status().cloned().unwrap_or_default();
    let revisions = status.revisions.clone().unwrap_or_default();
    let releasing = status.release.as_ref().map(|release| release.revision.clone());
    let recorded = [&revisions.primary, &revisions.previous].map(|known| known.clone().unwrap_or_default());
    let restores = recorded.contains(&primary.revision);
    if releasing.as_ref() != Some(&primary.revision) || revisions.primary.as_ref() == releasing.as_ref() {
        return law(restores, || {
            format!("1: the primary got {primary:?} instead of {before:?}; the release is {releasing:?}")
        });
    }
    let plans = on.possible_plans();
    law(plans.iter().any(|plan| !plan.suspend), || "8: promoted while suspended".to_owned())?;
    law(plans.iter().any(|plan| !now.is_frozen(plan)), || "8: promoted in a freeze".to_owned())?;
    let judged = plans.iter().any(|plan| {
        // The switch of Blue/Green comes after the judgement.
        let route = match plan.strategy {
            Strategy::BlueGreen => Route { canary: 0, chosen: false, stable: StableTarget::Primary },
            Strategy::Canary | Strategy::AB => *on.route.now(),
        };
        checked_long_enough(on, plan, plan.steps.len() - 1, route, now).is_ok()
    });
    law(judged, || "1: promoted before its last step was judged".to_owned())?;
    law(!is_measurably_worse(on, before, &primary, now), || {
        format!("1: {} was promoted in place of {} although it is worse", primary.image, before.image)
    })?;
    let analysed = on.analysed.get(&primary.revision).cloned().unwrap_or_default();
    law(analysed.iter().all(|image| *image == primary.image), || {
        format!("1: {} was promoted, and analysed were {analysed:?}", primary.image)
    })?;
    let promoted = on.promotions.entry(status.releases).or_default();
    promoted.push(primary.revision.clone());
    let times = promoted.iter().filter(|revision| **revision == primary.revision).count();
    law(times == 1, || format!("7: release {} was promoted {times} times", status.releases))
}

/// What the primary ran was recorded, to go back to.
pub fn check_backup(on: &CanaryModel, revision: &str) -> LawResult {
    let status = on.status().cloned().unwrap_or_default();
    let promoted = status.revisions.and_then(|revisions| revisions.primary);
    let releasing = status.release.map(|release| release.revision);
    let may_follow_up =
        matches!(status.phase, Phase::Progressing | Phase::WaitingPromotion | Phase::Promoting);
    law(!may_follow_up || releasing.as_deref() != Some(revision) || promoted == releasing, || {
        format!("7: {revision} is being promoted, and recorded as what was before")
    })
}

/// Every plan that could be meant measures what is wrong with it, and enough
/// requests went there to tell.
fn is_measurably_worse(on: &CanaryModel, before: &Workload, after: &Workload, now: WriteTime) -> bool {
    let (old, new) = (behaviour(&before.image), behaviour(&after.image));
    let release = on.status().map_or(0, |status| status.releases);
    let of_release = on.request_counts.earlier_routes.range((release, 0, false)..(release + 1, 0, false));
    let earlier: f64 = of_release.map(|(_, (_, read))| *read).sum();
    let requests = earlier + on.request_counts.at_last_scrape - on.request_counts.at_route_start;
    let (lasted, read) = on.route_observation(*on.route.now(), now.at);
    let tells = |plan: &&Plan| {
        let step = plan.steps.last().expect("a plan has steps");
        let judged = |name: &str| {
            let metric =
                step.metrics.iter().map(|at| &plan.metrics[*at]).find(|metric| metric.name == name)?;
            Some(match metric.policy.judge {
                Judge::Threshold(_) => 1.0,
                Judge::Sequential(_) | Judge::MannWhitney(_) => 400.0,
            })
        };
        let looks = lasted.as_secs_f64() / step.interval.as_secs_f64();
        let enough =
            |name: &str| judged(name).is_some_and(|needed| requests >= needed) && read >= 10.0 * looks;
        let errors = new.error_rate > old.error_rate && enough("request-success-rate");
        let slow = is_slow(&new) && !is_slow(&old) && enough("request-duration");
        !plan.skip_analysis && step.checks > 0 && (errors || slow)
    };
    let plans = on.possible_plans();
    !plans.is_empty() && plans.iter().all(tells) && !was_promoted_by_command(on)
}

/// Somebody asked for the promotion of this very release.
fn was_promoted_by_command(on: &CanaryModel) -> bool {
    on.status().is_some_and(|status| on.promoted_by_command == Some(status.releases))
}

fn behaviour(image: &str) -> Behaviour {
    Behaviour::of(image, &Default::default()).expect("images say what they do")
}

/// Requests go to a canary that cannot answer them, and nobody does anything
/// about it although somebody could for `length`.
pub fn check_unserved_traffic(on: &CanaryModel, length: Duration, now: WriteTime) -> LawResult {
    let patience = Duration::from_secs(60);
    let serves = |primary: &Option<Workload>| primary.as_ref().is_some_and(|primary| primary.available > 0);
    let served = serves(on.primary.now()) && now.at.saturating_sub(on.primary.since()) > patience;
    let suspended = on.possible_plans().iter().all(|plan| plan.suspend);
    law(!is_managed(on) || suspended || !served || length < patience, || {
        format!("2: for {length:?} requests go to a canary without a ready pod")
    })
}

/// Serin recorded something.
pub fn check_status(
    on: &mut CanaryModel,
    before: &CanaryStatus,
    after: &CanaryStatus,
    now: WriteTime,
) -> LawResult {
    let started = after.releases.saturating_sub(before.releases);
    law(after.releases >= before.releases && started <= 2, || {
        format!("7: releases went from {} to {}", before.releases, after.releases)
    })?;
    law(after.releases <= on.release_causes, || {
        format!("9: release {} began although people gave only {} causes", after.releases, on.release_causes)
    })?;
    let plans = on.possible_plans();
    let starts = before.phase == Phase::Waiting && after.phase == Phase::Progressing;
    law(!starts || plans.is_empty() || plans.iter().any(|plan| !now.is_frozen(plan)), || {
        "8: a release starts in a freeze".to_owned()
    })?;
    if started > 0 {
        on.has_negative_evidence = false;
    }
    if let Some(release) = &after.release
        && after.step.is_some()
        && after.step.as_ref().map(|step| step.checks) != before.step.as_ref().map(|step| step.checks)
        && let Some(target) = on.target.now()
    {
        let images = on.analysed.entry(release.revision.clone()).or_default();
        if target.is_ready(1) && !images.contains(&target.image) {
            images.push(target.image.clone());
        }
    }
    if after.history.first() != before.history.first()
        && let Some(past) = after.history.first()
    {
        check_past_release(on, past, &cloned_plans(on))?;
    }
    Ok(())
}

fn cloned_plans(on: &CanaryModel) -> Vec<Plan> {
    on.possible_plans().into_iter().cloned().collect()
}

fn check_past_release(
    on: &CanaryModel,
    past: &serin::api::canary::status::PastRelease,
    plans: &[Plan],
) -> LawResult {
    let Some(target) = on.target.now() else { return Ok(()) };
    let images = on.analysed.get(&past.revision).cloned().unwrap_or_else(|| vec![target.image.clone()]);
    let bad = |image: &String| behaviour(image).error_rate > 0.0 || is_slow(&behaviour(image));
    match past.outcome {
        Outcome::RolledBack => {
            let on_evidence = past.reason.contains("check") || past.reason.contains(" failed (");
            law(!on_evidence || on.has_negative_evidence || images.iter().any(bad), || {
                format!("5: {images:?} was rolled back without evidence: {}", past.reason)
            })?;
            let late = past.reason.starts_with("no progress");
            let own = plans.iter().any(|plan| plan.deadline.explicit);
            law(!late || own || !past.reason.contains("neither good nor bad"), || {
                format!("5: silence rolled back: {}", past.reason)
            })
        }
        _ => Ok(()),
    }
}
