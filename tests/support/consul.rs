//! Consul's catalogue: a receiver that follows its documented semantics of
//! blocking queries: an answer comes once the index is beyond the one asked for, or after
//! `wait`, and carries `X-Consul-Index` (developer.hashicorp.com/consul/api-docs/features/blocking;
//! hashicorp/consul agent/http.go, v1.22.3). Consul itself does not run here: building it
//! took longer than ten minutes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Query, Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio_util::task::AbortOnDropHandle;

use super::http_fixtures::serve;

#[derive(Default)]
pub struct Catalogue {
    pub index: u64,
    /// Kind and destination of each service.
    pub services: BTreeMap<String, (&'static str, &'static str)>,
    /// Entries of `/v1/health/service/NAME`, by service and ID.
    instances: BTreeMap<(String, String), Value>,
    pub token: Option<&'static str>,
    queries: Vec<String>,
}

#[derive(Clone, Default)]
pub struct Consul(pub Arc<Mutex<Catalogue>>);

impl Consul {
    pub async fn start() -> (Self, String, AbortOnDropHandle<()>) {
        let consul = Self(Arc::new(Mutex::new(Catalogue { index: 7, ..Catalogue::default() })));
        let (address, serving) = serve(axum::Router::new().fallback(answer).with_state(consul.clone())).await;
        (consul, format!("http://{address}"), serving)
    }

    pub fn register(&self, name: &str, kind: &'static str, destination: &'static str) {
        let mut catalogue = self.0.lock();
        catalogue.index += 1;
        catalogue.services.insert(name.to_owned(), (kind, destination));
    }

    pub fn deregister(&self, name: &str) {
        let mut catalogue = self.0.lock();
        catalogue.index += 1;
        catalogue.services.remove(name);
    }

    /// An instance of a service at an address, or at that of its node if empty.
    pub fn instance(&self, service: &str, id: &str, (address, port): (&str, u16), meta: Value) {
        let mut catalogue = self.0.lock();
        catalogue.index += 1;
        catalogue.services.entry(service.to_owned()).or_insert(("", ""));
        let entry = json!({
            "Node": {"Node": "vm", "Address": "127.0.0.9", "Datacenter": "dc1"},
            "Service": {"ID": id, "Service": service, "Address": address, "Port": port, "Meta": meta,
                "Tags": [], "Weights": {"Passing": 10, "Warning": 1}},
            "Checks": [{"CheckID": "serfHealth", "Status": "passing"}],
        });
        catalogue.instances.insert((service.to_owned(), id.to_owned()), entry);
    }

    /// Of one instance.
    pub fn check(&self, service: &str, id: &str, check: &str, status: &str) {
        let mut catalogue = self.0.lock();
        catalogue.index += 1;
        let entry = catalogue.instances.get_mut(&(service.to_owned(), id.to_owned())).expect("an instance");
        entry["Checks"] = json!([{"CheckID": check, "Status": status}]);
    }

    /// Queries of a path so far.
    pub fn queries(&self, path: &str) -> usize {
        self.0.lock().queries.iter().filter(|query| query.starts_with(path)).count()
    }

    /// Blocking queries so far.
    pub fn waits(&self) -> usize {
        self.0.lock().queries.iter().filter(|query| query.contains("index=")).count()
    }
}

async fn answer(
    State(consul): State<Consul>,
    Query(query): Query<BTreeMap<String, String>>,
    request: Request,
) -> Response {
    let path = request.uri().path().to_owned();
    let token = request.headers().get("x-consul-token").and_then(|value| value.to_str().ok());
    {
        let mut catalogue = consul.0.lock();
        catalogue.queries.push(request.uri().to_string());
        if catalogue.token.is_some() && catalogue.token != token {
            return (StatusCode::FORBIDDEN, "ACL not found").into_response();
        }
    }
    let index: u64 = query.get("index").and_then(|index| index.parse().ok()).unwrap_or(0);
    let wait = query.get("wait").and_then(|wait| wait.strip_suffix('s')?.parse().ok()).unwrap_or(300);
    let changed = async {
        // A restore from a snapshot abandons the queries that wait, with a lower index.
        while index > 0 && consul.0.lock().index == index {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let _ = tokio::time::timeout(Duration::from_secs(wait), changed).await;
    let catalogue = consul.0.lock();
    if let Some(name) = path.strip_prefix("/v1/health/service/") {
        let of_service = catalogue.instances.iter().filter(|((service, _), _)| service == name);
        let body: Value = of_service.map(|(_, entry)| entry.clone()).collect();
        return ([("x-consul-index", catalogue.index.to_string())], body.to_string()).into_response();
    }
    let body: Value = match path.strip_prefix("/v1/catalog/service/") {
        None => catalogue.services.keys().map(|name| (name.clone(), json!([]))).collect(),
        Some(name) => match catalogue.services.get(name) {
            None => json!([]),
            Some((kind, destination)) => json!([{"Datacenter": "dc1", "ServiceName": name,
                "ServiceKind": kind, "ServiceProxy": {"DestinationServiceName": destination}}]),
        },
    };
    ([("x-consul-index", catalogue.index.to_string())], body.to_string()).into_response()
}
