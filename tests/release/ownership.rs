//! Workloads that are not ours to overwrite or to scale, and ports that nobody
//! listens on: refused before anything is switched.

use serde_json::{Value, json};
use serin::api::canary::Phase;
use serin::api::canary::status::CanaryStatus;
use serin::api::condition::ConditionStatus;

use crate::support::objects;
use crate::world::{World, holds, workload};

/// Waits until the Canary is refused with this message.
async fn refused(world: &World, words: &str) {
    let stalled = |status: &CanaryStatus| status.conditions.iter().any(|it| it.type_ == "Stalled");
    let status = world.becomes(words, stalled).await;
    assert_eq!(holds(&status, "Stalled"), ConditionStatus::True);
    let message = status.message.unwrap_or_default();
    assert!(message.contains(words), "{message}");
    assert!(!message.contains("delete it"), "{message}");
}

pub async fn a_primary_that_nobodys_canary_made_is_overwritten_only_if_adopted(world: World) {
    let mut theirs = workload("Deployment", "web-primary", "database:v9");
    theirs["spec"]["replicas"] = json!(3);
    world.apply(theirs).await;
    let before = world.get("Deployment", "web-primary").await;
    world.canary(json!({})).await;
    let _serin = world.serin().await;
    refused(&world, "annotate it with serin.dev/adopt: \"true\"").await;
    world.sleep_long().await;
    let after = world.get("Deployment", "web-primary").await;
    assert_eq!(after["spec"], before["spec"]);
    assert_eq!(after["metadata"]["ownerReferences"], Value::Null);
    assert_eq!(world.replicas("web").await, 2);

    let adopt = json!({"metadata": {"annotations": {"serin.dev/adopt": "true"}}});
    world.patch("Deployment", "web-primary", adopt).await;
    world.reaches(Phase::Initialized).await;
    assert_eq!(world.image("web-primary").await, "web:v1");
    let traffic = world.traffic();
    world.push("web:v2").await;
    assert_eq!(world.released(1).await.phase, Phase::Succeeded);
    traffic.assert_all_served();
}

/// The Canary of a deletion that orphans leaves a primary that carries its revision.
pub async fn a_primary_of_a_former_canary_is_taken_over(world: World) {
    let serin = world.initialized(json!({})).await;
    let traffic = world.traffic();
    serin.end().await;
    world.patch("Deployment", "web-primary", json!({"metadata": {"ownerReferences": null}})).await;
    world.patch("Canary", "web", json!({"metadata": {"finalizers": null}})).await;
    let orphan = kube::api::DeleteParams::orphan();
    world.objects("Canary").delete("web", &orphan).await.expect("a deletion");
    world.is_gone("Canary", "web").await;
    world.canary(json!({})).await;
    let _serin = world.serin().await;
    world.reaches(Phase::Initialized).await;
    world.sleep_long().await;
    traffic.assert_all_served();
}

pub async fn a_primary_of_another_canary_is_not_released(world: World) {
    let _serin = world.initialized(json!({})).await;
    let traffic = world.traffic();
    let before = world.get("Deployment", "web-primary").await["spec"].take();
    for (name, target) in [("nested", "web-primary"), ("second", "web")] {
        let spec = json!({
            "targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": target},
            "service": {"name": name}, "analysis": {"stepWeights": [50]},
        });
        world.apply(objects::canary(name, &spec)).await;
        let status = async || world.get("Canary", name).await["status"].take();
        world.eventually("a refusal", async || !status().await["message"].is_null()).await;
        let message = status().await["message"].as_str().expect("a message").to_owned();
        let words = match target {
            "web" => "Deployment web-primary belongs to Canary web, so Serin leaves it alone; point",
            _ => {
                "spec.targetRef names Deployment web-primary, which is the primary of Canary web; delete this Canary"
            }
        };
        assert!(message.contains(words), "{message}");
    }
    world.sleep_long().await;
    assert_eq!(world.get("Deployment", "web-primary").await["spec"], before);
    assert!(world.find("Deployment", "web-primary-primary").await.is_none());
    for name in ["nested", "second"] {
        world.delete("Canary", name).await;
        world.is_gone("Canary", name).await;
    }
    assert_eq!(world.get("Deployment", "web-primary").await["spec"], before);
    traffic.assert_all_served();
}

/// A Service of people's own keeps its port until the Canary names one that exists.
async fn assert_port_refused(world: World, service: Value, words: &str) {
    world.apply(workload("Deployment", "web", "web:v1")).await;
    let ports = json!([{"name": "http", "port": 80, "targetPort": "http"}]);
    let spec = json!({"selector": {"app": "web"}, "ports": ports});
    world
        .apply(json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}, "spec": spec}))
        .await;
    let before = world.get("Service", "web").await;
    world.canary(json!({})).await;
    world.edit(json!({ "service": service })).await;
    let _serin = world.serin().await;
    refused(&world, words).await;
    world.sleep_long().await;
    assert_eq!(world.get("Service", "web").await, before);
    assert!(world.find("Deployment", "web-primary").await.is_none());
    world.edit(json!({"service": {"targetPort": "http"}})).await;
    world.reaches(Phase::Initialized).await;
    world.eventually("web answers", async || world.answers().await).await;
}

pub async fn a_port_by_default_that_no_container_declares_is_refused(world: World) {
    let words = "spec.service.targetPort defaults to spec.service.port, 80, and the containers of \
         Deployment web declare http (8080)";
    assert_port_refused(world, json!({"targetPort": null}), words).await;
}

pub async fn a_port_by_a_name_that_no_container_declares_is_refused(world: World) {
    let words = "spec.service.targetPort names \"nosuchport\", and the containers of Deployment web \
         declare http (8080)";
    assert_port_refused(world, json!({"targetPort": "nosuchport"}), words).await;
}

pub async fn the_target_of_a_canary_stays(world: World) {
    world.canary(json!({"suspend": true})).await;
    let mut canary = world.get("Canary", "web").await;
    canary["metadata"] = json!({"name": "web"});
    canary["spec"]["targetRef"]["name"] = json!("other");
    let refused = world.try_apply(&canary).await.expect_err("another target is refused").to_string();
    let words = "spec.targetRef cannot be changed: delete this Canary and create one for the other workload";
    assert!(refused.contains(words), "{refused}");
}
