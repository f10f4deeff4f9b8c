//! Several controllers on one cluster, all of them at work.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::apps::v1::Deployment;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::json;
use serin::api::Canary;
use serin::api::Weight;
use serin::api::canary::Phase;
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
    let web = world.deployment("web").await;
    let canary = world.api::<Canary>().get("web").await.expect("a Canary");
    for name in OTHERS {
        let renamed = |value: serde_json::Value| {
            let mut value =
                serde_json::to_string(&value).expect("JSON").replace("\"web\"", &format!("{name:?}"));
            value = value.replace("web:v1", &format!("{name}:v1"));
            serde_json::from_str::<serde_json::Value>(&value).expect("JSON")
        };
        let metadata = json!({"name": name});
        let object = json!({"metadata": metadata, "spec": renamed(json!(web.spec))});
        let object: Deployment = serde_json::from_value(object).expect("a Deployment");
        world.api().create(&PostParams::default(), &object).await.expect("a Deployment");
        let object = Canary::new(name, serde_json::from_value(renamed(json!(canary.spec))).expect("a spec"));
        world.api().create(&PostParams::default(), &object).await.expect("a Canary");
    }
}

async fn reach(world: &World, phase: Phase) {
    for name in OTHERS {
        for waited in 0.. {
            let status = world.api::<Canary>().get(name).await.expect("a Canary").status.unwrap_or_default();
            if status.phase == phase {
                break;
            }
            assert!(waited < 9000, "{name} never reaches {phase:?}: {status:#?}");
            sleep(Duration::from_millis(100)).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn another_replica_takes_over_a_release_under_way() {
    for gently in [true, false] {
        let world = World::new().await;
        world.canary(json!({})).await;
        let first = world.replica("first", 1);
        world.reaches(Phase::Initialized).await;
        let _second = world.replica("second", 1);
        let _traffic = world.traffic();
        world.push("web:v2").await;
        world.becomes("under way", |status| status.canary_weight > Weight::ZERO).await;
        assert_eq!(world.holders().await, ["first"]);
        match gently {
            true => first.end().await,
            false => drop(first),
        }
        let status = world.reaches(Phase::Succeeded).await;
        assert_eq!(world.holders().await, ["second"]);
        assert_eq!((status.history.len(), status.releases), (1, 1));
        assert_eq!(world.image("web-primary").await, "web:v2");
    }
}

#[tokio::test(start_paused = true)]
async fn shards_move_while_releases_are_under_way() {
    let world = World::new().await;
    world.canary(json!({"skipAnalysis": false, "analysis": {"metrics": []}})).await;
    others(&world).await;
    let first = world.replica("first", 16);
    become_fair(&world, &[("first", 16)]).await;
    reach(&world, Phase::Initialized).await;
    for name in OTHERS {
        let image = json!({"spec": {"template": {"spec": {"containers": [{"name": name, "image": format!("{name}:v2")}]}}}});
        let api = world.api::<Deployment>();
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
        let status = world.api::<Canary>().get(name).await.expect("a Canary").status.unwrap_or_default();
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
