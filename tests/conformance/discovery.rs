//! Discovery: the requests of a client before any other.

use serde_json::{Value, json};

use crate::crds;
use crate::session::*;

const AGGREGATED: &str =
    "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json";

pub async fn the_server_is_healthy(t: Session) {
    for path in ["/healthz", "/readyz", "/livez"] {
        let answer = t.get(path).await;
        assert_eq!((answer.code, answer.text.as_str()), (200, "ok"), "{path}");
    }
}

pub async fn the_version_is_served(t: Session) {
    let version = t.get("/version").await.ok();
    assert_eq!(version["major"], "1");
    let git = version["gitVersion"].as_str().expect("a version");
    assert!(git.starts_with(&format!("v1.{}", version["minor"].as_str().expect("a minor"))), "{git}");
    assert!(version["platform"].is_string());
}

pub async fn the_core_group_is_listed(t: Session) {
    let core = t.get("/api").await.ok();
    assert_eq!(core["kind"], "APIVersions");
    assert_eq!(core["versions"], json!(["v1"]));
    let resources = t.get("/api/v1").await.ok();
    assert_eq!(resources["kind"], "APIResourceList");
    assert_eq!(resources["groupVersion"], "v1");
    let pods = resource(&resources, "pods");
    assert_eq!(pods["kind"], "Pod");
    assert_eq!(pods["singularName"], "pod");
    assert_eq!(pods["namespaced"], true);
    assert_eq!(pods["shortNames"], json!(["po"]));
    assert_eq!(pods["categories"], json!(["all"]));
    let mut verbs: Vec<&str> =
        pods["verbs"].as_array().expect("verbs").iter().filter_map(Value::as_str).collect();
    verbs.sort();
    assert_eq!(verbs, ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]);
    assert_eq!(resource(&resources, "pods/status")["verbs"], json!(["get", "patch", "update"]));
    assert_eq!(resource(&resources, "namespaces")["namespaced"], false);
}

pub async fn every_kind_we_use_is_served(t: Session) {
    for (group, kinds) in [
        (
            "/api/v1",
            vec!["namespaces", "pods", "services", "configmaps", "secrets", "events", "serviceaccounts"],
        ),
        ("/apis/apps/v1", vec!["deployments", "replicasets", "daemonsets"]),
        ("/apis/discovery.k8s.io/v1", vec!["endpointslices"]),
        ("/apis/coordination.k8s.io/v1", vec!["leases"]),
        ("/apis/autoscaling/v2", vec!["horizontalpodautoscalers"]),
        ("/apis/networking.k8s.io/v1", vec!["ingresses"]),
        ("/apis/policy/v1", vec!["poddisruptionbudgets"]),
        ("/apis/apiextensions.k8s.io/v1", vec!["customresourcedefinitions"]),
        ("/apis/authentication.k8s.io/v1", vec!["tokenreviews"]),
        ("/apis/authorization.k8s.io/v1", vec!["subjectaccessreviews"]),
    ] {
        let resources = t.get(group).await.ok();
        for kind in kinds {
            resource(&resources, kind);
        }
    }
}

pub async fn groups_are_listed(t: Session) {
    let groups = t.get("/apis").await.ok();
    assert_eq!(groups["kind"], "APIGroupList");
    let list = groups["groups"].as_array().expect("groups");
    let apps = list.iter().find(|group| group["name"] == "apps").expect("the group apps");
    assert_eq!(apps["preferredVersion"], json!({"groupVersion": "apps/v1", "version": "v1"}));
    assert_eq!(apps["versions"], json!([{"groupVersion": "apps/v1", "version": "v1"}]));
    let apps = t.get("/apis/apps").await.ok();
    assert_eq!(apps["kind"], "APIGroup");
    assert_eq!(apps["name"], "apps");
    let scale = t.get("/apis/apps/v1").await.ok();
    let scale = resource(&scale, "deployments/scale");
    assert_eq!(
        (&scale["group"], &scale["version"], &scale["kind"]),
        (&"autoscaling".into(), &"v1".into(), &"Scale".into())
    );
}

pub async fn groups_are_listed_aggregated(t: Session) {
    for (path, group, kind, resource, short) in
        [("/api", "", "Pod", "pods", "po"), ("/apis", "apps", "Deployment", "deployments", "deploy")]
    {
        let answer = t.get_as(path, AGGREGATED).await;
        let content_type = answer.headers["content-type"].to_str().expect("text").to_owned();
        assert!(content_type.contains("as=APIGroupDiscoveryList"), "{content_type}");
        let list = answer.ok();
        assert_eq!(list["kind"], "APIGroupDiscoveryList");
        assert_eq!(list["apiVersion"], "apidiscovery.k8s.io/v2");
        let groups = list["items"].as_array().expect("groups");
        let named = |group: &str| match group {
            "" => groups.iter().find(|item| item["metadata"]["name"].as_str().unwrap_or_default().is_empty()),
            name => groups.iter().find(|item| item["metadata"]["name"] == name),
        };
        let version = &named(group).expect("the group")["versions"][0];
        assert_eq!(version["version"], "v1");
        let resources = version["resources"].as_array().expect("resources");
        let found = resources.iter().find(|item| item["resource"] == resource).expect("the resource");
        assert_eq!(found["responseKind"]["kind"], kind);
        assert_eq!(found["scope"], "Namespaced");
        assert_eq!(found["shortNames"], json!([short]));
        let subresources = found["subresources"].as_array().expect("subresources");
        assert!(subresources.iter().any(|item| item["subresource"] == "status"));
    }
}

pub async fn a_custom_kind_is_discovered(t: Session) {
    crds::things(&t).await;
    let group = crds::group(&t);
    let found = t.eventually(&format!("/apis/{group}"), "listed", |group| group["kind"] == "APIGroup").await;
    assert_eq!(found["preferredVersion"]["version"], "v1");
    let resources = t.get(&format!("/apis/{group}/v1")).await.ok();
    let things = resource(&resources, "things");
    assert_eq!(things["kind"], "Thing");
    assert_eq!(things["shortNames"], json!(["th"]));
    assert_eq!(things["categories"], json!(["all"]));
    resource(&resources, "things/status");
    assert_eq!(resource(&resources, "things/scale")["kind"], "Scale");

    for _ in 0..200 {
        let all = t.get_as("/apis", AGGREGATED).await.ok();
        let groups = all["items"].as_array().expect("groups");
        if let Some(item) = groups.iter().find(|item| item["metadata"]["name"] == group.as_str()) {
            let things = &item["versions"][0]["resources"][0];
            let kind = json!({"group": group, "version": "v1", "kind": "Thing"});
            assert_eq!(things["responseKind"], kind);
            assert_eq!(things["subresources"].as_array().map(Vec::len), Some(2));
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    panic!("{group} never came into the aggregated discovery");
}

pub async fn schemas_are_published(t: Session) {
    let index = t.get("/openapi/v3").await.ok();
    for path in ["api/v1", "apis/apps/v1"] {
        let url = index["paths"][path]["serverRelativeURL"].as_str().unwrap_or_else(|| panic!("no {path}"));
        assert!(url.starts_with(&format!("/openapi/v3/{path}?hash=")), "{url}");
    }
    let url = index["paths"]["apis/apps/v1"]["serverRelativeURL"].as_str().expect("a path");
    let document = t.get(url).await.ok();
    assert!(document["openapi"].as_str().is_some_and(|version| version.starts_with("3.")));
    let deployment = schema_of(&document, "apps", "Deployment");
    assert!(deployment["properties"]["spec"].is_object());
    assert!(deployment["description"].as_str().is_some_and(|text| text.starts_with("Deployment enables")));
}

pub async fn the_schema_of_a_custom_kind_is_published(t: Session) {
    let group = crds::group(&t);
    crds::things(&t).await;
    let path = format!("apis/{group}/v1");
    let index =
        t.eventually("/openapi/v3", "complete", |index| index["paths"][path.as_str()].is_object()).await;
    let url = index["paths"][path.as_str()]["serverRelativeURL"].as_str().expect("a path");
    let document = t.get(url).await.ok();
    let thing = schema_of(&document, &group, "Thing");
    assert_eq!(thing["properties"]["spec"]["properties"]["colour"]["enum"], json!(["red", "blue"]));
    let operations = document["paths"].as_object().expect("paths");
    assert!(operations.contains_key(&format!("/{path}/namespaces/{{namespace}}/things")));
}

pub async fn an_unknown_path_is_not_found(t: Session) {
    assert_eq!(t.get("/nowhere").await.code, 404);
    assert_eq!(t.get("/apis/nope.example.dev/v1/things").await.code, 404);
    let answer = t.get("nothings").await;
    assert_eq!(answer.refused(404, "NotFound"), "the server could not find the requested resource");
}

fn resource<'a>(list: &'a Value, name: &str) -> &'a Value {
    let resources = list["resources"].as_array().unwrap_or_else(|| panic!("no resources: {list}"));
    resources.iter().find(|item| item["name"] == name).unwrap_or_else(|| panic!("{name} is not served"))
}

/// The component schema that says it is this kind.
fn schema_of<'a>(document: &'a Value, group: &str, kind: &str) -> &'a Value {
    let is_it = |schema: &&Value| {
        let kinds =
            schema["x-kubernetes-group-version-kind"].as_array().map(Vec::as_slice).unwrap_or_default();
        kinds.iter().any(|item| item["group"] == group && item["kind"] == kind)
    };
    let schemas = document["components"]["schemas"].as_object().expect("schemas");
    schemas.values().find(is_it).unwrap_or_else(|| panic!("no schema of {kind}"))
}
