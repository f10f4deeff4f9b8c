//! The controller under exactly the rights that the chart gives it: they are
//! enough for every feature, and none of them is idle.
//!
//! It is the real binary with the arguments and the environment of the
//! rendered Deployment and a token of its ServiceAccount; what it asked for is
//! in the API server's audit log.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use futures::future::join_all;
use kube::api::{Api, ApiResource, DynamicObject, ListParams};
use kube::core::GroupVersionKind;
use kube::{Client, ResourceExt as _};
use serde_json::{Value, json};
use serin::local::node::address::Network;
use tokio::process::Command;
use tokio::sync::{Mutex, MutexGuard, OnceCell};
use tokio_util::task::AbortOnDropHandle;

use crate::install::{HOME, install, installed};
use crate::support::chart::{Kubectl, Manifests, run, token};
use crate::support::prometheus::Prometheus;
use crate::support::receiver::Receiver;
use crate::support::{self, Child, Cluster, Folder, definitions};

/// Two cores shared with a build are slow.
const PATIENCE: Duration = Duration::from_secs(600);

/// A replica that ended is missed after some fifteen seconds.
const TAKEN_OVER: Duration = Duration::from_secs(120);

/// Rights that no request shows to be used, and why they are needed.
const UNSEEN: [(&str, &str, &str); 1] = [
    // Asked for by the API server itself when an object is written whose owner
    // reference blocks the Canary's deletion.
    ("serin.dev", "canaries/finalizers", "update"),
];

#[tokio::test]
async fn all_namespaces_take_these_rights_and_no_more() {
    let (cluster, manifests) = installed().await;
    let stage = Stage::new(cluster, HOME, manifests).await;
    let namespace = cluster.namespace("shop").await;
    stage.prove(&[namespace]).await;
}

#[tokio::test]
async fn two_namespaces_take_roles_and_one_right_beyond() {
    let (cluster, _) = installed().await;
    let namespaces = [cluster.namespace("left").await, cluster.namespace("right").await];
    let set = [
        &format!("namespaces={{{}}}", namespaces.join(",")),
        "crds.install=false",
        "rbac.people=false",
        "approvals.policy=false",
    ];
    let manifests = install(cluster, "serin-roles", &set).await;
    let wide = &manifests.one("ClusterRole")["rules"];
    assert_eq!(wide.as_array().map(Vec::len), Some(1), "{wide}");
    assert_eq!(wide[0]["resources"], json!(["clusteranalysistemplates"]));
    let stage = Stage::new(cluster, "serin-roles", &manifests).await;
    stage.prove(&namespaces).await;
}

/// Everything around the controller.
struct Stage<'m> {
    cluster: &'static Cluster,
    home: &'m str,
    manifests: &'m Manifests,
    client: Client,
    kubectl: Kubectl,
    /// A second controller for all namespaces would serve these as well.
    _alone: MutexGuard<'static, ()>,
}

impl<'m> Stage<'m> {
    async fn new(cluster: &'static Cluster, home: &'m str, manifests: &'m Manifests) -> Self {
        static ALONE: Mutex<()> = Mutex::const_new(());
        static FURNISHED: OnceCell<()> = OnceCell::const_new();
        let kubectl = Kubectl::admin(cluster);
        FURNISHED
            .get_or_init(async || {
                support::node::run(cluster, Network::Loopback);
                let definitions = definitions::smi().into_iter().chain([definitions::keda()]);
                definitions::install(&cluster.client().await, definitions).await;
            })
            .await;
        let client = cluster.client().await;
        Self { cluster, home, manifests, client, kubectl, _alone: ALONE.lock().await }
    }

    /// Runs the features in each of these namespaces, then compares what was
    /// asked for with what is granted.
    async fn prove(&self, namespaces: &[String]) {
        let account = self.manifests.one("ServiceAccount");
        let name = account["metadata"]["name"].as_str().expect("a name");
        let token = token(self.cluster, self.home, name).await;
        self.await_owners(&namespaces[0], &token).await;
        let (earlier, folder) = (self.cluster.audit().len(), Folder::new("serin"));
        folder.write("kubeconfig", &self.cluster.kubeconfig_of(&token).to_string());
        let mut replicas: Vec<Replica> =
            (0..2).map(|number| Replica::start(self.manifests, self.home, number, &folder)).collect();
        let (chat, gate) = (Receiver::start([]).await, Receiver::start([]).await);
        let prometheus = Prometheus::start("").await;
        let urls = [chat.url.as_str(), &gate.url, &prometheus.url()];
        let shops = namespaces.iter().map(|namespace| self.features(namespace, urls, &replicas));
        join_all(shops).await;
        assert!(!chat.got().is_empty() && !gate.got().is_empty(), "chats are told and gates asked");
        for replica in &mut replicas {
            replica.assert_well().await;
        }
        // Killed; the other takes over what it held.
        replicas.pop();

        let (granted, began) = (Right::granted(self.manifests), Instant::now());
        let user = format!("system:serviceaccount:{}:{name}", self.home);
        loop {
            let mut events = self.cluster.audit().split_off(earlier);
            events.retain(|event| event["user"]["username"] == *user);
            let denied: Vec<&Value> =
                events.iter().filter(|event| event["responseStatus"]["code"] == 403).collect();
            assert!(denied.is_empty(), "refused for want of a right: {denied:#?}");
            let used: BTreeSet<Right> = events.iter().flat_map(Right::used).collect();
            let idle: Vec<&Right> = granted.iter().filter(|right| !right.is_among(&used)).collect();
            if idle.is_empty() {
                return;
            }
            assert!(began.elapsed() < TAKEN_OVER, "granted and never used: {idle:#?}");
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }

    /// Uses every feature in one namespace, from the first look at the Canaries
    /// to the last of their deletion.
    async fn features(&self, namespace: &str, [chat, gate, prometheus]: [&str; 3], replicas: &[Replica]) {
        let features = include_str!("features.yaml");
        let words = [
            ("NAMESPACE", namespace),
            ("HOME", self.home),
            ("CHAT", chat),
            ("GATE", gate),
            ("PROMETHEUS", prometheus),
        ];
        let features = words.iter().fold(features.to_owned(), |text, (word, with)| text.replace(word, with));
        self.kubectl.apply(&features).await;
        let shop = Shop { stage: self, namespace, replicas };
        let _visitors = shop.visitors();
        for canary in CANARIES {
            shop.until(&format!("{canary} is initialized"), async || {
                shop.phase(canary).await == "Initialized"
            })
            .await;
        }
        for version in ["v2", "v3"] {
            shop.push(version).await;
            shop.until(&format!("{version} is promoted everywhere"), async || shop.runs(version).await).await;
        }
        let gone = async |kind: &str, name: &str| shop.get(kind, name).await.is_none();
        shop.until("the versions before are dropped", async || {
            gone("Deployment", "web-previous").await
                && gone("DaemonSet", "daemon-previous").await
                && gone("Service", "front-previous").await
        })
        .await;

        let without = r#"{"spec": {"autoscalerRef": null}}"#;
        shop.kubectl(&["delete", "pdb", "web"]).await;
        shop.kubectl(&["patch", "canary", "web", "ab", "--type=merge", "--patch", without]).await;
        shop.until("copies go with their originals", async || {
            gone("HorizontalPodAutoscaler", "web-primary").await
                && gone("ScaledObject", "ab-primary").await
                && gone("PodDisruptionBudget", "web-primary").await
        })
        .await;
        shop.kubectl(&["delete", "canary", "--all", "--wait=false"]).await;
        shop.until("the Canaries are gone", async || {
            join_all(CANARIES.map(|canary| gone("Canary", canary))).await.into_iter().all(|gone| gone)
        })
        .await;
    }

    /// The API server takes a while to know the kinds that an owner reference
    /// may name.
    async fn await_owners(&self, namespace: &str, token: &str) {
        let kubectl = Kubectl::of(self.cluster, token);
        let owner = json!({
            "apiVersion": "serin.dev/v1alpha1", "kind": "Canary", "name": "web", "uid": "1",
            "controller": true, "blockOwnerDeletion": true,
        });
        let owned = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {
            "name": "owned", "namespace": namespace, "ownerReferences": [owner],
        }});
        let began = Instant::now();
        loop {
            let said = kubectl.run(&["create", "--dry-run=server", "-f", "-"], &owned.to_string()).await;
            if !said.stderr.contains("cannot find RESTMapping") {
                said.ok();
                return;
            }
            assert!(began.elapsed() < PATIENCE, "{said:?}");
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }
}

const CANARIES: [&str; 5] = ["web", "ab", "bluegreen", "daemon", "front"];

/// The features in one namespace.
struct Shop<'s> {
    stage: &'s Stage<'s>,
    namespace: &'s str,
    replicas: &'s [Replica],
}

impl Shop<'_> {
    async fn until(&self, what: &str, mut test: impl AsyncFnMut() -> bool) {
        let began = Instant::now();
        while !test().await {
            if began.elapsed() > PATIENCE {
                let status = join_all(CANARIES.map(|canary| self.get("Canary", canary))).await;
                let status: Vec<_> = status.iter().flatten().map(|canary| &canary.data["status"]).collect();
                let logs: String = self.replicas.iter().map(|replica| replica.child.tail()).collect();
                panic!("not so: {what}: {status:#?}\n{logs}");
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    async fn kubectl(&self, arguments: &[&str]) {
        let within = format!("--namespace={}", self.namespace);
        self.stage.kubectl.run(&[arguments, &[&within]].concat(), "").await.ok();
    }

    async fn get(&self, kind: &str, name: &str) -> Option<DynamicObject> {
        let (group, version) = match kind {
            "Deployment" | "DaemonSet" => ("apps", "v1"),
            "HorizontalPodAutoscaler" => ("autoscaling", "v2"),
            "PodDisruptionBudget" => ("policy", "v1"),
            "ScaledObject" => ("keda.sh", "v1alpha1"),
            "Canary" => ("serin.dev", "v1alpha1"),
            _ => ("", "v1"),
        };
        let kind = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        let api: Api<DynamicObject> = Api::namespaced_with(self.stage.client.clone(), self.namespace, &kind);
        api.get_opt(name).await.expect("an answer")
    }

    async fn phase(&self, canary: &str) -> String {
        let canary = self.get("Canary", canary).await.expect("the Canary");
        canary.data["status"]["phase"].as_str().unwrap_or_default().to_owned()
    }

    /// A new version of everything, of the configs as well.
    async fn push(&self, version: &str) {
        let greeting = format!(r#"{{"data": {{"greeting": "{version}"}}}}"#);
        let password = format!(r#"{{"stringData": {{"password": "{version}"}}}}"#);
        let selector = format!(r#"{{"spec": {{"selector": {{"version": "{version}"}}}}}}"#);
        self.kubectl(&["patch", "configmap", "web", "--patch", &greeting]).await;
        self.kubectl(&["patch", "secret", "web", "--patch", &password]).await;
        self.kubectl(&["patch", "service", "front", "--patch", &selector]).await;
        let image = format!("app=app:{version}");
        for target in ["deployment/web", "deployment/ab", "deployment/bluegreen", "daemonset/daemon"] {
            self.kubectl(&["set", "image", target, &image]).await;
        }
    }

    /// Does every primary run it? Says yes to whoever asks on the way.
    async fn runs(&self, version: &str) -> bool {
        let web = self.get("Canary", "web").await.expect("the Canary");
        let gates = web.data["status"]["gates"].as_array().cloned().unwrap_or_default();
        if gates.iter().any(|gate| gate["name"] == "qa" && gate["state"] == "Waiting") {
            let mut approve = Command::new(env!("CARGO_BIN_EXE_serin"));
            approve.args(["approve", "web", "--namespace", self.namespace]);
            approve.env("KUBECONFIG", self.stage.kubectl.kubeconfig());
            // It may have moved on by now.
            let _ = run(approve, "").await;
        }
        let image = format!("app:{version}");
        for (canary, kind) in
            CANARIES.into_iter().zip(["Deployment", "Deployment", "Deployment", "DaemonSet", "Service"])
        {
            let Some(primary) = self.get(kind, &format!("{canary}-primary")).await else { return false };
            let spec = &primary.data["spec"];
            let found = match kind {
                "Service" => spec["selector"]["version"] == version,
                _ => spec["template"]["spec"]["containers"][0]["image"] == image,
            };
            if !found || self.phase(canary).await != "Succeeded" {
                return false;
            }
        }
        true
    }

    /// People who call every pod of `web`, so that there is something to judge.
    fn visitors(&self) -> AbortOnDropHandle<()> {
        let pods: Api<k8s_openapi::api::core::v1::Pod> =
            Api::namespaced(self.stage.client.clone(), self.namespace);
        AbortOnDropHandle::new(tokio::spawn(async move {
            let http = reqwest::Client::builder().no_proxy().build().expect("an HTTP client");
            loop {
                let found =
                    pods.list(&ListParams::default()).await.map(|list| list.items).unwrap_or_default();
                let web = found.iter().filter(|pod| pod.name_any().starts_with("web-"));
                let addresses = web.filter_map(|pod| pod.status.as_ref()?.pod_ip.clone());
                let visit = |ip: String| http.get(format!("http://{ip}:8080/")).send();
                join_all(addresses.map(visit)).await;
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }))
    }
}

/// `serin run`, as the kubelet would start it.
struct Replica {
    child: Child,
    address: String,
    /// What the rendered probes ask for.
    probes: Vec<String>,
    _folder: Folder,
}

impl Replica {
    fn start(manifests: &Manifests, home: &str, number: usize, kubeconfig: &Folder) -> Self {
        let container = &manifests.one("Deployment")["spec"]["template"]["spec"]["containers"][0];
        let listed = |what: &str| container[what].as_array().cloned().unwrap_or_default();
        let text = |value: &Value| value.as_str().expect("a text").to_owned();
        let mut line = vec!["-i".to_owned()];
        line.push(format!("KUBECONFIG={}", kubeconfig.join("kubeconfig").display()));
        for variable in listed("env") {
            let value = match variable["valueFrom"]["fieldRef"]["fieldPath"].as_str() {
                None => text(&variable["value"]),
                Some("metadata.name") => format!("serin-{number}"),
                Some("metadata.namespace") => home.to_owned(),
                Some(other) => panic!("who knows {other}?"),
            };
            line.push(format!("{}={value}", text(&variable["name"])));
        }
        line.push(env!("CARGO_BIN_EXE_serin").to_owned());
        // Only here do replicas share a network.
        let address = format!("127.0.0.1:{}", support::free_port());
        line.extend(listed("args").iter().map(|argument| text(argument).replace("0.0.0.0:8080", &address)));
        let probes =
            ["livenessProbe", "readinessProbe"].map(|probe| text(&container[probe]["httpGet"]["path"]));
        let folder = Folder::new("replica");
        let child = Child::start(folder.path(), Path::new("/usr/bin/env"), line);
        Self { child, address, probes: probes.into(), _folder: folder }
    }

    async fn assert_well(&mut self) {
        assert!(!self.child.has_ended(), "it runs to the end; {}", self.child.tail());
        for path in self.probes.iter().map(String::as_str).chain(["/metrics"]) {
            let answer = reqwest::get(format!("http://{}{path}", self.address)).await.expect("an answer");
            assert!(answer.status().is_success(), "{path}: {answer:?}");
        }
    }
}

/// One verb on one resource, in one namespace or in all.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Right {
    namespace: Option<String>,
    group: String,
    resource: String,
    verb: String,
}

impl Right {
    /// What the rendered roles give.
    fn granted(manifests: &Manifests) -> BTreeSet<Self> {
        let bound: BTreeSet<String> = ["RoleBinding", "ClusterRoleBinding"]
            .iter()
            .flat_map(|kind| manifests.all(kind))
            .map(|binding| binding["roleRef"]["name"].as_str().expect("a role").to_owned())
            .collect();
        let roles = ["Role", "ClusterRole"].into_iter().flat_map(|kind| manifests.all(kind));
        let roles =
            roles.filter(|role| role["metadata"]["name"].as_str().is_some_and(|name| bound.contains(name)));
        let texts = |list: &Value| -> Vec<String> {
            let list = list.as_array().expect("a list");
            list.iter().map(|text| text.as_str().expect("a text").to_owned()).collect()
        };
        let mut granted = BTreeSet::new();
        for role in roles {
            let namespace = role["metadata"]["namespace"].as_str().map(str::to_owned);
            for rule in role["rules"].as_array().expect("rules") {
                for group in texts(&rule["apiGroups"]) {
                    for resource in texts(&rule["resources"]) {
                        for verb in texts(&rule["verbs"]) {
                            let (namespace, group, resource) =
                                (namespace.clone(), group.clone(), resource.clone());
                            granted.insert(Self { namespace, group, resource, verb });
                        }
                    }
                }
            }
        }
        granted
    }

    /// What a request needed: an apply that makes its object creates as well.
    fn used(event: &Value) -> Vec<Self> {
        let about = &event["objectRef"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let resource = match about["subresource"].as_str() {
            None => text(&about["resource"]),
            Some(sub) => format!("{}/{sub}", text(&about["resource"])),
        };
        let namespace = about["namespace"].as_str().map(str::to_owned);
        let verb = text(&event["verb"]);
        let created = verb == "patch" && event["responseStatus"]["code"] == 201;
        let verbs = [Some(verb), created.then(|| "create".to_owned())].into_iter().flatten();
        let right = |verb| Self {
            namespace: namespace.clone(),
            group: text(&about["apiGroup"]),
            resource: resource.clone(),
            verb,
        };
        verbs.map(right).collect()
    }

    fn is_among(&self, used: &BTreeSet<Self>) -> bool {
        let Self { namespace, group, resource, verb } = self;
        UNSEEN.contains(&(group, resource, verb))
            || used.iter().any(|used| {
                (group, resource, verb) == (&used.group, &used.resource, &used.verb)
                    && namespace.as_ref().is_none_or(|only| used.namespace.as_ref() == Some(only))
            })
    }
}
