//! The controller's metrics.

use std::time::{Duration, Instant};

use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::api::{Patch, PatchParams, PostParams};
use kube_local::faults::FaultPlan;
use serde_json::json;
use serin::api::canary::Phase;
use serin::server::Options;

use crate::support::receiver::{Receiver, answer};
use crate::world::{Pages, Series, World, get};

const WEB: &str = r#"namespace="default",name="web""#;
/// As Flagger orders them.
const WEB_OF_FLAGGER: &str = r#"name="web",namespace="default""#;

#[tokio::test(flavor = "multi_thread")]
async fn a_release_leaves_series_that_end_with_the_canary() {
    let world = World::new().await;
    let pages = world.pages(Options { flagger_metrics: true, ..Options::default() }).await;
    let chat = Receiver::start([]).await;
    world.alert_provider(&chat.url).await;
    // The gate stays closed while the metrics are read.
    let gate = Receiver::start((0..1000).map(|_| answer(403, "not yet"))).await;
    let open = Receiver::start([]).await;
    let hook = |url: &str| json!([{"name": "go", "type": "confirm-promotion", "url": url}]);
    world
        .canary(
            "web",
            json!({"analysis": {
                "webhooks": hook(&gate.url),
                "alerts": [{"name": "all", "severity": "info", "providerRef": {"name": "chat"}}],
            }}),
        )
        .await;
    let _serin = world.start().await;
    world.reaches("web", Phase::Initialized).await;
    let shown = pages.series().await;
    shown.is(r#"serin_canaries{namespace="default"}"#, 1.0);
    shown.is(&format!("serin_canary_ready{{{WEB}}}"), 1.0);
    shown.is(&format!("serin_releases_total{{{WEB},outcome=\"Promoted\"}}"), 0.0);
    shown.is(&format!("flagger_canary_status{{{WEB_OF_FLAGGER}}}"), 1.0);

    let _traffic = world.traffic();
    world.push("web:v2").await;
    world.reaches("web", Phase::WaitingPromotion).await;
    let shown = pages.shows(&format!("serin_canary_phase{{{WEB},phase=\"WaitingPromotion\"}}"), 1.0).await;
    shown.is(&format!("serin_canary_phase{{{WEB},phase=\"Progressing\"}}"), 0.0);
    shown.is(&format!("serin_canary_weight_ratio{{{WEB}}}"), 0.3);
    shown.is(&format!("serin_canary_step{{{WEB}}}"), 2.0);
    shown.is(&format!("serin_canary_steps{{{WEB}}}"), 2.0);
    shown.is(&format!("serin_canary_ready{{{WEB}}}"), 0.0);
    shown.at_least(&format!("serin_canary_last_transition_timestamp_seconds{{{WEB}}}"), 1.7e9);
    for arm in ["canary", "primary"] {
        let series = format!("serin_canary_metric{{{WEB},metric=\"request-success-rate\",arm=\"{arm}\"}}");
        shown.is(&series, 100.0);
    }
    shown.at_least(r#"serin_gate_calls_total{type="confirm-promotion",result="no"}"#, 1.0);
    shown.is(r#"flagger_canary_weight{workload="web-primary",namespace="default"}"#, 70.0);
    shown.is(r#"flagger_canary_weight{workload="web",namespace="default"}"#, 30.0);
    let metric =
        format!("flagger_canary_metric_analysis{{{WEB_OF_FLAGGER},metric=\"request-success-rate\"}}");
    shown.is(&metric, 100.0);

    world.edit("web", json!({"analysis": {"webhooks": hook(&open.url)}})).await;
    world.reaches("web", Phase::Succeeded).await;
    world.push("web:v3-errors-40").await;
    world.reaches("web", Phase::Failed).await;
    let shown = pages.shows(&format!("flagger_canary_status{{{WEB_OF_FLAGGER}}}"), 2.0).await;
    for (outcome, count) in [("Promoted", 1.0), ("RolledBack", 1.0), ("Aborted", 0.0), ("Superseded", 0.0)] {
        shown.is(&format!("serin_releases_total{{{WEB},outcome=\"{outcome}\"}}"), count);
        shown.is(&format!("serin_release_duration_seconds_count{{outcome=\"{outcome}\"}}"), count);
    }
    let labels = format!("{WEB_OF_FLAGGER},deployment_strategy=\"canary\",analysis_status=\"completed\"");
    shown.is(&format!("flagger_canary_successes_total{{{labels}}}"), 1.0);
    shown.is(&format!("flagger_canary_failures_total{{{labels}}}"), 1.0);
    shown.at_least(&format!("flagger_canary_duration_seconds_count{{{WEB_OF_FLAGGER}}}"), 3.0);
    shown.is(r#"flagger_canary_total{namespace="default"}"#, 1.0);
    shown.at_least(r#"serin_gate_calls_total{type="confirm-promotion",result="yes"}"#, 1.0);
    shown.at_least(r#"serin_metric_queries_total{source="scrape",result="ok"}"#, 3.0);
    shown.at_least(r#"serin_reconciles_total{result="ok"}"#, 10.0);
    shown.is(r#"serin_reconciles_total{result="panicked"}"#, 0.0);
    shown.at_least("serin_reconcile_duration_seconds_count", 10.0);
    shown.at_least(r#"serin_api_requests_total{verb="watch",result="ok"}"#, 2.0);
    shown.at_least(r#"serin_api_requests_total{verb="update",result="ok"}"#, 5.0);
    shown.is(&format!("serin_info{{version=\"{}\"}}", env!("CARGO_PKG_VERSION")), 1.0);
    shown.is(&format!("flagger_info{{version=\"{}\",mesh_provider=\"\"}}", env!("CARGO_PKG_VERSION")), 1.0);
    shown.at_least("process_cpu_seconds_total", 0.01);
    shown.at_least("process_resident_memory_bytes", 1e6);
    let now = jiff::Timestamp::now().as_second() as f64;
    let started = shown.0["process_start_time_seconds"];
    assert!((now - 3600.0..=now + 1.0).contains(&started), "started at {started}, now is {now}");
    chat.await_received(1).await;
    pages.shows(r#"serin_notifications_total{result="delivered"}"#, chat.received().len() as f64).await;

    world.edit("web", json!({"revertOnDeletion": false})).await;
    world.delete_canary("web").await;
    let began = Instant::now();
    let left = loop {
        let shown = pages.series().await;
        let left =
            shown.containing(r#"="web""#).into_iter().chain(shown.containing("serin_canaries{")).count();
        if left == 0 || began.elapsed().as_secs() > 60 {
            break shown;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    assert_eq!(left.containing(r#"="web"#), [] as [&String; 0]);
    assert_eq!(left.containing("serin_canaries{"), [] as [&String; 0]);
    left.is(r#"serin_release_duration_seconds_count{outcome="Promoted"}"#, 1.0);
}

#[tokio::test]
async fn flagger_metric_names_are_served_only_if_enabled() {
    let world = World::new().await;
    world.canary("web", json!({})).await;
    let _serin = world.start().await;
    world.reaches("web", Phase::Initialized).await;
    let (without, with) = (
        world.pages(Options::default()).await,
        world.pages(Options { flagger_metrics: true, ..Options::default() }).await,
    );
    assert_eq!(without.series().await.containing("flagger_"), [] as [&String; 0]);
    let names = |series: &Series| {
        let mut names: Vec<String> = series
            .containing("flagger_")
            .into_iter()
            .map(|series| series.split('{').next().expect("a name").to_owned())
            .collect();
        names.dedup();
        names
    };
    // The other two appear with the first check.
    assert_eq!(
        names(&with.series().await),
        [
            "flagger_canary_failures_total",
            "flagger_canary_status",
            "flagger_canary_successes_total",
            "flagger_canary_total",
            "flagger_canary_weight",
            "flagger_info",
        ]
    );
}

#[tokio::test]
async fn openmetrics_is_served_if_the_client_accepts_it() {
    let world = World::new().await;
    let pages = world.pages(Options { flagger_metrics: true, ..Options::default() }).await;
    let url = format!("http://{}/metrics", pages.serving.address);
    let open = get(&url, "application/openmetrics-text;version=1.0.0,text/plain;q=0.5").await;
    assert_eq!(open.kind, "application/openmetrics-text; version=1.0.0; charset=utf-8");
    assert!(open.text.ends_with("\n# EOF\n"), "{}", open.text);
    assert!(open.text.contains("# TYPE serin_reconciles counter\n"), "{}", open.text);
    let plain = get(&url, "text/plain").await;
    assert!(plain.text.contains("# TYPE serin_reconciles_total counter\n"), "{}", plain.text);
    assert!(!plain.text.contains("# EOF"));
    let names = |text: &str| Series::of(text).0.into_keys().collect::<Vec<_>>();
    assert_eq!(names(&open.text), names(&plain.text));
}

/// A PodDisruptionBudget's status changes with every pod.
#[tokio::test]
async fn the_status_of_a_companion_triggers_no_reconcile_and_its_spec_does() {
    let world = World::new().await;
    let budgets = world.api::<PodDisruptionBudget>();
    let budget = json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "web"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}},
    });
    let budget = serde_json::from_value(budget).expect("a budget");
    budgets.create(&PostParams::default(), &budget).await.expect("it is accepted");
    world.canary("web", json!({})).await;
    let _serin = world.start().await;
    world.reaches("web", Phase::Initialized).await;
    let pages = world.pages(Options::default()).await;
    let reconciles = async || pages.series().await.0[r#"serin_reconciles_total{result="ok"}"#];
    let mut before = reconciles().await;
    loop {
        tokio::time::sleep(Duration::from_millis(500)).await;
        match reconciles().await {
            same if same == before => break,
            more => before = more,
        }
    }
    for allowed in 0..20 {
        let status =
            Patch::Merge(json!({"status": {"disruptionsAllowed": allowed, "currentHealthy": allowed}}));
        budgets.patch_status("web", &PatchParams::default(), &status).await.expect("a status");
    }
    let edit = Patch::Merge(json!({"spec": {"minAvailable": 2}}));
    budgets.patch("web", &PatchParams::default(), &edit).await.expect("an edit");
    let began = Instant::now();
    while budgets.get("web-primary").await.expect("a copy").spec.and_then(|spec| spec.min_available)
        != Some(IntOrString::Int(2))
    {
        assert!(began.elapsed().as_secs() < 60, "the copy does not follow");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let woken = reconciles().await - before;
    assert!((1.0..10.0).contains(&woken), "woken {woken} times");
}

/// On another connection, a watch may deliver a write before its response.
#[tokio::test]
async fn own_writes_trigger_no_reconcile() {
    let world = World::new().await;
    let steps = json!([5, 10, 15, 20, 25, 30, 35, 40, 45, 50]);
    world.canary("web", json!({"analysis": {"stepWeights": steps, "metrics": null}})).await;
    let _serin = world.start().await;
    world.reaches("web", Phase::Initialized).await;
    let latency = Duration::from_millis(50);
    world.api_server.set_faults(FaultPlan { slow_response: 1.0, latency, ..FaultPlan::default() });
    world.push("web:v2").await;
    let pages = world.pages(Options::default()).await;
    let reconciles = async |ratio: f64| {
        let shown = pages.shows(&format!("serin_canary_weight_ratio{{{WEB}}}"), ratio).await;
        shown.0[r#"serin_reconciles_total{result="ok"}"#]
    };
    let (first, last) = (reconciles(0.05).await, reconciles(0.5).await);
    assert!((8.0..13.0).contains(&(last - first)), "nine steps, and {} reconciles", last - first);
}

#[tokio::test]
async fn canaries_that_share_a_target_make_no_duplicate_series() {
    let world = World::new().await;
    world.canary("web", json!({"suspend": true})).await;
    world.canary("web-too", json!({"suspend": true})).await;
    let pages = world.pages(Options { flagger_metrics: true, ..Options::default() }).await;
    let _serin = world.start().await;
    // No series is there twice, which `Series::of` insists on.
    let shown = pages.shows(r#"serin_canaries{namespace="default"}"#, 2.0).await;
    shown.is(r#"serin_canary_suspended{namespace="default",name="web-too"}"#, 1.0);
    assert_eq!(shown.containing("flagger_canary_status").len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn each_canary_is_served_by_one_replica() {
    let world = World::new().await;
    for at in 0..16 {
        world.canary(&format!("web-{at}"), json!({"suspend": true})).await;
    }
    let (a, stop, ended) = world.replica("a", 16).await;
    let (b, ..) = world.replica("b", 16).await;
    let divided =
        |a: &ShownSeries, b: &ShownSeries| a.shards > 0.0 && b.shards > 0.0 && a.shards + b.shards == 16.0;
    await_division(&a, &b, divided).await;
    stop.cancel();
    ended.await.expect("it ends well");
    await_division(&a, &b, |a, b| (a.shards, b.shards) == (0.0, 16.0)).await;
    assert_eq!(b.get("/readyz").await.code, 200);
}

struct ShownSeries {
    shards: f64,
    canaries: Vec<String>,
}

/// Waits until the shards are divided so, and each Canary is shown once.
async fn await_division(a: &Pages, b: &Pages, is_in_sync: impl Fn(&ShownSeries, &ShownSeries) -> bool) {
    let began = Instant::now();
    loop {
        let [of_a, of_b] = [a.series().await, b.series().await].map(|shown| ShownSeries {
            shards: shown.0["serin_shards_held"],
            canaries: shown.containing("serin_canary_suspended").into_iter().cloned().collect(),
        });
        let mut all = [&of_a.canaries[..], &of_b.canaries[..]].concat();
        all.sort();
        let shown = all.len();
        all.dedup();
        if is_in_sync(&of_a, &of_b) && (shown, all.len()) == (16, 16) {
            return;
        }
        let (a, b) = (of_a.shards, of_b.shards);
        assert!(began.elapsed() < Duration::from_secs(240), "{a} and {b} shards show {shown} Canaries");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
