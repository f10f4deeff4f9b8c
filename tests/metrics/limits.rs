//! Tenants write templates, Canaries and the servers behind them: their credentials,
//! queries and responses stay within limits.

use axum::Router;
use serin::metrics::{SecretName, ServerAccess};

use super::*;
use crate::support::http_fixtures::{App, serve};
use crate::support::receiver::{Receiver, answer};

fn templated(spec: Value, canary: &Canary, server: Option<&str>) -> Result<MetricQuery, QueryError> {
    let spec = template(spec);
    let context = QueryContext { versions: None, canary, mesh: Provider::Kubernetes, metrics_server: server };
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

#[test]
fn the_matchers_of_a_scraped_query_are_bounded() {
    let with = |query: &str| refused(json!({"provider": {"type": "scrape"}, "query": query}));
    let many: Vec<String> = (0..33).map(|label| format!("l{label}=~\"a\"")).collect();
    let sentence = with(&format!("hits{{{}}}", many.join(",")));
    assert!(sentence.contains("more than 32 matchers"), "{sentence}");
    let spread = many.iter().map(|matcher| format!("hits{{{matcher}}}")).collect::<Vec<_>>().join(" or ");
    assert!(with(&spread).contains("more than 32 matchers"));
    let sentence = with("hits{a=~\"(x{1000}){1000}\"}");
    assert!(sentence.contains("is too large a regular expression"), "{sentence}");
}

/// A selector for Prometheus is matched by Prometheus.
#[test]
fn the_matchers_of_a_prometheus_query_are_not_ours_to_limit() {
    let many: Vec<String> = (0..99).map(|label| format!("l{label}=~\"(x{{1000}}){{1000}}\"")).collect();
    let total = format!("hits{{app=\"{{{{ target }}}}\",{}}}", many.join(","));
    let spec = template(json!({
        "provider": {"type": "prometheus", "address": "http://p:9090"},
        "counts": {"good": total, "total": total},
    }));
    from_template(&spec, JudgeType::Sequential, None).expect("a query");
}

#[tokio::test]
async fn a_web_answer_is_read_to_256_kib() {
    let number = |answer: String| async move {
        let receiver = Receiver::start([crate::support::receiver::answer(200, answer)]).await;
        let address = receiver.url.trim_end_matches("/hook").to_owned();
        let provider = json!({"type": "web", "address": address, "web": {"valueAt": "/value"}});
        let ask = templated(json!({"provider": provider, "query": "/score"}), &canary("shop"), None);
        measure_since(&sources(), &ask.expect("a query"), Timestamp::now()).await
    };
    let filler = |bytes: usize| format!(r#"{{"filler": "{}", "value": 7}}"#, "x".repeat(bytes));
    assert_eq!(number(filler(250 << 10)).await, Measurement::Scalar(7.0));
    let why = unavailable(number(filler(300 << 10)).await);
    assert!(why.contains("responded with more than 256 KiB"), "{why}");
}

#[tokio::test]
async fn a_histogram_has_at_most_a_hundred_bounds() {
    let app = App::start().await;
    let pods = |pod: &str| vec![Endpoint { pod: pod.to_owned(), name: pod.to_owned(), url: Ok(app.url()) }];
    let arms = Arms { canary: pods("c"), primary: pods("p") };
    let bounds = |count: u32| -> String {
        let line = |bound: u32| format!("http_request_duration_seconds_bucket{{le=\"{bound}\"}} {bound}\n");
        (0..count).map(line).collect::<String>() + "http_request_duration_seconds_bucket{le=\"+Inf\"} 900\n"
    };
    let (sources, ask) = (sources(), built_in("shop", "request-duration", JudgeType::Sequential, None));
    app.show(&bounds(99));
    measure(&sources, &ask, None, Timestamp::now(), &arms).await;
    let measured = measure(&sources, &ask, None, Timestamp::now(), &arms).await;
    assert!(matches!(measured, Measurement::NoData | Measurement::Histogram(_)), "{measured:?}");
    app.show(&bounds(100));
    let why = unavailable(measure(&sources, &ask, None, Timestamp::now(), &arms).await);
    assert!(why.contains("101 bounds, and at most 100 are read; aggregate or drop some"), "{why}");

    let series: Vec<Value> = (0..=100)
        .flat_map(|bound: u32| {
            ["now", "then"].map(|of| {
                let labels = json!({"serin_arm": "canary", "le": bound.to_string(), "serin_sum_of": of});
                json!({"metric": labels, "value": [0, "1"]})
            })
        })
        .collect();
    let response = json!({"status": "success", "data": {"resultType": "vector", "result": series}});
    let (address, _open) = serve(Router::new().fallback(async move || response.to_string())).await;
    let ask = built_in("shop", "request-duration", JudgeType::Sequential, Some(&format!("http://{address}")));
    let since = Timestamp::now() - Duration::from_secs(10);
    let why = unavailable(measure_since(&sources, &ask, since).await);
    assert!(why.contains("101 bounds, and at most 100 are read"), "{why}");
}

#[tokio::test]
async fn the_reason_of_a_failed_query_is_bounded() {
    let long = "x".repeat(100_000);
    let error = json!({"status": "error", "errorType": "bad_data", "error": long}).to_string();
    let (address, _open) =
        serve(Router::new().fallback(async move || (http::StatusCode::BAD_REQUEST, error))).await;
    let provider = json!({"type": "prometheus", "address": format!("http://{address}")});
    let ask =
        templated(json!({"provider": provider, "query": "up"}), &canary("shop"), None).expect("a query");
    let why = unavailable(measure_since(&sources(), &ask, Timestamp::now()).await);
    assert!(why.len() <= 1024 && why.ends_with('…') && why.contains("refused the query: xxx"), "{why}");
}

#[tokio::test]
async fn a_scraped_answer_is_not_quoted() {
    let app = App::start().await;
    app.show("internal-password: hunter2\n");
    let pods = vec![Endpoint { pod: "c".to_owned(), name: "c".to_owned(), url: Ok(app.url()) }];
    let arms = Arms { canary: pods, primary: Vec::new() };
    let ask = built_in("shop", "request-success-rate", JudgeType::Sequential, None);
    let why = unavailable(measure(&sources(), &ask, None, Timestamp::now(), &arms).await);
    assert!(why.contains("line 1 is not in Prometheus' text format") && !why.contains("hunter2"), "{why}");
}

#[test]
fn a_pod_chooses_http_or_https_and_nothing_else() {
    let url = |scheme: &str| {
        let pod = json!({
            "metadata": {"name": "web-1", "uid": "u", "annotations": {"prometheus.io/scheme": scheme}},
            "status": {"podIP": "10.0.0.7"},
        });
        let pod = serde_json::from_value(pod).expect("a pod");
        serin::metrics::scrape::endpoint(&pod, None, 8080).expect("an endpoint").url
    };
    assert_eq!(url("https").expect("a URL"), "https://10.0.0.7:8080/metrics");
    let sentence = url("http://metadata/token?x=").expect_err("no scheme").to_string();
    assert_eq!(sentence, "the annotation prometheus.io/scheme of pod web-1 is neither http nor https");
}

#[tokio::test]
async fn the_query_of_an_address_is_not_shown() {
    let receiver = Receiver::start([answer(403, "")]).await;
    let address = format!("{}?key=s3cret", receiver.url);
    let provider = json!({"type": "web", "address": address});
    let ask = templated(json!({"provider": provider, "query": "&a=b"}), &canary("shop"), None);
    let why = unavailable(measure_since(&sources(), &ask.expect("a query"), Timestamp::now()).await);
    assert!(why.contains("responded 403") && !why.contains("s3cret"), "{why}");
}

#[test]
fn the_controllers_server_gets_its_credentials_and_no_other_does() {
    let server = "http://platform:9090";
    let access = ServerAccess {
        address: Some(server.to_owned()),
        secret: Some(SecretName { namespace: "serin".to_owned(), name: "prometheus".to_owned() }),
        headers: [("X-Scope-OrgID".to_owned(), vec!["shop".to_owned()])].into(),
    };
    let has_access = |mut query: MetricQuery| {
        access.apply(&mut query);
        query.secret == access.secret && query.provider.headers == access.headers
    };
    let of = |provider: Value, canary: &Canary| {
        templated(json!({"provider": provider, "query": "up"}), canary, Some(server)).expect("a query")
    };
    let mut own = canary("shop");
    own.spec.metrics_server = Some("http://tenant:9090".to_owned());
    let shared = canary("shop");
    assert!(has_access(built_in("shop", "request-duration", JudgeType::Sequential, Some(server))));
    assert!(has_access(of(json!({"type": "prometheus"}), &shared)));
    assert!(!has_access(of(json!({"type": "prometheus"}), &own)), "another server");
    for abused in [
        json!({"type": "prometheus", "headers": {"X-Scope-OrgID": ["other"]}}),
        json!({"type": "prometheus", "secretRef": {"name": "own"}}),
        json!({"type": "prometheus", "insecureSkipVerify": true}),
        json!({"type": "web", "address": server}),
    ] {
        assert!(!has_access(of(abused.clone(), &shared)), "{abused}");
    }
}

#[tokio::test]
async fn an_address_may_have_a_path_and_end_in_a_slash() {
    for (path, expected) in
        [("", ""), ("/", ""), ("/prometheus", "/prometheus"), ("/prometheus//", "/prometheus")]
    {
        let receiver = Receiver::start([answer(500, "")]).await;
        let address = receiver.url.replace("/hook", path);
        let provider = json!({"type": "prometheus", "address": address});
        let ask = templated(json!({"provider": provider, "query": "up"}), &canary("shop"), None);
        measure_since(&sources(), &ask.expect("a query"), Timestamp::now()).await;
        assert_eq!(receiver.received()[0].uri.path(), format!("{expected}/api/v1/query"), "{path}");
    }
}
