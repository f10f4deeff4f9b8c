//! All traffic at once, with a mesh and without.

use serde_json::{Value, json};
use serin::api::Weight;
use serin::api::canary::Phase;
use serin::controller::Options;
use serin::workload;

use crate::support::receiver::answer;
use crate::world::{World, workload as manifest};

/// Two checks by hooks, without metrics.
fn two_checks(more: Value) -> Value {
    let mut analysis = json!({"interval": "1s", "stepWeights": null, "iterations": 2, "metrics": null});
    json_patch::merge(&mut analysis, &more);
    json!({ "analysis": analysis })
}

/// The target of the apex Service.
fn selected_app(service: &Value) -> Option<String> {
    Some(service["spec"]["selector"]["app"].as_str()?.to_owned())
}

pub async fn gates_before_the_switch_are_called_until_they_open(world: World) {
    let smoke = world.receiver([answer(500, "the smoke test fails")]).await;
    let load = world.receiver([]).await;
    let hooks = json!([
        {"name": "smoke", "type": "pre-rollout", "url": smoke.url, "metadata": {"suite": "smoke"}},
        {"name": "load", "type": "rollout", "url": load.url},
    ]);
    let _serin = world.initialized(two_checks(json!({"webhooks": hooks}))).await;
    let (traffic, weights) = (world.traffic(), world.weights().await);
    world.push("web:v2").await;
    let status = world.released(1).await;
    assert_eq!((status.phase, status.failed_checks), (Phase::Succeeded, 1));
    weights.assert_sequence(&[0, 100, 0]).await;
    assert_eq!((world.image("web-primary").await.as_str(), world.replicas("web").await), ("web:v2", 0));
    traffic.assert_all_served();
    let asked = smoke.received();
    assert_eq!((asked.len(), load.received().len()), (2, 2), "a no and a yes; two looks");
    let question = asked[0].json();
    assert_eq!((&question["name"], &question["namespace"]), (&json!("web"), &json!(world.namespace)));
    assert_eq!(
        (&question["phase"], &question["metadata"]["suite"]),
        (&json!("Progressing"), &json!("smoke"))
    );
    world.event_contains("Check failed, 1 of 2 that roll back: the hook smoke refused").await;
}

pub async fn gates_that_stay_closed_roll_back_before_anybody_is_served(world: World) {
    let smoke = world.receiver([answer(500, "it fails"), answer(500, "it fails")]).await;
    let hooks = json!([{"name": "smoke", "type": "pre-rollout", "url": smoke.url}]);
    let _serin = world.initialized(two_checks(json!({"webhooks": hooks}))).await;
    let (traffic, weights) = (world.traffic(), world.weights().await);
    world.push("web:v2").await;
    let status = world.released(1).await;
    assert_eq!((status.phase, status.history[0].highest_weight), (Phase::Failed, Weight::ZERO));
    assert!(status.history[0].reason.contains("the hook smoke refused"), "{:?}", status.history);
    weights.assert_sequence(&[0]).await;
    traffic.assert_all_served();
    assert_eq!(traffic.served_by("v2"), 0);
}

pub async fn without_a_mesh_the_service_switches(world: World) {
    let mut spec = two_checks(json!({}));
    spec["provider"] = json!("kubernetes");
    let _serin = world.initialized(spec).await;
    let (traffic, apex) = (world.traffic(), world.follow("Service", "web", selected_app).await);
    world.push("web:v2").await;
    assert_eq!(world.released(1).await.phase, Phase::Succeeded);
    apex.assert_sequence(&["web-primary", "web", "web-primary"].map(str::to_owned)).await;
    assert!(world.find("TrafficSplit", "web").await.is_none());
    assert_eq!((world.image("web-primary").await.as_str(), world.replicas("web").await), ("web:v2", 0));
    traffic.assert_all_served();
}

pub async fn a_daemon_set_switches(world: World) {
    let mut spec = two_checks(json!({}));
    spec["provider"] = json!("kubernetes");
    world.canary_of("DaemonSet", spec).await;
    let _serin = world.serin().await;
    world.reaches(Phase::Initialized).await;
    let idle = world.get("DaemonSet", "web").await;
    assert_eq!(idle["spec"]["template"]["spec"]["nodeSelector"]["serin.dev/scale-to-zero"], "true");
    let apex = world.follow("Service", "web", selected_app).await;
    world.push_to("DaemonSet", "web:v2").await;
    assert_eq!(world.released(1).await.phase, Phase::Succeeded);
    apex.assert_sequence(&["web-primary", "web", "web-primary"].map(str::to_owned)).await;
    assert_eq!(world.image_of("DaemonSet", "web-primary").await, "web:v2");
    let idle = world.get("DaemonSet", "web").await;
    assert_eq!(idle["spec"]["template"]["spec"]["nodeSelector"]["serin.dev/scale-to-zero"], "true");
}

pub async fn gitops_fields_are_kept_and_labels_are_copied_by_prefix(world: World) {
    let mut target = manifest("Deployment", "web", "web:v1");
    let gitops = json!({
        "kustomize.toolkit.fluxcd.io/checksum": "c1", "argocd.argoproj.io/tracking-id": "shop:web",
        "team.example/contact": "ada",
    });
    target["metadata"]["annotations"] = gitops.clone();
    target["metadata"]["labels"] =
        json!({"team.example/owner": "shop", "kustomize.toolkit.fluxcd.io/name": "apps", "other": "no"});
    world.apply(target).await;
    world.canary(two_checks(json!({}))).await;
    let prefixes = vec!["team.example/".to_owned()];
    let workload = workload::Options { prefixes, ..workload::Options::default() };
    let _serin = world.serin_with(Options { workload, ..world.options() }).await;
    world.reaches(Phase::Initialized).await;
    let primary = world.get("Deployment", "web-primary").await;
    assert_eq!(
        primary["metadata"]["labels"],
        json!({"app": "web-primary", "team.example/owner": "shop"}),
        "{primary:#}"
    );
    let annotations = &primary["metadata"]["annotations"];
    assert_eq!(annotations["team.example/contact"], "ada");
    assert_eq!(annotations["kustomize.toolkit.fluxcd.io/reconcile"], "disabled");
    assert_eq!(annotations["argocd.argoproj.io/compare-options"], "IgnoreExtraneous");
    assert!(annotations["kustomize.toolkit.fluxcd.io/checksum"].is_null());
    assert!(annotations["argocd.argoproj.io/tracking-id"].is_null());

    let renamed = json!({"metadata": {"labels": {"team.example/owner": "checkout"}}});
    world.patch("Deployment", "web", renamed).await;
    world.push("web:v2").await;
    assert_eq!(world.released(1).await.phase, Phase::Succeeded);
    let primary = world.get("Deployment", "web-primary").await;
    assert_eq!(primary["metadata"]["labels"]["team.example/owner"], "checkout");
    let target = world.get("Deployment", "web").await;
    for (annotation, value) in gitops.as_object().expect("annotations") {
        assert_eq!(target["metadata"]["annotations"][annotation], *value, "{annotation}");
    }
}
