//! The server-side views: Table and PartialObjectMetadata.

use serde_json::{Value, json};

use crate::crds;
use crate::objects::deployment;
use crate::session::*;

const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";

pub async fn a_table_has_columns_and_rows(t: Session) {
    t.config_map("a", json!({"k": "1", "l": "2"})).await;
    let table = t.get_as("configmaps", TABLE).await.ok();
    assert_eq!(table["kind"], "Table");
    assert_eq!(table["apiVersion"], "meta.k8s.io/v1");
    assert!(table["metadata"]["resourceVersion"].is_string());
    assert_eq!(columns(&table), [("Name", 0), ("Data", 0), ("Age", 0)]);
    assert_eq!(table["columnDefinitions"][0]["format"], "name");
    let row = &table["rows"][0];
    assert_eq!(row["cells"][0], "a");
    assert_eq!(row["cells"][1], 2);
    let age = row["cells"][2].as_str().expect("an age");
    assert!(age.ends_with('s'), "{age}");
    assert_eq!(row["object"]["kind"], "PartialObjectMetadata");
    assert_eq!(row["object"]["apiVersion"], "meta.k8s.io/v1");
    assert_eq!(name(&row["object"]), "a");
    assert_eq!(row["object"]["data"], Value::Null);
}

pub async fn a_table_of_one_object_has_one_row(t: Session) {
    let made = t.config_map("a", json!({})).await;
    t.config_map("b", json!({})).await;
    let table = t.get_as("configmaps/a", TABLE).await.ok();
    assert_eq!(version(&table), version(&made));
    assert_eq!(table["rows"].as_array().map(Vec::len), Some(1));
}

pub async fn a_table_includes_objects_as_requested(t: Session) {
    t.config_map("a", json!({"k": "1"})).await;
    let whole = t.get_as("configmaps?includeObject=Object", TABLE).await.ok();
    assert_eq!(whole["rows"][0]["object"]["kind"], "ConfigMap");
    assert_eq!(whole["rows"][0]["object"]["data"], json!({"k": "1"}));
    let none = t.get_as("configmaps?includeObject=None", TABLE).await.ok();
    assert_eq!(none["rows"][0]["object"], Value::Null);
}

pub async fn a_table_comes_in_pages(t: Session) {
    for name in ["a", "b", "c"] {
        t.config_map(name, json!({})).await;
    }
    let page = t.get_as("configmaps?limit=2", TABLE).await.ok();
    assert_eq!(page["rows"].as_array().map(Vec::len), Some(2));
    assert_eq!(page["metadata"]["remainingItemCount"], 1);
    assert!(page["metadata"]["continue"].is_string());
}

pub async fn a_watched_table_names_its_columns_once(t: Session) {
    t.config_map("a", json!({})).await;
    t.config_map("b", json!({})).await;
    let path = format!("/api/v1/namespaces/{}/configmaps?watch=true&timeoutSeconds=2", t.ns);
    let answer = t.get_as(&path, TABLE).await;
    let events: Vec<Value> =
        answer.text.lines().map(|line| serde_json::from_str(line).expect("an event a line")).collect();
    assert_eq!(events.len(), 2, "{}", answer.text);
    assert_eq!(events[0]["type"], "ADDED");
    assert_eq!(events[0]["object"]["kind"], "Table");
    assert_eq!(columns(&events[0]["object"]), [("Name", 0), ("Data", 0), ("Age", 0)]);
    assert_eq!(events[1]["object"]["columnDefinitions"], Value::Null);
    assert_eq!(events[1]["object"]["rows"].as_array().map(Vec::len), Some(1));
}

pub async fn pods_show_readiness_status_and_restarts(t: Session) {
    t.post("pods", crate::deletes::pod("a", Some("n1"))).await.created();
    let table = t.get_as("pods", TABLE).await.ok();
    let expected = [
        ("Name", 0),
        ("Ready", 0),
        ("Status", 0),
        ("Restarts", 0),
        ("Age", 0),
        ("IP", 1),
        ("Node", 1),
        ("Nominated Node", 1),
        ("Readiness Gates", 1),
    ];
    assert_eq!(columns(&table), expected);
    assert_eq!(
        cells(&table, &[0, 1, 2, 3, 5, 6]),
        [json!("a"), json!("0/1"), json!("Pending"), json!("0"), json!("<none>"), json!("n1")]
    );

    let started = json!({"status": {
        "phase": "Running",
        "podIP": "10.1.2.3",
        "podIPs": [{"ip": "10.1.2.3"}],
        "conditions": [{"type": "Ready", "status": "True"}],
        "containerStatuses": [{
            "name": "main", "image": "app:1", "imageID": "", "ready": true, "restartCount": 2,
            "state": {"running": {"startedAt": "2024-01-01T00:00:00Z"}},
        }],
    }});
    t.patch(Patch::Merge, "pods/a/status", started).await.ok();
    let table = t.get_as("pods", TABLE).await.ok();
    assert_eq!(cells(&table, &[1, 2, 3, 5]), [json!("1/1"), json!("Running"), json!("2"), json!("10.1.2.3")]);

    let crashing = json!({"status": {"containerStatuses": [{
        "name": "main", "image": "app:1", "imageID": "", "ready": false, "restartCount": 3,
        "state": {"waiting": {"reason": "CrashLoopBackOff"}},
    }]}});
    t.patch(Patch::Merge, "pods/a/status", crashing).await.ok();
    let table = t.get_as("pods", TABLE).await.ok();
    assert_eq!(cells(&table, &[1, 2]), [json!("0/1"), json!("CrashLoopBackOff")]);
    t.delete("pods/a").await.ok();
    let table = t.get_as("pods", TABLE).await.ok();
    assert_eq!(cells(&table, &[2]), [json!("Terminating")]);
}

pub async fn workloads_show_their_counts(t: Session) {
    let mut body = deployment("d", json!({"app": "d"}));
    body["spec"]["paused"] = true.into();
    body["spec"]["replicas"] = 3.into();
    t.post(&format!("{APPS}/deployments"), body).await.created();
    let table = t.get_as(&format!("{APPS}/deployments"), TABLE).await.ok();
    let expected = [
        ("Name", 0),
        ("Ready", 0),
        ("Up-to-date", 0),
        ("Available", 0),
        ("Age", 0),
        ("Containers", 1),
        ("Images", 1),
        ("Selector", 1),
    ];
    assert_eq!(columns(&table), expected);
    let shown = cells(&table, &[0, 1, 2, 3, 5, 6, 7]);
    assert_eq!(
        shown,
        [json!("d"), json!("0/3"), json!(0), json!(0), json!("main"), json!("app:1"), json!("app=d")]
    );
    let table = t.get_as(&format!("{APPS}/replicasets"), TABLE).await.ok();
    let expected = [
        ("Name", 0),
        ("Desired", 0),
        ("Current", 0),
        ("Ready", 0),
        ("Age", 0),
        ("Containers", 1),
        ("Images", 1),
        ("Selector", 1),
    ];
    assert_eq!(columns(&table), expected);
}

pub async fn services_show_their_ports(t: Session) {
    let ports = json!([{"name": "a", "port": 80}, {"name": "b", "port": 53, "protocol": "UDP"}]);
    let spec = json!({"selector": {"app": "a"}, "ports": ports});
    let made = t.post("services", json!({"metadata": {"name": "a"}, "spec": spec})).await.created();
    let table = t.get_as("services", TABLE).await.ok();
    let expected = [
        ("Name", 0),
        ("Type", 0),
        ("Cluster-IP", 0),
        ("External-IP", 0),
        ("Port(s)", 0),
        ("Age", 0),
        ("Selector", 1),
    ];
    assert_eq!(columns(&table), expected);
    let shown = cells(&table, &[0, 1, 2, 3, 4, 6]);
    let address = made["spec"]["clusterIP"].clone();
    assert_eq!(
        shown,
        [json!("a"), json!("ClusterIP"), address, json!("<none>"), json!("80/TCP,53/UDP"), json!("app=a")]
    );
}

pub async fn every_built_in_kind_has_its_columns(t: Session) {
    for (path, expected) in [
        ("secrets", vec!["Name", "Type", "Data", "Age"]),
        ("serviceaccounts", vec!["Name", "Age"]),
        ("/api/v1/namespaces", vec!["Name", "Status", "Age"]),
        (
            "events",
            vec![
                "Last Seen",
                "Type",
                "Reason",
                "Object",
                "Subobject",
                "Source",
                "Message",
                "First Seen",
                "Count",
                "Name",
            ],
        ),
        (
            "/apis/apps/v1/namespaces/{ns}/daemonsets",
            vec![
                "Name",
                "Desired",
                "Current",
                "Ready",
                "Up-to-date",
                "Available",
                "Node Selector",
                "Age",
                "Containers",
                "Images",
                "Selector",
            ],
        ),
        (
            "/apis/discovery.k8s.io/v1/namespaces/{ns}/endpointslices",
            vec!["Name", "AddressType", "Ports", "Endpoints", "Age"],
        ),
        ("/apis/coordination.k8s.io/v1/namespaces/{ns}/leases", vec!["Name", "Holder", "Age"]),
        (
            "/apis/autoscaling/v2/namespaces/{ns}/horizontalpodautoscalers",
            vec!["Name", "Reference", "Targets", "MinPods", "MaxPods", "Replicas", "Age"],
        ),
        (
            "/apis/networking.k8s.io/v1/namespaces/{ns}/ingresses",
            vec!["Name", "Class", "Hosts", "Address", "Ports", "Age"],
        ),
        (
            "/apis/policy/v1/namespaces/{ns}/poddisruptionbudgets",
            vec!["Name", "Min Available", "Max Unavailable", "Allowed Disruptions", "Age"],
        ),
        ("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", vec!["Name", "Created At"]),
    ] {
        let table = t.get_as(path, TABLE).await.ok();
        let names: Vec<&str> = columns(&table).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, expected, "{path}");
    }
}

pub async fn a_custom_kind_shows_its_printer_columns(t: Session) {
    let path = crds::things(&t).await;
    let map = json!([{"k": "other", "v": "x"}, {"k": "first", "v": "found"}]);
    t.post(&path, crds::thing(&t, "a", json!({"colour": "red", "map": map}))).await.created();
    let table = t.get_as(&path, TABLE).await.ok();
    let expected = [("Name", 0), ("Colour", 0), ("Many", 1), ("Phase", 0), ("First", 0), ("Age", 0)];
    assert_eq!(columns(&table), expected);
    assert_eq!(table["columnDefinitions"][3]["description"], "How it is.");
    let described = "Custom resource definition column (in JSONPath format): .spec.colour";
    assert_eq!(table["columnDefinitions"][1]["description"], described);
    assert_eq!(table["columnDefinitions"][5]["type"], "date");
    assert_eq!(
        cells(&table, &[0, 1, 2, 3, 4]),
        [json!("a"), json!("red"), json!(2), Value::Null, json!("found")]
    );
    let age = table["rows"][0]["cells"][5].as_str().expect("an age");
    assert!(age.ends_with('s'), "{age}");
}

pub async fn a_custom_kind_without_columns_shows_its_age(t: Session) {
    let path = crds::plain(&t).await;
    t.post(&path, crds::thing(&t, "a", json!({}))).await.created();
    let table = t.get_as(&path, TABLE).await.ok();
    assert_eq!(columns(&table), [("Name", 0), ("Age", 0)]);
}

pub async fn metadata_may_be_requested_alone(t: Session) {
    t.config_map("a", json!({"k": "1"})).await;
    let accept = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io,application/json";
    let partial = t.get_as("configmaps/a", accept).await.ok();
    assert_eq!(partial["kind"], "PartialObjectMetadata");
    assert_eq!(partial["apiVersion"], "meta.k8s.io/v1");
    assert_eq!(name(&partial), "a");
    assert_eq!(partial["data"], Value::Null);
    let accept = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io,application/json";
    let list = t.get_as("configmaps", accept).await.ok();
    assert_eq!(list["kind"], "PartialObjectMetadataList");
    assert_eq!(list["items"][0]["kind"], "PartialObjectMetadata");
    assert!(names(&list).contains(&"a"));
}

/// Each column's name and priority.
fn columns(table: &Value) -> Vec<(&str, u64)> {
    let definitions = table["columnDefinitions"].as_array().expect("columns");
    definitions
        .iter()
        .map(|column| match (column["name"].as_str(), column["priority"].as_u64()) {
            (Some(name), Some(priority)) => (name, priority),
            _ => panic!("a column has a name and a priority: {column}"),
        })
        .collect()
}

/// These cells of the first row.
fn cells(table: &Value, which: &[usize]) -> Vec<Value> {
    which.iter().map(|&i| table["rows"][0]["cells"][i].clone()).collect()
}
