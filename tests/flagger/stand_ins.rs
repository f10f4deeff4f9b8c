//! What stands in for programs that Flagger's scripts expect in their cluster.
//!
//! - Flagger's load tester is an image, and images do not run here; [`load_tester`] runs the
//!   commands that the scripts have: hey, curl and grpc_health_probe.
//! - hey is a program of the load tester's image; [`Hey`] sends as many requests a second
//!   through the data plane.
//! - istiod and Linkerd's policy controller are not here; [`accept_routes`] reports routes
//!   as they do (`tests/support/route_status.rs` names the sources).
//! - KEDA is not here; [`scale_objects`] sets the size that a trigger of Prometheus asks
//!   for, and the one of the annotation that pauses it.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Json, State};
use axum::routing::post;
use axum::{Router, http::StatusCode};
use http::{HeaderName, HeaderValue, Request, Uri};
use k8s_openapi::api::apps::v1::Deployment;
use kube::api::{Api, ApiResource, DynamicObject, ListParams, Patch, PatchParams};
use kube::{Client, ResourceExt as _};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

use super::data_plane::{Backend, DataPlane, Entry};
use super::support::route_status;

/// Between two looks of a controller.
const PERIOD: Duration = Duration::from_millis(300);

/// Of a load test, whatever `-z` has: a cluster of a script does not live longer.
const LONGEST: Duration = Duration::from_secs(600);

/// Hosts of gateways: Istio's own, and the one that istiod makes for a Gateway.
const GATEWAYS: [&str; 2] = ["istio-ingressgateway.istio-system", "gateway-istio.istio-ingress"];

#[derive(Clone)]
struct LoadTester {
    plane: DataPlane,
    /// Commands under way: the load tester does not start one twice.
    running: Arc<Mutex<HashSet<String>>>,
}

/// `POST /` runs `metadata.cmd`, `POST /gate/approve` says yes.
pub fn load_tester(plane: DataPlane) -> Router {
    let tester = LoadTester { plane, running: Arc::default() };
    Router::new()
        .route("/gate/approve", post(async || StatusCode::OK))
        .route("/", post(run_command))
        .with_state(tester)
}

async fn run_command(State(tester): State<LoadTester>, Json(call): Json<Value>) -> (StatusCode, String) {
    let command = call["metadata"]["cmd"].as_str().unwrap_or_default().to_owned();
    let words = words(&command);
    let namespace = "test";
    let answer = match words.first().map(String::as_str) {
        Some("hey") => {
            if tester.running.lock().insert(command.clone()) {
                tokio::spawn(Hey::parse(&words[1..]).run(tester.clone(), command));
            }
            return (StatusCode::ACCEPTED, String::new());
        }
        Some("curl") => {
            let url = words.last().expect("a URL");
            let mut request = Request::get(url.as_str()).body(Body::empty()).expect("a request");
            if words.iter().any(|word| word == "-sd") {
                *request.method_mut() = http::Method::POST;
            }
            let entry = entry_of(request.uri(), namespace);
            let answer = tester.plane.send(entry, with_host(request)).await;
            answer.is_ok_and(|response| response.status().is_success())
        }
        Some("grpc_health_probe") => {
            let address = words.iter().find_map(|word| word.strip_prefix("-addr=")).expect("an address");
            let uri: Uri = format!("http://{address}").parse().expect("an address");
            match entry_of(&uri, namespace) {
                Entry::Service(backend) => tester.plane.connects(&backend).await,
                Entry::Gateway => false,
            }
        }
        _ => return (StatusCode::BAD_REQUEST, format!("no stand-in for {command}")),
    };
    let status = if answer { StatusCode::OK } else { StatusCode::INTERNAL_SERVER_ERROR };
    (status, format!("{command}: {answer}"))
}

struct Hey {
    requests_per_second: u32,
    headers: Vec<(HeaderName, HeaderValue)>,
    uri: Uri,
}

impl Hey {
    /// `-q` requests a second by each of `-c` clients.
    fn parse(arguments: &[String]) -> Hey {
        let (mut rate, mut clients, mut headers) = (1, 1, Vec::new());
        let mut arguments = arguments.iter();
        let mut uri = None;
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().expect("a value").as_str();
            match argument.as_str() {
                "-q" => rate = value().parse().expect("a rate"),
                "-c" => clients = value().parse().expect("a number of clients"),
                "-host" => {
                    headers.push((http::header::HOST, HeaderValue::from_str(value()).expect("a host")))
                }
                "-H" => {
                    let (name, value) = value().split_once(": ").expect("a header");
                    let name = HeaderName::try_from(name).expect("a name");
                    headers.push((name, HeaderValue::from_str(value).expect("a value")));
                }
                "-z" => _ = value(),
                url => uri = Some(url.parse().expect("a URL")),
            }
        }
        Hey { requests_per_second: rate * clients, headers, uri: uri.expect("a URL") }
    }

    async fn run(self, tester: LoadTester, command: String) {
        let began = Instant::now();
        let mut ticks = interval(Duration::from_secs(1) / self.requests_per_second);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        while began.elapsed() < LONGEST {
            ticks.tick().await;
            let mut request = Request::get(self.uri.clone()).body(Body::empty()).expect("a request");
            request.headers_mut().extend(self.headers.iter().cloned());
            // A request that reaches no pod is the load's own affair, as it is hey's.
            let _ = tester.plane.send(entry_of(&self.uri, "test"), with_host(request)).await;
        }
        tester.running.lock().remove(&command);
    }
}

/// The proxy in front of `http://podinfo-canary.test:9898/`.
fn entry_of(uri: &Uri, namespace: &str) -> Entry {
    let host = uri.host().expect("a host");
    if GATEWAYS.contains(&host) {
        return Entry::Gateway;
    }
    let mut names = host.split('.');
    Entry::Service(Backend {
        name: names.next().expect("a name").to_owned(),
        namespace: names.next().unwrap_or(namespace).to_owned(),
        port: Some(uri.port_u16().unwrap_or(80).into()),
    })
}

fn with_host(mut request: Request<Body>) -> Request<Body> {
    let host = HeaderValue::from_str(request.uri().authority().expect("a host").as_str()).expect("a host");
    request.headers_mut().entry(http::header::HOST).or_insert(host);
    request
}

/// The words of a command, with single quotes around some.
fn words(command: &str) -> Vec<String> {
    let mut words = Vec::new();
    for (at, part) in command.split('\'').enumerate() {
        match at % 2 {
            0 => words.extend(part.split_whitespace().map(str::to_owned)),
            _ => words.push(part.to_owned()),
        }
    }
    words
}

/// Reports every HTTPRoute as accepted, each generation of it.
pub async fn accept_routes(client: Client, routes: ApiResource) {
    let all = Api::<DynamicObject>::all_with(client.clone(), &routes);
    loop {
        for route in all.list(&ListParams::default()).await.map(|list| list.items).unwrap_or_default() {
            let status = route_status::parent_status(&json!(route));
            if route.data["status"]["parents"] != status["parents"] {
                let api = Api::<DynamicObject>::namespaced_with(
                    client.clone(),
                    &route.namespace().expect("a namespace"),
                    &routes,
                );
                let patch = Patch::Merge(json!({ "status": status }));
                // A route that was deleted since.
                let _ = api.patch_status(&route.name_any(), &PatchParams::default(), &patch).await;
            }
        }
        sleep(PERIOD).await;
    }
}

/// Scales the target of each ScaledObject as its trigger asks for, or as it is paused at.
pub async fn scale_objects(client: Client, objects: ApiResource, prometheus: String) {
    let all = Api::<DynamicObject>::all_with(client.clone(), &objects);
    loop {
        for object in all.list(&ListParams::default()).await.map(|list| list.items).unwrap_or_default() {
            let namespace = object.namespace().expect("a namespace");
            let deployments = Api::<Deployment>::namespaced(client.clone(), &namespace);
            let target = object.data["spec"]["scaleTargetRef"]["name"].as_str().expect("a target");
            let Ok(found) = deployments.get(target).await else { continue };
            let present = found.spec.and_then(|spec| spec.replicas).unwrap_or(1);
            let wanted = match object.annotations().get("autoscaling.keda.sh/paused-replicas") {
                Some(paused) => paused.parse().expect("a number of replicas"),
                None => wanted_size(&object.data["spec"], &prometheus).await,
            };
            if wanted != present {
                let patch = Patch::Merge(json!({"spec": {"replicas": wanted}}));
                let _ = deployments.patch_scale(target, &PatchParams::default(), &patch).await;
            }
        }
        sleep(PERIOD * 4).await;
    }
}

/// The value of the trigger divided by its threshold, within the bounds.
async fn wanted_size(spec: &Value, prometheus: &str) -> i32 {
    let trigger = &spec["triggers"][0]["metadata"];
    let query = trigger["query"].as_str().expect("a query");
    let client = reqwest::Client::builder().no_proxy().build().expect("an HTTP client");
    let answer = client.get(format!("{prometheus}/api/v1/query")).query(&[("query", query)]).send().await;
    let answer: Value = match answer {
        Ok(answer) => answer.json().await.unwrap_or_default(),
        Err(_) => Value::Null,
    };
    let value: f64 =
        answer["data"]["result"][0]["value"][1].as_str().and_then(|value| value.parse().ok()).unwrap_or(0.0);
    let threshold: f64 =
        trigger["threshold"].as_str().and_then(|value| value.parse().ok()).expect("a threshold");
    let bound = |name: &str| spec[name].as_i64().expect("a bound") as i32;
    ((value / threshold).ceil() as i32).clamp(bound("minReplicaCount"), bound("maxReplicaCount"))
}
