//! PagerDuty and Opsgenie, after the documents that `src/notify/incident.rs` names.

use std::sync::Arc;

use serde_json::Value;
use serin::api::canary::Severity;
use serin::notify::{Destination, DestinationError, Notification};

use super::support::receiver::Receiver;
use super::{deliver, notification, secret, spec};

fn destination(kind: &str, address: &str) -> Arc<Destination> {
    let secret = secret(&[("token", "key-1"), ("address", address)]);
    Arc::new(Destination::new("prod/pager".to_owned(), &spec(kind, None), &secret).expect("a destination"))
}

fn promoted() -> Notification {
    Notification { severity: Severity::Info, reason: "Promoted", ..notification() }
}

fn advanced() -> Notification {
    Notification { severity: Severity::Info, reason: "Advanced", ..notification() }
}

#[tokio::test]
async fn pagerduty_s_incident_is_opened_by_a_rollback_and_resolved_by_a_promotion() {
    let receiver = Receiver::start([]).await;
    let to = destination("pagerduty", &receiver.url);
    for notification in [notification(), advanced(), promoted()] {
        deliver(&to, &notification).await;
    }
    let events: Vec<Value> = receiver.received().iter().map(|request| request.json()).collect();
    let actions: Vec<_> = events.iter().map(|event| event["event_action"].as_str().unwrap()).collect();
    assert_eq!(actions, ["trigger", "resolve"], "a step is no matter for it");
    assert_eq!(events[0]["dedup_key"], events[1]["dedup_key"]);
    let opened = &events[0];
    assert_eq!(opened["routing_key"], "key-1");
    let payload = &opened["payload"];
    assert_eq!((&payload["severity"], &payload["source"]), (&"error".into(), &"blue".into()));
    assert!(payload["summary"].as_str().unwrap().starts_with("web.prod: Revision 1-abc is rolled back"));
    assert_eq!(payload["custom_details"]["Image"], "web:v1 → v2");
    assert_eq!(opened["links"][0]["href"], "https://serin.example.com/#/c/prod/web");
}

#[tokio::test]
async fn opsgenie_s_alert_is_opened_by_a_rollback_and_closed_by_a_promotion() {
    let receiver = Receiver::start([]).await;
    let to = destination("opsgenie", &receiver.url);
    for notification in [notification(), advanced(), promoted()] {
        deliver(&to, &notification).await;
    }
    let requests = receiver.received();
    let paths: Vec<_> = requests.iter().map(|request| request.uri.to_string()).collect();
    assert_eq!(paths, ["/hook", "/hook/serin%2Fprod%2Fweb%2Fblue/close?identifierType=alias"]);
    assert!(requests.iter().all(|request| request.header("authorization") == "GenieKey key-1"));
    let opened = requests[0].json();
    assert_eq!((&opened["alias"], &opened["priority"]), (&"serin/prod/web/blue".into(), &"P2".into()));
    assert_eq!(opened["message"], "web.prod: rolled back");
}

#[test]
fn incidents_keep_the_documented_limits() {
    let hostile = Notification { name: "n".repeat(253), sentence: "words ".repeat(9000), ..notification() };
    let pagerduty = destination("pagerduty", "http://p/").request(&hostile).expect("a request").body;
    let length = |value: &Value| value.as_str().expect("a text").chars().count();
    assert!(length(&pagerduty["dedup_key"]) <= 255 && length(&pagerduty["payload"]["summary"]) <= 1024);
    let opsgenie = destination("opsgenie", "http://o/").request(&hostile).expect("a request").body;
    assert!(length(&opsgenie["message"]) <= 130 && length(&opsgenie["alias"]) <= 512);
    assert!(length(&opsgenie["description"]) <= 15_000);
}

#[test]
fn an_incident_needs_a_key_and_no_address() {
    for (kind, address) in [
        ("pagerduty", "https://events.pagerduty.com/v2/enqueue"),
        ("opsgenie", "https://api.opsgenie.com/v2/alerts"),
    ] {
        let new = |pairs: &[(&str, &str)]| {
            Destination::new("prod/pager".to_owned(), &spec(kind, None), &secret(pairs))
        };
        assert_eq!(new(&[]).expect_err("no key"), DestinationError::NoKey);
        assert_eq!(new(&[("token", "key")]).expect("a destination").address, address);
    }
}
