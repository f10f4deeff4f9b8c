//! Metrics that need no query: of load balancers, and of App Mesh.

use super::*;
use serin::analysis::measurement::Histogram;
use serin::metrics::cloudwatch::HISTOGRAM_BOUNDS;

const LOAD_BALANCER: &str = "app/shop/50dc6c495c0c9188";

fn target_groups(server: &Server) -> Value {
    json!({
        "provider": {"address": server.url},
        "cloudwatch": {
            "builtIn": "targetGroups",
            "dimensions": {"LoadBalancer": LOAD_BALANCER},
            "canary": {"TargetGroup": "targetgroup/{{ target }}-canary/1"},
            "primary": {"TargetGroup": "targetgroup/{{ name }}-primary/2"},
        },
    })
}

fn app_mesh(server: &Server) -> Value {
    json!({
        "provider": {"address": server.url},
        "cloudwatch": {
            "builtIn": "appMesh",
            "dimensions": {"Mesh": "shop"},
            "canary": {"TargetVirtualNode": "web-canary_shop"},
            "primary": {"TargetVirtualNode": "web-primary_shop"},
        },
    })
}

/// What a metric of an arm is called.
type Called = fn(&str, &str) -> String;

/// Both kinds, and how many of their units of time are a second.
fn senders(server: &Server) -> [(Value, Called, f64); 2] {
    let of_group: Called = |name, arm| {
        let group = if arm == "canary" { "web-canary/1" } else { "web-primary/2" };
        format!("AWS/ApplicationELB/{name}{{LoadBalancer={LOAD_BALANCER},TargetGroup=targetgroup/{group}}}")
    };
    let of_node: Called = |name, arm| {
        let name = if name == "RequestCount" { "RequestCountPerTarget" } else { name };
        format!("CWAgent/envoy.appmesh.{name}{{Mesh=shop,TargetVirtualNode=web-{arm}_shop}}")
    };
    [(target_groups(server), of_group, 1.0), (app_mesh(server), of_node, 1000.0)]
}

#[tokio::test]
async fn success_is_counted_and_durations_are_a_distribution() {
    let server = Server::start().await;
    for (spec, metric, per_second) in senders(&server) {
        for n in 0..200 {
            let second = NOON + n % 120;
            // Durations of 0.3 to 199.3 milliseconds, those of the canary ten
            // times as long.
            for (arm, seconds) in [("canary", 0.01), ("primary", 0.001)] {
                server.put(&metric("RequestCount", arm), second, 1.0);
                server.put(
                    &metric("TargetResponseTime", arm),
                    second,
                    (n as f64 + 0.3) * seconds * per_second,
                );
            }
            if n % 20 == 0 {
                server.put(&metric("HTTPCode_Target_5XX_Count", "canary"), second, 1.0);
            }
        }
        let ask = |name: &str, judge| query_of("web", name, spec.clone(), judge).expect("a built-in metric");
        let minutes = window(0, 300);
        let sources = sources();
        for judge in [JudgeType::Sequential, JudgeType::Threshold] {
            let success = measure(&sources, &ask("request-success-rate", judge), minutes).await;
            assert_eq!(success, counts((10, 200), (0, 200)));
        }
        let within =
            |seconds: f64, longest: f64| ((seconds / longest * 200.0 - 0.3).floor() + 1.0).min(200.0) as u64;
        let arm = |longest: f64| {
            let bounds = HISTOGRAM_BOUNDS.map(|bound| (bound, within(bound, longest)));
            Histogram::cumulative(bounds.into_iter().chain([(f64::INFINITY, 200)])).expect("a histogram")
        };
        let durations = measure(&sources, &ask("request-duration", JudgeType::Sequential), minutes).await;
        assert_eq!(durations, Measurement::Histogram(Arms { canary: arm(2.0), primary: arm(0.2) }));
        let slow = measure(&sources, &ask("request-duration", JudgeType::Threshold), minutes).await;
        let Measurement::Scalar(slow) = slow else { panic!("{slow:?}") };
        // The slowest of eighty in the second minute.
        assert!((slow - 1993.0).abs() < 1e-6, "{slow}");
    }
}

#[test]
fn an_unknown_name_and_identical_arms_are_refused() {
    let spec =
        json!({"cloudwatch": {"builtIn": "targetGroups", "dimensions": {"LoadBalancer": LOAD_BALANCER}}});
    let refused = query_of("web", "latency", spec.clone(), JudgeType::Sequential).unwrap_err().to_string();
    assert!(refused.contains("request-success-rate or request-duration"), "{refused}");
    let refused = query_of("web", "request-duration", spec, JudgeType::Sequential).unwrap_err().to_string();
    assert!(refused.contains("spec.cloudwatch.canary and primary"), "{refused}");
}
