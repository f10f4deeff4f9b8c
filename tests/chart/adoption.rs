//! The rights for objects of Flagger, which are off by default: enough to serve them, and
//! all of them used. On a cluster of its own: Flagger's definitions make `canary` two kinds.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use kube_local::node::address::Network;

use crate::install::install;
use crate::rbac_rule::RbacRule;
use crate::replicas::ReplicaGroup;
use crate::support::chart::{Helm, Kubectl};
use crate::support::{self, Cluster, Part, definitions, eventually};

const HOME: &str = "serin-adopts";
const LIMIT: Duration = Duration::from_secs(240);

const MANIFESTS: &str = "
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: app, image: \"app:v1\"}]}
---
apiVersion: flagger.app/v1beta1
kind: Canary
metadata: {name: web}
spec:
  provider: kubernetes
  targetRef: {apiVersion: apps/v1, kind: Deployment, name: web}
  service: {port: 80, targetPort: 8080}
  analysis: {interval: 1s, threshold: 2, iterations: 2}
---
apiVersion: flagger.app/v1beta1
kind: MetricTemplate
metadata: {name: errors}
spec: {provider: {type: prometheus, address: \"http://prometheus:9090\"}, query: up}
---
apiVersion: flagger.app/v1beta1
kind: AlertProvider
metadata: {name: chat}
spec: {type: slack, address: \"http://chat.example.com\"}
";

#[tokio::test]
async fn objects_of_flagger_need_exactly_their_rbac_rules() {
    let cluster: &'static Cluster = Box::leak(Box::new(support::audited_apart().await));
    support::node::run(cluster, Network::Private);
    let kubectl = Kubectl::admin(cluster);
    let client = cluster.client().await;
    definitions::install(&client, definitions::ours()).await;
    let theirs = Part::Flagger.folder().join("artifacts/flagger/crd.yaml");
    kubectl.apply(&std::fs::read_to_string(theirs).expect("Flagger's definitions")).await;
    kubectl.run(&["wait", "--for=condition=Established", "crds", "--all"], "").await.ok();
    let namespace = cluster.namespace("adopted").await;

    let scope = format!("namespaces={{{namespace}}}");
    let plain = [&*scope, "crds.install=false", "rbac.people=false", "approvals.policy=false"];
    let manifests = install(cluster, HOME, &[&plain[..], &["flagger.adopt=true"]].concat()).await;
    let without = RbacRule::granted(&Helm::new().template(HOME, &plain).await);
    let more: BTreeSet<RbacRule> = RbacRule::granted(&manifests).difference(&without).cloned().collect();

    let mut serin = ReplicaGroup::start(cluster, HOME, &manifests, &namespace, 1).await;
    kubectl.run(&["apply", "--namespace", &namespace, "-f", "-"], MANIFESTS).await.ok();
    let read = async |what: &str, path: &str| {
        let path = format!("jsonpath={{{path}}}");
        kubectl.run(&["get", what, "--namespace", &namespace, "-o", &path], "").await.ok()
    };
    eventually("it is initialized", LIMIT, async || {
        read("canaries.flagger.app/web", ".status.phase").await == "Initialized"
    })
    .await;
    let patches = [
        ("metrictemplates.flagger.app/errors", r#"{"spec": {"query": "vector(1)"}}"#),
        ("alertproviders.flagger.app/chat", r#"{"spec": {"channel": "releases"}}"#),
    ];
    for (what, patch) in patches {
        let patch = ["patch", what, "--namespace", &namespace, "--type=merge", "--patch", patch];
        kubectl.run(&patch, "").await.ok();
    }
    eventually("the edits are followed", LIMIT, async || {
        read("analysistemplates/errors", ".spec.query").await == "vector(1)"
            && read("alertproviders.serin.dev/chat", ".spec.channel").await == "releases"
    })
    .await;
    serin.assert_healthy().await;

    assert_eq!(more.len(), 16, "{more:#?}");
    let began = Instant::now();
    loop {
        let used: BTreeSet<RbacRule> = serin.audited_requests().iter().flat_map(RbacRule::used).collect();
        let idle: Vec<&RbacRule> = more.iter().filter(|rule| !rule.is_covered_by(&used)).collect();
        if idle.is_empty() {
            return;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "granted and never used: {idle:#?}");
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}
