//! Consul's catalogue through a receiver that follows its documented semantics of
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
use kube::api::DeleteParams;
use parking_lot::Mutex;
use serde_json::{Value, json};
use serin::discovery::model::{Kind, MeshKind};
use tokio_util::task::AbortOnDropHandle;

use super::rest::{Home, LIMIT};
use super::support;
use super::support::http_fixtures::serve;

#[derive(Default)]
struct Catalogue {
    index: u64,
    /// Kind and destination of each service.
    services: BTreeMap<String, (&'static str, &'static str)>,
    token: Option<&'static str>,
    queries: Vec<String>,
}

#[derive(Clone, Default)]
struct Consul(Arc<Mutex<Catalogue>>);

impl Consul {
    async fn start() -> (Self, String, AbortOnDropHandle<()>) {
        let consul = Self(Arc::new(Mutex::new(Catalogue { index: 7, ..Catalogue::default() })));
        let (address, serving) = serve(axum::Router::new().fallback(answer).with_state(consul.clone())).await;
        (consul, format!("http://{address}"), serving)
    }

    fn register(&self, name: &str, kind: &'static str, destination: &'static str) {
        let mut catalogue = self.0.lock();
        catalogue.index += 1;
        catalogue.services.insert(name.to_owned(), (kind, destination));
    }

    fn deregister(&self, name: &str) {
        let mut catalogue = self.0.lock();
        catalogue.index += 1;
        catalogue.services.remove(name);
    }

    /// Blocking queries so far.
    fn waits(&self) -> usize {
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

#[tokio::test]
async fn a_catalogue_is_followed_without_polling() {
    let home = Home::start().await;
    let (consul, address, _serving) = Consul::start().await;
    consul.register("web", "", "");
    consul.register("web-sidecar-proxy", "connect-proxy", "web");
    home.mesh_api("dc1", json!({"consul": {"address": address}})).await;
    home.until_keys(Kind::ConsulService, &["consul:dc1 /web"]).await;
    let status = home.until_ready("dc1", "True", "complete").await;
    assert_eq!((&status["meshes"], &status["objects"]), (&json!(1), &json!(2)), "{status}");
    let meshes = home.inventory.lock().meshes();
    let [mesh] = &meshes[..] else { panic!("{meshes:#?}") };
    assert_eq!((mesh.kind, mesh.name.as_str()), (MeshKind::Consul, "dc1"));

    support::eventually("it waits for a change", LIMIT, async || consul.waits() == 1).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(consul.waits(), 1, "an idle catalogue costs no request");
    consul.register("api", "", "");
    home.until_keys(Kind::ConsulService, &["consul:dc1 /api", "consul:dc1 /web"]).await;
    consul.deregister("web");
    home.until_keys(Kind::ConsulService, &["consul:dc1 /api"]).await;
    let restore = || {
        let mut catalogue = consul.0.lock();
        catalogue.index = 3;
        catalogue.services.insert("old".to_owned(), ("", ""));
    };
    restore();
    home.until_keys(Kind::ConsulService, &["consul:dc1 /api", "consul:dc1 /old"]).await;
    consul.register("new", "", "");
    home.until_keys(Kind::ConsulService, &["consul:dc1 /api", "consul:dc1 /new", "consul:dc1 /old"]).await;
    home.apis().delete("dc1", &DeleteParams::default()).await.expect("deleted");
    support::eventually("nothing is left", LIMIT, async || home.inventory.lock().is_empty()).await;
}

#[tokio::test]
async fn a_refused_token_prunes_nothing_and_is_rotated() {
    let home = Home::start().await;
    let (consul, address, _serving) = Consul::start().await;
    consul.register("web", "", "");
    consul.0.lock().token = Some("first");
    home.secret("dc1", "rest-api", &[("token", "first\n")]).await;
    home.mesh_api("dc1", json!({"consul": {"address": address}, "secretRef": {"name": "dc1"}})).await;
    home.until_keys(Kind::ConsulService, &["consul:dc1 /web"]).await;
    consul.0.lock().token = Some("second");
    consul.deregister("web");
    consul.register("api", "", "");
    home.touch("dc1", json!({"note": "1"})).await;
    let status = home.until_ready("dc1", "False", "403: ACL not found").await;
    assert!(!status.to_string().contains("first"), "{status}");
    home.until_keys(Kind::ConsulService, &["consul:dc1 /web"]).await;
    home.touch("dc1", json!({"token": "second"})).await;
    home.until_keys(Kind::ConsulService, &["consul:dc1 /api"]).await;
    home.until_ready("dc1", "True", "complete").await;
}
