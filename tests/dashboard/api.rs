//! The JSON API, its stream and its description, over HTTP.

use std::time::Duration;

use futures::{Stream, StreamExt as _};
use reqwest::Response;
use serde_json::{Value, json};
use serin::api::canary::Phase;
use serin::server::{ServerHandle, dashboard, openapi_document};

use crate::world::{TIMEOUT, World};

async fn get(server: &ServerHandle, path: &str, user: &str, headers: &[(&str, &str)]) -> Response {
    let client = reqwest::Client::builder().no_proxy().build().expect("an HTTP client");
    let request =
        client.get(format!("http://{}{path}", server.address)).bearer_auth(format!("token-of-{user}"));
    let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
    request.send().await.expect("an answer")
}

async fn initialized(spec: Value) -> (World, ServerHandle, tokio_util::task::AbortOnDropHandle<()>) {
    let world = World::new().await.with_web().await;
    let (controller, server) = (world.start().await, world.serve(0).await);
    world.canary(spec).await;
    world.reaches(Phase::Initialized).await;
    (world, server, controller)
}

/// Events of a stream: kind, id, data.
fn events(response: Response) -> impl Stream<Item = (String, Option<String>, Value)> {
    let parts = futures::stream::unfold((response, String::new()), async |(mut response, mut buffer)| {
        loop {
            if let Some((event, rest)) = buffer.split_once("\n\n") {
                let (event, rest) = (event.to_owned(), rest.to_owned());
                return Some((event, (response, rest)));
            }
            let chunk =
                tokio::time::timeout(TIMEOUT, response.chunk()).await.expect("an event").expect("bytes")?;
            buffer.push_str(&String::from_utf8_lossy(&chunk));
        }
    });
    parts.filter_map(async |event: String| {
        let field = |name: &str| event.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        let data = serde_json::from_str(field("data")?).expect("JSON");
        Some((field("event")?.to_owned(), field("id").map(str::to_owned), data))
    })
}

const SIMPLE: fn() -> Value = || json!({"analysis": {"interval": "1s", "warmup": "0s", "stepWeights": [20]}});

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_resumes_where_it_broke() {
    let (world, server, _controller) = initialized(SIMPLE()).await;
    let response = get(&server, "/api/v1/stream", "vera", &[]).await;
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    let mut stream = Box::pin(events(response));
    assert_eq!(stream.next().await.expect("an event").0, "reset");
    let (kind, id, data) = stream.next().await.expect("an event");
    assert_eq!((kind.as_str(), &data["rows"][0]["name"]), ("rows", &json!("web")));
    assert_eq!(data["more"], false);
    drop(stream);
    let id = id.expect("an id");

    world.push("shop/web:v2").await;
    world.reaches(Phase::Progressing).await;
    let mut stream =
        Box::pin(events(get(&server, "/api/v1/stream", "vera", &[("last-event-id", id.as_str())]).await));
    let (kind, _, data) = stream.next().await.expect("an event");
    assert_eq!(kind, "rows", "no reset");
    assert_eq!(data["rows"].as_array().expect("rows").len(), 1, "{data}");

    // An id of another process.
    let mut stream =
        Box::pin(events(get(&server, "/api/v1/stream", "vera", &[("last-event-id", "1-1")]).await));
    assert_eq!(stream.next().await.expect("an event").0, "reset");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_shows_changes_and_deletions() {
    let (world, server, _controller) = initialized(SIMPLE()).await;
    let mut stream = Box::pin(events(get(&server, "/api/v1/stream", "vera", &[]).await));
    let canaries: kube::Api<serin::api::Canary> = kube::Api::namespaced(world.client.clone(), "default");
    canaries.delete("web", &Default::default()).await.expect("a deletion");
    let gone = async {
        while let Some((_, _, data)) = stream.next().await {
            if data["gone"] == json!(["default/web"]) {
                return;
            }
        }
        panic!("the stream ended");
    };
    tokio::time::timeout(TIMEOUT, gone).await.expect("the deletion is shown");
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_are_bounded() {
    let (_world, server, _controller) = initialized(SIMPLE()).await;
    let mut open = Vec::new();
    for _ in 0..256 {
        let response = get(&server, "/api/v1/stream", "vera", &[]).await;
        assert_eq!(response.status(), 200);
        open.push(response);
    }
    let refused = get(&server, "/api/v1/stream", "vera", &[]).await;
    assert_eq!(refused.status(), 503);
    assert!(refused.text().await.expect("text").contains("256 streams are open"));
    drop(open);
    let began = std::time::Instant::now();
    while get(&server, "/api/v1/stream", "vera", &[]).await.status() != 200 {
        assert!(began.elapsed() < TIMEOUT, "places stay taken");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_description_is_of_the_routes_and_their_answers() {
    let (world, server, _controller) = initialized(json!({ "analysis": {
        "interval": "1s", "warmup": "0s", "steps": [{"weight": 20, "iterations": 100}],
        "metrics": [{"name": "request-success-rate"}],
    } }))
    .await;
    let _traffic = world.traffic();
    world.push("shop/web:v2").await;
    let began = std::time::Instant::now();
    loop {
        let course: Value = get(&server, "/api/v1/namespaces/default/canaries/web/course", "olga", &[])
            .await
            .json()
            .await
            .expect("JSON");
        if course["metrics"][0]["measured"][2]["canary"]["interval"].is_array() {
            break;
        }
        assert!(began.elapsed() < TIMEOUT, "{course}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let served: Value = get(&server, "/api/v1/openapi.json", "nora", &[]).await.json().await.expect("JSON");
    assert_eq!(served, openapi_document());
    let paths = served["paths"].as_object().expect("paths");
    for (path, operations) in paths {
        let address = path.replace("{namespace}", "default").replace("{name}", "web");
        if let Some(read) = operations.get("get") {
            let response = get(&server, &address, "olga", &[]).await;
            assert_eq!(response.status(), 200, "{path}");
            let content = &read["responses"]["200"]["content"];
            if let Some(described) = content.get("application/json") {
                let body: Value = response.json().await.expect("JSON");
                let mut wrong = Vec::new();
                check(&served, &described["schema"], &body, path, &mut wrong);
                assert!(wrong.is_empty(), "{}", wrong.join("\n"));
            }
            // Nothing without a token.
            let client = reqwest::Client::builder().no_proxy().build().expect("an HTTP client");
            let anonymous = client.get(format!("http://{}{address}", server.address)).send().await;
            assert_eq!(anonymous.expect("an answer").status(), 401, "{path}");
        }
        if operations.get("post").is_some() {
            let client = reqwest::Client::builder().no_proxy().build().expect("an HTTP client");
            let post =
                client.post(format!("http://{}{address}", server.address)).bearer_auth("token-of-vera");
            assert_eq!(post.send().await.expect("an answer").status(), 403, "{path}");
        }
    }
    assert_eq!(get(&server, "/api/v1/nothing", "olga", &[]).await.status(), 404);
}

/// JSON Schema, as far as the document uses it. What is not described is wrong too.
fn check(document: &Value, schema: &Value, value: &Value, place: &str, wrong: &mut Vec<String>) {
    if let Some(name) = schema["$ref"].as_str() {
        let target = document.pointer(name.trim_start_matches('#'));
        let Some(target) = target else { return wrong.push(format!("{place}: {name} is not there")) };
        return check(document, target, value, place, wrong);
    }
    if let Some(options) = schema["oneOf"].as_array().or(schema["anyOf"].as_array()) {
        let fits = options.iter().any(|option| {
            let mut wrong = Vec::new();
            check(document, option, value, place, &mut wrong);
            wrong.is_empty()
        });
        if !fits {
            wrong.push(format!("{place}: {value} is none of {options:?}"));
        }
        return;
    }
    if let Some(parts) = schema["allOf"].as_array() {
        return parts.iter().for_each(|part| check(document, part, value, place, wrong));
    }
    if let Some(allowed) = schema["enum"].as_array()
        && !allowed.contains(value)
    {
        wrong.push(format!("{place}: {value} is not allowed"));
    }
    let is_type = |name: &str| match name {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_u64() || value.is_i64(),
        "number" => value.is_number(),
        other => panic!("{place}: type {other}"),
    };
    if let Some(name) = schema["type"].as_str()
        && !is_type(name)
    {
        wrong.push(format!("{place}: {value} is no {name}"));
    }
    if let (Some(items), Some(values)) = (schema.get("items"), value.as_array()) {
        values.iter().for_each(|item| check(document, items, item, &format!("{place}[]"), wrong));
    }
    if let (Some(fields), Some(object)) = (schema["properties"].as_object(), value.as_object()) {
        for (name, field) in object {
            match fields.get(name) {
                Some(schema) => check(document, schema, field, &format!("{place}.{name}"), wrong),
                None => wrong.push(format!("{place}.{name} is not described")),
            }
        }
        for name in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            if !object.contains_key(name) {
                wrong.push(format!("{place}.{name} is missing"));
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_is_small_and_may_load_nothing_else() {
    let world = World::new().await;
    let server = world.serve(0).await;
    let mut size = 0;
    for path in ["/", "/dashboard.js", "/dashboard.css", "/icon.svg"] {
        let response = get(&server, path, "nobody", &[]).await;
        let policy = response.headers()["content-security-policy"].to_str().expect("text").to_owned();
        assert!(
            policy.starts_with("default-src 'none'") && policy.contains("script-src 'self';"),
            "{policy}"
        );
        assert!(!policy.contains("unsafe"), "{policy}");
        assert_eq!(response.headers()["x-content-type-options"], "nosniff");
        let text = response.text().await.expect("text");
        let rest = text.replace("http://www.w3.org/", "");
        assert!(
            !rest.contains("http://") && !rest.contains("https://") && !rest.contains("innerHTML"),
            "{path}"
        );
        size += text.len();
    }
    assert_eq!(size, dashboard::SIZE);
    assert!(size < 150_000, "{size} bytes, before compression");
}

/// Else a browser reports an error every minute, when connections are renewed.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_ends_properly_when_its_connection_is_closed() {
    let (_world, server, _controller) = initialized(SIMPLE()).await;
    let mut response = get(&server, "/api/v1/stream", "vera", &[]).await;
    assert!(response.chunk().await.expect("bytes").is_some());
    let read_on = async { while response.chunk().await.expect("no broken end").is_some() {} };
    tokio::join!(server.shutdown(), read_on);
}
