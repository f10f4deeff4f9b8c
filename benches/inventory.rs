//! The inventory of a large cluster: time until it is complete, time of one changed pod,
//! memory, CPU while pods restart. First the model alone, with its objects in memory;
//! then the controller in a process of its own, with the allocator of `serin`, on the
//! in-process API over loopback. It prints and asserts nothing.

use std::env;
use std::fs;
use std::process::{self, Command};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use futures::{StreamExt as _, stream};
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::GroupVersionKind;
use kube::{Client, Config};
use kube_local::ApiServer;
use serde_json::{Value, json};
use serin::clock::Clock;
use serin::controller::fence::Fence;
use serin::controller::{Controller, Environment, InventoryOptions, InventoryResources, Options};
use serin::discovery::live::LiveInventory;
use serin::discovery::model::{Inventory, Key, Kind, Object};
use serin::metrics::scrape::HttpFetch;

const NAMESPACES: usize = 20;
const WORKLOADS: usize = 2_000;
const PODS: usize = 10_000;
const CHANGES: usize = 2_000;
/// Of the controller: at a thousand restarts a minute.
const RESTARTS: usize = 250;
const RESTART_INTERVAL: Duration = Duration::from_millis(60);
const LIVE_CHANGES: usize = 100;
/// Until an idle controller has started.
const SETTLE_DELAY: Duration = Duration::from_secs(2);
/// Requests at a time while the cluster is filled.
const WRITERS: usize = 32;

/// Gloo Mesh's time for 10,000 pods: solo-io/solo-cop#4. Its objects came from an API
/// server; here they are in memory, so the ratio shows an order of magnitude only.
const GLOO_MESH: Duration = Duration::from_secs(30 * 60);

/// As in `main.rs`.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Kubeconfig of the API that the controller's process measures.
const KUBECONFIG: &str = "SERIN_BENCH_KUBECONFIG";

fn main() {
    let runtime = tokio::runtime::Runtime::new().expect("a tokio runtime");
    match env::var_os(KUBECONFIG) {
        Some(path) => {
            let kubeconfig = fs::read_to_string(path).expect("a kubeconfig");
            runtime.block_on(measure_controller(&kubeconfig));
        }
        None => {
            model_alone();
            runtime.block_on(serve_cluster());
        }
    }
}

/// A filled cluster, for a second process of this program.
async fn serve_cluster() {
    let api = ApiServer::new(kube_local::Options::default());
    let own = api.client();
    for definition in serin::api::crds() {
        Api::all(own.clone()).create(&PostParams::default(), &definition).await.expect("a definition");
    }
    for at in 0..NAMESPACES {
        create(&own, namespace(at)).await;
    }
    create(&own, json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "istio-system"}}))
        .await;
    let workloads = manifests().into_iter().filter(|(kind, _)| *kind != Kind::Namespace);
    stream::iter(workloads)
        .for_each_concurrent(WRITERS, |(kind, manifest)| create(&own, complete(kind, manifest)))
        .await;
    let serving = api.serve(([127, 0, 0, 1], 0).into()).await.expect("a served API");
    let path = env::temp_dir().join(format!("serin-bench-{}.yaml", process::id()));
    fs::write(&path, serving.kubeconfig()).expect("a file");
    let program = env::current_exe().expect("this program");
    let (file, mut command) = (path.clone(), Command::new(program));
    let measured = tokio::task::spawn_blocking(move || command.env(KUBECONFIG, file).status()).await;
    fs::remove_file(path).expect("the file");
    assert!(measured.expect("a thread").expect("a process").success(), "the measurement failed");
}

/// The controller with the whole inventory; its thread has nothing else to do.
async fn measure_controller(kubeconfig: &str) {
    let kubeconfig: Kubeconfig = serde_saphyr::from_str(kubeconfig).expect("a kubeconfig");
    let config =
        Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.expect("a config");
    let own = Client::try_from(config.clone()).expect("a client");
    let live = LiveInventory::new("bench");
    let (send, started) = mpsc::channel();
    let fed = Arc::clone(&live);
    thread::spawn(move || run_controller(config, fed, &send));
    let thread = started.recv().expect("a thread");
    // The watch of Canaries.
    tokio::time::sleep(SETTLE_DELAY).await;
    let before = resident();
    let began = Instant::now();
    live.want();
    while live.ready().await.is_err() {}
    let views = live.read(|inventory| inventory.workloads().count() + inventory.services().count());
    let complete = began.elapsed();
    let ratio = GLOO_MESH.as_secs_f64() / complete.as_secs_f64();
    println!("the controller, over loopback: {views} views");
    println!("  complete after        {complete:>10.1?}   Gloo Mesh took 30 minutes: {ratio:.0} times");
    println!("  CPU of its thread     {:>10.1?}", cpu(&thread));
    let peak = resident().saturating_sub(before);

    let mut times = Vec::new();
    for at in 0..LIVE_CHANGES {
        times.push(change_pod(&own, &live, at).await);
    }
    times.sort();
    println!(
        "  one changed pod       {:>10.1?}   p99 {:.1?}; from the write to the view, by way of the watch",
        times[LIVE_CHANGES / 2],
        times[LIVE_CHANGES * 99 / 100]
    );

    let (began, used) = (Instant::now(), cpu(&thread));
    let mut tick = tokio::time::interval(RESTART_INTERVAL);
    for at in 0..RESTARTS {
        tick.tick().await;
        restart_pod(&own, at).await;
    }
    let (took, used) = (began.elapsed(), cpu(&thread).saturating_sub(used));
    println!(
        "  CPU of its thread     {:>8.2} %    at {:.0} pod restarts a minute",
        100.0 * used.as_secs_f64() / took.as_secs_f64(),
        RESTARTS as f64 * 60.0 / took.as_secs_f64()
    );
    println!(
        "  memory                {:>8.1} MB   above the idle controller's {:.1} MB; {:.1} MB after the lists",
        resident().saturating_sub(before) as f64 / 1e6,
        before as f64 / 1e6,
        peak as f64 / 1e6
    );
}

fn run_controller(config: Config, inventory: Arc<LiveInventory>, started: &mpsc::Sender<String>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let client = Client::try_from(config).expect("a client");
        let fetch = Arc::new(HttpFetch::new().expect("an HTTP client"));
        let environment = Environment { inventory, ..Environment::new(client, Clock::system(), fetch) };
        let inventory =
            InventoryOptions { resources: InventoryResources::None, ..InventoryOptions::default() };
        let options = Options { inventory, ..Options::default() };
        let controller =
            Controller::new(environment, Fence::unsharded(), options).await.expect("a controller");
        let thread = fs::read_link("/proc/thread-self").expect("Linux");
        started.send(thread.to_string_lossy().into_owned()).expect("somebody waits");
        controller.run(std::future::pending()).await;
    });
}

/// From the request to the view that shows it.
async fn change_pod(client: &Client, live: &LiveInventory, at: usize) -> Duration {
    let manifest = pod(at * 7 % PODS);
    let workload = (at * 7 % PODS) % WORKLOADS;
    let (namespace, name) = (format!("ns-{}", workload % NAMESPACES), format!("web-{workload}"));
    let key = Key::new("bench", &namespace, Kind::Deployment, &name);
    let pods: Api<DynamicObject> =
        Api::namespaced_with(client.clone(), &namespace, &resource("", "v1", "Pod"));
    let patch = json!({"metadata": {"annotations": {"linkerd.io/proxy-version": "v2"}}});
    let began = Instant::now();
    let name = manifest["metadata"]["name"].as_str().expect("a name");
    pods.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.expect("a changed pod");
    while live.read(|inventory| inventory.workload(&key).is_none_or(|workload| workload.meshes.len() < 2)) {
        tokio::task::yield_now().await;
    }
    began.elapsed()
}

async fn restart_pod(client: &Client, at: usize) {
    let manifest = complete(Kind::Pod, pod(at * 13 % PODS));
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    let namespace = text(&manifest["metadata"]["namespace"]);
    let pods: Api<DynamicObject> =
        Api::namespaced_with(client.clone(), &namespace, &resource("", "v1", "Pod"));
    let now = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
    pods.delete(&text(&manifest["metadata"]["name"]), &now).await.expect("a deletion");
    create(client, manifest).await;
}

fn resource(group: &str, version: &str, kind: &str) -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind))
}

fn namespace(at: usize) -> Value {
    let labels = json!({"istio-injection": "enabled"});
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": format!("ns-{at}"), "labels": labels}})
}

/// With the fields that an API server asks for.
fn complete(kind: Kind, mut manifest: Value) -> Value {
    let (group, version) = (kind.group(), kind.versions()[0]);
    manifest["apiVersion"] =
        if group.is_empty() { json!(version) } else { json!(format!("{group}/{version}")) };
    manifest["kind"] = json!(kind.name());
    if let Some(metadata) = manifest["metadata"].as_object_mut() {
        metadata.remove("resourceVersion");
    }
    match kind {
        Kind::Deployment => {
            let labels = manifest["metadata"]["name"].clone();
            manifest["spec"]["selector"] = json!({"matchLabels": {"app": labels}});
            manifest["spec"]["template"]["metadata"]["labels"]["app"] = manifest["metadata"]["name"].clone();
        }
        Kind::Service => _ = manifest["spec"].as_object_mut().map(|spec| spec.remove("clusterIP")),
        Kind::Pod => {
            manifest["metadata"]["ownerReferences"][0]["apiVersion"] = json!("apps/v1");
            manifest["metadata"]["ownerReferences"][0]["uid"] = json!("1");
        }
        _ => {}
    }
    manifest
}

async fn create(client: &Client, manifest: Value) {
    let object: DynamicObject = serde_json::from_value(manifest).expect("an object");
    let types = object.types.clone().expect("a kind");
    let (group, version) = types.api_version.split_once('/').unwrap_or(("", &types.api_version));
    let resource = resource(group, version, &types.kind);
    let api: Api<DynamicObject> = match &object.metadata.namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    };
    let created = api.create(&PostParams::default(), &object).await;
    created.unwrap_or_else(|error| panic!("create {object:?}: {error}"));
}

/// Of a thread, by its path below /proc.
fn cpu(thread: &str) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{thread}/stat")).unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|ticks| ticks.parse::<u64>().ok()).unwrap_or(0);
    Duration::from_millis((ticks(11) + ticks(12)) * 10)
}

fn model_alone() {
    let manifests = manifests();
    let before = resident();
    let began = Instant::now();
    let mut inventory = Inventory::default();
    for (kind, manifest) in &manifests {
        apply(&mut inventory, *kind, manifest);
    }
    let views = inventory.refresh().len();
    let meshes = inventory.meshes().len();
    let complete = began.elapsed();
    let memory = resident().saturating_sub(before);
    println!("{PODS} pods, {WORKLOADS} workloads, {WORKLOADS} services: {views} views, {meshes} mesh");
    let ratio = GLOO_MESH.as_secs_f64() / complete.as_secs_f64();
    println!(
        "  complete after        {complete:>10.1?}   Gloo Mesh took 30 minutes, over the network: {ratio:.0} times"
    );
    println!("  memory                {:>8.1} MB", memory as f64 / 1e6);

    let mut times: Vec<Duration> = (0..CHANGES)
        .map(|at| {
            let mut changed = pod(at * 7 % PODS);
            changed["metadata"]["resourceVersion"] = (at + 2).to_string().into();
            changed["metadata"]["annotations"] = json!({});
            let began = Instant::now();
            apply(&mut inventory, Kind::Pod, &changed);
            inventory.refresh();
            began.elapsed()
        })
        .collect();
    times.sort();
    println!(
        "  one changed pod       {:>10.1?}   p99 {:.1?}, longest {:.1?}",
        times[CHANGES / 2],
        times[CHANGES * 99 / 100],
        times[CHANGES - 1]
    );
    let began = Instant::now();
    let meshes = inventory.meshes().len();
    println!("  reading the meshes    {:>10.1?}   {meshes} mesh", began.elapsed());
}

fn apply(inventory: &mut Inventory, kind: Kind, manifest: &Value) {
    inventory.apply(Object::parse("bench", kind, manifest).expect("an object"));
}

fn manifests() -> Vec<(Kind, Value)> {
    let mut manifests = vec![(
        Kind::Deployment,
        json!({
            "metadata": {"name": "istiod", "namespace": "istio-system", "labels": {"app": "istiod"}},
            "spec": {"template": {"spec": {"containers": [{"name": "discovery", "image": "istio/pilot:1.29.0"}]}}},
        }),
    )];
    for at in 0..NAMESPACES {
        let labels = json!({"istio-injection": "enabled"});
        manifests
            .push((Kind::Namespace, json!({"metadata": {"name": format!("ns-{at}"), "labels": labels}})));
    }
    for at in 0..WORKLOADS {
        let (namespace, name) = (format!("ns-{}", at % NAMESPACES), format!("web-{at}"));
        let metadata = json!({"name": name, "namespace": namespace});
        let template = json!({
            "metadata": {"labels": {"app": name, "version": "v1", "tier": "web"}},
            "spec": {"containers": [{"name": "web", "image": "shop/web:1"}]},
        });
        manifests.push((
            Kind::Deployment,
            json!({"metadata": metadata, "spec": {"replicas": 5, "template": template}}),
        ));
        let spec = json!({"selector": {"app": name}, "ports": [{"name": "http", "port": 80}], "clusterIP": "10.0.0.1"});
        manifests.push((Kind::Service, json!({"metadata": metadata, "spec": spec})));
    }
    manifests.extend((0..PODS).map(|at| (Kind::Pod, pod(at))));
    manifests
}

fn pod(at: usize) -> Value {
    let workload = at % WORKLOADS;
    json!({
        "metadata": {
            "name": format!("web-{workload}-abc-{at}"), "namespace": format!("ns-{}", workload % NAMESPACES),
            "resourceVersion": "1",
            "labels": {"app": format!("web-{workload}"), "pod-template-hash": "abc"},
            "annotations": {"sidecar.istio.io/status": "{\"revision\":\"default\"}"},
            "ownerReferences": [{"kind": "ReplicaSet", "name": format!("web-{workload}-abc"), "controller": true}],
        },
        "spec": {"containers": [
            {"name": "web", "image": "shop/web:1"},
            {"name": "istio-proxy", "image": "istio/proxyv2:1.29.0"},
        ]},
        "status": {
            "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [{"name": "web", "imageID": "shop/web@sha256:0123456789abcdef"}],
        },
    })
}

/// Bytes of memory in use; 0 where the kernel does not tell.
fn resident() -> usize {
    let statm = fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: usize = statm.split_whitespace().nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(0);
    pages * 4096
}
