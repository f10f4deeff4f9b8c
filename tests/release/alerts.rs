//! Alerts to chats, by severity.

use serde_json::{Value, json};
use serin::api::canary::Phase;

use crate::support::receiver::Receiver;
use crate::world::World;

/// The messages of a chat, as text.
fn read(chat: &Receiver) -> Vec<String> {
    let text = |message: Value| {
        let attachment = &message["attachments"][0];
        assert_eq!(message["channel"], "releases");
        attachment["text"].as_str().unwrap_or_else(|| panic!("no text in {message:#}")).to_owned()
    };
    chat.received().iter().map(|got| text(got.json())).collect()
}

pub async fn alerts_are_filtered_by_severity(world: World) {
    let (all, grave) = (world.receiver([]).await, world.receiver([]).await);
    for (name, chat) in [("all", &all), ("grave", &grave)] {
        let secret = json!({"address": chat.url});
        let meta = json!({"name": name});
        world
            .apply(json!({"apiVersion": "v1", "kind": "Secret", "metadata": meta, "stringData": secret}))
            .await;
        let spec = json!({"type": "slack", "channel": "releases", "secretRef": {"name": name}});
        world
            .apply(json!({
                "apiVersion": "serin.dev/v1alpha1", "kind": "AlertProvider", "metadata": meta, "spec": spec,
            }))
            .await;
    }
    let alerts = json!([
        {"name": "without a severity", "providerRef": {"name": "all"}},
        {"name": "errors only", "severity": "error", "providerRef": {"name": "grave"}},
    ]);
    let _serin = world.initialized(json!({"analysis": {"alerts": alerts}})).await;
    let _traffic = world.traffic();
    world.push("web:v2").await;
    assert_eq!(world.released(1).await.phase, Phase::Succeeded);
    for expected in ["the pod template changed", "Step 1 of 2", "Step 2 of 2", "is promoted"] {
        world.eventually(expected, async || read(&all).iter().any(|text| text.contains(expected))).await;
    }
    assert_eq!(read(&grave), [] as [String; 0], "nothing was grave");
    world.push("web:v3-errors-50").await;
    assert_eq!(world.released(2).await.phase, Phase::Failed);
    let rolled_back = |chat: &Receiver| {
        let expected =
            |text: &String| text.contains("is rolled back") && text.contains("request-success-rate");
        read(chat).iter().any(expected)
    };
    world.eventually("both know", async || rolled_back(&all) && rolled_back(&grave)).await;
    assert_eq!(read(&grave).len(), 1, "{:#?}", read(&grave));
}
