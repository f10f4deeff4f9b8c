//! Canaries that are applied before the objects they refer to, as a folder of
//! manifests in alphabetical order is.

use jiff::SignedDuration;
use serde_json::{Value, json};
use serin::api::canary::{CanaryStatus, Phase};

use crate::support::{definitions, receiver::Receiver};
use crate::world::World;

/// Far less than the five minutes after which a refused Canary is resolved again.
const SOON: SignedDuration = SignedDuration::from_secs(70);

fn says(text: &str) -> impl Fn(&CanaryStatus) -> bool {
    move |status| status.message.as_ref().is_some_and(|message| message.contains(text))
}

async fn assert_initialized_soon(world: &World) {
    let before = world.clock.now();
    world.reaches(Phase::Initialized).await;
    let took = world.clock.now().duration_since(before);
    assert!(took < SOON, "it waited for {took:?}");
}

pub async fn a_template_that_appears_later_is_used_at_once(world: World) {
    let metric = json!({"name": "errors", "templateRef": {"name": "errors"}, "thresholdRange": {"max": 1}});
    world.canary(json!({"analysis": {"metrics": [metric]}})).await;
    let _serin = world.serin().await;
    world.becomes("refused", says("which does not exist; create it")).await;
    let template = json!({
        "apiVersion": "serin.dev/v1alpha1", "kind": "AnalysisTemplate", "metadata": {"name": "errors"},
        "spec": {"provider": {"type": "scrape"}, "query": "http_requests_total{status=~\"5..\"}"},
    });
    world.apply(template.clone()).await;
    assert_initialized_soon(&world).await;
}

pub async fn a_provider_and_its_secret_that_appear_later_get_the_next_alert(world: World) {
    let chat = world.receiver([]).await;
    let alerts = json!([{"name": "team", "providerRef": {"name": "chat"}}]);
    let _serin = world.initialized(json!({"analysis": {"metrics": null, "alerts": alerts}})).await;
    let meta = json!({"name": "chat"});
    let spec = json!({"type": "slack", "channel": "releases", "secretRef": {"name": "chat"}});
    world
        .apply(json!({
            "apiVersion": "serin.dev/v1alpha1", "kind": "AlertProvider", "metadata": meta, "spec": spec,
        }))
        .await;
    let secret = json!({"address": chat.url});
    world.apply(json!({"apiVersion": "v1", "kind": "Secret", "metadata": meta, "stringData": secret})).await;
    world.push("web:v2").await;
    world.eventually("the chat gets an alert", async || !chat.received().is_empty()).await;
}

pub async fn a_gate_is_called_once_its_key_appears(world: World) {
    let gate: Receiver = world.receiver([]).await;
    let hook = json!({
        "name": "ready?", "type": "confirm-rollout", "url": gate.url, "secretRef": {"name": "signing"},
    });
    let _serin =
        world.initialized(json!({"analysis": {"interval": "1s", "metrics": null, "webhooks": [hook]}})).await;
    world.push("web:v2").await;
    world.becomes("waiting for the key", says("the Secret signing cannot be read")).await;
    assert_eq!(gate.received().len(), 0);
    let key = json!({"hmac": "key"});
    let secret =
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "signing"}, "stringData": key});
    world.apply(secret).await;
    assert_eq!(world.released(1).await.phase, Phase::Succeeded);
}

/// The real cluster is shared, and others install the same definitions.
#[tokio::test(start_paused = true)]
async fn definitions_of_a_mesh_that_appear_later_are_used_soon() {
    let world = World::new().await;
    world.canary(json!({"provider": "istio", "analysis": {"metrics": null}})).await;
    let _serin = world.serin().await;
    world.becomes("refused", says("which this cluster does not serve")).await;
    definitions::install(&world.client, definitions::istio()).await;
    assert_initialized_soon(&world).await;
    assert_ne!(world.find("VirtualService", "web").await, None::<Value>);
}

#[tokio::test(start_paused = true)]
async fn a_canary_that_waits_for_definitions_costs_few_requests() {
    let world = World::new().await;
    world.canary(json!({"provider": "istio", "analysis": {"metrics": null}})).await;
    let _serin = world.serin().await;
    world.becomes("refused", says("which this cluster does not serve")).await;
    tokio::time::sleep(std::time::Duration::from_secs(600)).await;
    let before = world.requests().len();
    tokio::time::sleep(std::time::Duration::from_secs(600)).await;
    let requests = world.requests().split_off(before);
    // Ten discoveries of a group list and its versions, and two reconciles.
    assert!((10..120).contains(&requests.len()), "{} requests: {requests:#?}", requests.len());
    world.delete("Canary", "web").await;
    world.is_gone("Canary", "web").await;
    tokio::time::sleep(std::time::Duration::from_secs(120)).await;
    let before = world.requests().len();
    tokio::time::sleep(std::time::Duration::from_secs(600)).await;
    assert_eq!(world.requests()[before..], [] as [String; 0], "nobody waits any more");
}
