//! The invariants over random histories: revisions, readiness, measurements,
//! gate replies, commands, edits, clock jumps, stale observations, lost effects
//! and crashes between any two actions. Each decision is checked against the laws
//! and against a naive model of the evidence; then all faults end, and the
//! release must settle.

use std::{collections::BTreeSet, sync::LazyLock, time::Duration};

use jiff::SignedDuration;
use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::TestRunner;
use serin::{
    analysis::Measurement,
    api::{
        Weight,
        canary::{CanaryStatus, Phase},
    },
    engine::{
        Decision, Observed, Plan,
        action::{Purpose, Split},
        command::{Command, Verb},
        decide,
        observed::{Failure, GateReply, Pods},
        started_releases,
    },
};

use crate::{
    invariant::{Coverage, Invariant, Violation},
    laws::{EXERCISED, Laws, Model},
    world::{Health, World, canary_with, pods},
};

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
                "interval: 1m, threshold: 2, noDataDeadlineSeconds: 900, {ERRORS}, steps: [{{replicas: {{count: 1}}, match: [{{headers: {{x: {{exact: y}}}}}}]}}, \
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
    Starts {
        canary: bool,
        primary: bool,
    },
    Gate {
        name: usize,
        closed: bool,
        silent: bool,
    },
    Alarm(bool),
    Approve(bool),
    Router(bool),
    Drift(u8),
    Target(bool),
    Cap(Option<u32>),
    Edit(usize),
    /// Work of the controller fails from now on, or no longer.
    Failure(Option<Purpose>),
    Tick(u32),
    ClockBack(u32),
    Pass(Fault),
}

#[derive(Clone, Debug)]
enum Fault {
    None,
    /// The controller dies before this action, or before recording.
    Crash(usize),
    /// These actions have no effect.
    LostActions(u8),
    /// The workloads and the router are observed as of the previous decision.
    Stale,
    /// The status is recorded only after up to three decisions, or never if the
    /// controller dies.
    FollowUps {
        dies: bool,
    },
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
        Health::FewRequests,
    ]);
    let purpose = prop::sample::select(vec![
        None,
        Some(Purpose::Protect),
        Some(Purpose::Advance),
        Some(Purpose::Maintain),
    ]);
    let fault = prop_oneof![
        6 => Just(Fault::None),
        3 => (0..5usize).prop_map(Fault::Crash),
        2 => any::<u8>().prop_map(Fault::LostActions),
        2 => Just(Fault::Stale),
        3 => any::<bool>().prop_map(|dies| Fault::FollowUps { dies }),
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
        1 => purpose.prop_map(Event::Failure),
        4 => (1..90u32).prop_map(Event::Tick),
        2 => (90..4000u32).prop_map(Event::Tick),
        1 => (1..200u32).prop_map(Event::ClockBack),
        16 => fault.prop_map(Event::Pass),
    ]
}

struct History {
    world: World,
    model: Model,
    last_seen: Option<Observed>,
    /// The controller died between two actions, or before it recorded.
    crashed: bool,
    coverage: Coverage,
    log: Vec<String>,
}

impl History {
    fn new(plan: usize) -> Self {
        let mut world = World::new(&canary_with("", "stepWeight: 50"));
        world.plan = PLANS[plan].clone();
        Self {
            world,
            model: Model::default(),
            last_seen: None,
            crashed: false,
            coverage: Coverage::default(),
            log: Vec::new(),
        }
    }

    fn run(plan: usize, events: &[Event]) -> Self {
        let mut history = Self::new(plan);
        events.iter().for_each(|event| history.apply(event));
        history.heal_and_settle();
        history.assert_settled();
        history
    }

    /// Panics if an invariant is violated.
    fn require(&mut self, invariant: Invariant, kept: bool, details: impl FnOnce() -> String) {
        self.coverage.count(invariant);
        if !kept {
            let violation = Violation { invariant: Some(invariant), details: details() };
            panic!("{violation}\nafter\n{}", self.log.join("\n"));
        }
    }

    fn apply(&mut self, event: &Event) {
        self.log.push(format!("{event:?}"));
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
                set(&mut world.unreachable, *silent);
            }
            Event::Alarm(true) => drop(world.rollback_gates_open.insert("stop".to_owned())),
            Event::Alarm(false) => world.rollback_gates_open.clear(),
            Event::Approve(yes) => drop(world.approvals.insert("40 %".to_owned(), *yes)),
            Event::Router(obeys) => world.router_applies = *obeys,
            Event::Drift(percent) => {
                world.split = Split::weight(Weight::from_percent(f64::from(*percent)).unwrap())
            }
            Event::Target(exists) => world.target_exists = *exists,
            Event::Cap(cap) => (world.other_releases, world.release_cap) = (1, *cap),
            Event::Edit(plan) => world.plan = PLANS[*plan].clone(),
            Event::Failure(purpose) => {
                let failure = |purpose| Failure { purpose, message: "Denied".to_owned(), refused: true };
                world.failures = purpose.map(failure).into_iter().collect();
            }
            Event::Tick(seconds) => world.pass_time(Duration::from_secs(u64::from(*seconds))),
            Event::ClockBack(seconds) => world.now -= SignedDuration::from_secs(i64::from(*seconds)),
            Event::Pass(fault) => self.pass(fault),
        }
    }

    fn pass(&mut self, fault: &Fault) {
        if let Fault::FollowUps { dies } = fault {
            let recorded = self.world.status.clone();
            for _ in 0..3 {
                self.pass(&Fault::None);
                self.world.recorded = started_releases(&recorded);
                if matches!(self.world.status.phase, Phase::Waiting | Phase::Promoting | Phase::Failed) {
                    break;
                }
            }
            if *dies {
                self.crashed = true;
                self.world.status = recorded;
            } else {
                self.world.recorded = started_releases(&self.world.status);
            }
            return;
        }
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
        self.log.push(format!(
            "    {:?} -> {:?} {} | {}",
            before.phase, decision.status.phase, decision.status.canary_weight, decision.report.message
        ));
        self.check(&before, &seen, &decision);
        for (at, action) in decision.actions.iter().enumerate() {
            match fault {
                Fault::Crash(after) if *after == at => {
                    self.crashed = true;
                    return;
                }
                Fault::LostActions(which) if which >> (at % 8) & 1 == 1 => continue,
                _ => self.world.perform(action),
            }
            self.log.push(format!("        {}", crate::world::describe_action(action)));
        }
        if !matches!(fault, Fault::Crash(_)) {
            self.world.record(&decision);
        }
    }

    fn check(&mut self, before: &CanaryStatus, seen: &Observed, decision: &Decision) {
        self.update_model(before, seen);
        let after = &decision.status;
        let now = self.world.now;
        let plan = &self.world.plan;
        let window_open = plan.windows.check(now).is_ok();
        let laws = Laws { plan, model: &self.model, before, seen, decision, window_open, now };
        let violations = laws.violations(&mut self.coverage);
        let violations: Vec<_> = violations.iter().map(Violation::to_string).collect();
        let actions = &decision.actions;
        assert!(violations.is_empty(), "{violations:#?}\nby {actions:?}\nafter\n{}", self.log.join("\n"));
        if let Some((wake, why)) = decision.wake {
            assert!(wake > now, "woken at once by {why:?}\nafter\n{}", self.log.join("\n"));
        }
        self.assert_fixpoint(after, seen, decision);
        if after.last_command != before.last_command
            && after.phase == Phase::Promoting
            && before.phase != Phase::Promoting
        {
            self.model.promoted_by_command.insert(after.releases);
        }
    }

    /// Deciding again on the same observation changes nothing, and requests the
    /// same actions: a controller that starts after a crash repeats them.
    fn assert_fixpoint(&mut self, after: &CanaryStatus, seen: &Observed, decision: &Decision) {
        let again = decide(&self.world.plan, after, seen, self.world.now);
        let strip = |status: &CanaryStatus| {
            let mut status = status.clone();
            status.message = None;
            status.conditions.clear();
            status.state.clear();
            status.next_deadline = None;
            status
        };
        let third = decide(&self.world.plan, &again.status, seen, self.world.now);
        assert_eq!(strip(&third.status), strip(&again.status), "no fixpoint after\n{}", self.log.join("\n"));
        let changed = again.status.phase != after.phase || strip(&again.status) != strip(after);
        for action in decision.actions.iter().filter(|_| !changed) {
            self.require(Invariant::CrashSafe, again.actions.contains(action), || {
                format!("{action:?} is not requested again on the same observation")
            });
        }
    }

    /// Adds the evidence of this observation to the model.
    fn update_model(&mut self, before: &CanaryStatus, seen: &Observed) {
        if let Some(measured) = &seen.measurements {
            let bad = measured.results.values().any(|result| match result {
                Measurement::Scalar(value) => *value > 1.0,
                Measurement::Counts(arms) => arms.canary.rate().is_some_and(|rate| rate > 0.1),
                _ => false,
            });
            let silent = measured
                .results
                .values()
                .any(|result| matches!(result, Measurement::NoData | Measurement::Unavailable { .. }));
            if measured.check.full {
                let step = (measured.check.release, measured.check.step);
                self.model.latest_check.insert(step, !bad && !silent);
            }
            if bad {
                self.model.with_negative_evidence.insert(measured.check.release);
            } else if !silent && measured.check.full {
                let step = (measured.check.release, measured.check.step);
                self.model.passed_checks.entry(step).or_default().insert(measured.check.index);
            }
        }
        for result in &seen.gate_results {
            if matches!(result.reply, GateReply::No { .. }) && result.call.release == before.releases {
                self.model.with_negative_evidence.insert(result.call.release);
            }
        }
    }

    /// Ends all faults, opens all gates, and lets time pass until nothing changes.
    fn heal_and_settle(&mut self) {
        self.log.push("faults end".to_owned());
        let world = &mut self.world;
        if world.plan.suspend {
            world.plan = PLANS[0].clone();
        }
        world.health = Health::Good;
        world.target_exists = true;
        world.canary_starts = true;
        world.primary_starts = true;
        world.router_applies = true;
        world.closed.clear();
        world.unreachable.clear();
        world.rollback_gates_open.clear();
        world.approvals.insert("40 %".to_owned(), true);
        world.release_cap = None;
        world.failures.clear();
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
            match world.next_wake {
                Some(at) => world.now = at.max(world.now),
                None => break,
            }
            let stuck = world.status.release.as_ref().is_some_and(|release| release.paused)
                || world
                    .status
                    .message
                    .as_deref()
                    .is_some_and(|message| message.contains("until it is resumed"));
            if stuck {
                world.command(Verb::Resume);
            }
        }
    }

    fn assert_settled(&mut self) {
        let world = &self.world;
        let trail = || format!("{:?}\nafter\n{}", world.status, self.log.join("\n"));
        let status = &world.status;
        assert!(
            matches!(status.phase, Phase::Initialized | Phase::Succeeded | Phase::Failed),
            "stuck in {:?}: {}",
            status.phase,
            trail()
        );
        assert_eq!(world.split, Split::all_primary(), "not all traffic goes to the primary: {}", trail());
        assert!(status.release.is_none(), "not settled: {}", trail());
        let primary = world.primary.as_ref().unwrap();
        let revisions = status.revisions.as_ref().unwrap();
        assert_eq!(primary.revision, revisions.primary, "the primary runs another revision: {}", trail());
        assert!(!primary.pinned, "still pinned: {}", trail());
        // A history with a crash settles by the same conditions as one without.
        if self.crashed {
            self.coverage.count(Invariant::CrashSafe);
        }
        let target = self.world.target.revision.clone();
        let kept = [&primary.revision, &revisions.rejected].map(|known| known.as_ref() == Some(&target));
        self.require(Invariant::RevisionIsNotLost, kept.contains(&true), || {
            format!("{target} is neither promoted nor rejected")
        });
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
    fn every_history_keeps_the_invariants_and_settles(
        plan in 0..PLANS.len(),
        events in prop::collection::vec(event(), 1..120),
    ) {
        History::run(plan, &events);
    }
}

#[test]
fn every_invariant_is_exercised() {
    let mut runner = TestRunner::deterministic();
    let histories = (0..PLANS.len(), prop::collection::vec(event(), 1..120));
    let mut coverage = Coverage::default();
    for _ in 0..200 {
        let (plan, events) = histories.new_tree(&mut runner).expect("a history").current();
        coverage.merge(&History::run(plan, &events).coverage);
    }
    coverage.assert_exercised(&EXERCISED);
}
