//! What people say over HTTP: real requests with real tokens.

use http::StatusCode;
use serde_json::{Value, json};
use serin::engine::command::Verb;
use serin::engine::observed::Reply;
use serin::gates::annotations::{answers, commands};
use serin::server::{Server, Serving, people};

use crate::world::{Known, World, gate};

/// Where the people of a world are heard.
struct Ear {
    http: reqwest::Client,
    serving: Serving,
    web: String,
}

impl Ear {
    async fn of(world: &World, served: &[String]) -> Self {
        let server = Server::bind(([127, 0, 0, 1], 0).into()).await.expect("a free port");
        let serving = server.serve(people(world.client.clone(), served), None);
        let http = reqwest::Client::builder().no_proxy().build().expect("an HTTP client");
        Self { http, serving, web: format!("/api/v1/namespaces/{}/canaries/web", world.namespace) }
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.serving.address)
    }

    /// To the Canary `web`, with this body.
    async fn say(&self, who: &Known, verb: &str, body: &str) -> (StatusCode, Value) {
        let request = self.http.post(self.url(&format!("{}/{verb}", self.web))).body(body.to_owned());
        answer(request.bearer_auth(&who.token)).await
    }
}

async fn answer(request: reqwest::RequestBuilder) -> (StatusCode, Value) {
    let response = request.send().await.expect("an answer");
    (response.status(), response.json().await.expect("JSON"))
}

fn error(answer: &Value) -> &str {
    answer["error"].as_str().unwrap_or_else(|| panic!("no error: {answer}"))
}

pub async fn who_may_is_heard_over_http(world: World) {
    let (ear, carol) = (Ear::of(&world, &[]).await, &world.carol);
    world.asks(&[gate("first", None, Some(1)), gate("second", None, Some(2))]).await;
    let (code, said) = ear.say(carol, "approve", r#"{"gate": "second"}"#).await;
    assert_eq!((code, &said["gate"], &said["release"]), (StatusCode::ACCEPTED, &json!("second"), &json!(3)));
    assert_eq!(said["by"], *carol.name);
    let written = answers(&world.canary().await);
    assert_eq!((written.len(), written[0].question.gate.as_str()), (1, "second"));
    assert_eq!(written[0].reply, Reply::Yes { by: Some(carol.name.clone()) });

    let (code, said) = ear.say(carol, "reject", r#"{"gate": "first", "reason": "too slow"}"#).await;
    assert_eq!(code, StatusCode::ACCEPTED, "{said}");
    let no = Reply::No { by: Some(carol.name.clone()), why: "too slow".to_owned() };
    assert_eq!(answers(&world.canary().await).pop().expect("an answer").reply, no);
}

pub async fn whom_nobody_knows_is_not_heard(world: World) {
    let ear = Ear::of(&world, &[]).await;
    world.asks(&[gate("go-live", None, Some(2))]).await;
    let before = world.canary().await;
    let url = ear.url(&format!("{}/approve", ear.web));
    for header in
        [None, Some("Bearer made-up"), Some("Bearer "), Some("Basic Y2Fyb2w6cHc="), Some(&*world.carol.token)]
    {
        let request = ear.http.post(&url);
        let request =
            header.into_iter().fold(request, |request, header| request.header("authorization", header));
        let response = request.send().await.expect("an answer");
        assert_eq!(response.headers()["www-authenticate"], "Bearer");
        assert_eq!(response.status(), StatusCode::UNAUTHORIZED, "{header:?}");
        let said: Value = response.json().await.expect("JSON");
        assert!(error(&said).contains("Authorization: Bearer TOKEN"), "{said}");
    }
    assert_eq!(world.canary().await.metadata, before.metadata);
}

pub async fn who_may_not_is_told_so_and_nothing_else(world: World) {
    let ear = Ear::of(&world, &[]).await;
    world.asks(&[gate("go-live", None, Some(2))]).await;
    let before = world.canary().await;
    for verb in ["approve", "reject", "promote", "abort"] {
        let (code, said) = ear.say(&world.mallory, verb, "").await;
        assert_eq!(code, StatusCode::FORBIDDEN, "{verb}: {said}");
        let expected = format!("{} may not do that to web", world.mallory.name);
        assert!(error(&said).starts_with(&expected), "{said}");
    }
    assert_eq!(world.canary().await.metadata, before.metadata);
    // Nor do they learn what there is.
    let gone =
        ear.http.post(ear.url(&format!("/api/v1/namespaces/{}/canaries/gone/approve", world.namespace)));
    assert_eq!(answer(gone.bearer_auth(&world.mallory.token)).await.0, StatusCode::FORBIDDEN);
}

pub async fn every_command_is_heard_over_http(world: World) {
    let (ear, carol) = (Ear::of(&world, &[]).await, &world.carol);
    world.asks(&[]).await;
    for verb in Verb::ALL {
        let (code, said) = ear.say(carol, verb.name(), r#"{"revision": "1-mine"}"#).await;
        assert_eq!((code, &said["verb"]), (StatusCode::ACCEPTED, &json!(verb.name())), "{said}");
        let last = commands(&world.canary().await).pop().expect("a command");
        assert_eq!((last.verb, last.revision.as_deref()), (verb, Some("1-mine")));
        assert_eq!((said["id"].as_str(), last.by.as_deref()), (Some(&*last.id), Some(&*carol.name)));
    }
    let (_, said) = ear.say(carol, "promote", "").await;
    assert_eq!(said["revision"], "1-abc", "without a word the present one is meant");
}

pub async fn what_is_misspelt_is_refused_with_the_way_out(world: World) {
    let (ear, carol) = (Ear::of(&world, &[]).await, &world.carol);
    world.asks(&[]).await;
    let large = format!(r#"{{"reason": "{}"}}"#, "x".repeat(20_000));
    for (verb, body, code, expected) in [
        (
            "applaud",
            "",
            StatusCode::NOT_FOUND,
            "say one of approve, reject, abort, promote, pause, resume, retry, rollback",
        ),
        ("approve", r#"{"gates": "qa"}"#, StatusCode::BAD_REQUEST, "unknown field `gates`, expected `gate`"),
        ("approve", "yes", StatusCode::BAD_REQUEST, "must be a JSON object"),
        ("promote", r#"{"gate": "qa"}"#, StatusCode::BAD_REQUEST, "expected `revision`"),
        ("reject", &large, StatusCode::PAYLOAD_TOO_LARGE, "the body"),
        ("approve", "", StatusCode::CONFLICT, "nothing waits for approval: Judging."),
    ] {
        let (is, said) = ear.say(carol, verb, body).await;
        assert_eq!(is, code, "{verb} {body:.40}: {said}");
        assert!(error(&said).contains(expected), "{said}");
    }
    let gone =
        ear.http.post(ear.url(&format!("/api/v1/namespaces/{}/canaries/gone/approve", world.namespace)));
    let (code, said) = answer(gone.bearer_auth(&carol.token)).await;
    let expected = format!("there is no Canary gone in the namespace {}", world.namespace);
    assert_eq!((code, error(&said)), (StatusCode::NOT_FOUND, &*expected));
    let (code, said) = answer(ear.http.get(ear.url(&format!("{}/approve", ear.web)))).await;
    assert_eq!(
        (code, error(&said)),
        (StatusCode::METHOD_NOT_ALLOWED, "only POST says something to a Canary")
    );
    let (code, said) = answer(ear.http.post(ear.url("/api/v1/canaries"))).await;
    assert_eq!(code, StatusCode::NOT_FOUND);
    assert!(error(&said).contains("/api/v1/namespaces/NAMESPACE/canaries/NAME/VERB"), "{said}");
}

pub async fn other_namespaces_are_not_spoken_of(world: World) {
    let ear = Ear::of(&world, &["shop".to_owned(), "front".to_owned()]).await;
    let (code, said) = ear.say(&world.carol, "approve", "").await;
    assert_eq!(code, StatusCode::NOT_FOUND);
    assert_eq!(
        error(&said),
        format!("namespace {} is not served here; these are: shop, front", world.namespace)
    );
    let ear = Ear::of(&world, std::slice::from_ref(&world.namespace)).await;
    assert_eq!(ear.say(&world.carol, "approve", "").await.0, StatusCode::CONFLICT);
}
