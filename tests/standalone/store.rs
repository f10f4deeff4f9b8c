//! The objects survive SIGKILL at any moment.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams};
use kube::{Client, ResourceExt as _};
use kube_local::seeded_rng::SeededRng;
use parking_lot::Mutex;
use serde_json::json;
use tokio::time::sleep;

use crate::stage::Stage;
use crate::support::spawn;

const KILLS: usize = 20;
const WRITERS: usize = 8;

/// What the server acknowledged, by name: the version of the object; 0 once deleted. A write
/// without an answer may or may not have happened, so its object is left out.
type Acknowledged = Arc<Mutex<BTreeMap<String, u64>>>;

fn version(object: &ConfigMap) -> u64 {
    object.resource_version().and_then(|version| version.parse().ok()).expect("a version")
}

/// Writes, overwrites and deletes objects of its own until the server is gone.
async fn write(client: Client, writer: usize, round: usize, acknowledged: Acknowledged) {
    let objects: Api<ConfigMap> = Api::default_namespaced(client);
    let random = SeededRng::seeded((writer * 1000 + round) as u64);
    for count in 0.. {
        let name = format!("w{writer}-{}", random.next_u64() % 20);
        acknowledged.lock().remove(&name);
        let done = if random.next_u64().is_multiple_of(5) {
            match objects.delete(&name, &DeleteParams::default()).await {
                Ok(_) => Ok(0),
                Err(kube::Error::Api(status)) if status.code == 404 => Ok(0),
                Err(error) => Err(error),
            }
        } else {
            // Half a write would have two halves that differ.
            let half = format!("{round}/{count}/{}", "x".repeat((random.next_u64() % 5000) as usize));
            let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"one": half, "two": half}});
            let params = PatchParams::apply("test").force();
            objects.patch(&name, &params, &Patch::Apply(object)).await.map(|written| version(&written))
        };
        match done {
            Ok(version) => _ = acknowledged.lock().insert(name, version),
            Err(_) => return,
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn acknowledged_writes_survive_kills_at_random_moments() {
    let mut stage = Stage::new(&[]);
    let (acknowledged, random) = (Acknowledged::default(), SeededRng::seeded(4));
    let (mut newest, mut writes) = (0, 0);
    for round in 0..=KILLS {
        stage.start();
        let client = stage.client().await;
        let objects: Api<ConfigMap> = Api::default_namespaced(client.clone());
        let list = objects.list(&ListParams::default()).await.expect("a list");
        let listed = list.metadata.resource_version.as_ref().and_then(|version| version.parse::<u64>().ok());
        assert!(listed >= Some(newest), "versions go on: {listed:?} after {newest}");
        let found: BTreeMap<String, &ConfigMap> =
            list.items.iter().map(|one| (one.name_any(), one)).collect();
        for (name, expected) in acknowledged.lock().iter() {
            match found.get(name) {
                None => assert_eq!(*expected, 0, "{name} is lost, which was written at {expected}"),
                Some(object) => assert_eq!(version(object), *expected, "{name}, round {round}"),
            }
        }
        for object in found.values().filter(|object| object.name_any().starts_with('w')) {
            let data = object.data.as_ref().expect("data");
            assert_eq!(data["one"], data["two"], "{} is half written", object.name_any());
        }
        let work: Vec<_> = (0..WRITERS)
            .map(|writer| spawn(write(client.clone(), writer, round, Arc::clone(&acknowledged))))
            .collect();
        sleep(Duration::from_millis(20 + random.next_u64() % 400)).await;
        stage.kill();
        for writer in work {
            let _ = writer.await;
        }
        newest = acknowledged.lock().values().copied().max().unwrap_or_default().max(newest);
        writes += acknowledged.lock().len();
    }
    println!("{writes} objects compared, the last version is {newest}");
    assert!(newest > 1000 && writes > 10 * KILLS, "too few writes were acknowledged to tell anything");
}
