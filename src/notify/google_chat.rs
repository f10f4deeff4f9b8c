//! Google Chat: a card.

use serde_json::{Value, json};

use super::{Notice, text};
use crate::api::canary::Severity;

pub fn message(notice: &Notice) -> Value {
    let mark = match notice.severity {
        Severity::Info => "✅",
        Severity::Warn => "⚠️",
        Severity::Error => "⛔",
    };
    let paragraph = |text: &str| json!({"textParagraph": {"text": escape(&text::cut(text, 3000))}});
    let mut widgets = vec![paragraph(&notice.sentence), paragraph(&text::bar(notice.weight))];
    widgets.extend(
        notice
            .facts()
            .into_iter()
            .map(|(title, value)| json!({"decoratedText": {"topLabel": title, "text": escape(&value)}})),
    );
    let metrics = notice.metrics.iter().take(20).map(|metric| {
        let label = format!("{}: {}", metric.name, text::verdict(metric.verdict));
        json!({"decoratedText": {
            "topLabel": label, "text": escape(&text::cut(&metric.reason, 300)), "wrapText": true,
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
            "header": {"title": format!("{mark} {}", notice.author()), "subtitle": format!("{:?}", notice.phase)},
            "sections": sections,
        },
    }]})
}

/// A card takes some HTML.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
