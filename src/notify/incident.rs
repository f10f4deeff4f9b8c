//! PagerDuty and Opsgenie: an incident for each Canary, opened by what needs a person, and
//! resolved when its revision is promoted or its target is back at the promoted one.
//!
//! After the pages "Send an alert event" of PagerDuty's Events API v2 (summary 1,024
//! characters, dedup_key 255) and "Create alert" and "Close alert" of Opsgenie's Alert API
//! (message 130 characters, alias 512, description 15,000).

use serde_json::{Map, Value, json};

use super::{Destination, Notification, Tone, destination::Outgoing, text};

pub const PAGERDUTY_ADDRESS: &str = "https://events.pagerduty.com/v2/enqueue";
pub const OPSGENIE_ADDRESS: &str = "https://api.opsgenie.com/v2/alerts";

/// What a notification does to the incident of its Canary.
pub enum Change {
    Open,
    Resolve,
}

/// None: the notification is no matter for an incident.
pub fn change(notification: &Notification) -> Option<Change> {
    match notification.tone() {
        Tone::Question | Tone::Warning | Tone::Failure => Some(Change::Open),
        Tone::Success => Some(Change::Resolve),
        Tone::Progress if notification.reason == "NoChange" => Some(Change::Resolve),
        Tone::Progress => None,
    }
}

/// The same for all notifications of a Canary.
pub fn key(notification: &Notification) -> String {
    let Notification { cluster, namespace, name, .. } = notification;
    let cluster = cluster.as_deref().unwrap_or_default();
    // A name has at most 253 characters, a namespace 63.
    text::truncate(&format!("serin/{namespace}/{name}/{cluster}"), 255)
}

fn details(notification: &Notification) -> Map<String, Value> {
    let fields = notification.fields().into_iter().chain(notification.question_fields());
    let mut details: Map<String, Value> =
        fields.map(|(title, value)| (title.to_owned(), json!(text::truncate(&value, 500)))).collect();
    for metric in notification.metrics.iter().take(20) {
        let verdict = format!("{}: {}", text::verdict(metric.verdict), metric.reason);
        details.insert(text::truncate(&metric.name, 100), json!(text::truncate(&verdict, 300)));
    }
    details
}

pub fn pagerduty(notification: &Notification, to: &Destination) -> Option<Outgoing> {
    let action = match change(notification)? {
        Change::Open => "trigger",
        Change::Resolve => "resolve",
    };
    let severity = match notification.tone() {
        Tone::Failure => "error",
        Tone::Warning => "warning",
        Tone::Question | Tone::Progress | Tone::Success => "info",
    };
    let links = notification.links().into_iter().filter(|(_, url)| url.len() <= text::MAX_URL);
    let links: Vec<Value> = links.map(|(title, url)| json!({"href": url, "text": title})).collect();
    let summary = format!("{}: {}", notification.author(), notification.sentence);
    let body = json!({
        "routing_key": to.token,
        "event_action": action,
        "dedup_key": key(notification),
        "client": "Serin",
        "links": links,
        "payload": {
            "summary": text::truncate(&summary, 1024),
            "source": notification.cluster.as_deref().unwrap_or("serin"),
            "severity": severity,
            "timestamp": notification.at.to_string(),
            "component": notification.name,
            "group": notification.namespace,
            "class": notification.reason,
            "custom_details": details(notification),
        },
    });
    Some(Outgoing { url: to.address.clone(), body })
}

pub fn opsgenie(notification: &Notification, to: &Destination) -> Option<Outgoing> {
    let address = to.address.trim_end_matches('/');
    let alias = key(notification);
    let source = text::truncate(notification.cluster.as_deref().unwrap_or("serin"), 100);
    Some(match change(notification)? {
        Change::Open => {
            let priority = match notification.tone() {
                Tone::Failure => "P2",
                Tone::Warning => "P3",
                Tone::Question | Tone::Progress | Tone::Success => "P4",
            };
            let mut description = vec![notification.sentence.clone()];
            let links = notification.links().into_iter().filter(|(_, url)| url.len() <= text::MAX_URL);
            description.extend(links.map(|(title, url)| format!("{title}: {url}")));
            let body = json!({
                "message": text::truncate(&notification.headline(), 130),
                "alias": alias,
                "description": text::truncate(&description.join("\n"), 15_000),
                "priority": priority,
                "source": source,
                "entity": text::truncate(&notification.author(), 512),
                "tags": ["serin", notification.reason],
                "details": details(notification),
            });
            Outgoing { url: address.to_owned(), body }
        }
        Change::Resolve => {
            // Slashes are a part of the alias, not of the path.
            let alias = alias.replace('%', "%25").replace('/', "%2F").replace(' ', "%20");
            let body = json!({"source": source, "note": text::truncate(&notification.sentence, 15_000)});
            Outgoing { url: format!("{address}/{alias}/close?identifierType=alias"), body }
        }
    })
}
