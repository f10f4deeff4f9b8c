//! SMI's TrafficMetrics through the aggregation layer of the real API server: the rendered
//! APIService leads to `serin run` with the rendered arguments and rights, which reads a real
//! Prometheus.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use axum::{Router, extract::State, routing::get};
use base64::Engine as _;
use http::StatusCode;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use serde_json::{Value, json};

use crate::install::{install, installed};
use crate::rbac::Stage;
use crate::rbac_rule::RbacRule;
use crate::replicas::ReplicaGroup;
use crate::support::chart::{Kubectl, token};
use crate::support::http_fixtures::serve;
use crate::support::prometheus::Prometheus;
use crate::support::{Cluster, eventually};

const HOME: &str = "serin-smi";
const LIMIT: Duration = Duration::from_secs(120);
const API: &str = "/apis/metrics.smi-spec.io/v1alpha1";

/// Of each scrape: 9 requests succeed and 1 fails, half of them take at most 10 ms, nine
/// tenths 20 ms, and 99 of 100 at most 100 ms. Labels as Istio has them
/// (istio.io/docs/reference/config/metrics), Linkerd with the relabelling of linkerd-viz
/// (linkerd/linkerd2 viz/charts/linkerd-viz/templates/prometheus.yaml), and Envoy
/// (envoyproxy.io/docs/envoy/latest/configuration/upstream/cluster_manager/cluster_stats).
async fn metrics(State((scrapes, namespace)): State<(Arc<AtomicU64>, String)>) -> String {
    let scrapes = scrapes.fetch_add(1, Ordering::Relaxed) + 1;
    let istio = |reporter: &str, source: &str, to: &str, pod: &str| {
        format!(
            "reporter=\"{reporter}\",source_workload=\"{source}\",source_workload_namespace=\"{namespace}\",\
             destination_workload=\"{to}\",destination_workload_namespace=\"{namespace}\",\
             destination_service_name=\"{to}\",destination_service_namespace=\"{namespace}\",pod=\"{pod}\""
        )
    };
    let linkerd = format!(
        "direction=\"outbound\",namespace=\"{namespace}\",deployment=\"teller\",dst_namespace=\"{namespace}\",\
         dst_statefulset=\"ledger\",dst_service=\"ledger\""
    );
    let inbound =
        format!("direction=\"inbound\",srv_port=\"8080\",namespace=\"{namespace}\",statefulset=\"ledger\"");
    let envoy = format!("envoy_cluster_name=\"{namespace}_web-canary_80\"");
    let istio_of = |labels: String| {
        series(
            "istio_requests_total",
            "istio_request_duration_milliseconds",
            &labels,
            "response_code",
            scrapes,
        )
    };
    let linkerd_of =
        |labels: &str| series("response_total", "response_latency_ms", labels, "classification", scrapes);
    [
        istio_of(istio("destination", "front", "web", "web-1")),
        // Counted by both ends.
        istio_of(istio("source", "web", "api", "web-1")),
        istio_of(istio("destination", "web", "api", "api-1")),
        linkerd_of(&inbound),
        linkerd_of(&linkerd),
        series(
            "envoy_cluster_upstream_rq",
            "envoy_cluster_upstream_rq_time",
            &envoy,
            "envoy_response_code",
            scrapes,
        ),
    ]
    .concat()
}

fn series(counter: &str, durations: &str, labels: &str, code: &str, scrapes: u64) -> String {
    let (good, bad) = if code == "classification" { ("success", "failure") } else { ("200", "503") };
    let buckets = [("10", 50), ("20", 90), ("100", 99), ("+Inf", 100)];
    let buckets = buckets
        .map(|(le, count)| format!("{durations}_bucket{{{labels},le=\"{le}\"}} {}\n", scrapes * count));
    format!(
        "{counter}{{{labels},{code}=\"{good}\"}} {}\n{counter}{{{labels},{code}=\"{bad}\"}} {scrapes}\n{}",
        scrapes * 9,
        buckets.concat()
    )
}

/// The certificate of the API, and its authority.
struct Tls {
    authority: String,
    certificate: String,
    key: String,
}

impl Tls {
    fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key pair");
        let authority = params.self_signed(&key).expect("an authority").pem();
        let issuer = Issuer::new(params, key);
        let own = KeyPair::generate().expect("a key pair");
        let params = CertificateParams::new(vec![format!("{HOME}.{HOME}.svc")]).expect("a name");
        let certificate = params.signed_by(&own, &issuer).expect("a certificate").pem();
        Self { authority, certificate, key: own.serialize_pem() }
    }

    /// A client that knows the API by its name, with a certificate of the front proxy or none.
    fn client(&self, api: SocketAddr, own: Option<(String, String)>) -> reqwest::Client {
        let authority = reqwest::Certificate::from_pem(self.authority.as_bytes()).expect("PEM");
        let mut client = reqwest::Client::builder()
            .no_proxy()
            .tls_certs_only([authority])
            .resolve(&format!("{HOME}.{HOME}.svc"), api);
        if let Some((certificate, key)) = own {
            let identity = reqwest::Identity::from_pem(format!("{certificate}{key}").as_bytes());
            client = client.identity(identity.expect("PEM"));
        }
        client.build().expect("an HTTP client")
    }
}

/// Objects that have metrics, and some that have none; and two users.
fn objects(namespace: &str) -> Vec<Value> {
    let workload = |kind: &str, name: &str, labels: Value| {
        json!({"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name, "namespace": namespace, "labels": labels},
            "spec": {"replicas": 0, "selector": {"matchLabels": {"app": name}},
                "template": {"metadata": {"labels": {"app": name}}, "spec": {"containers": [{"name": "app", "image": "app:v1"}]}}}})
    };
    let plain = |kind: &str, name: &str, spec: Value| json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "namespace": namespace}, "spec": spec});
    let account = |name: &str| json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": namespace}});
    let pod = json!({"containers": [{"name": "app", "image": "app:v1"}]});
    vec![
        workload("Deployment", "web", json!({"tier": "front"})),
        workload("Deployment", "silent", json!({"tier": "front"})),
        workload("Deployment", "api", json!({"tier": "back"})),
        workload("StatefulSet", "ledger", json!({})),
        plain("Pod", "web-1", pod),
        plain("Service", "web-canary", json!({"ports": [{"port": 80}]})),
        account("viewer"),
        account("nobody"),
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
            "metadata": {"name": "viewer", "namespace": namespace},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
            "subjects": [{"kind": "ServiceAccount", "name": "viewer", "namespace": namespace}]}),
    ]
}

/// Counts in their ratio, and latencies.
fn assert_measured(document: &Value) {
    let value = |name: &str| {
        let all = document["metrics"].as_array().expect("metrics");
        let metric = all.iter().find(|metric| metric["name"] == *name);
        metric.unwrap_or_else(|| panic!("{name}: {document}"))["value"]
            .as_str()
            .expect("a quantity")
            .to_owned()
    };
    let latencies = ["p50_response_latency", "p90_response_latency", "p99_response_latency"].map(value);
    assert_eq!(latencies, ["10m", "20m", "100m"], "{document}");
    let [success, failure]: [u64; 2] =
        ["success_count", "failure_count"].map(|name| value(name).parse().expect("a whole number"));
    assert!(failure > 0 && success == 9 * failure, "{document}");
}

fn is_measured(document: &Value) -> bool {
    document["metrics"].as_array().is_some_and(|metrics| metrics.len() == 5)
}

struct Api<'a> {
    kubectl: &'a Kubectl,
    namespace: &'a str,
}

impl Api<'_> {
    async fn get(&self, path: &str) -> Value {
        let output = self.kubectl.run(&["get", "--raw", &format!("{API}{path}")], "").await.ok();
        serde_json::from_str(&output).expect("JSON")
    }

    async fn of(&self, path: &str) -> Value {
        self.get(&format!("/namespaces/{}/{path}", self.namespace)).await
    }

    async fn refused(&self, path: &str) -> String {
        let path = format!("{API}/namespaces/{}/{path}", self.namespace);
        self.kubectl.run(&["get", "--raw", &path], "").await.refused()
    }

    /// Once it is measured. The rights of `view` come a moment after the role.
    async fn measured(&self, path: &str) -> Value {
        let path = format!("{API}/namespaces/{}/{path}", self.namespace);
        let began = Instant::now();
        loop {
            let output = self.kubectl.run(&["get", "--raw", &path], "").await;
            match serde_json::from_str::<Value>(&output.stdout) {
                Ok(document) if is_measured(&document) => return document,
                _ => assert!(began.elapsed() < LIMIT, "{path}: {output:?}"),
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }
}

#[tokio::test]
async fn traffic_metrics_are_served_through_the_api_server() {
    let (cluster, _) = installed().await;
    let namespace = cluster.namespace("smi").await;
    let exporter =
        Router::new().route("/metrics", get(metrics)).with_state((Arc::default(), namespace.clone()));
    let (exporter, _exporting) = serve(exporter).await;
    let prometheus = Prometheus::start(&format!(
        "- {{job_name: proxies, honor_labels: true, static_configs: [{{targets: ['{exporter}']}}]}}"
    ))
    .await;
    let tls = Tls::new();
    let bundle = base64::engine::general_purpose::STANDARD.encode(&tls.authority);
    let set = [
        "crds.install=false",
        "approvals.policy=false",
        "inventory.watch=never",
        &format!("metricsServer={}", prometheus.url()),
        "smiMetrics.enabled=true",
        "smiMetrics.tlsSecret=smi",
        "smiMetrics.window=10",
        &format!("smiMetrics.caBundle={bundle}"),
    ];
    let manifests = install(cluster, HOME, &set).await;
    let stage = Stage::new(cluster, HOME, &manifests).await;
    let files = [("smi-metrics-tls.crt", &*tls.certificate), ("smi-metrics-tls.key", &*tls.key)];
    let mut crew = ReplicaGroup::start_with(cluster, HOME, &manifests, &namespace, &files).await;
    for object in objects(&namespace) {
        stage.kubectl.apply(&object.to_string()).await;
    }

    // No pod of this cluster is reachable by the API server: its process is, on loopback.
    let address: SocketAddr = crew.smi_metrics_address().parse().expect("an address");
    let external = json!({"spec": {"type": "ExternalName", "externalName": "localhost", "clusterIP": null,
        "clusterIPs": null, "selector": null}});
    let port = json!({"spec": {"service": {"port": address.port()}}});
    for (kind, name, patch) in
        [("service", HOME, external), ("apiservice", "v1alpha1.metrics.smi-spec.io", port)]
    {
        let patch = patch.to_string();
        let arguments = ["patch", kind, name, "--namespace", HOME, "--type=merge", "--patch", &patch];
        stage.kubectl.run(&arguments, "").await.ok();
    }
    let began = Instant::now();
    loop {
        let status = "-o=jsonpath={.status.conditions[?(@.type==\"Available\")]}";
        let shown =
            stage.kubectl.run(&["get", "apiservice", "v1alpha1.metrics.smi-spec.io", status], "").await.ok();
        if shown.contains(r#""status":"True""#) {
            break;
        }
        assert!(began.elapsed() < LIMIT, "{shown}\n{}", crew.log_tails());
        tokio::time::sleep(Duration::from_millis(500)).await;
    }

    let viewer = token(cluster, &namespace, "viewer").await;
    let viewer = Kubectl::of(cluster, &viewer);
    let as_viewer = Api { kubectl: &viewer, namespace: &namespace };
    what_is_served(&Api { kubectl: &stage.kubectl, namespace: &namespace }, &as_viewer).await;
    who_is_served(cluster, &tls, address, &namespace).await;
    crew.assert_healthy().await;
    rules_are_exact(&crew, &manifests).await;

    // An APIService without a server would break the discovery of the others on this cluster.
    stage.kubectl.run(&["delete", "apiservice", "v1alpha1.metrics.smi-spec.io"], "").await.ok();
}

async fn what_is_served(admin: &Api<'_>, viewer: &Api<'_>) {
    let namespace = admin.namespace;
    let resources = admin.get("").await;
    assert_eq!(resources["kind"], "APIResourceList");
    let names: Vec<&str> = resources["resources"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|one| one["name"].as_str())
        .collect();
    let with_edges = ["deployments/edges", "daemonsets/edges", "statefulsets/edges"];
    assert!(with_edges.iter().all(|name| names.contains(name)), "{names:?}");
    let expected = ["namespaces", "deployments", "daemonsets", "statefulsets", "pods", "services"];
    let expected = expected.map(|name| format!("{name}.metrics.smi-spec.io"));
    eventually("kubectl finds the resources", LIMIT, async || {
        let command = ["api-resources", "--api-group=metrics.smi-spec.io", "-o", "name"];
        let known = admin.kubectl.run(&command, "").await.stdout;
        known.lines().collect::<BTreeSet<_>>() == expected.iter().map(String::as_str).collect()
    })
    .await;

    let web = viewer.measured("deployments/web").await;
    assert_measured(&web);
    assert_eq!(web["kind"], "TrafficMetrics");
    assert_eq!(web["apiVersion"], "metrics.smi-spec.io/v1alpha1");
    assert_eq!(web["resource"], json!({"kind": "Deployment", "namespace": namespace, "name": "web"}));
    assert_eq!(web["edge"], json!({"direction": "from", "side": "server", "resource": {}}));
    assert_eq!((&web["window"], &web["metadata"]["name"]), (&json!("10s"), &json!("web")));
    assert!(web["timestamp"].as_str().is_some_and(|at| at.ends_with('Z') && at.len() == 20), "{web}");
    for path in ["statefulsets/ledger", "pods/web-1", "services/web-canary"] {
        assert_measured(&viewer.measured(path).await);
    }

    // From front, and to api as web itself has counted.
    let mut edges = Value::Null;
    eventually("the edges are measured", LIMIT, async || {
        edges = viewer.of("deployments/web/edges").await;
        edges["items"].as_array().is_some_and(|items| items.len() == 2 && items.iter().all(is_measured))
    })
    .await;
    assert_eq!(edges["kind"], "TrafficMetricsList");
    let ends: Vec<&Value> =
        edges["items"].as_array().expect("items").iter().map(|item| &item["edge"]).collect();
    let end = |direction: &str, side: &str, name: &str| json!({"direction": direction, "side": side, "resource": {"namespace": namespace, "name": name}});
    assert_eq!(ends, [&end("from", "server", "front"), &end("to", "client", "api")], "{edges}");
    edges["items"].as_array().expect("items").iter().for_each(assert_measured);
    let ledger = viewer.of("statefulsets/ledger/edges").await;
    let teller = json!({"kind": "Deployment", "namespace": namespace, "name": "teller"});
    assert_eq!(ledger["items"][0]["edge"]["resource"], teller, "{ledger}");

    // The selector is about objects, and an object that nothing is known about has no zeros.
    let list = viewer.of("deployments?labelSelector=tier%3Dfront&limit=500").await;
    let of = |list: &Value| -> Vec<(String, bool)> {
        let items = list["items"].as_array().expect("items").iter();
        items
            .map(|item| (item["resource"]["name"].as_str().expect("a name").to_owned(), is_measured(item)))
            .collect()
    };
    assert_eq!(of(&list), [("silent".to_owned(), false), ("web".to_owned(), true)]);
    let silent = viewer.of("deployments/silent").await;
    assert_eq!(silent["metrics"], json!([]));
    let list = viewer.of("deployments?labelSelector=tier%3Dback").await;
    assert_eq!(
        (of(&list), &list["selector"]["matchLabels"]["tier"]),
        (vec![("api".to_owned(), true)], &json!("back"))
    );
    let all = admin.get("/statefulsets").await;
    assert!(of(&all).contains(&("ledger".to_owned(), true)), "{all}");
    let all = admin.get("/namespaces").await;
    assert!(of(&all).contains(&(namespace.to_owned(), true)), "{all}");
    assert_measured(&admin.get(&format!("/namespaces/{namespace}")).await);

    let missing = admin.refused("deployments/web-2").await;
    assert!(missing.contains("NotFound"), "{missing}");
    let unknown = admin.refused("jobs/web").await;
    assert!(unknown.contains("NotFound"), "{unknown}");
    let invalid = admin.refused("deployments/WEB").await;
    assert!(invalid.contains("lower-case"), "{invalid}");
}

/// The API server authorises as well, so its own client is played here.
async fn who_is_served(cluster: &Cluster, tls: &Tls, address: SocketAddr, namespace: &str) {
    let url =
        format!("https://{HOME}.{HOME}.svc:{}{API}/namespaces/{namespace}/deployments/web", address.port());
    let proxy = tls.client(address, Some(cluster.front_proxy("front-proxy")));
    let account = |name: &str| format!("system:serviceaccount:{namespace}:{name}");
    let ask = async |user: Option<String>, groups: &[&str]| {
        let mut request = proxy.get(&url);
        for group in groups {
            request = request.header("X-Remote-Group", *group);
        }
        if let Some(user) = user {
            request = request.header("X-Remote-User", user);
        }
        let answer = request.send().await.expect("an answer");
        (answer.status(), answer.json::<Value>().await.expect("JSON"))
    };
    let (code, document) = ask(Some(account("viewer")), &[]).await;
    assert_eq!(code, StatusCode::OK, "{document}");
    let (code, status) = ask(Some(account("nobody")), &[]).await;
    assert_eq!((code, &status["reason"]), (StatusCode::FORBIDDEN, &json!("Forbidden")), "{status}");
    assert!(
        status["message"].as_str().is_some_and(|why| why.contains("nobody may not get deployments")),
        "{status}"
    );
    let (code, _) = ask(Some("anybody".to_owned()), &["system:masters"]).await;
    assert_eq!(code, StatusCode::OK, "groups count");
    let (code, _) = ask(None, &["system:masters"]).await;
    assert_eq!(code, StatusCode::UNAUTHORIZED);

    // Without the certificate of the front proxy nobody gets so far.
    let stranger = KeyPair::generate().expect("a key pair");
    let mut params = CertificateParams::default();
    params.distinguished_name.push(rcgen::DnType::CommonName, "front-proxy-client");
    let forged = params.self_signed(&stranger).expect("a certificate").pem();
    for (who, own) in [
        ("no certificate", None),
        ("another name", Some(cluster.front_proxy("other"))),
        ("another authority", Some((forged, stranger.serialize_pem()))),
    ] {
        let client = tls.client(address, own);
        let sent =
            client.get(&url).header("X-Remote-User", "admin").header("X-Remote-Group", "system:masters");
        let answer = sent.send().await;
        assert!(answer.is_err(), "{who}: {answer:?}");
    }
}

async fn rules_are_exact(crew: &ReplicaGroup, manifests: &crate::support::chart::Manifests) {
    let granted = RbacRule::granted(manifests);
    let of_this = |rule: &&RbacRule| {
        ["statefulsets", "namespaces", "subjectaccessreviews"].iter().any(|resource| rule.is_of(resource))
            || (rule.is_of("pods") && rule.is_read_by_name())
    };
    assert_eq!(granted.iter().filter(of_this).count(), 6, "{granted:#?}");
    let began = Instant::now();
    loop {
        let used: BTreeSet<RbacRule> = crew.audited_requests().iter().flat_map(RbacRule::used).collect();
        let idle: Vec<_> = granted.iter().filter(of_this).filter(|rule| !rule.is_covered_by(&used)).collect();
        if idle.is_empty() {
            return;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "granted and never used: {idle:#?}");
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}
