//! Random Canaries, and edits of them.

use serde_json::{Value, json};

use super::dice::Dice;
use super::scenario::{CanarySetup, Event};

pub fn subject(dice: &Dice, name: &'static str) -> CanarySetup {
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
        has_budget: false,
        has_template: false,
        rolls_one_by_one: false,
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
    let mut analysis = json!({"interval": interval, "threshold": dice.pick(&[1, 2, 3]), "warmup": "0s"});
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
            analysis["steps"] = steps(dice, !daemon && !scaled);
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
        spec["revertOnDeletion"] = json!(false);
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

/// Steps may set the canary's size if nothing else does.
fn steps(dice: &Dice, sized: bool) -> Value {
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
        if dice.happens(0.2) && sized {
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

pub fn edit(dice: &Dice, on: usize, subject: &CanarySetup) -> Event {
    let analysis = &subject.spec["analysis"];
    let spec = match dice.below(6) {
        0 if !analysis["stepWeights"].is_null() => json!({"analysis": {"stepWeights": weights(dice)}}),
        0 if !analysis["steps"].is_null() => {
            json!({"analysis": {"steps": steps(dice, subject.kind != "DaemonSet" && !subject.has_autoscaler)}})
        }
        1 => json!({"analysis": {"interval": dice.pick(&["5s", "15s", "40s"])}}),
        2 => json!({"analysis": {"threshold": dice.pick(&[1, 4])}}),
        3 => json!({"progressDeadlineSeconds": dice.pick(&[json!(60), json!(600), Value::Null])}),
        4 => json!({"analysis": {"metrics": metrics(dice)}}),
        _ => json!({"rollback": {"keepWarmSeconds": dice.pick(&[0, 120])}}),
    };
    Event::Edit { on, spec }
}
