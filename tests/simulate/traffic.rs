//! The traffic, as flows instead of requests: how many a second, divided as
//! the split says, among the pods that are ready. Pods that are read tell what
//! they would have counted.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use kube_local::node::behaviour::Behaviour;

use super::scenario::Metrics;

/// The bounds of durations, and the share of requests within them.
const FAST_SHARES: [(f64, f64); 4] = [(0.01, 0.9), (0.1, 0.99), (0.5, 1.0), (2.5, 1.0)];
const SLOW_SHARES: [(f64, f64); 4] = [(0.01, 0.0), (0.1, 0.1), (0.5, 0.6), (2.5, 1.0)];

/// How much of the traffic the conditions of A/B tests choose.
pub const MATCHED_SHARE: f64 = 0.2;

#[derive(Default)]
pub struct TrafficModel {
    pods: BTreeMap<String, Pod>,
}

/// By its address.
struct Pod {
    behaviour: Behaviour,
    requests: f64,
}

/// Which part of the traffic goes to these pods.
pub struct TrafficShare<'a> {
    pub share: f64,
    pub pods: Vec<(&'a str, &'a str)>,
}

impl TrafficModel {
    /// So many requests arrive. Says how many of them found a pod.
    pub fn add_requests(&mut self, requests: f64, arm: &TrafficShare<'_>) -> f64 {
        let each = requests * arm.share / arm.pods.len().max(1) as f64;
        for (address, image) in &arm.pods {
            let new = || Pod {
                behaviour: Behaviour::of(image, &BTreeMap::new()).expect("images say what they do"),
                requests: 0.0,
            };
            self.pods.entry((*address).to_owned()).or_insert_with(new).requests += each;
        }
        each * arm.pods.len() as f64
    }

    /// What a pod answers to whoever reads it.
    pub fn exposition(&self, address: &str, mode: Metrics) -> String {
        if mode == Metrics::Garbage {
            return "<html><body>It works!</body></html>".to_owned();
        }
        let mut text = String::from("# TYPE http_requests_total counter\n");
        let Some(pod) = self.pods.get(address) else { return text };
        let total = pod.requests.floor();
        let bad = (total * pod.behaviour.error_rate).floor();
        let _ = writeln!(text, "http_requests_total{{status=\"200\"}} {}", total - bad);
        let _ = writeln!(text, "http_requests_total{{status=\"500\"}} {bad}");
        text.push_str("# TYPE http_request_duration_seconds histogram\n");
        let shares = if is_slow(&pod.behaviour) { SLOW_SHARES } else { FAST_SHARES };
        for (bound, share) in shares {
            let within = (total * share).floor();
            let _ = writeln!(text, "http_request_duration_seconds_bucket{{le=\"{bound}\"}} {within}");
        }
        let _ = writeln!(text, "http_request_duration_seconds_bucket{{le=\"+Inf\"}} {total}");
        let _ = writeln!(text, "http_request_duration_seconds_count {total}");
        text
    }
}

pub fn is_slow(behaviour: &Behaviour) -> bool {
    !behaviour.latency.median.is_zero()
}
