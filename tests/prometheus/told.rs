//! Chats and programs are told how a release goes, with the numbers that
//! Prometheus had.

use std::sync::Arc;

use kube::api::PostParams;
use serde_json::{Value, json};
use serin::api::AlertProvider;
use serin::api::canary::Phase;

use crate::Stage;
use crate::support::receiver::{Got, Receiver};
use crate::support::slack_rules::check_slack;
use crate::world::World;

const KINDS: [&str; 6] = ["slack", "msteams", "discord", "rocket", "gchat", "webhook"];

/// One AlertProvider of each kind, all at one receiver, and the alerts that
/// name them.
async fn alerts(world: &World, receiver: &Receiver) -> Value {
    let mut alerts = Vec::new();
    for kind in KINDS {
        let provider = json!({
            "apiVersion": "serin.dev/v1alpha1", "kind": "AlertProvider", "metadata": {"name": kind},
            "spec": {"type": kind, "channel": "releases", "address": format!("{}/{kind}", receiver.url)},
        });
        let provider: AlertProvider = serde_json::from_value(provider).expect("an AlertProvider");
        let created = world.api::<AlertProvider>().create(&PostParams::default(), &provider).await;
        created.expect("the AlertProvider is accepted");
        alerts.push(json!({"name": kind, "providerRef": {"name": kind}}));
    }
    json!(alerts)
}

/// What was sent to a kind of receiver, in its order.
fn sent(receiver: &Receiver, kind: &str) -> Vec<Value> {
    let to_it = |got: &Got| got.uri.path() == format!("/hook/{kind}");
    receiver.got().iter().filter(|got| to_it(got)).map(Got::json).collect()
}

pub async fn every_chat_is_told(stage: Arc<Stage>) {
    let world = stage.world().await;
    let receiver = Receiver::start([]).await;
    let analysis = json!({"alerts": alerts(&world, &receiver).await});
    let _serin = crate::initialize(&world, &stage.prometheus, analysis).await;
    let _traffic = world.traffic();
    world.push("web:v2").await;
    world.reaches(Phase::Succeeded).await;
    world.push("web:v3-errors-30").await;
    let status = world.reaches(Phase::Failed).await;
    let reason = &status.history[0].reason;
    assert!(reason.contains("request-success-rate failed (canary "), "{reason}");

    let ends = |kind: &str| {
        sent(&receiver, kind).iter().any(|message| message.to_string().contains("is rolled back"))
    };
    while !KINDS.iter().all(|kind| ends(kind)) {
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    let slack = sent(&receiver, "slack");
    slack.iter().for_each(check_slack);
    for message in &slack {
        println!("{}", serde_json::to_string_pretty(message).unwrap());
    }
    for kind in &KINDS[1..] {
        println!("{kind}: {}", serde_json::to_string_pretty(sent(&receiver, kind).last().unwrap()).unwrap());
    }
}
