//! One seed, from its first Canary until every Canary has settled.

use std::collections::BTreeMap;
use std::time::Duration;

use kube_local::faults::FaultPlan;
use serde_json::json;
use serin::api::Weight;
use serin::api::canary::Phase;
use serin::engine::command::Verb;
use tokio::time::{Instant, sleep};

use super::invariant::{Coverage, Violation};
use super::model::{CanaryModel, Workload};
use super::recorder::Recorder;
use super::scenario::{ACTIVE_PERIOD, Dependency, Event, Scenario};
use super::traffic::behaviour;
use super::world::World;

/// Every Canary must settle within this time after the last fault.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(3 * 3600);

/// Twice the longest requeue delay: a controller that writes while idle would
/// write within it.
const QUIESCENCE: Duration = Duration::from_secs(600);

/// The outcome of a seed.
pub struct RunResult {
    /// The first.
    pub violation: Option<Violation>,
    pub coverage: Coverage,
    pub history: String,
    pub counts: BTreeMap<String, u64>,
}

pub fn run(seed: u64) -> RunResult {
    run_with(seed, false)
}

/// Prints the history as it happens, so that a seed that hangs shows where.
pub fn run_and_print(seed: u64) -> RunResult {
    run_with(seed, true)
}

fn run_with(seed: u64, prints: bool) -> RunResult {
    // kube draws its backoff jitter from it.
    fastrand::seed(seed);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
    runtime.expect("a runtime").block_on(run_scenario(seed, prints))
}

async fn run_scenario(seed: u64, prints: bool) -> RunResult {
    let mut world = World::new(seed, Scenario::of(seed), prints).await;
    world.run_until(world.began + ACTIVE_PERIOD).await;
    if world.recorder.lock().violation.is_none() {
        heal_and_settle(&mut world).await;
    }
    run_result(&world)
}

fn run_result(world: &World) -> RunResult {
    let recorder = world.recorder.lock();
    let mut tally = recorder.counts.clone();
    for (fault, times) in world.api_server.injected_faults() {
        *tally.entry(format!("fault: {fault}")).or_default() += times;
    }
    *tally.entry("writes".to_owned()).or_default() += recorder.writes;
    RunResult {
        violation: recorder.violation.clone(),
        coverage: recorder.invariants.coverage.clone(),
        history: recorder.history_text(),
        counts: tally,
    }
}

/// Ends all faults, opens all gates, and waits until every Canary has settled.
async fn heal_and_settle(world: &mut World) {
    world.perform(&Event::Faults(FaultPlan::default())).await;
    {
        let mut recorder = world.recorder.lock();
        recorder.advance_traffic();
        recorder.traffic.metrics.clear();
        recorder.gates.clear();
        recorder.agenda.heal();
        recorder.end_refusals(None);
        for subject in recorder.canaries.values_mut() {
            subject.rate = 200.0;
            if subject.direct_rate > 0.0
                || !subject
                    .plans
                    .values()
                    .flatten()
                    .any(|plan| plan.steps.iter().any(|s| s.split.reaches_canary()))
            {
                subject.direct_rate = 20.0;
            }
        }
    }
    for on in 0..world.scenario.canaries.len() {
        let setup = &world.scenario.canaries[on];
        for (what, has) in [
            (Dependency::Autoscaler, setup.has_autoscaler),
            (Dependency::Budget, setup.has_budget),
            (Dependency::Template, setup.has_template),
        ] {
            if has {
                world.create_dependency(on, what).await;
            }
        }
        world.perform(&Event::Edit { on, spec: json!({"suspend": false, "releaseWindows": []}) }).await;
    }
    let end = Instant::now() + SETTLE_TIMEOUT;
    let mut settled = false;
    while Instant::now() < end && !settled {
        world.run_until(Instant::now() + Duration::from_secs(20)).await;
        if world.recorder.lock().violation.is_some() {
            return;
        }
        settled = true;
        for on in 0..world.scenario.canaries.len() {
            let name = world.scenario.canaries[on].name;
            let (is_settled, needs) = settle_state(&world.recorder.lock().canaries[name]);
            settled &= is_settled;
            world.answer_approvals(on, true).await;
            if let Some(verb) = needs {
                world.perform(&Event::Command { on, verb }).await;
            }
        }
    }
    if settled {
        wait_for_quiescence(world).await;
    }
    let mut recorder = world.recorder.lock();
    let Recorder { canaries, invariants, .. } = &mut *recorder;
    let results: Vec<_> = canaries
        .values()
        .map(|canary| invariants.check_settled(canary, settled || settle_state(canary).0))
        .collect();
    results.into_iter().for_each(|result| recorder.report(result));
    if settled {
        check_leftovers(world, &mut recorder);
    }
}

/// An idle controller writes nothing.
async fn wait_for_quiescence(world: &World) {
    // A previous version may be kept warm.
    sleep(Duration::from_secs(400)).await;
    let before = world.recorder.lock().requests;
    sleep(QUIESCENCE).await;
    let mut recorder = world.recorder.lock();
    let more = recorder.requests - before;
    if more > 0 {
        recorder.report(Err(format!("idle, and {more} writes in {QUIESCENCE:?}").into()));
    }
}

/// A deleted Canary has left nothing behind, and no canary runs without a release.
fn check_leftovers(world: &World, recorder: &mut Recorder) {
    for setup in &world.scenario.canaries {
        let model = &recorder.canaries[setup.name];
        let reverted = model.canary.is_none() && model.reverts_on_deletion;
        let target = model.target.now().clone().unwrap_or_default();
        let violation = match &model.canary {
            None if reverted && (target.desired == 0 || model.split.is_some()) => {
                Some(format!("{} was not put back: {target:?}, {:?}", setup.name, model.split))
            }
            Some(canary)
                if canary.status.as_ref().is_some_and(|status| status.phase != Phase::Initializing)
                    && target.desired > 0
                    && setup.kind == "Deployment"
                    && !model.scaled_by_user =>
            {
                Some(format!("{} still runs as a canary: {target:?}", setup.name))
            }
            _ => None,
        };
        if let Some(violation) = violation {
            recorder.report(Err(violation.into()));
        }
    }
}

/// Whether a Canary has settled, and the command that it waits for.
fn settle_state(canary: &CanaryModel) -> (bool, Option<Verb>) {
    let Some(status) = canary.status() else { return (canary.canary.is_none(), None) };
    let message = status.message.as_deref().unwrap_or_default();
    let paused = status.release.as_ref().is_some_and(|release| release.paused)
        || message.contains("until it is resumed");
    // Such as after an edit that adds a comparison at the step of 100 %.
    let incomparable = status.canary_weight == Weight::FULL && message.contains("nothing to compare with");
    // A revision that is as bad as the primary is held until a user accepts it. One that
    // fails nothing has to be promoted without a word, since it may be the remedy.
    let fails = |target: &Workload| behaviour(&target.code).error_rate > 0.0;
    let incident = message.contains("incident:") && canary.target.now().as_ref().is_some_and(fails);
    let needs = match (paused, incomparable || incident) {
        (true, _) => Some(Verb::Resume),
        (false, true) => Some(Verb::Promote),
        (false, false) => None,
    };
    let image = |workload: &Option<Workload>| workload.as_ref().map(|w| w.image.clone());
    let promoted = image(canary.target.now()) == image(canary.primary.now());
    let refused = status.phase == Phase::Failed;
    let ended = matches!(status.phase, Phase::Initialized | Phase::Succeeded | Phase::Failed);
    let all_to_primary = !canary.route.now().reaches_canary();
    // A Canary whose first version never starts has no primary to begin with.
    let hopeless =
        |workload: &Workload| workload.image.contains("crash") || workload.image.contains("never-ready");
    if status.phase == Phase::Initializing && canary.primary.now().as_ref().is_some_and(hopeless) {
        return (true, None);
    }
    (ended && status.release.is_none() && (promoted || refused) && all_to_primary, needs)
}
