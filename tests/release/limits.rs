//! The limit of concurrent releases, and Canaries that cannot be decoded.

use std::time::Duration;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use serin::api::Weight;
use serin::api::canary::Phase;
use serin::controller::Options;
use serin::engine::command::Verb;
use serin::gates::commands::{self, Caller, CanaryRef};
use tokio::time::sleep;

use crate::replicas::{OTHERS, others, push, reach, status};
use crate::world::World;

#[tokio::test(start_paused = true)]
async fn releases_beyond_the_limit_wait_for_a_slot() {
    let world = World::new().await;
    others(&world).await;
    let options = Options { max_releases: Some(2), ..world.options() };
    let serin = world.serin_with(options.clone()).await;
    reach(&world, Phase::Initialized).await;
    // By age, not by name.
    let order: Vec<&str> = OTHERS.into_iter().rev().collect();
    for name in &order {
        push(&world, name).await;
        sleep(Duration::from_secs(2)).await;
    }
    let waits = status(&world, "api").await;
    assert_eq!(waits.phase, Phase::Waiting);
    assert_eq!(
        waits.message.as_deref(),
        Some("Waiting for a free slot: 2 other releases are running, the limit is 2.")
    );
    // A restarted controller counts the running releases again.
    drop(serin);
    let _again = world.serin_with(options).await;
    let mut started = Vec::new();
    while started.len() < order.len() {
        let mut under_way = Vec::new();
        for name in OTHERS {
            let phase = status(&world, name).await.phase;
            if matches!(phase, Phase::Progressing | Phase::Promoting | Phase::Finalising) {
                under_way.push(name);
            }
        }
        assert!(under_way.len() <= 2, "{under_way:?} are under way at a time");
        for name in &order {
            if under_way.contains(name) && !started.contains(name) {
                started.push(*name);
            }
        }
        sleep(Duration::from_millis(500)).await;
    }
    assert_eq!(started, order);
    reach(&world, Phase::Succeeded).await;
}

async fn command(world: &World, name: &str, verb: Verb) {
    let canary = CanaryRef { namespace: &world.namespace, name };
    commands::command(&world.client, &Caller::Current, canary, verb, None).await.expect("a command");
}

#[tokio::test(start_paused = true)]
async fn a_paused_release_lets_another_run_and_waits_for_a_slot_once_resumed() {
    let world = World::new().await;
    others(&world).await;
    let _serin = world.serin_with(Options { max_releases: Some(1), ..world.options() }).await;
    reach(&world, Phase::Initialized).await;
    push(&world, "api").await;
    let under_way = async |name: &str| status(&world, name).await.canary_weight > Weight::ZERO;
    world.eventually("api is under way", async || under_way("api").await).await;
    push(&world, "cart").await;
    let waits = async |name: &str| {
        let message = status(&world, name).await.message;
        message.is_some_and(|message| message.starts_with("Waiting for a free slot"))
    };
    world.eventually("cart waits", async || waits("cart").await).await;
    command(&world, "api", Verb::Pause).await;
    world.eventually("cart runs", async || under_way("cart").await).await;
    command(&world, "api", Verb::Resume).await;
    world.eventually("api waits", async || waits("api").await).await;
    assert_eq!(status(&world, "api").await.phase, Phase::Progressing, "it keeps its step");
    for name in ["cart", "api"] {
        let promoted = async || status(&world, name).await.phase == Phase::Succeeded;
        world.eventually(&format!("{name} is promoted"), promoted).await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_invalid_canary_is_reported_and_blocks_no_other() {
    let world = World::new().await;
    let definitions: Api<CustomResourceDefinition> = Api::all(world.client.clone());
    let lax = json!([{
        "op": "replace", "path": "/spec/versions/0/schema/openAPIV3Schema/properties/spec",
        "value": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
    }]);
    let lax: json_patch::Patch = serde_json::from_value(lax).expect("a patch");
    let lax = Patch::Json::<()>(lax);
    definitions.patch("canaries.serin.dev", &PatchParams::default(), &lax).await.expect("a lax schema");
    let _serin = world.serin().await;
    world.canary(json!({"service": {"port": "eighty"}})).await;
    let stalled = async || {
        let conditions = world.get("Canary", "web").await["status"]["conditions"].take();
        let stalled = |condition: &&Value| condition["type"] == "Stalled" && condition["status"] == "True";
        conditions.as_array().and_then(|all| all.iter().find(stalled).cloned())
    };
    world.eventually("it is stalled", async || stalled().await.is_some()).await;
    let condition = stalled().await.expect("a condition");
    assert_eq!(condition["reason"], "Unreadable");
    let message = condition["message"].as_str().expect("a sentence");
    assert!(message.contains("spec.service.port: invalid type: string \"eighty\""), "{message}");
    // The other Canaries go on, and the condition is not written again.
    others(&world).await;
    reach(&world, Phase::Initialized).await;
    world.annotate("seen", json!(true)).await;
    world.sleep_long().await;
    let patches = world.requests().into_iter().filter(|request| request.ends_with("/canaries/web/status"));
    assert_eq!(patches.count(), 1);
    world.edit(json!({"service": {"port": 80}})).await;
    world.reaches(Phase::Initialized).await;
    assert_eq!(stalled().await, None);
    // Its deletion waits for what is to be restored, and says how to go on.
    world.edit(json!({"service": {"port": "eighty"}})).await;
    world.delete("Canary", "web").await;
    let names_the_finalizer = async || {
        stalled()
            .await
            .is_some_and(|it| it["message"].as_str().is_some_and(|it| it.contains("serin.dev/revert")))
    };
    world.eventually("the way out is named", names_the_finalizer).await;
    world.edit(json!({"service": {"port": 80}})).await;
    world.is_gone("Canary", "web").await;
}
