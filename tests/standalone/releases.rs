//! Releases of an EndpointGroup through real Envoys.

use std::time::Duration;

use kube_local::seeded_rng::SeededRng;
use serde_json::json;
use serin::api::canary::{Phase, status::Outcome};
use tokio::time::{Instant, sleep};

use crate::machines::{Callers, Envoy, Machine, group};
use crate::stage::Stage;
use crate::support::prometheus::Prometheus;

const KILLS: usize = 10;

fn canary(analysis: &serde_json::Value) -> String {
    let canary = json!({
        "apiVersion": "serin.dev/v1alpha1", "kind": "Canary", "metadata": {"name": "web"},
        "spec": {
            "targetRef": {"apiVersion": "serin.dev/v1alpha1", "kind": "EndpointGroup", "name": "web"},
            "service": {"port": 80}, "analysis": analysis,
        },
    });
    canary.to_string()
}

/// One version is promoted, the next fails one request in five and is rolled back. No
/// request fails but those that a broken version answered.
#[tokio::test(flavor = "multi_thread")]
async fn a_version_is_promoted_and_a_broken_one_rolled_back() {
    let (one, two) = (Machine::start("v1", 0).await, Machine::start("v1", 0).await);
    let (next, broken) = (Machine::start("v2", 0).await, Machine::start("v3", 5).await);
    let mut stage = Stage::new(&[]);
    stage.dir.write("web.yaml", &group("v1", &[&one, &two]));
    stage.start();
    stage.client().await;
    let envoys = [Envoy::start(&stage, "edge-1").await, Envoy::start(&stage, "edge-2").await];
    let targets = envoys.iter().map(|envoy| format!("'127.0.0.1:{}'", envoy.admin)).collect::<Vec<_>>();
    let scraped =
        "- job_name: envoys\n  metrics_path: /stats/prometheus\n  static_configs: [{targets: [TARGETS]}]";
    let prometheus = Prometheus::start(&scraped.replace("TARGETS", &targets.join(", "))).await;
    let callers: Vec<Callers> = envoys.iter().map(Callers::start).collect();
    for callers in &callers {
        callers.settle_on("v1").await;
    }
    let began = Instant::now();
    let metric = json!({"name": "request-success-rate", "thresholdRange": {"min": 95}, "interval": "5s"});
    let mut with_server: serde_json::Value = serde_json::from_str(&canary(
        &json!({"interval": "2s", "threshold": 2, "stepWeights": [20, 50], "metrics": [metric]}),
    ))
    .expect("JSON");
    with_server["spec"]["metricsServer"] = json!(prometheus.url());
    stage.dir.write("canary.yaml", &with_server.to_string());
    // The manifest is applied a moment later.
    let is_known = async |stage: &mut Stage| stage.group().await.status.and_then(|status| status.primary);
    while is_known(&mut stage).await.is_none() {
        assert!(began.elapsed() < crate::stage::LIMIT, "no version becomes the primary:\n{}", stage.log());
        sleep(Duration::from_millis(100)).await;
    }
    stage.becomes("it is initialised", |status| status.phase == Phase::Initialized).await;

    stage.dir.write("web.yaml", &group("v2", &[&one, &two, &next]));
    let promoted = stage.released(1).await;
    assert_eq!(promoted.outcome, Outcome::Promoted, "{promoted:?}\n{}", stage.log());
    let group_status = stage.group().await.status.expect("a status");
    assert_eq!((group_status.primary.as_deref(), group_status.previous.as_deref()), (Some("v2"), Some("v1")));
    for callers in &callers {
        callers.settle_on("v2").await;
        let both = callers.since(began);
        assert!(both.iter().any(|answer| answer.version.as_deref() == Ok("v1")));
    }
    let failures: Vec<String> = callers.iter().flat_map(|callers| callers.failures(began)).collect();
    assert_eq!(failures, [] as [String; 0]);

    let began = Instant::now();
    stage.dir.write("web.yaml", &group("v3", &[&next, &broken]));
    let rolled_back = stage.released(2).await;
    assert_eq!(rolled_back.outcome, Outcome::RolledBack, "{rolled_back:?}\n{}", stage.log());
    for callers in &callers {
        callers.settle_on("v2").await;
        let failures = callers.failures(began);
        assert!(!failures.is_empty(), "v3 got requests");
        let others: Vec<_> = failures.iter().filter(|why| !why.contains("v3 is broken")).collect();
        assert!(others.is_empty(), "{others:?}");
        let answers = callers.since(began);
        assert!(answers.iter().all(|answer| answer.version.as_deref() != Ok("v1")), "v1 is gone");
    }
    let group = stage.group().await;
    assert_eq!(group.status.and_then(|status| status.primary).as_deref(), Some("v2"));
}

/// The process is killed again and again in the middle of a release.
#[tokio::test(flavor = "multi_thread")]
async fn a_release_survives_kills_of_the_process() {
    let (old, new) = (Machine::start("v1", 0).await, Machine::start("v2", 0).await);
    let mut stage = Stage::new(&[]);
    let weights: Vec<u32> = (1..=12).map(|step| step * 8).collect();
    stage
        .dir
        .write("canary.yaml", &canary(&json!({"interval": "1s", "stepWeights": weights, "metrics": []})));
    stage.dir.write("web.yaml", &group("v1", &[&old, &new]));
    stage.start();
    stage.becomes("it is initialised", |status| status.phase == Phase::Initialized).await;
    let envoy = Envoy::start(&stage, "edge-1").await;
    let callers = Callers::start(&envoy);
    callers.settle_on("v1").await;

    let (began, random) = (Instant::now(), SeededRng::seeded(21));
    stage.dir.write("web.yaml", &group("v2", &[&old, &new]));
    for _ in 0..KILLS {
        sleep(Duration::from_millis(200 + random.next_u64() % 3000)).await;
        stage.kill();
        stage.start();
    }
    let release = stage.released(1).await;
    assert_eq!(release.outcome, Outcome::Promoted, "{release:?}\n{}", stage.log());
    assert_eq!(stage.status().await.history.len(), 1, "one release, however often it was killed");
    callers.settle_on("v2").await;
    assert_eq!(callers.failures(began), [] as [String; 0]);
    assert_eq!(stage.group().await.status.and_then(|status| status.primary).as_deref(), Some("v2"));
}
