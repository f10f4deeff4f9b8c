//! One seed, from its first Canary to the last thing that has to settle.

use std::collections::BTreeMap;
use std::time::Duration;

use kube_local::faults::FaultPlan;
use serde_json::json;
use serin::api::Weight;
use serin::api::canary::Phase;
use serin::engine::command::Verb;
use tokio::time::{Instant, sleep, sleep_until};

use super::scenario::{ACTIVE_PERIOD, Event, Scenario};
use super::world::World;

/// Whatever is left over must be done by then, after everything calmed down.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(3 * 3600);

/// Twice as long as anything in Serin waits before it looks again; what writes
/// at rest would write within it.
const QUIESCENCE: Duration = Duration::from_secs(600);

/// What came of a seed.
pub struct RunResult {
    pub broken: Option<String>,
    pub history: String,
    pub counts: BTreeMap<String, u64>,
}

pub fn run(seed: u64) -> RunResult {
    // kube spreads its waits by it.
    fastrand::seed(seed);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
    runtime.expect("a runtime").block_on(run_scenario(seed))
}

async fn run_scenario(seed: u64) -> RunResult {
    let mut world = World::new(seed, Scenario::of(seed)).await;
    let began = Instant::now();
    for (at, event) in world.scenario.events.clone() {
        sleep_until(began + at).await;
        world.perform(&event).await;
        if world.recorder.lock().broken.is_some() {
            return run_result(&world);
        }
    }
    sleep_until(began + ACTIVE_PERIOD).await;
    heal_and_settle(&mut world).await;
    run_result(&world)
}

fn run_result(world: &World) -> RunResult {
    let recorder = world.recorder.lock();
    let mut tally = recorder.counts.clone();
    for (fault, times) in world.api_server.injected_faults() {
        *tally.entry(format!("fault: {fault}")).or_default() += times;
    }
    *tally.entry("writes".to_owned()).or_default() += recorder.writes;
    RunResult { broken: recorder.broken.clone(), history: recorder.history_text(), counts: tally }
}

/// Everything gets well and everybody says yes.
async fn heal_and_settle(world: &mut World) {
    world.perform(&Event::Faults(FaultPlan::default())).await;
    {
        let mut recorder = world.recorder.lock();
        recorder.advance_traffic();
        recorder.metrics.clear();
        recorder.gates.clear();
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
        world.perform(&Event::Edit { on, spec: json!({"suspend": false, "releaseWindows": []}) }).await;
    }
    let end = Instant::now() + SETTLE_TIMEOUT;
    let mut rests = false;
    while Instant::now() < end && !rests {
        sleep(Duration::from_secs(20)).await;
        if world.recorder.lock().broken.is_some() {
            return;
        }
        rests = true;
        for on in 0..world.scenario.canaries.len() {
            let (require_idle, needs) = settle_state(world, on);
            rests &= require_idle;
            world.answer_approvals(on, true).await;
            if let Some(verb) = needs {
                world.perform(&Event::Command { on, verb }).await;
            }
        }
    }
    if rests {
        return check_quiescence(world).await;
    }
    let mut recorder = world.recorder.lock();
    {
        let messages: Vec<_> = recorder
            .canaries
            .values()
            .map(|s| format!("{}: {:?}", s.name, s.status().map(|s| (s.phase, s.message.clone()))))
            .collect();
        recorder.check(Err(format!("6: not at rest after {SETTLE_TIMEOUT:?}: {}", messages.join("; "))));
    }
}

/// What is at rest costs nothing; and what is deleted has left nothing behind.
async fn check_quiescence(world: &World) {
    // The version before may have been kept warm.
    sleep(Duration::from_secs(400)).await;
    let before = world.recorder.lock().requests;
    sleep(QUIESCENCE).await;
    let mut recorder = world.recorder.lock();
    let more = recorder.requests - before;
    if more > 0 {
        recorder.check(Err(format!("at rest, and {more} writes in {QUIESCENCE:?}")));
    }
    for subject in &world.scenario.canaries {
        let seen = &recorder.canaries[subject.name];
        let reverted = seen.canary.is_none() && seen.reverts_on_deletion;
        let target = seen.target.now().clone().unwrap_or_default();
        let broken = match &seen.canary {
            None if reverted && (target.desired == 0 || seen.split.is_some()) => {
                Some(format!("{} was not put back: {target:?}, {:?}", subject.name, seen.split))
            }
            Some(canary)
                if canary.status.as_ref().is_some_and(|status| status.phase != Phase::Initializing)
                    && target.desired > 0
                    && subject.kind == "Deployment"
                    && !seen.scaled_by_user =>
            {
                Some(format!("{} still runs as a canary: {target:?}", subject.name))
            }
            _ => None,
        };
        if let Some(broken) = broken {
            recorder.check(Err(broken));
        }
    }
}

/// Has it come to its end? What does it need of somebody?
fn settle_state(world: &World, on: usize) -> (bool, Option<Verb>) {
    let recorder = world.recorder.lock();
    let subject = &recorder.canaries[world.scenario.canaries[on].name];
    let Some(status) = subject.status() else { return (subject.canary.is_none(), None) };
    let message = status.message.as_deref().unwrap_or_default();
    let paused = status.release.as_ref().is_some_and(|release| release.paused)
        || message.contains("until it is resumed");
    // Such as after an edit, at the step of 100 %, that wants it compared.
    let incomparable = status.canary_weight == Weight::FULL && message.contains("nothing to compare with");
    let needs = match (paused, incomparable) {
        (true, _) => Some(Verb::Resume),
        (false, true) => Some(Verb::Promote),
        (false, false) => None,
    };
    let image = |workload: &Option<super::model::Workload>| workload.as_ref().map(|w| w.image.clone());
    let promoted = image(subject.target.now()) == image(subject.primary.now());
    let refused = status.phase == Phase::Failed;
    let rests = matches!(status.phase, Phase::Initialized | Phase::Succeeded | Phase::Failed);
    let home = !subject.route.now().reaches_canary();
    // A Canary of something that does not start has no primary to begin with.
    let hopeless = |workload: &super::model::Workload| {
        workload.image.contains("crash") || workload.image.contains("never-ready")
    };
    if status.phase == Phase::Initializing && subject.primary.now().as_ref().is_some_and(hopeless) {
        return (true, None);
    }
    (rests && status.release.is_none() && (promoted || refused) && home, needs)
}
