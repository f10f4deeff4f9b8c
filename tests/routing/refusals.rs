//! Unsupported features are rejected before any write.

use kube::api::Api;
use serde_json::{Value, json};
use serin::api::canary::Provider;
use serin::api::{Canary, Weight};
use serin::engine::Plan;
use serin::routing::Unsupported;

use crate::world::World;

fn check(world: &World, change: Value) -> Result<(), Unsupported> {
    let mut spec = serde_json::to_value(&world.canary.spec).expect("a spec");
    json_patch::merge(&mut spec, &change);
    let canary = Canary { spec: serde_json::from_value(spec).expect("a spec"), ..world.canary.clone() };
    world.router().check(&canary, &Plan::try_from(&canary).expect("a plan"))
}

/// Linkerd drops a route with one of these and still reports it as accepted: no later
/// weight would be in force.
#[tokio::test]
async fn linkerd_refuses_what_would_freeze_its_route() {
    let world = World::new(crate::support::local().await, crate::routers::gateway_mesh()).await;
    for change in [
        json!({"analysis": {"mirror": true}}),
        json!({"service": {"mirror": [{"backendRef": {"name": "audit", "port": 80}}]}}),
        json!({"service": {"rewrite": {"uri": "/other"}}}),
        json!({"service": {"corsPolicy": {"allowOrigins": [{"exact": "https://example.com"}]}}}),
        json!({"service": {"backendTimeout": "5s"}}),
    ] {
        let refused = check(&world, change.clone()).expect_err(&change.to_string()).to_string();
        assert!(refused.contains("linkerd"), "{refused}");
    }
}

fn header() -> Value {
    json!([{"headers": {"x-team": {"exact": "ours"}}}])
}

pub async fn an_unsupported_feature_is_refused_before_any_write(world: World) {
    let can = world.capabilities();
    let steps = |steps: Value| json!({"analysis": {"iterations": null, "steps": steps}});
    let matched_and_weighed = steps(json!([{"match": header(), "weight": 10}]));
    let cookie = json!({"analysis": {"sessionAffinity": {"cookieName": "side"}}});
    let by_sender = steps(json!([{"match": [{"sourceLabels": {"app": "front"}}]}]));
    let cases = [
        ("weights", can.finest_weight == Weight::FULL, steps(json!([{"weight": 10}]))),
        (
            "step-down weights",
            can.finest_weight == Weight::FULL,
            json!({"analysis": {"stepWeightPromotion": 50}}),
        ),
        ("fine weights", can.finest_weight.hundredths() > 1, steps(json!([{"weight": 0.25}]))),
        ("match", !can.matches, steps(json!([{"match": header()}]))),
        ("match of all steps", !can.matches, json!({"analysis": {"match": header()}})),
        ("match and weight", !can.match_with_weight, matched_and_weighed),
        ("mirror", !can.mirror, json!({"analysis": {"mirror": true}})),
        ("affinity", !can.affinity, cookie),
        (
            "delegation",
            !can.delegation,
            json!({"service": {"delegation": true, "hosts": null, "gateways": null}}),
        ),
        ("match by sender", world.case.provider != Provider::Istio || !can.matches, by_sender),
        ("a long name", true, json!({"service": {"name": "n".repeat(56)}})),
    ];
    for (case, refused, change) in cases {
        let result = check(&world, change);
        assert_eq!(result.is_err(), refused, "{case}: {result:?}");
        if let Err(why) = result {
            let sentence = why.to_string();
            let remedies = ["remove", "use ", "set ", "write ", "match by"];
            assert!(remedies.iter().any(|word| sentence.contains(word)), "no remedy in: {sentence}");
        }
    }
    for object in world.router().objects(&world.canary) {
        let objects = Api::<kube::api::DynamicObject>::namespaced_with(
            world.client.clone(),
            &world.namespace,
            &object.kind,
        )
        .list(&Default::default())
        .await
        .unwrap();
        assert!(objects.items.is_empty(), "{} was written", object.kind.kind);
    }
}

pub async fn a_supported_feature_is_not_refused(world: World) {
    check(&world, json!({})).unwrap();
    let can = world.capabilities();
    if can.finest_weight < Weight::FULL {
        let weights = json!({"analysis": {"iterations": null, "stepWeights": [1, 10, 50]}});
        check(&world, weights).unwrap();
        check(&world, json!({"analysis": {"stepWeightPromotion": 10}})).unwrap();
    }
    if can.matches {
        check(&world, json!({"analysis": {"match": header()}})).unwrap();
    }
    // As in Flagger, weights without a mesh are Blue/Green.
    if can.finest_weight == Weight::FULL {
        check(&world, json!({"analysis": {"iterations": null, "stepWeight": 10}})).unwrap();
    }
    check(&world, json!({"targetRef": {"kind": "DaemonSet"}})).unwrap();
}
