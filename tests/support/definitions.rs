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

/// The Gateway API's.
pub fn gateway() -> [Value; 2] {
    ["httproutes", "grpcroutes"]
        .map(|kind| shipped(Part::GatewayApi, &format!("gateway.networking.k8s.io_{kind}.yaml")))
}

/// Istio's.
pub fn istio() -> [Value; 2] {
    ["virtualservices", "destinationrules"].map(|kind| shipped(Part::Istio, &format!("{kind}.yaml")))
}

/// App Mesh's.
pub fn app_mesh() -> [Value; 3] {
    ["virtualrouters", "virtualnodes", "virtualservices"]
        .map(|kind| converted(shipped(Part::AppMesh, &format!("appmesh.k8s.aws_{kind}.yaml"))))
}

/// From apiextensions.k8s.io/v1beta1, which servers no longer know, to v1.
fn converted(mut old: Value) -> Value {
    let spec = old["spec"].as_object_mut().expect("a definition");
    let mut columns = spec.remove("additionalPrinterColumns").unwrap_or(json!([]));
    for column in columns.as_array_mut().expect("columns") {
        column["jsonPath"] = column["JSONPath"].take();
        column.as_object_mut().expect("a column").remove("JSONPath");
    }
    let mut version = spec.remove("versions").expect("versions")[0].take();
    version["additionalPrinterColumns"] = columns;
    version["schema"] = spec.remove("validation").expect("a schema");
    version["subresources"] = spec.remove("subresources").expect("subresources");
    spec.remove("version");
    spec.insert("versions".to_owned(), json!([version]));
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": old["kind"],
        "metadata": {"name": old["metadata"]["name"]}, "spec": old["spec"],
    })
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

/// Of the kinds that only the inventory reads: whatever they have is stored.
pub fn inventory() -> Vec<Value> {
    let kinds = [
        ("gateway.networking.k8s.io", "v1", "Gateway", "gateways", "Namespaced"),
        ("gateway.networking.k8s.io", "v1", "GatewayClass", "gatewayclasses", "Cluster"),
        ("security.istio.io", "v1", "PeerAuthentication", "peerauthentications", "Namespaced"),
        ("linkerd.io", "v1alpha2", "ServiceProfile", "serviceprofiles", "Namespaced"),
        ("argoproj.io", "v1alpha1", "Rollout", "rollouts", "Namespaced"),
        ("serving.knative.dev", "v1", "Service", "services", "Namespaced"),
        ("kuma.io", "v1alpha1", "Mesh", "meshes", "Cluster"),
    ];
    kinds
        .map(|(group, version, kind, plural, scope)| {
            let annotations = match group.ends_with(".k8s.io") {
                true => json!({"api-approved.kubernetes.io": "https://github.com/kubernetes-sigs/gateway-api"}),
                false => json!({}),
            };
            json!({
                "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
                "metadata": {"name": format!("{plural}.{group}"), "annotations": annotations},
                "spec": {
                    "group": group, "scope": scope,
                    "names": {"kind": kind, "listKind": format!("{kind}List"), "plural": plural,
                        "singular": kind.to_lowercase()},
                    "versions": [{"name": version, "served": true, "storage": true, "schema": {
                        "openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}],
                },
            })
        })
        .into()
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
