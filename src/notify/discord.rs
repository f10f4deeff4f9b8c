//! Discord: an embed. An embed may hold 6,000 characters in all, a
//! description 4,096, the value of a field 1,024.

use serde_json::{Value, json};

use super::{Destination, Notification, text};
use crate::api::canary::Severity;

pub fn message(notification: &Notification, to: &Destination) -> Value {
    let color = match notification.severity {
        Severity::Info => 0x2e_b8_86,
        Severity::Warn => 0xda_a0_38,
        Severity::Error => 0xa3_02_00,
    };
    let fields = notification.fields().into_iter();
    let mut fields: Vec<Value> = fields
        .map(|(title, value)| json!({"name": title, "value": text::truncate(&value, 200), "inline": true}))
        .collect();
    if !notification.metrics.is_empty() {
        let table = format!("```\n{}\n```", text::truncate(&text::table(&notification.metrics), 1000));
        fields.push(json!({"name": "Metrics", "value": table, "inline": false}));
    }
    json!({
        "username": text::truncate(to.username(), 80),
        // Texts must not mention users.
        "allowed_mentions": {"parse": []},
        "embeds": [{
            "author": {"name": text::truncate(&notification.author(), 256)},
            "description": format!("{}\n`{}`", text::truncate(&notification.sentence, 3000), text::bar(notification.weight)),
            "color": color,
            "fields": fields,
            "timestamp": notification.at.to_string(),
        }],
    })
}
