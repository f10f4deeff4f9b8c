//! Istio for real: istiod, an Envoy as its gateway, and the way to the pods.
//!
//! Pods show addresses that nobody can reach and listen at their twins on
//! loopback, which no API server takes into an EndpointSlice. So the cluster
//! has no controller of EndpointSlices, and each ready pod becomes a
//! WorkloadEntry at its twin, which Services select as they select pods.

use std::time::Duration;

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{Config, Event, watcher};
use kube::{Client, ResourceExt as _};
use kube_local::node::address::loopback_address;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};
use tokio_util::task::AbortOnDropHandle;

use crate::support::{Child, Cluster, Folder, Part, definitions, free_port, program};

/// Two cores shared with a build are slow; a healthy start takes ten seconds.
const START_TIMEOUT: Duration = Duration::from_secs(180);

const SYSTEM: &str = "istio-system";

/// Ends when dropped.
pub struct Mesh {
    /// Before the folder: they work in it.
    children: [Child; 2],
    _folder: Folder,
    _twins: AbortOnDropHandle<()>,
    port: u16,
    admin: u16,
}

impl Mesh {
    /// With a Gateway `public` in the namespace.
    pub async fn start(cluster: &Cluster, namespace: &str) -> Mesh {
        let client = cluster.client().await;
        definitions::install(&client, istio_definitions()).await;
        make_namespace(&client, SYSTEM).await;
        let (port, admin, xds, ready) = (free_port(), free_port(), free_port(), free_port());
        let server = json!({
            "port": {"number": port, "name": "http", "protocol": "HTTP"}, "hosts": ["*"], "bind": "127.0.0.1",
        });
        let gateway = json!({
            "apiVersion": "networking.istio.io/v1", "kind": "Gateway", "metadata": {"name": "public"},
            "spec": {"servers": [server]},
        });
        let gateways: Api<DynamicObject> =
            Api::namespaced_with(client.clone(), namespace, &resource("Gateway", "gateways"));
        let params = PatchParams::apply("people");
        gateways.patch("public", &params, &Patch::Apply(&gateway)).await.expect("a Gateway");
        let twins = tokio::spawn(sync_workload_entries(client, namespace.to_owned()));

        let folder = Folder::new("istio");
        // An Envoy that is not Istio's own has neither its filters nor its certificates.
        folder.write("mesh.yaml", "enableAutoMtls: false\n");
        let istiod = Child::start_with(
            [
                ("POD_NAMESPACE", SYSTEM),
                ("POD_NAME", "istiod"),
                ("ENABLE_CA_SERVER", "false"),
                ("PILOT_CERT_PROVIDER", "none"),
                ("PILOT_ENABLE_METADATA_EXCHANGE", "false"),
                ("PILOT_ENABLE_ALPN_FILTER", "false"),
            ],
            folder.path(),
            &found(Part::Istiod, "istiod"),
            [
                "discovery".to_owned(),
                format!("--kubeconfig={}", cluster.kubeconfig().display()),
                "--meshConfig=mesh.yaml".to_owned(),
                format!("--grpcAddr=127.0.0.1:{xds}"),
                format!("--httpAddr=127.0.0.1:{ready}"),
                "--httpsAddr=".to_owned(),
                "--secureGRPCAddr=".to_owned(),
                format!("--monitoringAddr=127.0.0.1:{}", free_port()),
                format!("--ctrlz_port={}", free_port()),
            ],
        );
        let mut istiod = istiod;
        await_answer(&mut istiod, &format!("http://127.0.0.1:{ready}/ready")).await;

        folder.write("envoy.json", &bootstrap(namespace, admin, xds).to_string());
        let mut envoy = Child::start(
            folder.path(),
            &found(Part::Envoy, "envoy"),
            ["--config-path", "envoy.json", "--concurrency", "1", "--disable-hot-restart"],
        );
        await_answer(&mut envoy, &format!("http://127.0.0.1:{admin}/ready")).await;
        let (children, twins) = ([istiod, envoy], AbortOnDropHandle::new(twins));
        Mesh { children, _folder: folder, _twins: twins, port, admin }
    }

    /// Where the Gateway listens.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}/", self.port)
    }

    /// The logs, for a failure.
    pub async fn state(&self) -> String {
        let clusters = reqwest::get(format!("http://127.0.0.1:{}/clusters", self.admin)).await;
        let clusters = match clusters {
            Ok(answer) => answer.text().await.unwrap_or_default(),
            Err(error) => error.to_string(),
        };
        let web = clusters.lines().filter(|line| line.contains("web-") && line.contains("health_flags"));
        let web: Vec<&str> = web.collect();
        format!("{}\n{}", self.children.each_ref().map(Child::tail).join("\n"), web.join("\n"))
    }
}

fn found(part: Part, name: &str) -> std::path::PathBuf {
    program(part, name).unwrap_or_else(|error| panic!("{error}"))
}

fn istio_definitions() -> Vec<Value> {
    let path = Part::Istiod.folder().join("definitions.yaml");
    let text = std::fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("{}: {error}: run `testbed/setup istiod`", path.display()));
    let all: Vec<Value> = serde_saphyr::from_multiple(&text).expect("definitions");
    all.into_iter().filter(|definition| !definition.is_null()).collect()
}

async fn make_namespace(client: &Client, name: &str) {
    let namespace: Namespace =
        serde_json::from_value(json!({"metadata": {"name": name}})).expect("a Namespace");
    Api::all(client.clone()).create(&PostParams::default(), &namespace).await.expect("a namespace");
}

fn resource(kind: &str, plural: &str) -> ApiResource {
    ApiResource {
        group: "networking.istio.io".to_owned(),
        version: "v1".to_owned(),
        api_version: "networking.istio.io/v1".to_owned(),
        kind: kind.to_owned(),
        plural: plural.to_owned(),
    }
}

/// A gateway of Istio that takes its configuration from istiod.
fn bootstrap(namespace: &str, admin: u16, xds: u16) -> Value {
    let at = |port: u16| json!({"socket_address": {"address": "127.0.0.1", "port_value": port}});
    let ads = json!({"ads": {}, "resource_api_version": "V3"});
    let http2 = json!({
        "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
        "explicit_http_config": {"http2_protocol_options": {}},
    });
    json!({
        "node": {
            "id": format!("router~127.0.0.1~public.{namespace}~{namespace}.svc.cluster.local"),
            "cluster": "public",
            "metadata": {"NAMESPACE": namespace, "CLUSTER_ID": "Kubernetes", "ISTIO_VERSION": "1.31.0"},
        },
        "admin": {"address": at(admin)},
        "dynamic_resources": {
            "ads_config": {
                "api_type": "GRPC", "transport_api_version": "V3",
                "grpc_services": [{"envoy_grpc": {"cluster_name": "xds-grpc"}}],
            },
            "cds_config": ads, "lds_config": ads,
        },
        "static_resources": {"clusters": [{
            "name": "xds-grpc", "type": "STATIC", "connect_timeout": "5s",
            "typed_extension_protocol_options": {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": http2},
            "load_assignment": {
                "cluster_name": "xds-grpc",
                "endpoints": [{"lb_endpoints": [{"endpoint": {"address": at(xds)}}]}],
            },
        }]},
    })
}

async fn await_answer(child: &mut Child, url: &str) {
    let client = reqwest::Client::builder().no_proxy().build().expect("an HTTP client");
    let began = Instant::now();
    while !client.get(url).send().await.is_ok_and(|answer| answer.status().is_success()) {
        assert!(!child.has_ended(), "it ended while it started; {}", child.tail());
        assert!(began.elapsed() < START_TIMEOUT, "not ready after {START_TIMEOUT:?}; {}", child.tail());
        sleep(Duration::from_millis(100)).await;
    }
}

/// Keeps a WorkloadEntry for each pod that can be called.
async fn sync_workload_entries(client: Client, namespace: String) {
    let kind = resource("WorkloadEntry", "workloadentries");
    let entries: Api<DynamicObject> = Api::namespaced_with(client.clone(), &namespace, &kind);
    let pods: Api<Pod> = Api::namespaced(client, &namespace);
    let mut events = std::pin::pin!(watcher(pods, Config::default()).default_backoff());
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Apply(pod) | Event::InitApply(pod)) => match entry(&pod) {
                Some(entry) => {
                    let params = PatchParams::apply("twins").force();
                    let applied = entries.patch(&pod.name_any(), &params, &Patch::Apply(&entry)).await;
                    applied.expect("a WorkloadEntry");
                }
                None => delete_entry(&entries, &pod).await,
            },
            Ok(Event::Delete(pod)) => delete_entry(&entries, &pod).await,
            Ok(Event::Init | Event::InitDone) | Err(_) => {}
        }
    }
}

async fn delete_entry(entries: &Api<DynamicObject>, pod: &Pod) {
    match entries.delete(&pod.name_any(), &DeleteParams::default()).await {
        Ok(_) => {}
        Err(kube::Error::Api(error)) if error.code == 404 => {}
        Err(error) => panic!("the WorkloadEntry of {}: {error}", pod.name_any()),
    }
}

/// Of a pod that is ready and stays.
fn entry(pod: &Pod) -> Option<Value> {
    let status = pod.status.as_ref()?;
    let ready = |condition: &&k8s_openapi::api::core::v1::PodCondition| {
        condition.type_ == "Ready" && condition.status == "True"
    };
    status.conditions.iter().flatten().find(ready)?;
    let address = status.pod_ip.as_ref()?.parse().ok()?;
    pod.metadata.deletion_timestamp.is_none().then(|| {
        json!({
            "apiVersion": "networking.istio.io/v1", "kind": "WorkloadEntry",
            "metadata": {"name": pod.name_any()},
            "spec": {"address": loopback_address(address), "ports": {"http": 8080}, "labels": pod.labels()},
        })
    })
}
