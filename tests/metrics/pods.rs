//! Real pods, which a real Prometheus discovers through the API and scrapes.

use std::sync::OnceLock;
use std::time::Instant;

use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams, PostParams};
use kube_local::node::address::Network;
use serin::analysis::measurement::{Counts, Histogram, PodCounts};
use tokio::sync::OnceCell;

use super::*;
use crate::support::{Cluster, local, node, prometheus::Prometheus};

/// The cluster, with a node that runs its pods.
pub async fn cluster() -> &'static Cluster {
    static NODE: OnceLock<()> = OnceLock::new();
    let cluster = local().await;
    NODE.get_or_init(|| node::run(cluster, Network::Loopback));
    cluster
}

async fn prometheus() -> &'static Prometheus {
    static PROMETHEUS: OnceCell<Prometheus> = OnceCell::const_new();
    let cluster = cluster().await;
    PROMETHEUS.get_or_init(|| async { Prometheus::of_pods(&cluster.kubeconfig()).await }).await
}

/// Names of pods as Deployments give them.
pub const CANARY_POD: &str = "web-7d9f8-abcde";
pub const PRIMARY_POD: &str = "web-primary-55c9d-fghij";

pub struct Pods {
    api: Api<Pod>,
    client: reqwest::Client,
}

impl Pods {
    pub async fn new(namespace: &str) -> Pods {
        let api = Api::namespaced(cluster().await.client().await, namespace);
        Pods { api, client: reqwest::Client::builder().no_proxy().build().expect("an HTTP client") }
    }

    /// Starts one and waits until it serves.
    pub async fn start(&self, name: &str) -> Pod {
        let pod = json!({
            "metadata": {"name": name},
            "spec": {"containers": [{"name": "app", "image": "app:v1", "ports": [{"containerPort": 8080}]}]},
        });
        let pod = serde_json::from_value(pod).expect("a pod");
        self.api.create(&PostParams::default(), &pod).await.expect("create a pod");
        let began = Instant::now();
        loop {
            let pod = self.api.get(name).await.expect("the pod just created");
            let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
            if conditions.into_iter().flatten().any(|is| is.type_ == "Ready" && is.status == "True") {
                return pod;
            }
            assert!(began.elapsed() < TIMEOUT, "{name} is not ready: {:?}", pod.status);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    pub async fn delete(&self, name: &str) {
        let now = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
        self.api.delete(name, &now).await.expect("delete a pod");
    }

    /// Sends as many requests to a pod.
    pub async fn send(&self, pod: &Pod, path: &str, times: u32) {
        let ip =
            pod.status.as_ref().and_then(|status| status.pod_ip.as_ref()).expect("a pod with an address");
        for _ in 0..times {
            self.client.get(format!("http://{ip}:8080{path}")).send().await.expect("the pod answers");
        }
    }
}

/// Waits until Prometheus has seen as many requests to the pods of a namespace,
/// from whenever.
async fn await_requests(server: &str, namespace: &str, requests: u32) {
    let series = format!(r#"http_request_duration_seconds_count{{kubernetes_namespace="{namespace}"}}"#);
    await_value(server, &format!("sum(last_over_time({series}[5m]))"), f64::from(requests)).await;
}

#[tokio::test]
async fn success_rate_and_latency_are_what_the_pods_served() {
    let server = prometheus().await.url();
    let namespace = cluster().await.namespace("served").await;
    let pods = Pods::new(&namespace).await;
    let (canary, primary) = (pods.start(CANARY_POD).await, pods.start(PRIMARY_POD).await);
    for pod in [&canary, &primary] {
        pods.send(pod, "/status/200", 1).await;
        pods.send(pod, "/status/500", 1).await;
    }
    await_requests(&server, &namespace, 4).await;

    let sources = sources();
    let ask = |name: &str, judge| built_in(&namespace, name, judge, Some(&server));
    let requests = ask("request-success-rate", JudgeType::Sequential);
    let durations = ask("request-duration", JudgeType::Sequential);
    let since = Timestamp::now();
    pods.send(&canary, "/status/200", 87).await;
    pods.send(&canary, "/status/500", 10).await;
    pods.send(&canary, "/delay/300ms", 3).await;
    pods.send(&primary, "/status/200", 200).await;
    pods.send(&primary, "/status/500", 2).await;
    await_requests(&server, &namespace, 4 + 100 + 202).await;

    let expected = Arms { canary: Counts::of_bad(10, 100), primary: Counts::of_bad(2, 202) };
    let middle = Timestamp::now();
    assert_eq!(measure_since(&sources, &requests, since).await, Measurement::Counts(expected));
    assert_eq!(measure_since(&sources, &requests, since).await, Measurement::Counts(expected), "asked again");

    let by_pod = measure_pods(&sources, &requests, None, since, &Arms::default()).await;
    let pod = |name: &str, counts| PodCounts::from([(name.to_owned(), counts)]);
    let served =
        Arms { canary: pod(CANARY_POD, expected.canary), primary: pod(PRIMARY_POD, expected.primary) };
    assert_eq!(by_pod, Measurement::PodCounts(served));

    let Measurement::Histogram(arms) = measure_since(&sources, &durations, since).await else {
        panic!("durations are a histogram")
    };
    assert_eq!(arms.map(Histogram::total), Arms { canary: 100, primary: 202 });
    assert_eq!(arms.canary.slower_than(250_000), Some(Counts::of_bad(3, 100)));
    assert_eq!(arms.canary.slower_than(500_000), Some(Counts::of_bad(0, 100)));
    assert_eq!(arms.primary.slower_than(250_000), Some(Counts::of_bad(0, 202)));

    let scalar = ask("request-success-rate", JudgeType::Threshold);
    let Measurement::Scalar(percent) = measure_since(&sources, &scalar, since).await else {
        panic!("a success rate is a number")
    };
    assert!((88.0..92.0).contains(&percent), "{percent}");
    let scalar = ask("request-duration", JudgeType::Threshold);
    let Measurement::Scalar(milliseconds) = measure_since(&sources, &scalar, since).await else {
        panic!("a percentile is a number")
    };
    assert!((250.0..500.0).contains(&milliseconds), "{milliseconds}");
    let points = ask("request-success-rate", JudgeType::MannWhitney);
    // Windows are whole seconds; the rest is left to the next.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let Measurement::Samples(arms) = measure_since(&sources, &points, since).await else {
        panic!("points are points")
    };
    assert!(arms.canary.iter().any(|point| (88.0..92.0).contains(point)), "{:?}", arms.canary);

    // A status never seen before is born within the window that follows.
    pods.send(&canary, "/status/503", 7).await;
    await_requests(&server, &namespace, 306 + 7).await;
    let expected = Arms { canary: Counts::of_bad(7, 7), primary: Counts::of_bad(0, 0) };
    assert_eq!(measure_since(&sources, &requests, middle).await, Measurement::Counts(expected));
}

#[tokio::test]
async fn pods_that_come_and_go_are_counted_once_and_wholly() {
    let server = prometheus().await.url();
    let namespace = cluster().await.namespace("churn").await;
    let pods = Pods::new(&namespace).await;
    let (first, primary) = (pods.start(CANARY_POD).await, pods.start(PRIMARY_POD).await);
    pods.send(&first, "/", 50).await;
    pods.send(&primary, "/", 500).await;
    await_requests(&server, &namespace, 550).await;
    let since = Timestamp::now();

    pods.send(&first, "/", 10).await;
    await_requests(&server, &namespace, 560).await;
    pods.delete(CANARY_POD).await;
    let second = pods.start("web-7d9f8-klmno").await;
    pods.send(&second, "/", 19).await;
    pods.send(&second, "/status/500", 1).await;
    pods.send(&primary, "/", 5).await;
    await_requests(&server, &namespace, 585).await;

    let ask = built_in(&namespace, "request-success-rate", JudgeType::Sequential, Some(&server));
    let expected = Arms { canary: Counts::of_bad(1, 30), primary: Counts::of_bad(0, 5) };
    assert_eq!(measure_since(&sources(), &ask, since).await, Measurement::Counts(expected));
}

#[tokio::test]
async fn without_traffic_there_is_no_data() {
    let server = prometheus().await.url();
    let namespace = cluster().await.namespace("silence").await;
    let pods = Pods::new(&namespace).await;
    futures::join!(pods.start(CANARY_POD), pods.start(PRIMARY_POD));
    let since = Timestamp::now();
    await_value(&server, &format!(r#"count(up{{kubernetes_namespace="{namespace}"}} == 1)"#), 2.0).await;
    let sources = sources();
    for name in ["request-success-rate", "request-duration"] {
        for judge in [JudgeType::Threshold, JudgeType::Sequential, JudgeType::MannWhitney] {
            let ask = built_in(&namespace, name, judge, Some(&server));
            assert_eq!(measure_since(&sources, &ask, since).await, Measurement::NoData, "{name} {judge:?}");
        }
    }
}
