//! Google Chat: a card.

use serde_json::{Value, json};

use super::{Notification, text};
use crate::api::canary::Severity;

pub fn message(notification: &Notification) -> Value {
    let mark = match notification.severity {
        Severity::Info => "✅",
        Severity::Warn => "⚠️",
        Severity::Error => "⛔",
    };
    let paragraph = |text: &str| json!({"textParagraph": {"text": escape(&text::truncate(text, 3000))}});
    let mut widgets = vec![paragraph(&notification.sentence), paragraph(&text::bar(notification.weight))];
    widgets.extend(
        notification
            .fields()
            .into_iter()
            .map(|(title, value)| json!({"decoratedText": {"topLabel": title, "text": escape(&value)}})),
    );
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
            "header": {"title": format!("{mark} {}", notification.author()), "subtitle": format!("{:?}", notification.phase)},
            "sections": sections,
        },
    }]})
}

/// Cards interpret some HTML.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
