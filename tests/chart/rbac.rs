//! The controller under exactly the rights that the chart gives it: they are
//! enough for every feature, and all of them are used.
//!
//! It is the real binary with the arguments and the environment of the
//! rendered Deployment and a token of its ServiceAccount; its requests are in the
//! API server's audit log.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use futures::future::join_all;
use kube::api::{Api, ApiResource, DynamicObject, ListParams};
use kube::core::GroupVersionKind;
use kube::{Client, ResourceExt as _};
use kube_local::node::address::Network;
use serde_json::{Value, json};
use tokio::process::Command;
use tokio::sync::{Mutex, MutexGuard, OnceCell};
use tokio_util::task::AbortOnDropHandle;

use crate::install::{CONTROLLER_NAMESPACE, install, installed};
use crate::rbac_rule::RbacRule;
use crate::replicas::ReplicaGroup;
use crate::support::chart::{Kubectl, Manifests, run};
use crate::support::prometheus::Prometheus;
use crate::support::receiver::Receiver;
use crate::support::{self, Cluster, definitions};

/// Two cores shared with a build are slow.
const TIMEOUT: Duration = Duration::from_secs(600);

/// A replica that ended is missed after some fifteen seconds.
const TAKEOVER_TIMEOUT: Duration = Duration::from_secs(120);

#[tokio::test]
async fn all_namespaces_need_exactly_these_rbac_rules() {
    let (cluster, manifests) = installed().await;
    let stage = Stage::new(cluster, CONTROLLER_NAMESPACE, manifests).await;
    let namespace = cluster.namespace("shop").await;
    stage.assert_rules_are_exact(&[namespace]).await;
}

#[tokio::test]
async fn two_namespaces_need_roles_and_three_cluster_rules() {
    let (cluster, _) = installed().await;
    let namespaces = [cluster.namespace("left").await, cluster.namespace("right").await];
    let set = [
        &format!("namespaces={{{}}}", namespaces.join(",")),
        "crds.install=false",
        "rbac.people=false",
        "approvals.policy=false",
        "api.enabled=true",
        "smi=true",
    ];
    let manifests = install(cluster, "serin-roles", &set).await;
    let wide = manifests.one("ClusterRole")["rules"].as_array().expect("rules");
    let resources: Vec<&Value> = wide.iter().map(|rule| &rule["resources"][0]).collect();
    assert_eq!(resources, ["clusteranalysistemplates", "tokenreviews", "subjectaccessreviews"]);
    let stage = Stage::new(cluster, "serin-roles", &manifests).await;
    stage.assert_rules_are_exact(&namespaces).await;
}

/// A Deployment that reads configs, and nobody to watch them.
const PLAIN: &str = "
apiVersion: apps/v1
kind: Deployment
metadata: {name: plain, namespace: NAMESPACE}
spec:
  selector: {matchLabels: {app: plain}}
  template:
    metadata: {labels: {app: plain}}
    spec:
      containers:
      - name: app
        image: app:v1
        envFrom:
        - configMapRef: {name: settings, optional: true}
        - secretRef: {name: password, optional: true}
---
apiVersion: serin.dev/v1alpha1
kind: Canary
metadata: {name: plain, namespace: NAMESPACE}
spec:
  targetRef: {apiVersion: apps/v1, kind: Deployment, name: plain}
  service: {port: 80, targetPort: 8080}
  analysis: {interval: 1s, iterations: 2}
";

/// With every other setting that the chart passes on: the controller must accept
/// them.
#[tokio::test]
async fn disabled_features_send_no_requests() {
    let (cluster, _) = installed().await;
    let namespace = cluster.namespace("plain").await;
    let set = [
        &format!("namespaces={{{namespace}}}"),
        "crds.install=false",
        "rbac.people=false",
        "approvals.policy=false",
        "configTracking=false",
        "credentials=false",
        "keda=false",
        "smi=false",
        "clusterAnalysisTemplates=false",
        "provider=kubernetes",
        "metricsServer=http://127.0.0.1:9090",
        "selectorLabels={app,name}",
        "includeLabelPrefix={team/}",
        "concurrency=4",
        "maxReleases=8",
        "appMeshApi.mesh=shop",
        "appMeshApi.region=eu-west-1",
        "metrics.flagger=true",
    ];
    let manifests = install(cluster, "serin-plain", &set).await;
    let stage = Stage::new(cluster, "serin-plain", &manifests).await;
    let mut crew = ReplicaGroup::start(cluster, stage.controller_namespace, &manifests, &namespace, 1).await;
    stage.kubectl.apply(&PLAIN.replace("NAMESPACE", &namespace)).await;
    let shop = FeatureNamespace { stage: &stage, namespace: &namespace, replicas: &crew };
    shop.until("it is initialized", async || shop.phase("plain").await == "Initialized").await;
    shop.kubectl(&["set", "image", "deployment/plain", "app=app:v2"]).await;
    shop.until("it is promoted", async || shop.phase("plain").await == "Succeeded").await;
    crew.assert_healthy().await;
    let secrets =
        crew.audited_requests().into_iter().filter(|event| event["objectRef"]["resource"] == "secrets");
    assert_eq!(secrets.collect::<Vec<_>>(), [] as [Value; 0]);
}

/// Everything around the controller.
pub struct Stage<'m> {
    cluster: &'static Cluster,
    pub controller_namespace: &'m str,
    manifests: &'m Manifests,
    pub client: Client,
    pub kubectl: Kubectl,
    /// A second controller for all namespaces would serve these as well.
    _alone: MutexGuard<'static, ()>,
}

impl<'m> Stage<'m> {
    pub async fn new(cluster: &'static Cluster, home: &'m str, manifests: &'m Manifests) -> Self {
        static ALONE: Mutex<()> = Mutex::const_new(());
        static FURNISHED: OnceCell<()> = OnceCell::const_new();
        let kubectl = Kubectl::admin(cluster);
        FURNISHED
            .get_or_init(async || {
                support::node::run(cluster, Network::Loopback);
                let definitions = definitions::smi()
                    .into_iter()
                    .chain([definitions::keda()])
                    .chain(definitions::istio())
                    .chain(definitions::gateway())
                    .chain(definitions::app_mesh())
                    .chain(definitions::inventory());
                definitions::install(&cluster.client().await, definitions).await;
            })
            .await;
        let client = cluster.client().await;
        Self { cluster, controller_namespace: home, manifests, client, kubectl, _alone: ALONE.lock().await }
    }

    /// Runs the features in each of these namespaces, then compares the
    /// requests with the rights granted.
    async fn assert_rules_are_exact(&self, namespaces: &[String]) {
        let mut crew =
            ReplicaGroup::start(self.cluster, self.controller_namespace, self.manifests, &namespaces[0], 2)
                .await;
        let (chat, gate) = (Receiver::start([]).await, Receiver::start([]).await);
        let prometheus = Prometheus::start("").await;
        let urls = [chat.url.as_str(), &gate.url, &prometheus.url()];
        join_all(namespaces.iter().map(|namespace| self.features(namespace, urls, &crew))).await;
        // A controller of some namespaces has no right to.
        let writes_meshes = RbacRule::granted(self.manifests).iter().any(|rule| rule.is_of("meshes"));
        if writes_meshes {
            self.mesh_appears_and_goes(&crew).await;
        }
        assert!(
            !chat.received().is_empty() && !gate.received().is_empty(),
            "alerts are sent and gates called"
        );
        crew.assert_healthy().await;
        crew.kill_one();

        let (granted, began) = (RbacRule::granted(self.manifests), Instant::now());
        loop {
            let used: BTreeSet<RbacRule> = crew.audited_requests().iter().flat_map(RbacRule::used).collect();
            let idle: Vec<&RbacRule> = granted.iter().filter(|right| !right.is_covered_by(&used)).collect();
            if idle.is_empty() {
                return;
            }
            assert!(began.elapsed() < TAKEOVER_TIMEOUT, "granted and never used: {idle:#?}");
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }

    /// The controller writes the Mesh of a GatewayClass, and deletes it with the class.
    async fn mesh_appears_and_goes(&self, crew: &ReplicaGroup) {
        let controller = "example.com/rbac";
        let class = json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "GatewayClass",
            "metadata": {"name": "rbac"}, "spec": {"controllerName": controller},
            "status": {"conditions": [{"type": "Accepted", "status": "True"}]},
        });
        let exists = async || {
            let meshes = self.kubectl.run(&["get", "meshes.serin.dev", "-o", "json"], "").await.ok();
            meshes.contains(controller)
        };
        let shop = FeatureNamespace { stage: self, namespace: self.controller_namespace, replicas: crew };
        self.kubectl.apply(&class.to_string()).await;
        shop.until("the Mesh is written", async || exists().await).await;
        self.kubectl.run(&["delete", "gatewayclass", "rbac"], "").await.ok();
        shop.until("the Mesh is deleted", async || !exists().await).await;
    }

    /// Uses every feature in one namespace, from the first list of Canaries
    /// to their deletion.
    async fn features(&self, namespace: &str, [chat, gate, prometheus]: [&str; 3], crew: &ReplicaGroup) {
        let features = include_str!("features.yaml");
        let words = [
            ("NAMESPACE", namespace),
            ("HOME", self.controller_namespace),
            ("CHAT", chat),
            ("GATE", gate),
            ("PROMETHEUS", prometheus),
        ];
        let features = words.iter().fold(features.to_owned(), |text, (word, with)| text.replace(word, with));
        self.kubectl.apply(&features).await;
        let shop = FeatureNamespace { stage: self, namespace, replicas: crew };
        let _visitors = shop.call_web_pods();
        for canary in CANARIES {
            shop.until(&format!("{canary} is initialized"), async || {
                shop.phase(canary).await == "Initialized"
            })
            .await;
        }
        for version in ["v2", "v3"] {
            shop.push(version).await;
            shop.until(&format!("{version} is promoted everywhere"), async || {
                shop.primaries_run(version).await
            })
            .await;
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
}

const CANARIES: [&str; 5] = ["web", "ab", "bluegreen", "daemon", "front"];

/// The features in one namespace.
pub struct FeatureNamespace<'s> {
    pub stage: &'s Stage<'s>,
    pub namespace: &'s str,
    pub replicas: &'s ReplicaGroup,
}

impl FeatureNamespace<'_> {
    pub async fn until(&self, what: &str, mut test: impl AsyncFnMut() -> bool) {
        let began = Instant::now();
        while !test().await {
            if began.elapsed() > TIMEOUT {
                let status = join_all(CANARIES.map(|canary| self.get("Canary", canary))).await;
                let status: Vec<_> = status.iter().flatten().map(|canary| &canary.data["status"]).collect();
                panic!("not so: {what}: {status:#?}\n{}", self.replicas.log_tails());
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    pub async fn kubectl(&self, arguments: &[&str]) {
        let within = format!("--namespace={}", self.namespace);
        self.stage.kubectl.run(&[arguments, &[&within]].concat(), "").await.ok();
    }

    pub async fn get(&self, kind: &str, name: &str) -> Option<DynamicObject> {
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

    pub async fn phase(&self, canary: &str) -> String {
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

    /// Does every primary run it? Approves all gates on the way.
    async fn primaries_run(&self, version: &str) -> bool {
        let web = self.get("Canary", "web").await.expect("the Canary");
        let gates = web.data["status"]["gates"].as_array().cloned().unwrap_or_default();
        if gates.iter().any(|gate| gate["name"] == "qa" && gate["state"] == "Waiting") {
            self.approve().await;
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

    /// Over HTTP if the command API listens: the controller then writes it itself.
    async fn approve(&self) {
        if let Some(ear) = self.replicas.command_api_url() {
            let url = format!("{ear}/api/v1/namespaces/{}/canaries/web/approve", self.namespace);
            let http = reqwest::Client::builder().no_proxy().build().expect("an HTTP client");
            let response =
                http.post(url).bearer_auth(self.stage.cluster.token()).send().await.expect("an answer");
            // The gate may be open by now.
            let code = response.status().as_u16();
            assert!(matches!(code, 202 | 409), "{code}: {:?}", response.text().await);
            // As the dashboard does.
            let url = format!("{ear}/api/v1/namespaces/{}/canaries/web/surroundings", self.namespace);
            let around =
                http.get(url).bearer_auth(self.stage.cluster.token()).send().await.expect("an answer");
            let around: Value = around.json().await.expect("JSON");
            assert!(around["events"].is_array() && around["pods"].is_array(), "{around}");
            return;
        }
        let mut approve = Command::new(env!("CARGO_BIN_EXE_serin"));
        approve.args(["approve", "web", "--namespace", self.namespace]);
        approve.env("KUBECONFIG", self.stage.kubectl.kubeconfig());
        let _ = run(approve, "").await;
    }

    /// Requests to every pod of `web`, so that there is something to judge.
    fn call_web_pods(&self) -> AbortOnDropHandle<()> {
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
