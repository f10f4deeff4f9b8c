//! Releases of Canaries with the provider xds through real Envoys, with real requests.
//!
//! On `kube_local`, where Envoys get the addresses of EndpointSlices, and on the real
//! kube-apiserver, which takes no loopback addresses into one: there a source of endpoints
//! of the tests gives the addresses at which the pods listen.

#[allow(dead_code, reason = "the suite of Istio measures more")]
#[path = "../istio/callers.rs"]
mod callers;
mod envoy;
mod processes;
mod stage;
#[path = "../support/mod.rs"]
mod support;
#[path = "../world/mod.rs"]
mod world;

use std::time::Duration;

use kube::api::{Api, Patch, PatchParams};
use serde_json::json;
use serin::api::canary::{Phase, status::Outcome};
use serin::api::{MeshRoute, Weight};
use serin::engine::command::Verb;
use tokio::time::{Instant, sleep};

use callers::Callers;
use envoy::Envoy;
use stage::Stage;

/// So many requests at each weight, with this deviation in points. Envoy draws each request by
/// itself: of 20,000 at 50 %, every sixth lot is further off though the weight is right, and
/// of ten lots one in a hundred thousand is. So further lots are added to one that is off.
const REQUESTS: usize = 20_000;
const MAX_LOTS: usize = 10;
const MAX_SHARE_ERROR: f64 = 0.5;

/// The share of the canary among requests from now on, in percent, and how many there were.
async fn measured_share(callers: &[Callers; 2], asked: f64) -> (f64, usize) {
    let (mut by_canary, mut all) = (0, 0);
    for _ in 0..MAX_LOTS {
        let (one, other) = tokio::join!(callers[0].next(REQUESTS / 2), callers[1].next(REQUESTS / 2));
        let answers = [one, other].concat();
        by_canary += answers.iter().filter(|answer| answer.by_canary == Ok(true)).count();
        all += answers.len();
        if (100.0 * by_canary as f64 / all as f64 - asked).abs() <= MAX_SHARE_ERROR {
            break;
        }
    }
    (100.0 * by_canary as f64 / all as f64, all)
}

/// Requests follow the weights; one revision is promoted, the next is aborted; the control
/// plane restarts in between. No request fails.
async fn a_release_is_promoted_and_another_aborted(stage: Stage) {
    let world = stage.world.clone();
    let step = |weight: f64| json!({"name": format!("at {weight}"), "weight": weight, "approval": {}});
    let steps: Vec<_> = [0.5, 5.0, 20.0, 50.0].map(step).into();
    world
        .canary(
            json!({"provider": "xds", "analysis": {"stepWeights": null, "steps": steps, "metrics": null}}),
        )
        .await;
    let mut serin = Some(stage.serin().await);
    world.reaches(Phase::Initialized).await;
    let envoys = [Envoy::start(&stage, "edge-1").await, Envoy::start(&stage, "edge-2").await];
    let callers = [Callers::start(&envoys[0].url()), Callers::start(&envoys[1].url())];
    world
        .eventually("both answer", async || {
            let answers = async |callers: &Callers| {
                callers.next(20).await.iter().all(|answer| answer.by_canary == Ok(false))
            };
            answers(&callers[0]).await && answers(&callers[1]).await
        })
        .await;

    let began = Instant::now();
    world.push("web:v2").await;
    for weight in [0.5, 5.0, 20.0, 50.0] {
        world.event_contains(&format!("at {weight}")).await;
        let asked = Weight::from_percent(weight).expect("a weight");
        world.becomes("at its weight", |status| status.canary_weight == asked).await;
        stage.in_force().await;
        let (share, requests) = measured_share(&callers, weight).await;
        println!("{weight} %: {share:.2} % of {requests} requests were answered by the canary");
        assert!((share - weight).abs() <= MAX_SHARE_ERROR, "{weight} % was asked for, {share} % measured");
        if weight == 5.0 {
            drop(serin.take());
            sleep(Duration::from_secs(2)).await;
            serin = Some(stage.serin().await);
        }
        stage.approve().await;
    }
    world.released(1).await;
    assert_eq!(world.status().await.history[0].outcome, Outcome::Promoted);

    world.push("web:v3").await;
    world.event_contains("at 5").await;
    stage.approve().await;
    let five = Weight::from_percent(5.0).expect("a weight");
    world.becomes("at 5 %", |status| status.canary_weight == five).await;
    world.command(Verb::Abort).await;
    world.released(2).await;
    assert_eq!(world.status().await.history[0].outcome, Outcome::Aborted);
    sleep(Duration::from_secs(1)).await;

    let all: Vec<_> = callers.iter().flat_map(|callers| callers.since(began)).collect();
    let failed: Vec<String> = all.iter().filter_map(|answer| answer.by_canary.clone().err()).collect();
    println!("{} of {} requests failed", failed.len(), all.len());
    assert_eq!(failed, [] as [String; 0], "{}\n{}", envoys[0].tail(), envoys[1].tail());
}

/// A condition that Envoy cannot compile.
async fn a_route_that_the_proxies_refuse_is_rolled_back_in_their_words(stage: Stage) {
    let world = stage.world.clone();
    let condition = json!([{"headers": {"x-team": {"regex": "(unclosed"}}}]);
    world
        .canary(json!({
            "provider": "xds",
            "analysis": {"stepWeights": null, "steps": [{"match": condition}], "metrics": null},
        }))
        .await;
    let _serin = stage.serin().await;
    world.reaches(Phase::Initialized).await;
    let envoy = Envoy::start(&stage, "edge-3").await;
    let callers = Callers::start(&envoy.url());
    world
        .eventually("it answers", async || {
            callers.next(20).await.iter().all(|answer| answer.by_canary == Ok(false))
        })
        .await;
    let began = Instant::now();
    world.push("web:v2").await;
    world.released(1).await;
    let status = world.status().await;
    let past = &status.history[0];
    assert_eq!(past.outcome, Outcome::RolledBack);
    for part in ["1 of 1 proxies refused the MeshRoute", "edge-3", "unclosed"] {
        assert!(past.reason.contains(part), "{part} in {}", past.reason);
    }
    // The route without the condition is in force again.
    stage.in_force().await;
    let answers = callers.since(began);
    assert!(
        answers.iter().all(|answer| answer.by_canary == Ok(false)),
        "nobody reached the canary, or an error"
    );
}

/// Each replica reports its own proxies, and those of one that is gone are removed.
async fn what_a_replica_that_is_gone_reported_is_removed(stage: Stage) {
    let world = stage.world.clone();
    world.canary(json!({"provider": "xds", "analysis": {"stepWeights": [50], "metrics": null}})).await;
    let _serin = stage.serin().await;
    world.reaches(Phase::Initialized).await;
    let routes: Api<MeshRoute> = Api::namespaced(world.client.clone(), &world.namespace);
    let gone = json!({
        "apiVersion": "serin.dev/v1alpha1", "kind": "MeshRoute", "metadata": {"name": "web"},
        "status": {"replicas": [{"name": "gone", "generation": 1, "proxies": 2, "acknowledged": 1}]},
    });
    let params = PatchParams::apply("serin-xds-gone").force();
    routes.patch_status("web", &params, &Patch::Apply(gone)).await.expect("a status");
    let _envoys = [Envoy::start(&stage, "edge-4").await, Envoy::start(&stage, "edge-5").await];
    world
        .eventually("its proxies are those of this replica", async || {
            let status = routes.get_status("web").await.expect("a MeshRoute").status.unwrap_or_default();
            let replicas: Vec<_> = status
                .replicas
                .iter()
                .map(|one| (one.name.as_str(), one.proxies, one.acknowledged))
                .collect();
            replicas == [("serin-0", 2, 2)]
        })
        .await;
}

macro_rules! scenarios {
    ($($scenario:ident)*) => {
        mod local {
            $(
                #[tokio::test(flavor = "multi_thread")]
                async fn $scenario() {
                    crate::$scenario(crate::Stage::local().await).await
                }
            )*
        }
        mod real {
            $(
                #[tokio::test(flavor = "multi_thread")]
                async fn $scenario() {
                    crate::$scenario(crate::Stage::real().await).await
                }
            )*
        }
    };
}

scenarios! {
    a_release_is_promoted_and_another_aborted
    a_route_that_the_proxies_refuse_is_rolled_back_in_their_words
    what_a_replica_that_is_gone_reported_is_removed
}
