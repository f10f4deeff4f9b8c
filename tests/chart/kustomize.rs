//! The kustomize base renders the objects of the chart.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use crate::support;
use crate::support::chart::{Helm, Kubectl};

const BASE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/gitops/kustomize");

/// By kind, namespace and name, without the marks that only Helm reads.
fn by_name(objects: &[Value]) -> BTreeMap<String, Value> {
    let name = |object: &Value| {
        let meta = &object["metadata"];
        format!("{} {}/{}", object["kind"], meta["namespace"], meta["name"])
    };
    let plain = |object: &Value| {
        let mut object = object.clone();
        if object["kind"] == "CustomResourceDefinition" {
            let metadata = object["metadata"].as_object_mut().expect("metadata");
            metadata.retain(|key, _| key == "name");
        }
        as_floats(object)
    };
    objects.iter().filter(|object| !object.is_null()).map(|object| (name(object), plain(object))).collect()
}

/// 1 and 1.0 are one number in YAML, and kustomize writes the shorter.
fn as_floats(value: Value) -> Value {
    match value {
        Value::Number(number) => serde_json::json!(number.as_f64()),
        Value::Array(values) => values.into_iter().map(as_floats).collect(),
        Value::Object(fields) => {
            Value::Object(fields.into_iter().map(|(key, value)| (key, as_floats(value))).collect())
        }
        other => other,
    }
}

#[tokio::test]
async fn the_kustomize_base_renders_the_objects_of_the_chart() {
    let cluster = support::real().await;
    let helm = Helm::new();
    let rendered = helm.template("serin", &["crds.install=false"]).await;
    let kept = std::fs::read_to_string(Path::new(BASE).join("serin.yaml")).expect("the rendered chart");
    assert_eq!(kept, rendered.text, "the chart has changed: run `make kustomize`");

    let text = Kubectl::admin(cluster).run(&["kustomize", BASE], "").await.ok();
    let objects: Vec<Value> = serde_saphyr::from_multiple(&text).expect("YAML");
    let mut built = by_name(&objects);
    let namespace = built.remove("\"Namespace\" null/\"serin\"");
    assert!(namespace.is_some(), "Helm makes the namespace by --create-namespace");
    let chart = by_name(&helm.template("serin", &[]).await.objects);
    let names = |objects: &BTreeMap<String, Value>| objects.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&built), names(&chart));
    for (name, object) in &chart {
        assert_eq!(built[name], *object, "{name}");
    }
}
