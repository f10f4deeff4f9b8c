//! `kube_local` with its objects in a file that is opened again.

use std::path::PathBuf;

use futures::TryStreamExt as _;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{
    Api, ApiResource, DeleteParams, DynamicObject, ListParams, PostParams, WatchEvent, WatchParams,
};
use kube::core::GroupVersionKind;
use kube::{Client, ResourceExt as _};
use kube_local::{ApiServer, Options, durable::OpenError, random_seed};
use serde_json::json;

/// A file of its own, removed when dropped.
struct File(PathBuf);

impl File {
    fn new(name: &str) -> Self {
        let file = std::env::temp_dir().join(format!("kube-local-{name}-{}.redb", std::process::id()));
        let _ = std::fs::remove_file(&file);
        Self(file)
    }

    /// The server before may hold the file for a moment, until its thread has ended.
    fn open(&self) -> ApiServer {
        loop {
            match ApiServer::open(&self.0, Options { seed: random_seed(), ..Options::default() }) {
                Ok(server) => return server,
                Err(OpenError::InUse { .. }) => std::thread::yield_now(),
                Err(error) => panic!("{error}"),
            }
        }
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn definition() -> CustomResourceDefinition {
    serde_json::from_value(json!({
        "metadata": {"name": "birds.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced", "names": {"kind": "Bird", "plural": "birds"},
            "versions": [{"name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": {"type": "object",
                    "properties": {"song": {"type": "string"}}}}}}}],
        },
    }))
    .expect("a definition")
}

fn birds(client: &Client) -> Api<DynamicObject> {
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("example.com", "v1", "Bird"));
    Api::default_namespaced_with(client.clone(), &kind)
}

fn config_map(name: &str) -> ConfigMap {
    serde_json::from_value(json!({"metadata": {"name": name}, "data": {"key": "value"}}))
        .expect("a ConfigMap")
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_and_kinds_are_there_again() {
    let file = File::new("again");
    let (uid, version, kept);
    {
        let server = file.open();
        let client = server.client();
        let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
        definitions.create(&PostParams::default(), &definition()).await.expect("a definition");
        let bird = json!({"apiVersion": "example.com/v1", "kind": "Bird", "metadata": {"name": "serin"},
            "spec": {"song": "trill"}});
        let bird = serde_json::from_value(bird).expect("a bird");
        birds(&client).create(&PostParams::default(), &bird).await.expect("a bird");
        let maps: Api<ConfigMap> = Api::default_namespaced(client);
        maps.create(&PostParams::default(), &config_map("gone")).await.expect("a ConfigMap");
        kept = maps.create(&PostParams::default(), &config_map("kept")).await.expect("a ConfigMap");
        maps.delete("gone", &DeleteParams::default()).await.expect("it is deleted");
        let list = maps.list(&ListParams::default()).await.expect("a list");
        version = list.metadata.resource_version.expect("a version").parse::<u64>().expect("a number");
        uid = kept.uid();
    }
    let server = file.open();
    let client = server.client();
    let bird = birds(&client).get("serin").await.expect("its kind is served");
    assert_eq!(bird.data["spec"]["song"], "trill");
    let maps: Api<ConfigMap> = Api::default_namespaced(client.clone());
    let names: Vec<String> = maps
        .list(&ListParams::default())
        .await
        .expect("a list")
        .items
        .iter()
        .map(|one| one.name_any())
        .collect();
    assert_eq!(names, ["kept"]);
    let again = maps.get("kept").await.expect("a ConfigMap");
    assert_eq!((again.uid(), again.resource_version()), (uid, kept.resource_version()));

    let new = maps.create(&PostParams::default(), &config_map("new")).await.expect("a ConfigMap");
    let next = new.resource_version().and_then(|version| version.parse::<u64>().ok());
    assert!(next > Some(version), "versions go on: {next:?} after {version}");
    assert_ne!(new.uid(), again.uid(), "another process gives other uids");

    // A watch from before has to list again; one from the present goes on.
    let watched = async |version: &str| {
        let events = maps.watch(&WatchParams::default(), version).await.expect("a watch");
        futures::pin_mut!(events);
        events.try_next().await.expect("an event").expect("an event")
    };
    let before = kept.resource_version().expect("a version");
    assert!(matches!(watched(&before).await, WatchEvent::Error(status) if status.code == 410));
    let present = version.to_string();
    assert!(matches!(watched(&present).await, WatchEvent::Added(object) if object.name_any() == "new"));
}

#[tokio::test]
async fn a_file_has_one_user_at_a_time() {
    let file = File::new("one-user");
    let _first = file.open();
    let second = ApiServer::open(&file.0, Options::default());
    assert!(matches!(second, Err(OpenError::InUse { .. })));
}

#[tokio::test]
async fn another_file_is_not_overwritten() {
    let file = File::new("foreign");
    std::fs::write(&file.0, "not a database".repeat(1000)).expect("it is written");
    let opened = ApiServer::open(&file.0, Options::default());
    assert!(matches!(opened, Err(OpenError::Open { .. })));
    assert!(std::fs::read_to_string(&file.0).expect("a text").starts_with("not a database"));
}
