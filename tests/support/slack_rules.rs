//! Slack's documented limits, as a check of a message.

use serde_json::{Value, json};

/// Checks a message to an incoming webhook.
#[track_caller]
pub fn check_slack(message: &Value) {
    check_known_fields(
        message,
        &["channel", "username", "icon_emoji", "icon_url", "text", "blocks", "attachments"],
    );
    assert!(message["blocks"].is_array() && message["attachments"].is_array());
    check_message(message);
}

/// Checks the limits of text, blocks and attachments.
#[track_caller]
pub fn check_message(message: &Value) {
    check_text_length(&message["text"], 4000);
    if let Some(blocks) = message.get("blocks") {
        let blocks = blocks.as_array().expect("blocks");
        assert!(!blocks.is_empty() && blocks.len() <= 50);
        blocks.iter().for_each(check_block);
        let mut ids: Vec<&str> = blocks.iter().filter_map(|block| block["block_id"].as_str()).collect();
        let count = ids.len();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), count, "a block_id is unique in its message");
    }
    if let Some(attachments) = message.get("attachments") {
        check_attachments(attachments.as_array().expect("attachments"));
    }
}

#[track_caller]
fn check_block(block: &Value) {
    match block["type"].as_str() {
        Some("header") => {
            check_known_fields(block, &["type", "text"]);
            check_known_fields(&block["text"], &["type", "text"]);
            assert_eq!(block["text"]["type"], "plain_text");
            check_text_length(&block["text"]["text"], 150);
        }
        Some("section") => {
            check_known_fields(block, &["type", "text", "fields"]);
            assert!(block.get("text").is_some() || block.get("fields").is_some());
            if let Some(text) = block.get("text") {
                check_formatted(text, 3000);
            }
            let fields = block.get("fields").map(|fields| fields.as_array().expect("a list"));
            assert!(fields.is_none_or(|fields| !fields.is_empty() && fields.len() <= 10));
            fields.into_iter().flatten().for_each(|field| check_formatted(field, 2000));
        }
        Some("context") => {
            check_known_fields(block, &["type", "elements"]);
            let elements = block["elements"].as_array().expect("elements");
            assert!(!elements.is_empty() && elements.len() <= 10);
            elements.iter().for_each(|element| check_linked(element, 3000));
        }
        Some("actions") => {
            check_known_fields(block, &["type", "elements", "block_id"]);
            assert!(
                block.get("block_id").is_none()
                    || block["block_id"].as_str().is_some_and(|id| id.len() <= 255)
            );
            let elements = block["elements"].as_array().expect("elements");
            assert!(!elements.is_empty() && elements.len() <= 25);
            elements.iter().for_each(check_button);
            let mut ids: Vec<_> = elements.iter().map(|button| button["action_id"].to_string()).collect();
            ids.sort_unstable();
            ids.dedup();
            assert_eq!(ids.len(), elements.len(), "an action_id is unique in its block");
        }
        other => panic!("no block of ours is a {other:?}"),
    }
}

#[track_caller]
fn check_button(button: &Value) {
    check_known_fields(button, &["type", "text", "action_id", "url", "value", "style"]);
    assert_eq!(button["type"], "button");
    assert_eq!(button["text"]["type"], "plain_text");
    check_text_length(&button["text"]["text"], 75);
    check_text_length(&button["action_id"], 255);
    assert!(button.get("style").is_none_or(|style| ["primary", "danger"].contains(&style.as_str().unwrap())));
    if let Some(value) = button.get("value") {
        check_text_length(value, 2000);
    }
    if let Some(url) = button.get("url") {
        check_text_length(url, 3000);
    }
}

/// As [`check_formatted`], where a link may stand.
#[track_caller]
fn check_linked(text: &Value, most: usize) {
    let mut plain = text.clone();
    let mut rest = text["text"].as_str().expect("a text").to_owned();
    while let Some((before, after)) = rest.split_once("<http") {
        let (_, after) = after.split_once('>').expect("the end of a link");
        rest = format!("{before}link{after}");
    }
    plain["text"] = json!(rest);
    check_text_length(&text["text"], most);
    check_formatted(&plain, most);
}

#[track_caller]
fn check_attachments(attachments: &[Value]) {
    assert!(attachments.len() <= 100);
    for attachment in attachments {
        check_known_fields(attachment, &["color", "author_name", "fallback", "text", "mrkdwn_in", "fields"]);
        let color = attachment["color"].as_str().expect("a colour");
        let hex = color.strip_prefix('#').is_some_and(|hex| u32::from_str_radix(hex, 16).is_ok());
        assert!(hex || ["good", "warning", "danger"].contains(&color), "{color}");
        check_text_length(&attachment["text"], 3000);
        check_unmarked(attachment["text"].as_str().unwrap());
        assert_eq!(attachment["mrkdwn_in"], json!(["text"]));
        let fields = attachment["fields"].as_array().expect("fields");
        assert!(fields.len() <= 10);
        for field in fields {
            check_known_fields(field, &["title", "value", "short"]);
            assert!(field["title"].is_string() && field["value"].is_string() && field["short"].is_boolean());
        }
    }
}

#[track_caller]
fn check_formatted(text: &Value, most: usize) {
    check_known_fields(text, &["type", "text"]);
    assert!(["mrkdwn", "plain_text"].contains(&text["type"].as_str().expect("a type")));
    check_text_length(&text["text"], most);
    check_unmarked(text["text"].as_str().unwrap());
}

/// No mention is possible: `<`, `>` and `&` are escaped.
#[track_caller]
fn check_unmarked(text: &str) {
    let plain = text.replace("&amp;", "").replace("&lt;", "").replace("&gt;", "");
    assert!(!plain.contains(['<', '>', '&']), "{plain}");
}

#[track_caller]
fn check_text_length(text: &Value, most: usize) {
    let length = text.as_str().expect("a text").chars().count();
    assert!((1..=most).contains(&length), "{length} characters, not 1 to {most}");
}

#[track_caller]
pub fn check_known_fields(object: &Value, known: &[&str]) {
    let object = object.as_object().expect("an object");
    let unknown: Vec<_> = object.keys().filter(|key| !known.contains(&key.as_str())).collect();
    assert!(unknown.is_empty(), "Slack knows no {unknown:?} there");
}
