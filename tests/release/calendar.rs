//! When releases may happen.

use serde_json::{Value, json};
use serin::api::Weight;
use serin::api::canary::Phase;
use serin::api::canary::status::Outcome;
use serin::engine::command::Verb;

use crate::world::World;

/// Every minute, for a minute.
fn frozen() -> Value {
    json!({"releaseWindows": [{"kind": "freeze", "cron": "* * * * *", "duration": "1m"}]})
}

pub async fn a_freeze_blocks_releases_and_not_rollbacks(world: World) {
    let mut spec = json!({"analysis": {"interval": "3s", "metrics": null}});
    json_patch::merge(&mut spec, &frozen());
    let _serin = world.initialized(spec).await;
    let (traffic, weights) = (world.traffic(), world.weights().await);
    world.push("web:v2").await;
    world.event_contains("Holding: a release freeze is on").await;
    world.sleep_long().await;
    assert_eq!((world.status().await.phase, world.replicas("web").await), (Phase::Waiting, 0));

    world.edit(json!({"releaseWindows": null})).await;
    world.becomes("under way", |status| status.canary_weight > Weight::ZERO).await;
    world.edit(frozen()).await;
    world.sleep_long().await;
    assert_eq!(world.status().await.phase, Phase::Progressing);
    weights.assert_sequence(&[0, 20]).await;

    world.command(Verb::Abort).await;
    let status = world.released(1).await;
    assert_eq!((status.phase, status.history[0].outcome), (Phase::Failed, Outcome::Aborted));
    weights.assert_sequence(&[0, 20, 0]).await;
    assert_eq!((world.image("web-primary").await.as_str(), world.replicas("web").await), ("web:v1", 0));
    traffic.assert_all_served();
}

pub async fn a_bad_revision_is_rolled_back_in_a_freeze(world: World) {
    let _serin = world.initialized(json!({})).await;
    let _traffic = world.traffic();
    world.push("web:v2-errors-50").await;
    world.becomes("under way", |status| status.canary_weight > Weight::ZERO).await;
    world.edit(frozen()).await;
    let status = world.released(1).await;
    assert_eq!((status.phase, status.history[0].outcome), (Phase::Failed, Outcome::RolledBack));
    assert_eq!(world.split().await, Some((0, 100)));
}
