//! Definitions of custom resources, ours and those that others ship, on any
//! server.

use std::time::Duration;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Client;
use kube::api::{Api, Patch, PatchParams};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::Part;

pub fn ours() -> Vec<Value> {
    serin::api::crds().iter().map(|definition| json!(definition)).collect()
}

/// SMI's. A cluster has one definition of a TrafficSplit, so every version of
/// it is served beside the others, v1alpha1 with the schema that its
/// specification describes.
pub fn smi() -> [Value; 2] {
    let mut split = shipped(Part::ArgoRollouts, "split.yaml");
    let versions = split["spec"]["versions"].as_array_mut().expect("a definition has versions");
    let mut first = versions.last().expect("at least one").clone();
    first["name"] = json!("v1alpha1");
    let backend = "/schema/openAPIV3Schema/properties/spec/properties/backends/items";
    *first.pointer_mut(backend).expect("a TrafficSplit has backends") = json!({
        "type": "object",
        "required": ["service"],
        "properties": {"service": {"type": "string"}, "weight": {"x-kubernetes-int-or-string": true}},
    });
    versions.push(first);
    for version in versions {
        version["served"] = json!(true);
    }
    [split, shipped(Part::Osm, "smi_http_route_group.yaml")]
}

/// As much of KEDA's as matters here.
pub fn keda() -> Value {
    let open = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "scaledobjects.keda.sh"},
        "spec": {
            "group": "keda.sh",
            "scope": "Namespaced",
            "names": {
                "kind": "ScaledObject", "listKind": "ScaledObjectList",
                "plural": "scaledobjects", "singular": "scaledobject",
            },
            "versions": [{
                "name": "v1alpha1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": open}}},
            }],
        },
    })
}

pub async fn install(client: &Client, definitions: impl IntoIterator<Item = Value>) {
    let api = Api::<CustomResourceDefinition>::all(client.clone());
    for definition in definitions {
        let name = definition["metadata"]["name"].as_str().expect("a definition has a name").to_owned();
        let params = PatchParams::apply("serin-tests").force();
        let applied = api.patch(&name, &params, &Patch::Apply(&definition)).await;
        let crd = applied.unwrap_or_else(|error| panic!("install {name}: {error}"));
        for version in crd.spec.versions.iter().filter(|version| version.served) {
            let path = format!("/apis/{}/{}/{}", crd.spec.group, version.name, crd.spec.names.plural);
            await_served(client, &path).await;
        }
    }
}

/// A definition is served some moments after it was accepted.
async fn await_served(client: &Client, path: &str) {
    let deadline = Instant::now() + Duration::from_secs(60);
    let request = || http::Request::get(path).body(Vec::new()).expect("a plain request");
    while let Err(error) = client.request_text(request()).await {
        assert!(Instant::now() < deadline, "{path} is not served: {error}");
        sleep(Duration::from_millis(50)).await;
    }
}

/// One as others ship it.
pub fn shipped(part: Part, file: &str) -> Value {
    let path = part.folder().join(file);
    let text = std::fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("{}: {error}: run `testbed/setup {part}`", path.display()));
    serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}
