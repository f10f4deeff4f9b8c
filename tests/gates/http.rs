//! The command API over HTTP: real requests with real tokens.

use std::time::Duration;

use http::StatusCode;
use serde_json::{Value, json};
use serin::engine::command::Verb;
use serin::engine::observed::GateReply;
use serin::gates::annotations::{answers, commands};
use serin::server::{Access, BoundServer, ServerHandle, command_router};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::world::{ApiUser, World, gate};

/// The command API of a world.
struct CommandApiClient {
    http: reqwest::Client,
    serving: ServerHandle,
    web: String,
}

impl CommandApiClient {
    async fn start(world: &World, served: &[String]) -> Self {
        let server = BoundServer::bind(([127, 0, 0, 1], 0).into()).await.expect("a free port");
        let serving =
            server.serve(command_router(Access::by_token(world.client.clone(), Vec::new()), served), None);
        let http = reqwest::Client::builder().no_proxy().build().expect("an HTTP client");
        Self { http, serving, web: format!("/api/v1/namespaces/{}/canaries/web", world.namespace) }
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.serving.address)
    }

    /// To the Canary `web`, with this body.
    async fn post_command(&self, who: &ApiUser, verb: &str, body: &str) -> (StatusCode, Value) {
        let request = self.http.post(self.url(&format!("{}/{verb}", self.web))).body(body.to_owned());
        send_request(request.bearer_auth(&who.token)).await
    }
}

async fn send_request(request: reqwest::RequestBuilder) -> (StatusCode, Value) {
    let response = request.send().await.expect("an answer");
    (response.status(), response.json().await.expect("JSON"))
}

fn error(answer: &Value) -> &str {
    answer["error"].as_str().unwrap_or_else(|| panic!("no error: {answer}"))
}

pub async fn a_permitted_users_command_is_accepted_over_http(world: World) {
    let (api, carol) = (CommandApiClient::start(&world, &[]).await, &world.carol);
    world.set_waiting_gates(&[gate("first", None, Some(1)), gate("second", None, Some(2))]).await;
    let (code, reply) = api.post_command(carol, "approve", r#"{"gate": "second"}"#).await;
    assert_eq!(
        (code, &reply["gate"], &reply["release"]),
        (StatusCode::ACCEPTED, &json!("second"), &json!(3))
    );
    assert_eq!(reply["by"], *carol.name);
    let written = answers(&world.canary().await);
    assert_eq!((written.len(), written[0].call.gate.as_str()), (1, "second"));
    assert_eq!(written[0].reply, GateReply::Yes { by: Some(carol.name.clone()) });

    let (code, reply) = api.post_command(carol, "reject", r#"{"gate": "first", "reason": "too slow"}"#).await;
    assert_eq!(code, StatusCode::ACCEPTED, "{reply}");
    let no = GateReply::No { by: Some(carol.name.clone()), why: "too slow".to_owned() };
    assert_eq!(answers(&world.canary().await).pop().expect("an answer").reply, no);
}

pub async fn an_unauthenticated_command_is_rejected(world: World) {
    let api = CommandApiClient::start(&world, &[]).await;
    world.set_waiting_gates(&[gate("go-live", None, Some(2))]).await;
    let before = world.canary().await;
    let url = api.url(&format!("{}/approve", api.web));
    for header in
        [None, Some("Bearer made-up"), Some("Bearer "), Some("Basic Y2Fyb2w6cHc="), Some(&*world.carol.token)]
    {
        let request = api.http.post(&url);
        let request =
            header.into_iter().fold(request, |request, header| request.header("authorization", header));
        let response = request.send().await.expect("an answer");
        assert_eq!(response.headers()["www-authenticate"], "Bearer");
        assert_eq!(response.status(), StatusCode::UNAUTHORIZED, "{header:?}");
        let reply: Value = response.json().await.expect("JSON");
        assert!(error(&reply).contains("Authorization: Bearer TOKEN"), "{reply}");
    }
    assert_eq!(world.canary().await.metadata, before.metadata);
}

pub async fn a_forbidden_user_learns_nothing_but_that(world: World) {
    let api = CommandApiClient::start(&world, &[]).await;
    world.set_waiting_gates(&[gate("go-live", None, Some(2))]).await;
    let before = world.canary().await;
    for verb in ["approve", "reject", "promote", "abort"] {
        let (code, reply) = api.post_command(&world.mallory, verb, "").await;
        assert_eq!(code, StatusCode::FORBIDDEN, "{verb}: {reply}");
        let expected = format!("{} may not do that to web", world.mallory.name);
        assert!(error(&reply).starts_with(&expected), "{reply}");
    }
    assert_eq!(world.canary().await.metadata, before.metadata);
    // Nor are existing Canaries disclosed.
    let gone =
        api.http.post(api.url(&format!("/api/v1/namespaces/{}/canaries/gone/approve", world.namespace)));
    assert_eq!(send_request(gone.bearer_auth(&world.mallory.token)).await.0, StatusCode::FORBIDDEN);
}

pub async fn every_command_is_accepted_over_http(world: World) {
    let (api, carol) = (CommandApiClient::start(&world, &[]).await, &world.carol);
    world.set_waiting_gates(&[]).await;
    for verb in Verb::ALL {
        let (code, reply) = api.post_command(carol, verb.name(), r#"{"revision": "1-mine"}"#).await;
        assert_eq!((code, &reply["verb"]), (StatusCode::ACCEPTED, &json!(verb.name())), "{reply}");
        let last = commands(&world.canary().await).pop().expect("a command");
        assert_eq!((last.verb, last.revision.as_deref()), (verb, Some("1-mine")));
        assert_eq!((reply["id"].as_str(), last.by.as_deref()), (Some(&*last.id), Some(&*carol.name)));
    }
    let (_, reply) = api.post_command(carol, "promote", "").await;
    assert_eq!(reply["revision"], "1-abc", "the current revision by default");
}

pub async fn an_invalid_command_is_refused_with_a_remedy(world: World) {
    let (api, carol) = (CommandApiClient::start(&world, &[]).await, &world.carol);
    world.set_waiting_gates(&[]).await;
    let large = format!(r#"{{"reason": "{}"}}"#, "x".repeat(20_000));
    for (verb, body, code, expected) in [
        (
            "applaud",
            "",
            StatusCode::NOT_FOUND,
            "use one of approve, reject, abort, promote, pause, resume, retry, rollback",
        ),
        ("approve", r#"{"gates": "qa"}"#, StatusCode::BAD_REQUEST, "unknown field `gates`, expected `gate`"),
        ("approve", "yes", StatusCode::BAD_REQUEST, "must be a JSON object"),
        ("promote", r#"{"gate": "qa"}"#, StatusCode::BAD_REQUEST, "expected `revision`"),
        ("reject", &large, StatusCode::PAYLOAD_TOO_LARGE, "the body"),
        ("approve", "", StatusCode::CONFLICT, "nothing waits for approval: Judging."),
    ] {
        let (is, reply) = api.post_command(carol, verb, body).await;
        assert_eq!(is, code, "{verb} {body:.40}: {reply}");
        assert!(error(&reply).contains(expected), "{reply}");
    }
    let gone =
        api.http.post(api.url(&format!("/api/v1/namespaces/{}/canaries/gone/approve", world.namespace)));
    let (code, reply) = send_request(gone.bearer_auth(&carol.token)).await;
    let expected = format!("there is no Canary gone in the namespace {}", world.namespace);
    assert_eq!((code, error(&reply)), (StatusCode::NOT_FOUND, &*expected));
    let (code, reply) = send_request(api.http.get(api.url(&format!("{}/approve", api.web)))).await;
    assert_eq!((code, error(&reply)), (StatusCode::METHOD_NOT_ALLOWED, "only POST is supported"));
    let (code, reply) = send_request(api.http.post(api.url("/api/v1/canaries"))).await;
    assert_eq!(code, StatusCode::NOT_FOUND);
    assert!(error(&reply).contains("/api/v1/namespaces/NAMESPACE/canaries/NAME/VERB"), "{reply}");
}

/// The API server would be asked for another URL than that of the rights.
pub async fn a_name_that_is_none_reaches_no_url(world: World) {
    let (api, carol) = (CommandApiClient::start(&world, &[]).await, &world.carol);
    world.set_waiting_gates(&[]).await;
    let before = world.canary().await;
    for name in ["web%3Fx=1", "web%2Fstatus", "..%2fweb", "Web", "-web", "web.", "%00"] {
        let path = format!("/api/v1/namespaces/{}/canaries/{name}/pause", world.namespace);
        let request = api.http.post(api.url(&path)).bearer_auth(&carol.token);
        let (code, reply) = send_request(request).await;
        assert_eq!(code, StatusCode::BAD_REQUEST, "{name}: {reply}");
        assert!(error(&reply).contains("cannot be the name of a Canary"), "{reply}");
    }
    let path = "/api/v1/namespaces/a%2Fb/canaries/web/pause";
    let (code, _) = send_request(api.http.post(api.url(path)).bearer_auth(&carol.token)).await;
    assert_eq!(code, StatusCode::BAD_REQUEST);
    assert_eq!(world.canary().await.metadata, before.metadata);
}

/// Without the rights the body is not waited for, and with them not for long.
pub async fn a_body_that_never_comes_holds_no_turn(world: World) {
    let api = CommandApiClient::start(&world, &[]).await;
    world.set_waiting_gates(&[]).await;
    let begin = async |user: &ApiUser| {
        let mut client = tokio::net::TcpStream::connect(api.serving.address).await.expect("a connection");
        let head = format!(
            "POST {}/pause HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\nconnection: close\r\ncontent-length: 10\r\n\r\n",
            api.web, user.token
        );
        client.write_all(head.as_bytes()).await.expect("a beginning");
        client
    };
    let answer = async |user: &ApiUser| {
        let mut client = begin(user).await;
        let mut line = [0; 12];
        client.read_exact(&mut line).await.expect("a status line");
        String::from_utf8_lossy(&line).into_owned()
    };
    assert_eq!(answer(&world.mallory).await, "HTTP/1.1 403");
    assert_eq!(answer(&world.carol).await, "HTTP/1.1 408");
    // More than there are turns, and no time for one of them to end.
    let mut open = Vec::new();
    for _ in 0..9 {
        open.push(begin(&world.carol).await);
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
    let complete =
        tokio::time::timeout(Duration::from_secs(3), api.post_command(&world.carol, "approve", ""));
    assert_eq!(complete.await.expect("a turn").0, StatusCode::CONFLICT);
}

pub async fn canaries_of_other_namespaces_are_not_disclosed(world: World) {
    let api = CommandApiClient::start(&world, &["shop".to_owned(), "front".to_owned()]).await;
    let (code, reply) = api.post_command(&world.carol, "approve", "").await;
    assert_eq!(code, StatusCode::NOT_FOUND);
    assert_eq!(
        error(&reply),
        format!("namespace {} is not served here; these are: shop, front", world.namespace)
    );
    let api = CommandApiClient::start(&world, std::slice::from_ref(&world.namespace)).await;
    assert_eq!(api.post_command(&world.carol, "approve", "").await.0, StatusCode::CONFLICT);
}
