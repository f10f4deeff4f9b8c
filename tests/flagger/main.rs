//! Flagger's own end-to-end scripts, run against `serin run`.
//!
//! Each script has a Kubernetes API in this process with a node that runs its pods, a data
//! plane that follows the route objects (`data_plane.rs`), the real kubectl and, where it
//! asks for metrics, the real Prometheus. `rules.yaml` has every change that is made to a
//! script, with its reason, and `stand_ins.rs` what stands in for the load tester, for
//! Istio's and Linkerd's controllers and for KEDA.
//!
//! The scripts are those of the providers that Serin has; the others wait for a router.

#[path = "../support/mod.rs"]
mod support;

mod counts;
mod data_plane;
mod rules;
mod stand_ins;
mod surroundings;

use surroundings::{Metrics, Surroundings};

/// A test for each script, which names the script, the provider and the metrics.
macro_rules! scripts {
    ($($name:ident: $script:literal, $provider:literal, $metrics:expr;)*) => {
        /// Relative to the folder `test` of Flagger's repository.
        const SCRIPTS: &[&str] = &[$($script),*];
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
            async fn $name() {
                Surroundings::start($provider, $metrics).await.run($script).await;
            }
        )*
    };
}

scripts! {
    istio_canary: "istio/test-canary.sh", "istio", Metrics::Prometheus;
    istio_delegation: "istio/test-delegation.sh", "istio", Metrics::Prometheus;
    istio_session_affinity: "istio/test-session-affinity.sh", "istio", Metrics::Prometheus;
    istio_skip_analysis: "istio/test-skip-analysis.sh", "istio", Metrics::Prometheus;
    gateway_api_canary: "gatewayapi/test-canary.sh", "gatewayapi:v1", Metrics::Prometheus;
    gateway_api_blue_green: "gatewayapi/test-bg.sh", "gatewayapi:v1", Metrics::Prometheus;
    gateway_api_ab: "gatewayapi/test-ab.sh", "gatewayapi:v1", Metrics::Prometheus;
    gateway_api_session_affinity:
        "gatewayapi/test-session-affinity.sh", "gatewayapi:v1", Metrics::Prometheus;
    linkerd_canary: "linkerd/test-canary.sh", "linkerd", Metrics::Prometheus;
    linkerd_steps: "linkerd/test-steps.sh", "linkerd", Metrics::Prometheus;
    kubernetes_deployment: "kubernetes/test-deployment.sh", "kubernetes", Metrics::Scrape;
    kubernetes_daemon_set: "kubernetes/test-daemonset.sh", "kubernetes", Metrics::Scrape;
    kubernetes_autoscaler: "kubernetes/test-hpa.sh", "kubernetes", Metrics::Prometheus;
    keda_scaled_object: "keda/test-scaledobject.sh", "kubernetes", Metrics::Prometheus;
}

#[test]
fn every_rule_changes_a_script_that_it_names() {
    for rule in rules::all() {
        let named = rule.scripts.clone().unwrap_or_else(|| {
            let others =
                ["gatewayapi/test-utils.sh", "workloads/deployment.yaml", "workloads/daemonset.yaml"];
            SCRIPTS.iter().chain(&others).map(|script| (*script).to_owned()).collect()
        });
        let changes = |script: &String| rule.apply(&rules::original(script)) != rules::original(script);
        let (changed, same): (Vec<_>, Vec<_>) = named.iter().partition(|script| changes(script));
        assert!(!changed.is_empty(), "nothing to change for: {}", rule.reason);
        assert!(rule.scripts.is_none() || same.is_empty(), "no change of {same:?} by: {}", rule.reason);
    }
}

/// The providers of the scripts that are left out have no router.
#[test]
fn every_script_of_a_provider_that_serin_has_is_run() {
    let unsupported = ["apisix", "contour", "gloo", "knative", "kuma", "nginx", "skipper", "traefik"];
    let tests = support::Part::Flagger.folder().join("test");
    let mut left = Vec::new();
    for folder in std::fs::read_dir(&tests).expect("Flagger's scripts").flatten() {
        let provider = folder.file_name().into_string().expect("a name");
        let Ok(files) = std::fs::read_dir(folder.path()) else { continue };
        let names = files.flatten().map(|file| file.file_name().into_string().expect("a name"));
        let scripts = names.filter(|name| name.starts_with("test-") && name != "test-utils.sh");
        left.extend(scripts.map(|name| format!("{provider}/{name}")));
    }
    left.retain(|script| !SCRIPTS.contains(&script.as_str()));
    left.retain(|script| !unsupported.iter().any(|provider| script.starts_with(&format!("{provider}/"))));
    assert!(left.is_empty(), "these are not run: {left:?}");
}
