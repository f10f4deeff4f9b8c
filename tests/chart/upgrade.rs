//! Helm installs, upgrades, rolls back and uninstalls the chart while a release is under way,
//! on an API server of its own: no release is started, lost or moved by it.

use std::process::Command;
use std::time::Duration;

use kube_local::node::address::Network;
use serde_json::{Value, json};

use crate::replicas::ReplicaGroup;
use crate::support::chart::{CHART, Helm, Kubectl, Manifests};
use crate::support::{self, Cluster, Folder, definitions};

/// Two cores shared with a build are slow.
const TIMEOUT: Duration = Duration::from_secs(300);

const RELEASE: &str = "serin";
const SET: [&str; 2] = ["smi=true", "provider=smi:v1alpha2"];

/// A release that stays at 10 % until somebody resumes it, and then at 20 %.
const SHOP: &str = "
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: NAMESPACE}
spec:
  replicas: 1
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: app, image: 'app:v1', ports: [{containerPort: 8080}]}]}
---
apiVersion: serin.dev/v1alpha1
kind: Canary
metadata: {name: web, namespace: NAMESPACE}
spec:
  targetRef: {apiVersion: apps/v1, kind: Deployment, name: web}
  service: {port: 80, targetPort: 8080}
  progressDeadlineSeconds: 3600
  analysis:
    interval: 1s
    steps: [{weight: 10, pause: {}}, {weight: 20, pause: {}}]
";

struct Shop {
    helm: Helm,
    kubectl: Kubectl,
    cluster: &'static Cluster,
    namespace: String,
}

impl Shop {
    async fn helm(&self, arguments: &[&str]) {
        let kubeconfig = self.cluster.kubeconfig().display().to_string();
        let common = ["--kubeconfig", &kubeconfig, "--namespace", RELEASE];
        self.helm.run(&[arguments, &common].concat()).await.ok();
    }

    async fn install(&self, verb: &str, chart: &str) -> Manifests {
        let set = SET.iter().flat_map(|set| ["--set", set]);
        let arguments: Vec<&str> =
            [verb, RELEASE, chart, "--create-namespace"].into_iter().chain(set).collect();
        let arguments: Vec<&str> = arguments
            .into_iter()
            .filter(|argument| verb == "install" || *argument != "--create-namespace")
            .collect();
        self.helm(&arguments).await;
        self.helm.template_of(chart, RELEASE, &SET).await
    }

    /// Controllers as the Deployment of this chart would start them.
    async fn controllers(&self, manifests: &Manifests) -> ReplicaGroup {
        ReplicaGroup::start(self.cluster, RELEASE, manifests, &self.namespace, 1).await
    }

    async fn get(&self, kind: &str, name: &str) -> Value {
        let within = format!("--namespace={}", self.namespace);
        let text = self.kubectl.run(&["get", kind, name, &within, "-o", "json"], "").await.ok();
        serde_json::from_str(&text).expect("JSON")
    }

    async fn until(&self, what: &str, wanted: impl Fn(&Value) -> bool) {
        let began = std::time::Instant::now();
        loop {
            let canary = self.get("canary.serin.dev", "web").await;
            if wanted(&canary["status"]) {
                return;
            }
            assert!(began.elapsed() < TIMEOUT, "never {what}: {:#}", canary["status"]);
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
    }

    async fn edit(&self, arguments: &[&str]) {
        let within = format!("--namespace={}", self.namespace);
        self.kubectl.run(&[arguments, &[&within]].concat(), "").await.ok();
    }

    /// Number and state of the release, its traffic, and the pods of both arms.
    async fn state(&self) -> Value {
        let canary = self.get("canary.serin.dev", "web").await;
        let split = self.get("trafficsplits.split.smi-spec.io", "web").await;
        let (target, primary) =
            (self.get("deployment", "web").await, self.get("deployment", "web-primary").await);
        let arm = |workload: &Value| {
            json!([workload["spec"]["replicas"], workload["spec"]["template"], workload["metadata"]["uid"]])
        };
        let status = &canary["status"];
        json!({
            "uid": canary["metadata"]["uid"], "phase": status["phase"], "weight": status["canaryWeight"],
            "step": status["step"]["index"], "releases": status["releases"], "history": status["history"],
            "revision": status["release"]["revision"], "started": status["release"]["startedAt"],
            "split": split["spec"], "split uid": split["metadata"]["uid"],
            "target": arm(&target), "primary": arm(&primary),
        })
    }
}

#[tokio::test]
async fn helm_neither_starts_nor_loses_nor_moves_a_release() {
    let cluster: &'static Cluster = Box::leak(Box::new(support::audited_apart().await));
    support::node::run(cluster, Network::Loopback);
    definitions::install(&cluster.client().await, definitions::smi()).await;
    let namespace = cluster.namespace("shop").await;
    let shop = Shop { helm: Helm::new(), kubectl: Kubectl::admin(cluster), cluster, namespace };
    let earlier = previous_chart();
    let earlier = earlier.join("charts/serin").display().to_string();

    let manifests = shop.install("install", &earlier).await;
    let controllers = shop.controllers(&manifests).await;
    shop.kubectl.apply(&SHOP.replace("NAMESPACE", &shop.namespace)).await;
    shop.until("initialized", |status| status["phase"] == "Initialized").await;
    shop.edit(&["set", "image", "deployment/web", "app=app:v2"]).await;
    let at = |weight: u64| {
        move |status: &Value| {
            let paused = status["conditions"]
                .as_array()
                .is_some_and(|all| all.iter().any(|it| it["type"] == "Paused"));
            paused && status["canaryWeight"] == weight
        }
    };
    shop.until("at the first step", at(10)).await;
    let first = shop.state().await;

    // The old replica ends after the new one began, as in a rollout.
    let manifests = shop.install("upgrade", CHART).await;
    let next = shop.controllers(&manifests).await;
    drop(controllers);
    assert_eq!(shop.state().await, first, "upgraded");
    // The new one has taken over.
    shop.edit(&["annotate", "canary.serin.dev", "web", "test/seen=1"]).await;
    resume(&shop).await;
    shop.until("at the second step", at(20)).await;
    let second = shop.state().await;
    assert_eq!((&second["releases"], &second["started"]), (&first["releases"], &first["started"]));

    shop.helm(&["rollback", RELEASE, "1"]).await;
    let manifests = shop.helm.template_of(&earlier, RELEASE, &SET).await;
    let back = shop.controllers(&manifests).await;
    drop(next);
    assert_eq!(shop.state().await, second, "rolled back");

    drop(back);
    shop.helm(&["uninstall", RELEASE, "--wait"]).await;
    assert_eq!(shop.state().await, second, "uninstalled: traffic and pods stay");

    let manifests = shop.install("install", CHART).await;
    let again = shop.controllers(&manifests).await;
    assert_eq!(shop.state().await, second, "installed again");
    resume(&shop).await;
    shop.until("promoted", |status| status["phase"] == "Succeeded").await;
    let done = shop.state().await;
    assert_eq!((&done["releases"], &done["weight"]), (&first["releases"], &json!(0)));
    drop(again);
}

async fn resume(shop: &Shop) {
    let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_serin"));
    command.args(["resume", "web", "--namespace", &shop.namespace, "--wait", "240s"]);
    command.env("KUBECONFIG", shop.kubectl.kubeconfig());
    support::chart::run(command, "").await.ok();
}

/// The chart, and the definitions that it links to, of the previous commit.
fn previous_chart() -> Folder {
    let folder = Folder::new("previous-chart");
    let script = "git archive HEAD~1 charts crds | tar -x -C \"$0\"";
    let status = Command::new("bash")
        .args(["-o", "pipefail", "-c", script])
        .arg(folder.path())
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .status();
    assert!(
        status.expect("bash").success(),
        "the previous commit is not in this clone: fetch it with `git fetch --deepen 1`"
    );
    folder
}
