//! Whole releases, judged by CloudWatch's metrics of real pods.

use std::collections::HashMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt as _};
use kube_local::node::NodeOptions;
use kube_local::node::address::Network;
use serin::api::canary::Phase;
use serin::api::canary::status::{Outcome, Verdict};
use tokio_util::task::AbortOnDropHandle;

use super::*;
use crate::world::{World, run_node_and_mesh};

/// As Amazon's agent does: reads the pods, and sends what was added since.
struct Agent {
    http: reqwest::Client,
    pods: Api<Pod>,
    server: Arc<Server>,
    /// By pod and series.
    seen: HashMap<(String, String), f64>,
}

impl Agent {
    fn start(client: Client, namespace: &str, server: Arc<Server>) -> AbortOnDropHandle<()> {
        serin::tls::install_crypto_provider();
        let http = reqwest::Client::builder().no_proxy().build().expect("an HTTP client");
        let mut agent =
            Agent { http, pods: Api::namespaced(client, namespace), server, seen: HashMap::new() };
        AbortOnDropHandle::new(tokio::spawn(async move {
            loop {
                agent.read_all().await;
                tokio::time::sleep(Duration::from_millis(300)).await;
            }
        }))
    }

    async fn read_all(&mut self) {
        for pod in self.pods.list(&ListParams::default()).await.expect("pods") {
            let address = pod.status.as_ref().and_then(|status| status.pod_ip.clone());
            let Some(address) = address else { continue };
            let answer = self.http.get(format!("http://{address}:8080/metrics")).send().await;
            // A pod that has just ended is read no more.
            let Ok(answer) = answer else { continue };
            let text = answer.text().await.unwrap_or_default();
            let arm = if pod.name_any().starts_with("web-primary-") { "primary" } else { "canary" };
            self.put_counters(&pod.uid().expect("a pod has a uid"), arm, &text);
        }
    }

    fn put_counters(&mut self, pod: &str, arm: &str, text: &str) {
        let now = Timestamp::now().as_second();
        let group = format!("{{LoadBalancer=app/shop/1,TargetGroup={arm}}}");
        // Buckets are cumulative: what is in one is in those above it as well.
        let mut below = HashMap::new();
        for line in text.lines() {
            let Some((series, value)) = line.rsplit_once(' ') else { continue };
            let value: f64 = value.parse().unwrap_or_default();
            let added =
                value - self.seen.insert((pod.to_owned(), series.to_owned()), value).unwrap_or_default();
            if series.starts_with("http_requests_total{") && added > 0.0 {
                self.server.put(&format!("AWS/ApplicationELB/RequestCount{group}"), now, added);
                if series.contains(r#"code="5"#) {
                    self.server.put(
                        &format!("AWS/ApplicationELB/HTTPCode_Target_5XX_Count{group}"),
                        now,
                        added,
                    );
                }
            }
            let Some(labels) = series.strip_prefix("http_request_duration_seconds_bucket{") else { continue };
            let (labels, bound) = labels.rsplit_once(",le=\"").expect("a bound");
            let bound = bound.trim_end_matches("\"}").parse().unwrap_or(60.0_f64).min(60.0);
            let within = below.insert(labels.to_owned(), added).unwrap_or_default();
            for _ in 0..(added - within).round() as u64 {
                self.server.put(&format!("AWS/ApplicationELB/TargetResponseTime{group}"), now, bound);
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_good_revision_is_promoted_and_a_bad_one_rolled_back() {
    let cluster = support::local().await;
    let options = NodeOptions { network: Network::Loopback, ..NodeOptions::named(support::NODE) };
    let machines = run_node_and_mesh(cluster, options).await;
    let world = World::on(cluster, &machines).await;
    let server = Arc::new(Server::start().await);
    let _agent = Agent::start(world.client.clone(), &world.namespace, Arc::clone(&server));
    let keys = json!({"aws_access_key_id": KEY, "aws_secret_access_key": "s3cret"});
    let secret =
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "keys"}, "stringData": keys});
    world.apply(secret).await;
    world
        .apply(json!({
            "apiVersion": "serin.dev/v1alpha1", "kind": "AnalysisTemplate", "metadata": {"name": "alb"},
            "spec": {
                "provider": {
                    "type": "cloudwatch", "region": "eu-west-1", "address": server.url,
                    "secretRef": {"name": "keys"},
                },
                "cloudwatch": {
                    "builtIn": "targetGroups", "period": "1s", "delay": "2s",
                    "dimensions": {"LoadBalancer": "app/shop/1"},
                    "canary": {"TargetGroup": "canary"}, "primary": {"TargetGroup": "primary"},
                },
            },
        }))
        .await;
    let metrics = ["request-success-rate", "request-duration"]
        .map(|name| json!({"name": name, "templateRef": {"name": "alb"}}));
    let _serin = world.initialized(json!({"analysis": {"interval": "3s", "metrics": metrics}})).await;
    let _traffic = world.traffic();
    assert!(server.requests().is_empty(), "nobody asks without a release");

    world.push("web:v2").await;
    let status = world.released(1).await;
    assert_eq!(
        (status.phase, status.history[0].outcome),
        (Phase::Succeeded, Outcome::Promoted),
        "{status:#?}"
    );
    assert_eq!((world.image("web-primary").await.as_str(), world.split().await), ("web:v2", Some((0, 100))));
    for metric in &status.metrics {
        let (canary, primary) = (metric.canary_count, metric.primary_count);
        assert!(
            metric.verdict == Verdict::Pass && canary >= Some(1.0) && primary >= Some(1.0),
            "{metric:#?}"
        );
    }

    world.push("web:v3-errors-30").await;
    let status = world.released(2).await;
    let past = &status.history[0];
    assert_eq!(past.outcome, Outcome::RolledBack);
    assert!(past.reason.starts_with("request-success-rate failed (canary "), "{}", past.reason);
    assert_eq!((world.image("web-primary").await.as_str(), world.replicas("web").await), ("web:v2", 0));
    let requests = server.requests().len();
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(server.requests().len(), requests, "nor after it");
}
