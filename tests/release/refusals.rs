//! Specs that are refused with a message and without any write.

use serde_json::{Value, json};
use serin::api::canary::Phase;
use serin::api::condition::ConditionStatus;

use crate::world::{World, holds, workload};

/// Refused with this message, and released once it is corrected.
async fn assert_refused(world: World, spec: Value, words: &str, right: Value) {
    world.canary(spec).await;
    let _serin = world.serin().await;
    let status = world.becomes("refused", |status| !status.conditions.is_empty()).await;
    assert_eq!(holds(&status, "Stalled"), ConditionStatus::True);
    let message = status.message.unwrap_or_default();
    assert!(message.contains(words), "{message}");
    world.event_contains(words).await;
    assert_nothing_created(&world).await;
    world.edit(right).await;
    world.reaches(Phase::Initialized).await;
}

async fn assert_nothing_created(world: &World) {
    assert_eq!(world.replicas("web").await, 2);
    for (kind, name) in [
        ("Deployment", "web-primary"),
        ("Service", "web"),
        ("Service", "web-primary"),
        ("Service", "web-canary"),
        ("TrafficSplit", "web"),
    ] {
        assert!(world.find(kind, name).await.is_none(), "{kind} {name} was made");
    }
}

pub async fn an_unsupported_mesh_is_refused(world: World) {
    let words = "spec.provider gloo is not supported; set one of kubernetes, istio, gatewayapi:v1";
    assert_refused(world, json!({"provider": "gloo"}), words, json!({"provider": "smi:v1alpha2"})).await;
}

pub async fn smi_refuses_delegation(world: World) {
    let spec = json!({"service": {"delegation": true}});
    let words = "spec.service.delegation needs a VirtualService, and smi (v1alpha2) writes none; remove it";
    assert_refused(world, spec, words, json!({"service": {"delegation": null}})).await;
}

pub async fn smi_refuses_session_affinity(world: World) {
    let spec = json!({"analysis": {"sessionAffinity": {"cookieName": "canary"}}});
    let words = "spec.analysis.sessionAffinity needs a router that sets cookies, and smi (v1alpha2) does not";
    assert_refused(world, spec, words, json!({"analysis": {"sessionAffinity": null}})).await;
}

pub async fn smi_refuses_mirroring(world: World) {
    let words = "spec.analysis asks to mirror traffic, and smi (v1alpha2) cannot; remove mirror";
    let right = json!({"analysis": {"mirror": null}});
    assert_refused(world, json!({"analysis": {"mirror": true}}), words, right).await;
}

pub async fn unsupported_match_conditions_are_refused(world: World) {
    let matches = json!([{"headers": {"x-canary": {"exact": "insider"}}}]);
    let spec = json!({"analysis": {"stepWeights": null, "iterations": 2, "match": matches}});
    let words = "spec.analysis asks to match requests, and smi (v1alpha2) cannot; remove match";
    assert_refused(world, spec, words, json!({"provider": "smi:v1alpha3"})).await;
}

pub async fn stateful_sets_are_refused(world: World) {
    world.canary(json!({"suspend": true})).await;
    let _serin = world.serin().await;
    let mut canary = world.get("Canary", "web").await;
    canary["metadata"] = json!({"name": "db"});
    canary["spec"]["targetRef"] = json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "db"});
    canary.as_object_mut().unwrap().remove("status");
    let mut target = workload("Deployment", "db", "db:v1");
    target["kind"] = json!("StatefulSet");
    target["spec"]["serviceName"] = json!("db");
    // The node does not start it, and need not.
    target["spec"]["replicas"] = json!(0);
    if world.is_real() {
        world.apply(target).await;
    }
    let refused = world.try_apply(&canary).await.expect_err("a StatefulSet is not accepted").to_string();
    let words = "spec.targetRef.kind: Unsupported value: \"StatefulSet\": supported values: \"Deployment\", \
         \"DaemonSet\", \"Service\"";
    assert!(refused.contains(words), "{refused}");
    assert!(world.find("Canary", "db").await.is_none());
}
