//! The inventory over HTTP: real requests with tokens of users.

use std::sync::Arc;

use http::StatusCode;
use kube_local::access::{Grant, Identity};
use kube_local::{ApiServer, Options};
use serde_json::{Value, json};
use serin::discovery::live::LiveInventory;
use serin::metrics::{OwnMetricsServer, ServerAccess};
use serin::server::{Access, BoundServer, ServerHandle, command_router, inventory_router};

use super::{CLUSTER, documents, object, web};

pub struct InventoryApi {
    http: reqwest::Client,
    serving: ServerHandle,
    pub api: ApiServer,
}

fn grant(subject: &str, verb: &str, resource: &str, namespace: &str) -> Grant {
    Grant {
        subject: subject.to_owned(),
        verb: verb.to_owned(),
        group: "serin.dev".to_owned(),
        resource: resource.to_owned(),
        namespace: namespace.to_owned(),
    }
}

impl InventoryApi {
    async fn start(live: Arc<LiveInventory>) -> Self {
        Self::with_metrics_server(live, None).await
    }

    /// `dev` may list workloads of `shop`; `ops` everything.
    pub async fn with_metrics_server(live: Arc<LiveInventory>, server: Option<ServerAccess>) -> Self {
        serin::tls::install_crypto_provider();
        let user = |name: &str| Identity { user: name.to_owned(), groups: Vec::new() };
        let all = ["meshes", "workloads", "meshservices"];
        let ops =
            all.iter().flat_map(|resource| ["list", "get"].map(|verb| grant("ops", verb, resource, "")));
        let dev = ["list", "get"].map(|verb| grant("dev", verb, "workloads", "shop"));
        let api = ApiServer::new(Options {
            users: vec![("dev-token".to_owned(), user("dev")), ("ops-token".to_owned(), user("ops"))],
            grants: ops.chain(dev).collect(),
            ..Options::default()
        });
        let server = server.map(|access| OwnMetricsServer::new(api.client(), access));
        let access = Access::by_token(api.client(), Vec::new());
        let router = command_router(Arc::clone(&access), &[]).merge(inventory_router(access, live, server));
        let bound = BoundServer::bind(([127, 0, 0, 1], 0).into()).await.expect("a free port");
        let serving = bound.serve(router, None);
        let http = reqwest::Client::builder().no_proxy().build().expect("an HTTP client");
        Self { http, serving, api }
    }

    pub async fn get(&self, token: &str, path: &str) -> (StatusCode, Value) {
        let url = format!("http://{}/api/v1/inventory/{path}", self.serving.address);
        let response = self.http.get(url).bearer_auth(token).send().await.expect("an answer");
        (response.status(), response.json().await.expect("JSON"))
    }
}

fn shop_and_bank() -> Arc<LiveInventory> {
    let live = LiveInventory::new(CLUSTER);
    let shop = web("sidecar.istio.io/status: '{}'", "", "");
    let bank = web("", "", "").replace("namespace: shop", "namespace: bank");
    live.update(|inventory| {
        documents(&(shop + &bank)).iter().for_each(|document| inventory.apply(object(document)));
    });
    live.set_ready();
    live
}

#[tokio::test]
async fn a_caller_sees_the_namespaces_that_they_may_list() {
    let api = InventoryApi::start(shop_and_bank()).await;
    let (code, all) = api.get("ops-token", "workloads").await;
    assert_eq!((code, &all["count"]), (StatusCode::OK, &json!(2)), "{all}");
    let (code, shop) = api.get("dev-token", "workloads?namespace=shop").await;
    assert_eq!((code, &shop["count"]), (StatusCode::OK, &json!(1)), "{shop}");
    assert_eq!(shop["items"][0]["meshes"][0]["mesh"], "istio");
    assert!(shop["items"][0]["facts"][0]["evidence"]["field"].is_string(), "{shop}");
    for path in
        ["workloads", "workloads?namespace=bank", "workloads/bank/web", "services?namespace=shop", "meshes"]
    {
        let (code, error) = api.get("dev-token", path).await;
        assert_eq!(code, StatusCode::FORBIDDEN, "{path}: {error}");
        let sentence = error["error"].as_str().expect("a sentence");
        assert!(sentence.starts_with("dev may not ") && sentence.contains("serin.dev"), "{sentence}");
    }
    let (code, one) = api.get("dev-token", "workloads/shop/web").await;
    assert_eq!((code, &one["key"]["name"]), (StatusCode::OK, &json!("web")), "{one}");
    assert_eq!(api.get("dev-token", "workloads/shop/nobody").await.0, StatusCode::NOT_FOUND);
    assert_eq!(api.get("made-up", "workloads?namespace=shop").await.0, StatusCode::UNAUTHORIZED);
    assert_eq!(api.get("ops-token", "nonsense").await.0, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn answers_are_pages() {
    let live = LiveInventory::new(CLUSTER);
    live.update(|inventory| {
        for at in 0..25 {
            let service =
                json!({"kind": "Service", "metadata": {"name": format!("s{at:02}"), "namespace": "shop"}});
            inventory.apply(object(&service));
        }
    });
    live.set_ready();
    let api = InventoryApi::start(live).await;
    let (mut names, mut token) = (Vec::new(), None::<String>);
    loop {
        let after = token.map(|token| format!("&continue={token}")).unwrap_or_default();
        let (code, page) = api.get("ops-token", &format!("services?limit=10{after}")).await;
        assert_eq!((code, &page["count"]), (StatusCode::OK, &json!(25)), "{page}");
        let items = page["items"].as_array().expect("items");
        assert!(items.len() <= 10);
        names.extend(items.iter().map(|item| item["key"]["name"].as_str().expect("a name").to_owned()));
        match page["continue"].as_str() {
            Some(next) => token = Some(next.to_owned()),
            None => break,
        }
    }
    assert_eq!(names, (0..25).map(|at| format!("s{at:02}")).collect::<Vec<_>>());
    assert_eq!(api.get("ops-token", "services?continue=nonsense").await.0, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn an_inventory_that_is_not_complete_is_not_served() {
    let live = LiveInventory::new(CLUSTER);
    let api = InventoryApi::start(live.clone()).await;
    let (code, error) = api.get("ops-token", "workloads").await;
    assert_eq!(code, StatusCode::SERVICE_UNAVAILABLE, "{error}");
    assert!(live.is_wanted(), "the request starts it");
}
