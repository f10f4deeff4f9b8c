//! App Mesh as implemented by moto. Virtual services and untagging, which moto
//! lacks, are forwarded to our own server; error codes and times, which differ
//! from those of App Mesh, are converted.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{Method, StatusCode};
use axum::response::Response;
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap};
use serde_json::{Value, json};
use serin::api::Weight;
use serin::engine::action::Split;

use crate::routers::{self, RouterCase, app_mesh_router};
use crate::steps::match_conditions;
use crate::support;
use crate::support::app_mesh::MESH;
use crate::support::http_fixtures::serve;
use crate::support::moto::Moto;
use crate::world::World;

/// Credentials that moto accepts.
const SCOPE: &str = "AWS4-HMAC-SHA256 Credential=AKIATEST/20260101/eu-west-1/appmesh/aws4_request, SignedHeaders=host, Signature=0";

struct MotoFront {
    moto: Moto,
    rest: String,
    http: reqwest::Client,
}

type RawResponse = (StatusCode, HeaderMap, Vec<u8>);

impl MotoFront {
    async fn send(
        &self,
        to: &str,
        method: &Method,
        path: &str,
        headers: &HeaderMap,
        body: Vec<u8>,
    ) -> RawResponse {
        let mut request = self.http.request(method.clone(), format!("{to}{path}")).body(body);
        for name in [AUTHORIZATION, CONTENT_TYPE] {
            if let Some(value) = headers.get(&name) {
                request = request.header(name, value);
            }
        }
        let response = request.send().await.expect("a response");
        let (status, headers) = (response.status(), response.headers().clone());
        (status, headers, response.bytes().await.expect("a body").to_vec())
    }

    async fn get_json(&self, path: &str) -> Value {
        let headers = HeaderMap::from_iter([(AUTHORIZATION, SCOPE.parse().expect("a header"))]);
        let path = format!("/v20190125/meshes/{MESH}/{path}");
        let (status, _, body) = self.send(&self.moto.url(), &Method::GET, &path, &headers, Vec::new()).await;
        assert!(status.is_success(), "{path}: {}", String::from_utf8_lossy(&body));
        serde_json::from_slice(&body).expect("JSON")
    }
}

async fn forward(State(front): State<Arc<MotoFront>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let body = axum::body::to_bytes(body, 1 << 20).await.expect("a body").to_vec();
    let path = parts.uri.path_and_query().expect("a path").to_string();
    let is_ours = path.contains("irtualService") || path.starts_with("/v20190125/untag");
    let (rest, headers) = (front.rest.as_str(), &parts.headers);
    let (status, headers, body) = if is_ours {
        front.send(rest, &parts.method, &path, headers, body).await
    } else {
        // Our server validates the references of virtual services.
        if parts.method != Method::GET {
            front.send(rest, &parts.method, &path, headers, body.clone()).await;
        }
        front.send(&front.moto.url(), &parts.method, &path, headers, body).await
    };
    let text = String::from_utf8_lossy(&body);
    let is_missing = status == StatusCode::BAD_REQUEST && text.contains("NotFound");
    let mut response = Response::builder().status(if is_missing { StatusCode::NOT_FOUND } else { status });
    if is_missing {
        response = response.header("x-amzn-errortype", "NotFoundException");
    } else if let Some(code) = headers.get("x-amzn-errortype") {
        response = response.header("x-amzn-errortype", code);
    }
    let body = match serde_json::from_slice::<Value>(&body) {
        Ok(mut body) => {
            fix_times(&mut body);
            body.to_string().into_bytes()
        }
        Err(_) => body,
    };
    response.body(Body::from(body)).expect("a response")
}

fn fix_times(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                match name.as_str() {
                    "createdAt" | "lastUpdatedAt" if value.is_string() => *value = json!(1_790_000_000),
                    _ => fix_times(value),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(fix_times),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[tokio::test]
async fn a_split_is_written_to_and_read_from_moto() {
    let (case, moto) = (routers::app_mesh_api(), Moto::start().await);
    let mesh = case.mesh.as_ref().expect("a mesh");
    let http = reqwest::Client::builder().no_proxy().build().expect("a client");
    let front = Arc::new(MotoFront { moto, rest: mesh.url.clone(), http });
    let headers = HeaderMap::from_iter([(AUTHORIZATION, SCOPE.parse().expect("a header"))]);
    let body = json!({"meshName": MESH}).to_string().into_bytes();
    let (made, _, _) = front.send(&front.moto.url(), &Method::PUT, "/v20190125/meshes", &headers, body).await;
    assert!(made.is_success(), "{made}");
    let (address, _serving) =
        serve(axum::Router::new().fallback(forward).with_state(Arc::clone(&front))).await;
    let mut options = mesh.options();
    options.account.endpoint = Some(format!("http://{address}"));
    let world =
        World::new(support::local().await, RouterCase { router: app_mesh_router(options), ..case }).await;

    let ten = Split::weight(Weight::from_percent(10.0).unwrap());
    let choosing = Split { matches: match_conditions(&world), ..ten.clone() };
    for split in [Split::all_primary(), ten.clone(), choosing, ten] {
        world.set(&split).await;
    }
    let router = format!("web_{}", world.namespace);
    let [canary, primary] = ["web-canary", "web-primary"].map(|name| format!("{name}_{}", world.namespace));
    let route = front.get_json(&format!("virtualRouter/{router}/routes/web")).await;
    let targets = &route["spec"]["httpRoute"]["action"]["weightedTargets"];
    let target = |at: usize| (targets[at]["virtualNode"].clone(), targets[at]["weight"].clone());
    assert_eq!([target(0), target(1)], [(json!(canary), json!(10)), (json!(primary), json!(90))]);
    let node = front.get_json(&format!("virtualNodes/{canary}")).await;
    let host = format!("web-canary.{}.svc.cluster.local", world.namespace);
    assert_eq!(node["spec"]["serviceDiscovery"]["dns"]["hostname"], json!(host));
    assert_eq!(node["spec"]["listeners"][0]["portMapping"], json!({"port": 8080, "protocol": "http"}));

    world.restore().await;
    for list in ["virtualNodes", "virtualRouters"] {
        assert_eq!(front.get_json(list).await[list], json!([]), "{list}");
    }
}
