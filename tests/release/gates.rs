//! Gates of a release: webhooks over real HTTP, and approvals.

use serde_json::{Value, json};
use serin::api::Weight;
use serin::api::canary::status::Outcome;
use serin::api::canary::{CanaryStatus, Phase};
use serin::gates::annotations::{APPROVALS, COMMANDS};

use crate::support::receiver::{Receiver, answer, endless_refusals};
use crate::world::World;

/// A release of two weights, and of hooks as they are called.
fn with_hooks(hooks: &[(&str, &str, &Receiver)]) -> Value {
    let hook =
        |(name, kind, to): &(&str, &str, &Receiver)| json!({"name": name, "type": kind, "url": to.url});
    let webhooks: Vec<Value> = hooks.iter().map(hook).collect();
    json!({"analysis": {"interval": "1s", "metrics": null, "webhooks": webhooks}})
}

pub async fn a_release_begins_once_it_is_confirmed(world: World) {
    let gate = world.receiver(endless_refusals()).await;
    let _serin = world.initialized(with_hooks(&[("ready?", "confirm-rollout", &gate)])).await;
    let weights = world.weights().await;
    world.push("web:v2").await;
    world.event_contains("Waiting for the gate ready? to open: 403 Forbidden.").await;
    let status = world.status().await;
    assert_eq!((status.phase, world.replicas("web").await), (Phase::Waiting, 0));
    let asked = gate.received().len();
    gate.set_responses([]);
    assert_eq!(world.released(1).await.phase, Phase::Succeeded);
    assert!(gate.received().len() <= asked + 2, "once open, it is not asked again");
    assert_eq!(gate.received()[0].json()["phase"], "Waiting");
    weights.assert_sequence(&[0, 20, 50, 0]).await;
}

pub async fn every_weight_increase_is_confirmed(world: World) {
    let noes_and_yeses = [403, 200, 403, 403, 200].map(|status| answer(status, ""));
    let gate = world.receiver(noes_and_yeses).await;
    let _serin = world.initialized(with_hooks(&[("more?", "confirm-traffic-increase", &gate)])).await;
    let weights = world.weights().await;
    world.push("web:v2").await;
    assert_eq!(world.released(1).await.phase, Phase::Succeeded);
    assert_eq!(gate.received().len(), 5);
    weights.assert_sequence(&[0, 20, 50, 0]).await;
}

pub async fn a_promotion_is_confirmed_and_hooks_get_the_outcome(world: World) {
    let gate = world.receiver(endless_refusals()).await;
    let (after, events) = (world.receiver([]).await, world.receiver([]).await);
    let hooks = [
        ("go-live", "confirm-promotion", &gate),
        ("after", "post-rollout", &after),
        ("log", "event", &events),
    ];
    let _serin = world.initialized(with_hooks(&hooks)).await;
    world.push("web:v2").await;
    world.reaches(Phase::WaitingPromotion).await;
    assert_eq!((world.split().await, world.image("web-primary").await.as_str()), (Some((50, 50)), "web:v1"));
    gate.set_responses([]);
    assert_eq!(world.released(1).await.phase, Phase::Succeeded);
    assert_eq!(after.received().len(), 1);
    let received = |text: &str| {
        let message =
            |event: Value| event["metadata"]["eventMessage"].as_str().unwrap_or_default().to_owned();
        events.received().iter().any(|got| message(got.json()).contains(text))
    };
    for text in ["the pod template changed", "Step 1 of 2", "Step 2 of 2", "is promoted"] {
        world.eventually(text, async || received(text)).await;
    }
    let first = events.received()[0].json();
    assert_eq!((&first["metadata"]["eventType"], &first["name"]), (&json!("Normal"), &json!("web")));
}

pub async fn a_rollback_gate_ends_a_release_under_way(world: World) {
    let gate = world.receiver(endless_refusals()).await;
    let after = world.receiver([]).await;
    let confirm = world.receiver(endless_refusals()).await;
    let hooks = [
        ("halt", "rollback", &gate),
        ("after", "post-rollout", &after),
        ("go-live", "confirm-promotion", &confirm),
    ];
    let _serin = world.initialized(with_hooks(&hooks)).await;
    world.push("web:v2").await;
    world.reaches(Phase::WaitingPromotion).await;
    gate.set_responses([]);
    let status = world.released(1).await;
    assert_eq!((status.phase, status.history[0].outcome), (Phase::Failed, Outcome::RolledBack));
    assert_eq!(status.history[0].reason, "the rollback gate halt requested it");
    assert_eq!((world.image("web-primary").await.as_str(), world.split().await), ("web:v1", Some((0, 100))));
    assert_eq!(after.received()[0].json()["phase"], "Failed");
}

pub async fn a_rollback_gate_ends_a_release_that_waits(world: World) {
    let gate = world.receiver(endless_refusals()).await;
    let confirm = world.receiver(endless_refusals()).await;
    let hooks = [("halt", "rollback", &gate), ("ready?", "confirm-rollout", &confirm)];
    let _serin = world.initialized(with_hooks(&hooks)).await;
    let weights = world.weights().await;
    world.push("web:v2").await;
    world.event_contains("Waiting for the gate ready? to open").await;
    gate.set_responses([]);
    let status = world.released(1).await;
    assert_eq!(status.history[0].reason, "the rollback gate halt requested it");
    assert_eq!(status.history[0].highest_weight, Weight::ZERO);
    weights.assert_sequence(&[0]).await;
}

pub async fn people_approve_and_abort_by_annotation(world: World) {
    let steps = json!([{"weight": 10}, {"name": "qa", "approval": {}}, {"weight": 50}]);
    let _serin = world.initialized(json!({"analysis": {"stepWeights": null, "steps": steps}})).await;
    let _traffic = world.traffic();
    world.push("web:v2").await;
    let waits = |status: &CanaryStatus| status.gates.iter().any(|gate| gate.name == "qa");
    world.becomes("at the approval", waits).await;
    world.sleep_long().await;
    assert_eq!(world.split().await, Some((10, 90)));
    let approval = json!([{
        "release": 1, "gate": "qa", "step": 1, "answer": "yes", "by": "ada", "at": world.clock.now(),
    }]);
    world.annotate(APPROVALS, approval).await;
    let status = world.released(1).await;
    let by = status.gates.iter().find(|gate| gate.name == "qa").and_then(|gate| gate.by.as_deref());
    assert_eq!((by, world.image("web-primary").await.as_str()), (Some("ada"), "web:v2"));

    world.push("web:v3").await;
    world.becomes("under way", |status| status.canary_weight > Weight::ZERO).await;
    world.annotate(COMMANDS, json!([{"id": "1", "verb": "abort", "by": "ada"}])).await;
    let status = world.released(2).await;
    assert_eq!(status.phase, Phase::Failed);
    assert!(status.last_command.is_some_and(|command| command.accepted && command.id == "1"));
    assert_eq!(world.image("web-primary").await, "web:v2");
}
