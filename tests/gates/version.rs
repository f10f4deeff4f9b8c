//! `serin version --check-crds` on an API server that lacks definitions, or has others.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use crate::world::World;

#[tokio::test]
async fn the_definitions_of_the_cluster_are_compared() {
    let world = World::local().await;
    let (code, out, _) = world.serin_anywhere(&["version"]).await;
    assert_eq!((code, out.trim()), (0, concat!("serin ", env!("CARGO_PKG_VERSION"))));

    let (code, out, _) = world.serin_anywhere(&["version", "--check-crds"]).await;
    assert_eq!(code, 3, "{out}");
    assert!(out.contains("canaries.serin.dev: same\n"), "{out}");
    assert!(out.contains("alertproviders.serin.dev: missing\n"), "{out}");
    assert!(out.contains("or run `serin crds | kubectl apply"), "{out}");

    let definitions: Api<CustomResourceDefinition> = Api::all(world.client.clone());
    for definition in serin::api::crds() {
        let name = definition.metadata.name.clone().expect("a name");
        let mut definition = json!(definition);
        if name == "canaries.serin.dev" {
            let schema = &mut definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
            let spec = schema["properties"]["spec"]["properties"].as_object_mut().expect("fields");
            spec.remove("suspend");
        }
        let apply = PatchParams::apply("test").force();
        definitions.patch(&name, &apply, &Patch::Apply(definition)).await.expect("defined");
    }
    let (code, out, _) = world.serin_anywhere(&["version", "--check-crds"]).await;
    assert_eq!(code, 3, "{out}");
    assert!(out.contains("canaries.serin.dev: older: it has no spec.suspend\n"), "{out}");
    assert_eq!(out.matches(": same\n").count(), serin::api::crds().len() - 1, "{out}");
}
