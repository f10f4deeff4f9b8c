//! A real Prometheus scrapes the controller.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use serin::api::canary::Phase;
use serin::server::Options;

use crate::support::prometheus::Prometheus;
use crate::world::World;

#[tokio::test(flavor = "multi_thread")]
async fn prometheus_scrapes_both_formats_and_drops_deleted_canaries() {
    let world = World::new().await;
    world.canary("web", json!({})).await;
    let pages = world.pages(Options { flagger_metrics: true, ..Options::default() }).await;
    let _serin = world.start().await;
    world.reaches("web", Phase::Initialized).await;
    let target = pages.serving.address;
    let prometheus = Prometheus::start(&format!(
        "- {{job_name: open, scrape_protocols: [OpenMetricsText1.0.0], static_configs: [{{targets: ['{target}']}}]}}\n\
         - {{job_name: plain, scrape_protocols: [PrometheusText0.0.4], static_configs: [{{targets: ['{target}']}}]}}"
    ))
    .await;
    for (query, answer) in [
        (r#"count(up{job=~"open|plain"} == 1)"#, "2"),
        (r#"count(serin_canary_phase{namespace="default",name="web",phase="Initialized"} == 1)"#, "2"),
        (r#"count(serin_canary_phase == 0)"#, "20"),
        (r#"count(flagger_canary_weight{workload="web-primary"} == 100)"#, "2"),
        (r#"count(serin_reconcile_duration_seconds_bucket{le="+Inf"} > 0)"#, "2"),
        (r#"count(histogram_quantile(0.99, serin_reconcile_duration_seconds_bucket) < 60)"#, "2"),
        (r#"count(serin_info)"#, "2"),
    ] {
        becomes(&prometheus, query, Some(answer)).await;
    }
    let types = get_json(&prometheus, "/api/v1/metadata", &[]).await;
    for (family, kind) in [
        ("serin_canary_phase", "gauge"),
        ("serin_release_duration_seconds", "histogram"),
        ("serin_reconciles_total", "counter"),
    ] {
        let known = types["data"][family].as_array().expect(family);
        assert!(known.iter().any(|known| known["type"] == kind), "{family}: {known:?}");
    }
    world.delete_canary("web").await;
    becomes(&prometheus, r#"count(serin_canary_phase{name="web"})"#, None).await;
    becomes(&prometheus, r#"count(flagger_canary_status{name="web"})"#, None).await;
    becomes(&prometheus, r#"count(up{job=~"open|plain"} == 1)"#, Some("2")).await;
}

/// Waits until the query has this result.
async fn becomes(prometheus: &Prometheus, query: &str, expected: Option<&str>) {
    let began = Instant::now();
    loop {
        let answer = get_json(prometheus, "/api/v1/query", &[("query", query)]).await;
        let value = answer["data"]["result"][0]["value"][1].as_str();
        if value == expected {
            return;
        }
        // Less than what Prometheus looks back when a series just ends.
        assert!(began.elapsed() < Duration::from_secs(200), "{query}: {answer:#}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

async fn get_json(prometheus: &Prometheus, path: &str, query: &[(&str, &str)]) -> Value {
    let client = reqwest::Client::builder().no_proxy().build().expect("an HTTP client");
    let answer = client.get(format!("{}{path}", prometheus.url())).query(query).send().await;
    answer.expect("an answer").json().await.expect("JSON")
}
