//! Slack: an attachment like Flagger's, and Block Kit above it: weight bar,
//! metric table and why a metric did not pass.
//!
//! The sentence is in the coloured attachment, and with the Canary's name in
//! `text` for push notifications, which show neither. The reason in the sentence
//! and the time, which Slack shows itself, are not repeated. Slack's documented
//! limits: 50 blocks, 3,000 characters in a section, 150 in a header.

use serde_json::{Value, json};

use super::{Destination, Notification, text};
use crate::api::canary::Severity;

/// Default address of bots.
pub const BOT_ADDRESS: &str = "https://slack.com/api/chat.postMessage";

const MAX_SECTION_CHARS: usize = 3000;
const MAX_HEADER_CHARS: usize = 150;

pub fn message(notification: &Notification, to: &Destination) -> Value {
    let color = match notification.severity {
        Severity::Info => "good",
        Severity::Warn => "warning",
        Severity::Error => "danger",
    };
    let sentence = escape(&notification.sentence, MAX_SECTION_CHARS);
    let fallback = format!("{}: {}", notification.author(), notification.sentence);
    let fields = notification.fields().into_iter();
    let fields: Vec<Value> = fields
        .map(|(title, value)| json!({"title": title, "value": escape(&value, 200), "short": true}))
        .collect();
    let mut message = json!({
        "username": to.username(),
        "icon_emoji": ":rocket:",
        "text": escape(&fallback, MAX_SECTION_CHARS),
        "blocks": blocks(notification),
        "attachments": [{
            "color": color,
            "author_name": notification.author(),
            "fallback": text::truncate(&fallback, MAX_SECTION_CHARS),
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

fn blocks(notification: &Notification) -> Vec<Value> {
    let title = format!("{}: {:?}", notification.author(), notification.phase);
    let step = notification.step.as_ref().map(|step| format!("   step {step}")).unwrap_or_default();
    let mut blocks = vec![
        json!({"type": "header", "text": {"type": "plain_text", "text": text::truncate(&title, MAX_HEADER_CHARS)}}),
        section(format!("*Canary traffic*\n`{}`{}", text::bar(notification.weight), escape(&step, 50))),
    ];
    if !notification.metrics.is_empty() {
        const FENCE_CHARS: usize = 8;
        blocks.push(section(format!(
            "```\n{}\n```",
            escape(&text::table(&notification.metrics), MAX_SECTION_CHARS - FENCE_CHARS)
        )));
    }
    let failing = text::failing_metrics(notification);
    if !failing.is_empty() {
        let lines: Vec<String> = failing.iter().map(|line| format!("• {line}")).collect();
        blocks.push(section(escape(&lines.join("\n"), MAX_SECTION_CHARS)));
    }
    blocks
}

fn section(text: String) -> Value {
    json!({"type": "section", "text": {"type": "mrkdwn", "text": text}})
}

/// At most `max` characters, with Slack's three control characters escaped: no
/// text can mention a channel.
fn escape(text: &str, max: usize) -> String {
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
        if length >= max {
            escaped.push('…');
            break;
        }
        if piece.is_empty() { escaped.push(c) } else { escaped.push_str(piece) }
    }
    escaped
}
