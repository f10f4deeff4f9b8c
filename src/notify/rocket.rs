//! Rocket.Chat: an attachment in Slack's format.

use serde_json::{Value, json};

use super::{Destination, Notification, Tone, text};

pub fn message(notification: &Notification, to: &Destination) -> Value {
    let (color, icon) = match notification.tone() {
        Tone::Question => ("#4a7fd6", ":raising_hand:"),
        Tone::Progress => ("#8a8f98", ":bird:"),
        Tone::Success => ("#2eb886", ":white_check_mark:"),
        Tone::Warning => ("#daa038", ":warning:"),
        Tone::Failure => ("#a30200", ":rewind:"),
    };
    let fields = notification.fields().into_iter().chain(notification.question_fields());
    let mut fields: Vec<Value> = fields
        .map(|(title, value)| json!({"title": title, "value": text::truncate(&value, 500), "short": true}))
        .collect();
    let links = notification.links().into_iter().filter(|(_, url)| url.len() <= text::MAX_URL);
    fields.extend(links.map(|(title, url)| json!({"title": title, "value": url, "short": false})));
    if !notification.metrics.is_empty() {
        let table = format!("```\n{}\n```", text::truncate(&text::table(&notification.metrics), 3000));
        fields.push(json!({"title": "Metrics", "value": table, "short": false}));
    }
    let mut message = json!({
        "username": to.username(),
        "icon_emoji": icon,
        "attachments": [{
            "color": color,
            "author_name": text::truncate(&notification.headline(), 300),
            "text": format!("{}\n`{}`", text::truncate(&notification.sentence, 3000), text::bar(notification.share())),
            "mrkdwn_in": ["text"],
            "fields": fields,
        }],
    });
    if let Some(channel) = &to.channel {
        message["channel"] = json!(channel);
    }
    message
}
