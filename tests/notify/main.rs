//! Notifications: their selection, their format, and failing destinations.

mod bot;
mod incidents;
mod mail;
mod mail_server;
#[path = "../support/mod.rs"]
mod support;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::ByteString;
use parking_lot::Mutex;
use serde_json::{Value, json};
use serin::api::alert_provider::AlertProviderType;
use serin::api::canary::status::Verdict;
use serin::api::canary::{Alert, Phase, Severity};
use serin::api::{AlertProviderSpec, Canary, CanaryStatus, Weight};
use serin::engine::report::{Reason, Report, RollbackCause};
use serin::notify::{
    Destination, DestinationError, MetricLine, Notification, Options, Outbox, Site, Subject, notifications,
};
use support::receiver::{Receiver, answer};
use support::slack_rules::check_slack;

const MESSAGE: &str = "Revision 1-abc is rolled back: request-success-rate failed (98.1 % < 99 % & falling).";

// Selection.

#[test]
fn an_alert_without_a_severity_gets_every_notification() {
    for (written, expected) in [
        (json!({}), [true, true, true]),
        (json!({"severity": ""}), [true, true, true]),
        (json!({"severity": "info"}), [true, true, true]),
        (json!({"severity": "warn"}), [false, true, true]),
        (json!({"severity": "error"}), [false, false, true]),
    ] {
        let mut alert = json!({"name": "all", "providerRef": {"name": "slack"}});
        alert.as_object_mut().unwrap().extend(written.as_object().unwrap().clone());
        let alert: Alert = serde_json::from_value(alert).expect("an alert");
        let wanted = [Severity::Info, Severity::Warn, Severity::Error]
            .map(|severity| Notification { severity, ..notification() }.meets_severity_of(&alert));
        assert_eq!(wanted, expected, "{written}");
    }
}

#[test]
fn each_event_is_notified_once_and_repetitions_are_not() {
    let status: CanaryStatus = serde_json::from_value(json!({
        "phase": "Failed", "canaryWeight": 0, "revisions": {"candidate": "1-abc"},
        "metrics": [
            {"name": "errors", "verdict": "Fail", "reason": "too many", "canary": 2.5, "at": "1970-01-01T00:00:00Z"},
            {"name": "unjudged", "verdict": "Inconclusive", "reason": "not judged yet"},
        ],
    }))
    .expect("a status");
    let notified = |report: &Report| notified(&status, report);
    let mut report = Report::from(Reason::RolledBack {
        revision: "1-abc".to_owned(),
        cause: RollbackCause::Metric { metric: "errors".to_owned(), why: "too many".to_owned() },
    });
    report.preceding.push(Reason::CheckFailed { failed: 1, threshold: 1, why: "too many".to_owned() }.into());
    let both = notified(&report);
    let codes: Vec<_> = both.iter().map(|notice| (notice.reason, notice.severity)).collect();
    assert_eq!(codes, [("CheckFailed", Severity::Warn), ("RolledBack", Severity::Error)]);
    assert_eq!(both[1].sentence, "Revision 1-abc is rolled back: errors failed (too many).");
    assert_eq!((both[1].name.as_str(), both[1].namespace.as_str()), ("web", "prod"));
    assert_eq!(both[1].revision.as_deref(), Some("1-abc"));
    assert_eq!((both[1].metrics.len(), both[1].metrics[0].canary), (1, Some(2.5)), "what was judged");
    report.should_notify = false;
    assert_eq!(notified(&report).len(), 1, "the failed check is still notified");
    assert!(
        notified(&Reason::CanaryNotReady { ready: 1, desired: 3, trouble: None }.into()).is_empty(),
        "pods that start are not"
    );
}

#[test]
fn a_muted_webhook_raises_no_alert_but_the_end_of_its_release_does() {
    let status = CanaryStatus::default();
    let count = |reason: Reason| notified(&status, &reason.into()).len();
    let closed = |gate: &str| Reason::GateClosed { gate: gate.to_owned(), why: String::new() };
    assert_eq!(count(closed("quiet")), 0);
    assert_eq!(count(closed("loud")), 1);
    let cause = RollbackCause::GateExpired { gate: "quiet".to_owned() };
    assert_eq!(count(Reason::RolledBack { revision: "1-abc".to_owned(), cause }), 1);
}

// Format.

#[tokio::test]
async fn slack_gets_what_flagger_sent_and_blocks_by_slack_s_rules() {
    let receiver = Receiver::start([]).await;
    deliver(&destination("slack", &receiver.url), &notification()).await;
    let got = receiver.await_received(1).await.remove(0);
    assert_eq!(got.header("content-type"), "application/json; charset=utf-8");
    let message = got.json();
    check_slack(&message);
    assert_eq!(message["channel"], "releases");
    assert_eq!(message["username"], "bird");
    let attachment = &message["attachments"][0];
    assert_eq!(attachment["author_name"], "web.prod");
    assert_eq!(attachment["color"], "danger");
    assert_eq!(attachment["text"], MESSAGE.replace('&', "&amp;").replace('<', "&lt;"));
    assert_eq!(attachment["mrkdwn_in"], json!(["text"]));
    let fields = json!([
        {"title": "Cluster", "value": "blue", "short": true},
        {"title": "Image", "value": "web:v1 → v2", "short": true},
        {"title": "Step", "value": "2/5", "short": true},
        {"title": "Revision", "value": "1-abc", "short": true},
    ]);
    assert_eq!(attachment["fields"], fields);
    let blocks = message["blocks"].to_string();
    for part in ["web.prod: rolled back", "██████░░░░░░░░░░░░░░ 30 %", "step 2/5", "98.1 against 99.95"]
    {
        assert!(blocks.contains(part), "{part} is not in {blocks}");
    }
    let table = message["blocks"][2]["text"]["text"].as_str().expect("the table");
    let rows: Vec<Vec<&str>> = table.lines().map(|row| row.split_whitespace().collect()).collect();
    assert_eq!(rows[1], ["metric", "verdict", "canary", "primary"]);
    assert_eq!(rows[2], ["request-success-rate", "fail", "98.1", "%", "99.95", "%"]);
    assert_eq!(rows[3], ["request-duration", "pass", "120", "ms", "–"]);
    // A phone shows this and nothing else.
    assert!(message["text"].as_str().is_some_and(|text| text.starts_with("web.prod: Revision 1-abc is")));
    let sentence = "Revision 1-abc is rolled back: 98.1 against 99.95.".to_owned();
    let message = body_for("slack", &Notification { sentence, ..notification() });
    assert!(!message["blocks"].to_string().contains("against"), "the reason appears once: {message:#}");
}

#[test]
fn slack_s_rules_hold_for_every_message() {
    let long = "<!channel> & a very long text. ".repeat(500);
    let line = |at: usize| MetricLine {
        name: format!("{long}{at}"),
        verdict: Verdict::Inconclusive,
        canary: Some(1e300),
        primary: Some(f64::NAN),
        reason: long.clone(),
    };
    for (severity, color) in
        [(Severity::Info, "#8a8f98"), (Severity::Warn, "warning"), (Severity::Error, "danger")]
    {
        for count in [0, 1, 50] {
            let hostile = Notification {
                severity,
                name: "n".repeat(253),
                sentence: long.clone(),
                step: Some(long.clone()),
                revision: Some(long.clone()),
                metrics: (0..count).map(line).collect(),
                ..notification()
            };
            let message = body_for("slack", &hostile);
            check_slack(&message);
            assert_eq!(message["attachments"][0]["color"], color);
        }
    }
}

#[tokio::test]
async fn a_slack_bot_sends_its_token_and_is_not_retried_when_refused() {
    let refusal = r#"{"ok":false,"error":"channel_not_found"}"#;
    let receiver = Receiver::start([answer(200, refusal)]).await;
    let secret = secret(&[("token", "xoxb-secret\n"), ("address", &receiver.url)]);
    let spec = spec("slack", Some("http://ignored.invalid"));
    let to = Arc::new(Destination::new("prod/chat".to_owned(), &spec, &secret).expect("a destination"));
    let log = Log::start();
    deliver(&to, &notification()).await;
    assert_eq!(receiver.received().len(), 1);
    let got = &receiver.received()[0];
    assert_eq!(got.header("authorization"), "Bearer xoxb-secret");
    check_slack(&got.json());
    let log = log.text();
    assert!(log.contains("channel_not_found") && !log.contains("xoxb"), "{log}");
}

#[test]
fn a_bot_needs_a_channel_and_every_destination_an_address() {
    let none = BTreeMap::new();
    let new = |spec: &AlertProviderSpec, secret| Destination::new("prod/chat".to_owned(), spec, secret);
    assert_eq!(new(&spec("slack", None), &none), Err(DestinationError::NoAddress));
    let token = secret(&[("token", "xoxb")]);
    let bot = new(&spec("slack", None), &token).expect("a bot needs no address");
    assert_eq!(bot.address, "https://slack.com/api/chat.postMessage");
    let nowhere = AlertProviderSpec { channel: None, ..spec("slack", None) };
    assert_eq!(new(&nowhere, &token), Err(DestinationError::NoChannel));
    assert_eq!(new(&spec("gchat", None), &token), Err(DestinationError::NoAddress), "only Slack has bots");
    let binary = BTreeMap::from([("address".to_owned(), ByteString(vec![0xff]))]);
    assert_eq!(new(&spec("slack", None), &binary), Err(DestinationError::NotText("address")));
}

#[test]
fn every_chat_gets_the_message_in_its_own_format() {
    let teams = body_for("msteams", &notification());
    let card = &teams["attachments"][0];
    assert_eq!(card["contentType"], "application/vnd.microsoft.card.adaptive");
    assert_eq!(card["content"]["type"], "AdaptiveCard");
    assert_eq!(card["content"]["body"][0]["color"], "Attention");
    assert_eq!(card["content"]["body"][1]["text"], MESSAGE);

    let discord = body_for("discord", &notification());
    let embed = &discord["embeds"][0];
    assert_eq!(embed["author"]["name"], "web.prod: rolled back");
    assert_eq!(embed["color"], 0xa30200);
    assert!(embed["description"].as_str().unwrap().starts_with(MESSAGE));

    let rocket = body_for("rocket", &notification());
    assert_eq!(rocket["attachments"][0]["author_name"], "web.prod: rolled back");
    assert_eq!(rocket["attachments"][0]["color"], "#a30200");
    assert!(rocket["attachments"][0]["text"].as_str().unwrap().starts_with(MESSAGE));

    let google = body_for("gchat", &notification());
    let card = &google["cardsV2"][0]["card"];
    let text = card["sections"][0]["widgets"][0]["textParagraph"]["text"].as_str().unwrap();
    assert_eq!(text, MESSAGE.replace('&', "&amp;").replace('<', "&lt;"));
}

#[test]
fn no_message_exceeds_the_limits_of_its_chat() {
    let long = "words and more words ".repeat(2000);
    let metric =
        |at| MetricLine { name: format!("m{at}"), reason: long.clone(), ..notification().metrics[0].clone() };
    let hostile =
        Notification { sentence: long.clone(), metrics: (0..50).map(metric).collect(), ..notification() };
    for (kind, most) in [("msteams", 28_000), ("discord", 8_000), ("rocket", 10_000), ("gchat", 32_000)] {
        let message = body_for(kind, &hostile).to_string();
        assert!(message.len() <= most, "{kind}: {} bytes", message.len());
    }
    let embed = &body_for("discord", &hostile)["embeds"][0];
    let length = |value: &Value| value.as_str().unwrap().chars().count();
    assert!(length(&embed["description"]) <= 4096);
    let fields = embed["fields"].as_array().unwrap();
    assert!(fields.len() <= 25 && fields.iter().all(|field| length(&field["value"]) <= 1024));
    let all = fields.iter().map(|field| length(&field["value"]) + length(&field["name"])).sum::<usize>();
    assert!(all + length(&embed["description"]) + length(&embed["author"]["name"]) <= 6000);
}

#[tokio::test]
async fn a_provider_s_text_replaces_the_sentence_and_a_bad_one_does_not() {
    let text = async |template: &str| {
        let receiver = Receiver::start([]).await;
        let mut to = Destination::clone(&destination("slack", &receiver.url));
        to.text = Some(template.to_owned());
        let log = Log::start();
        deliver(&Arc::new(to), &notification()).await;
        let message = receiver.await_received(1).await.remove(0).json();
        check_slack(&message);
        (message["attachments"][0]["text"].as_str().unwrap().to_owned(), log.text())
    };
    let (sent, _) = text("{{ image or name }} in {{ cluster }}, {{ weight }} %: {{ verdict }}").await;
    assert_eq!(sent, "web:v1 → v2 in blue, 30 %: fail: request-success-rate");
    for (bad, why) in [
        ("{% for x in name %}x{% endfor %}", "spec.text contains a statement"),
        ("{{ name * 1000 }}", "spec.text contains the operator *"),
        ("{{ secret }}", "spec.text cannot be rendered"),
        ("{{ name", "spec.text cannot be rendered"),
    ] {
        let (sent, log) = text(bad).await;
        assert!(sent.starts_with("Revision 1-abc is rolled back"), "{bad}: {sent}");
        assert!(log.contains(why), "{bad}: {log}");
    }
}

#[tokio::test]
async fn a_webhook_gets_a_cloud_event() {
    let receiver = Receiver::start([]).await;
    deliver(&destination("webhook", &receiver.url), &notification()).await;
    let got = receiver.await_received(1).await.remove(0);
    assert_eq!(got.header("content-type"), "application/cloudevents+json");
    let event = got.json();
    assert_eq!(event["specversion"], "1.0");
    assert_eq!(event["type"], "dev.serin.canary.RolledBack");
    assert_eq!(event["source"], "/apis/serin.dev/v1alpha1/namespaces/prod/canaries/web");
    assert_eq!(event["time"], "1970-01-01T00:00:00Z");
    assert!(event["id"].as_str().is_some_and(|id| !id.is_empty()));
    assert_eq!(event["data"]["sentence"], MESSAGE);
    assert_eq!(event["data"]["weight"], 30);
    assert_eq!(event["data"]["metrics"][0]["verdict"], "Fail");
}

// Failing destinations.

#[tokio::test]
async fn a_failed_delivery_is_retried_after_retry_after() {
    let busy = answer(429, "slow down").header("retry-after", "1");
    let receiver = Receiver::start([answer(500, "oops"), busy]).await;
    let began = Instant::now();
    deliver(&destination("slack", &receiver.url), &notification()).await;
    let got = receiver.received();
    assert_eq!(got.len(), 3, "two failures and the delivery");
    let gaps: Vec<Duration> = got.windows(2).map(|pair| pair[1].at - pair[0].at).collect();
    assert!(gaps[0] < Duration::from_millis(500), "{gaps:?}");
    assert!(gaps[1] >= Duration::from_secs(1), "{gaps:?}");
    assert!(began.elapsed() < Duration::from_secs(10));
    assert_eq!(got[0].body, got[2].body);
}

#[tokio::test]
async fn an_undeliverable_message_is_dropped_and_logged_without_its_address() {
    let receiver = Receiver::start((0..10).map(|_| answer(503, ""))).await;
    let to = destination("slack", &receiver.url.replace("/hook", "/T0/secret-path"));
    let log = Log::start();
    deliver(&to, &notification()).await;
    assert_eq!(receiver.received().len(), 4, "as often as the options say");
    let log = log.text();
    assert!(log.contains("could not be delivered") && log.contains("127.0.0.1"), "{log}");
    assert!(!log.contains("secret-path") && !format!("{to:?}").contains("secret-path"), "{log}");
}

#[tokio::test]
async fn a_refused_message_is_not_retried() {
    let receiver = Receiver::start([answer(404, "no_such_hook")]).await;
    let log = Log::start();
    deliver(&destination("slack", &receiver.url), &notification()).await;
    assert_eq!(receiver.received().len(), 1);
    assert!(log.text().contains("no_such_hook"));
}

#[tokio::test]
async fn a_dead_receiver_blocks_nobody() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let dead = destination("slack", &format!("http://{}/", listener.local_addr().unwrap()));
    let alive = Receiver::start([]).await;
    let outbox = outbox(Options { timeout: Duration::from_secs(60), ..quick() });
    let began = Instant::now();
    for _ in 0..500 {
        outbox.send(&dead, &notification());
    }
    outbox.send(&destination("slack", &alive.url), &notification());
    assert!(began.elapsed() < Duration::from_secs(2), "sending took {:?}", began.elapsed());
    alive.await_received(1).await;
    assert!(began.elapsed() < Duration::from_secs(5), "the other one waited {:?}", began.elapsed());
    let began = Instant::now();
    assert!(!outbox.flush(Duration::from_millis(100)).await, "the dead one has not got anything");
    assert!(began.elapsed() < Duration::from_secs(2), "flushing took {:?}", began.elapsed());
}

#[tokio::test]
async fn a_full_queue_drops_and_logs_the_oldest() {
    let receiver = Receiver::start([answer(200, "").after(Duration::from_millis(300))]).await;
    let to = destination("webhook", &receiver.url);
    let outbox = outbox(Options { queue_capacity: 3, ..quick() });
    let log = Log::start();
    let numbered = |at: usize| Notification { sentence: at.to_string(), ..notification() };
    outbox.send(&to, &numbered(0));
    receiver.await_received(1).await;
    for at in 1..=10 {
        outbox.send(&to, &numbered(at));
    }
    assert!(outbox.flush(Duration::from_secs(10)).await);
    let got: Vec<Value> =
        receiver.received().iter().map(|got| got.json()["data"]["sentence"].clone()).collect();
    assert_eq!(got, ["0", "8", "9", "10"]);
    assert_eq!(log.text().matches("the oldest notification is dropped").count(), 7);
}

#[tokio::test]
async fn deliveries_and_failures_are_counted() {
    let options = Options { max_destinations: 3, ..quick() };
    let tally = Arc::clone(&options.counters);
    let outbox = outbox(options);
    let listens = Receiver::start([]).await;
    let refuses = Receiver::start([answer(404, "")]).await;
    let fails = Receiver::start((0..10).map(|_| answer(503, ""))).await;
    for receiver in [&listens, &listens, &refuses, &fails] {
        outbox.send(&destination("slack", &receiver.url), &notification());
    }
    outbox.send(&destination("slack", "http://127.0.0.1:1/one-too-many"), &notification());
    assert!(outbox.flush(Duration::from_secs(20)).await);
    assert_eq!(tally.snapshot(), [("delivered", 2), ("refused", 1), ("failed", 1), ("dropped", 1)]);
}

#[tokio::test]
async fn the_receivers_of_one_namespace_leave_room_for_others() {
    let options = Options { max_destinations: 100, max_destinations_per_namespace: 2, ..quick() };
    let tally = Arc::clone(&options.counters);
    let outbox = outbox(options);
    let (hostile, other) = (Receiver::start([]).await, Receiver::start([]).await);
    for number in 0..5 {
        outbox.send(&destination("slack", &format!("{}/{number}", hostile.url)), &notification());
    }
    let of_another = Notification { namespace: "another".to_owned(), ..notification() };
    outbox.send(&destination("slack", &other.url), &of_another);
    assert!(outbox.flush(Duration::from_secs(20)).await);
    assert_eq!(tally.snapshot()[3], ("dropped", 3));
    assert_eq!(other.received().len(), 1);
}

#[tokio::test]
async fn a_link_local_address_gets_no_notification() {
    let options = quick();
    let tally = Arc::clone(&options.counters);
    let outbox = outbox(options);
    let log = Log::start();
    outbox.send(&destination("slack", "http://169.254.169.254/hook"), &notification());
    assert!(outbox.flush(Duration::from_secs(20)).await);
    assert_eq!(tally.snapshot()[1], ("refused", 1));
    assert!(log.text().contains("to which tenants' addresses may not lead"), "{}", log.text());
}

#[tokio::test]
async fn an_address_gets_no_more_than_its_rate() {
    let receiver = Receiver::start([]).await;
    let pace = Duration::from_millis(200);
    let outbox = outbox(Options { refill_interval: pace, burst: 3, ..quick() });
    let to = destination("slack", &receiver.url);
    (0..6).for_each(|_| outbox.send(&to, &notification()));
    assert!(outbox.flush(Duration::from_secs(10)).await);
    let got = receiver.received();
    assert_eq!(got.len(), 6);
    assert!(got[2].at - got[0].at < pace, "three at once");
    assert!(got[5].at - got[2].at >= pace * 5 / 2, "then one at a time: {:?}", got[5].at - got[2].at);
}

#[tokio::test]
async fn an_idle_destination_queue_stops_and_restarts() {
    let receiver = Receiver::start([]).await;
    let outbox = outbox(Options { max_destinations: 1, idle_timeout: Duration::from_millis(50), ..quick() });
    outbox.send(&destination("slack", &receiver.url), &notification());
    assert!(outbox.flush(Duration::from_secs(10)).await);
    tokio::time::sleep(Duration::from_millis(300)).await;
    let other = Receiver::start([]).await;
    outbox.send(&destination("slack", &other.url), &notification());
    other.await_received(1).await;
}

#[tokio::test]
async fn deliveries_use_the_proxy() {
    let proxy = Receiver::start([]).await;
    let mut to = Destination::clone(&destination("slack", "http://chat.invalid/hook"));
    to.proxy = Some(proxy.url.replace("/hook", ""));
    deliver(&Arc::new(to), &notification()).await;
    let got = proxy.await_received(1).await.remove(0);
    assert_eq!(got.uri.to_string(), "http://chat.invalid/hook");
}

#[tokio::test]
async fn a_flagger_discord_address_gets_the_discord_format() {
    let receiver = Receiver::start([]).await;
    deliver(&destination("discord", &format!("{}/slack", receiver.url)), &notification()).await;
    assert_eq!(receiver.await_received(1).await[0].uri.path(), "/hook");
}

/// The body that this kind of receiver gets.
fn body_for(kind: &str, notification: &Notification) -> Value {
    destination(kind, "http://x/").request(notification).expect("a message").body
}

fn site() -> Site {
    Site {
        cluster: Some("blue".to_owned()),
        dashboard: Some("https://serin.example.com".to_owned()),
        buttons: true,
    }
}

fn notified(status: &CanaryStatus, report: &Report) -> Vec<Notification> {
    let status = CanaryStatus { image: "web:v1 → v2".to_owned(), ..status.clone() };
    let about = Subject { canary: &canary(), status: &status, site: &site() };
    notifications(&about, report, Timestamp::UNIX_EPOCH)
}

fn notification() -> Notification {
    let metric = |name: &str, verdict, canary, primary, reason: &str| MetricLine {
        name: name.to_owned(),
        verdict,
        canary,
        primary,
        reason: reason.to_owned(),
    };
    Notification {
        name: "web".to_owned(),
        namespace: "prod".to_owned(),
        cluster: Some("blue".to_owned()),
        uid: Some("u-1".to_owned()),
        release: 3,
        image: Some("web:v1 → v2".to_owned()),
        link: Some("https://serin.example.com/#/c/prod/web".to_owned()),
        approval: None,
        threads: BTreeMap::new(),
        phase: Phase::Progressing,
        weight: Weight::from_percent(30.0).expect("a weight"),
        step: Some("2/5".to_owned()),
        revision: Some("1-abc".to_owned()),
        severity: Severity::Error,
        reason: "RolledBack",
        sentence: MESSAGE.to_owned(),
        metrics: vec![
            metric("request-success-rate", Verdict::Fail, Some(98.1), Some(99.95), "98.1 against 99.95"),
            metric("request-duration", Verdict::Pass, Some(120.0), None, "fast enough"),
        ],
        at: Timestamp::UNIX_EPOCH,
    }
}

fn canary() -> Canary {
    serde_json::from_value(json!({
        "apiVersion": "serin.dev/v1alpha1",
        "kind": "Canary",
        "metadata": {"name": "web", "namespace": "prod", "uid": "u-1"},
        "spec": {
            "targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
            "service": {"port": 80},
            "analysis": {"iterations": 1, "webhooks": [
                {"name": "quiet", "type": "confirm-rollout", "url": "http://gate", "muteAlert": true},
                {"name": "loud", "type": "confirm-rollout", "url": "http://gate"},
            ]},
        },
    }))
    .expect("a Canary")
}

fn spec(kind: &str, address: Option<&str>) -> AlertProviderSpec {
    let type_: AlertProviderType = serde_json::from_value(json!(kind)).expect("a kind of chat");
    AlertProviderSpec {
        type_,
        channel: Some("releases".to_owned()),
        username: Some("bird".to_owned()),
        text: None,
        address: address.map(str::to_owned),
        proxy: None,
        from: None,
        to: None,
        secret_ref: None,
    }
}

fn secret(data: &[(&str, &str)]) -> BTreeMap<String, ByteString> {
    data.iter().map(|(key, value)| ((*key).to_owned(), ByteString(value.as_bytes().to_vec()))).collect()
}

fn destination(kind: &str, address: &str) -> Arc<Destination> {
    Arc::new(
        Destination::new("prod/chat".to_owned(), &spec(kind, Some(address)), &BTreeMap::new())
            .expect("a destination"),
    )
}

fn quick() -> Options {
    Options {
        max_attempts: 4,
        initial_backoff: Duration::from_millis(10),
        refill_interval: Duration::from_millis(1),
        ..Options::default()
    }
}

fn outbox(options: Options) -> Outbox {
    serin::tls::install_crypto_provider();
    Outbox::new(options).expect("an outbox")
}

async fn deliver(to: &Arc<Destination>, notice: &Notification) {
    let outbox = outbox(quick());
    outbox.send(to, notice);
    assert!(outbox.flush(Duration::from_secs(20)).await, "still not delivered");
}

/// What is logged on this thread from now on.
struct Log {
    text: Arc<Mutex<Vec<u8>>>,
    _guard: tracing::subscriber::DefaultGuard,
}

impl Log {
    fn start() -> Log {
        struct Writer(Arc<Mutex<Vec<u8>>>);
        impl std::io::Write for Writer {
            fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
                self.0.lock().extend_from_slice(bytes);
                Ok(bytes.len())
            }
            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }
        let text = Arc::new(Mutex::new(Vec::new()));
        let writer = text.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::TRACE)
            .with_ansi(false)
            .with_writer(move || Writer(writer.clone()))
            .finish();
        Log { text, _guard: tracing::subscriber::set_default(subscriber) }
    }

    /// Of ours; what libraries log at their own levels is not ours to promise.
    fn text(&self) -> String {
        let text = String::from_utf8_lossy(&self.text.lock()).into_owned();
        text.lines().filter(|line| line.contains("serin::")).collect::<Vec<_>>().join("\n")
    }
}
