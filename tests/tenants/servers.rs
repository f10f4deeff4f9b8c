//! Servers of tenants that answer with too much, in real time over real sockets.

use axum::Router;
use serde_json::{Value, json};

use crate::support::http_fixtures::serve;
use crate::{Attack, World};

/// A template of a server with this answer.
fn answered_by(kind: &str, address: &str, template: Value) -> Value {
    let mut spec = json!({"provider": {"type": kind, "address": format!("http://{address}")}});
    json_patch::merge(&mut spec, &template);
    spec
}

/// Each of these took hundreds of megabytes, or the loop for a minute.
#[tokio::test]
async fn large_answers_are_refused() {
    let (json_bomb, _open) =
        serve(Router::new().fallback(async || format!("[{}0]", "{\"\":0},".repeat(1 << 20)))).await;
    let template =
        answered_by("web", &json_bomb, json!({"query": "/", "provider": {"web": {"valueAt": "/0"}}}));
    let attack = Attack { pushes: true, ..Attack::by_template(template, "responded with more than 256 KiB") };
    attack.run(World::new().await).await;
}

#[tokio::test]
async fn a_large_error_does_not_fill_the_status() {
    let error = json!({"status": "error", "errorType": "bad_data", "error": "x".repeat(4 << 20)}).to_string();
    let answer = async move || (http::StatusCode::BAD_REQUEST, error);
    let (server, _open) = serve(Router::new().fallback(answer)).await;
    let template = answered_by("prometheus", &server, json!({"query": "up"}));
    let attack = Attack { pushes: true, ..Attack::by_template(template, "refused the query: xxx") };
    attack.run(World::new().await).await;
}
