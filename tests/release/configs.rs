//! ConfigMaps and Secrets: an edit is a revision like any other.

use serde_json::{Value, json};
use serin::api::canary::Phase;
use serin::api::canary::status::Outcome;

use crate::world::{World, workload};

/// `web`, which reads configs in every way there is.
async fn deploy(world: &World) {
    for name in ["volume", "projected", "variable"] {
        let manifest = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}});
        world.apply(manifest).await;
        world.patch("ConfigMap", name, json!({"data": {"key": "1"}, "binaryData": {"blob": "AAEC"}})).await;
    }
    for name in ["variables", "mounted", "beginning"] {
        world.apply(json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}})).await;
        world.patch("Secret", name, json!({"stringData": {"ERROR_RATE": "0"}})).await;
    }
    let mut web = workload("Deployment", "web", "web:v1");
    let spec = &mut web["spec"]["template"]["spec"];
    spec["volumes"] = json!([
        {"name": "a", "configMap": {"name": "volume"}},
        {"name": "b", "projected": {"sources": [{"configMap": {"name": "projected"}}]}},
        {"name": "c", "secret": {"secretName": "mounted"}},
    ]);
    spec["containers"][0]["env"] =
        json!([{"name": "KEY", "valueFrom": {"configMapKeyRef": {"name": "variable", "key": "key"}}}]);
    spec["containers"][0]["envFrom"] = json!([{"secretRef": {"name": "variables"}}]);
    spec["initContainers"] =
        json!([{"name": "first", "image": "first:v1", "envFrom": [{"secretRef": {"name": "beginning"}}]}]);
    world.apply(web).await;
}

pub async fn an_edit_of_any_config_is_released(world: World) {
    deploy(&world).await;
    let _serin = world.initialized(json!({"skipAnalysis": true})).await;
    let edits = [
        ("ConfigMap", "volume", json!({"data": {"key": "2"}})),
        ("ConfigMap", "volume", json!({"binaryData": {"blob": "AwQF"}})),
        ("ConfigMap", "projected", json!({"data": {"key": "2"}})),
        ("ConfigMap", "variable", json!({"data": {"key": "2"}})),
        ("Secret", "variables", json!({"stringData": {"OTHER": "2"}})),
        ("Secret", "mounted", json!({"stringData": {"OTHER": "2"}})),
        ("Secret", "beginning", json!({"stringData": {"OTHER": "2"}})),
    ];
    for (release, (kind, name, edit)) in (1..).zip(edits) {
        world.patch(kind, name, edit).await;
        let status = world.released(release).await;
        assert_eq!(status.phase, Phase::Succeeded, "{kind} {name}: {status:#?}");
        world.event_contains(&format!("{}/{name} changed.", kind.to_lowercase())).await;
        let copy = copy_of(&world, name).await;
        let copied = &world.get(kind, &copy).await;
        let original = &world.get(kind, name).await;
        for field in ["data", "binaryData"] {
            assert_eq!(copied[field], original[field], "{copy}");
        }
    }
}

/// The copy of a config that the primary reads.
async fn copy_of(world: &World, name: &str) -> String {
    let template = world.get("Deployment", "web-primary").await["spec"]["template"]["spec"].to_string();
    let start = template.find(&format!("\"{name}-primary-")).unwrap_or_else(|| panic!("{name}: {template}"));
    template[start + 1..].split('"').next().unwrap_or_default().to_owned()
}

pub async fn a_bad_config_is_rolled_back_and_reaches_only_the_canary(world: World) {
    deploy(&world).await;
    let _serin = world.initialized(json!({})).await;
    let traffic = world.traffic();
    world.patch("Secret", "variables", json!({"stringData": {"ERROR_RATE": "50%"}})).await;
    let status = world.released(1).await;
    assert_eq!((status.phase, status.history[0].outcome), (Phase::Failed, Outcome::RolledBack));
    assert!(status.history[0].reason.contains("request-success-rate"), "{:?}", status.history);
    let bad = traffic.bad();
    assert!(bad > 0, "the canary read it");
    world.sleep_long().await;
    assert_eq!(traffic.bad(), bad, "the primary did not, and nobody else will");
    world.patch("Secret", "variables", json!({"stringData": {"ERROR_RATE": "0"}})).await;
    world.event_contains("which the primary runs: nothing to release.").await;
    assert_eq!(world.status().await.releases, 1);
    let unread: Value = world.get("Deployment", "web").await["spec"]["template"].take();
    assert_eq!(
        unread["spec"]["volumes"][0]["configMap"]["name"], "volume",
        "the target is as people wrote it"
    );
}
