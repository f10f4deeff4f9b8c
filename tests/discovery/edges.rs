//! Who calls whom, read from a real Prometheus that scrapes counters as the proxies of
//! Istio and Linkerd export them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::routing::get;
use http::StatusCode;
use serde_json::{Value, json};
use serin::cli::inventory::table::Style;
use serin::cli::inventory::{edges, note_requests};
use serin::discovery::live::LiveInventory;
use serin::metrics::prometheus::Prometheus as Source;
use serin::metrics::prometheus::edges::{CountedBy, Edge, EdgeFilter};
use serin::metrics::{SecretName, ServerAccess};

use super::api::InventoryApi;
use super::support::http_fixtures::serve;
use super::support::prometheus::Prometheus;
use super::support::{self};
use super::{CLUSTER, answer, documents, inventory, object, web, workload};

const LIMIT: Duration = Duration::from_secs(60);

/// Counters that rise with each scrape. Labels as in the standard metrics of Istio
/// (istio.io/docs/reference/config/metrics) and as the Prometheus of linkerd-viz labels
/// pods (linkerd/linkerd2 viz/charts/linkerd-viz/templates/prometheus.yaml).
async fn metrics(State(scrapes): State<Arc<AtomicU64>>) -> String {
    let scrapes = scrapes.fetch_add(1, Ordering::Relaxed);
    let istio = |reporter: &str, source: &str, to: &str, code: u32, each: u64| {
        format!(
            "istio_requests_total{{reporter=\"{reporter}\",source_workload=\"{source}\",source_workload_namespace=\"shop\",\
             destination_workload=\"{to}\",destination_workload_namespace=\"shop\",\
             destination_service_name=\"{to}\",response_code=\"{code}\"}} {}\n",
            scrapes * each
        )
    };
    let linkerd = |from: &str, class: &str, each: u64| {
        format!(
            "response_total{{direction=\"outbound\",namespace=\"bank\",deployment=\"{from}\",dst_namespace=\"bank\",\
             dst_deployment=\"ledger\",dst_service=\"ledger\",classification=\"{class}\"}} {}\n",
            scrapes * each
        )
    };
    [
        istio("source", "web", "api", 200, 9),
        istio("source", "web", "api", 503, 1),
        // The proxy of api has not seen the requests that failed on the way.
        istio("destination", "web", "api", 200, 9),
        istio("destination", "unknown", "web", 200, 4),
        linkerd("teller", "success", 3),
        linkerd("teller", "failure", 1),
        "response_total{direction=\"inbound\",namespace=\"bank\",deployment=\"ledger\"} 7\n".to_owned(),
    ]
    .concat()
}

struct Counted {
    prometheus: Prometheus,
    source: Arc<Source>,
    _exporter: tokio_util::task::AbortOnDropHandle<()>,
}

impl Counted {
    async fn start() -> Self {
        let exporter = Router::new().route("/metrics", get(metrics)).with_state(Arc::default());
        let (address, exporter) = serve(exporter).await;
        let prometheus = Prometheus::start(&format!(
            "- {{job_name: proxies, honor_labels: true, static_configs: [{{targets: ['{address}']}}]}}"
        ))
        .await;
        let source = Arc::new(Source::at(&prometheus.url()).expect("a URL"));
        let counted = Self { prometheus, source, _exporter: exporter };
        let known = async || counted.edges(None, None).await.len() == 3;
        support::eventually("all edges are counted", LIMIT, known).await;
        counted
    }

    fn access(&self) -> ServerAccess {
        ServerAccess { address: Some(self.prometheus.url()), ..Default::default() }
    }

    async fn edges(&self, namespace: Option<&str>, name: Option<&str>) -> Vec<Edge> {
        self.source.edges(EdgeFilter { namespace, name }).await.expect("an answer")
    }
}

/// `web → api` and the success, rounded.
fn shown(edges: &[Edge]) -> Vec<(String, Option<f64>, CountedBy)> {
    let one = |edge: &Edge| {
        assert!(edge.requests_per_second > 0.0, "{edge:?}");
        let ends = format!("{} → {}", edge.source.workload, edge.destination.workload);
        (ends, edge.success.map(|success| (success * 1000.0).round() / 1000.0), edge.counted_by)
    };
    let mut shown: Vec<_> = edges.iter().map(one).collect();
    shown.sort_by(|a, b| a.0.cmp(&b.0));
    shown
}

#[tokio::test]
async fn edges_have_rate_and_success_as_the_caller_counted_them() {
    let counted = Counted::start().await;
    let web_to_api = ("web → api".to_owned(), Some(0.9), CountedBy::Source);
    let to_web = ("unknown → web".to_owned(), Some(1.0), CountedBy::Destination);
    let to_ledger = ("teller → ledger".to_owned(), Some(0.75), CountedBy::Source);
    let all = [to_ledger.clone(), to_web.clone(), web_to_api.clone()];
    assert_eq!(shown(&counted.edges(None, None).await), all);
    assert_eq!(shown(&counted.edges(Some("bank"), None).await), [to_ledger]);
    assert_eq!(shown(&counted.edges(Some("shop"), Some("web")).await), [to_web, web_to_api.clone()]);
    assert_eq!(shown(&counted.edges(Some("shop"), Some("api")).await), [web_to_api]);
    assert_eq!(counted.edges(Some("nobody"), None).await, []);

    let table = edges::report(&counted.edges(Some("bank"), None).await, None, Style::default());
    let table = table.expect("a table").text;
    let row: Vec<&str> = table.lines().nth(1).expect("a row").split_whitespace().collect();
    assert_eq!(
        (&row[..4], &row[5..]),
        (&["bank/teller", "bank/ledger", "ledger", "linkerd"][..], &["75.00", "%"][..])
    );
}

#[tokio::test]
async fn the_api_answers_with_edges_of_namespaces_that_the_caller_may_list() {
    let counted = Counted::start().await;
    let live = LiveInventory::new(CLUSTER);
    let yaml = web("sidecar.istio.io/status: '{}'", "", "")
        + "kind: Served\nmetadata: {name: virtualservices.networking.istio.io}\n---\n"
        + &web("sidecar.istio.io/status: '{}'", "", "").replace("web", "silent");
    live.update(|inventory| documents(&yaml).iter().for_each(|document| inventory.apply(object(document))));
    let api = InventoryApi::with_metrics_server(Arc::clone(&live), Some(counted.access())).await;
    let (code, answer) = api.get("ops-token", "edges?name=api").await;
    assert_eq!((code, &answer["count"]), (StatusCode::OK, &json!(1)), "{answer}");
    assert_eq!(answer["items"][0]["source"], json!({"namespace": "shop", "workload": "web"}), "{answer}");
    assert!(!live.is_wanted(), "edges need no watch of the cluster");
    assert_eq!(api.get("dev-token", "edges?namespace=shop").await.0, StatusCode::FORBIDDEN);

    live.set_ready();
    let istio = |workload: &Value| -> (bool, String) {
        let answers = workload["releasable"].as_array().expect("answers");
        let istio = answers.iter().find(|answer| answer["provider"] == "istio").expect("istio");
        (istio["yes"] == true, istio["why"].as_str().unwrap_or_default().to_owned())
    };
    let (_, asked) = api.get("dev-token", "workloads/shop/web?requests=true").await;
    assert_eq!(istio(&asked), (true, String::new()), "{asked}");
    let (_, unasked) = api.get("dev-token", "workloads/shop/silent").await;
    assert_eq!(istio(&unasked), (true, String::new()), "metrics are read on demand only: {unasked}");
    let (_, silent) = api.get("dev-token", "workloads/shop/silent?requests=true").await;
    let (yes, why) = istio(&silent);
    assert!(!yes && why.starts_with("no request series for five minutes"), "{silent}");
}

#[tokio::test]
async fn the_command_says_that_no_requests_are_counted() {
    let mut counted = Counted::start().await;
    let served = "kind: Served\nmetadata: {name: httproutes.gateway.networking.k8s.io}\n---\n";
    let linkerd = web("linkerd.io/proxy-version: v2", "", "") + served;
    let ledger = linkerd.replace("web", "ledger").replace("shop", "bank");
    let mut inventory = inventory(&(linkerd + &ledger));
    for (namespace, name) in [("shop", "web"), ("bank", "ledger")] {
        note_requests(&mut inventory, &counted.source, Some(namespace), name).await.expect("an answer");
    }
    let silent = answer(workload(&inventory, "web"), "linkerd");
    assert!(silent.why.as_ref().is_some_and(|why| why.starts_with("no request series")), "{silent:?}");
    assert!(answer(workload(&inventory, "web"), "kubernetes").yes, "pods are scraped without a mesh");
    let key = serin::discovery::model::Key::new(
        CLUSTER,
        "bank",
        serin::discovery::model::Kind::Deployment,
        "ledger",
    );
    assert!(answer(inventory.workload(&key).expect("ledger"), "linkerd").yes);

    counted.prometheus.stop();
    let failed = note_requests(&mut inventory, &counted.source, Some("bank"), "ledger").await;
    let failed = failed.expect_err("nobody answers").to_string();
    assert!(failed.starts_with("Prometheus at http://127.0.0.1"), "{failed}");
    assert!(answer(inventory.workload(&key).expect("ledger"), "linkerd").yes, "no answer is no reason");
}

#[tokio::test]
async fn without_a_metrics_server_edges_are_refused_with_the_way_out() {
    let api = InventoryApi::with_metrics_server(LiveInventory::new(CLUSTER), None).await;
    let (code, error) = api.get("ops-token", "edges").await;
    assert_eq!(code, StatusCode::NOT_IMPLEMENTED, "{error}");
    assert!(error["error"].as_str().is_some_and(|why| why.contains("--metrics-server")), "{error}");
}

/// Forwards queries that carry `Bearer right`, and refuses others.
async fn behind_a_token(prometheus: String) -> (String, tokio_util::task::AbortOnDropHandle<()>) {
    let forward = async move |State(prometheus): State<String>, request: axum::extract::Request| {
        if request.headers().get("authorization").is_none_or(|token| token != "Bearer right") {
            return (StatusCode::UNAUTHORIZED, "a token, please".to_owned());
        }
        let (parts, body) = request.into_parts();
        let body = axum::body::to_bytes(body, 1 << 16).await.expect("a query");
        let url = format!("{prometheus}{}", parts.uri.path_and_query().expect("a path"));
        let client = reqwest::Client::builder().no_proxy().build().expect("an HTTP client");
        let mut request = client.request(parts.method, url).body(body);
        if let Some(kind) = parts.headers.get("content-type") {
            request = request.header("content-type", kind.as_bytes());
        }
        let answer = request.send().await.expect("an answer of Prometheus");
        (answer.status(), answer.text().await.expect("text"))
    };
    serve(Router::new().fallback(forward).with_state(prometheus)).await
}

#[tokio::test]
async fn edges_are_read_with_the_secret_of_the_metrics_server_as_it_is_now() {
    let counted = Counted::start().await;
    let (address, _guard) = behind_a_token(counted.prometheus.url()).await;
    let secret = SecretName { namespace: "serin".to_owned(), name: "prometheus".to_owned() };
    let access = ServerAccess {
        address: Some(format!("http://{address}")),
        secret: Some(secret),
        headers: Default::default(),
    };
    let api = InventoryApi::with_metrics_server(LiveInventory::new(CLUSTER), Some(access)).await;
    let (code, missing) = api.get("ops-token", "edges").await;
    assert_eq!(code, StatusCode::BAD_GATEWAY, "{missing}");
    let missing = missing["error"].as_str().unwrap_or_default();
    assert!(missing.contains("Secret prometheus in serin does not exist"), "{missing}");

    let secrets = kube::Api::<k8s_openapi::api::core::v1::Secret>::namespaced(api.api.client(), "serin");
    let secret = |token: &str| -> k8s_openapi::api::core::v1::Secret {
        let secret = json!({ "metadata": { "name": "prometheus" }, "stringData": { "token": token } });
        serde_json::from_value(secret).expect("a Secret")
    };
    let namespaces = kube::Api::<k8s_openapi::api::core::v1::Namespace>::all(api.api.client());
    let namespace = serde_json::from_value(json!({ "metadata": { "name": "serin" } })).expect("a Namespace");
    namespaces.create(&Default::default(), &namespace).await.expect("a namespace");
    secrets.create(&Default::default(), &secret("wrong")).await.expect("a Secret");
    let (code, refused) = api.get("ops-token", "edges").await;
    assert_eq!(code, StatusCode::BAD_GATEWAY, "{refused}");
    assert!(!refused.to_string().contains("wrong"), "{refused}");
    let rotated = kube::api::Patch::Merge(secret("right"));
    secrets.patch("prometheus", &Default::default(), &rotated).await.expect("a rotation");
    let (code, answer) = api.get("ops-token", "edges").await;
    assert_eq!((code, &answer["count"]), (StatusCode::OK, &json!(3)), "{answer}");
}
