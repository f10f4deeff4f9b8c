//! Discord: an embed. An embed may hold 6,000 characters in all, a
//! description 4,096, the value of a field 1,024.

use serde_json::{Value, json};

use super::{Destination, Notification, Tone, text};

pub fn message(notification: &Notification, to: &Destination) -> Value {
    let color = match notification.tone() {
        Tone::Question => 0x4a_7f_d6,
        Tone::Progress => 0x8a_8f_98,
        Tone::Success => 0x2e_b8_86,
        Tone::Warning => 0xda_a0_38,
        Tone::Failure => 0xa3_02_00,
    };
    let fields = notification.fields().into_iter().chain(notification.question_fields());
    let mut fields: Vec<Value> = fields
        .map(|(title, value)| json!({"name": title, "value": text::truncate(&value, 200), "inline": true}))
        .collect();
    let links = notification.links().into_iter().filter(|(_, url)| url.len() <= 500);
    let links: Vec<String> = links.map(|(title, url)| format!("[{title}]({url})")).collect();
    if !notification.metrics.is_empty() {
        let table = format!("```\n{}\n```", text::truncate(&text::table(&notification.metrics), 1000));
        fields.push(json!({"name": "Metrics", "value": table, "inline": false}));
    }
    for link in links {
        fields.push(json!({"name": "\u{200b}", "value": link, "inline": true}));
    }
    json!({
        "username": text::truncate(to.username(), 80),
        // Texts must not mention users.
        "allowed_mentions": {"parse": []},
        "embeds": [{
            "author": {"name": text::truncate(&notification.headline(), 256)},
            "description": format!("{}\n`{}`", text::truncate(&notification.sentence, 2000), text::bar(notification.share())),
            "color": color,
            "fields": fields,
            "timestamp": notification.at.to_string(),
        }],
    })
}
