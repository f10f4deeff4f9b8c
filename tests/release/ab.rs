//! A/B testing: exactly the requests that match a condition go to the canary.

use std::time::Duration;

use serde_json::{Value, json};
use serin::api::canary::Phase;
use tokio::time::sleep;

use crate::support::receiver::endless_refusals;
use crate::world::World;

pub async fn requests_are_matched_by_header(world: World) {
    let insiders = json!([{"headers": {"x-canary": {"exact": "insider"}}}]);
    assert_matched_requests_reach_the_canary(
        world,
        insiders,
        ("x-canary", "insider"),
        ("x-canary", "insiders"),
    )
    .await;
}

pub async fn requests_are_matched_by_cookie(world: World) {
    let insiders = json!([{"headers": {"cookie": {"regex": "^(.*?;)?(canary=always)(;.*)?$"}}}]);
    assert_matched_requests_reach_the_canary(
        world,
        insiders,
        ("cookie", "a=b;canary=always;c=d"),
        ("cookie", "a=b;canary=never"),
    )
    .await;
}

async fn assert_matched_requests_reach_the_canary(
    world: World,
    matches: Value,
    insider: (&'static str, &str),
    outsider: (&'static str, &str),
) {
    let go_live = world.receiver(endless_refusals()).await;
    let after = world.receiver([]).await;
    let analysis = json!({
        "interval": "1s", "stepWeights": null, "iterations": 2, "match": matches,
        "webhooks": [
            {"name": "go-live", "type": "confirm-promotion", "url": go_live.url},
            {"name": "after", "type": "post-rollout", "url": after.url},
        ],
    });
    let _serin = world.initialized(json!({"provider": "smi:v1alpha3", "analysis": analysis})).await;
    let (insiders, outsiders) = (world.callers(&[insider]), world.callers(&[outsider]));
    let everybody = world.traffic();
    world.push("web:v2").await;
    world.reaches(Phase::WaitingPromotion).await;
    let before = insiders.served_by("v1");
    sleep(Duration::from_secs(1)).await;
    assert!(insiders.served_by("v2") > 0);
    assert_eq!(insiders.served_by("v1"), before, "insiders get the canary and nothing else");
    for others in [&outsiders, &everybody] {
        assert_eq!(others.served_by("v2"), 0, "others do not");
    }
    world.event_contains("the canary has 0 % of the traffic and the matched requests.").await;

    go_live.set_responses([]);
    assert_eq!(world.released(1).await.phase, Phase::Succeeded);
    assert!(world.get("TrafficSplit", "web").await["spec"]["matches"].is_null());
    assert_eq!((world.split().await, world.image("web-primary").await.as_str()), (Some((0, 100)), "web:v2"));
    assert_eq!(after.received().len(), 1);
    assert_eq!(after.received()[0].json()["phase"], "Succeeded");
    let old = [&outsiders, &everybody].map(|others| others.served_by("v1"));
    sleep(Duration::from_secs(1)).await;
    assert_eq!([&outsiders, &everybody].map(|others| others.served_by("v1")), old, "now all get it");
    for callers in [&insiders, &outsiders, &everybody] {
        callers.assert_all_served();
    }
}
