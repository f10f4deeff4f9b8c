//! No field of `spec.service` is ignored: it shows in the written objects, or is refused.

use std::collections::BTreeSet;

use kube::{CustomResourceExt as _, ResourceExt as _};
use serde_json::{Value, json};
use serin::api::Canary;
use serin::engine::Plan;
use serin::engine::action::Split;

use crate::world::{World, create_canary};

/// Every field, with a value that no router case has.
fn samples(world: &World) -> Vec<(&'static str, Value)> {
    let service = world.canary.spec.service.as_ref().expect("a service");
    let port_name = service.port_name.as_deref().unwrap_or("http");
    let protocol = port_name.split('-').next().unwrap_or_default();
    let labels = json!({"labels": {"team": "web"}});
    vec![
        ("port", json!(81)),
        ("portName", json!(format!("{protocol}-other"))),
        ("targetPort", json!(9999)),
        ("appProtocol", json!("http")),
        ("trafficDistribution", json!("PreferClose")),
        ("portDiscovery", json!(true)),
        ("headless", json!(true)),
        ("timeout", json!("7s")),
        ("backendTimeout", json!("5s")),
        ("gateways", json!(["infra/other"])),
        ("gatewayRefs", json!([{"name": "another"}])),
        ("hosts", json!(["other.example.com"])),
        ("delegation", json!(true)),
        ("trafficPolicy", json!({"loadBalancer": {"simple": "ROUND_ROBIN"}})),
        ("match", json!([{"headers": {"x-team": {"exact": "ours"}}}])),
        ("rewrite", json!({"uri": "/other"})),
        ("retries", json!({"attempts": 3})),
        ("headers", json!({"request": {"set": {"x-a": "1"}}})),
        ("mirror", json!([{"backendRef": {"name": "audit", "port": 80}}])),
        ("corsPolicy", json!({"allowOrigins": [{"exact": "https://example.com"}]})),
        ("meshName", json!("global")),
        ("backends", json!(["db.shop"])),
        ("apex", labels.clone()),
        ("primary", labels.clone()),
        ("canary", labels),
        ("unmanagedMetadata", json!({"labels": ["app"]})),
    ]
}

fn properties(of: &str) -> BTreeSet<String> {
    let schema = serde_json::to_value(Canary::crd()).expect("a definition");
    let spec = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties";
    let properties = schema.pointer(&format!("{spec}/{of}/properties")).and_then(Value::as_object);
    properties.expect("properties").keys().cloned().collect()
}

/// Makes a Canary of its own, so that nothing of an earlier one is left.
async fn another(world: &mut World, name: &str, field: Option<(&str, &Value)>) {
    let mut spec = serde_json::to_value(&world.canary.spec).expect("a spec");
    spec["targetRef"]["name"] = json!(name);
    if let Some((field, value)) = field {
        spec["service"][field] = value.clone();
    }
    world.canary = create_canary(&world.client, &world.namespace, name, spec).await;
}

/// The objects of the route and the Services, without the name of their Canary.
async fn written(world: &World) -> String {
    world.try_set(&Split::all_primary()).await.unwrap_or_else(|error| panic!("{error}"));
    let mut written = String::new();
    for key in world.router().objects(&world.canary) {
        let Some(object) = world.find(&key).await else { continue };
        let mut annotations = object.annotations().clone();
        annotations.remove("serin.dev/applied");
        let mut spec = object.data["spec"].clone();
        for address in ["clusterIP", "clusterIPs"] {
            // Allocated by the server, except for headless Services.
            if spec[address] != "None" && spec[address] != json!(["None"]) && spec.is_object() {
                spec.as_object_mut().expect("an object").remove(address);
            }
        }
        let fields = json!({"kind": key.kind.kind, "name": key.name, "labels": object.labels(),
            "annotations": annotations, "spec": spec});
        written.push_str(&format!("{fields:#}\n"));
    }
    written.replace(&world.canary.name_any(), "NAME")
}

pub async fn every_field_of_the_service_is_written_or_refused(mut world: World) {
    let samples = samples(&world);
    let mut known: BTreeSet<String> = samples.iter().map(|(field, _)| (*field).to_owned()).collect();
    // Shown by the tests of renamed Services.
    known.insert("name".to_owned());
    assert_eq!(known, properties("service"), "a new field needs a sample here");

    let plain = world.canary.clone();
    another(&mut world, "plain", None).await;
    let baseline = written(&world).await;
    for (at, (field, value)) in samples.iter().enumerate() {
        world.canary = plain.clone();
        another(&mut world, &format!("with{at}"), Some((field, value))).await;
        let plan = Plan::try_from(&world.canary).expect("a plan");
        match world.router().check(&world.canary, &plan) {
            Err(why) => {
                let sentence = why.to_string();
                assert!(sentence.contains(&format!("spec.service.{field}")), "{field}: {sentence}");
                assert!(sentence.contains(&world.router().name()), "{field}: {sentence}");
                assert!(sentence.contains("remove") || sentence.contains("match by"), "{field}: {sentence}");
            }
            // Objects outside the cluster have tests of their own.
            Ok(()) if world.case.mesh.is_some() => {}
            Ok(()) => assert_ne!(written(&world).await, baseline, "{field} is ignored"),
        }
    }
}

/// Fields that a router must support; the laws of capabilities and of steps are about
/// them.
const OF_THE_ROUTER: &[&str] = &[
    "iterations",
    "stepWeight",
    "stepWeights",
    "steps",
    "stepWeightPromotion",
    "mirror",
    "mirrorWeight",
    "match",
    "sessionAffinity",
];

/// Fields that the engine alone reads; they have the same effect on every router.
const OF_THE_ENGINE: &[&str] = &[
    "interval",
    "threshold",
    "maxWeight",
    "primaryReadyThreshold",
    "canaryReadyThreshold",
    "metrics",
    "webhooks",
    "alerts",
    "judge",
    "warmup",
    "controlWeight",
    "verifySplit",
    "onNoData",
    "onUnavailable",
    "noDataDeadlineSeconds",
    "onBrokenPod",
];

#[test]
fn every_field_of_the_analysis_is_the_routers_or_the_engines() {
    let known: BTreeSet<String> =
        OF_THE_ROUTER.iter().chain(OF_THE_ENGINE).map(|field| (*field).to_owned()).collect();
    assert_eq!(known, properties("analysis"), "a new field is checked by every router, or needs none");
}
