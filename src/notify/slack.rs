//! Slack: Block Kit with headline, weight bar, metric table and why a metric did not pass,
//! and an attachment like Flagger's with the sentence. A question has the command that
//! answers it, and buttons where clicks reach the controller.
//!
//! The sentence is in the coloured attachment, and with the Canary's name in
//! `text` for push notifications, which show neither. The reason in the sentence
//! and the time, which Slack shows itself, are not repeated. Slack's documented
//! limits: 50 blocks, 3,000 characters in a section, 150 in a header, 75 on a button,
//! 2,000 in its value, 3,000 in its URL.
//!
//! A bot posts the message of a release once ([`message`]), updates it ([`update`]) and adds
//! a line to its thread ([`reply`]). A line about a question or the end of a release is
//! shown in the channel too: an update notifies nobody.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{AnswerLinks, Destination, Notification, Tone, text, thread::Thread};

/// Of Slack's Web API, which bots post to.
pub const POST_METHOD: &str = "chat.postMessage";
/// Default address of bots.
pub const BOT_ADDRESS: &str = "https://slack.com/api/chat.postMessage";

/// `action_id` of the buttons.
pub const APPROVE: &str = "serin_approve";
pub const REJECT: &str = "serin_reject";

const MAX_SECTION_CHARS: usize = 3000;
const MAX_HEADER_CHARS: usize = 150;
const MAX_VALUE_CHARS: usize = 2000;
const MAX_URL_CHARS: usize = 3000;

/// Value of a button: the question that a click answers, so that a click on an old message
/// answers no later one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ButtonValue {
    pub namespace: String,
    pub name: String,
    pub uid: Option<String>,
    pub release: u64,
    pub gate: String,
    pub step: Option<u32>,
}

pub fn message(notification: &Notification, to: &Destination) -> Value {
    let mut message = content(notification);
    if !to.is_bot() || to.username.is_some() {
        message["username"] = json!(to.username());
        message["icon_emoji"] = json!(icon(notification.tone()));
    }
    if let Some(channel) = &to.channel {
        message["channel"] = json!(channel);
    }
    message
}

/// For `chat.update`: as [`message`], in place of the earlier one.
pub fn update(notification: &Notification, thread: &Thread) -> Value {
    let mut message = content(notification);
    message["channel"] = json!(thread.channel);
    message["ts"] = json!(thread.ts);
    message
}

/// For `chat.postMessage`: a line below the message of the release.
pub fn reply(notification: &Notification, thread: &Thread) -> Value {
    let broadcast = match notification.tone() {
        Tone::Question | Tone::Success | Tone::Failure => true,
        Tone::Progress | Tone::Warning => false,
    };
    let line = format!("{} {}", mark(notification.tone()), notification.sentence);
    json!({
        "channel": thread.channel,
        "thread_ts": thread.ts,
        "reply_broadcast": broadcast,
        "text": escape(&line, MAX_SECTION_CHARS),
    })
}

fn content(notification: &Notification) -> Value {
    let sentence = escape(&notification.sentence, MAX_SECTION_CHARS);
    let fallback = format!("{}: {}", notification.author(), notification.sentence);
    let fields = notification.fields().into_iter();
    let fields: Vec<Value> = fields
        .map(|(title, value)| json!({"title": title, "value": escape(&value, 200), "short": true}))
        .collect();
    json!({
        "text": escape(&fallback, MAX_SECTION_CHARS),
        "blocks": blocks(notification),
        "attachments": [{
            "color": color(notification.tone()),
            "author_name": notification.author(),
            "fallback": text::truncate(&fallback, MAX_SECTION_CHARS),
            "text": sentence,
            "mrkdwn_in": ["text"],
            "fields": fields,
        }],
    })
}

fn color(tone: Tone) -> &'static str {
    match tone {
        Tone::Question => "#4a7fd6",
        Tone::Progress => "#8a8f98",
        Tone::Success => "good",
        Tone::Warning => "warning",
        Tone::Failure => "danger",
    }
}

fn icon(tone: Tone) -> &'static str {
    match tone {
        Tone::Question => ":raising_hand:",
        Tone::Progress => ":bird:",
        Tone::Success => ":white_check_mark:",
        Tone::Warning => ":warning:",
        Tone::Failure => ":rewind:",
    }
}

/// In a line of text, where colours are not.
fn mark(tone: Tone) -> &'static str {
    match tone {
        Tone::Progress => "•",
        Tone::Question | Tone::Success | Tone::Warning | Tone::Failure => icon(tone),
    }
}

fn blocks(notification: &Notification) -> Vec<Value> {
    let title = text::truncate(&notification.headline(), MAX_HEADER_CHARS);
    let step = notification.step.as_ref().map(|step| format!("   step {step}")).unwrap_or_default();
    let mut blocks = vec![
        json!({"type": "header", "text": {"type": "plain_text", "text": title}}),
        section(format!("*Canary traffic*\n`{}`{}", text::bar(notification.share()), escape(&step, 50))),
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
    blocks.extend(question(notification));
    let places: Vec<String> = [
        notification.cluster.as_ref().map(|cluster| format!("Cluster {}", escape(cluster, 200))),
        notification.link.as_ref().filter(|link| is_linkable(link)).map(|link| format!("<{link}|Dashboard>")),
    ]
    .into_iter()
    .flatten()
    .collect();
    if !places.is_empty() {
        let text = json!({"type": "mrkdwn", "text": places.join("  ·  ")});
        blocks.push(json!({"type": "context", "elements": [text]}));
    }
    blocks
}

/// The verdict, the command, and the buttons.
fn question(notification: &Notification) -> Vec<Value> {
    let Some(approval) = &notification.approval else { return Vec::new() };
    let verdict = escape(&text::summary(&notification.metrics), 500);
    let command = escape(&approval.command, 2000);
    let mut blocks = vec![section(format!("*Verdict* {verdict}\nApprove with `{command}`"))];
    let value = ButtonValue {
        namespace: notification.namespace.clone(),
        name: notification.name.clone(),
        uid: notification.uid.clone(),
        release: notification.release,
        gate: approval.gate.clone(),
        step: approval.step_index,
    };
    let value = json!(value).to_string();
    let buttons = match &approval.links {
        _ if approval.buttons && value.chars().count() <= MAX_VALUE_CHARS => {
            let button = |(action, label, style)| {
                json!({
                    "type": "button", "action_id": action, "style": style, "value": value,
                    "text": {"type": "plain_text", "text": label},
                })
            };
            [(APPROVE, "Approve", "primary"), (REJECT, "Reject", "danger")].map(button)
        }
        Some(AnswerLinks { approve_url, reject_url })
            if approve_url.len().max(reject_url.len()) <= MAX_URL_CHARS =>
        {
            let button = |(action, label, url): (&str, &str, &String)| {
                json!({
                    "type": "button", "action_id": action, "url": url,
                    "text": {"type": "plain_text", "text": label},
                })
            };
            [("serin_open_approve", "Approve…", approve_url), ("serin_open_reject", "Reject…", reject_url)]
                .map(button)
        }
        _ => return blocks,
    };
    blocks.push(json!({"type": "actions", "block_id": "serin_answer", "elements": buttons}));
    blocks
}

fn section(text: String) -> Value {
    json!({"type": "section", "text": {"type": "mrkdwn", "text": text}})
}

/// Can stand between `<` and `|`.
fn is_linkable(url: &str) -> bool {
    url.len() <= MAX_URL_CHARS && !url.contains(['<', '>', '|', ' ', '\n'])
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
