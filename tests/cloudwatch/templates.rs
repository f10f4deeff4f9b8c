//! The files in analysis-templates/ that query CloudWatch.

use serin::analysis::measurement::Histogram;
use serin::api::AnalysisTemplate;
use serin::metrics::cloudwatch::HISTOGRAM_BOUNDS;

use super::*;

const APP_MESH: &str = include_str!("../../analysis-templates/app-mesh-cloudwatch.yaml");

/// The metric of a Canary that names a template of the file, at the server.
fn of_file(server: &Server, template: &str, variables: Value, judge: JudgeType) -> MetricQuery {
    let all: Vec<AnalysisTemplate> = serde_saphyr::from_multiple(APP_MESH).expect("templates");
    let named = all.into_iter().find(|found| found.metadata.name.as_deref() == Some(template));
    let mut spec = serde_json::to_value(named.expect("a template of this name").spec).expect("JSON");
    json_patch::merge(&mut spec, &json!({"provider": {"address": server.url}}));
    let metric = json!({"name": "of the file", "templateVariables": variables});
    let metric: Metric = serde_json::from_value(metric).expect("a metric");
    query_for_metric("web", &metric, spec, judge).unwrap_or_else(|refusal| panic!("{refusal}"))
}

/// Ten minutes of one request a second: every twentieth of the canary's fails,
/// and its durations are 1 to 600 milliseconds, the primary's a tenth of that.
/// Beside them other nodes and another mesh, which are nobody's here.
fn record(server: &Server, namespace: &str) {
    let of = |metric: &str, mesh: &str, node: &str| {
        format!("{namespace}/envoy.appmesh.{metric}{{Mesh={mesh},TargetVirtualNode={node}}}")
    };
    for n in 1..=600 {
        let second = NOON + n - 1;
        let nodes =
            [("shop", "web-canary_shop", 1.0), ("shop", "web-primary_shop", 0.1), ("shop", "api_shop", 9.0)];
        for (mesh, node, slow) in nodes.into_iter().chain([("other", "web-canary_shop", 7.0)]) {
            server.put(&of("RequestCountPerTarget", mesh, node), second, 1.0);
            server.put(&of("TargetResponseTime", mesh, node), second, n as f64 * slow);
            if n % 20 == 0 && (mesh, node) != ("shop", "web-primary_shop") {
                server.put(&of("HTTPCode_Target_5XX_Count", mesh, node), second, 1.0);
            }
        }
    }
}

#[tokio::test]
async fn the_app_mesh_template_measures_the_recorded_values() {
    let (server, sources) = (Server::start().await, sources());
    record(&server, "CWAgent");
    let ten_minutes = window(0, 780);
    let mesh = json!({"mesh": "shop"});

    let success = of_file(&server, "app-mesh-cloudwatch-success-rate", mesh.clone(), JudgeType::Sequential);
    assert_eq!(measure(&sources, &success, ten_minutes).await, counts((30, 600), (0, 600)));
    let success = of_file(&server, "app-mesh-cloudwatch-success-rate", mesh.clone(), JudgeType::Threshold);
    assert_eq!(measure(&sources, &success, ten_minutes).await, Measurement::Scalar(95.0));

    let durations = of_file(&server, "app-mesh-cloudwatch-latency", mesh, JudgeType::Sequential);
    let arm = |longest: f64| {
        let within = |seconds: f64| ((seconds / longest * 600.0).floor() as u64).min(600);
        let bounds = HISTOGRAM_BOUNDS.map(|bound| (bound, within(bound)));
        Histogram::cumulative(bounds.into_iter().chain([(f64::INFINITY, 600)])).expect("a histogram")
    };
    let expected = Measurement::Histogram(Arms { canary: arm(0.6), primary: arm(0.06) });
    assert_eq!(measure(&sources, &durations, ten_minutes).await, expected);
    // Of the last minute that is complete: 541 to 600 milliseconds.
    for (percentile, about) in [(None, 600.0), (Some("p90"), 594.0), (Some("p50"), 570.0)] {
        let mut variables = json!({"mesh": "shop"});
        if let Some(percentile) = percentile {
            variables["percentile"] = json!(percentile);
        }
        let ask = of_file(&server, "app-mesh-cloudwatch-latency", variables, JudgeType::Threshold);
        let measured = measure(&sources, &ask, ten_minutes).await;
        let Measurement::Scalar(slow) = measured else { panic!("{measured:?}") };
        assert!((slow - about).abs() <= 1.0, "{percentile:?}: {slow}");
    }
}

#[tokio::test]
async fn the_template_reads_a_custom_agent_namespace() {
    let (server, sources) = (Server::start().await, sources());
    record(&server, "Mesh");
    let variables = json!({"mesh": "shop", "agentNamespace": "Mesh"});
    let success = of_file(&server, "app-mesh-cloudwatch-success-rate", variables, JudgeType::Sequential);
    assert_eq!(measure(&sources, &success, window(0, 780)).await, counts((30, 600), (0, 600)));
    let elsewhere = json!({"mesh": "shop"});
    let success = of_file(&server, "app-mesh-cloudwatch-success-rate", elsewhere, JudgeType::Sequential);
    assert_eq!(measure(&sources, &success, window(0, 780)).await, Measurement::NoData);
}
