//! A Slack bot: one message for each release, and a question that can be answered.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Value, json};
use serin::api::canary::{Phase, Severity, status::Verdict};
use serin::api::{CanaryStatus, Weight};
use serin::engine::report::Reason;
use serin::notify::thread::{Thread, ThreadRecorder, recorded};
use serin::notify::{AnswerLinks, Destination, Notification, Options, Outbox};

use super::support::slack_api::{CHANNEL, SlackApi, TOKEN};
use super::support::slack_rules::check_slack;
use super::{body_for, canary, notification, notified, outbox, quick, secret, spec};

fn bot(slack: &SlackApi) -> Arc<Destination> {
    let secret = secret(&[("token", TOKEN), ("address", &slack.url)]);
    Arc::new(Destination::new("prod/chat".to_owned(), &spec("slack", None), &secret).expect("a bot"))
}

async fn deliver(outbox: &Outbox, to: &Arc<Destination>, notification: &Notification) {
    outbox.send(to, notification);
    assert!(outbox.flush(Duration::from_secs(60)).await, "still not delivered");
}

/// A step of release `release`.
fn step(release: u64, sentence: &str) -> Notification {
    Notification {
        release,
        sentence: sentence.to_owned(),
        severity: Severity::Info,
        reason: "Advanced",
        ..notification()
    }
}

/// As the engine asks for the approval of a step.
fn question() -> Notification {
    let status: CanaryStatus = serde_json::from_value(json!({
        "phase": "Progressing", "canaryWeight": 50, "releases": 3,
        "revisions": {"candidate": "1-abc"},
        "step": {"index": 2, "total": 5, "progress": "3/5", "name": "go-live"},
        "metrics": [
            {"name": "request-success-rate", "verdict": "Pass", "reason": "alike", "canary": 99.9,
             "at": "1970-01-01T00:00:00Z"},
        ],
    }))
    .expect("a status");
    let asks = Reason::AwaitingApproval { name: "go-live".to_owned(), message: None };
    notified(&status, &asks.into()).remove(0)
}

#[tokio::test]
async fn a_release_has_one_message_that_is_updated_and_its_steps_in_the_thread() {
    let slack = SlackApi::start().await;
    let (to, outbox) = (bot(&slack), outbox(quick()));
    for sentence in ["New revision.", "Step 1 of 5.", "Step 2 of 5."] {
        deliver(&outbox, &to, &step(3, sentence)).await;
    }
    assert_eq!(slack.refusals(), [] as [&str; 0]);
    let messages = slack.messages();
    assert_eq!(messages.len(), 1, "{messages:#?}");
    assert_eq!(messages[0].updates, 2);
    assert_eq!(messages[0].body["attachments"][0]["text"], "Step 2 of 5.");
    let texts = |ts: &str| -> Vec<String> {
        slack.thread_of(ts).iter().map(|reply| reply.body["text"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(texts(&messages[0].ts), ["• Step 1 of 5.", "• Step 2 of 5."]);
    deliver(&outbox, &to, &step(4, "New revision.")).await;
    assert_eq!(slack.messages().len(), 2, "the next release has its own");
}

#[tokio::test]
async fn the_channel_sees_a_question_and_an_end_although_an_update_notifies_nobody() {
    let slack = SlackApi::start().await;
    let (to, outbox) = (bot(&slack), outbox(quick()));
    deliver(&outbox, &to, &step(3, "Step 1 of 5.")).await;
    let ended = Notification { reason: "Promoted", sentence: "Promoted.".to_owned(), ..step(3, "") };
    for notification in [question(), step(3, "Step 4 of 5."), ended, notification()] {
        deliver(&outbox, &to, &notification).await;
    }
    let thread = slack.thread_of(&slack.messages()[0].ts);
    let shown: Vec<bool> = thread.iter().map(|reply| reply.body["reply_broadcast"] == true).collect();
    assert_eq!(shown, [true, false, true, true], "question, step, promotion, rollback");
    assert_eq!(slack.refusals(), [] as [&str; 0]);
}

#[tokio::test]
async fn after_a_restart_the_recorded_message_is_updated() {
    let slack = SlackApi::start().await;
    let to = bot(&slack);
    let written = Arc::<Mutex<Vec<Thread>>>::default();
    let recorder = {
        let written = Arc::clone(&written);
        ThreadRecorder(Arc::new(move |namespace, name, thread: &Thread| {
            assert_eq!((namespace, name), ("prod", "web"));
            written.lock().push(thread.clone());
        }))
    };
    let before = outbox(Options { recorder: Some(recorder.clone()), ..quick() });
    for sentence in ["New revision.", "Step 1 of 5.", "Step 2 of 5."] {
        deliver(&before, &to, &step(3, sentence)).await;
    }
    let threads = written.lock().clone();
    assert_eq!(threads.len(), 1, "one write a release: {threads:?}");
    assert_eq!((threads[0].channel.as_str(), threads[0].release), (CHANNEL, 3));
    // As a restarted controller reads it.
    let mut canary = canary();
    let annotation = (threads[0].annotation(), json!(threads[0]).to_string());
    canary.metadata.annotations = Some(BTreeMap::from([annotation]));
    let threads = recorded(&canary);
    let after = outbox(Options { recorder: Some(recorder), ..quick() });
    let next = |release, uid: &str| Notification {
        threads: threads.clone(),
        uid: Some(uid.to_owned()),
        ..step(release, "Step 3 of 5.")
    };
    deliver(&after, &to, &next(3, "u-1")).await;
    assert_eq!((slack.messages().len(), slack.messages()[0].updates), (1, 3));
    deliver(&after, &to, &next(4, "u-1")).await;
    deliver(&after, &to, &next(3, "u-2")).await;
    assert_eq!(slack.messages().len(), 3, "another release, and a copy of the Canary, have their own");
}

#[tokio::test]
async fn a_deleted_message_is_posted_again() {
    let slack = SlackApi::start().await;
    let (to, outbox) = (bot(&slack), outbox(quick()));
    deliver(&outbox, &to, &step(3, "Step 1 of 5.")).await;
    slack.delete(&slack.messages()[0].ts);
    deliver(&outbox, &to, &step(3, "Step 2 of 5.")).await;
    deliver(&outbox, &to, &step(3, "Step 3 of 5.")).await;
    assert_eq!(slack.refusals(), ["message_not_found"]);
    let messages = slack.messages();
    assert_eq!((messages.len(), messages[0].updates), (1, 1));
    assert_eq!(messages[0].body["attachments"][0]["text"], "Step 3 of 5.");
}

#[tokio::test]
async fn two_bots_in_different_channels_have_their_own_messages() {
    let slack = SlackApi::start().await;
    let (one, outbox) = (bot(&slack), outbox(quick()));
    let other = Arc::new(Destination {
        provider: "prod/other".to_owned(),
        channel: Some("#releases".to_owned()),
        ..Destination::clone(&one)
    });
    for to in [&one, &other, &one, &other] {
        deliver(&outbox, to, &step(3, "A step.")).await;
    }
    let updates: Vec<usize> = slack.messages().iter().map(|message| message.updates).collect();
    assert_eq!(updates, [1, 1]);
}

#[test]
fn an_approval_request_looks_like_a_question_and_says_how_to_answer() {
    let question = question();
    let slack = body_for("slack", &question);
    check_slack(&slack);
    let attachment = &slack["attachments"][0];
    assert!(!["good", "#2eb886"].contains(&attachment["color"].as_str().unwrap()), "not green");
    assert_eq!(slack["icon_emoji"], ":raising_hand:");
    assert_eq!(slack["blocks"][0]["text"]["text"], "web.prod: approve web:v1 → v2?");
    let blocks = slack["blocks"].to_string();
    for part in [
        "██████████░░░░░░░░░░ 50 %",
        "*Verdict* pass: request-success-rate",
        "serin approve web --namespace prod --gate go-live",
        "Cluster blue",
        "<https://serin.example.com/#/c/prod/web|Dashboard>",
    ] {
        assert!(blocks.contains(part), "{part} is not in {blocks}");
    }
    let texts = slack.to_string();
    assert_eq!(texts.matches("50 %").count(), 1, "the weight stands once: {texts}");
    assert_eq!(texts.matches("Progressing").count(), 0, "the phase is in the headline: {texts}");
    let actions = slack["blocks"].as_array().unwrap().iter().find(|block| block["type"] == "actions");
    let buttons = actions.expect("buttons")["elements"].as_array().unwrap();
    let ids: Vec<_> = buttons.iter().map(|button| button["action_id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["serin_approve", "serin_reject"]);
    let value: Value = serde_json::from_str(buttons[0]["value"].as_str().unwrap()).expect("JSON");
    let asked = json!({
        "namespace": "prod", "name": "web", "uid": "u-1", "release": 3, "gate": "go-live", "step": 2,
    });
    assert_eq!(value, asked);
    for kind in ["msteams", "discord", "rocket", "gchat", "webhook"] {
        let text = body_for(kind, &question).to_string();
        assert!(text.contains("serin approve web --namespace prod --gate go-live"), "{kind}: {text}");
    }
}

#[test]
fn an_approval_request_without_buttons_has_its_links() {
    let mut question = question();
    let approval = question.approval.as_mut().expect("a question");
    approval.buttons = false;
    approval.links = Some(AnswerLinks {
        approve_url: "https://s/api/v1/answers/a.b".to_owned(),
        reject_url: "https://s/api/v1/answers/c.d".to_owned(),
    });
    for kind in ["slack", "msteams", "discord", "rocket", "gchat", "webhook"] {
        let text = body_for(kind, &question).to_string();
        for url in ["https://s/api/v1/answers/a.b", "https://s/api/v1/answers/c.d"] {
            assert!(text.contains(url), "{kind}: {text}");
        }
    }
    check_slack(&body_for("slack", &question));
}

#[test]
fn the_icon_of_a_rollback_is_no_rocket_and_a_promotion_has_the_full_bar() {
    let rolled_back = body_for("slack", &notification());
    assert_eq!(rolled_back["icon_emoji"], ":rewind:");
    let promoted = Notification {
        severity: Severity::Info,
        reason: "Promoted",
        phase: Phase::Succeeded,
        weight: Weight::ZERO,
        ..notification()
    };
    for kind in ["slack", "msteams", "discord", "rocket", "gchat"] {
        let text = body_for(kind, &promoted).to_string();
        assert!(text.contains("████████████████████ 100 %"), "{kind}: {text}");
        assert!(!text.contains("rocket:"), "{kind}: {text}");
    }
    assert_eq!(body_for("slack", &promoted)["attachments"][0]["color"], "good");
}

#[test]
fn slack_s_rules_hold_for_a_hostile_question() {
    let long = "<!channel> & \"quoted\" | text. ".repeat(500);
    let mut hostile = question();
    hostile.name = "n".repeat(253);
    hostile.image = Some(long.clone());
    hostile.cluster = Some(long.clone());
    hostile.link = Some(format!("https://x/{}", "<|>".repeat(10)));
    hostile.metrics.iter_mut().for_each(|metric| metric.verdict = Verdict::Fail);
    hostile.metrics[0].name = long.clone();
    for gate in [long.as_str(), "it's `go`"] {
        let approval = hostile.approval.as_mut().expect("a question");
        (approval.gate, approval.command) = (gate.to_owned(), format!("serin approve {gate}"));
        check_slack(&body_for("slack", &hostile));
    }
}
