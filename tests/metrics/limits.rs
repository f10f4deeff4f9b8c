//! Tenants write templates, Canaries and the servers behind them: their credentials,
//! queries and responses stay within limits.

use super::*;

fn templated(spec: Value, canary: &Canary, server: Option<&str>) -> Result<MetricQuery, QueryError> {
    let spec = template(spec);
    let context = QueryContext { canary, mesh: Provider::Kubernetes, metrics_server: server };
    let template = Template { name: "errors", namespace: "platform", spec: &spec };
    MetricQuery::new(&context, &metric("errors"), Some(&template), JudgeType::Threshold)
}

/// The sentence that refuses a query.
#[track_caller]
fn refused(spec: Value) -> String {
    templated(spec, &canary("shop"), Some("http://p:9090")).expect_err("refused").to_string()
}

#[test]
fn credentials_never_go_to_a_server_that_the_canary_names() {
    let mut canary = canary("shop");
    canary.spec.metrics_server = Some("http://tenant:9090".to_owned());
    for with in [
        json!({"type": "prometheus", "secretRef": {"name": "prometheus"}}),
        json!({"type": "prometheus", "headers": {"X-Api-Key": ["k3y"]}}),
    ] {
        let spec = json!({"provider": with, "query": "up"});
        let query = templated(spec.clone(), &canary, Some("http://platform:9090")).expect("a query");
        assert_eq!(query.provider.address.as_deref(), Some("http://platform:9090"));
        let sentence = templated(spec, &canary, None).expect_err("no server").to_string();
        assert_eq!(
            sentence,
            "template errors has credentials, which are not sent to spec.metricsServer of a Canary; set provider.address of the template, or --metrics-server of the controller"
        );
    }
    let spec = json!({"provider": {"type": "prometheus"}, "query": "up"});
    let query = templated(spec, &canary, Some("http://platform:9090")).expect("a query");
    assert_eq!(query.provider.address.as_deref(), Some("http://tenant:9090"));
}

#[test]
fn a_template_cannot_loop() {
    let with = |query: &str| {
        refused(json!({"provider": {"type": "prometheus", "address": "http://p:9090"}, "query": query}))
    };
    for query in [
        "{% for a in [1] %}{{ a }}{% endfor %}",
        "{%- set a = 1 -%}",
        "{# {{ \" #}{{ \"x\" * 9999999 }}",
        "{{ \"x\" * 999999999 }}",
        "{{ \"}}\" * 999999999 }}",
        "{{ [1] * 999999999 }}",
        "{{ 'it\\'s' * 99 }}",
    ] {
        let sentence = with(query);
        assert!(sentence.contains("only variables, printf and index are supported"), "{query}: {sentence}");
    }
    let query = "100 * sum({{ target }}{a=\"*\"}) * {{ printf \"%s*\" arm }}";
    let spec = json!({"provider": {"type": "prometheus", "address": "http://p:9090"}, "query": query});
    let found = templated(spec, &canary("shop"), None).expect("stars outside of expressions and in quotes");
    assert_eq!(found.query, serin::metrics::Query::Scalar("100 * sum(web{a=\"*\"}) * canary*".to_owned()));
}

#[test]
fn a_rendered_query_is_bounded() {
    let provider = json!({"type": "prometheus", "address": "http://p:9090"});
    let long = "x".repeat(2000);
    let sentence =
        refused(json!({"provider": provider, "query": "{{ variables.a }}", "variables": {"a": long}}));
    assert!(sentence.contains("variables.a is longer than 1024 bytes"), "{sentence}");
    let many = "{{ variables.a }}".repeat(900);
    let value = "x".repeat(1000);
    let sentence = refused(json!({"provider": provider, "query": many, "variables": {"a": value}}));
    assert!(sentence.contains("query is longer than 64 KiB once its variables are filled in"), "{sentence}");
}
