//! The configs that a target reads, and the copies that its primary reads.

use serde_json::{Value, json};
use serin::workload::{Kind, LostPrimary};

use crate::world::{World, deployment, text};

const D: Kind = Kind::Deployment;

/// Refers to configs by every supported field.
fn reader() -> Value {
    let mut target = deployment("web", "web:1");
    target["spec"]["template"]["spec"] = json!({
        "initContainers": [{ "name": "first", "image": "init:1", "envFrom": [{ "configMapRef": { "name": "first" } }] }],
        "containers": [{
            "name": "app",
            "image": "web:1",
            "env": [
                { "name": "A", "valueFrom": { "configMapKeyRef": { "name": "keys", "key": "a" } } },
                { "name": "B", "valueFrom": { "secretKeyRef": { "name": "password", "key": "b" } } },
            ],
            "envFrom": [{ "secretRef": { "name": "password" } }],
        }],
        "volumes": [
            { "name": "files", "configMap": { "name": "files" } },
            { "name": "certificate", "secret": { "secretName": "certificate" } },
            { "name": "both", "projected": { "sources": [
                { "configMap": { "name": "keys" } }, { "secret": { "name": "password" } },
            ] } },
        ],
    });
    target
}

pub async fn configs_are_copied_completely_and_the_primary_reads_the_copies(world: World) {
    world.apply(Kind::ConfigMap, "first", json!({ "data": { "x": "1" } })).await;
    world.apply(Kind::ConfigMap, "keys", json!({ "data": { "a": "1" } })).await;
    let binary = json!({ "data": { "t": "text" }, "binaryData": { "logo": "iVBORw0KGgo=" } });
    world.apply(Kind::ConfigMap, "files", binary.clone()).await;
    world.apply(Kind::Secret, "password", json!({ "data": { "b": "c2VjcmV0" } })).await;
    let certificate =
        json!({ "type": "kubernetes.io/tls", "data": { "tls.crt": "eA==", "tls.key": "eQ==" } });
    world.apply(Kind::Secret, "certificate", certificate.clone()).await;
    world.apply(D, "web", reader()).await;
    let workload = world.workload("Deployment", "web", json!({})).await;
    world.make_primary(&workload).await;

    let target = world.target(&workload).await;
    let tracked: Vec<&str> = target.configs.keys().map(String::as_str).collect();
    assert_eq!(
        tracked,
        ["configmap/files", "configmap/first", "configmap/keys", "secret/certificate", "secret/password"]
    );

    let pods = world.get(D, "web-primary").await["spec"]["template"]["spec"].clone();
    let read = |pointer: &str| text(pods.pointer(pointer).unwrap_or_else(|| panic!("{pointer} in {pods:#}")));
    let files = read("/volumes/0/configMap/name");
    let keys = read("/containers/0/env/0/valueFrom/configMapKeyRef/name");
    let password = read("/containers/0/envFrom/0/secretRef/name");
    assert_eq!(read("/volumes/2/projected/sources/0/configMap/name"), keys);
    assert_eq!(read("/volumes/2/projected/sources/1/secret/name"), password);
    assert_eq!(read("/containers/0/env/1/valueFrom/secretKeyRef/name"), password);
    for (copy, prefix) in [
        (&files, "files-primary-"),
        (&keys, "keys-primary-"),
        (&password, "password-primary-"),
        (&read("/initContainers/0/envFrom/0/configMapRef/name"), "first-primary-"),
    ] {
        assert!(copy.starts_with(prefix), "{copy}");
    }
    let files = world.get(Kind::ConfigMap, &files).await;
    assert_eq!((&files["data"], &files["binaryData"]), (&binary["data"], &binary["binaryData"]));
    assert_eq!(files["immutable"], true);
    assert_eq!(files["metadata"]["ownerReferences"][0]["kind"], "Canary");
    assert_eq!(world.get(Kind::Secret, &password).await["data"], json!({ "b": "c2VjcmV0" }));
    let copy = world.get(Kind::Secret, &read("/volumes/1/secret/secretName")).await;
    assert_eq!((&copy["type"], &copy["data"]), (&certificate["type"], &certificate["data"]));
}

pub async fn opted_out_and_missing_configs_are_not_copied(world: World) {
    for (name, key) in [("ours", "serin.dev/config-tracking"), ("theirs", "flagger.app/config-tracking")] {
        let annotated = json!({ "metadata": { "annotations": { key: "disabled" } }, "data": { "a": "1" } });
        world.apply(Kind::ConfigMap, name, annotated).await;
    }
    let registry =
        json!({ "type": "kubernetes.io/dockerconfigjson", "stringData": { ".dockerconfigjson": "{}" } });
    world.apply(Kind::Secret, "registry", registry).await;
    let mut target = deployment("web", "web:1");
    target["spec"]["template"]["spec"]["containers"][0]["envFrom"] = json!([
        { "configMapRef": { "name": "ours" } },
        { "configMapRef": { "name": "theirs" } },
        { "secretRef": { "name": "registry" } },
        { "configMapRef": { "name": "maybe", "optional": true } },
    ]);
    world.apply(D, "web", target).await;
    let workload = world.workload("Deployment", "web", json!({})).await;
    let before = world.make_primary(&workload).await;

    let sources = &world.get(D, "web-primary").await["spec"]["template"]["spec"]["containers"][0]["envFrom"];
    assert_eq!(sources[0]["configMapRef"]["name"], "ours");
    assert_eq!(sources[1]["configMapRef"]["name"], "theirs");
    assert_eq!(sources[2]["secretRef"]["name"], "registry");
    // A config created later is a new revision, which the primary does not read.
    let absent = text(&sources[3]["configMapRef"]["name"]);
    assert!(absent.starts_with("maybe-primary-") && !world.exists(Kind::ConfigMap, &absent).await);
    world.patch(Kind::ConfigMap, "ours", json!({ "data": { "a": "2" } })).await;
    assert_eq!(world.revision(&workload).await, before);
    world.apply(Kind::ConfigMap, "maybe", json!({ "data": { "a": "1" } })).await;
    assert_ne!(world.revision(&workload).await, before);
}

/// A target that reads one ConfigMap.
async fn reading(world: &World, target: &str, settings: &str) {
    world.apply(Kind::ConfigMap, "settings", json!({ "binaryData": { "a": settings } })).await;
    let mut fields = deployment(target, "web:1");
    fields["spec"]["template"]["spec"]["containers"][0]["envFrom"] =
        json!([{ "configMapRef": { "name": "settings" } }]);
    world.apply(D, target, fields).await;
}

async fn copy_read_by(world: &World, workload: &str) -> String {
    let object = world.get(D, workload).await;
    text(&object["spec"]["template"]["spec"]["containers"][0]["envFrom"][0]["configMapRef"]["name"])
}

pub async fn an_edit_is_a_revision_and_reaches_the_primary_only_by_promotion(world: World) {
    reading(&world, "web", "MQ==").await;
    let workload = world.workload("Deployment", "web", json!({})).await;
    let first = world.make_primary(&workload).await;
    let old = copy_read_by(&world, "web-primary").await;

    reading(&world, "web", "Mg==").await;
    let second = world.revision(&workload).await;
    assert_ne!(second, first);
    assert_eq!(copy_read_by(&world, "web-primary").await, old);
    assert_eq!(world.get(Kind::ConfigMap, &old).await["binaryData"]["a"], "MQ==");

    world.promote(&workload).await;
    let new = copy_read_by(&world, "web-primary").await;
    assert_eq!(world.get(Kind::ConfigMap, &new).await["binaryData"]["a"], "Mg==");
    assert_eq!(
        world.get(Kind::ConfigMap, &old).await["binaryData"]["a"],
        "MQ==",
        "pods being replaced read it"
    );

    workload.restore_primary(&world.client, &world.cache, &first, &LostPrimary::default()).await.unwrap();
    assert_eq!(copy_read_by(&world, "web-primary").await, old);
}

pub async fn copies_of_unreachable_revisions_are_deleted(world: World) {
    reading(&world, "web", "MQ==").await;
    let workload = world.workload("Deployment", "web", json!({})).await;
    world.make_primary(&workload).await;
    let mut copies = vec![copy_read_by(&world, "web-primary").await];
    for settings in ["Mg==", "Mw=="] {
        reading(&world, "web", settings).await;
        world.promote(&workload).await;
        copies.push(copy_read_by(&world, "web-primary").await);
    }
    assert!(!world.exists(Kind::ConfigMap, &copies[0]).await);
    assert!(world.exists(Kind::ConfigMap, &copies[1]).await);
    assert!(world.exists(Kind::ConfigMap, &copies[2]).await);
    assert!(world.exists(Kind::ConfigMap, "settings").await);
}

pub async fn two_primaries_share_no_copy(world: World) {
    reading(&world, "web", "MQ==").await;
    reading(&world, "shop", "MQ==").await;
    let web = world.workload("Deployment", "web", json!({})).await;
    let shop = world.workload("Deployment", "shop", json!({})).await;
    world.make_primary(&web).await;
    world.make_primary(&shop).await;
    assert_ne!(copy_read_by(&world, "web-primary").await, copy_read_by(&world, "shop-primary").await);
}
