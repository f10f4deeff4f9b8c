//! Observed state, from objects alone.

use std::{cell::Cell, sync::Arc};

use serde_json::{Value, json};
use serin::{
    api::Canary,
    engine::observed::Pods,
    workload::{CachedWorkload, ConfigContents, Kind, Options, Reference, UnsupportedTarget, Workload},
};

use crate::world::{deployment, spec};

fn workload(spec: Value) -> Result<Workload, UnsupportedTarget> {
    let mut object = json!({
        "apiVersion": "serin.dev/v1alpha1", "kind": "Canary",
        "metadata": { "name": "web", "namespace": "shop", "uid": "1" },
        "spec": {
            "targetRef": { "apiVersion": "apps/v1", "kind": "Deployment", "name": "web" },
            "analysis": { "stepWeight": 10 },
        },
    });
    json_patch::merge(&mut object["spec"], &spec);
    let canary: Canary = serde_json::from_value(object).unwrap();
    Workload::new(&canary, &Arc::new(Options::default()))
}

fn snapshot(fields: Value) -> CachedWorkload {
    serde_json::from_value(fields).unwrap()
}

fn pods(workload: &Workload, fields: Value) -> Pods {
    workload.observe_target(&snapshot(fields), &mut ConfigContents::default(), |_| None, None).unwrap().pods
}

#[test]
fn a_status_of_another_generation_does_not_count_new_pods() {
    let web = workload(json!({})).unwrap();
    let mut object = deployment("web", "web:1");
    object["metadata"] = json!({ "generation": 3 });
    object["status"] = json!({
        "observedGeneration": 3, "replicas": 2, "updatedReplicas": 2, "readyReplicas": 2, "availableReplicas": 1,
    });
    assert_eq!(pods(&web, object.clone()), Pods { desired: 2, exist: true, updated: 2, ready: 1, older: 0 });
    object["metadata"]["generation"] = 4.into();
    assert_eq!(pods(&web, object), Pods { desired: 2, exist: true, updated: 0, ready: 1, older: 2 });
}

#[test]
fn ready_pods_of_an_old_template_do_not_count_as_updated() {
    let web = workload(json!({})).unwrap();
    let mut object = deployment("web", "web:1");
    // Two old pods are ready, two new ones are not.
    object["status"] = json!({ "replicas": 4, "updatedReplicas": 2, "availableReplicas": 2 });
    assert!(!pods(&web, object.clone()).are_ready(100));
    object["status"] = json!({ "replicas": 2, "updatedReplicas": 2, "availableReplicas": 2 });
    assert!(pods(&web, object.clone()).are_ready(100));
    // Scaled down to one during the rollout: the old pod is ready.
    object["spec"]["replicas"] = 1.into();
    object["status"] = json!({ "replicas": 3, "updatedReplicas": 2, "availableReplicas": 1 });
    assert!(!pods(&web, object.clone()).are_ready(100));
    object["status"] = json!({ "replicas": 2, "updatedReplicas": 2, "availableReplicas": 2 });
    assert!(pods(&web, object).are_ready(100));
}

#[test]
fn a_daemon_set_just_scaled_up_desires_pods() {
    let target = json!({ "kind": "DaemonSet", "name": "web", "apiVersion": "apps/v1" });
    let web = workload(json!({ "targetRef": target })).unwrap();
    let mut object = json!({
        "metadata": { "generation": 1 },
        "spec": spec(json!({ "app": "web" }), "web:1"),
        "status": { "observedGeneration": 1, "desiredNumberScheduled": 3, "currentNumberScheduled": 2,
            "numberMisscheduled": 1, "updatedNumberScheduled": 2, "numberAvailable": 2 },
    });
    assert_eq!(pods(&web, object.clone()), Pods { desired: 3, exist: true, updated: 2, ready: 2, older: 0 });
    object["spec"]["template"]["spec"]["nodeSelector"] = json!({ "serin.dev/scale-to-zero": "true" });
    assert_eq!(pods(&web, object.clone()).desired, 0);
    object["spec"]["template"]["spec"]["nodeSelector"] = Value::Null;
    object["metadata"]["generation"] = 3.into();
    object["status"] = json!({ "observedGeneration": 2, "desiredNumberScheduled": 0 });
    assert_eq!(pods(&web, object), Pods { desired: 1, exist: false, updated: 0, ready: 0, older: 0 });
}

#[test]
fn a_config_is_read_once_for_each_version_of_it() {
    let web = workload(json!({})).unwrap();
    let mut object = deployment("web", "web:1");
    object["metadata"] = json!({ "uid": "2", "generation": 1 });
    object["spec"]["template"]["spec"]["containers"][0]["envFrom"] =
        json!([{ "configMapRef": { "name": "a" } }, { "secretRef": { "name": "b", "optional": true } }]);
    let target = snapshot(object);
    let mut configs = ConfigContents::default();
    let unread = web.observe_target(&target, &mut configs, |_| Some("1".to_owned()), None).unwrap_err();
    let names: Vec<_> = unread.0.iter().map(|config| format!("{} {}", config.kind, config.name)).collect();
    assert_eq!(names, ["ConfigMap a", "Secret b"]);
    // A config that does not exist need not be read.
    let observed = web.observe_target(&target, &mut configs, |_| None, None).unwrap();
    assert_eq!(observed.configs.len(), 2);
    let lookups = Cell::new(0);
    let again = web.observe_target(
        &target,
        &mut configs,
        |_| {
            lookups.set(lookups.get() + 1);
            None
        },
        None,
    );
    assert_eq!(again.unwrap(), observed);
    assert_eq!(lookups.get(), 2);
    assert!(web.observe_target(&target, &mut configs, |_| Some("1".to_owned()), None).is_err());
}

#[test]
fn unknown_fields_are_part_of_the_revision() {
    let web = workload(json!({})).unwrap();
    let revision = |object: Value| {
        web.observe_target(&snapshot(object), &mut ConfigContents::default(), |_| None, None)
            .unwrap()
            .revision
    };
    let mut object = deployment("web", "web:1");
    let before = revision(object.clone());
    object["spec"]["template"]["spec"]["aFieldOfTheFuture"] = true.into();
    assert_ne!(revision(object.clone()), before);
    object["spec"]["template"]["spec"] = deployment("web", "web:1")["spec"]["template"]["spec"].clone();
    object["spec"]["aFieldOfTheFuture"] = true.into();
    assert_eq!(revision(object), before);
}

#[test]
fn all_objects_a_canary_depends_on_are_named() {
    let scaler = json!({ "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "name": "load" });
    let web = workload(json!({ "autoscalerRef": scaler })).unwrap();
    let mut object = deployment("web", "web:1");
    object["spec"]["template"]["spec"]["containers"][0]["envFrom"] =
        json!([{ "configMapRef": { "name": "a" } }]);
    let named = |kind, name: &str| Reference { kind, name: Some(name.to_owned()) };
    assert_eq!(
        web.references(Some(&snapshot(object))),
        [
            named(Kind::Deployment, "web"),
            named(Kind::Deployment, "web-primary"),
            named(Kind::Deployment, "web-previous"),
            Reference { kind: Kind::PodDisruptionBudget, name: None },
            named(Kind::HorizontalPodAutoscaler, "load"),
            named(Kind::HorizontalPodAutoscaler, "load-primary"),
            named(Kind::ConfigMap, "a"),
        ]
    );
}

#[test]
fn an_unsupported_target_is_refused_with_a_remedy() {
    let refusal = |target: Value| workload(json!({ "targetRef": target })).unwrap_err().to_string();
    let knative = json!({ "apiVersion": "serving.knative.dev/v1", "kind": "Service", "name": "web" });
    assert_eq!(
        refusal(knative),
        "spec.targetRef names a Service of serving.knative.dev/v1, which Serin does not release; \
         use a Deployment or DaemonSet of apps/v1, a Service of v1, or an EndpointGroup of serin.dev/v1alpha1"
    );
    let web = workload(json!({})).unwrap();
    let selectors = |labels: Value| {
        let target = snapshot(json!({ "spec": spec(labels, "web:1") }));
        web.selectors(Some(&target), None, None).unwrap_err().to_string()
    };
    assert!(selectors(json!({})).contains("add one such as app: web to spec.selector.matchLabels"));
    assert!(selectors(json!({ "app": "w".repeat(60) })).contains("longer than 54 characters"));
}

#[test]
fn a_cached_workload_drops_managed_fields_and_keeps_the_spec() {
    let mut object = deployment("web", "web:1");
    object["metadata"] = json!({
        "name": "web",
        "annotations": { "kubectl.kubernetes.io/last-applied-configuration": "{}", "team": "shop" },
        "managedFields": [{ "manager": "kubectl" }],
    });
    let snapshot = snapshot(object.clone());
    assert_eq!(snapshot.spec(), object["spec"]);
    assert!(snapshot.metadata.managed_fields.is_none());
    assert_eq!(json!(snapshot.metadata.annotations), json!({ "team": "shop" }));
    let ports = json!([{ "containerPort": 80, "name": "http" }, { "containerPort": 9090 }]);
    object["spec"]["template"]["spec"]["containers"][0]["ports"] = ports;
    let web = workload(json!({})).unwrap();
    let ports = web.ports(&serde_json::from_value(object).unwrap());
    let numbers: Vec<_> = ports.iter().map(|port| (port.container.as_str(), port.number)).collect();
    assert_eq!(numbers, [("app", 80), ("app", 9090)]);
}
