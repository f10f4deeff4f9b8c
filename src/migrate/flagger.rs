//! A Canary, MetricTemplate or AlertProvider of Flagger: its fields have the same names and
//! meaning here, so the text stays, with its comments and order. And how Flagger itself is
//! known in a cluster.

use k8s_openapi::api::apps::v1::Deployment;
use kube::core::{ApiResource, GroupVersionKind};
use regex::Regex;
use serde_json::Value;

/// On a Canary of Flagger that `serin migrate --live` took over: its `spec.suspend` from
/// before. On Flagger's Deployment: its replicas.
pub const MIGRATED: &str = "serin.dev/migrated";

/// Labels of Flagger's Deployment: of its chart, and of its manifests.
pub const SELECTORS: [&str; 2] = ["app.kubernetes.io/name=flagger", "app=flagger"];

/// Providers that Flagger routes and this version does not.
const UNROUTED: [&str; 10] = [
    "nginx",
    "contour",
    "gloo",
    "traefik",
    "apisix",
    "apisix:v2",
    "kuma",
    "knative",
    "skipper",
    "gatewayapi:v1alpha2",
];

/// Metric providers that this version does not query.
const UNQUERIED: [&str; 11] = [
    "datadog",
    "newrelic",
    "graphite",
    "influxdb",
    "stackdriver",
    "dynatrace",
    "keptn",
    "splunk",
    "externalmetrics",
    "signalfx",
    "appmesh",
];

const BUILT_IN: [&str; 2] = ["request-success-rate", "request-duration"];

/// A kind of Flagger's.
pub fn resource(kind: &str) -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk("flagger.app", "v1beta1", kind))
}

/// Whether this Deployment of Flagger has pods, or will have some.
pub fn is_running(flagger: &Deployment) -> bool {
    let wanted = flagger.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
    let exist = flagger.status.as_ref().and_then(|status| status.replicas).unwrap_or_default();
    wanted > 0 || exist > 0
}

/// The value of a flag of Flagger.
pub fn argument(flagger: &Deployment, flag: &str) -> Option<String> {
    let pods = flagger.spec.as_ref()?.template.spec.as_ref()?;
    let arguments = pods
        .containers
        .iter()
        .flat_map(|container| container.command.iter().flatten().chain(container.args.iter().flatten()));
    let mut values = arguments
        .filter_map(|argument| argument.trim_start_matches('-').strip_prefix(flag)?.strip_prefix('='));
    values.next().filter(|value| !value.is_empty()).map(str::to_owned)
}

/// Whether this version routes by a provider of Flagger's.
pub fn is_routed(provider: &str) -> bool {
    !UNROUTED.contains(&provider)
}

/// Whether a document is one of these, or a List with one.
pub fn is_of_flagger(document: &Value) -> bool {
    let version = document["apiVersion"].as_str().unwrap_or_default();
    version.starts_with("flagger.app/")
        || document["items"].as_array().is_some_and(|items| items.iter().any(is_of_flagger))
}

/// The text with our group, and our name of a MetricTemplate.
pub fn convert(document: &str) -> String {
    let replace = |text: &str, pattern: &str, with: &str| match Regex::new(pattern) {
        Ok(pattern) => pattern.replace_all(text, with).into_owned(),
        Err(_) => text.to_owned(),
    };
    let text = replace(
        document,
        r#"(?m)^([^#\n]*\bapiVersion["']?:\s*)["']?flagger\.app/v1(?:beta1|alpha3)["']?"#,
        "${1}serin.dev/v1alpha1",
    );
    replace(&text, r#"(?m)^([^#\n]*\bkind["']?:\s*)["']?MetricTemplate["']?"#, "${1}AnalysisTemplate")
}

/// What is different here, or has no equal.
pub fn notes(document: &Value) -> Vec<String> {
    let mut notes = Vec::new();
    match document["kind"].as_str().unwrap_or_default() {
        "Canary" => canary_notes(&document["spec"], &mut notes),
        "MetricTemplate" => {
            let provider = document["spec"]["provider"]["type"].as_str().unwrap_or_default();
            if UNQUERIED.contains(&provider) {
                notes.push(format!(
                    "provider.type {provider} is not queried by this version; use web for its JSON API, prometheus or cloudwatch"
                ));
            }
        }
        _ => {}
    }
    notes
}

fn canary_notes(spec: &Value, notes: &mut Vec<String>) {
    if spec["revertOnDeletion"].is_null() {
        notes.push(
            "revertOnDeletion is true by default here: deleting the Canary gives the target its traffic back"
                .to_owned(),
        );
    }
    let provider = spec["provider"].as_str().unwrap_or_default();
    if !is_routed(provider) {
        notes.push(format!(
            "provider {provider} is not routed by this version; where it implements the Gateway API, use gatewayapi:v1 with service.gatewayRefs"
        ));
    }
    let target = &spec["targetRef"];
    let version = target["apiVersion"].as_str().unwrap_or_default();
    match target["kind"].as_str() {
        Some(kind @ ("Deployment" | "DaemonSet")) if version != "apps/v1" => {
            notes.push(format!("targetRef.apiVersion of a {kind} is apps/v1; Flagger does not read it"));
        }
        Some(kind) if version.starts_with("serving.knative.dev/") => {
            notes.push(format!("a {kind} of Knative is not released by this version"));
        }
        _ => {}
    }
    let has_backends = spec["service"]["backends"].as_array().is_some_and(|all| !all.is_empty());
    if has_backends && !provider.starts_with("appmesh") {
        notes.push("service.backends is of App Mesh only".to_owned());
    }
    for metric in spec["analysis"]["metrics"].as_array().into_iter().flatten() {
        let name = metric["name"].as_str().unwrap_or_default();
        let has_bound = !metric["thresholdRange"].is_null() || !metric["threshold"].is_null();
        if BUILT_IN.contains(&name) && !has_bound && metric["templateRef"].is_null() {
            notes.push(format!(
                "metric {name} has no thresholdRange: the canary is compared with the primary, where Flagger's bound is 0"
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_to_write_the_group_is_found_and_comments_stay() {
        for (theirs, ours) in [
            ("apiVersion: flagger.app/v1beta1 # the group", "apiVersion: serin.dev/v1alpha1 # the group"),
            ("- apiVersion: \"flagger.app/v1beta1\"", "- apiVersion: serin.dev/v1alpha1"),
            (
                "{apiVersion: flagger.app/v1alpha3, kind: MetricTemplate}",
                "{apiVersion: serin.dev/v1alpha1, kind: AnalysisTemplate}",
            ),
            ("# apiVersion: flagger.app/v1beta1", "# apiVersion: flagger.app/v1beta1"),
            ("image: flagger.app/v1beta1", "image: flagger.app/v1beta1"),
        ] {
            assert_eq!(convert(theirs), ours);
        }
    }

    #[test]
    fn a_flagger_runs_until_its_last_pod_is_gone() {
        let deployment = |spec: &str, status: &str| -> Deployment {
            let pod = r#"{"spec": {"containers": [{"name": "flagger", "args": ["-namespace=shop"]}]}}"#;
            let text = format!(
                r#"{{"spec": {{{spec} "selector": {{}}, "template": {pod}}}, "status": {{{status}}}}}"#
            );
            serde_json::from_str(&text).unwrap()
        };
        assert!(is_running(&deployment("", "")), "one replica is the default");
        assert!(is_running(&deployment(r#""replicas": 0,"#, r#""replicas": 1"#)));
        assert!(!is_running(&deployment(r#""replicas": 0,"#, "")));
        assert_eq!(argument(&deployment("", ""), "namespace"), Some("shop".to_owned()));
        assert_eq!(argument(&deployment("", ""), "mesh-provider"), None);
    }
}
