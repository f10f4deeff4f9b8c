//! Who is asked and who is told on the way of a release, over real HTTP.

use std::time::Duration;

use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::json;
use serin::api::canary::Phase;
use serin::api::{AlertProvider, Canary, Weight};
use serin::gates::annotations::{APPROVALS, COMMANDS};
use tokio::time::sleep;

use crate::support::receiver::{Receiver, answer};
use crate::world::World;

#[tokio::test]
async fn a_closed_gate_holds_until_it_opens_and_chats_are_told() {
    let world = World::new().await;
    let gate = Receiver::start([answer(403, "not yet"), answer(403, "not yet")]).await;
    let (events, chat) = (Receiver::start([]).await, Receiver::start([]).await);
    let provider = json!({
        "apiVersion": "serin.dev/v1alpha1", "kind": "AlertProvider", "metadata": {"name": "team"},
        "spec": {"type": "slack", "channel": "releases", "address": chat.url},
    });
    let provider: AlertProvider = serde_json::from_value(provider).expect("an AlertProvider");
    let providers: Api<AlertProvider> = world.api();
    providers.create(&PostParams::default(), &provider).await.expect("the AlertProvider is accepted");
    world
        .canary(json!({"analysis": {
            "interval": "1s", "stepWeights": [50],
            "webhooks": [
                {"name": "ready?", "type": "confirm-rollout", "url": gate.url, "metadata": {"team": "shop"}},
                {"name": "log", "type": "event", "url": events.url},
            ],
            "alerts": [{"name": "team", "providerRef": {"name": "team"}}],
        }}))
        .await;
    let _serin = world.serin().await;
    world.reaches(Phase::Initialized).await;
    let _traffic = world.traffic();
    world.push("web:v2").await;
    world.reaches(Phase::Succeeded).await;

    let asked = gate.got();
    assert_eq!(asked.len(), 3, "two noes and a yes");
    let question = asked[0].json();
    assert_eq!((&question["name"], &question["phase"]), (&json!("web"), &json!("Waiting")));
    assert_eq!(question["metadata"], json!({"team": "shop"}));
    let told = |receiver: &Receiver, text: &str| {
        receiver.got().iter().any(|got| String::from_utf8_lossy(&got.body).contains(text))
    };
    for _ in 0..100 {
        if told(&chat, "is promoted") && told(&events, "is promoted") {
            return;
        }
        sleep(Duration::from_millis(100)).await;
    }
    panic!("the promotion was not told: {:?} {:?}", chat.got(), events.got());
}

#[tokio::test(start_paused = true)]
async fn people_approve_and_abort_by_annotation() {
    let world = World::new().await;
    let steps = json!([{"weight": 10}, {"name": "qa", "approval": {}}, {"weight": 50}]);
    world.canary(json!({"analysis": {"stepWeights": null, "steps": steps}})).await;
    let _serin = world.serin().await;
    world.reaches(Phase::Initialized).await;
    let _traffic = world.traffic();
    world.push("web:v2").await;
    let waits = |status: &serin::api::CanaryStatus| status.gates.iter().any(|gate| gate.name == "qa");
    world.becomes("at the approval", waits).await;
    sleep(Duration::from_secs(120)).await;
    assert_eq!(world.split().await, Some((10, 90)));
    let approval = json!([{
        "release": 1, "gate": "qa", "step": 1, "answer": "yes", "by": "ada", "at": world.clock.now(),
    }]);
    annotate(&world, APPROVALS, approval).await;
    let status = world.reaches(Phase::Succeeded).await;
    let by = status.gates.iter().find(|gate| gate.name == "qa").and_then(|gate| gate.by.as_deref());
    assert_eq!((by, world.image("web-primary").await.as_str()), (Some("ada"), "web:v2"));

    world.push("web:v3").await;
    world.becomes("under way", |status| status.canary_weight > Weight::ZERO).await;
    annotate(&world, COMMANDS, json!([{"id": "1", "verb": "abort", "by": "ada"}])).await;
    let status = world.reaches(Phase::Failed).await;
    assert!(status.last_command.is_some_and(|command| command.obeyed && command.id == "1"));
    assert_eq!(world.image("web-primary").await, "web:v2");
}

async fn annotate(world: &World, annotation: &str, value: serde_json::Value) {
    let patch = json!({"metadata": {"annotations": {annotation: value.to_string()}}});
    let canaries: Api<Canary> = world.api();
    canaries.patch("web", &PatchParams::default(), &Patch::Merge(patch)).await.expect("an annotation");
}
