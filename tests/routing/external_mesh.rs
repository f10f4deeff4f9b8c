//! App Mesh resources presented as objects of the cluster: tags are labels and
//! annotations, and resources that we created have the Canary as owner.

use std::collections::BTreeMap;

use kube::api::{ApiResource, DynamicObject, ObjectMeta};
use kube::{Resource, ResourceExt};
use serde_json::{Value, json};
use serin::api::Canary;
use serin::routing::ObjectKey;

use crate::support::app_mesh::{AppMeshServer, Path};

pub const GROUP: &str = "appmesh.amazonaws.com";

pub fn object_key(namespace: &str, kind: &str, name: &str) -> ObjectKey {
    let kind = ApiResource {
        group: GROUP.to_owned(),
        version: "v20190125".to_owned(),
        api_version: format!("{GROUP}/v20190125"),
        kind: kind.to_owned(),
        plural: String::new(),
    };
    ObjectKey { kind, namespace: namespace.to_owned(), name: name.to_owned() }
}

/// All resources of a Canary `web`.
pub fn objects(namespace: &str) -> Vec<ObjectKey> {
    let names = [
        ("Route", "web".to_owned()),
        ("VirtualService", format!("web.{namespace}")),
        ("VirtualService", format!("web-canary.{namespace}")),
        ("VirtualRouter", format!("web_{namespace}")),
        ("VirtualNode", format!("web-primary_{namespace}")),
        ("VirtualNode", format!("web-canary_{namespace}")),
    ];
    names.iter().map(|(kind, name)| self::object_key(namespace, kind, name)).collect()
}

pub fn path(object: &ObjectKey) -> Path {
    let ObjectKey { kind, namespace, name } = object.clone();
    match kind.kind.as_str() {
        "Route" => Path::Route { router: format!("web_{namespace}"), name },
        "VirtualRouter" => Path::Router(name),
        "VirtualService" => Path::Service(name),
        _ => Path::Node(name),
    }
}

pub fn find(mesh: &AppMeshServer, object: &ObjectKey, canary: &Canary) -> Option<DynamicObject> {
    let (spec, tags) = mesh.as_user(|user| user.find(&path(object)))?;
    let mark = format!("{}/{}", canary.namespace().unwrap_or_default(), canary.name_any());
    let owned = tags.get("serin.dev/canary") == Some(&mark) && !tags.contains_key("serin.dev/original");
    let owner = canary.controller_owner_ref(&()).filter(|_| owned);
    let metadata = ObjectMeta {
        name: Some(object.name.clone()),
        labels: Some(tags.clone()),
        annotations: Some(tags),
        owner_references: owner.map(|owner| vec![owner]),
        ..Default::default()
    };
    Some(DynamicObject { types: None, metadata, data: json!({ "spec": spec }) })
}

/// Creates a resource, after those that a route refers to.
pub fn create(mesh: &AppMeshServer, object: &ObjectKey, body: &Value) {
    let path = path(object);
    mesh.as_user(|user| {
        if let Path::Route { router, .. } = &path {
            let router = Path::Router(router.clone());
            if user.find(&router).is_none() {
                user.create(&router, json!({"listeners": [listener()]}), BTreeMap::new());
            }
        }
    });
    create_nodes(mesh, &body["spec"]);
    mesh.as_user(|user| user.create(&path, body["spec"].clone(), tags(body)));
}

pub fn patch_as_user(mesh: &AppMeshServer, object: &ObjectKey, patch: &Value) {
    let path = path(object);
    create_nodes(mesh, &patch["spec"]);
    mesh.as_user(|user| {
        user.tag(&path, &tags(patch));
        if patch["spec"].is_object() {
            let (mut spec, _) = user.find(&path).expect("a resource to change");
            json_patch::merge(&mut spec, &patch["spec"]);
            user.update(&path, spec);
        }
    });
}

fn create_nodes(mesh: &AppMeshServer, route: &Value) {
    let inner = route.as_object().into_iter().flat_map(|route| route.values());
    let targets = inner.filter_map(|inner| inner["action"]["weightedTargets"].as_array()).flatten();
    let nodes =
        targets.filter_map(|target| target["virtualNode"].as_str()).map(|name| Path::Node(name.to_owned()));
    mesh.as_user(|user| {
        for node in nodes {
            if user.find(&node).is_none() {
                user.create(&node, json!({"listeners": [listener()]}), BTreeMap::new());
            }
        }
    });
}

fn listener() -> Value {
    json!({"portMapping": {"port": 8080, "protocol": "http"}})
}

fn tags(object: &Value) -> BTreeMap<String, String> {
    let pairs = ["labels", "annotations"].map(|field| object["metadata"][field].as_object().cloned());
    let pairs = pairs.into_iter().flatten().flatten();
    pairs.map(|(key, value)| (key, value.as_str().unwrap_or_default().to_owned())).collect()
}
