//! The cluster of one seed: the local API server with its controllers, the real
//! controller, users, and webhook receivers.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::StatusCode;
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use kube::{Client, ResourceExt as _};
use kube_local::faults::FaultPlan;
use kube_local::{ApiServer, Cluster};
use parking_lot::Mutex;
use serde_json::{Value, json};
use serin::api::Canary;
use serin::clock::Clock;
use serin::controller::fence::Fence;
use serin::controller::membership::ReplicaConfig;
use serin::controller::{Controller, Environment, Options, run_replicated};
use serin::engine::command::Verb;
use serin::gates::annotations::{self, APPROVALS, COMMANDS};
use serin::gates::webhook::{HookError, HookRequest, HookResponse, HookTransport, Webhooks};
use serin::metrics::scrape::Fetch;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::connection::FlakyConnection;
use super::objects;
use super::recorder::Recorder;
use super::scenario::{CanarySetup, Event, Gate, Metrics, Scenario};

const NAMESPACE: &str = "default";

pub struct World {
    pub api_server: ApiServer,
    pub scenario: Scenario,
    pub recorder: Arc<Mutex<Recorder>>,
    _cluster: Cluster,
    client: Client,
    running: Vec<Running>,
    started: u64,
    commands: u64,
}

/// A running controller; dropped, it is as if killed.
struct Running {
    connection: Arc<FlakyConnection>,
    stop: CancellationToken,
    work: AbortOnDropHandle<()>,
}

impl World {
    pub async fn new(seed: u64, scenario: Scenario) -> Self {
        let clock = Clock::starting_at("2026-03-02T08:00:00Z".parse().expect("a time"));
        let local = ApiServer::new(kube_local::Options { clock: Some(clock), seed, ..Default::default() });
        let recorder = Recorder::new(clock, scenario.canaries.iter().map(|subject| subject.name));
        let recorder = Arc::new(Mutex::new(recorder));
        let seer = Arc::clone(&recorder);
        local.on_write(Box::new(move |write| seer.lock().record_write(write)));
        let (cluster, client) = (local.start_cluster(false), local.fault_exempt_client());
        let mut world = Self {
            api_server: local,
            scenario,
            recorder,
            _cluster: cluster,
            client,
            running: Vec::new(),
            started: 0,
            commands: 0,
        };
        world.set_up().await;
        world
    }

    async fn set_up(&mut self) {
        for definition in serin::api::crds().into_iter().chain(smi()) {
            let definitions: Api<CustomResourceDefinition> = Api::all(self.client.clone());
            definitions.create(&PostParams::default(), &definition).await.expect("a definition");
        }
        sleep(Duration::from_secs(1)).await;
        for on in 0..self.scenario.canaries.len() {
            let subject = &self.scenario.canaries[on];
            if subject.reads_config {
                let config =
                    json!({"metadata": {"name": format!("{}-config", subject.name)}, "data": {"value": "0"}});
                objects::create::<ConfigMap>(&self.client, NAMESPACE, config).await;
            }
            if subject.has_autoscaler {
                objects::create::<HorizontalPodAutoscaler>(&self.client, NAMESPACE, autoscaler(subject))
                    .await;
            }
            let workload = self.workload(on);
            let object: DynamicObject = serde_json::from_value(workload_of(subject)).expect("a workload");
            workload.create(&PostParams::default(), &object).await.expect("a workload");
            {
                let mut recorder = self.recorder.lock();
                let seen = recorder.canaries.get_mut(subject.name).expect("it is known");
                (seen.rate, seen.direct_rate) = (subject.rate, subject.direct_rate);
                recorder.log_event(format!("{} releases by {}", subject.name, subject.spec));
            }
            self.create_canary(on).await;
        }
        self.start();
    }

    fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    fn workload(&self, on: usize) -> Api<DynamicObject> {
        let kind = GroupVersionKind::gvk("apps", "v1", self.scenario.canaries[on].kind);
        Api::namespaced_with(self.client.clone(), "default", &ApiResource::from_gvk(&kind))
    }

    async fn create_canary(&self, on: usize) {
        let subject = &self.scenario.canaries[on];
        let canary = json!({
            "apiVersion": "serin.dev/v1alpha1", "kind": "Canary", "metadata": {"name": subject.name},
            "spec": subject.spec,
        });
        let canary: Canary = serde_json::from_value(canary).expect("a Canary");
        let created = self.api::<Canary>().create(&PostParams::default(), &canary).await;
        if let Err(error) = created {
            self.recorder.lock().log_event(format!("could not create {}: {error}", subject.name));
        }
    }

    /// Starts the controller, or as many of two replicas as are missing.
    pub fn start(&mut self) {
        self.recorder.lock().lag.set_running(true);
        while self.running.len() < 1 + usize::from(self.scenario.replicas) {
            self.started += 1;
            let connection =
                FlakyConnection::new(format!("replica{}", self.started), Arc::clone(&self.recorder));
            let fetch = Arc::new(TrafficFetch(Arc::clone(&self.recorder)));
            let webhooks = Webhooks::with_transport(Arc::new(HookReceivers(Arc::clone(&self.recorder))));
            let options = Options {
                namespaces: vec!["default".to_owned()],
                webhooks: Some(webhooks),
                ..Options::default()
            };
            let clock = self.api_server.clock();
            let client = connection.client(self.api_server.client(), self.scenario.replicas);
            let stop = CancellationToken::new();
            let stopped = stop.clone();
            let elected = self.scenario.replicas;
            let claim = ReplicaConfig {
                namespace: "default".to_owned(),
                identity: connection.process.clone(),
                shards: 4,
            };
            let work = tokio::spawn(async move {
                // A service manager restarts the process.
                loop {
                    let (environment, options) =
                        (Environment::new(client.clone(), clock, fetch.clone()), options.clone());
                    let ended = if elected {
                        let run = run_replicated(environment, options, claim.clone(), stopped.clone());
                        run.await.map_err(drop)
                    } else {
                        match Controller::new(environment, Fence::unsharded(), options).await {
                            Ok(controller) => {
                                controller.run(stopped.clone().cancelled_owned()).await;
                                Ok(())
                            }
                            Err(_) => Err(()),
                        }
                    };
                    if ended.is_ok() || stopped.is_cancelled() {
                        return;
                    }
                    sleep(Duration::from_secs(1)).await;
                }
            });
            self.running.push(Running { connection, stop, work: AbortOnDropHandle::new(work) });
        }
    }

    pub async fn perform(&mut self, event: &Event) {
        self.recorder.lock().log_event(event);
        match event {
            Event::Push { on, image } => self.push(*on, image).await,
            Event::EditConfig { on, value } => {
                let patch = json!({"data": {"value": value.to_string()}});
                let name = format!("{}-config", self.scenario.canaries[*on].name);
                self.log_failure(
                    self.api::<ConfigMap>().patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await,
                );
            }
            Event::Edit { on, spec } => self.patch_canary(*on, json!({ "spec": spec })).await,
            Event::Command { on, verb } => {
                self.commands += 1;
                let order = json!({"id": format!("c{}", self.commands), "verb": verb, "by": "ann"});
                {
                    let mut recorder = self.recorder.lock();
                    let name = self.scenario.canaries[*on].name;
                    let subject = recorder.canaries.get_mut(name).expect("it is known");
                    match verb {
                        Verb::Retry | Verb::Rollback => subject.release_causes += 1,
                        Verb::Promote => {
                            subject.promoted_by_command = subject.status().map(|status| status.releases)
                        }
                        Verb::Abort | Verb::Pause | Verb::Resume => {}
                    }
                }
                self.annotate(*on, COMMANDS, vec![order]).await;
            }
            Event::Answer { on, yes } => self.answer_approvals(*on, *yes).await,
            Event::Delete { on } => {
                let name = self.scenario.canaries[*on].name;
                self.log_failure(self.api::<Canary>().delete(name, &DeleteParams::default()).await);
            }
            Event::Create { on } => self.create_canary(*on).await,
            Event::Scale { on, primary, replicas } => {
                let name = self.workload_name(*on, *primary);
                if !*primary {
                    let mut recorder = self.recorder.lock();
                    let of = self.scenario.canaries[*on].name;
                    recorder.canaries.get_mut(of).expect("it is known").scaled_by_user = true;
                }
                if self.scenario.canaries[*on].kind == "Deployment" {
                    let patch = Patch::Merge(json!({"spec": {"replicas": replicas}}));
                    self.log_failure(self.workload(*on).patch(&name, &PatchParams::default(), &patch).await);
                }
            }
            Event::KillPods { on, primary, all } => self.kill_pods(*on, *primary, *all).await,
            Event::Traffic { on, rate } => {
                let mut recorder = self.recorder.lock();
                recorder.advance_traffic();
                let name = self.scenario.canaries[*on].name;
                recorder.canaries.get_mut(name).expect("it is known").rate = *rate;
            }
            Event::Metrics { on, mode } => {
                let name = self.scenario.canaries[*on].name.to_owned();
                let mut recorder = self.recorder.lock();
                recorder.traffic.metrics.insert(name, *mode);
                if *mode != Metrics::Available {
                    recorder.count("metrics lost");
                }
            }
            Event::Gate { on, hook, mode } => {
                let url = format!("http://gates/{}/{hook}", self.scenario.canaries[*on].name);
                self.recorder.lock().gates.insert(url, *mode);
            }
            Event::Faults(plan) => {
                self.recorder.lock().lag.set_faults(*plan != FaultPlan::default());
                self.api_server.set_faults(plan.clone());
            }
            Event::Restart { gently, after, both } => {
                self.recorder.lock().lag.set_running(false);
                let ending = if *both { self.running.len() } else { 1 };
                for running in self.running.drain(..ending).collect::<Vec<_>>() {
                    self.recorder.lock().log(format!("  {} ends", running.connection.process));
                    let me = running.connection.process.clone();
                    if *gently {
                        running.stop.cancel();
                        let _ = running.work.await;
                    }
                    self.recorder.lock().remove_process(&me);
                }
                self.recorder.lock().count(if *gently { "ended" } else { "killed" });
                sleep(*after).await;
                self.start();
            }
            Event::Freeze { which, length } => {
                if let Some(running) = self.running.get(*which) {
                    let (connection, length) = (Arc::clone(&running.connection), *length);
                    self.recorder.lock().count("frozen");
                    tokio::spawn(async move { connection.freeze(length).await });
                }
            }
        }
    }

    fn workload_name(&self, on: usize, primary: bool) -> String {
        let name = self.scenario.canaries[on].name;
        if primary { format!("{name}-primary") } else { name.to_owned() }
    }

    fn log_failure<T>(&self, done: kube::Result<T>) {
        if let Err(error) = done {
            self.recorder.lock().log(format!("  (refused: {error})"));
        }
    }

    async fn push(&self, on: usize, image: &str) {
        let subject = &self.scenario.canaries[on];
        let probe = match image.contains("never-ready") || image.contains("delay") {
            true => {
                json!({"httpGet": {"path": "/healthz", "port": 8080}, "periodSeconds": 5, "failureThreshold": 1})
            }
            false => Value::Null,
        };
        let container = json!({"name": "app", "image": image, "readinessProbe": probe});
        let patch = json!({"spec": {"template": {"spec": {"containers": [container]}}}});
        let patch = Patch::Strategic(patch);
        self.log_failure(self.workload(on).patch(subject.name, &PatchParams::default(), &patch).await);
    }

    async fn patch_canary(&self, on: usize, patch: Value) {
        let name = self.scenario.canaries[on].name;
        self.log_failure(
            self.api::<Canary>().patch(name, &PatchParams::default(), &Patch::Merge(patch)).await,
        );
    }

    /// Adds entries to the annotation of approvals or of commands.
    async fn annotate(&self, on: usize, annotation: &str, entries: Vec<Value>) {
        let name = self.scenario.canaries[on].name;
        let Ok(Some(canary)) = self.api::<Canary>().get_opt(name).await else { return };
        let text = canary.annotations().get(annotation).map_or("[]", String::as_str);
        let mut all: Vec<Value> = serde_json::from_str(text).expect("a list");
        all.extend(entries);
        let text = serde_json::to_string(&all).expect("JSON");
        self.patch_canary(on, json!({"metadata": {"annotations": {annotation: text}}})).await;
    }

    pub async fn answer_approvals(&self, on: usize, yes: bool) {
        let name = self.scenario.canaries[on].name;
        let Ok(Some(canary)) = self.api::<Canary>().get_opt(name).await else { return };
        let at = self.api_server.clock().now();
        let entry = |question: serin::engine::action::GateCall| {
            let mut entry = json!({
                "release": question.release, "gate": question.gate, "answer": if yes { "yes" } else { "no" },
                "by": "ann", "at": at,
            });
            if let Some(kind) = question.kind {
                entry["type"] = json!(kind);
            }
            if let serin::engine::action::GateScope::Step(step) = question.scope {
                entry["step"] = json!(step);
            }
            entry
        };
        let entries: Vec<_> = annotations::pending_approvals(&canary).into_iter().map(entry).collect();
        if !entries.is_empty() {
            self.annotate(on, APPROVALS, entries).await;
        }
    }

    async fn kill_pods(&self, on: usize, primary: bool, all: bool) {
        let labels = ListParams::default().labels(&format!("app={}", self.workload_name(on, primary)));
        let pods: Api<Pod> = self.api();
        let found = pods.list(&labels).await.expect("a list").items;
        for pod in found.iter().take(if all { usize::MAX } else { 1 }) {
            let delete = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
            self.log_failure(pods.delete(&pod.name_any(), &delete).await);
        }
    }
}

/// Scrapes the pods of the traffic model.
struct TrafficFetch(Arc<Mutex<Recorder>>);

#[async_trait]
impl Fetch for TrafficFetch {
    async fn fetch(&self, url: &str, _limit: usize) -> Result<Bytes, String> {
        let uri: http::Uri = url.parse().map_err(|error| format!("{error}"))?;
        let read = self.0.lock().scrape(uri.host().unwrap_or_default());
        match read {
            None => Err("connection refused".to_owned()),
            Some((_, Metrics::Gone)) => Err("connection refused".to_owned()),
            Some((_, Metrics::Hanging)) => std::future::pending().await,
            Some((text, Metrics::Available | Metrics::Garbage)) => Ok(text.into()),
        }
    }
}

/// The receivers of webhooks.
struct HookReceivers(Arc<Mutex<Recorder>>);

#[async_trait]
impl HookTransport for HookReceivers {
    async fn send(&self, question: &HookRequest) -> Result<HookResponse, HookError> {
        let stops = question.url.ends_with("/stop");
        let usual = if stops { Gate::No } else { Gate::Yes };
        let mode = {
            let mut recorder = self.0.lock();
            let mode = recorder.gates.get(&question.url).copied().unwrap_or(usual);
            let of = question.url.split('/').nth(3).unwrap_or_default().to_owned();
            recorder.log(format!("    {} is called: {mode:?}", question.url));
            recorder.count(match mode {
                Gate::Unreachable => "gate dead",
                Gate::Slow(_) => "gate slow",
                Gate::No => "gate says no",
                Gate::Yes => "gate says yes",
            });
            if let Some(subject) = recorder.canaries.get_mut(&of)
                && (mode == Gate::No) != stops
            {
                subject.has_negative_evidence = true;
            }
            mode
        };
        let answer = async {
            match mode {
                Gate::Yes => StatusCode::OK,
                Gate::No => StatusCode::FORBIDDEN,
                Gate::Slow(time) => {
                    sleep(time).await;
                    if stops { StatusCode::FORBIDDEN } else { StatusCode::OK }
                }
                Gate::Unreachable => std::future::pending().await,
            }
        };
        let status = timeout(question.timeout, answer).await.map_err(|_| HookError::TimedOut)?;
        Ok(HookResponse { status, text: Vec::new() })
    }
}

fn workload_of(subject: &CanarySetup) -> Value {
    let mut container =
        json!({"name": "app", "image": format!("{}:v1", subject.name), "ports": [{"containerPort": 8080}]});
    if subject.reads_config {
        container["envFrom"] = json!([{"configMapRef": {"name": format!("{}-config", subject.name)}}]);
    }
    let labels = json!({"app": subject.name});
    let mut workload = json!({
        "apiVersion": "apps/v1", "kind": subject.kind, "metadata": {"name": subject.name},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"terminationGracePeriodSeconds": 1, "containers": [container]}},
        },
    });
    if subject.kind == "Deployment" {
        workload["spec"]["replicas"] = json!(subject.replicas);
    }
    workload
}

fn autoscaler(subject: &CanarySetup) -> Value {
    json!({
        "metadata": {"name": subject.name},
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": subject.name},
            "minReplicas": 1, "maxReplicas": 5,
        },
    })
}

/// TrafficSplits, and HTTPRouteGroups for those that choose requests.
fn smi() -> Vec<CustomResourceDefinition> {
    let definition = |group: &str, kind: &str, plural: &str, versions: &[&str]| {
        let version = |(at, version): (usize, &&str)| {
            json!({
                "name": version, "served": true, "storage": at == 0,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
            })
        };
        let versions: Vec<_> = versions.iter().enumerate().map(version).collect();
        let names = json!({"kind": kind, "listKind": format!("{kind}List"), "plural": plural, "singular": kind.to_lowercase()});
        serde_json::from_value(json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": format!("{plural}.{group}")},
            "spec": {"group": group, "scope": "Namespaced", "names": names, "versions": versions},
        }))
        .expect("a definition")
    };
    vec![
        definition("split.smi-spec.io", "TrafficSplit", "trafficsplits", &["v1alpha2", "v1alpha3"]),
        definition("specs.smi-spec.io", "HTTPRouteGroup", "httproutegroups", &["v1alpha3"]),
    ]
}
