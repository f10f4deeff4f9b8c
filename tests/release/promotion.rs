//! Pushes while a revision is promoted, and pods that must carry what is judged.

use serde_json::{Value, json};
use serin::api::canary::Phase;
use serin::api::canary::status::{CanaryStatus, Outcome};

use crate::world::{World, workload};

/// Pods that start slowly: the primary rolls for a while.
const SLOW_START: &str = "web:v2-delay-10s";

fn is_promoted(status: &CanaryStatus) -> bool {
    status.history.iter().any(|past| past.outcome == Outcome::Promoted)
}

/// Pushes a revision that fails every request while the primary rolls.
async fn push_during_the_promotion(world: World, spec: Value, share: u64) {
    let _serin = world.initialized(spec).await;
    let traffic = world.traffic();
    world.push(SLOW_START).await;
    let rolls = async || {
        let promoting = world.status().await.phase == Phase::Promoting;
        promoting && world.image("web-primary").await == SLOW_START
    };
    world.eventually("the primary rolls", rolls).await;
    assert_eq!(world.split().await, Some((share, 100 - share)));
    world.push("web:v3-errors-100").await;
    world.becomes("done with the first", is_promoted).await;
    traffic.assert_all_served();
    assert_eq!(world.image("web-primary").await, SLOW_START);
    world.becomes("busy with the second", |status| status.releases == 2).await;
}

pub async fn a_push_during_a_promotion_serves_nobody(world: World) {
    push_during_the_promotion(world, json!({}), 50).await;
}

pub async fn a_push_during_a_blue_green_promotion_serves_nobody(world: World) {
    let analysis = json!({"interval": "1s", "stepWeights": null, "iterations": 2, "metrics": null});
    push_during_the_promotion(world, json!({ "analysis": analysis }), 100).await;
}

/// An edit of a config restarts no pod: those at rest do not carry it.
pub async fn a_bad_config_is_rolled_back_when_pods_were_kept_at_rest(world: World) {
    world.apply(json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "web"}})).await;
    world.patch("ConfigMap", "web", json!({"data": {"ERROR_RATE": "0"}})).await;
    let mut web = workload("Deployment", "web", "web:v1");
    web["spec"]["template"]["spec"]["containers"][0]["envFrom"] = json!([{"configMapRef": {"name": "web"}}]);
    world.apply(web).await;
    let _serin = world.initialized(json!({})).await;
    world.patch("Deployment", "web", json!({"spec": {"replicas": 2}})).await;
    let ready = async || world.get("Deployment", "web").await["status"]["availableReplicas"] == 2;
    world.eventually("two pods at rest", ready).await;
    let traffic = world.traffic();
    world.patch("ConfigMap", "web", json!({"data": {"ERROR_RATE": "0.5"}})).await;
    let status = world.released(1).await;
    assert_eq!(
        (status.phase, status.history[0].outcome),
        (Phase::Failed, Outcome::RolledBack),
        "{status:#?}"
    );
    let bad = traffic.bad();
    assert!(bad > 0, "the canary read it");
    world.sleep_long().await;
    assert_eq!(traffic.bad(), bad, "the primary did not");
}
