//! Answers from chats: clicks that Slack sends, signed as Slack documents it, and links.

use std::time::Duration;

use hmac::{Hmac, KeyInit as _, Mac as _};
use http::StatusCode;
use jiff::{SignedDuration, Timestamp};
use serde_json::json;
use serin::engine::observed::GateReply;
use serin::gates::annotations::answers;
use serin::gates::question::{LinkSigner, Question, SecretFile};
use serin::server::{BoundServer, LinkOptions, ServerHandle, SlackOptions, link_router, slack_router};
use sha2::Sha256;

use crate::support::{
    Folder,
    receiver::{Receiver, answer},
};
use crate::world::{World, gate};

const SECRET: &str = "8f742231b10e8888abcd99yyyzzz85a5";

/// The endpoint, and the place where Slack takes results.
struct Slack {
    serving: ServerHandle,
    results: Receiver,
    http: reqwest::Client,
    _files: Folder,
}

impl Slack {
    /// The Slack members UALICE and UCAROL may approve, UMALLORY may not.
    async fn start(world: &World, namespaces: &[String]) -> Self {
        let (files, results) = (Folder::new("slack"), Receiver::start([]).await);
        files.write("signing-secret", &format!("{SECRET}\n"));
        let (carol, mallory) = (&world.carol.name, &world.mallory.name);
        let users = format!(
            "UALICE: {{user: alice, groups: [approvers]}}\nUCAROL: {{user: '{carol}', groups: [approvers]}}\nUMALLORY: '{mallory}'\n"
        );
        files.write("users.yaml", &users);
        let options = SlackOptions {
            signing_secret: SecretFile(files.join("signing-secret")),
            users: SecretFile(files.join("users.yaml")),
            response_prefixes: vec![results.url.clone()],
        };
        let router = slack_router(world.client.clone(), namespaces, options).expect("a router");
        let server = BoundServer::bind(([127, 0, 0, 1], 0).into()).await.expect("a free port");
        let http = reqwest::Client::builder().no_proxy().build().expect("an HTTP client");
        Self { serving: server.serve(router, None), results, http, _files: files }
    }

    /// As Slack sends a click on a button of the message about this question.
    fn click(&self, member: &str, action: &str, question: &Question) -> String {
        let payload = json!({
            "type": "block_actions",
            "user": {"id": member, "username": "somebody", "name": "somebody", "team_id": "T1"},
            "api_app_id": "A1", "token": "verification", "trigger_id": "1.2.3",
            "team": {"id": "T1", "domain": "team"},
            "container": {"type": "message", "message_ts": "1700000000.000001", "channel_id": "C1"},
            "channel": {"id": "C1", "name": "releases"},
            "message": {"type": "message", "text": "web.prod: approve?", "ts": "1700000000.000001"},
            "response_url": self.results.url,
            "actions": [{
                "type": "button", "action_id": action, "block_id": "serin_answer",
                "text": {"type": "plain_text", "text": "Approve", "emoji": true},
                "value": json!(question).to_string(), "action_ts": "1700000001.000001",
            }],
        });
        let mut form = reqwest::Url::parse("http://form.invalid/").expect("a URL");
        form.query_pairs_mut().append_pair("payload", &payload.to_string());
        form.query().expect("a form").to_owned()
    }

    async fn send(&self, body: &str, at: Timestamp, secret: &str) -> StatusCode {
        let url = format!("http://{}/api/v1/slack/interactions", self.serving.address);
        let seconds = at.as_second();
        let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).expect("a key");
        mac.update(format!("v0:{seconds}:{body}").as_bytes());
        let signature: String =
            mac.finalize().into_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        let request = self.http.post(url).header("content-type", "application/x-www-form-urlencoded");
        let request = request.header("x-slack-request-timestamp", seconds.to_string());
        let request = request.header("x-slack-signature", format!("v0={signature}")).body(body.to_owned());
        request.send().await.expect("an answer").status()
    }

    /// Clicks, and returns the sentence that Slack shows to the person.
    async fn result_of(&self, member: &str, action: &str, question: &Question) -> String {
        let before = self.results.received().len();
        let body = self.click(member, action, question);
        assert_eq!(self.send(&body, Timestamp::now(), SECRET).await, StatusCode::OK);
        let result = self.results.await_received(before + 1).await.remove(before).json();
        assert_eq!(
            (&result["response_type"], &result["replace_original"]),
            (&json!("ephemeral"), &json!(false))
        );
        result["text"].as_str().expect("a text").to_owned()
    }
}

async fn question(world: &World, name: &str, step: u32) -> Question {
    Question {
        namespace: world.namespace.clone(),
        name: "web".to_owned(),
        uid: world.canary().await.metadata.uid,
        release: 3,
        gate: name.to_owned(),
        step: Some(step),
    }
}

pub async fn a_click_in_slack_approves_as_the_user_of_the_table(world: World) {
    let slack = Slack::start(&world, &[]).await;
    world.set_waiting_gates(&[gate("go-live", None, Some(2))]).await;
    let asked = question(&world, "go-live", 2).await;
    let text = slack.result_of("UALICE", "serin_approve", &asked).await;
    assert_eq!(text, format!("alice approved go-live of web in {}.", world.namespace));
    let written = answers(&world.canary().await);
    assert_eq!((written.len(), written[0].call.gate.as_str()), (1, "go-live"));
    assert_eq!(written[0].reply, GateReply::Yes { by: Some("alice".to_owned()) });
    let text = slack.result_of("UCAROL", "serin_reject", &asked).await;
    assert!(text.contains("rejected go-live"), "{text}");
    let no = GateReply::No { by: Some(world.carol.name.clone()), why: String::new() };
    assert_eq!(answers(&world.canary().await).pop().expect("an answer").reply, no);
}

pub async fn a_click_without_the_right_or_the_table_changes_nothing(world: World) {
    let slack = Slack::start(&world, &[]).await;
    world.set_waiting_gates(&[gate("go-live", None, Some(2))]).await;
    let before = world.canary().await;
    let asked = question(&world, "go-live", 2).await;
    let text = slack.result_of("UMALLORY", "serin_approve", &asked).await;
    assert!(text.contains(&format!("{} may not do that to web", world.mallory.name)), "{text}");
    let text = slack.result_of("USTRANGER", "serin_approve", &asked).await;
    assert!(text.contains("the Slack member USTRANGER is not in the table of users"), "{text}");
    let elsewhere = Question { name: "web?x=1".to_owned(), ..asked };
    let text = slack.result_of("UALICE", "serin_approve", &elsewhere).await;
    assert!(text.contains("cannot be the name of a Canary"), "{text}");
    assert_eq!(world.canary().await.metadata, before.metadata);
}

pub async fn a_click_on_an_old_message_answers_nothing_later(world: World) {
    let slack = Slack::start(&world, &[]).await;
    world.set_waiting_gates(&[gate("go-live", None, Some(2))]).await;
    let before = world.canary().await;
    let asked = question(&world, "go-live", 2).await;
    for old in [
        Question { release: 2, ..asked.clone() },
        Question { step: Some(1), ..asked.clone() },
        Question { uid: Some("another Canary".to_owned()), ..asked.clone() },
        Question { gate: "earlier".to_owned(), ..asked.clone() },
    ] {
        let text = slack.result_of("UALICE", "serin_approve", &old).await;
        assert!(text.contains("of an earlier release or step: nothing is changed"), "{text}");
    }
    world.set_waiting_gates(&[]).await;
    let text = slack.result_of("UALICE", "serin_approve", &asked).await;
    assert!(text.contains("this question is answered"), "{text}");
    assert_eq!(world.canary().await.metadata.annotations, before.metadata.annotations);
}

pub async fn an_interaction_that_slack_did_not_sign_now_is_refused(world: World) {
    let slack = Slack::start(&world, &[]).await;
    world.set_waiting_gates(&[gate("go-live", None, Some(2))]).await;
    let before = world.canary().await;
    let body = slack.click("UALICE", "serin_approve", &question(&world, "go-live", 2).await);
    let now = Timestamp::now();
    let long_ago = now.saturating_sub(SignedDuration::from_secs(600)).expect("a time");
    assert_eq!(slack.send(&body, now, "another secret").await, StatusCode::UNAUTHORIZED);
    assert_eq!(slack.send(&body, long_ago, SECRET).await, StatusCode::UNAUTHORIZED);
    assert_eq!(slack.send("payload=%7B%7D", now, SECRET).await, StatusCode::BAD_REQUEST);
    let url = format!("http://{}/api/v1/slack/interactions", slack.serving.address);
    let unsigned = slack.http.post(url).body(body).send().await.expect("an answer");
    assert_eq!(unsigned.status(), StatusCode::UNAUTHORIZED);
    assert_eq!(unsigned.text().await.expect("a text"), "Unauthorized", "no reason for strangers");
    assert_eq!(world.canary().await.metadata, before.metadata);
    assert_eq!(slack.results.received().len(), 0);
}

pub async fn slack_is_acknowledged_although_its_result_cannot_be_sent(world: World) {
    let slack = Slack::start(&world, &["shop".to_owned()]).await;
    slack.results.set_responses([answer(200, "").after(Duration::from_secs(5))]);
    let body = slack.click("UALICE", "serin_approve", &question(&world, "go-live", 2).await);
    assert_eq!(slack.send(&body, Timestamp::now(), SECRET).await, StatusCode::OK);
    let result = slack.results.await_received(1).await.remove(0).json();
    assert_eq!(
        result["text"],
        format!("Nothing is changed: the namespace {} is not served here", world.namespace)
    );
}

/// The pages of links that answer as one user.
struct Links {
    serving: ServerHandle,
    signer: LinkSigner,
    http: reqwest::Client,
    _files: Folder,
}

impl Links {
    async fn start(world: &World, user: &str) -> Self {
        let files = Folder::new("links");
        files.write("key", &"k".repeat(40));
        let server = BoundServer::bind(([127, 0, 0, 1], 0).into()).await.expect("a free port");
        let key = SecretFile(files.join("key"));
        let signer = LinkSigner { key, base_url: format!("http://{}", server.address) };
        let options = LinkOptions { signer: signer.clone(), user: user.to_owned() };
        let serving = server.serve(link_router(world.client.clone(), &[], options), None);
        let http = reqwest::Client::builder().no_proxy().build().expect("an HTTP client");
        Self { serving, signer, http, _files: files }
    }

    fn links(&self, question: &Question) -> [String; 2] {
        self.signer.links(question, Timestamp::now()).expect("two links")
    }

    async fn get(&self, url: &str) -> (StatusCode, String) {
        let response = self.http.get(url).send().await.expect("an answer");
        let policy = response.headers()["content-security-policy"].to_str().expect("text").to_owned();
        assert!(policy.contains("default-src 'none'") && policy.contains("frame-ancestors 'none'"));
        assert_eq!(response.headers()["cache-control"], "no-store");
        (response.status(), response.text().await.expect("a page"))
    }

    async fn post(&self, url: &str) -> (StatusCode, String) {
        let response = self.http.post(url).send().await.expect("an answer");
        (response.status(), response.text().await.expect("a page"))
    }
}

pub async fn a_link_asks_first_and_then_works_once(world: World) {
    let links = Links::start(&world, &world.carol.name).await;
    world.set_waiting_gates(&[gate("go-live", None, Some(2))]).await;
    let [approve, reject] = links.links(&question(&world, "go-live", 2).await);
    let before = world.canary().await;
    let (code, page) = links.get(&approve).await;
    assert_eq!(code, StatusCode::OK);
    assert!(page.contains("Approve go-live of web") && page.contains("<form method=\"post\">"), "{page}");
    assert_eq!(world.canary().await.metadata, before.metadata, "opening a link is no answer");
    let (code, page) = links.post(&approve).await;
    assert_eq!(code, StatusCode::OK, "{page}");
    let written = answers(&world.canary().await);
    assert_eq!(written.len(), 1);
    assert_eq!(written[0].reply, GateReply::Yes { by: Some(world.carol.name.clone()) });
    // The gate still waits as far as the status is concerned; another process sees the same.
    let restarted = Links::start(&world, &world.carol.name).await;
    let moved =
        |url: &str| url.replace(&links.serving.address.to_string(), &restarted.serving.address.to_string());
    for url in [approve, reject] {
        let (code, page) = restarted.post(&moved(&url)).await;
        assert_eq!(code, StatusCode::CONFLICT, "{page}");
        assert!(page.contains(&format!("this link was used already by {}", world.carol.name)), "{page}");
    }
    assert_eq!(answers(&world.canary().await).len(), 1);
}

pub async fn a_link_needs_the_right_of_its_user_and_a_valid_signature(world: World) {
    let links = Links::start(&world, &world.mallory.name).await;
    world.set_waiting_gates(&[gate("go-live", None, Some(2))]).await;
    let before = world.canary().await;
    let [approve, reject] = links.links(&question(&world, "go-live", 2).await);
    let (code, page) = links.post(&approve).await;
    assert_eq!(code, StatusCode::FORBIDDEN, "{page}");
    assert!(page.contains("may not do that to web"), "{page}");
    let parts =
        |url: &str| url.rsplit_once('.').map(|(claims, mac)| (claims.to_owned(), mac.to_owned())).unwrap();
    let forged = format!("{}.{}", parts(&approve).0, parts(&reject).1);
    for url in [forged, format!("{approve}x"), approve.replace("answers/", "answers/e30.")] {
        assert_eq!(links.get(&url).await.0, StatusCode::NOT_FOUND, "{url}");
        assert_eq!(links.post(&url).await.0, StatusCode::NOT_FOUND, "{url}");
    }
    let asked = question(&world, "go-live", 2).await;
    let yesterday = Timestamp::now().saturating_sub(SignedDuration::from_hours(25)).expect("a time");
    let [old, _] = links.signer.links(&asked, yesterday).expect("two links");
    assert_eq!(links.get(&old).await.0, StatusCode::GONE);
    assert_eq!(links.post(&old).await.0, StatusCode::GONE);
    assert_eq!(world.canary().await.metadata, before.metadata);
}

pub async fn a_link_to_an_earlier_question_answers_nothing(world: World) {
    let links = Links::start(&world, &world.carol.name).await;
    let [approve, _] = links.links(&question(&world, "go-live", 2).await);
    world.set_waiting_gates(&[gate("go-live", None, Some(4))]).await;
    let (code, page) = links.post(&approve).await;
    assert_eq!(code, StatusCode::CONFLICT);
    assert!(page.contains("this question is answered, or of an earlier release or step"), "{page}");
    assert_eq!(answers(&world.canary().await), []);
}
