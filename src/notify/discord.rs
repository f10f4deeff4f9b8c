//! Discord: an embed. An embed may hold 6,000 characters in all, a
//! description 4,096, the value of a field 1,024.

use serde_json::{Value, json};

use super::{Destination, Notice, text};
use crate::api::canary::Severity;

pub fn message(notice: &Notice, to: &Destination) -> Value {
    let color = match notice.severity {
        Severity::Info => 0x2e_b8_86,
        Severity::Warn => 0xda_a0_38,
        Severity::Error => 0xa3_02_00,
    };
    let fields = notice.facts().into_iter();
    let mut fields: Vec<Value> = fields
        .map(|(title, value)| json!({"name": title, "value": text::cut(&value, 200), "inline": true}))
        .collect();
    if !notice.metrics.is_empty() {
        let table = format!("```\n{}\n```", text::cut(&text::table(&notice.metrics), 1000));
        fields.push(json!({"name": "Metrics", "value": table, "inline": false}));
    }
    json!({
        "username": text::cut(to.username(), 80),
        // Names in a sentence must not ring anybody's bell.
        "allowed_mentions": {"parse": []},
        "embeds": [{
            "author": {"name": text::cut(&notice.author(), 256)},
            "description": format!("{}\n`{}`", text::cut(&notice.sentence, 3000), text::bar(notice.weight)),
            "color": color,
            "fields": fields,
            "timestamp": notice.at.to_string(),
        }],
    })
}
