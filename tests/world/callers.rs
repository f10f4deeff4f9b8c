//! People who call a Service, and what they got.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use http::Request;
use http_body_util::BodyExt as _;
use kube_local::mesh::Mesh;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;

use super::spawn;

type Headers = Vec<(&'static str, String)>;

/// They call until dropped.
pub struct Traffic {
    counts: Arc<Mutex<TrafficCounts>>,
    _work: AbortOnDropHandle<()>,
}

#[derive(Default)]
struct TrafficCounts {
    /// Good answers by the version that gave them.
    versions: BTreeMap<String, u64>,
    failures: Vec<String>,
}

impl Traffic {
    /// A hundred requests a second, each with these headers.
    pub fn start(
        mesh: Mesh,
        namespace: &str,
        service: &'static str,
        headers: &[(&'static str, &str)],
    ) -> Self {
        let got = Arc::<Mutex<TrafficCounts>>::default();
        let headers: Headers = headers.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
        let (namespace, kept) = (namespace.to_owned(), Arc::clone(&got));
        let work = spawn(async move {
            loop {
                sleep(Duration::from_millis(10)).await;
                let (mesh, namespace, headers) = (mesh.clone(), namespace.clone(), headers.clone());
                let kept = Arc::clone(&kept);
                tokio::spawn(async move {
                    let answer = call(&mesh, &namespace, service, &headers).await;
                    let mut kept = kept.lock();
                    match answer {
                        Ok(version) => *kept.versions.entry(version).or_default() += 1,
                        Err(why) => kept.failures.push(why),
                    }
                });
            }
        });
        Self { counts: got, _work: work }
    }

    /// How many good answers each version gave.
    pub fn versions(&self) -> BTreeMap<String, u64> {
        self.counts.lock().versions.clone()
    }

    pub fn served_by(&self, version: &str) -> u64 {
        self.counts.lock().versions.get(version).copied().unwrap_or_default()
    }

    /// How many requests failed.
    pub fn bad(&self) -> usize {
        self.counts.lock().failures.len()
    }

    /// Everybody was served, and somebody asked.
    #[track_caller]
    pub fn assert_all_served(&self) {
        let got = self.counts.lock();
        let failures = &got.failures[..got.failures.len().min(5)];
        assert!(got.failures.is_empty(), "{} requests failed: {failures:?}", got.failures.len());
        assert!(!got.versions.is_empty(), "nobody asked");
    }
}

/// The version that answers, or why none does.
pub async fn call(
    mesh: &Mesh,
    namespace: &str,
    service: &str,
    headers: &[(&'static str, String)],
) -> Result<String, String> {
    let request =
        headers.iter().fold(Request::get("/"), |request, (name, value)| request.header(*name, value));
    let request = request.body(Body::empty()).expect("a request");
    let answer = mesh.send(namespace, service, request).await.map_err(|error| error.to_string())?;
    let status = answer.response.status();
    if !status.is_success() {
        return Err(format!("{} answers {status}", answer.backend));
    }
    let body = answer.response.into_body().collect().await.map_err(|error| error.to_string())?;
    let body: Value = serde_json::from_slice(&body.to_bytes()).map_err(|error| error.to_string())?;
    body["version"].as_str().map(str::to_owned).ok_or_else(|| format!("no version in {body}"))
}
