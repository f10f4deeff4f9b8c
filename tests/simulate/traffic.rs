//! The traffic as rates instead of requests: divided by the route in force among
//! the pods that are ready, and counted by the pods for those who scrape them.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use kube_local::node::behaviour::Behaviour;
use serde_json::Value;

use super::model::{CanaryModel, Labels};
use super::scenario::Metrics;

/// Bounds of the histogram in seconds, and the share of requests within them.
const FAST_SHARES: [(f64, f64); 4] = [(0.01, 0.9), (0.1, 0.99), (0.5, 1.0), (2.5, 1.0)];
const SLOW_SHARES: [(f64, f64); 4] = [(0.01, 0.0), (0.1, 0.1), (0.5, 0.6), (2.5, 1.0)];

/// The share of the traffic that the conditions of A/B tests match.
pub const MATCHED_SHARE: f64 = 0.2;

#[derive(Default)]
pub struct TrafficModel {
    /// By name.
    pods: BTreeMap<String, Pod>,
    counters: Counters,
    advanced_to: Duration,
    /// Faults of the pods' metrics endpoints, by Canary.
    pub metrics: BTreeMap<String, Metrics>,
    /// Values of ConfigMaps, by name.
    pub configs: BTreeMap<String, String>,
}

struct Pod {
    address: String,
    labels: Labels,
    /// What it runs: its image, and the value of its config when it started.
    code: String,
    ready: bool,
}

/// The image of a pod template, with the value of the config that it reads.
pub fn code_of(template: &Value, configs: &BTreeMap<String, String>) -> String {
    let container = &template["spec"]["containers"][0];
    let image = container["image"].as_str().unwrap_or_default();
    let config = container["envFrom"][0]["configMapRef"]["name"].as_str().and_then(|name| configs.get(name));
    config.map_or_else(|| image.to_owned(), |value| format!("{image}@{value}"))
}

/// What each pod has counted, by address.
#[derive(Default)]
struct Counters(BTreeMap<String, Counter>);

struct Counter {
    behaviour: Behaviour,
    requests: f64,
}

impl TrafficModel {
    /// A pod was written; none if it was deleted.
    pub fn set_pod(&mut self, name: &str, object: Option<&Value>) {
        let Some(object) = object else {
            self.pods.remove(name);
            return;
        };
        let terminating = !object["metadata"]["deletionTimestamp"].is_null();
        let conditions = object["status"]["conditions"].as_array();
        let is_ready = |condition: &Value| condition["type"] == "Ready" && condition["status"] == "True";
        let address = object["status"]["podIP"].as_str().unwrap_or_default().to_owned();
        // A pod reads its config when it starts, and gets an address at that time.
        let started = self.pods.get(name).filter(|pod| !pod.address.is_empty());
        let code = started.map_or_else(|| code_of(object, &self.configs), |pod| pod.code.clone());
        let pod = Pod {
            address,
            labels: serde_json::from_value(object["metadata"]["labels"].clone()).unwrap_or_default(),
            code,
            ready: !terminating && conditions.is_some_and(|all| all.iter().any(is_ready)),
        };
        self.pods.insert(name.to_owned(), pod);
    }

    /// Sends the requests of the time since the last call. False if no time passed.
    pub fn advance(&mut self, canaries: &mut BTreeMap<String, CanaryModel>, at: Duration) -> bool {
        let Self { pods, counters, advanced_to, .. } = self;
        let from = std::mem::replace(advanced_to, at);
        let seconds = at.saturating_sub(from).as_secs_f64();
        if seconds == 0.0 {
            return false;
        }
        let ready = |labels: &Labels| -> Vec<&Pod> {
            let selected = |pod: &&Pod| {
                pod.ready && labels.iter().all(|(key, value)| pod.labels.get(key) == Some(value))
            };
            pods.values().filter(selected).collect()
        };
        for canary in canaries.values_mut() {
            let (mut to_canary, mut unserved, mut stable_unserved) = (0.0, false, false);
            let mut reached = BTreeMap::<String, f64>::new();
            for (share, labels, is_canary) in canary.traffic_shares() {
                let pods = ready(labels);
                let served = counters.add(canary.rate * seconds * share, &pods);
                to_canary += if is_canary { served } else { 0.0 };
                unserved |= is_canary && share > 0.0 && pods.is_empty();
                stable_unserved |= !is_canary && share > 0.0 && pods.is_empty();
                for pod in pods.iter().filter(|_| is_canary && share > 0.0) {
                    *reached.entry(pod.code.clone()).or_default() += share / pods.len() as f64;
                }
            }
            canary.reached = reached;
            canary.unserved_since = unserved.then(|| canary.unserved_since.unwrap_or(from));
            canary.primary_unserved_since =
                stable_unserved.then(|| canary.primary_unserved_since.unwrap_or(from));
            if canary.direct_rate > 0.0 {
                let own = Labels::from([("app".to_owned(), canary.name.clone())]);
                to_canary += counters.add(canary.direct_rate * seconds, &ready(&own));
            }
            canary.request_counts.total += to_canary;
        }
        true
    }

    /// The Canary of the pod at this address.
    pub fn canary_of(&self, address: &str) -> Option<String> {
        let pod = self.pods.values().find(|pod| pod.address == address)?;
        pod.labels.get("app").map(|app| super::refusals::owner(app).to_owned())
    }

    /// What the ready pods with this label `app` run.
    pub fn running_code(&self, app: &str) -> Vec<String> {
        let of_app = |pod: &&Pod| pod.ready && pod.labels.get("app").is_some_and(|label| label == app);
        let mut code: Vec<String> = self.pods.values().filter(of_app).map(|pod| pod.code.clone()).collect();
        code.dedup();
        code
    }

    /// The metrics page of the pod at this address.
    pub fn scrape(
        &self,
        canaries: &mut BTreeMap<String, CanaryModel>,
        address: &str,
    ) -> Option<(String, Metrics)> {
        let pod = self.pods.values().find(|pod| pod.address == address)?;
        let app = pod.labels.get("app").cloned().unwrap_or_default();
        let name = app.trim_end_matches("-primary").trim_end_matches("-previous");
        let mode = self.metrics.get(name).copied().unwrap_or_default();
        if mode == Metrics::Available
            && let Some(canary) = canaries.get_mut(&app)
        {
            canary.request_counts.at_last_scrape = canary.request_counts.total;
        }
        Some((self.counters.exposition(address, mode), mode))
    }
}

impl Counters {
    /// Divides requests equally among pods. Returns how many were served.
    fn add(&mut self, requests: f64, pods: &[&Pod]) -> f64 {
        let each = requests / pods.len().max(1) as f64;
        for pod in pods {
            let new = || Counter { behaviour: behaviour(&pod.code), requests: 0.0 };
            self.0.entry(pod.address.clone()).or_insert_with(new).requests += each;
        }
        each * pods.len() as f64
    }

    fn exposition(&self, address: &str, mode: Metrics) -> String {
        if mode == Metrics::Garbage {
            return "<html><body>It works!</body></html>".to_owned();
        }
        let mut text = String::from("# TYPE http_requests_total counter\n");
        let Some(pod) = self.0.get(address) else { return text };
        let total = pod.requests.floor();
        let bad = (total * pod.behaviour.error_rate).floor();
        let _ = writeln!(text, "http_requests_total{{status=\"200\"}} {}", total - bad);
        let _ = writeln!(text, "http_requests_total{{status=\"500\"}} {bad}");
        text.push_str("# TYPE http_request_duration_seconds histogram\n");
        let shares = if is_slow(&pod.behaviour) { SLOW_SHARES } else { FAST_SHARES };
        for (bound, share) in shares {
            // As of errors, the first requests of a pod contain none: restarted pods would
            // else be slower than others.
            let within = total - (total * (1.0 - share)).floor();
            let _ = writeln!(text, "http_request_duration_seconds_bucket{{le=\"{bound}\"}} {within}");
        }
        let _ = writeln!(text, "http_request_duration_seconds_bucket{{le=\"+Inf\"}} {total}");
        let _ = writeln!(text, "http_request_duration_seconds_count {total}");
        text
    }
}

/// Of an image, with the value of a config after `@`; both name it as a tag does.
pub fn behaviour(code: &str) -> Behaviour {
    let tag = code.replace('@', "-");
    Behaviour::of(&tag, &BTreeMap::new()).expect("a tag that names its behaviour")
}

pub fn is_slow(behaviour: &Behaviour) -> bool {
    !behaviour.latency.median.is_zero()
}
