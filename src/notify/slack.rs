//! Slack: an attachment like Flagger's, for whoever reads those already, and
//! Block Kit above it: weight bar, metric table and why a metric did not pass.
//!
//! The sentence is in the coloured attachment, and with the Canary's name in
//! `text` for the notification on a phone, which shows neither. Nothing is said
//! twice: not the reason that the sentence gives, nor the time, which Slack
//! shows itself. Limits are those that Slack documents: 50 blocks, 3,000
//! characters in a section, 150 in a header.

use serde_json::{Value, json};

use super::{Destination, Notice, text};
use crate::api::canary::Severity;

/// Where a bot writes to if nobody says otherwise.
pub const BOT_ADDRESS: &str = "https://slack.com/api/chat.postMessage";

const SECTION: usize = 3000;
const HEADER: usize = 150;

pub fn message(notice: &Notice, to: &Destination) -> Value {
    let color = match notice.severity {
        Severity::Info => "good",
        Severity::Warn => "warning",
        Severity::Error => "danger",
    };
    let sentence = escape(&notice.sentence, SECTION);
    let spoken = format!("{}: {}", notice.author(), notice.sentence);
    let fields = notice.facts().into_iter();
    let fields: Vec<Value> = fields
        .map(|(title, value)| json!({"title": title, "value": escape(&value, 200), "short": true}))
        .collect();
    let mut message = json!({
        "username": to.username(),
        "icon_emoji": ":rocket:",
        "text": escape(&spoken, SECTION),
        "blocks": blocks(notice),
        "attachments": [{
            "color": color,
            "author_name": notice.author(),
            "fallback": text::cut(&spoken, SECTION),
            "text": sentence,
            "mrkdwn_in": ["text"],
            "fields": fields,
        }],
    });
    if let Some(channel) = &to.channel {
        message["channel"] = json!(channel);
    }
    message
}

fn blocks(notice: &Notice) -> Vec<Value> {
    let title = format!("{}: {:?}", notice.author(), notice.phase);
    let step = notice.step.as_ref().map(|step| format!("   step {step}")).unwrap_or_default();
    let mut blocks = vec![
        json!({"type": "header", "text": {"type": "plain_text", "text": text::cut(&title, HEADER)}}),
        section(format!("*Canary traffic*\n`{}`{}", text::bar(notice.weight), escape(&step, 50))),
    ];
    if !notice.metrics.is_empty() {
        const FENCES: usize = 8;
        blocks
            .push(section(format!("```\n{}\n```", escape(&text::table(&notice.metrics), SECTION - FENCES))));
    }
    let troubles = text::troubles(notice);
    if !troubles.is_empty() {
        let lines: Vec<String> = troubles.iter().map(|line| format!("• {line}")).collect();
        blocks.push(section(escape(&lines.join("\n"), SECTION)));
    }
    blocks
}

fn section(text: String) -> Value {
    json!({"type": "section", "text": {"type": "mrkdwn", "text": text}})
}

/// At most so many characters, with the three that Slack takes for markup of
/// its own escaped: no text can ring the bell of a whole channel.
fn escape(text: &str, most: usize) -> String {
    let mut escaped = String::new();
    let mut length = 0;
    for c in text.chars() {
        let piece = match c {
            '&' => "&amp;",
            '<' => "&lt;",
            '>' => "&gt;",
            _ => "",
        };
        length += piece.len().max(1);
        if length >= most {
            escaped.push('…');
            break;
        }
        if piece.is_empty() { escaped.push(c) } else { escaped.push_str(piece) }
    }
    escaped
}
