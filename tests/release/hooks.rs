//! Who is asked on the way of a release, over real HTTP, and by annotation.

use serde_json::json;
use serin::api::Weight;
use serin::api::canary::{CanaryStatus, Phase};
use serin::gates::annotations::{APPROVALS, COMMANDS};

use crate::world::World;

pub async fn people_approve_and_abort_by_annotation(world: World) {
    let steps = json!([{"weight": 10}, {"name": "qa", "approval": {}}, {"weight": 50}]);
    let _serin = world.initialized(json!({"analysis": {"stepWeights": null, "steps": steps}})).await;
    let _traffic = world.traffic();
    world.push("web:v2").await;
    let waits = |status: &CanaryStatus| status.gates.iter().any(|gate| gate.name == "qa");
    world.becomes("at the approval", waits).await;
    world.a_long_time().await;
    assert_eq!(world.split().await, Some((10, 90)));
    let approval = json!([{
        "release": 1, "gate": "qa", "step": 1, "answer": "yes", "by": "ada", "at": world.clock.now(),
    }]);
    world.annotate(APPROVALS, approval).await;
    let status = world.released(1).await;
    let by = status.gates.iter().find(|gate| gate.name == "qa").and_then(|gate| gate.by.as_deref());
    assert_eq!((by, world.image("web-primary").await.as_str()), (Some("ada"), "web:v2"));

    world.push("web:v3").await;
    world.becomes("under way", |status| status.canary_weight > Weight::ZERO).await;
    world.annotate(COMMANDS, json!([{"id": "1", "verb": "abort", "by": "ada"}])).await;
    let status = world.released(2).await;
    assert_eq!(status.phase, Phase::Failed);
    assert!(status.last_command.is_some_and(|command| command.obeyed && command.id == "1"));
    assert_eq!(world.image("web-primary").await, "web:v2");
}
