//! The cluster of one seed: the local API server with its controllers, the real
//! controller, users, and webhook receivers.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject, PostParams};
use kube::core::GroupVersionKind;
use kube_local::{ApiServer, Cluster};
use parking_lot::Mutex;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use serin::api::{AnalysisTemplate, Canary};
use serin::clock::Clock;
use serin::controller::fence::Fence;
use serin::controller::membership::ReplicaConfig;
use serin::controller::{Controller, Environment, Options, run_replicated};
use serin::gates::webhook::Webhooks;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::connection::FlakyConnection;
use super::manifests::{autoscaler, budget, smi, template_name, template_spec, workload_of};
use super::receivers::{HookReceivers, TrafficFetch};
use super::recorder::Recorder;
use super::scenario::{Dependency, ExtraLabel, Scenario};

pub const NAMESPACE: &str = "default";

/// The same in every seed, and as dear as hundreds of writes.
static DEFINITIONS: LazyLock<Vec<CustomResourceDefinition>> =
    LazyLock::new(|| serin::api::crds().into_iter().chain(smi()).collect());

pub struct World {
    pub api_server: ApiServer,
    pub scenario: Scenario,
    pub recorder: Arc<Mutex<Recorder>>,
    _cluster: Cluster,
    pub client: Client,
    pub running: Vec<Running>,
    started: u64,
    pub commands: u64,
    /// The targets, as their users last wrote them.
    pub targets: Vec<WrittenTarget>,
    pub began: Instant,
}

#[derive(Clone)]
pub struct WrittenTarget {
    pub image: String,
    pub label: Option<ExtraLabel>,
}

/// A running controller; dropped, it is as if killed.
pub struct Running {
    pub connection: Arc<FlakyConnection>,
    pub stop: CancellationToken,
    pub work: AbortOnDropHandle<()>,
}

impl World {
    pub async fn new(seed: u64, scenario: Scenario, prints: bool) -> Self {
        let clock = Clock::starting_at("2026-03-02T08:00:00Z".parse().expect("a time"));
        let local = ApiServer::new(kube_local::Options { clock: Some(clock), seed, ..Default::default() });
        let mut recorder = Recorder::new(clock, scenario.canaries.iter().map(|subject| subject.name));
        recorder.prints = prints;
        let recorder = Arc::new(Mutex::new(recorder));
        let seer = Arc::clone(&recorder);
        local.on_write(Box::new(move |write| seer.lock().record_write(write)));
        let first = |name: &str| WrittenTarget { image: format!("{name}:v1"), label: None };
        let targets = scenario.canaries.iter().map(|setup| first(setup.name)).collect();
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
            targets,
            began: Instant::now(),
        };
        world.set_up().await;
        world
    }

    async fn set_up(&mut self) {
        for definition in &*DEFINITIONS {
            let definitions: Api<CustomResourceDefinition> = Api::all(self.client.clone());
            definitions.create(&PostParams::default(), definition).await.expect("a definition");
        }
        sleep(Duration::from_secs(1)).await;
        for on in 0..self.scenario.canaries.len() {
            let subject = &self.scenario.canaries[on];
            if subject.reads_config {
                let config =
                    json!({"metadata": {"name": format!("{}-config", subject.name)}, "data": {"value": "0"}});
                self.create::<ConfigMap>(config).await;
            }
            for (what, has) in [
                (Dependency::Autoscaler, subject.has_autoscaler),
                (Dependency::Budget, subject.has_budget),
                (Dependency::Template, subject.has_template),
            ] {
                if has {
                    self.create_dependency(on, what).await;
                }
            }
            self.create_target(on).await;
            {
                let mut recorder = self.recorder.lock();
                let seen = recorder.canaries.get_mut(subject.name).expect("it is known");
                (seen.rate, seen.direct_rate) = (subject.rate, subject.direct_rate);
                recorder.log_event(format!("{} releases by {}", subject.name, subject.spec));
            }
            self.create_canary(on).await;
        }
        self.start();
        self.began = Instant::now();
        let mut recorder = self.recorder.lock();
        let began = recorder.lag.at();
        for (at, event) in std::mem::take(&mut self.scenario.events) {
            recorder.agenda.add(began + at, event);
        }
    }

    /// Performs the events until then, or until an invariant is violated.
    pub async fn run_until(&mut self, end: Instant) {
        loop {
            let (next, due) = {
                let mut recorder = self.recorder.lock();
                if recorder.violation.is_some() {
                    return;
                }
                let now = recorder.lag.at();
                let next = recorder.agenda.next_time().map(|at| Instant::now() + at.saturating_sub(now));
                (next, recorder.agenda.pop_due(now))
            };
            if let Some(event) = due {
                self.perform(&event).await;
                continue;
            }
            if Instant::now() >= end {
                return;
            }
            let changed = Arc::clone(&self.recorder.lock().agenda.changed);
            tokio::select! {
                biased;
                () = sleep_until(next.map_or(end, |next| next.min(end))) => {}
                () = changed.notified() => {}
            }
        }
    }

    pub async fn create_target(&self, on: usize) {
        let (subject, target) = (&self.scenario.canaries[on], &self.targets[on]);
        let object = workload_of(subject, &target.image, target.label);
        let object: DynamicObject = serde_json::from_value(object).expect("a workload");
        self.log_failure(self.workload(on).create(&PostParams::default(), &object).await);
    }

    pub async fn create_dependency(&self, on: usize, what: Dependency) {
        let subject = &self.scenario.canaries[on];
        match what {
            Dependency::Autoscaler => self.create::<HorizontalPodAutoscaler>(autoscaler(subject)).await,
            Dependency::Budget => self.create::<PodDisruptionBudget>(budget(subject)).await,
            Dependency::Template => {
                let template = json!({
                    "apiVersion": "serin.dev/v1alpha1", "kind": "AnalysisTemplate",
                    "metadata": {"name": template_name(subject)}, "spec": template_spec(),
                });
                self.create::<AnalysisTemplate>(template).await;
            }
            // The controller does it.
            Dependency::Primary => {}
        }
    }

    /// Creates an object, unless it is there.
    async fn create<K>(&self, object: Value)
    where
        K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
            + Clone
            + std::fmt::Debug
            + Serialize
            + DeserializeOwned,
    {
        let object: K = serde_json::from_value(object).expect("an object of its kind");
        self.log_failure(self.api::<K>().create(&PostParams::default(), &object).await);
    }

    pub fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    pub fn workload(&self, on: usize) -> Api<DynamicObject> {
        let kind = GroupVersionKind::gvk("apps", "v1", self.scenario.canaries[on].kind);
        Api::namespaced_with(self.client.clone(), "default", &ApiResource::from_gvk(&kind))
    }

    pub async fn create_canary(&self, on: usize) {
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
}
