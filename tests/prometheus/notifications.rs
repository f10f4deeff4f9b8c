//! Notifications about a release, with the numbers that Prometheus had.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::support::receiver::{ReceivedRequest, Receiver};
use crate::support::slack_rules::check_slack;
use crate::world::World;
use crate::{Stage, initialized};

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
        world.apply(provider).await;
        alerts.push(json!({"name": kind, "providerRef": {"name": kind}}));
    }
    json!(alerts)
}

/// The messages to a kind of receiver, in order.
fn sent(receiver: &Receiver, kind: &str) -> Vec<Value> {
    let to_it = |got: &ReceivedRequest| got.uri.path() == format!("/hook/{kind}");
    receiver.received().iter().filter(|got| to_it(got)).map(ReceivedRequest::json).collect()
}

pub async fn every_chat_is_notified(stage: Arc<Stage>) {
    let world = stage.world().await;
    let receiver = Receiver::start([]).await;
    let analysis = json!({"alerts": alerts(&world, &receiver).await});
    let _serin = initialized(&world, &stage.prometheus, analysis).await;
    let _traffic = world.traffic();
    world.push("web:v2").await;
    world.released(1).await;
    world.push("web:v3-errors-30").await;
    let status = world.released(2).await;
    let past = &status.history[0];
    let end = format!("Revision web:v3-errors-30 is rolled back: {}.", past.reason);
    world
        .eventually("every receiver has the end", async || {
            KINDS.iter().all(|kind| was_notified(&receiver, kind, &end))
        })
        .await;

    let slack = sent(&receiver, "slack");
    slack.iter().for_each(check_slack);
    let about = |sentence: &str| {
        let matches = |message: &&Value| text(&message["attachments"][0]["text"]).contains(sentence);
        slack.iter().find(matches).unwrap_or_else(|| panic!("no message {sentence:?}: {slack:#?}"))
    };
    let begin = about("New revision ");
    // It waits if pods of the target, which was just emptied, are still going.
    let titles = ["Progressing", "Waiting"].map(|phase| format!("web.{}: {phase}", world.namespace));
    let (colour, title) = parts(begin);
    assert!(colour == "#8a8f98" && titles.iter().any(|one| one == title), "{begin:#}");
    assert!(blocks(begin).contains("`░░░░░░░░░░░░░░░░░░░░ 0 %`"), "{begin:#}");
    let step = about("Step 1 of 2");
    assert!(blocks(step).contains("`████░░░░░░░░░░░░░░░░ 20 %`   step 1/2"), "{step:#}");
    let promoted = about("is promoted and serves all traffic");
    assert_eq!(parts(promoted), ("good", format!("web.{}: promoted", world.namespace).as_str()));
    assert_eq!(row(promoted, "request-success-rate"), ["pass", "100", "%", "100", "%"]);
    assert!(row(promoted, "request-duration").ends_with(&["ms".to_owned()]), "{promoted:#}");

    let rolled_back = slack.last().expect("a message");
    assert_eq!(parts(rolled_back), ("danger", format!("web.{}: rolled back", world.namespace).as_str()));
    assert_eq!(text(&rolled_back["attachments"][0]["text"]), escaped(&end));
    assert_eq!(text(&rolled_back["text"]), format!("web.{}: {}", world.namespace, escaped(&end)));
    let errors = row(rolled_back, "request-success-rate");
    let good: f64 = errors[1].parse().expect("a number");
    // How many of a few requests failed is chance, but it is what was measured.
    let measured = status.metrics.iter().find(|metric| metric.name == "request-success-rate");
    let measured = measured.and_then(|metric| metric.canary).expect("a success rate");
    assert!(errors[0] == "fail" && good < 99.0 && errors[3..] == ["100", "%"], "{errors:?}");
    assert!((good - measured).abs() < 0.001, "{good} was sent, and {measured} measured");
    assert!(!blocks(rolled_back).contains("errors ("), "the reason appears once: {rolled_back:#}");

    let last = |kind: &str| {
        let all = sent(&receiver, kind);
        assert_eq!(all.len(), slack.len(), "{kind} gets as many messages as Slack");
        all.into_iter().next_back().expect("a message")
    };
    let card = &last("msteams")["attachments"][0]["content"]["body"];
    assert_eq!((text(&card[0]["color"]), text(&card[1]["text"])), ("Attention", end.as_str()));
    let embed = &last("discord")["embeds"][0];
    assert!(text(&embed["description"]).starts_with(&end) && embed["color"] == 0xa3_02_00, "{embed:#}");
    let rocket = &last("rocket")["attachments"][0];
    assert!(text(&rocket["text"]).starts_with(&end) && rocket["color"] == "#a30200", "{rocket:#}");
    let google = &last("gchat")["cardsV2"][0]["card"]["sections"][0]["widgets"][0]["textParagraph"];
    assert_eq!(text(&google["text"]), escaped(&end));
    let event = last("webhook");
    assert_eq!(
        (&event["type"], &event["data"]["sentence"]),
        (&json!("dev.serin.canary.RolledBack"), &json!(end))
    );
    let metric = &event["data"]["metrics"][0];
    assert!(
        metric["verdict"] == "Fail" && metric["canary"].as_f64() < metric["primary"].as_f64(),
        "{event:#}"
    );
}

/// Is this the last message?
fn was_notified(receiver: &Receiver, kind: &str, sentence: &str) -> bool {
    let last = sent(receiver, kind).last().map(Value::to_string).unwrap_or_default();
    last.contains(sentence) || last.contains(&escaped(sentence))
}

/// Colour and title of a message to Slack.
fn parts(message: &Value) -> (&str, &str) {
    (text(&message["attachments"][0]["color"]), text(&message["blocks"][0]["text"]["text"]))
}

/// All sections of a message to Slack.
fn blocks(message: &Value) -> String {
    let blocks = message["blocks"].as_array().expect("blocks");
    blocks.iter().map(|block| text(&block["text"]["text"])).collect::<Vec<_>>().join("\n")
}

/// The row of a metric in the table of a message to Slack.
fn row(message: &Value, metric: &str) -> Vec<String> {
    let blocks = blocks(message);
    let row = blocks.lines().find_map(|line| line.strip_prefix(metric));
    let row = row.unwrap_or_else(|| panic!("no row of {metric}: {blocks}"));
    row.split_whitespace().map(str::to_owned).collect()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("{value} is no text"))
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
