//! One controller with so many canaries: prepare, idle, release, clear up.

use std::ffi::OsStr;
use std::process::Command;
use std::time::{Duration, Instant};

use futures::{StreamExt as _, stream};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Namespace;
use kube::Client;
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, ObjectMeta, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::audit::{self, Audit, Requests};
use super::contender::{Contender, Process, fetched_file};
use super::support::{Cluster, Part};
use super::watcher::{ReleaseTimes, ReleaseWatcher, name};

/// The five intervals of a release.
pub const INTERVALS_DURATION: Duration = Duration::from_secs(50);
const IDLE_DURATION: Duration = Duration::from_secs(60);
/// What was begun may end before something else is measured.
const SETTLE_DURATION: Duration = Duration::from_secs(10);
/// How many of our own requests are under way at a time.
const MAX_PARALLEL_REQUESTS: usize = 64;
const OLD: &str = "app:v1";
const NEW: &str = "app:v2";

/// What was measured of one controller.
pub struct BenchmarkResult {
    pub idle: Requests,
    pub idle_cpu: Duration,
    pub idle_memory: u64,
    pub releasing: Requests,
    pub releasing_cpu: Duration,
    pub peak_memory: u64,
    pub release_times: Vec<ReleaseTimes>,
}

pub struct BenchmarkStage {
    cluster: &'static Cluster,
    client: Client,
    audit: Audit,
}

impl BenchmarkStage {
    pub async fn set(cluster: &'static Cluster, audit: Audit) -> BenchmarkStage {
        let client = cluster.client().await;
        let stage = BenchmarkStage { cluster, client, audit };
        let splits = fetched_file(Part::Osm, "smi_traffic_split.yaml");
        for file in [Contender::Serin.definitions(), Contender::flagger().definitions(), splits] {
            stage.kubectl([
                "apply".as_ref(),
                "--server-side".as_ref(),
                "--filename".as_ref(),
                file.as_os_str(),
            ]);
        }
        stage.kubectl(["wait", "--for=condition=Established", "--timeout=60s", "crds", "--all"]);
        stage
    }

    pub async fn measure(&self, contender: &Contender, count: usize) -> BenchmarkResult {
        let namespace = format!("{}-{count}", contender.name());
        let progress =
            Progress { title: format!("{}, {count} canaries", contender.name()), began: Instant::now() };
        let canaries = canaries(contender);
        self.create_namespace(&namespace).await;
        let watcher = ReleaseWatcher::start(&self.client, &namespace, canaries.clone(), count, NEW);
        progress.print("creating");
        self.create_all(&namespace, contender, &canaries, count).await;

        let mut process = contender.start(self.cluster, &namespace).await;
        let patience = Duration::from_secs(120) + Duration::from_millis(500) * count as u32;
        let initialized = |of: &ReleaseTimes| of.phase == "Initialized";
        progress.wait(&mut process, &watcher, "initialised", patience, initialized).await;
        let done = watcher.count(initialized);
        assert!(done == count, "only {done} of {count} were initialised: nothing can be measured");
        sleep(SETTLE_DURATION).await;

        progress.print("idle for a minute");
        let (since, cpu) = (Timestamp::now(), process.cpu());
        sleep(IDLE_DURATION).await;
        let (until, idle_cpu, (idle_memory, _)) = (Timestamp::now(), process.cpu() - cpu, process.memory());
        sleep(audit::AUDIT_DELAY).await;
        let idle = self.audit.between(contender.name(), since, until);

        progress.print("releasing all at once");
        let (since, cpu) = (Timestamp::now(), process.cpu());
        self.push_all(&namespace, count).await;
        let patience = Duration::from_secs(180) + Duration::from_millis(300) * count as u32;
        progress.wait(&mut process, &watcher, "succeeded", patience, |of| of.succeeded.is_some()).await;
        sleep(SETTLE_DURATION).await;
        let (until, releasing_cpu, (_, peak_memory)) =
            (Timestamp::now(), process.cpu() - cpu, process.memory());
        sleep(audit::AUDIT_DELAY).await;
        let releasing = self.audit.between(contender.name(), since, until);
        let moments = watcher.times();

        progress.print("clearing up");
        // Canaries of Serin have a finalizer, which only a controller removes.
        self.delete_namespace(&namespace).await;
        drop(process);
        BenchmarkResult {
            idle,
            idle_cpu,
            idle_memory,
            releasing,
            releasing_cpu,
            peak_memory,
            release_times: moments,
        }
    }

    /// What the API server could not tell would be missing from the figures.
    pub async fn check_audit(&self) {
        let request = http::Request::get("/metrics").body(Vec::new()).expect("a plain request");
        let metrics = self.client.request_text(request).await.expect("the API server's metrics");
        let lost = metrics.lines().filter(|line| {
            (line.starts_with("apiserver_audit_error_total")
                || line.starts_with("apiserver_audit_requests_rejected_total"))
                && !line.ends_with(" 0")
        });
        lost.for_each(|line| println!("WARNING: some requests were not counted: {line}"));
    }

    fn kubectl(&self, arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) {
        let mut kubectl = Command::new(fetched_file(Part::Kubernetes, "kubectl"));
        let done = kubectl.env("KUBECONFIG", self.cluster.kubeconfig()).args(arguments).output();
        let done = done.expect("kubectl runs");
        assert!(done.status.success(), "kubectl: {}", String::from_utf8_lossy(&done.stderr));
    }

    async fn create_namespace(&self, name: &str) {
        let metadata = ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
        let namespace = Namespace { metadata, ..Namespace::default() };
        Api::all(self.client.clone()).create(&PostParams::default(), &namespace).await.expect("a namespace");
    }

    /// What is left is not waited for longer than this: nobody watches it.
    async fn delete_namespace(&self, name: &str) {
        let api: Api<Namespace> = Api::all(self.client.clone());
        api.delete(name, &DeleteParams::default()).await.expect("a deletion");
        let began = Instant::now();
        while api.get_opt(name).await.expect("an answer").is_some() {
            if began.elapsed() > Duration::from_secs(300) {
                println!("{name} is still being deleted");
                return;
            }
            sleep(Duration::from_secs(1)).await;
        }
    }

    async fn create_all(&self, namespace: &str, contender: &Contender, canaries: &ApiResource, count: usize) {
        let deployments: Api<Deployment> = Api::namespaced(self.client.clone(), namespace);
        let canaries: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), namespace, canaries);
        let create = |index: usize| {
            let (deployments, canaries) = (deployments.clone(), canaries.clone());
            let canary = parse(canary(&name(index), contender.api_version()));
            async move {
                let params = PostParams::default();
                deployments.create(&params, &parse(deployment(&name(index)))).await.expect("a Deployment");
                canaries.create(&params, &canary).await.expect("a Canary");
            }
        };
        stream::iter(0..count)
            .map(create)
            .buffer_unordered(MAX_PARALLEL_REQUESTS)
            .for_each(|()| async {})
            .await;
    }

    async fn push_all(&self, namespace: &str, count: usize) {
        let deployments: Api<Deployment> = Api::namespaced(self.client.clone(), namespace);
        let push = |index: usize| {
            let deployments = deployments.clone();
            async move {
                let image =
                    json!({"spec": {"template": {"spec": {"containers": [{"name": "app", "image": NEW}]}}}});
                let patch = Patch::Strategic(image);
                deployments.patch(&name(index), &PatchParams::default(), &patch).await.expect("a push");
            }
        };
        stream::iter(0..count)
            .map(push)
            .buffer_unordered(MAX_PARALLEL_REQUESTS)
            .for_each(|()| async {})
            .await;
    }
}

fn canaries(contender: &Contender) -> ApiResource {
    let (group, version) = contender.api_version().split_once('/').expect("a group and a version");
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, "Canary"), "canaries")
}

fn deployment(name: &str) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {"containers": [{
                    "name": "app", "image": OLD, "ports": [{"name": "http", "containerPort": 8080}],
                }]},
            },
        },
    })
}

fn canary(name: &str, api_version: &str) -> Value {
    json!({
        "apiVersion": api_version, "kind": "Canary", "metadata": {"name": name},
        "spec": {
            "provider": "smi:v1alpha2",
            "targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": name},
            "progressDeadlineSeconds": 600,
            "service": {"port": 80, "targetPort": 8080},
            "analysis": {"interval": "10s", "threshold": 5, "maxWeight": 50, "stepWeight": 10},
        },
    })
}

fn parse<K: serde::de::DeserializeOwned>(object: Value) -> K {
    serde_json::from_value(object).expect("a well-formed object")
}

struct Progress {
    title: String,
    began: Instant,
}

impl Progress {
    fn print(&self, what: &str) {
        println!("{:>6.0} s  {}: {what}", self.began.elapsed().as_secs_f64(), self.title);
    }

    /// Until it is so of all, or patience is at its end.
    async fn wait(
        &self,
        process: &mut Process,
        watcher: &ReleaseWatcher,
        what: &str,
        patience: Duration,
        is_in_sync: impl Fn(&ReleaseTimes) -> bool,
    ) {
        let (began, mut told) = (Instant::now(), Instant::now());
        loop {
            process.check();
            let (count, all) = (watcher.count(&is_in_sync), watcher.count(|_| true));
            let is_over = count == all || began.elapsed() > patience;
            if is_over || told.elapsed() > Duration::from_secs(10) {
                self.print(&format!("{count} of {all} {what}"));
                told = Instant::now();
            }
            if is_over {
                return;
            }
            sleep(Duration::from_millis(200)).await;
        }
    }
}
