//! What Slack documents, as a check of a message.

use serde_json::{Value, json};

/// What Slack documents of messages, blocks and attachments.
#[track_caller]
pub fn check_slack(message: &Value) {
    only(message, &["channel", "username", "icon_emoji", "icon_url", "text", "blocks", "attachments"]);
    text_within(&message["text"], 4000);
    let blocks = message["blocks"].as_array().expect("blocks");
    assert!(!blocks.is_empty() && blocks.len() <= 50);
    for block in blocks {
        match block["type"].as_str() {
            Some("header") => {
                only(block, &["type", "text"]);
                only(&block["text"], &["type", "text"]);
                assert_eq!(block["text"]["type"], "plain_text");
                text_within(&block["text"]["text"], 150);
            }
            Some("section") => {
                only(block, &["type", "text", "fields"]);
                assert!(block.get("text").is_some() || block.get("fields").is_some());
                if let Some(text) = block.get("text") {
                    formatted(text, 3000);
                }
                let fields = block.get("fields").map(|fields| fields.as_array().expect("a list"));
                assert!(fields.is_none_or(|fields| !fields.is_empty() && fields.len() <= 10));
                fields.into_iter().flatten().for_each(|field| formatted(field, 2000));
            }
            Some("context") => {
                only(block, &["type", "elements"]);
                let elements = block["elements"].as_array().expect("elements");
                assert!(!elements.is_empty() && elements.len() <= 10);
                elements.iter().for_each(|element| formatted(element, 3000));
            }
            other => panic!("no block of ours is a {other:?}"),
        }
    }
    for attachment in message["attachments"].as_array().expect("attachments") {
        only(attachment, &["color", "author_name", "fallback", "text", "mrkdwn_in", "fields"]);
        let color = attachment["color"].as_str().expect("a colour");
        let hex = color.strip_prefix('#').is_some_and(|hex| u32::from_str_radix(hex, 16).is_ok());
        assert!(hex || ["good", "warning", "danger"].contains(&color), "{color}");
        text_within(&attachment["text"], 3000);
        unmarked(attachment["text"].as_str().unwrap());
        assert_eq!(attachment["mrkdwn_in"], json!(["text"]));
        let fields = attachment["fields"].as_array().expect("fields");
        assert!(fields.len() <= 10);
        for field in fields {
            only(field, &["title", "value", "short"]);
            assert!(field["title"].is_string() && field["value"].is_string() && field["short"].is_boolean());
        }
    }
}

#[track_caller]
fn formatted(text: &Value, most: usize) {
    only(text, &["type", "text"]);
    assert!(["mrkdwn", "plain_text"].contains(&text["type"].as_str().expect("a type")));
    text_within(&text["text"], most);
    unmarked(text["text"].as_str().unwrap());
}

/// Nobody's bell is rung: `<`, `>` and `&` come escaped.
#[track_caller]
fn unmarked(text: &str) {
    let plain = text.replace("&amp;", "").replace("&lt;", "").replace("&gt;", "");
    assert!(!plain.contains(['<', '>', '&']), "{plain}");
}

#[track_caller]
fn text_within(text: &Value, most: usize) {
    let length = text.as_str().expect("a text").chars().count();
    assert!((1..=most).contains(&length), "{length} characters, not 1 to {most}");
}

#[track_caller]
fn only(object: &Value, known: &[&str]) {
    let object = object.as_object().expect("an object");
    let unknown: Vec<_> = object.keys().filter(|key| !known.contains(&key.as_str())).collect();
    assert!(unknown.is_empty(), "Slack knows no {unknown:?} there");
}
