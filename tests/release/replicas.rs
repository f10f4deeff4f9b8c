//! Several controllers on one cluster, all of them at work.

use std::collections::BTreeMap;
use std::time::Duration;

use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use serin::api::canary::{CanaryStatus, Phase};
use tokio::time::sleep;

use crate::world::World;

/// How many shards each replica holds.
async fn shares(world: &World) -> BTreeMap<String, usize> {
    let mut shares = BTreeMap::new();
    for holder in world.holders().await {
        *shares.entry(holder).or_default() += 1;
    }
    shares
}

async fn become_fair(world: &World, fair: &[(&str, usize)]) {
    let fair = fair.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect();
    for _ in 0..600 {
        if shares(world).await == fair {
            return;
        }
        sleep(Duration::from_millis(100)).await;
    }
    panic!("the shares stay {:?}", shares(world).await);
}

const OTHERS: [&str; 6] = ["api", "cart", "mail", "pay", "search", "stock"];

/// Workloads beside `web`, each with a Canary.
async fn others(world: &World) {
    for kind in ["Deployment", "Canary"] {
        let web = world.get(kind, "web").await;
        for name in OTHERS {
            let spec = web["spec"].to_string();
            let spec = spec.replace("\"web\"", &format!("{name:?}")).replace("web:", &format!("{name}:"));
            let spec: Value = serde_json::from_str(&spec).expect("JSON");
            let group = web["apiVersion"].clone();
            world
                .apply(json!({"apiVersion": group, "kind": kind, "metadata": {"name": name}, "spec": spec}))
                .await;
        }
    }
}

async fn status_of(world: &World, name: &str) -> CanaryStatus {
    let status = world.get("Canary", name).await["status"].take();
    serde_json::from_value::<Option<_>>(status).expect("a status").unwrap_or_default()
}

async fn reach(world: &World, phase: Phase) {
    for name in OTHERS {
        let reached = async || status_of(world, name).await.phase == phase;
        world.eventually(&format!("{name} reaches {phase:?}"), reached).await;
    }
}

#[tokio::test(start_paused = true)]
async fn shards_move_while_releases_are_under_way() {
    let world = World::new().await;
    world.canary(json!({"analysis": {"interval": "30s", "metrics": []}})).await;
    others(&world).await;
    let first = world.replica("first", 16);
    become_fair(&world, &[("first", 16)]).await;
    reach(&world, Phase::Initialized).await;
    for name in OTHERS {
        let containers = json!([{"name": name, "image": format!("{name}:v2")}]);
        let image = json!({"spec": {"template": {"spec": {"containers": containers}}}});
        let api = world.objects("Deployment");
        api.patch(name, &PatchParams::default(), &Patch::Strategic(image)).await.expect("a push");
    }
    sleep(Duration::from_secs(3)).await;
    let second = world.replica("second", 16);
    become_fair(&world, &[("first", 8), ("second", 8)]).await;
    let _third = world.replica("third", 16);
    become_fair(&world, &[("first", 6), ("second", 5), ("third", 5)]).await;
    drop(first);
    become_fair(&world, &[("second", 8), ("third", 8)]).await;
    second.end().await;
    become_fair(&world, &[("third", 16)]).await;
    reach(&world, Phase::Succeeded).await;
    for name in OTHERS {
        let status = status_of(&world, name).await;
        assert_eq!((status.history.len(), status.releases), (1, 1), "{name}");
        assert_eq!(world.image(&format!("{name}-primary")).await, format!("{name}:v2"));
    }
}

#[tokio::test(start_paused = true)]
async fn at_rest_a_replica_sends_nothing_but_renewals() {
    let world = World::new().await;
    world.canary(json!({})).await;
    let _first = world.replica("first", 16);
    world.reaches(Phase::Initialized).await;
    let _second = world.replica("second", 16);
    become_fair(&world, &[("first", 8), ("second", 8)]).await;
    sleep(Duration::from_secs(30)).await;
    let before = world.requests().len();
    sleep(Duration::from_secs(60)).await;
    let requests = world.requests().split_off(before);
    let lease = "PATCH /apis/coordination.k8s.io/v1/namespaces/default/leases/";
    assert!(requests.iter().all(|request| request.starts_with(lease)), "{requests:#?}");
    assert!((22..=24).contains(&requests.len()), "{requests:#?}");
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_counts_shards_differently_says_so_and_ends() {
    let world = World::new().await;
    world.canary(json!({})).await;
    let _first = world.replica("first", 16);
    world.reaches(Phase::Initialized).await;
    let (_, run) = world.run_replica("second", 8);
    let refused = run.await.expect_err("it must not work").to_string();
    assert!(refused.contains("into 16 shards and this one into 8"), "{refused}");
    assert!(refused.contains("--shards"), "{refused}");
    become_fair(&world, &[("first", 16)]).await;
}
