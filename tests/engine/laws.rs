//! The invariants, over random histories: revisions, readiness, measurements,
//! gate answers, commands, edits, clock jumps, stale observations, lost effects
//! and crashes between any two actions. Each pass is checked against the laws
//! and against a naive model of what was judged; then the world calms down and
//! must come to a good end.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::LazyLock,
    time::Duration,
};

use jiff::SignedDuration;
use proptest::prelude::*;
use serin::{
    api::{
        Weight,
        canary::{CanaryStatus, Phase},
    },
    engine::{
        Action, Decision, Observed, Plan, Reason,
        action::{Split, Stable},
        command::{Command, Verb},
        decide,
        observed::{Pods, Reply},
        report::Cause,
        steps::Strategy as Kind,
    },
};

use crate::world::{Health, World, canary_with, pods};

/// The plans that histories run on. Edits switch between them.
static PLANS: LazyLock<Vec<Plan>> = LazyLock::new(|| {
    const ERRORS: &str = "metrics: [{name: errors, query: q, thresholdRange: {max: 1}}]";
    let hooks = "webhooks: [{name: start, type: confirm-rollout, url: u, expireAfter: 2h}, {name: test, type: pre-rollout, url: u}, \
                 {name: load, url: u}, {name: more, type: confirm-traffic-increase, url: u}, \
                 {name: ship, type: confirm-promotion, url: u, expireAfter: 3h}, {name: after, type: post-rollout, url: u}, \
                 {name: stop, type: rollback, url: u}]";
    let texts = [
        ("", format!("interval: 1m, threshold: 2, stepWeight: 20, maxWeight: 50, {ERRORS}")),
        ("", format!("interval: 30s, threshold: 3, stepWeights: [5, 40], {ERRORS}, {hooks}")),
        ("", "interval: 1m, stepWeights: [10, 30, 100], metrics: [{name: request-success-rate}]".to_owned()),
        ("", format!("interval: 1m, iterations: 3, match: [{{headers: {{x: {{exact: y}}}}}}], {ERRORS}")),
        ("rollback: {keepWarmSeconds: 900}", format!("interval: 1m, iterations: 2, mirror: true, {ERRORS}")),
        (
            "progressDeadlineSeconds: 300",
            format!(
                "interval: 1m, threshold: 2, {ERRORS}, steps: [{{replicas: {{count: 1}}, match: [{{headers: {{x: {{exact: y}}}}}}]}}, \
                 {{weight: 10, interval: 20s, iterations: 2}}, {{pause: {{}}}}, {{weight: 40, approval: {{expireAfter: 4h}}}}, \
                 {{weight: 60, pause: {{duration: 5m}}, replicas: {{percent: 100}}}}]"
            ),
        ),
        (
            "releaseWindows: [{kind: freeze, cron: '0 */3 * * *', duration: 1h}]",
            format!("interval: 5m, threshold: 2, stepWeight: 25, stepWeightPromotion: 30, {ERRORS}"),
        ),
        ("skipAnalysis: true", format!("stepWeight: 50, {ERRORS}")),
        ("suspend: true", format!("interval: 1m, stepWeight: 50, {ERRORS}")),
    ];
    texts.iter().map(|(spec, analysis)| Plan::try_from(&canary_with(spec, analysis)).unwrap()).collect()
});

#[derive(Clone, Debug)]
enum Event {
    Push(u8),
    Command(Verb, Option<u8>),
    Health(Health),
    CanaryPods(u8),
    PrimaryPods(u8),
    Starts { canary: bool, primary: bool },
    Gate { name: usize, closed: bool, silent: bool },
    Alarm(bool),
    Approve(bool),
    Router(bool),
    Drift(u8),
    Target(bool),
    Cap(Option<u32>),
    Edit(usize),
    Tick(u32),
    Back(u32),
    Pass(Fault),
}

#[derive(Clone, Debug)]
enum Fault {
    None,
    /// The controller dies before this action, or before recording.
    Crash(usize),
    /// These actions have no effect.
    Lost(u8),
    /// The workloads and the router are seen as they were a pass ago.
    Stale,
}

const GATES: [&str; 6] = ["start", "test", "load", "more", "ship", "after"];

fn event() -> impl Strategy<Value = Event> {
    let verb = prop::sample::select(vec![
        Verb::Abort,
        Verb::Promote,
        Verb::Pause,
        Verb::Resume,
        Verb::Retry,
        Verb::Rollback,
    ]);
    let health = prop::sample::select(vec![
        Health::Good,
        Health::Good,
        Health::Bad,
        Health::NoData,
        Health::Unavailable,
        Health::Quiet,
    ]);
    let fault = prop_oneof![
        6 => Just(Fault::None),
        3 => (0..5usize).prop_map(Fault::Crash),
        2 => any::<u8>().prop_map(Fault::Lost),
        2 => Just(Fault::Stale),
    ];
    prop_oneof![
        2 => (0..4u8).prop_map(Event::Push),
        2 => (verb, prop::option::of(0..4u8)).prop_map(|(verb, meant)| Event::Command(verb, meant)),
        2 => health.prop_map(Event::Health),
        1 => (0..4u8).prop_map(Event::CanaryPods),
        1 => (0..4u8).prop_map(Event::PrimaryPods),
        1 => (any::<bool>(), any::<bool>()).prop_map(|(canary, primary)| Event::Starts { canary, primary }),
        1 => (0..GATES.len(), any::<bool>(), any::<bool>())
            .prop_map(|(name, closed, silent)| Event::Gate { name, closed, silent }),
        1 => any::<bool>().prop_map(Event::Alarm),
        1 => any::<bool>().prop_map(Event::Approve),
        1 => any::<bool>().prop_map(Event::Router),
        1 => (0..=100u8).prop_map(Event::Drift),
        1 => any::<bool>().prop_map(Event::Target),
        1 => prop::option::of(0..2u32).prop_map(Event::Cap),
        1 => (0..PLANS.len()).prop_map(Event::Edit),
        4 => (1..90u32).prop_map(Event::Tick),
        2 => (90..4000u32).prop_map(Event::Tick),
        1 => (1..200u32).prop_map(Event::Back),
        16 => fault.prop_map(Event::Pass),
    ]
}

/// What was really judged, counted without the engine's help.
#[derive(Default)]
struct Model {
    /// Good full looks that were delivered, by release and step.
    good: BTreeMap<(u64, u32), BTreeSet<u32>>,
    /// Releases that anything ever spoke against.
    accused: BTreeSet<u64>,
    /// Releases that a person promoted.
    waved_through: BTreeSet<u64>,
}

struct History {
    world: World,
    model: Model,
    last_seen: Option<Observed>,
    trail: Vec<String>,
}

impl History {
    fn new(plan: usize) -> Self {
        let mut world = World::new(&canary_with("", "stepWeight: 50"));
        world.plan = PLANS[plan].clone();
        Self { world, model: Model::default(), last_seen: None, trail: Vec::new() }
    }

    fn apply(&mut self, event: &Event) {
        self.trail.push(format!("{event:?}"));
        let world = &mut self.world;
        match event {
            Event::Push(revision) => world.push(&format!("v1-{revision}")),
            Event::Command(verb, meant) => {
                let id = format!("c{}", world.commands.len());
                let revision = meant.map(|revision| format!("v1-{revision}"));
                world.commands.push(Command { id, verb: *verb, revision, by: None });
            }
            Event::Health(health) => world.health = *health,
            Event::CanaryPods(ready) => {
                let Pods { desired, .. } = world.target.pods;
                world.target.pods.ready = desired.min(u32::from(*ready));
            }
            Event::PrimaryPods(ready) => {
                if let Some(primary) = &mut world.primary {
                    primary.pods.ready = primary.pods.desired.min(u32::from(*ready));
                }
            }
            Event::Starts { canary, primary } => {
                world.canary_starts = *canary;
                world.primary_starts = *primary;
            }
            Event::Gate { name, closed, silent } => {
                let name = GATES[*name].to_owned();
                let set = |set: &mut BTreeSet<String>, member: bool| {
                    if member { set.insert(name.clone()) } else { set.remove(&name) }
                };
                set(&mut world.closed, *closed);
                set(&mut world.silent, *silent);
            }
            Event::Alarm(true) => drop(world.alarmed.insert("stop".to_owned())),
            Event::Alarm(false) => world.alarmed.clear(),
            Event::Approve(yes) => drop(world.approvals.insert("40 %".to_owned(), *yes)),
            Event::Router(obeys) => world.router_obeys = *obeys,
            Event::Drift(percent) => {
                world.split = Split::weight(Weight::from_percent(f64::from(*percent)).unwrap())
            }
            Event::Target(exists) => world.target_exists = *exists,
            Event::Cap(cap) => (world.other_releases, world.release_cap) = (1, *cap),
            Event::Edit(plan) => world.plan = PLANS[*plan].clone(),
            Event::Tick(seconds) => world.pass_time(Duration::from_secs(u64::from(*seconds))),
            Event::Back(seconds) => world.now -= SignedDuration::from_secs(i64::from(*seconds)),
            Event::Pass(fault) => self.pass(fault),
        }
    }

    fn pass(&mut self, fault: &Fault) {
        let fresh = self.world.observe();
        let mut seen = fresh.clone();
        if let (Fault::Stale, Some(old)) = (fault, &self.last_seen) {
            seen.target.clone_from(&old.target);
            seen.primary.clone_from(&old.primary);
            seen.previous.clone_from(&old.previous);
            seen.split.clone_from(&old.split);
        }
        self.last_seen = Some(fresh);
        let before = self.world.status.clone();
        let decision = decide(&self.world.plan, &before, &seen, self.world.now);
        self.trail.push(format!(
            "    {:?} -> {:?} {} | {}",
            before.phase, decision.status.phase, decision.status.canary_weight, decision.report.sentence
        ));
        self.check(&before, &seen, &decision);
        for (at, action) in decision.actions.iter().enumerate() {
            match fault {
                Fault::Crash(after) if *after == at => return,
                Fault::Lost(which) if which >> (at % 8) & 1 == 1 => continue,
                _ => self.world.perform(action),
            }
            self.trail.push(format!("        {}", crate::world::told(action)));
        }
        if !matches!(fault, Fault::Crash(_)) {
            self.world.record(&decision);
        }
    }

    fn check(&mut self, before: &CanaryStatus, seen: &Observed, decision: &Decision) {
        self.learn(before, seen);
        let after = &decision.status;
        let laws = Laws { plan: &self.world.plan, model: &self.model, before, seen, decision };
        let now = self.world.now;
        let window_open = self.world.plan.windows.check(now).is_ok();
        let broken = laws.broken(window_open);
        let wants = &decision.actions;
        assert!(broken.is_empty(), "{broken:#?}\nby {wants:?}\nafter\n{}", self.trail.join("\n"));
        if let Some((wake, why)) = decision.wake {
            assert!(wake > now, "woken at once by {why:?}\nafter\n{}", self.trail.join("\n"));
        }
        self.assert_fixpoint(after, seen, decision);
        if after.last_command != before.last_command
            && after.phase == Phase::Promoting
            && before.phase != Phase::Promoting
        {
            self.model.waved_through.insert(after.releases);
        }
    }

    /// Deciding again on the same observation changes nothing and wants
    /// nothing else.
    fn assert_fixpoint(&self, after: &CanaryStatus, seen: &Observed, decision: &Decision) {
        let again = decide(&self.world.plan, after, seen, self.world.now);
        let strip = |status: &CanaryStatus| {
            let mut status = status.clone();
            status.message = None;
            status.conditions.clear();
            status.next_deadline = None;
            status
        };
        let third = decide(&self.world.plan, &again.status, seen, self.world.now);
        assert_eq!(strip(&third.status), strip(&again.status), "restless after\n{}", self.trail.join("\n"));
        for action in &decision.actions {
            let moved_on = again.status.phase != after.phase || strip(&again.status) != strip(after);
            assert!(
                moved_on || again.actions.contains(action),
                "{action:?} is no longer wanted although nothing changed, after\n{}",
                self.trail.join("\n")
            );
        }
    }

    /// Counts what this observation delivers.
    fn learn(&mut self, before: &CanaryStatus, seen: &Observed) {
        if let Some(measured) = &seen.measured {
            let bad = measured.results.values().any(|result| match result {
                serin::analysis::measurement::Measurement::Scalar(value) => *value > 1.0,
                serin::analysis::measurement::Measurement::Counts(arms) => {
                    arms.canary.rate().is_some_and(|rate| rate > 0.1)
                }
                _ => false,
            });
            let silent = measured.results.values().any(|result| {
                use serin::analysis::measurement::Measurement::{NoData, Unavailable};
                matches!(result, NoData | Unavailable { .. })
            });
            if bad {
                self.model.accused.insert(measured.look.release);
            } else if !silent && measured.look.full {
                let looks = self.model.good.entry((measured.look.release, measured.look.step)).or_default();
                looks.insert(measured.look.look);
            }
        }
        for answer in &seen.answers {
            if matches!(answer.reply, Reply::No { .. }) && answer.question.release == before.releases {
                self.model.accused.insert(answer.question.release);
            }
        }
    }

    /// Everything gets well, everybody says yes, and enough time passes.
    fn calm_down(&mut self) {
        self.trail.push("calm".to_owned());
        let world = &mut self.world;
        if world.plan.suspend {
            world.plan = PLANS[0].clone();
        }
        world.health = Health::Good;
        world.target_exists = true;
        world.canary_starts = true;
        world.primary_starts = true;
        world.router_obeys = true;
        world.closed.clear();
        world.silent.clear();
        world.alarmed.clear();
        world.approvals.insert("40 %".to_owned(), true);
        world.release_cap = None;
        if let Some(primary) = &mut world.primary {
            primary.pods = pods(primary.pods.desired);
        }
        world.target.pods = pods(world.target.pods.desired);
        for _ in 0..2000 {
            let world = &mut self.world;
            let before = world.status.clone();
            self.pass(&Fault::None);
            let world = &mut self.world;
            if before != world.status {
                continue;
            }
            match world.wake {
                Some(at) => world.now = at.max(world.now),
                None => break,
            }
            let stuck = world.status.release.as_ref().is_some_and(|release| release.paused)
                || world
                    .status
                    .message
                    .as_deref()
                    .is_some_and(|message| message.contains("until somebody resumes"));
            if stuck {
                world.command(Verb::Resume);
            }
        }
    }

    fn assert_good_end(&self) {
        let world = &self.world;
        let trail = || format!("{:?}\nafter\n{}", world.status, self.trail.join("\n"));
        let status = &world.status;
        assert!(
            matches!(status.phase, Phase::Initialized | Phase::Succeeded | Phase::Failed),
            "stuck in {:?}: {}",
            status.phase,
            trail()
        );
        assert_eq!(world.split, Split::home(), "traffic is not home: {}", trail());
        assert!(status.release.is_none(), "not settled: {}", trail());
        let primary = world.primary.as_ref().unwrap();
        let revisions = status.revisions.as_ref().unwrap();
        assert_eq!(primary.revision, revisions.primary, "the primary runs something else: {}", trail());
        assert!(!primary.pinned, "still pinned: {}", trail());
        let target = Some(&world.target.revision);
        assert!(
            primary.revision.as_ref() == target || revisions.rejected.as_ref() == target,
            "revision {target:?} was lost: {}",
            trail()
        );
    }
}

/// One pass, and the laws it must keep.
struct Laws<'a> {
    plan: &'a Plan,
    model: &'a Model,
    before: &'a CanaryStatus,
    seen: &'a Observed,
    decision: &'a Decision,
}

impl Laws<'_> {
    fn broken(&self, window_open: bool) -> Vec<&'static str> {
        let laws: [(&'static str, bool); 13] = [
            ("1: what is promoted was analysed", self.promotes_what_was_analysed()),
            ("2: a canary gets traffic only while it can serve", self.routes_to_a_serving_canary()),
            ("2: shares rise along the plan, after the present one was judged", self.rises_along_the_plan()),
            ("2: a canary that is down loses its traffic", self.withdraws_from_a_dead_canary()),
            ("3: a broken primary gets nothing back", self.spares_a_broken_primary()),
            ("3: without a release nothing goes to the canary", self.stays_home()),
            ("3: a lost canary loses its traffic at once", self.goes_home_at_once()),
            ("4: traffic comes home to a ready primary", self.comes_home_to_a_ready_primary()),
            ("5: only evidence rolls back", self.rolls_back_on_evidence()),
            ("8: nothing moves in a freeze", window_open || !self.moves()),
            ("8: nothing moves while suspended", !self.plan.suspend || self.decision.actions.is_empty()),
            ("a paused release does not move", !self.was_paused() || !self.moves()),
            ("a canary is emptied only without traffic", self.empties_without_traffic()),
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

    fn promotes_what_was_analysed(&self) -> bool {
        self.decision.actions.iter().all(|action| {
            let Action::Promote { revision } = action else { return true };
            let release = self.after().release.as_ref().unwrap();
            let is_target = self.seen.target.as_ref().is_some_and(|target| target.revision == *revision);
            let releases = self.after().releases;
            let last = self.plan.steps.len() as u32 - 1;
            let was_judged = self.plan.skip_analysis
                || self.before.phase == Phase::Promoting
                || self.model.waved_through.contains(&releases)
                || self.after().last_command != self.before.last_command
                || self.judged(releases, last);
            release.revision == *revision && is_target && was_judged
        })
    }

    fn judged(&self, release: u64, step: u32) -> bool {
        let needed = self.plan.steps[step as usize].looks as usize;
        let good = self.model.good.get(&(release, step)).map_or(0, BTreeSet::len);
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
            _ if after.phase == Phase::Promoting => self.plan.strategy == Kind::BlueGreen,
            Some(step) => self.plan.steps[step as usize].split.canary == after.canary_weight,
            None => false,
        };
        ready && planned
    }

    fn stays_home(&self) -> bool {
        let running = matches!(
            self.after().phase,
            Phase::Progressing | Phase::WaitingPromotion | Phase::Promoting | Phase::Finalising
        );
        running || self.routed().all(|split| !split.reaches_canary())
    }

    fn goes_home_at_once(&self) -> bool {
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

    fn comes_home_to_a_ready_primary(&self) -> bool {
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

    fn rolls_back_on_evidence(&self) -> bool {
        let report = &self.decision.report;
        let mut said = report.before.iter().chain([report]).map(|report| &report.reason);
        let Some(Reason::RolledBack { cause, .. }) = said.find(|r| matches!(r, Reason::RolledBack { .. }))
        else {
            return true;
        };
        let accused = self.model.accused.contains(&self.before.releases);
        let canary = self.seen.target.as_ref().map(|target| target.pods).unwrap_or_default();
        let primary = self.seen.primary.as_ref().map(|primary| primary.pods).unwrap_or_default();
        match cause {
            Cause::Checks { .. } | Cause::Metric { .. } => accused,
            Cause::Deadline { .. } => {
                let unready = canary.desired == 0
                    || !canary.are_ready(self.plan.canary_ready_percent)
                    || !primary.are_ready(self.plan.primary_ready_percent);
                let asked = self.before.canary_weight;
                let wanted = match &self.before.step {
                    Some(step) => {
                        Split { canary: asked, ..self.plan.steps[step.index as usize].split.clone() }
                    }
                    None => Split::home(),
                };
                let astray = self.seen.split.as_ref() != Some(&wanted);
                // Copying to the primary was asked for and never seen.
                let copying = self.before.phase == Phase::Promoting;
                self.plan.deadline.own || unready || astray || copying
            }
            Cause::GateExpired { .. } | Cause::ApprovalRefused { .. } | Cause::RollbackGate { .. } => true,
            Cause::Aborted { .. } | Cause::TakenBack { .. } => {
                self.after().last_command != self.before.last_command
            }
        }
    }

    fn empties_without_traffic(&self) -> bool {
        let empties = self.decision.actions.contains(&Action::ScaleCanary { replicas: 0 });
        !empties || self.seen.split.as_ref().is_some_and(|split| !split.reaches_canary())
    }
}

/// As many as `PROPTEST_CASES` says, else this many.
fn cases(count: u32) -> ProptestConfig {
    let mut config =
        ProptestConfig { max_shrink_iters: 4000, failure_persistence: None, ..ProptestConfig::default() };
    if std::env::var_os("PROPTEST_CASES").is_none() {
        config.cases = count;
    }
    config
}

proptest! {
    #![proptest_config(cases(2000))]

    #[test]
    fn every_history_keeps_the_laws_and_ends_well(
        plan in 0..PLANS.len(),
        events in prop::collection::vec(event(), 1..120),
    ) {
        let mut history = History::new(plan);
        for event in &events {
            history.apply(event);
        }
        history.calm_down();
        history.assert_good_end();
    }
}
