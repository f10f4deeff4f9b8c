//! Several replicas of the controller on one cluster.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};
use serin::api::Canary;
use serin::api::canary::{CanaryStatus, Phase};
use tokio::time::sleep;

use crate::world::{World, workload};

/// Waits until each replica holds this many shards.
async fn await_fair_shares(world: &World, fair: &[(&str, usize)]) {
    let fair: BTreeMap<String, usize> =
        fair.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect();
    let what = format!("the shares become {fair:?}");
    let shares = async || {
        let mut shares = BTreeMap::new();
        for holder in world.holders().await {
            *shares.entry(holder).or_default() += 1;
        }
        shares == fair
    };
    world.eventually(&what, shares).await;
}

/// Workloads beside `web`, each with a Canary.
pub const OTHERS: [&str; 6] = ["api", "cart", "mail", "pay", "search", "stock"];

pub async fn others(world: &World) {
    let analysis = json!({"interval": "10s", "threshold": 2, "stepWeights": [20, 50]});
    others_by(world, "smi:v1alpha2", &analysis).await;
}

async fn others_by(world: &World, provider: &str, analysis: &Value) {
    for name in OTHERS {
        world.apply(workload("Deployment", name, &format!("{name}:v1"))).await;
        world
            .apply(json!({
                "apiVersion": "serin.dev/v1alpha1", "kind": "Canary", "metadata": {"name": name},
                "spec": {
                    "provider": provider,
                    "targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": name},
                    "service": {"port": 80, "targetPort": 8080},
                    "analysis": analysis,
                },
            }))
            .await;
    }
}

pub async fn push(world: &World, name: &str) {
    let containers = json!([{"name": "web", "image": format!("{name}:v2")}]);
    let patch = json!({"spec": {"template": {"spec": {"containers": containers}}}});
    let deployments: Api<Deployment> = Api::namespaced(world.client.clone(), &world.namespace);
    deployments.patch(name, &PatchParams::default(), &Patch::Strategic(patch)).await.expect("a push");
}

pub async fn status(world: &World, name: &str) -> CanaryStatus {
    let canaries: Api<Canary> = Api::namespaced(world.client.clone(), &world.namespace);
    canaries.get(name).await.expect("a Canary").status.unwrap_or_default()
}

pub async fn reach(world: &World, phase: Phase) {
    for name in OTHERS {
        let what = format!("{name} reaches {phase:?}");
        world.eventually(&what, async || status(world, name).await.phase == phase).await;
    }
}

#[tokio::test(start_paused = true)]
async fn shards_move_during_releases() {
    let world = World::new().await;
    world.canary(json!({})).await;
    others(&world).await;
    let first = world.replica("first", 16);
    await_fair_shares(&world, &[("first", 16)]).await;
    reach(&world, Phase::Initialized).await;
    for name in OTHERS {
        push(&world, name).await;
    }
    sleep(Duration::from_secs(3)).await;
    let second = world.replica("second", 16);
    await_fair_shares(&world, &[("first", 8), ("second", 8)]).await;
    let _third = world.replica("third", 16);
    await_fair_shares(&world, &[("first", 6), ("second", 5), ("third", 5)]).await;
    drop(first);
    await_fair_shares(&world, &[("second", 8), ("third", 8)]).await;
    second.end().await;
    await_fair_shares(&world, &[("third", 16)]).await;
    reach(&world, Phase::Succeeded).await;
    for name in OTHERS {
        let status = status(&world, name).await;
        assert_eq!((status.history.len(), status.releases), (1, 1), "{name}");
        assert_eq!(world.image(&format!("{name}-primary")).await, format!("{name}:v2"));
    }
}

#[tokio::test(start_paused = true)]
async fn an_uninstalled_mesh_does_not_block_other_canaries_when_shards_move() {
    let world = World::new().await;
    world.canary(json!({})).await;
    others_by(&world, "kubernetes", &json!({"interval": "10s", "threshold": 2, "iterations": 2})).await;
    let _stays = world.replica("stays", 16);
    world.reaches(Phase::Initialized).await;
    reach(&world, Phase::Initialized).await;
    let goes = world.replica("goes", 16);
    await_fair_shares(&world, &[("goes", 8), ("stays", 8)]).await;
    let definitions: Api<CustomResourceDefinition> = Api::all(world.client.clone());
    let splits = "trafficsplits.split.smi-spec.io";
    definitions.delete(splits, &DeleteParams::default()).await.expect("a mesh to uninstall");
    drop(goes);
    await_fair_shares(&world, &[("stays", 16)]).await;
    for name in OTHERS {
        push(&world, name).await;
    }
    reach(&world, Phase::Succeeded).await;
}

#[tokio::test(start_paused = true)]
async fn an_idle_replica_only_renews_its_leases() {
    let world = World::new().await;
    world.canary(json!({})).await;
    let _first = world.replica("first", 16);
    world.reaches(Phase::Initialized).await;
    let _second = world.replica("second", 16);
    await_fair_shares(&world, &[("first", 8), ("second", 8)]).await;
    sleep(Duration::from_secs(30)).await;
    let before = world.requests().len();
    sleep(Duration::from_secs(60)).await;
    let requests = world.requests().split_off(before);
    let lease = "PATCH /apis/coordination.k8s.io/v1/namespaces/default/leases/";
    assert!(requests.iter().all(|request| request.starts_with(lease)), "{requests:#?}");
    assert!((22..=24).contains(&requests.len()), "{requests:#?}");
}

#[tokio::test(start_paused = true)]
async fn a_replica_with_another_shard_count_reports_it_and_exits() {
    let world = World::new().await;
    world.canary(json!({})).await;
    let _first = world.replica("first", 16);
    world.reaches(Phase::Initialized).await;
    let (_, run) = world.run_replica("second", 8);
    let refused = run.await.expect_err("it must not work").to_string();
    assert!(refused.contains("into 16 shards and this one into 8"), "{refused}");
    assert!(refused.contains("--shards"), "{refused}");
    await_fair_shares(&world, &[("first", 16)]).await;
}
