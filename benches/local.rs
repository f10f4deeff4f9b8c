//! The in-process API beside the real kube-apiserver: writes a second, and how
//! long a change takes to reach a thousand watchers over ten thousand objects.
//!
//! `make bench-local` runs it. Both servers are driven by the same code in the
//! same run, since the machine is shared and noisy: read the ratios.

#[path = "../tests/support/mod.rs"]
mod support;

use std::time::{Duration, Instant};

use futures::{StreamExt, TryStreamExt, stream};
use http::Request;
use http_body_util::BodyExt;
use kube::Client;
use kube_local::{ApiServer, Options};
use serde_json::{Value, json};
use tokio::sync::mpsc;

const OBJECTS: usize = 10_000;
const WATCHERS: usize = 1_000;
const WRITERS: usize = 16;
const FAN_OUT_CHANGES: usize = 30;
const CHANGE_INTERVAL: Duration = Duration::from_millis(300);
const TIMEOUT: Duration = Duration::from_secs(60);

struct Figures {
    creates: f64,
    updates: f64,
    fan_out_p50: Duration,
    fan_out_p99: Duration,
}

fn main() {
    let runtime = tokio::runtime::Runtime::new().expect("a tokio runtime");
    runtime.block_on(async {
        println!("{OBJECTS} ConfigMaps of 1 KiB, {WRITERS} writers, {WATCHERS} watchers\n");
        println!(
            "{:<34}{:>12}{:>12}{:>14}{:>14}",
            "", "creates/s", "updates/s", "fan-out p50", "fan-out p99"
        );

        let local = ApiServer::new(Options::default());
        let in_process = measure("local, in process", &local.client()).await;
        let served = ApiServer::new(Options::default());
        let serving = served.serve(([127, 0, 0, 1], 0).into()).await.expect("a free loopback port");
        let over_tls = measure("local, TLS on loopback", &support::client(&serving.kubeconfig()).await).await;
        let cluster = support::real().await;
        let real = measure("kube-apiserver, TLS on loopback", &cluster.client().await).await;

        println!("\nlocal against kube-apiserver, in this run:");
        for (name, figures) in [("in process", in_process), ("over TLS", over_tls)] {
            println!(
                "  {name:<12} {:>6.1} x creates/s  {:>6.1} x updates/s  fan-out p99 {:.2} x",
                figures.creates / real.creates,
                figures.updates / real.updates,
                figures.fan_out_p99.as_secs_f64() / real.fan_out_p99.as_secs_f64(),
            );
        }
    });
}

async fn measure(name: &str, client: &Client) -> Figures {
    let creates = writes_per_second(client, |i| {
        (http::Method::POST, "/api/v1/namespaces/default/configmaps".into(), config_map(i, 0))
    })
    .await;
    let updates = writes_per_second(client, |i| {
        let path = format!("/api/v1/namespaces/default/configmaps/object-{i}");
        (http::Method::PUT, path, config_map(i, 1))
    })
    .await;
    let mut delays = fan_out(client).await;
    delays.sort_unstable();
    let at = |share: f64| delays[((delays.len() - 1) as f64 * share) as usize];
    let figures = Figures { creates, updates, fan_out_p50: at(0.5), fan_out_p99: at(0.99) };
    println!(
        "{name:<34}{creates:>12.0}{updates:>12.0}{:>11.1} ms{:>11.1} ms",
        figures.fan_out_p50.as_secs_f64() * 1e3,
        figures.fan_out_p99.as_secs_f64() * 1e3
    );
    figures
}

fn config_map(index: usize, turn: usize) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": { "name": format!("object-{index}"), "namespace": "default", "labels": { "app": "bench" } },
        "data": { "turn": turn.to_string(), "payload": "x".repeat(1024) },
    })
}

async fn writes_per_second(client: &Client, request: impl Fn(usize) -> (http::Method, String, Value)) -> f64 {
    let began = Instant::now();
    stream::iter(0..OBJECTS)
        .map(|index| {
            let (method, path, body) = request(index);
            async move { send(client, method, &path, &body).await }
        })
        .buffer_unordered(WRITERS)
        .for_each(|()| async {})
        .await;
    OBJECTS as f64 / began.elapsed().as_secs_f64()
}

async fn send(client: &Client, method: http::Method, path: &str, body: &Value) {
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("content-type", "application/json")
        .body(body.to_string().into_bytes())
        .expect("a valid request");
    client.request_text(request).await.unwrap_or_else(|error| panic!("{path}: {error}"));
}

/// Each change's way to each watcher: from just before the write is sent to
/// the moment the watcher has the line.
async fn fan_out(client: &Client) -> Vec<Duration> {
    let list = Request::get("/api/v1/namespaces/default/configmaps?limit=1")
        .body(Vec::new())
        .expect("a valid request");
    let list: Value = client.request(list).await.expect("a list");
    let version = list["metadata"]["resourceVersion"].as_str().expect("a list has a version").to_owned();

    let (seen, mut arrivals) = mpsc::unbounded_channel();
    for _ in 0..WATCHERS {
        let path = format!("/api/v1/namespaces/default/configmaps?watch=1&resourceVersion={version}");
        let request = Request::get(path).body(kube::client::Body::empty()).expect("a valid request");
        let body = client.send(request).await.expect("a watch").into_body();
        let seen = seen.clone();
        tokio::spawn(async move {
            let mut lines =
                body.into_data_stream().map_ok(|chunk| chunk.iter().filter(|byte| **byte == b'\n').count());
            while let Ok(Some(ended)) = lines.try_next().await {
                for _ in 0..ended {
                    let _ = seen.send(Instant::now());
                }
            }
        });
    }
    let mut delays = Vec::with_capacity(WATCHERS * FAN_OUT_CHANGES);
    for turn in 0..FAN_OUT_CHANGES {
        tokio::time::sleep(CHANGE_INTERVAL).await;
        let written = Instant::now();
        send(
            client,
            http::Method::PUT,
            "/api/v1/namespaces/default/configmaps/object-5000",
            &config_map(5000, turn + 2),
        )
        .await;
        for _ in 0..WATCHERS {
            let arrival = tokio::time::timeout(TIMEOUT, arrivals.recv()).await;
            delays.push(
                arrival.expect("every watcher is told").expect("watchers are alive").duration_since(written),
            );
        }
    }
    delays
}
