//! Microsoft Teams: an Adaptive Card, which workflows and the older incoming
//! webhooks both accept.

use serde_json::{Value, json};

use super::{Notification, Tone, text};

pub fn message(notification: &Notification) -> Value {
    let color = match notification.tone() {
        Tone::Question => "Accent",
        Tone::Progress => "Default",
        Tone::Success => "Good",
        Tone::Warning => "Warning",
        Tone::Failure => "Attention",
    };
    let facts: Vec<Value> = notification
        .fields()
        .into_iter()
        .chain(notification.question_fields())
        .map(|(title, value)| json!({"title": title, "value": value}))
        .collect();
    let mut body = vec![
        block(
            json!({"text": text::truncate(&notification.headline(), 300), "weight": "Bolder", "size": "Medium", "color": color}),
        ),
        block(json!({"text": text::truncate(&notification.sentence, 3000)})),
        block(json!({"text": text::bar(notification.share()), "fontType": "Monospace"})),
        json!({"type": "FactSet", "facts": facts}),
    ];
    for metric in &notification.metrics {
        let line = format!("{} ({}): {}", metric.name, text::verdict(metric.verdict), metric.reason);
        body.push(block(json!({"text": text::truncate(&line, 300), "isSubtle": true, "spacing": "Small"})));
    }
    // Cards of more than 28 KB are refused.
    body.truncate(40);
    let links = notification.links().into_iter().filter(|(_, url)| url.len() <= text::MAX_URL);
    let actions: Vec<Value> =
        links.map(|(title, url)| json!({"type": "Action.OpenUrl", "title": title, "url": url})).collect();
    json!({
        "type": "message",
        "attachments": [{
            "contentType": "application/vnd.microsoft.card.adaptive",
            "contentUrl": null,
            "content": {
                "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
                "type": "AdaptiveCard",
                "version": "1.4",
                "body": body,
                "actions": actions,
            },
        }],
    })
}

fn block(mut block: Value) -> Value {
    block["type"] = json!("TextBlock");
    block["wrap"] = json!(true);
    block
}
