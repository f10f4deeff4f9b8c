//! The rights for registered APIs, which are off by default: enough to follow them, all
//! of them used, and Secrets asked for by their label only.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::install::{install, installed};
use crate::rbac::{FeatureNamespace, Stage};
use crate::rbac_rule::RbacRule;
use crate::replicas::ReplicaGroup;
use crate::support::free_port;

const HOME: &str = "serin-apis";

#[tokio::test]
async fn registered_apis_need_exactly_their_rbac_rules() {
    let (cluster, _) = installed().await;
    let namespace = cluster.namespace("apis").await;
    let set = [
        &format!("namespaces={{{namespace}}}"),
        "crds.install=false",
        "rbac.people=false",
        "approvals.policy=false",
        "meshApis=true",
    ];
    let manifests = install(cluster, HOME, &set).await;
    let stage = Stage::new(cluster, HOME, &manifests).await;
    let mut crew = ReplicaGroup::start(cluster, HOME, &manifests, &namespace, 1).await;
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "stringData": {"token": "hidden"},
        "metadata": {"name": "consul", "namespace": HOME, "labels": {"serin.dev/credentials": "rest-api"}},
    });
    // Nobody answers there, which the status has to say.
    let address = format!("http://127.0.0.1:{}", free_port());
    let api = json!({
        "apiVersion": "serin.dev/v1alpha1", "kind": "MeshApi", "metadata": {"name": "consul", "namespace": HOME},
        "spec": {"consul": {"address": address}, "secretRef": {"name": "consul"}},
    });
    for object in [secret, api] {
        stage.kubectl.apply(&object.to_string()).await;
    }
    let shop = FeatureNamespace { stage: &stage, namespace: &namespace, replicas: &crew };
    let reported = async || {
        let get = ["get", "meshapi", "consul", "--namespace", HOME, "-o", "json"];
        let api: Value = serde_json::from_str(&stage.kubectl.run(&get, "").await.ok()).expect("JSON");
        api["status"]["conditions"][0]["message"].as_str().is_some_and(|why| why.contains("Consul"))
    };
    shop.until("the status of the MeshApi is written", reported).await;
    crew.assert_healthy().await;

    let began = Instant::now();
    loop {
        let requests = crew.audited_requests();
        let used: BTreeSet<RbacRule> = requests.iter().flat_map(RbacRule::used).collect();
        let granted = RbacRule::granted(&manifests);
        let of_apis = granted.iter().filter(|rule| rule.is_in(HOME) && !rule.is_of("leases"));
        let (of_apis, idle): (Vec<_>, Vec<_>) = of_apis.partition(|rule| rule.is_covered_by(&used));
        // The Secrets of ClusterAnalysisTemplates are another feature.
        let idle: Vec<_> = idle.into_iter().filter(|rule| !rule.is_read_by_name()).collect();
        if idle.is_empty() {
            assert_eq!(of_apis.len(), 5, "{of_apis:#?}");
            let secrets = requests.iter().filter(|request| {
                request["objectRef"]["resource"] == "secrets" && request["objectRef"]["namespace"] == HOME
            });
            let uris: Vec<&str> = secrets.filter_map(|request| request["requestURI"].as_str()).collect();
            assert!(!uris.is_empty());
            let labelled = |uri: &&str| uri.contains("labelSelector=serin.dev%2Fcredentials");
            assert!(uris.iter().all(labelled), "{uris:#?}");
            return;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "granted and never used: {idle:#?}");
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}
