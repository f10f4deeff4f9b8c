//! A node that runs each pod bound to it as a small HTTP server in this process.
//!
//! It uses only the Kubernetes API, so it works as kubelet of this crate's server
//! and of a real one. Without a scheduler it also binds unbound pods. A
//! container's behaviour comes from its image tag and environment
//! ([`behaviour`]). Each pod has a loopback address of its own ([`address`]), so
//! that pods listen on the ports they declare, and EndpointSlices, proxies and
//! scrapers work as usual.
//!
//! With `listen` off no socket is opened, and pods are reached only by
//! [`Node::call`]: sockets do not work with paused time.

pub mod address;
mod app;
pub mod behaviour;
mod config;
mod container;
pub mod log;
pub mod placement;
mod pod_worker;
mod probe;
mod status;

use std::collections::{BTreeMap, HashSet};
use std::net::SocketAddr;
use std::sync::{Arc, Weak};

use axum::body::Body;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use http::{Request, Response};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Binding, Node as NodeObject, ObjectReference, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Status, Time};
use kube::api::{Patch, PatchParams, PostParams};
use kube::runtime::watcher::Event;
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tower::ServiceExt;

use super::controllers::events::{EventRecorder, EventType};
use super::controllers::runtime::{backoff, ignore_not_found, is_conflict, watch as watch_all};
use address::{AddressPool, Network};
use container::Directory;
use log::Logs;
use work_queue::clock::Clock;

/// The node's name in a cluster with one node.
pub const NAME: &str = "local";

const HOST_IP: &str = "127.0.0.1";

/// Configuration of a node.
#[derive(Clone, Debug)]
pub struct NodeOptions {
    pub name: String,
    pub clock: Clock,
    /// Whether pods listen on real sockets.
    pub listen: bool,
    pub network: Network,
    /// Whether to bind pods without a node.
    pub bind: bool,
    /// The seed of the pods' errors and latencies.
    pub seed: u64,
}

impl NodeOptions {
    pub fn named(name: &str) -> NodeOptions {
        NodeOptions {
            name: name.to_owned(),
            clock: Clock::system(),
            listen: true,
            network: Network::Loopback,
            bind: true,
            seed: 0,
        }
    }
}

/// A node; clones share it.
#[derive(Clone)]
pub struct Node(Arc<NodeInner>);

struct NodeInner {
    client: Client,
    options: NodeOptions,
    events: EventRecorder,
    addresses: AddressPool,
    directory: Directory,
    logs: Logs,
}

/// A node that ends with its other clones.
pub struct WeakNode(Weak<NodeInner>);

impl WeakNode {
    pub fn upgrade(&self) -> Option<Node> {
        self.0.upgrade().map(Node)
    }
}

/// No pod listens on this address.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("connection refused: no pod listens on {0}")]
pub struct ConnectionRefused(pub SocketAddr);

impl Node {
    pub fn new(client: Client, options: NodeOptions) -> Node {
        let addresses =
            AddressPool::new(fnv_hash(options.seed, &options.name), options.network, options.listen);
        let events = EventRecorder::new(client.clone(), options.clock, "kubelet");
        let (directory, logs) = (Directory::default(), Logs::default());
        Node(Arc::new(NodeInner { client, options, events, addresses, directory, logs }))
    }

    pub fn downgrade(&self) -> WeakNode {
        WeakNode(Arc::downgrade(&self.0))
    }

    /// What the containers of its pods logged.
    pub fn logs(&self) -> &Logs {
        &self.0.logs
    }

    /// Sends a request to a pod of this node, without a socket.
    pub async fn call(
        &self,
        to: SocketAddr,
        request: Request<Body>,
    ) -> Result<Response<Body>, ConnectionRefused> {
        let app = self.0.directory.read().get(&to).cloned().ok_or(ConnectionRefused(to))?;
        match app.oneshot(request).await {
            Ok(response) => Ok(response),
            Err(never) => match never {},
        }
    }

    /// Runs the node's pods until dropped.
    pub async fn run(&self) {
        futures::join!(self.register(), self.run_pods());
    }

    async fn run_pods(&self) {
        let mut changes = std::pin::pin!(watch_all(Api::<Pod>::all(self.0.client.clone())));
        // Ordered, so that simulations replay: after a relist, the workers of
        // missing pods end in this order.
        let mut pods: BTreeMap<String, watch::Sender<Arc<Pod>>> = BTreeMap::new();
        let mut listed: Option<HashSet<String>> = None;
        let mut workers = JoinSet::new();
        let mut binding: HashSet<String> = HashSet::new();
        let mut bindings = FuturesUnordered::new();
        loop {
            tokio::select! {
                // In this order, so that simulations replay.
                biased;
                Some(event) = changes.next() => match event {
                    Event::Init => listed = Some(HashSet::new()),
                    Event::InitDone => {
                        if let Some(listed) = listed.take() {
                            pods.retain(|uid, _| listed.contains(uid));
                        }
                    }
                    Event::Delete(pod) => {
                        pods.remove(&pod.uid().unwrap_or_default());
                    }
                    Event::InitApply(pod) | Event::Apply(pod) => {
                        let uid = pod.uid().unwrap_or_default();
                        if let Some(listed) = listed.as_mut() {
                            listed.insert(uid.clone());
                        }
                        match pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).filter(|node| !node.is_empty()) {
                            Some(node) if node == self.0.options.name => {
                                let pod = Arc::new(pod);
                                match pods.get(&uid) {
                                    Some(worker) => drop(worker.send_replace(pod)),
                                    None => {
                                        let (worker, updates) = watch::channel(pod);
                                        pods.insert(uid, worker);
                                        workers.spawn(pod_worker::run_pod(self.0.clone(), updates));
                                    }
                                }
                            }
                            None if self.can_schedule(&pod) && binding.insert(uid) => bindings.push(self.bind(pod)),
                            Some(_) | None => {}
                        }
                    }
                },
                Some(uid) = bindings.next() => { binding.remove(&uid); }
                Some(_) = workers.join_next() => {}
                else => return,
            }
        }
    }

    fn can_schedule(&self, pod: &Pod) -> bool {
        let Some(spec) = pod.spec.as_ref().filter(|_| self.0.options.bind) else { return false };
        pod.metadata.deletion_timestamp.is_none()
            && spec.scheduling_gates.as_ref().is_none_or(Vec::is_empty)
            && placement::node_matches(spec, &self.0.options.name)
    }

    async fn bind(&self, pod: Pod) -> String {
        let api: Api<Pod> = Api::namespaced(self.0.client.clone(), &pod.namespace().unwrap_or_default());
        let name = pod.name_any();
        let binding = Binding {
            metadata: ObjectMeta { name: Some(name.clone()), uid: pod.uid(), ..ObjectMeta::default() },
            target: ObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("Node".to_owned()),
                name: Some(self.0.options.name.clone()),
                ..ObjectReference::default()
            },
        };
        let mut attempt = 0;
        loop {
            let bound: kube::Result<Status> =
                api.create_subresource("binding", &name, &PostParams::default(), &binding).await;
            match ignore_not_found(bound) {
                Ok(_) => {
                    let (namespace, node) = (pod.namespace().unwrap_or_default(), &self.0.options.name);
                    let message = format!("Successfully assigned {namespace}/{name} to {node}");
                    self.0.events.publish(&pod, EventType::Normal, "Scheduled", message).await;
                    break;
                }
                // Another node bound it first.
                Err(error) if is_conflict(&error) => break,
                Err(error) => {
                    tracing::debug!(%error, pod = name, "cannot bind a pod; retrying");
                    attempt += 1;
                    sleep(backoff(attempt)).await;
                }
            }
        }
        pod.uid().unwrap_or_default()
    }

    /// Creates the Node object, which DaemonSets need.
    async fn register(&self) {
        let mut attempt = 0;
        while let Err(error) = self.create_node_object().await {
            tracing::debug!(%error, "cannot register the node; retrying");
            attempt += 1;
            sleep(backoff(attempt)).await;
        }
    }

    async fn create_node_object(&self) -> kube::Result<()> {
        let api: Api<NodeObject> = Api::all(self.0.client.clone());
        let name = &self.0.options.name;
        let object = NodeObject {
            metadata: ObjectMeta {
                name: Some(name.clone()),
                labels: Some(placement::labels_of(name)),
                ..ObjectMeta::default()
            },
            ..NodeObject::default()
        };
        match api.create(&PostParams::default(), &object).await {
            Err(error) if is_conflict(&error) => {}
            created => match ignore_not_found(created)? {
                Some(_) => {}
                None => return Ok(()),
            },
        }
        // New nodes are tainted until a controller finds them ready; no such controller runs here.
        let without_taints = Patch::Merge(json!({"spec": {"taints": null}}));
        api.patch(name, &PatchParams::default(), &without_taints).await?;
        let now = now_in_seconds(&self.0.options.clock);
        let status = Patch::Merge(json!({"status": {
            "addresses": [{"type": "InternalIP", "address": HOST_IP}, {"type": "Hostname", "address": name}],
            "capacity": {"pods": "10000", "cpu": "64", "memory": "64Gi"},
            "allocatable": {"pods": "10000", "cpu": "64", "memory": "64Gi"},
            "nodeInfo": {
                "operatingSystem": "linux", "architecture": "amd64", "kubeletVersion": concat!("serin/", env!("CARGO_PKG_VERSION")),
                "bootID": "", "containerRuntimeVersion": "serin://0", "kernelVersion": "", "kubeProxyVersion": "",
                "machineID": "", "osImage": "", "systemUUID": "",
            },
            "conditions": [{
                "type": "Ready", "status": "True", "reason": "KubeletReady", "message": "runs pods in one process",
                "lastHeartbeatTime": now, "lastTransitionTime": now,
            }],
        }}));
        api.patch_status(name, &PatchParams::default(), &status).await?;
        Ok(())
    }
}

/// The current time in whole seconds, as the API stores it.
fn now_in_seconds(clock: &Clock) -> Time {
    Time(Timestamp::from_second(clock.now().as_second()).unwrap_or(Timestamp::UNIX_EPOCH))
}

/// FNV-1a, the same in every run.
fn fnv_hash(seed: u64, text: &str) -> u64 {
    let start = 0xcbf2_9ce4_8422_2325 ^ seed;
    text.bytes().fold(start, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
