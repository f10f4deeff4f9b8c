//! The inventory of the running controller, fed by its reflectors.

use std::time::Duration;

use kube::api::{Api, DeleteParams, ListParams};
use kube_local::faults::FaultPlan;
use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::TestRunner;
use serde_json::{Value, json};
use serin::controller::{InventoryMode, InventoryOptions, InventoryResources, Options};
use serin::discovery::kubernetes::{ListRequest, list};
use serin::discovery::live::LiveInventory;
use serin::discovery::model::Inventory;
use serin::discovery::watch::watch;

use super::CLUSTER;
use super::world::{World, spawn, workload};

pub fn always(resources: InventoryResources) -> Options {
    let inventory = InventoryOptions { mode: InventoryMode::Always, resources, mesh_apis: false };
    Options { inventory, ..Options::default() }
}

/// Everything that a reader sees.
fn views(inventory: &Inventory) -> Value {
    let workloads: Vec<_> = inventory.workloads().collect();
    let services: Vec<_> = inventory.services().collect();
    json!({"meshes": inventory.meshes(), "workloads": workloads, "services": services})
}

async fn fresh_views(world: &World) -> Value {
    let request = ListRequest { cluster: CLUSTER, namespace: None, all_pods: true };
    let listing = list(&world.client, request).await.unwrap_or_else(|error| panic!("{error}"));
    assert!(listing.unread.is_empty(), "{:?}", listing.unread);
    views(&listing.inventory)
}

#[tokio::test(start_paused = true)]
async fn the_live_inventory_is_the_one_that_a_listing_shows() {
    let world = World::new().await;
    world.apply(workload("Deployment", "web", "web:v1")).await;
    world.canary(json!({"analysis": {"metrics": null}})).await;
    let live = LiveInventory::new(CLUSTER);
    let _serin = world.serin_feeding(live.clone(), always(InventoryResources::None)).await;
    live.ready().await.expect("an inventory");
    world.sleep_long().await;
    assert_eq!(live.read(views), fresh_views(&world).await);
    assert!(live.unread().is_empty(), "{:?}", live.unread());
}

/// Reflectors that ran before the inventory was wanted have projected what it needs.
#[tokio::test(start_paused = true)]
async fn kinds_that_were_watched_before_are_listed_again() {
    let world = World::new().await;
    let live = LiveInventory::new(CLUSTER);
    world.canary(json!({})).await;
    let _serin = world.serin_feeding(live.clone(), Options::default()).await;
    world.reaches(serin::api::canary::Phase::Initialized).await;
    assert!(live.read(Inventory::is_empty), "nobody wanted it");
    live.ready().await.expect("an inventory");
    world.sleep_long().await;
    assert_eq!(live.read(views), fresh_views(&world).await);
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Put { slot: usize, variant: u8 },
    Delete { slot: usize },
    DeletePods,
    Wait(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0..5_usize, 0..3_u8).prop_map(|(slot, variant)| Step::Put { slot, variant }),
        2 => (0..5_usize).prop_map(|slot| Step::Delete { slot }),
        1 => Just(Step::DeletePods),
        2 => (0..5_u64).prop_map(Step::Wait),
    ];
    proptest::collection::vec(step, 5..25)
}

fn manifest(slot: usize, variant: u8) -> Value {
    let proof = ["sidecar.istio.io/status", "linkerd.io/proxy-version", "none"][usize::from(variant)];
    match slot {
        0 | 1 => {
            let mut web = workload("Deployment", ["web", "api"][slot], "web:v1");
            web["spec"]["replicas"] = json!(variant);
            web["spec"]["template"]["metadata"]["annotations"] = json!({proof: "{}"});
            web
        }
        2 | 3 => {
            let selected = ["web", "api", "web"][usize::from(variant)];
            let mut service = workload("Service", ["web", "api"][slot - 2], "");
            service["spec"]["selector"] = json!({ "app": selected });
            service
        }
        _ => {
            let service = ["web", "api", "other"][usize::from(variant)];
            json!({
                "apiVersion": "split.smi-spec.io/v1alpha4", "kind": "TrafficSplit",
                "metadata": {"name": "split"},
                "spec": {"service": service, "backends": [{"service": "web", "weight": 1}]},
            })
        }
    }
}

async fn perform(world: &World, step: Step) {
    match step {
        Step::Put { slot, variant } => world.apply(manifest(slot, variant)).await,
        Step::Delete { slot } => {
            let gone = manifest(slot, 0);
            let name = gone["metadata"]["name"].as_str().expect("a name");
            let api = world.objects(gone["kind"].as_str().expect("a kind"));
            let _ = api.delete(name, &DeleteParams::background()).await;
        }
        Step::DeletePods => {
            let pods: Api<k8s_openapi::api::core::v1::Pod> =
                Api::namespaced(world.client.clone(), &world.namespace);
            let _ = pods.delete_collection(&DeleteParams::default(), &ListParams::default()).await;
        }
        Step::Wait(seconds) => tokio::time::sleep(Duration::from_secs(seconds)).await,
    }
}

/// Watches that break, expire and lag, requests that fail: relists, duplicates and losses
/// on the way of the events, not made up behind it.
#[tokio::test(start_paused = true)]
async fn whatever_the_watches_do_the_inventory_ends_as_a_fresh_listing() {
    let mut runner = TestRunner::deterministic();
    for seed in 0..12 {
        let steps = steps().new_tree(&mut runner).expect("steps").current();
        let world = World::with(kube_local::Options { seed, ..kube_local::Options::default() }).await;
        let live = LiveInventory::new(CLUSTER);
        let _serin = world.serin_feeding(live.clone(), always(InventoryResources::None)).await;
        world.set_faults(FaultPlan {
            watch_dropped: 0.1,
            watch_expired: 0.1,
            watch_delayed: 0.3,
            error_before: 0.1,
            latency: Duration::from_secs(3),
            ..FaultPlan::default()
        });
        for step in &steps {
            perform(&world, *step).await;
        }
        world.set_faults(FaultPlan::default());
        tokio::time::sleep(Duration::from_secs(300)).await;
        assert_eq!(live.read(views), fresh_views(&world).await, "seed {seed}: {steps:?}");
    }
}

/// `serin inventory --watch` has watches of its own.
#[tokio::test(start_paused = true)]
async fn a_command_that_watches_sees_what_a_listing_shows() {
    let world = World::new().await;
    world.apply(workload("Deployment", "web", "web:v1")).await;
    let (live, client) = (LiveInventory::new(CLUSTER), world.client.clone());
    let fed = live.clone();
    let _feed = spawn(async move { watch(&client, &fed).await.expect("the served kinds") });
    world.sleep_long().await;
    assert_eq!(live.read(views), fresh_views(&world).await);
    world.delete("Deployment", "web").await;
    world.sleep_long().await;
    assert_eq!(live.read(views), fresh_views(&world).await);
    assert_eq!(live.read(|inventory| inventory.workloads().count()), 0);
}
