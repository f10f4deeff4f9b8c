//! Sources outside the cluster, as MeshApis register them.
//!
//! ```text
//!   MeshApi, Secret ──watch──▶ Sources ──start, stop──▶ app_mesh | consul | cluster
//!                                 ▲                            │
//!                                 └───────── Report ───────────┘
//!                              Holdings ──▶ Change ──▶ the owner of the inventory
//! ```
//!
//! A source starts with its MeshApi, again with an edit of the spec or the Secret, and
//! ends with the MeshApi; no restart is needed. Each is a task of its own with its own
//! timeouts: one that hangs delays no other. MeshApis and Secrets are read in the
//! controller's namespace only, Secrets only with the label `serin.dev/credentials`.
//!
//! Objects of a source stay while it fails, also while its Secret is missing: only a
//! complete listing, or the end of the MeshApi, removes them.

#[cfg(feature = "aws")]
pub mod app_mesh;
pub mod cluster;
pub mod consul;
pub mod credentials;
pub mod holdings;
pub mod registry;
pub mod status;

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::time::Duration;

use futures::{FutureExt as _, StreamExt as _};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, Patch, PatchParams};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Client, ResourceExt as _};
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::api::mesh_api::CREDENTIALS_LABEL;
use crate::api::{MeshApi, MeshApiSpec, MeshApiStatus};
use crate::api_error::{api_message, watch_error};
use crate::clock::Clock;
use crate::discovery::model::{Change, Key, Kind, Object};
use credentials::{Credentials, CredentialsError, credentials};
use holdings::Holdings;
use registry::{Found, Instance, Registries};
use status::{Counts, Health};

/// Reports that wait for [`Sources`]; a source with more of them waits.
const MAX_WAITING_REPORTS: usize = 64;

/// Of one attempt.
const STATUS_TIMEOUT: Duration = Duration::from_secs(10);

const STATUS_RETRY_DELAYS_SECONDS: [u64; 3] = [1, 5, 15];

/// The scope of errors that come before any listing.
const SETUP: &str = "setup";

enum Report {
    /// A complete listing of the scope.
    Listed(Vec<Object>),
    Applied(Object),
    Removed(Key),
    /// Nothing changed since the last listing.
    Alive,
    Failed(String),
}

struct Message {
    api: String,
    /// Reports of an earlier start are dropped.
    start: u64,
    scope: String,
    report: Report,
}

/// How a source reports.
#[derive(Clone)]
pub struct Reporter {
    api: String,
    start: u64,
    messages: mpsc::Sender<Message>,
    /// None: nothing reads endpoints.
    registries: Option<Registries>,
}

impl Reporter {
    /// Services of this MeshApi whose instances are wanted now.
    pub(super) fn wanted(&self) -> BTreeSet<registry::Service> {
        let wanted = self.registries.as_ref().map(|registries| registries.wanted.borrow());
        wanted.and_then(|wanted| wanted.get(&self.api).cloned()).unwrap_or_default()
    }

    /// Returns when others may be wanted.
    pub(super) async fn wanted_changed(&mut self) {
        let changed = match &mut self.registries {
            Some(registries) => registries.wanted.changed().await.is_ok(),
            None => false,
        };
        if !changed {
            std::future::pending().await
        }
    }

    /// All instances of a service in a scope.
    pub(super) async fn found(&self, scope: &str, service: &registry::Service, instances: Vec<Instance>) {
        let Some(registries) = &self.registries else { return };
        let (mesh_api, scope, service) = (self.api.clone(), scope.to_owned(), service.clone());
        // Closed when everything ends.
        let _ = registries.found.send(Found { mesh_api, scope, service, instances }).await;
    }

    async fn send(&self, scope: &str, report: Report) {
        let message = Message { api: self.api.clone(), start: self.start, scope: scope.to_owned(), report };
        // Closed when everything ends.
        let _ = self.messages.send(message).await;
    }

    pub(super) async fn listed(&self, scope: &str, objects: Vec<Object>) {
        self.send(scope, Report::Listed(objects)).await;
    }

    pub(super) async fn applied(&self, scope: &str, object: Object) {
        self.send(scope, Report::Applied(object)).await;
    }

    pub(super) async fn removed(&self, scope: &str, key: Key) {
        self.send(scope, Report::Removed(key)).await;
    }

    pub(super) async fn alive(&self, scope: &str) {
        self.send(scope, Report::Alive).await;
    }

    pub(super) async fn failed(&self, scope: &str, why: String) {
        self.send(scope, Report::Failed(why)).await;
    }
}

/// Everything that a source is started with. An edit of any of it starts it again.
#[derive(Clone, PartialEq)]
struct Inputs {
    spec: MeshApiSpec,
    label: Option<String>,
    data: Option<BTreeMap<String, ByteString>>,
}

struct Running {
    inputs: Inputs,
    start: u64,
    scopes: BTreeMap<String, Health>,
    /// The last status that was sent.
    status: Option<MeshApiStatus>,
    _task: Option<AbortOnDropHandle<()>>,
    _writing: Option<AbortOnDropHandle<()>>,
}

/// The registered sources of one controller.
pub struct Sources {
    client: Client,
    namespace: String,
    clock: Clock,
    changes: mpsc::Sender<Change>,
    messages: mpsc::Sender<Message>,
    received: mpsc::Receiver<Message>,
    apis: Watched<MeshApi>,
    secrets: Watched<Secret>,
    running: BTreeMap<String, Running>,
    holdings: Holdings,
    starts: u64,
    registries: Option<Registries>,
    #[cfg(feature = "aws")]
    aws: (crate::aws::Accounts, app_mesh::Paces),
}

/// Objects by name, complete after the first list.
struct Watched<K> {
    objects: BTreeMap<String, K>,
    listing: BTreeMap<String, K>,
    synced: bool,
}

impl<K> Default for Watched<K> {
    fn default() -> Self {
        Self { objects: BTreeMap::new(), listing: BTreeMap::new(), synced: false }
    }
}

impl<K: kube::Resource> Watched<K> {
    fn receive(&mut self, event: Result<Event<K>, watcher::Error>, what: &str) {
        match event {
            Ok(Event::Init) => self.listing.clear(),
            Ok(Event::InitApply(object)) => _ = self.listing.insert(object.name_any(), object),
            Ok(Event::InitDone) => {
                self.objects = std::mem::take(&mut self.listing);
                self.synced = true;
            }
            Ok(Event::Apply(object)) => _ = self.objects.insert(object.name_any(), object),
            Ok(Event::Delete(object)) => _ = self.objects.remove(&object.name_any()),
            Err(error) => tracing::warn!("watch {what}: {}", watch_error(&error).0),
        }
    }
}

impl Sources {
    /// Changes of the inventory are sent to `changes`. MeshApis are read in `namespace`.
    pub fn new(client: Client, namespace: String, clock: Clock, changes: mpsc::Sender<Change>) -> Self {
        let (messages, received) = mpsc::channel(MAX_WAITING_REPORTS);
        Self {
            client,
            namespace,
            clock,
            changes,
            messages,
            received,
            apis: Watched::default(),
            secrets: Watched::default(),
            running: BTreeMap::new(),
            holdings: Holdings::default(),
            starts: 0,
            registries: None,
            #[cfg(feature = "aws")]
            aws: Default::default(),
        }
    }

    /// Reports the instances of the services that EndpointGroups name.
    pub fn with_registries(self, registries: Registries) -> Self {
        Self { registries: Some(registries), ..self }
    }

    /// Until `stop`, or until nobody receives the changes.
    pub async fn run(mut self, stop: CancellationToken) {
        let apis = Api::<MeshApi>::namespaced(self.client.clone(), &self.namespace);
        let secrets = Api::<Secret>::namespaced(self.client.clone(), &self.namespace);
        let labelled = watcher::Config::default().labels(CREDENTIALS_LABEL);
        let mut apis = pin!(watcher(apis, watcher::Config::default()).default_backoff());
        let mut secrets = pin!(watcher(secrets, labelled).default_backoff());
        while !self.changes.is_closed() {
            tokio::select! {
                () = stop.cancelled() => return,
                Some(event) = apis.next() => {
                    self.apis.receive(event, "MeshApis");
                    self.start_and_stop().await;
                }
                Some(event) = secrets.next() => {
                    self.secrets.receive(event, "Secrets of MeshApis");
                    self.start_and_stop().await;
                }
                Some(message) = self.received.recv() => self.receive(message).await,
                else => return,
            }
        }
    }

    async fn start_and_stop(&mut self) {
        if !self.apis.synced || !self.secrets.synced {
            return;
        }
        let gone: Vec<String> =
            self.running.keys().filter(|name| !self.apis.objects.contains_key(*name)).cloned().collect();
        for name in gone {
            self.running.remove(&name);
            let changes = self.holdings.drop_api(&name);
            self.send(changes).await;
            tracing::info!(meshapi = name, "ended");
        }
        let changed = |(name, api): (&String, &MeshApi)| {
            let inputs = self.inputs(&api.spec);
            let same = self.running.get(name).is_some_and(|running| running.inputs == inputs);
            (!same).then(|| (name.clone(), inputs))
        };
        let changed: Vec<(String, Inputs)> = self.apis.objects.iter().filter_map(changed).collect();
        for (name, inputs) in changed {
            self.start(name, inputs).await;
        }
    }

    fn secret(&self, spec: &MeshApiSpec) -> Option<&Secret> {
        self.secrets.objects.get(&spec.secret_ref.as_ref()?.name)
    }

    fn inputs(&self, spec: &MeshApiSpec) -> Inputs {
        let secret = self.secret(spec);
        Inputs {
            spec: spec.clone(),
            label: secret.and_then(|secret| secret.labels().get(CREDENTIALS_LABEL).cloned()),
            data: secret.and_then(|secret| secret.data.clone()),
        }
    }

    async fn start(&mut self, name: String, inputs: Inputs) {
        self.starts += 1;
        let reporter = Reporter {
            api: name.clone(),
            start: self.starts,
            messages: self.messages.clone(),
            registries: self.registries.clone(),
        };
        let spec = inputs.spec.clone();
        let source =
            credentials(&spec, self.secret(&spec)).map(|found| self.source(&name, spec, found, reporter));
        let (task, error) = match source {
            Ok(source) => (Some(AbortOnDropHandle::new(tokio::spawn(source))), None),
            Err(error) => (None, Some(error)),
        };
        let status = self.running.remove(&name).and_then(|before| before.status);
        let scopes = error.iter().map(|error: &CredentialsError| {
            (SETUP.to_owned(), Health { listed: None, error: Some(error.to_string()) })
        });
        let running = Running {
            scopes: scopes.collect(),
            start: self.starts,
            status,
            _task: task,
            _writing: None,
            inputs,
        };
        let changes = match &running.inputs.spec.app_mesh {
            // Another kind of source, or other regions.
            Some(api) => self.holdings.retain_scopes(&name, |scope| api.regions.iter().any(|r| r == scope)),
            None if running.inputs.spec.consul.is_some() => {
                self.holdings.retain_scopes(&name, |scope| scope == consul::SCOPE)
            }
            None => self.holdings.retain_scopes(&name, |scope| scope != consul::SCOPE && !is_region(scope)),
        };
        self.send(changes).await;
        tracing::info!(meshapi = name, "started");
        self.running.insert(name.clone(), running);
        self.write_status(&name);
    }

    /// The task of a source.
    fn source(
        &self,
        name: &str,
        spec: MeshApiSpec,
        credentials: Credentials,
        reporter: Reporter,
    ) -> futures::future::BoxFuture<'static, ()> {
        let name = name.to_owned();
        match (spec.app_mesh, spec.consul, spec.kubernetes, credentials) {
            #[cfg(feature = "aws")]
            (Some(api), _, _, found) => {
                let keys = match found {
                    Credentials::Aws(keys) => Some(keys),
                    _ => None,
                };
                let aws = self.aws.clone();
                async move { app_mesh::poll(&api, keys, aws, reporter).await }.boxed()
            }
            #[cfg(not(feature = "aws"))]
            (Some(_), _, _, _) => {
                async move { reporter.failed(SETUP, "this build has no App Mesh client".to_owned()).await }
                    .boxed()
            }
            (_, Some(api), _, found) => {
                let token = match found {
                    Credentials::Token(token) => Some(token),
                    _ => None,
                };
                async move {
                    match consul::Catalogue::new(&api, token) {
                        Ok(catalogue) => consul::follow(catalogue, reporter).await,
                        Err(error) => reporter.failed(SETUP, error.to_string()).await,
                    }
                }
                .boxed()
            }
            (_, _, Some(api), Credentials::Kubeconfig(kubeconfig)) => async move {
                match cluster::client(*kubeconfig, api.context).await {
                    Ok(client) => cluster::follow(client, name, reporter).await,
                    Err(error) => reporter.failed(SETUP, error.to_string()).await,
                }
            }
            .boxed(),
            _ => {
                let why = "set exactly one of spec.appMesh, spec.consul and spec.kubernetes with its Secret";
                async move { reporter.failed(SETUP, why.to_owned()).await }.boxed()
            }
        }
    }

    async fn receive(&mut self, Message { api, start, scope, report }: Message) {
        let now = self.clock.now();
        let Some(running) = self.running.get_mut(&api).filter(|running| running.start == start) else {
            return;
        };
        let health = running.scopes.entry(scope.clone()).or_default();
        let changes = match report {
            Report::Listed(objects) => {
                *health = Health { listed: Some(now), error: None };
                self.holdings.listed(&api, &scope, objects)
            }
            Report::Alive => {
                *health = Health { listed: Some(now), error: None };
                Vec::new()
            }
            Report::Applied(object) => vec![self.holdings.applied(&api, &scope, object)],
            Report::Removed(key) => self.holdings.removed(&api, &scope, &key).into_iter().collect(),
            Report::Failed(error) => {
                health.error = Some(error);
                Vec::new()
            }
        };
        self.send(changes).await;
        self.write_status(&api);
    }

    async fn send(&self, changes: Vec<Change>) {
        for change in changes {
            // Closed when everything ends.
            let _ = self.changes.send(change).await;
        }
    }

    /// In a task of its own, so that a slow API server delays no source.
    fn write_status(&mut self, name: &str) {
        let (Some(api), Some(running)) = (self.apis.objects.get(name), self.running.get_mut(name)) else {
            return;
        };
        let is_mesh = |key: &Key| matches!(key.kind, Kind::AppMeshMesh | Kind::ConsulDatacenter);
        let counts = Counts {
            meshes: self.holdings.count(name, is_mesh),
            objects: self.holdings.count(name, |_| true),
        };
        let Some(status) = status::status(api, &running.scopes, &counts, self.clock.now()) else { return };
        if !status::is_worth_writing(running.status.as_ref().or(api.status.as_ref()), &status) {
            return;
        }
        running.status = Some(status.clone());
        let apis = Api::<MeshApi>::namespaced(self.client.clone(), &self.namespace);
        let name = name.to_owned();
        running._writing = Some(AbortOnDropHandle::new(tokio::spawn(async move {
            let patch = Patch::Merge(json!({ "status": status }));
            for delay in STATUS_RETRY_DELAYS_SECONDS {
                let params = PatchParams::default();
                match timeout(STATUS_TIMEOUT, apis.patch_status(&name, &params, &patch)).await {
                    Ok(Ok(_)) => return,
                    Ok(Err(error)) => {
                        tracing::warn!(meshapi = name, "write its status: {}", api_message(&error))
                    }
                    Err(_) => tracing::warn!(meshapi = name, "write its status: no answer"),
                }
                sleep(Duration::from_secs(delay)).await;
            }
        })));
    }
}

/// As `spec.appMesh.regions` has them; no kind of a cluster has a digit at its end.
fn is_region(scope: &str) -> bool {
    scope.ends_with(|last: char| last.is_ascii_digit())
}

/// Whether the credentials work, in one sentence that says what they show.
pub async fn probe(spec: &MeshApiSpec, secret: Option<&Secret>) -> Result<String, String> {
    let found = credentials(spec, secret).map_err(|error| error.to_string())?;
    match (&spec.app_mesh, &spec.consul, &spec.kubernetes, found) {
        #[cfg(feature = "aws")]
        (Some(api), _, _, found) => {
            let keys = match found {
                Credentials::Aws(keys) => Some(keys),
                _ => None,
            };
            let mut shown = Vec::new();
            for region in &api.regions {
                let account = app_mesh::account(api, keys.as_ref(), region);
                let (accounts, pace) = (crate::aws::Accounts::default(), Default::default());
                let listing = app_mesh::Listing::new(&accounts, &account, api.owner.clone(), &pace).await;
                let listing = listing.map_err(|error| error.to_string())?;
                let meshes = listing.meshes().await.map_err(|error| error.to_string())?;
                shown.push(format!("{} in {region}", meshes.len()));
            }
            Ok(format!("App Mesh shows these meshes: {}", shown.join(", ")))
        }
        (_, Some(api), _, found) => {
            let token = match found {
                Credentials::Token(token) => Some(token),
                _ => None,
            };
            let catalogue = consul::Catalogue::new(api, token).map_err(|error| error.to_string())?;
            let (_, names) = catalogue.next(0).await.map_err(|error| error.to_string())?;
            Ok(format!("Consul shows {} services", names.len()))
        }
        (_, _, Some(api), Credentials::Kubeconfig(kubeconfig)) => {
            let client = cluster::client(*kubeconfig, api.context.clone()).await;
            let client = client.map_err(|error| error.to_string())?;
            let (_, kinds) = cluster::kinds(&client).await.map_err(|error| error.to_string())?;
            Ok(format!("the cluster serves {} of the kinds that the inventory reads", kinds.len()))
        }
        _ => Err("set exactly one of appMesh, consul and kubernetes, with its credentials".to_owned()),
    }
}
