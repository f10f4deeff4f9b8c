//! The revision of a target: stable for ever, sensitive to what restarts pods,
//! blind to everything else.

use std::{fs, path::Path};

use serde_json::{Value, json};
use serin::engine::revision::{ConfigRef, Configs, HashVersion, canonical, config_digest, revision};

/// The two values a golden file describes.
struct Case {
    template: Value,
    configs: Vec<Value>,
}

impl Case {
    fn read(name: &str) -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/revision/{name}.yaml"));
        let mut case: Value = serde_saphyr::from_str(&fs::read_to_string(path).unwrap()).unwrap();
        let Value::Array(configs) = case["configs"].take() else { panic!("{name} lists its configs") };
        Self { template: case["template"].take(), configs }
    }

    fn configs(&self) -> Configs<'_> {
        let text = |config: &'_ Value, key: &str| config[key].as_str().unwrap().to_owned();
        self.configs
            .iter()
            .map(|config| {
                let object = Some(&config["object"]).filter(|object| !object.is_null());
                (ConfigRef { kind: text(config, "kind"), name: text(config, "name") }, object)
            })
            .collect()
    }

    fn revision(&self) -> String {
        revision(HashVersion::V1, &self.template, &self.configs())
    }
}

/// Form v1 must never change. A difference here means that every canary in the
/// world would be released again: add a form, do not edit the files.
#[test]
fn hash_version_v1_never_changes() {
    for name in ["minimal", "podinfo", "unusual"] {
        let case = Case::read(name);
        let text =
            format!("{}{}\n", canonical(HashVersion::V1, &case.template, &case.configs()), case.revision());
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/revision/{name}.v1"));
        assert_eq!(text, fs::read_to_string(path).unwrap(), "{name}");
    }
}

#[test]
fn a_change_that_restarts_pods_makes_a_revision() {
    let case = Case::read("podinfo");
    for (pointer, value) in [
        ("/spec/containers/0/image", json!("ghcr.io/stefanprodan/podinfo:6.0.1")),
        ("/spec/containers/0/imagePullPolicy", json!("Always")),
        ("/spec/containers/0/command/2", json!("--level=debug")),
        ("/spec/containers/0/env/0/value", json!("#000000")),
        ("/spec/containers/0/env/1/value", json!("x")),
        ("/spec/containers/0/resources/limits/cpu", json!("2001m")),
        ("/spec/containers/0/livenessProbe/timeoutSeconds", json!(6)),
        ("/spec/containers/0/ports/1/protocol", json!("TCP")),
        ("/spec/containers/0/aFieldOfTheFuture", json!(false)),
        ("/spec/terminationGracePeriodSeconds", json!(31)),
        ("/spec/hostNetwork", json!(true)),
        ("/spec/volumes/1/emptyDir/sizeLimit", json!("2Gi")),
        ("/metadata/labels/app", json!("other")),
        ("/metadata/annotations/kubectl.kubernetes.io~1restartedAt", json!("2025-06-01T00:00:00Z")),
    ] {
        let mut changed = Case::read("podinfo");
        set(&mut changed.template, pointer, value);
        assert_ne!(changed.revision(), case.revision(), "{pointer}");
    }
}

#[test]
fn a_change_that_restarts_no_pod_makes_no_revision() {
    let case = Case::read("podinfo");
    for (pointer, value) in [
        ("/metadata/creationTimestamp", json!("2025-06-01T00:00:00Z")),
        ("/metadata/name", json!("podinfo")),
        ("/metadata/labels/pod-template-hash", json!("5d4b9")),
        ("/spec/containers/0/resources/limits/cpu", json!("2000m")),
        ("/spec/containers/0/resources/limits/cpu", json!(2)),
        ("/spec/containers/0/resources/limits/memory", json!("536870912")),
        ("/spec/containers/0/resources/requests/cpu", json!("0.1")),
        ("/spec/containers/0/resources/requests/cpu", json!("100e-3")),
        ("/spec/containers/0/env/1/value", json!("")),
        ("/spec/containers/0/args", json!([])),
        ("/spec/volumes/1/emptyDir/sizeLimit", json!("1024Mi")),
        ("/spec/nodeName", Value::Null),
        ("/spec/enableServiceLinks", json!(true)),
    ] {
        let mut same = Case::read("podinfo");
        set(&mut same.template, pointer, value.clone());
        assert_eq!(same.revision(), case.revision(), "{pointer} = {value}");
    }
    for default in [
        "/spec/containers/0/imagePullPolicy",
        "/spec/containers/0/terminationMessagePath",
        "/spec/containers/0/livenessProbe/periodSeconds",
        "/spec/containers/0/ports/0/protocol",
        "/spec/dnsPolicy",
        "/spec/securityContext",
        "/spec/volumes/0/secret/defaultMode",
    ] {
        let mut undefaulted = Case::read("podinfo");
        set(&mut undefaulted.template, default, Value::Null);
        assert_eq!(undefaulted.revision(), case.revision(), "{default}");
    }
}

#[test]
fn an_empty_value_may_be_significant() {
    let case = Case::read("unusual");
    for pointer in [
        "/spec/automountServiceAccountToken",
        "/spec/affinity/podAntiAffinity/requiredDuringSchedulingIgnoredDuringExecution/0/namespaceSelector",
        "/spec/volumes/0/emptyDir",
        "/spec/nodeSelector/dnsPolicy",
        "/metadata/labels/protocol",
    ] {
        let mut changed = Case::read("unusual");
        set(&mut changed.template, pointer, Value::Null);
        assert_ne!(changed.revision(), case.revision(), "{pointer}");
    }
}

#[test]
fn the_contents_of_configs_count_and_their_metadata_does_not() {
    let case = Case::read("podinfo");
    for (pointer, value, same) in [
        ("/0/object/data/LEVEL", json!("debug"), false),
        ("/1/object/data/tls.key", json!("bmV3"), false),
        ("/0/object/metadata/resourceVersion", json!("124"), true),
        ("/0/object/immutable", json!(true), true),
        ("/2/object", json!({ "data": {} }), false),
    ] {
        let mut other = Case::read("podinfo");
        let mut configs = Value::Array(other.configs);
        set(&mut configs, pointer, value);
        let Value::Array(configs) = configs else { unreachable!() };
        other.configs = configs;
        assert_eq!(other.revision() == case.revision(), same, "{pointer}");
    }
}

/// Flagger neither hashes nor copies `binaryData`.
#[test]
fn binary_data_counts() {
    let case = Case::read("podinfo");
    let mut other = Case::read("podinfo");
    set(&mut other.configs[0], "/object/binaryData/blob", json!("AAED"));
    assert_ne!(other.revision(), case.revision());
    let digest = |case: &Case| config_digest(Some(&case.configs[0]["object"]));
    assert_ne!(digest(&other), digest(&case));
}

#[test]
fn the_order_of_keys_does_not_count_and_the_order_of_lists_does() {
    let forwards: Value = serde_json::from_str(r#"{"spec":{"a":1,"b":{"c":1,"d":2}}}"#).unwrap();
    let backwards: Value = serde_json::from_str(r#"{"spec":{"b":{"d":2,"c":1},"a":1}}"#).unwrap();
    let none = Configs::new();
    assert_eq!(revision(HashVersion::V1, &forwards, &none), revision(HashVersion::V1, &backwards, &none));
    let mut case = Case::read("podinfo");
    let before = case.revision();
    case.template["spec"]["containers"][0]["env"].as_array_mut().unwrap().swap(0, 1);
    assert_ne!(case.revision(), before);
}

#[test]
fn a_recorded_revision_is_compared_in_its_own_hash_version() {
    assert_eq!(HashVersion::of(Some("v1-0011223344556677")), HashVersion::V1);
    assert_eq!(HashVersion::of(None), HashVersion::CURRENT);
}

/// Sets what a JSON pointer names, making the last key where it is missing;
/// null removes it.
fn set(root: &mut Value, pointer: &str, value: Value) {
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    let key = key.replace("~1", "/");
    match root.pointer_mut(parent).unwrap() {
        Value::Object(map) if value.is_null() => drop(map.remove(&key)),
        Value::Object(map) => drop(map.insert(key, value)),
        Value::Array(list) => list[key.parse::<usize>().unwrap()] = value,
        other => panic!("{pointer} leads into {other}"),
    }
}
