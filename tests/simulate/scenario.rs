//! The scenario of a seed: Canaries, user events and faults.

use std::time::Duration;

use kube_local::faults::FaultPlan;
use kube_local::seeded_rng::SeededRng;
use serde_json::{Value, json};
use serin::engine::command::Verb;

/// The time of user events and faults.
pub const ACTIVE_PERIOD: Duration = Duration::from_secs(15 * 60);

pub struct Scenario {
    pub canaries: Vec<CanarySetup>,
    /// In the order of time.
    pub events: Vec<(Duration, Event)>,
    /// Two replicas share the work by a Lease.
    pub replicas: bool,
}

/// One Canary and what it releases.
pub struct CanarySetup {
    pub name: &'static str,
    pub kind: &'static str,
    pub replicas: u32,
    pub reads_config: bool,
    pub has_autoscaler: bool,
    pub spec: Value,
    /// Requests a second.
    pub rate: f64,
    /// Of a load test, straight to the canary.
    pub direct_rate: f64,
}

#[derive(Clone, Debug)]
pub enum Event {
    Push {
        on: usize,
        image: String,
    },
    EditConfig {
        on: usize,
        value: u64,
    },
    Edit {
        on: usize,
        spec: Value,
    },
    Command {
        on: usize,
        verb: Verb,
    },
    /// Answers the pending approvals.
    Answer {
        on: usize,
        yes: bool,
    },
    Delete {
        on: usize,
    },
    Create {
        on: usize,
    },
    Scale {
        on: usize,
        primary: bool,
        replicas: u32,
    },
    KillPods {
        on: usize,
        primary: bool,
        all: bool,
    },
    Traffic {
        on: usize,
        rate: f64,
    },
    Metrics {
        on: usize,
        mode: Metrics,
    },
    Gate {
        on: usize,
        hook: &'static str,
        mode: Gate,
    },
    Faults(FaultPlan),
    /// Ends the controller, gently or not, and starts another after a while.
    /// Of two replicas maybe only one.
    Restart {
        gently: bool,
        after: Duration,
        both: bool,
    },
    /// One of two replicas is frozen.
    Freeze {
        which: usize,
        length: Duration,
    },
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Metrics {
    #[default]
    Available,
    Gone,
    Hanging,
    Garbage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    Yes,
    No,
    Slow(Duration),
    Unreachable,
}

/// Draws from a seed.
pub struct Dice(SeededRng);

impl Dice {
    pub fn of(seed: u64) -> Self {
        Self(SeededRng::seeded(seed.wrapping_mul(0x2545_F491_4F6C_DD1D) ^ 0x5EED))
    }

    pub fn below(&self, limit: u64) -> u64 {
        self.0.next_u64() % limit.max(1)
    }

    pub fn happens(&self, p: f64) -> bool {
        self.0.random_bool(p)
    }

    pub fn pick<T: Clone>(&self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize].clone()
    }

    /// Whole milliseconds between the two.
    pub fn time(&self, from: f64, to: f64) -> Duration {
        let (from, to) = ((from * 1e3) as u64, (to * 1e3) as u64);
        Duration::from_millis(from + self.below(to - from))
    }
}

impl Scenario {
    pub fn of(seed: u64) -> Self {
        let dice = Dice::of(seed);
        let count = dice.pick(&[1, 1, 1, 2, 2, 3]);
        let subjects: Vec<_> =
            ["web", "shop", "mail"][..count].iter().map(|name| subject(&dice, name)).collect();
        let replicas = dice.happens(0.25);
        let mut events = Vec::new();
        for (on, subject) in subjects.iter().enumerate() {
            user_events(&dice, on, subject, &mut events);
            environment_events(&dice, on, subject, &mut events);
        }
        fault_events(&dice, replicas, &mut events);
        events.sort_by_key(|(at, _)| *at);
        Self { canaries: subjects, events, replicas }
    }
}

fn subject(dice: &Dice, name: &'static str) -> CanarySetup {
    let daemon = dice.happens(0.1);
    let has_autoscaler = !daemon && dice.happens(0.2);
    let (strategy, spec) = spec(dice, name, daemon, has_autoscaler);
    let rate = dice.pick(&[0.0, 0.5, 5.0, 40.0, 40.0, 100.0, 100.0, 400.0]);
    let direct = if strategy == "blue" { dice.pick(&[0.0, 10.0, 10.0]) } else { 0.0 };
    let replicas = dice.pick(&[1, 2, 2, 3]);
    let kind = if daemon { "DaemonSet" } else { "Deployment" };
    CanarySetup {
        name,
        kind,
        replicas,
        reads_config: dice.happens(0.3),
        has_autoscaler,
        spec,
        rate,
        direct_rate: direct,
    }
}

/// A strategy and the Canary's spec.
fn spec(dice: &Dice, name: &str, daemon: bool, scaled: bool) -> (&'static str, Value) {
    let mut provider = "smi:v1alpha2";
    let mut spec = json!({
        "targetRef": {"apiVersion": "apps/v1", "kind": if daemon { "DaemonSet" } else { "Deployment" }, "name": name},
        "service": {"port": 80, "targetPort": 8080},
    });
    let interval = dice.pick(&["5s", "10s", "10s", "20s", "30s"]);
    let mut analysis = json!({"interval": interval, "threshold": dice.pick(&[1, 2, 3])});
    let strategy = match dice.below(12) {
        0..4 => {
            analysis["stepWeights"] = json!(weights(dice));
            "weights"
        }
        4 => {
            analysis["stepWeight"] = json!(dice.pick(&[10, 20, 30]));
            analysis["maxWeight"] = json!(dice.pick(&[30, 50, 100]));
            "weights"
        }
        5..8 => {
            analysis["steps"] = steps(dice, daemon);
            "steps"
        }
        8..10 => {
            analysis["iterations"] = json!(dice.pick(&[1, 2, 3]));
            provider = dice.pick(&["smi:v1alpha2", "kubernetes"]);
            "blue"
        }
        10 => {
            analysis["iterations"] = json!(dice.pick(&[1, 2, 3]));
            analysis["match"] = json!([{"headers": {"x-user": {"exact": "insider"}}}]);
            provider = "smi:v1alpha3";
            "ab"
        }
        _ => {
            analysis["stepWeight"] = json!(50);
            spec["skipAnalysis"] = json!(true);
            "skip"
        }
    };
    if dice.happens(0.2) && matches!(strategy, "weights" | "steps") {
        analysis["stepWeightPromotion"] = json!(dice.pick(&[30, 50]));
    }
    analysis["metrics"] = metrics(dice);
    if dice.happens(0.3) {
        analysis["webhooks"] = json!(webhooks(dice, name));
    }
    if dice.happens(0.15) {
        analysis["canaryReadyThreshold"] = json!(50);
    }
    spec["provider"] = json!(provider);
    spec["analysis"] = analysis;
    if dice.happens(0.3) {
        spec["progressDeadlineSeconds"] = json!(dice.pick(&[60, 120, 300]));
    }
    if dice.happens(0.15) {
        let kind = dice.pick(&["freeze", "allow"]);
        let minute = dice.below(10);
        spec["releaseWindows"] =
            json!([{"kind": kind, "cron": format!("{minute}-59/10 * * * *"), "duration": "4m"}]);
    }
    if dice.happens(0.2) {
        spec["rollback"] = json!({"keepWarmSeconds": dice.pick(&[60, 300])});
    }
    if dice.happens(0.5) {
        spec["revertOnDeletion"] = json!(true);
    }
    if scaled {
        spec["autoscalerRef"] =
            json!({"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "name": name});
    }
    (strategy, spec)
}

fn weights(dice: &Dice) -> Vec<f64> {
    let all = [0.5, 5.0, 10.0, 20.0, 35.0, 50.0, 80.0, 100.0];
    let mut some: Vec<f64> = all.into_iter().filter(|_| dice.happens(0.35)).collect();
    // Nothing is left to compare with if all traffic goes to the canary at once.
    if some.is_empty() || some == [100.0] {
        some.insert(0, dice.pick(&all[..7]));
    }
    some
}

fn steps(dice: &Dice, daemon: bool) -> Value {
    let mut steps = Vec::new();
    for weight in weights(dice) {
        let mut step = json!({"weight": weight});
        if dice.happens(0.2) {
            step["pause"] = dice.pick(&[json!({"duration": "30s"}), json!({"duration": "90s"}), json!({})]);
        }
        if dice.happens(0.2) {
            step["approval"] =
                dice.pick(&[json!({}), json!({"message": "go?"}), json!({"expireAfter": "3m"})]);
        }
        if dice.happens(0.2) {
            step["iterations"] = json!(2);
        }
        if dice.happens(0.2) && !daemon {
            step["replicas"] =
                dice.pick(&[json!({"count": 1}), json!({"count": 3}), json!({"percent": 100})]);
        }
        steps.push(step);
    }
    if dice.happens(0.2) {
        steps.insert(0, json!({"pause": {"duration": "20s"}}));
    }
    json!(steps)
}

fn metrics(dice: &Dice) -> Value {
    match dice.below(8) {
        0 => json!([]),
        1 => json!([{"name": "request-success-rate", "thresholdRange": {"min": 99}}]),
        2 => json!([
            {"name": "request-success-rate", "thresholdRange": {"min": 99}},
            {"name": "request-duration", "thresholdRange": {"max": 500}},
        ]),
        3 => json!([{"name": "request-success-rate"}]),
        4 => {
            let judge = json!({"type": "sequential", "promoteOn": "evidence"});
            json!([{"name": "request-success-rate", "judge": judge}])
        }
        _ => json!([{"name": "request-success-rate"}, {"name": "request-duration"}]),
    }
}

/// Kinds of hooks, by name.
pub const HOOKS: [(&str, &str); 7] = [
    ("start", "confirm-rollout"),
    ("test", "pre-rollout"),
    ("load", "rollout"),
    ("more", "confirm-traffic-increase"),
    ("ship", "confirm-promotion"),
    ("after", "post-rollout"),
    ("stop", "rollback"),
];

fn webhooks(dice: &Dice, canary: &str) -> Vec<Value> {
    let hook = |(name, kind): (&str, &str)| {
        let mut hook = json!({"name": name, "type": kind, "url": format!("http://gates/{canary}/{name}")});
        if dice.happens(0.3) {
            hook["timeout"] = json!("3s");
        }
        if dice.happens(0.3) {
            hook["retries"] = json!(2);
        }
        if dice.happens(0.2) && kind.starts_with("confirm") {
            hook["expireAfter"] = json!("4m");
        }
        hook
    };
    HOOKS.into_iter().filter(|_| dice.happens(0.4)).map(hook).collect()
}

fn user_events(dice: &Dice, on: usize, subject: &CanarySetup, events: &mut Vec<(Duration, Event)>) {
    let end = ACTIVE_PERIOD.as_secs_f64();
    let mut images = vec![format!("{}:v1", subject.name)];
    let mut at = dice.time(20.0, 90.0);
    for number in 2..2 + 1 + dice.below(5) {
        let back = images.len() > 1 && dice.happens(0.12);
        let image = if back { dice.pick(&images) } else { image(dice, subject, number) };
        images.push(image.clone());
        events.push((at, Event::Push { on, image }));
        if subject.reads_config && dice.happens(0.3) {
            events.push((at + dice.time(0.0, 120.0), Event::EditConfig { on, value: number }));
        }
        // Some follow at once, most after the previous release.
        at += if dice.happens(0.2) { dice.time(0.1, 20.0) } else { dice.time(40.0, 240.0) };
        if at > ACTIVE_PERIOD {
            break;
        }
    }
    for _ in 0..dice.below(4) {
        let at = dice.time(30.0, end);
        events.push((at, edit(dice, on, subject)));
    }
    if dice.happens(0.15) {
        let at = dice.time(30.0, end - 200.0);
        events.push((at, Event::Edit { on, spec: json!({"suspend": true}) }));
        events.push((at + dice.time(1.0, 200.0), Event::Edit { on, spec: json!({"suspend": false}) }));
    }
    if dice.happens(0.35) {
        for _ in 0..1 + dice.below(3) {
            let verb = dice.pick(&[
                Verb::Abort,
                Verb::Promote,
                Verb::Pause,
                Verb::Resume,
                Verb::Resume,
                Verb::Retry,
                Verb::Rollback,
            ]);
            events.push((dice.time(60.0, end), Event::Command { on, verb }));
        }
    }
    for _ in 0..dice.below(6) {
        events.push((dice.time(60.0, end), Event::Answer { on, yes: dice.happens(0.8) }));
    }
    if dice.happens(0.12) {
        let at = dice.time(60.0, end - 120.0);
        events.push((at, Event::Delete { on }));
        if dice.happens(0.7) {
            events.push((at + dice.time(1.0, 100.0), Event::Create { on }));
        }
    }
}

fn image(dice: &Dice, subject: &CanarySetup, number: u64) -> String {
    let suffix = match dice.below(20) {
        0..3 => "-errors-25",
        3..5 => "-slow-2s",
        5 => "-never-ready",
        6 => "-crash",
        7 => "-delay-40s",
        8..12 => "-delay-3s",
        _ => "",
    };
    format!("{}:v{number}{suffix}", subject.name)
}

fn edit(dice: &Dice, on: usize, subject: &CanarySetup) -> Event {
    let analysis = &subject.spec["analysis"];
    let spec = match dice.below(6) {
        0 if !analysis["stepWeights"].is_null() => json!({"analysis": {"stepWeights": weights(dice)}}),
        0 if !analysis["steps"].is_null() => {
            json!({"analysis": {"steps": steps(dice, subject.kind == "DaemonSet")}})
        }
        1 => json!({"analysis": {"interval": dice.pick(&["5s", "15s", "40s"])}}),
        2 => json!({"analysis": {"threshold": dice.pick(&[1, 4])}}),
        3 => json!({"progressDeadlineSeconds": dice.pick(&[json!(60), json!(600), Value::Null])}),
        4 => json!({"analysis": {"metrics": metrics(dice)}}),
        _ => json!({"rollback": {"keepWarmSeconds": dice.pick(&[0, 120])}}),
    };
    Event::Edit { on, spec }
}

fn environment_events(dice: &Dice, on: usize, subject: &CanarySetup, events: &mut Vec<(Duration, Event)>) {
    let end = ACTIVE_PERIOD.as_secs_f64();
    for _ in 0..dice.below(4) {
        let rate = dice.pick(&[0.0, 1.0, 40.0, 100.0, 100.0]);
        events.push((dice.time(30.0, end), Event::Traffic { on, rate }));
    }
    if dice.happens(0.4) {
        let at = dice.time(30.0, end - 300.0);
        let mode = dice.pick(&[Metrics::Gone, Metrics::Hanging, Metrics::Garbage]);
        events.push((at, Event::Metrics { on, mode }));
        events.push((at + dice.time(5.0, 300.0), Event::Metrics { on, mode: Metrics::Available }));
    }
    for (hook, _) in HOOKS {
        if dice.happens(0.4) {
            let slow = Gate::Slow(dice.time(0.5, 20.0));
            let mode = dice.pick(&[Gate::Yes, Gate::No, slow, Gate::Unreachable]);
            events.push((dice.time(0.0, end), Event::Gate { on, hook, mode }));
        }
    }
    if dice.happens(0.3) {
        let replicas = 1 + dice.below(4) as u32;
        let primary = subject.has_autoscaler || dice.happens(0.7);
        events.push((dice.time(30.0, end), Event::Scale { on, primary, replicas }));
    }
    for _ in 0..dice.below(3) {
        let (primary, all) = (dice.happens(0.4), dice.happens(0.5));
        events.push((dice.time(30.0, end), Event::KillPods { on, primary, all }));
    }
}

/// Faults of the API server and restarts of the controller.
fn fault_events(dice: &Dice, replicas: bool, events: &mut Vec<(Duration, Event)>) {
    let end = ACTIVE_PERIOD.as_secs_f64();
    if dice.happens(0.7) {
        let at = dice.time(0.0, end / 2.0);
        events.push((at, Event::Faults(random_faults(dice))));
        events.push((at + dice.time(60.0, end / 2.0), Event::Faults(FaultPlan::default())));
    }
    if dice.happens(0.6) {
        for _ in 0..1 + dice.below(4) {
            let after = if dice.happens(0.5) { Duration::ZERO } else { dice.time(0.1, 60.0) };
            let (gently, both) = (dice.happens(0.4), dice.happens(0.5));
            events.push((dice.time(5.0, end - 60.0), Event::Restart { gently, after, both }));
        }
    }
    if replicas {
        for _ in 0..1 + dice.below(3) {
            let (length, which) = (dice.time(1.0, 60.0), dice.below(2) as usize);
            events.push((dice.time(5.0, end - 60.0), Event::Freeze { which, length }));
        }
    }
}

fn random_faults(dice: &Dice) -> FaultPlan {
    let p = |most: f64| if dice.happens(0.6) { most * dice.below(100) as f64 / 100.0 } else { 0.0 };
    FaultPlan {
        conflict: p(0.2),
        too_many_requests: p(0.1),
        error_before: p(0.15),
        error_after: p(0.15),
        slow_request: p(0.3),
        slow_response: p(0.3),
        latency: Duration::from_millis(dice.pick(&[50, 300, 1000])),
        watch_dropped: p(0.1),
        watch_delayed: p(0.4),
        watch_expired: p(0.05),
    }
}
