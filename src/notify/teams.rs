//! Microsoft Teams: an Adaptive Card, which workflows and the older incoming
//! webhooks both accept.

use serde_json::{Value, json};

use super::{Notification, text};
use crate::api::canary::Severity;

pub fn message(notification: &Notification) -> Value {
    let color = match notification.severity {
        Severity::Info => "Good",
        Severity::Warn => "Warning",
        Severity::Error => "Attention",
    };
    let facts: Vec<Value> = notification
        .fields()
        .into_iter()
        .map(|(title, value)| json!({"title": title, "value": value}))
        .collect();
    let mut body = vec![
        block(json!({"text": notification.author(), "weight": "Bolder", "size": "Medium", "color": color})),
        block(json!({"text": text::truncate(&notification.sentence, 3000)})),
        block(json!({"text": text::bar(notification.weight), "fontType": "Monospace"})),
        json!({"type": "FactSet", "facts": facts}),
    ];
    for metric in &notification.metrics {
        let line = format!("{} ({}): {}", metric.name, text::verdict(metric.verdict), metric.reason);
        body.push(block(json!({"text": text::truncate(&line, 300), "isSubtle": true, "spacing": "Small"})));
    }
    // Cards of more than 28 KB are refused.
    body.truncate(40);
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
            },
        }],
    })
}

fn block(mut block: Value) -> Value {
    block["type"] = json!("TextBlock");
    block["wrap"] = json!(true);
    block
}
