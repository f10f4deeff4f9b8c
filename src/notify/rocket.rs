//! Rocket.Chat: an attachment in Slack's format.

use serde_json::{Value, json};

use super::{Destination, Notification, text};
use crate::api::canary::Severity;

pub fn message(notification: &Notification, to: &Destination) -> Value {
    let color = match notification.severity {
        Severity::Info => "#2eb886",
        Severity::Warn => "#daa038",
        Severity::Error => "#a30200",
    };
    let fields = notification.fields().into_iter();
    let mut fields: Vec<Value> =
        fields.map(|(title, value)| json!({"title": title, "value": value, "short": true})).collect();
    if !notification.metrics.is_empty() {
        let table = format!("```\n{}\n```", text::truncate(&text::table(&notification.metrics), 3000));
        fields.push(json!({"title": "Metrics", "value": table, "short": false}));
    }
    let mut message = json!({
        "username": to.username(),
        "icon_emoji": ":rocket:",
        "attachments": [{
            "color": color,
            "author_name": notification.author(),
            "text": format!("{}\n`{}`", text::truncate(&notification.sentence, 3000), text::bar(notification.weight)),
            "mrkdwn_in": ["text"],
            "fields": fields,
        }],
    });
    if let Some(channel) = &to.channel {
        message["channel"] = json!(channel);
    }
    message
}
