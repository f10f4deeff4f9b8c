//! Google Chat: a card.

use serde_json::{Value, json};

use super::{Notification, Tone, text};

pub fn message(notification: &Notification) -> Value {
    let mark = match notification.tone() {
        Tone::Question => "❓",
        Tone::Progress => "➡️",
        Tone::Success => "✅",
        Tone::Warning => "⚠️",
        Tone::Failure => "⛔",
    };
    let paragraph = |text: &str| json!({"textParagraph": {"text": escape(&text::truncate(text, 3000))}});
    let mut widgets = vec![paragraph(&notification.sentence), paragraph(&text::bar(notification.share()))];
    widgets.extend(
        notification
            .fields()
            .into_iter()
            .chain(notification.question_fields())
            .map(|(title, value)| json!({"decoratedText": {"topLabel": title, "text": escape(&text::truncate(&value, 500))}})),
    );
    let links = notification.links().into_iter().filter(|(_, url)| url.len() <= text::MAX_URL);
    let buttons: Vec<Value> =
        links.map(|(title, url)| json!({"text": title, "onClick": {"openLink": {"url": url}}})).collect();
    if !buttons.is_empty() {
        widgets.push(json!({"buttonList": {"buttons": buttons}}));
    }
    let metrics = notification.metrics.iter().take(20).map(|metric| {
        let label = format!("{}: {}", metric.name, text::verdict(metric.verdict));
        json!({"decoratedText": {
            "topLabel": label, "text": escape(&text::truncate(&metric.reason, 300)), "wrapText": true,
        }})
    });
    let metrics: Vec<Value> = metrics.collect();
    let mut sections = vec![json!({"widgets": widgets})];
    if !metrics.is_empty() {
        sections.push(json!({"header": "Metrics", "collapsible": true, "widgets": metrics}));
    }
    json!({"cardsV2": [{
        "cardId": "serin",
        "card": {
            "header": {"title": format!("{mark} {}", notification.headline())},
            "sections": sections,
        },
    }]})
}

/// Cards interpret some HTML.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
