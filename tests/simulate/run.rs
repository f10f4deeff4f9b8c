//! One seed, from its first Canary to the last thing that has to settle.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::json;
use serin::api::Weight;
use serin::api::canary::Phase;
use serin::engine::command::Verb;
use serin::local::faults::FaultPlan;
use tokio::time::{Instant, sleep, sleep_until};

use super::scene::{Act, BUSY, Scene};
use super::world::World;

/// Whatever is left over must be done by then, after everything calmed down.
const PATIENCE: Duration = Duration::from_secs(3 * 3600);

/// Twice as long as anything in Serin waits before it looks again; what writes
/// at rest would write within it.
const REST: Duration = Duration::from_secs(600);

/// What came of a seed.
pub struct Ran {
    pub broken: Option<String>,
    pub history: String,
    pub tally: BTreeMap<String, u64>,
}

pub fn run(seed: u64) -> Ran {
    // kube spreads its waits by it.
    fastrand::seed(seed);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
    runtime.expect("a runtime").block_on(play(seed))
}

async fn play(seed: u64) -> Ran {
    let mut world = World::new(seed, Scene::of(seed)).await;
    let began = Instant::now();
    for (at, act) in world.scene.acts.clone() {
        sleep_until(began + at).await;
        world.act(&act).await;
        if world.onlooker.lock().broken.is_some() {
            return outcome(&world);
        }
    }
    sleep_until(began + BUSY).await;
    calm_down(&mut world).await;
    outcome(&world)
}

fn outcome(world: &World) -> Ran {
    let onlooker = world.onlooker.lock();
    let mut tally = onlooker.tally.clone();
    for (fault, times) in world.local.faults_struck() {
        *tally.entry(format!("fault: {fault}")).or_default() += times;
    }
    *tally.entry("writes".to_owned()).or_default() += onlooker.writes;
    Ran { broken: onlooker.broken.clone(), history: onlooker.story(), tally }
}

/// Everything gets well and everybody says yes.
async fn calm_down(world: &mut World) {
    world.act(&Act::Weather(FaultPlan::default())).await;
    {
        let mut onlooker = world.onlooker.lock();
        onlooker.flow();
        onlooker.metrics.clear();
        onlooker.gates.clear();
        for subject in onlooker.subjects.values_mut() {
            subject.rate = 200.0;
            if subject.direct > 0.0
                || !subject
                    .plans
                    .values()
                    .flatten()
                    .any(|plan| plan.steps.iter().any(|s| s.split.reaches_canary()))
            {
                subject.direct = 20.0;
            }
        }
    }
    for on in 0..world.scene.subjects.len() {
        world.act(&Act::Edit { on, spec: json!({"suspend": false, "releaseWindows": []}) }).await;
    }
    let end = Instant::now() + PATIENCE;
    let mut rests = false;
    while Instant::now() < end && !rests {
        sleep(Duration::from_secs(20)).await;
        if world.onlooker.lock().broken.is_some() {
            return;
        }
        rests = true;
        for on in 0..world.scene.subjects.len() {
            let (at_rest, needs) = state(world, on);
            rests &= at_rest;
            world.answer(on, true).await;
            if let Some(verb) = needs {
                world.act(&Act::Command { on, verb }).await;
            }
        }
    }
    if rests {
        return stays_at_rest(world).await;
    }
    let mut onlooker = world.onlooker.lock();
    {
        let messages: Vec<_> = onlooker
            .subjects
            .values()
            .map(|s| format!("{}: {:?}", s.name, s.status().map(|s| (s.phase, s.message.clone()))))
            .collect();
        onlooker.judge(Err(format!("6: not at rest after {PATIENCE:?}: {}", messages.join("; "))));
    }
}

/// What is at rest costs nothing; and what is deleted has left nothing behind.
async fn stays_at_rest(world: &World) {
    // The version before may have been kept warm.
    sleep(Duration::from_secs(400)).await;
    let before = world.onlooker.lock().requests;
    sleep(REST).await;
    let mut onlooker = world.onlooker.lock();
    let more = onlooker.requests - before;
    if more > 0 {
        onlooker.judge(Err(format!("at rest, and {more} writes in {REST:?}")));
    }
    for subject in &world.scene.subjects {
        let seen = &onlooker.subjects[subject.name];
        let reverted = seen.canary.is_none() && seen.reverts;
        let target = seen.target.now().clone().unwrap_or_default();
        let broken = match &seen.canary {
            None if reverted && (target.desired == 0 || seen.split.is_some()) => {
                Some(format!("{} was not put back: {target:?}, {:?}", subject.name, seen.split))
            }
            Some(canary)
                if canary.status.as_ref().is_some_and(|status| status.phase != Phase::Initializing)
                    && target.desired > 0
                    && subject.kind == "Deployment"
                    && !seen.scaled_by_people =>
            {
                Some(format!("{} still runs as a canary: {target:?}", subject.name))
            }
            _ => None,
        };
        if let Some(broken) = broken {
            onlooker.judge(Err(broken));
        }
    }
}

/// Has it come to its end? What does it need of somebody?
fn state(world: &World, on: usize) -> (bool, Option<Verb>) {
    let onlooker = world.onlooker.lock();
    let subject = &onlooker.subjects[world.scene.subjects[on].name];
    let Some(status) = subject.status() else { return (subject.canary.is_none(), None) };
    let message = status.message.as_deref().unwrap_or_default();
    let paused = status.release.as_ref().is_some_and(|release| release.paused)
        || message.contains("until somebody resumes");
    // Such as after an edit, at the step of 100 %, that wants it compared.
    let incomparable = status.canary_weight == Weight::FULL && message.contains("nothing to compare with");
    let needs = match (paused, incomparable) {
        (true, _) => Some(Verb::Resume),
        (false, true) => Some(Verb::Promote),
        (false, false) => None,
    };
    let image = |workload: &Option<super::seen::Workload>| workload.as_ref().map(|w| w.image.clone());
    let promoted = image(subject.target.now()) == image(subject.primary.now());
    let refused = status.phase == Phase::Failed;
    let rests = matches!(status.phase, Phase::Initialized | Phase::Succeeded | Phase::Failed);
    let home = !subject.route.now().reaches_canary();
    // A Canary of something that does not start has no primary to begin with.
    let hopeless = |workload: &super::seen::Workload| {
        workload.image.contains("crash") || workload.image.contains("never-ready")
    };
    if status.phase == Phase::Initializing && subject.primary.now().as_ref().is_some_and(hopeless) {
        return (true, None);
    }
    (rests && status.release.is_none() && (promoted || refused) && home, needs)
}
