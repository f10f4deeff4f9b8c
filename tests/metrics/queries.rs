//! From specs to queries.

use serin::metrics::{CountQueries, CountedPart, Query};

use super::*;
use crate::support::{Part as Bed, prometheus::Prometheus};

const PROVIDERS: [Provider; 21] = [
    Provider::Kubernetes,
    Provider::Istio,
    Provider::Linkerd,
    Provider::Osm,
    Provider::SmiV1Alpha1,
    Provider::SmiV1Alpha2,
    Provider::SmiV1Alpha3,
    Provider::SmiV1Alpha4,
    Provider::GatewayApiV1,
    Provider::GatewayApiV1Beta1,
    Provider::AppMesh,
    Provider::AppMeshV1Beta2,
    Provider::AppMeshAws,
    Provider::Xds,
    Provider::Nginx,
    Provider::Skipper,
    Provider::Contour,
    Provider::Gloo,
    Provider::Traefik,
    Provider::Apisix,
    Provider::Kuma,
];

#[tokio::test]
async fn every_built_in_query_is_valid_promql() {
    let prometheus = Prometheus::start("").await;
    let (sources, server, canary) = (sources(), prometheus.url(), canary("shop"));
    let since = Timestamp::now() - Duration::from_secs(10);
    for mesh in PROVIDERS {
        let subject = QueryContext { versions: None, canary: &canary, mesh, metrics_server: Some(&server) };
        for name in ["request-success-rate", "request-duration"] {
            for judge in [JudgeType::Threshold, JudgeType::Sequential, JudgeType::MannWhitney] {
                let ask = MetricQuery::new(&subject, &metric(name), None, judge).expect("a built-in metric");
                let measured = measure_since(&sources, &ask, since).await;
                assert_eq!(measured, Measurement::NoData, "{mesh:?} {name} {judge:?}: {:?}", ask.query);
            }
        }
    }
}

#[tokio::test]
async fn every_template_of_flagger_works_as_it_is() {
    let prometheus = Prometheus::start("").await;
    let (sources, server, canary) = (sources(), prometheus.url(), canary("shop"));
    let subject =
        QueryContext { versions: None, canary: &canary, mesh: Provider::Istio, metrics_server: None };
    let templates = flagger_templates();
    assert_eq!(templates.len(), 9);
    for (name, mut spec) in templates {
        spec.provider.address = Some(server.clone());
        let mut metric = metric(&name);
        for variable in ["reporter", "direction", "path"] {
            metric.template_variables.insert(variable.to_owned(), "x".to_owned());
        }
        let template = Template { name: &name, namespace: "shop", spec: &spec };
        let ask =
            MetricQuery::new(&subject, &metric, Some(&template), JudgeType::Threshold).expect("a query");
        assert_eq!(measure_since(&sources, &ask, Timestamp::now()).await, Measurement::NoData, "{name}");
    }
}

/// The metrics of Flagger's own tests, with their names.
fn flagger_templates() -> Vec<(String, AnalysisTemplateSpec)> {
    let folder = Bed::Flagger.folder().join("test");
    assert!(folder.exists(), "Flagger is not at {}: run `testbed/setup flagger`", folder.display());
    let mut templates = Vec::new();
    for mesh in std::fs::read_dir(&folder).expect("Flagger's tests") {
        for script in std::fs::read_dir(mesh.expect("a mesh").path()).into_iter().flatten() {
            let text = std::fs::read_to_string(script.expect("a script").path()).unwrap_or_default();
            for document in text.split("<<EOF").skip(1).filter_map(|rest| rest.split("\nEOF").next()) {
                for manifest in
                    document.split("\n---").filter(|manifest| manifest.contains("kind: MetricTemplate"))
                {
                    let manifest: Value =
                        serde_saphyr::from_str(manifest.trim_start_matches(" | kubectl apply -f -"))
                            .expect("YAML");
                    let name = manifest["metadata"]["name"].as_str().expect("a name").to_owned();
                    templates.push((name, template(manifest["spec"].clone())));
                }
            }
        }
    }
    templates
}

#[test]
fn a_template_counts_each_arm_by_its_own_workload() {
    let spec = template(json!({
        "provider": {"type": "prometheus", "address": "http://prometheus:9090"},
        "counts": {"good": "good{app=\"{{ target }}\"}", "total": "all{svc=\"{{ service }}-{{ arm }}\"}"},
    }));
    let ask = from_template(&spec, JudgeType::Sequential, None).unwrap();
    let arm = |target: &str, arm: &str| CountQueries {
        part: CountedPart::Good(format!("good{{app=\"{target}\"}}")),
        total: format!("all{{svc=\"web-{arm}\"}}"),
    };
    let expected = Arms { canary: arm("web", "canary"), primary: arm("web-primary", "primary") };
    assert_eq!(ask.query, Query::Counts(expected));
}

#[test]
fn the_metric_overrides_its_template() {
    let mut spec = template(json!({
        "provider": {"type": "prometheus", "address": "http://prometheus:9090"},
        "query": "{{ variables.a }} {{ variables.b }} [{{ interval }}]",
        "variables": {"a": "theirs", "b": "theirs"},
    }));
    spec.description = Some("two variables".to_owned());
    let canary = canary("shop");
    let subject =
        QueryContext { versions: None, canary: &canary, mesh: Provider::Istio, metrics_server: None };
    let mut metric = metric("errors");
    metric.template_variables.insert("b".to_owned(), "own".to_owned());
    metric.interval = Some("90s".parse().unwrap());
    let template = Template { name: "t", namespace: "shop", spec: &spec };
    let ask = MetricQuery::new(&subject, &metric, Some(&template), JudgeType::Threshold).unwrap();
    assert_eq!(ask.query, Query::Scalar("theirs own [1m30s]".to_owned()));
}

#[test]
fn without_a_prometheus_pods_are_scraped() {
    assert!(built_in("shop", "request-success-rate", JudgeType::Sequential, None).reads_pods());
    assert!(
        !built_in("shop", "request-success-rate", JudgeType::Sequential, Some("http://p:9090")).reads_pods()
    );
}

#[test]
fn an_unanswerable_query_is_refused_with_a_remedy() {
    let prometheus = json!({"type": "prometheus", "address": "http://p:9090"});
    for (spec, judge, sentence) in [
        (
            json!({"provider": prometheus, "query": "up"}),
            JudgeType::Sequential,
            "judge sequential needs counts or a histogram of canary and primary, which template AnalysisTemplate shop/errors does not provide; add counts or histogram to the template, or set thresholdRange",
        ),
        (
            json!({"provider": prometheus, "histogram": "x_bucket{app=\"web\"}"}),
            JudgeType::Sequential,
            "histogram is the same for canary and primary; distinguish them with {{ target }} or {{ arm }}",
        ),
        (
            json!({"provider": prometheus, "values": {"histogram": "x_bucket{app=\"{{ target }}\"}"}}),
            JudgeType::Threshold,
            "judge threshold needs a single value, which template AnalysisTemplate shop/errors does not provide; add query to the template, or use judge sequential",
        ),
        (
            json!({"provider": prometheus, "values": {"histogram": "x_bucket{a=\"{{ target }}\"}", "total": "rate(y{a=\"{{ target }}\"}[1m])"}}),
            JudgeType::Sequential,
            "values.total is a rate, and rates cannot be counted",
        ),
        (
            json!({"provider": {"type": "web", "address": "http://p:9090"}, "values": {"histogram": "{{ target }}"}}),
            JudgeType::Sequential,
            "use another provider",
        ),
        (
            json!({"provider": prometheus, "counts": {"good": "a{x=\"{{ target }}\"}", "total": "sum(rate(a{x=\"{{ target }}\"}[1m]))"}}),
            JudgeType::Sequential,
            "counts.total is a rate, and rates cannot be counted; write the counter itself",
        ),
        (
            json!({"provider": {"type": "prometheus"}, "query": "up"}),
            JudgeType::Threshold,
            "no Prometheus is configured",
        ),
        (
            json!({"provider": {"type": "prometheus", "address": "p:9090"}, "query": "up"}),
            JudgeType::Threshold,
            "is no address",
        ),
        (
            json!({"provider": {"type": "datadog"}, "query": "up"}),
            JudgeType::Threshold,
            "provider.type datadog is not supported",
        ),
        (
            json!({"provider": {"type": "scrape"}, "query": "rate(x[1m])"}),
            JudgeType::Threshold,
            "is no selector of series",
        ),
        (
            json!({"provider": {"type": "scrape"}, "query": "x"}),
            JudgeType::MannWhitney,
            "use another provider",
        ),
        (
            json!({"provider": prometheus, "query": "{{ variables.x }}"}),
            JudgeType::Threshold,
            "query uses variables.x, which nothing sets",
        ),
    ] {
        let refusal = from_template(&template(spec), judge, None).expect_err(sentence).to_string();
        assert!(refusal.contains(sentence), "{refusal}\n  does not say\n{sentence}");
    }
    let canary = canary("shop");
    let subject = QueryContext {
        versions: None,
        canary: &canary,
        mesh: Provider::Knative,
        metrics_server: Some("http://p:9090"),
    };
    let refusal =
        MetricQuery::new(&subject, &metric("request-duration"), None, JudgeType::Sequential).unwrap_err();
    assert_eq!(
        refusal.to_string(),
        "request-duration is not built in for provider Knative; measure it with a template"
    );
}

#[test]
fn the_old_inline_query_is_sent_to_the_metrics_server() {
    let canary = canary("shop");
    let subject = QueryContext {
        versions: None,
        canary: &canary,
        mesh: Provider::Istio,
        metrics_server: Some("http://p:9090"),
    };
    let metric = Metric { query: Some("errors{app=\"{{ target }}\"}".to_owned()), ..metric("errors") };
    let ask = MetricQuery::new(&subject, &metric, None, JudgeType::Threshold).unwrap();
    assert_eq!(ask.query, Query::Scalar("errors{app=\"web\"}".to_owned()));
    assert_eq!(ask.provider.address.as_deref(), Some("http://p:9090"));
}

/// `cargo test --no-default-features --test metrics without_aws`
#[cfg(not(feature = "aws"))]
#[test]
fn cloudwatch_is_refused_without_aws() {
    let spec = template(json!({"provider": {"type": "cloudwatch"}, "query": "[]"}));
    let refused = from_template(&spec, JudgeType::Threshold, None).unwrap_err().to_string();
    assert!(refused.contains("without the feature aws") && refused.contains("prometheus"), "{refused}");
}
