//! A/B testing: whoever a condition names gets the canary, nobody else does.

use std::time::Duration;

use serde_json::{Value, json};
use serin::api::canary::Phase;
use tokio::time::sleep;

use crate::support::receiver::noes;
use crate::world::World;

pub async fn by_header(world: World) {
    let insiders = json!([{"headers": {"x-canary": {"exact": "insider"}}}]);
    tells_apart(world, insiders, ("x-canary", "insider"), ("x-canary", "insiders")).await;
}

pub async fn by_cookie(world: World) {
    let insiders = json!([{"headers": {"cookie": {"regex": "^(.*?;)?(canary=always)(;.*)?$"}}}]);
    tells_apart(world, insiders, ("cookie", "a=b;canary=always;c=d"), ("cookie", "a=b;canary=never")).await;
}

async fn tells_apart(
    world: World,
    matches: Value,
    insider: (&'static str, &str),
    outsider: (&'static str, &str),
) {
    let go_live = world.receiver(noes()).await;
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
    let before = insiders.answers_of("v1");
    sleep(Duration::from_secs(1)).await;
    assert!(insiders.answers_of("v2") > 0);
    assert_eq!(insiders.answers_of("v1"), before, "insiders get the canary and nothing else");
    for others in [&outsiders, &everybody] {
        assert_eq!(others.answers_of("v2"), 0, "others do not");
    }
    world.is_told("the canary has 0 % of the traffic and the matched requests.").await;

    go_live.turn([]);
    assert_eq!(world.released(1).await.phase, Phase::Succeeded);
    assert!(world.get("TrafficSplit", "web").await["spec"]["matches"].is_null());
    assert_eq!((world.split().await, world.image("web-primary").await.as_str()), (Some((0, 100)), "web:v2"));
    assert_eq!(after.got().len(), 1);
    assert_eq!(after.got()[0].json()["phase"], "Succeeded");
    let old = [&outsiders, &everybody].map(|others| others.answers_of("v1"));
    sleep(Duration::from_secs(1)).await;
    assert_eq!([&outsiders, &everybody].map(|others| others.answers_of("v1")), old, "now all get it");
    for callers in [&insiders, &outsiders, &everybody] {
        callers.was_served_well();
    }
}
