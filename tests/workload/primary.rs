//! Creation of the primary.

use serde_json::{Value, json};
use serin::workload::{Error, FromCache, Kind, LostPrimary, UnsupportedTarget};

use crate::world::{World, deployment, spec};

const D: Kind = Kind::Deployment;

pub async fn the_primary_differs_in_one_label_value(world: World) {
    let labels =
        json!({ "app.kubernetes.io/name": "web", "app.kubernetes.io/instance": "shop", "tier": "front" });
    let mut target = spec(labels, "web:1");
    target["selector"]["matchExpressions"] =
        json!([{ "key": "app.kubernetes.io/name", "operator": "In", "values": ["web", "other"] }]);
    target["replicas"] = 3.into();
    target["template"]["metadata"]["labels"]["version"] = "one".into();
    let itself = json!({ "matchLabels": { "app.kubernetes.io/name": "web" } });
    let term = json!({ "topologyKey": "zone", "labelSelector": itself });
    target["template"]["spec"]["topologySpreadConstraints"] = json!([{
        "maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": itself,
    }]);
    target["template"]["spec"]["affinity"] = json!({ "podAntiAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [term],
        "preferredDuringSchedulingIgnoredDuringExecution": [{ "weight": 1, "podAffinityTerm": term }],
    } });
    world.apply(D, "web", json!({ "spec": target })).await;
    let workload = world.workload("Deployment", "web", json!({})).await;
    world.make_primary(&workload).await;

    let primary = world.get(D, "web-primary").await;
    let spec = &primary["spec"];
    let selected = json!({
        "app.kubernetes.io/name": "web-primary", "app.kubernetes.io/instance": "shop", "tier": "front",
    });
    assert_eq!(spec["selector"]["matchLabels"], selected);
    assert_eq!(spec["selector"]["matchExpressions"][0]["values"], json!(["web-primary", "other"]));
    let mut labels = selected.clone();
    labels["version"] = "one".into();
    assert_eq!(spec["template"]["metadata"]["labels"], labels);
    assert_eq!(spec["replicas"], 3);
    let own = json!({ "matchLabels": { "app.kubernetes.io/name": "web-primary" } });
    let pods = &spec["template"]["spec"];
    assert_eq!(pods["topologySpreadConstraints"][0]["labelSelector"], own);
    let apart = &pods["affinity"]["podAntiAffinity"];
    assert_eq!(apart["requiredDuringSchedulingIgnoredDuringExecution"][0]["labelSelector"], own);
    let preferred = &apart["preferredDuringSchedulingIgnoredDuringExecution"][0];
    assert_eq!(preferred["podAffinityTerm"]["labelSelector"], own);

    let target = world.snapshot(D, "web").await;
    let selectors = workload.selectors(Some(&target), None, None).unwrap().unwrap();
    assert_eq!(json!(selectors.primary), selected);
    assert_eq!(selectors.canary["app.kubernetes.io/name"], "web");
    assert_eq!(selectors.previous["app.kubernetes.io/name"], "web-previous");
}

pub async fn the_primary_has_its_owner_and_gitops_ignore_annotations(mut world: World) {
    world.options.prefixes = vec!["team.example.com/".to_owned(), "argocd.argoproj.io/".to_owned()];
    let mut target = deployment("web", "web:1");
    target["metadata"] = json!({
        "labels": { "team.example.com/owner": "shop", "other": "x", "kustomize.toolkit.fluxcd.io/name": "apps" },
        "annotations": { "team.example.com/page": "true", "argocd.argoproj.io/tracking-id": "shop:web" },
    });
    world.apply(D, "web", target).await;
    let workload = world.workload("Deployment", "web", json!({})).await;
    let revision = world.make_primary(&workload).await;

    let primary = world.get(D, "web-primary").await;
    let meta = &primary["metadata"];
    assert_eq!(meta["labels"], json!({ "team.example.com/owner": "shop", "app": "web-primary" }));
    let annotations = meta["annotations"].as_object().unwrap();
    assert_eq!(annotations["team.example.com/page"], "true");
    assert_eq!(annotations["kustomize.toolkit.fluxcd.io/reconcile"], "disabled");
    assert_eq!(annotations["helm.toolkit.fluxcd.io/driftDetection"], "disabled");
    assert_eq!(annotations["argocd.argoproj.io/compare-options"], "IgnoreExtraneous");
    assert_eq!(annotations["argocd.argoproj.io/sync-options"], "Prune=false");
    assert!(!annotations.contains_key("argocd.argoproj.io/tracking-id"));
    let owner = &meta["ownerReferences"][0];
    assert_eq!(
        (&owner["kind"], &owner["name"], &owner["controller"]),
        (&json!("Canary"), &json!("web"), &json!(true))
    );
    assert_eq!(primary["spec"]["template"]["metadata"]["annotations"]["serin.dev/revision"], revision);

    let observed =
        workload.observe_primary(&world.snapshot(D, "web-primary").await, None).unwrap().expect("a primary");
    assert_eq!(observed.revision.as_deref(), Some(revision.as_str()));
    assert_eq!(observed.pods.desired, 2);
    // The revision annotation on its pods is not part of the target's revision.
    assert_eq!(world.revision(&workload).await, revision);
}

pub async fn creating_the_primary_is_idempotent(world: World) {
    world.apply(Kind::ConfigMap, "settings", json!({ "data": { "a": "1" } })).await;
    let mut target = deployment("web", "web:1");
    target["spec"]["template"]["spec"]["containers"][0]["envFrom"] =
        json!([{ "configMapRef": { "name": "settings" } }]);
    world.apply(D, "web", target).await;
    let workload = world.workload("Deployment", "web", json!({})).await;
    let revision = world.make_primary(&workload).await;
    let generation = async || world.get(D, "web-primary").await["metadata"]["generation"].clone();
    let configs = world.names(Kind::ConfigMap).await;
    workload.create_primary(&world.client, &revision).await.unwrap();
    assert_eq!(generation().await, 1);
    assert_eq!(world.names(Kind::ConfigMap).await, configs);

    world.patch(D, "web", json!({ "spec": { "replicas": 4 } })).await;
    assert_eq!(world.revision(&workload).await, revision, "a size is no revision");
    let image =
        json!([{ "op": "replace", "path": "/spec/template/spec/containers/0/image", "value": "web:2" }]);
    let patch: json_patch::Patch = serde_json::from_value(image).unwrap();
    world.api(D).patch("web", &Default::default(), &kube::api::Patch::Json::<()>(patch)).await.unwrap();
    let revision = world.promote(&workload).await;
    assert_eq!(generation().await, 2);
    workload.promote(&world.client, &world.cache, &revision, FromCache::default()).await.unwrap();
    assert_eq!(generation().await, 2);
    for _ in 0..2 {
        workload.scale_canary(&world.client, &world.cache, 0).await.unwrap();
        assert_eq!(world.get(D, "web").await["spec"]["replicas"], 0);
    }
    for _ in 0..2 {
        workload.drop_previous(&world.client).await.unwrap();
    }
}

pub async fn a_primary_of_another_owner_is_left_alone(world: World) {
    world.apply(D, "web", deployment("web", "web:1")).await;
    let workload = world.workload("Deployment", "web", json!({})).await;
    let settings = world.apply(Kind::ConfigMap, "settings", json!({})).await;
    let mut other = deployment("web-primary", "other:1");
    other["metadata"]["ownerReferences"] = json!([{
        "apiVersion": "v1", "kind": "ConfigMap", "name": "settings", "controller": true,
        "uid": settings["metadata"]["uid"],
    }]);
    world.apply(D, "web-primary", other).await;
    let before = world.get(D, "web-primary").await["spec"].clone();

    let refusal = UnsupportedTarget::OwnedByOther {
        kind: "Deployment",
        name: "web-primary".to_owned(),
        owner: "ConfigMap settings".to_owned(),
    };
    let revision = world.revision(&workload).await;
    for result in [
        workload.create_primary(&world.client, &revision).await,
        workload.promote(&world.client, &world.cache, &revision, FromCache::default()).await,
        workload.restore_primary(&world.client, &world.cache, &revision, &LostPrimary::default()).await,
    ] {
        assert!(matches!(&result, Err(Error::UnsupportedTarget(why)) if *why == refusal), "{result:?}");
    }
    assert_eq!(workload.observe_primary(&world.snapshot(D, "web-primary").await, None), Err(refusal));
    assert_eq!(world.get(D, "web-primary").await["spec"], before);
}

pub async fn a_primary_that_nobody_made_is_overwritten_only_if_adopted(world: World) {
    world.apply(D, "web", deployment("web", "web:1")).await;
    let workload = world.workload("Deployment", "web", json!({})).await;
    world.apply(D, "web-primary", deployment("web-primary", "other:1")).await;
    let refusal = UnsupportedTarget::NotAdopted { kind: "Deployment", name: "web-primary".to_owned() };
    let revision = world.revision(&workload).await;
    for result in [
        workload.create_primary(&world.client, &revision).await,
        workload.promote(&world.client, &world.cache, &revision, FromCache::default()).await,
        workload.restore_primary(&world.client, &world.cache, &revision, &LostPrimary::default()).await,
    ] {
        assert!(matches!(&result, Err(Error::UnsupportedTarget(why)) if *why == refusal), "{result:?}");
    }
    assert_eq!(workload.observe_primary(&world.snapshot(D, "web-primary").await, None), Err(refusal));
    let adopt = json!({ "metadata": { "annotations": { "serin.dev/adopt": "true" } } });
    world.patch(D, "web-primary", adopt).await;
    workload.create_primary(&world.client, &revision).await.unwrap();
    let observed =
        workload.observe_primary(&world.snapshot(D, "web-primary").await, None).unwrap().expect("a primary");
    assert_eq!(observed.revision, Some(revision));
}

/// The Deployment controller writes the status of the adopted object at any time.
pub async fn a_primary_is_adopted_between_writes_of_others(world: World) {
    world.apply(D, "web", deployment("web", "web:1")).await;
    let workload = world.workload("Deployment", "web", json!({})).await;
    let mut other = deployment("web-primary", "other:1");
    other["metadata"]["annotations"] = json!({ "serin.dev/adopt": "true" });
    world.apply(D, "web-primary", other).await;
    let revision = world.revision(&workload).await;

    workload.create_primary(&world.client_with_conflicts(D, "web-primary", 2), &revision).await.unwrap();
    let adopted = world.get(D, "web-primary").await;
    assert_eq!(adopted["metadata"]["annotations"]["conflicts"], "2");
    assert_eq!(adopted["spec"]["template"]["spec"]["containers"][0]["image"], "web:1");
}

/// After a promotion the pods carry the labels of both selectors.
pub async fn a_promotion_keeps_the_selector_of_the_primary(world: World) {
    let labelled = |labels: Value, image: &str| json!({ "spec": spec(labels, image) });
    world.apply(D, "web", labelled(json!({ "app": "web" }), "web:1")).await;
    let workload = world.workload("Deployment", "web", json!({})).await;
    world.make_primary(&workload).await;
    world.delete(D, "web").await;
    let mut renamed = labelled(json!({ "app": "shop", "tier": "front" }), "web:2");
    let itself = json!({ "matchLabels": { "app": "shop" } });
    renamed["spec"]["template"]["spec"]["topologySpreadConstraints"] = json!([{
        "maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": itself,
    }]);
    world.apply(D, "web", renamed).await;
    world.promote(&workload).await;
    let primary = world.get(D, "web-primary").await["spec"].clone();
    assert_eq!(primary["selector"]["matchLabels"], json!({ "app": "web-primary" }));
    let pods = &primary["template"];
    assert_eq!(pods["metadata"]["labels"], json!({ "app": "web-primary", "tier": "front" }));
    let spread = &pods["spec"]["topologySpreadConstraints"][0]["labelSelector"];
    assert_eq!(spread["matchLabels"], json!({ "app": "web-primary" }));
    let (target, copy) = (world.snapshot(D, "web").await, world.snapshot(D, "web-primary").await);
    let selectors = workload.selectors(Some(&target), Some(&copy), None).unwrap().unwrap();
    assert_eq!(json!(selectors.canary), json!({ "app": "shop", "tier": "front" }));
    assert_eq!(json!(selectors.primary), json!({ "app": "web-primary" }));
    assert_eq!(json!(selectors.previous), json!({ "app": "web-previous" }));
    assert_eq!(workload.check_target_labels(&target, Some(&copy)), Ok(()));
}

pub async fn the_primary_is_created_only_from_the_requested_revision(world: World) {
    world.apply(D, "web", deployment("web", "web:1")).await;
    let workload = world.workload("Deployment", "web", json!({})).await;
    let revision = world.revision(&workload).await;
    world.apply(D, "web", deployment("web", "web:2")).await;
    let error = workload.create_primary(&world.client, &revision).await.unwrap_err();
    assert!(matches!(&error, Error::TargetChanged { expected, .. } if *expected == revision), "{error}");
    assert!(!world.exists(D, "web-primary").await);

    world.delete(D, "web").await;
    let error = workload.create_primary(&world.client, &revision).await.unwrap_err();
    assert_eq!(error.to_string(), "cannot copy the target: Deployment web does not exist");
}
