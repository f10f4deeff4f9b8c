//! What is fuzzed, each behind the function that the controller calls.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use axum::body::Bytes;
use jiff::Timestamp;
use kube::core::ObjectMeta;
use parking_lot::Mutex;
use serde_json::{Value, json};
use serin::analysis::mann_whitney::{self, MannWhitney};
use serin::analysis::measurement::{Arms, Measurement};
use serin::analysis::sample_ratio::{SampleRatioState, SampleRatioTest, Tolerance};
use serin::analysis::sequential::{self, Evidence, Look, Sequential, WorseValues};
use serin::api::canary::{Metric, Phase, Provider, Webhook};
use serin::api::judge::JudgeType;
use serin::api::{AnalysisTemplateSpec, Canary, CanarySpec};
use serin::engine::Plan;
use serin::gates::annotations::{APPROVALS, COMMANDS, answers, commands, malformed};
use serin::gates::webhook::{HookContext, Webhooks};
use serin::metrics::scrape::{Fetch, HttpFetch};
use serin::metrics::{
    Credentials, Endpoint, MeasureContext, MetricQuery, QueryContext, Sources, Template, Window,
};
use tokio::runtime::Runtime;
use tokio_util::task::AbortOnDropHandle;

use crate::input::Corpus;
use crate::{cbor, fuzz};

fn canary() -> Canary {
    serde_json::from_value(json!({
        "apiVersion": "serin.dev/v1alpha1", "kind": "Canary", "metadata": {"name": "web", "namespace": "shop", "uid": "mine"},
        "spec": {
            "targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
            "service": {"port": 80},
            "analysis": {"interval": "10s", "threshold": 1, "stepWeight": 10},
        },
    }))
    .expect("a Canary")
}

/// A metric by this template.
fn query(spec: Value, judge: JudgeType) -> MetricQuery {
    let spec: AnalysisTemplateSpec = serde_json::from_value(spec).expect("the spec of an AnalysisTemplate");
    let canary = canary();
    let context =
        QueryContext { versions: None, canary: &canary, mesh: Provider::Kubernetes, metrics_server: None };
    let template = Template { name: "errors", namespace: "shop", spec: &spec };
    let metric = Metric { name: "errors".to_owned(), ..Metric::default() };
    MetricQuery::new(&context, &metric, Some(&template), judge).expect("a query")
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

/// A server on loopback that responds what is set.
struct Answers {
    url: String,
    body: Arc<Mutex<Vec<u8>>>,
    _task: AbortOnDropHandle<()>,
}

impl Answers {
    async fn start(headers: &'static [(&'static str, &'static str)]) -> Answers {
        let body = Arc::new(Mutex::new(Vec::new()));
        let answer = {
            let body = Arc::clone(&body);
            async move || {
                let mut response = http::Response::builder();
                for (name, value) in headers {
                    response = response.header(*name, *value);
                }
                response.body(axum::body::Body::from(body.lock().clone())).expect("a response")
            }
        };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let app = axum::Router::new().fallback(answer);
        let serve = async move { axum::serve(listener, app).await.expect("a server") };
        Answers { url, body, _task: AbortOnDropHandle::new(tokio::spawn(serve)) }
    }
}

/// Measures by these queries what a server responds.
fn fuzz_answers(
    name: &str,
    corpus: &Corpus,
    headers: &'static [(&'static str, &'static str)],
    queries: impl Fn(&str) -> Vec<MetricQuery>,
) {
    let runtime = runtime();
    let server = runtime.block_on(Answers::start(headers));
    let queries = queries(&server.url);
    let sources = {
        let _within = runtime.enter();
        Sources::new(Arc::new(HttpFetch::new().expect("an HTTP client")))
    };
    let keys =
        Credentials::from_iter([("aws_access_key_id", "AKIATEST"), ("aws_secret_access_key", "s3cret")]);
    let window = Window {
        since: Timestamp::from_second(1_700_000_040).expect("a time"),
        until: Timestamp::from_second(1_700_000_340).expect("a time"),
    };
    fuzz(name, corpus, |input| {
        *server.body.lock() = input.to_vec();
        for query in &queries {
            let context = MeasureContext { window, pods: &Default::default() };
            let credentials = name.starts_with("CloudWatch").then_some(&keys);
            // Any measurement is right that is none of a panic.
            let _ = runtime.block_on(sources.measure(query, credentials, &context));
        }
    });
}

#[test]
fn exposition_text() {
    struct Page(Mutex<Bytes>);

    #[async_trait]
    impl Fetch for Page {
        async fn fetch(&self, _: &str, _: usize) -> Result<Bytes, String> {
            Ok(self.0.lock().clone())
        }
    }

    let page = Arc::new(Page(Mutex::default()));
    let runtime = runtime();
    let sources = Sources::new(Arc::clone(&page) as Arc<dyn Fetch>);
    let scrape = json!({"type": "scrape"});
    let queries = [
        query(json!({"provider": scrape, "query": "http_requests_total"}), JudgeType::Threshold),
        query(
            json!({"provider": scrape, "counts": {"bad": "http_requests_total{status=~\"5..\"}", "total": "http_requests_total"}}),
            JudgeType::Sequential,
        ),
        query(
            json!({"provider": scrape, "histogram": "http_request_duration_seconds_bucket"}),
            JudgeType::Sequential,
        ),
    ];
    let endpoint = |pod: &str| {
        vec![Endpoint { pod: pod.to_owned(), name: pod.to_owned(), url: Ok(format!("http://{pod}/metrics")) }]
    };
    let pods = Arms { canary: endpoint("a"), primary: endpoint("b") };
    let seed = r#"# HELP http_requests_total Requests.
# TYPE http_requests_total counter
http_requests_total{status="200",path="/"} 1027 1395066363000
http_requests_total{status="503",path="/a\"b\\c\n"} 3
# TYPE http_request_duration_seconds histogram
http_request_duration_seconds_bucket{status="200",le="0.1"} 33
http_request_duration_seconds_bucket{status="200",le="1"} 40 # {trace_id="x y"} 0.67 1.5
http_request_duration_seconds_bucket{status="200",le="+Inf"} 44
http_request_duration_seconds_sum 53.4
http_request_duration_seconds_count 44
# TYPE go_gc summary
go_gc{quantile="0.5"} 4.8e-05
up 1
"#;
    let words = [
        "# TYPE http_requests_total gauge\n",
        "http_requests_total",
        "le=\"0.5\"",
        "{",
        "}",
        ",",
        "=",
        " 1e308\n",
        "_bucket",
        "le=\"NaN\"",
        "le=\"-1\"",
        "status=\"5",
        " NaN\n",
        " -7\n",
        "} 18446744073709551616\n",
    ];
    let corpus = Corpus::new([seed.as_bytes()], words);
    let mut now = 1_700_000_000;
    fuzz("exposition text", &corpus, |input| {
        *page.0.lock() = input.to_vec().into();
        now += 10;
        let [since, until] = [now - 10, now].map(|at| Timestamp::from_second(at).expect("a time"));
        let context = MeasureContext { window: Window { since, until }, pods: &pods };
        for query in &queries {
            let _ = runtime.block_on(sources.measure(query, None, &context));
        }
    });
}

#[test]
fn prometheus_answers() {
    let vector = r#"{"status":"success","data":{"resultType":"vector","result":[{"metric":{"pod":"web-1","le":"0.5"},"value":[1700000000.123,"12.5"]},{"metric":{"pod":"web-primary-2","le":"+Inf"},"value":[1700000000.123,"NaN"]}]}}"#;
    let matrix = r#"{"status":"success","data":{"resultType":"matrix","result":[{"metric":{"pod":"web-1","le":"0.1","__name__":"hits"},"values":[[1700000040,"1"],[1700000055,"7"],[1700000070,"3"]]},{"metric":{"pod":"web-2","le":"+Inf"},"values":[[1700000040,"9"],[1700000300,"1e3"]]}]},"warnings":["w"]}"#;
    let scalar = r#"{"status":"success","data":{"resultType":"scalar","result":[1700000000,"1"]}}"#;
    let error = r#"{"status":"error","errorType":"bad_data","error":"parse error at char 7"}"#;
    let native = r#"{"status":"success","data":{"resultType":"vector","result":[{"metric":{},"histogram":[1700000000,{"count":"3","sum":"1","buckets":[[0,"1","2","3"]]}]}]}}"#;
    let seeds = [vector, matrix, scalar, error, native].map(str::as_bytes);
    let words = [
        "\"vector\"",
        "\"matrix\"",
        "\"scalar\"",
        "\"string\"",
        "\"value\":",
        "\"values\":",
        "\"le\":\"0.2\",",
        "[1700000100,\"5\"],",
        "\"-Inf\"",
        "\"pod\":",
        ",",
        ":",
        "\"status\":\"error\",",
    ];
    fuzz_answers(
        "Prometheus answers",
        &Corpus::new(seeds, words),
        &[("content-type", "application/json")],
        |url| {
            let provider = json!({"type": "prometheus", "address": url});
            let total = "hits{app=\"{{ target }}\"}";
            vec![
                query(json!({"provider": provider, "query": "up"}), JudgeType::Threshold),
                query(
                    json!({"provider": provider, "counts": {"bad": total, "total": total}}),
                    JudgeType::Sequential,
                ),
                query(json!({"provider": provider, "histogram": total}), JudgeType::Sequential),
                query(json!({"provider": provider, "query": total}), JudgeType::MannWhitney),
            ]
        },
    );
}

#[test]
fn web_answers() {
    let seed = br#"{"data":[{"value":"1.5","more":{"a/b":null}},{"value":[]}],"score":7.25}"#;
    let words = ["\"data\":", "\"value\":", "[", "{", ",", "1e400", "\"1e400\"", "\"more\":"];
    fuzz_answers(
        "web answers",
        &Corpus::new([&seed[..]], words),
        &[("content-type", "application/json")],
        |url| {
            let at = |pointer: &str| {
                let provider = json!({"type": "web", "address": url, "web": {"valueAt": pointer}});
                query(
                    json!({"provider": provider, "query": format!("/score{pointer}")}),
                    JudgeType::Threshold,
                )
            };
            ["/data/0/value", "/score", ""].map(at).into()
        },
    );
}

#[cfg(feature = "aws")]
#[test]
fn cloudwatch_answers() {
    let result = |id: &str, values: Value| {
        json!({"Id": id, "Label": "l", "Timestamps": [1_700_000_040, 1_700_000_100], "Values": values,
            "StatusCode": "Complete"})
    };
    let ids = ["m", "canary_total", "primary_total", "canary_part", "primary_part", "q0", "e1"];
    let results: Vec<Value> = ids.iter().map(|id| result(id, json!([1.5, 7.0]))).collect();
    let good = cbor::encode(&json!({"MetricDataResults": results, "NextToken": null, "Messages": []}));
    let paged = cbor::encode(&json!({"MetricDataResults": [result("m", json!([3.0]))], "NextToken": "more"}));
    let words = [
        "\u{1}",
        "Values",
        "Timestamps",
        "StatusCode",
        "PartialData",
        "MetricDataResults",
        "NextToken",
        "Id",
    ];
    let mut corpus = Corpus::new([&good[..], &paged[..]], words);
    // Lengths, indefinite ones, tags and floats of CBOR.
    corpus.words.extend(
        [
            &b"\x9b\xff\xff\xff\xff\xff\xff\xff\xff"[..],
            b"\xbf",
            b"\x9f",
            b"\xff",
            b"\xc1",
            b"\xfb\x7f\xf0\0\0\0\0\0\0",
            b"\x5b\x7f\xff\xff\xff\xff\xff\xff\xff",
        ]
        .map(<[u8]>::to_vec),
    );
    let headers = &[("content-type", "application/cbor"), ("smithy-protocol", "rpc-v2-cbor")];
    fuzz_answers("CloudWatch answers", &corpus, headers, |url| {
        let provider = json!({"type": "cloudwatch", "region": "eu-west-1", "address": url, "secretRef": {"name": "keys"}});
        let metrics = json!({"namespace": "shop", "metrics": {"m": {"name": "M"}}});
        vec![query(json!({"provider": provider, "query": "m", "cloudwatch": metrics}), JudgeType::Threshold)]
    });
}

#[test]
fn templates() {
    let seeds = [
        "sum(rate(hits{namespace=\"{{ namespace }}\",pod=~\"{{ target }}-[a-z]+\"}[{{ interval }}])) / 2",
        "{{ if eq arm \"canary\" }}{{ variables.a }}{{ else }}{{ printf \"%s-%d\" target 7 }}{{ end }}",
        "hits{a=~\"x|y\",b!=\"{{ index variables \"a\" }}\"} or other{}",
    ];
    let words = [
        "{{",
        "}}",
        "{%",
        "%}",
        "{#",
        "if ",
        "else",
        "end",
        "printf ",
        "\"%9999999s\"",
        "index ",
        "variables",
        ".a",
        "target",
        "(x{1000}){1000}",
        "=~\"",
        "or",
        "|",
        "* 99999",
        "[1]",
        "(",
        ")",
        "~",
    ];
    let canary = canary();
    fuzz("templates", &Corpus::new(seeds.map(str::as_bytes), words), |input| {
        let text = String::from_utf8_lossy(input);
        for provider in [json!({"type": "prometheus", "address": "http://p:9090"}), json!({"type": "scrape"})]
        {
            let spec = json!({"provider": provider, "query": text, "variables": {"a": text}});
            let Ok(spec) = serde_json::from_value::<AnalysisTemplateSpec>(spec) else { continue };
            let context = QueryContext {
                versions: None,
                canary: &canary,
                mesh: Provider::Kubernetes,
                metrics_server: None,
            };
            let template = Template { name: "errors", namespace: "shop", spec: &spec };
            let metric = Metric { name: "errors".to_owned(), ..Metric::default() };
            let _ = MetricQuery::new(&context, &metric, Some(&template), JudgeType::Threshold);
        }
    });
}

#[test]
fn annotations() {
    let seeds = [
        r#"[{"uid":"mine","release":3,"gate":"go","answer":"yes","by":"ann","at":"2030-01-01T00:00:00Z","reason":"r"}]"#,
        r#"[{"uid":"mine","id":"1","verb":"abort","by":"bob","at":"1970-01-01T00:00:00Z"},{"id":"2","verb":"promote"}]"#,
    ];
    let words = [
        "\"release\":",
        "\"answer\":",
        "\"no\"",
        "\"at\":",
        "\"9999-12-31T23:59:60Z\"",
        "\"verb\":\"rollback\"",
        ",",
        "{}",
        "7",
    ];
    fuzz("annotations", &Corpus::new(seeds.map(str::as_bytes), words), |input| {
        let text = String::from_utf8_lossy(input).into_owned();
        let annotations = [APPROVALS, COMMANDS].map(|name| (name.to_owned(), text.clone()));
        let metadata = ObjectMeta { annotations: Some(annotations.into()), ..canary().metadata };
        let canary = Canary { metadata, ..canary() };
        let _ = (answers(&canary), commands(&canary));
        for error in malformed(&canary) {
            let _ = error.to_string();
        }
    });
}

/// The looks at metrics, as sources return them, and their counts as they please.
#[test]
fn measurements() {
    let buckets =
        |scale: u64| (1..=24).map(|bound: u64| (bound.pow(3), bound * scale)).collect::<BTreeMap<_, _>>();
    let histogram = |scale: u64| json!({"buckets": buckets(scale), "total": 25 * scale});
    let pods = |of: Value| json!({"web-1": of, "web-2": of, "web-3": of});
    let counts = |bad: u64, total: u64| json!({"bad": bad, "total": total});
    let arms = |canary: Value, primary: Value| json!({"canary": canary, "primary": primary});
    let seeds = [
        json!([{"counts": arms(counts(3, 100), counts(40, 9_000))}, {"counts": arms(counts(90, 100), counts(40, 9_000))}]),
        json!([{"podCounts": arms(pods(counts(9, 100)), pods(counts(1, 900)))}, "noData"]),
        json!([{"histogram": arms(histogram(100), histogram(2_000))}, {"histogram": arms(histogram(70), histogram(2_000))}]),
        json!([{"podHistograms": arms(pods(histogram(10)), pods(histogram(90)))}, {"podHistograms": arms(pods(histogram(10)), pods(histogram(90)))}]),
        json!([{"values": arms(json!({"histogram": histogram(9), "requests": 900}), json!({"histogram": histogram(70), "requests": null}))}]),
        json!([{"samples": arms(json!(vec![1.5; 60]), json!(vec![2.5; 60]))}, {"scalar": 0.5}, {"unavailable": {"why": "503"}}]),
    ]
    .map(|looks| looks.to_string());
    let words = [
        "{\"bad\":7,\"total\":1000000000000}",
        "{\"bad\":9223372036854775808,\"total\":18446744073709551615}",
        "999983",
        "1000000000000000",
        "\"13\":500000,",
        "\"web-4\":",
        "1.5,",
        ",",
        ":",
    ];
    let values = sequential::Settings { worse_values: Some(WorseValues::Higher), ..Default::default() };
    let sequential = [sequential::Settings::default(), values]
        .map(|settings| Sequential::try_from(settings).expect("settings"));
    let ranks = MannWhitney::try_from(mann_whitney::Settings::default()).expect("settings");
    fuzz("measurements", &Corpus::new(seeds.iter().map(|seed| seed.as_bytes()), words), |input| {
        let Ok(looks) = serde_json::from_slice::<Vec<Measurement>>(input) else { return };
        // One look is what the loop does at a time; two show a state.
        let looks = &looks[..looks.len().min(2)];
        for judge in &sequential {
            let mut evidence = Evidence::default();
            for (at, look) in (1..).zip(looks) {
                let look_at = Look { until: at, known_until: at, full: true, ..Look::default() };
                judge.check_at(&mut evidence, look, look_at);
                let stored = serde_json::to_string(&evidence).expect("JSON");
                evidence = serde_json::from_str(&stored).expect("the evidence that was stored");
            }
        }
        let mut split = SampleRatioState::default();
        for look in looks {
            ranks.check(look);
            if let Measurement::Counts(arms) = look.clone().summed() {
                let requests = (arms.map(|counts| counts.total()), Duration::from_secs(10));
                SampleRatioTest::default().check(&mut split, 0.05, requests, Tolerance::default());
            }
        }
    });
}

#[test]
fn webhook_answers() {
    // The response as a whole, head and body.
    let seeds = [
        "HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok",
        "HTTP/1.1 503 Service Unavailable\r\nretry-after: 0\r\ncontent-length: 0\r\nconnection: close\r\n\r\n",
        "HTTP/1.1 302 Found\r\nlocation: http://169.254.169.254/\r\nconnection: close\r\n\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n2\r\nok\r\n0\r\n\r\n",
    ];
    let words = [
        "429",
        "500",
        "204",
        "retry-after: 99999999999\r\n",
        "retry-after: Wed, 21 Oct 2099 07:28:00 GMT\r\n",
        "\r\n",
        "content-length: 99999999999\r\n",
        "ffffffffffffffff\r\n",
        "HTTP/1.0 ",
        "HTTP/9.9 ",
    ];
    let runtime = runtime();
    let answer = Arc::new(Mutex::new(Vec::new()));
    let (url, _server) = runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}/", listener.local_addr().expect("an address"));
        let answer = Arc::clone(&answer);
        let serve = async move {
            use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
            loop {
                let Ok((mut stream, _)) = listener.accept().await else { return };
                let answer = answer.lock().clone();
                tokio::spawn(async move {
                    let _ = stream.read(&mut [0; 4096]).await;
                    let _ = stream.write_all(&answer).await;
                    let _ = stream.shutdown().await;
                });
            }
        };
        (url, AbortOnDropHandle::new(tokio::spawn(serve)))
    });
    serin::tls::install_crypto_provider();
    let webhooks = Webhooks::new(&Default::default()).expect("a client");
    let timeout = Some("300ms".parse().expect("a duration"));
    let hook = Webhook { name: "gate".to_owned(), url, timeout, ..Webhook::default() };
    let context = HookContext {
        name: "web".to_owned(),
        namespace: "shop".to_owned(),
        phase: Phase::Progressing,
        checksum: "1-abc".to_owned(),
    };
    fuzz("webhook answers", &Corpus::new(seeds.map(str::as_bytes), words), |input| {
        *answer.lock() = input.to_vec();
        let _ = runtime.block_on(webhooks.call_gate(&hook, &context, None));
    });
}

#[test]
fn canary_specs() {
    let seeds = [
        json!(canary().spec).to_string(),
        json!({
            "targetRef": {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "web"}, "provider": "istio",
            "progressDeadlineSeconds": 60, "suspend": false,
            "service": {"port": 80, "hosts": ["a"], "match": [{"uri": {"prefix": "/"}}], "timeout": "5s", "retries": {"attempts": 3}},
            "analysis": {
                "interval": "30s", "threshold": 3, "maxWeight": 50, "stepWeights": [1, 5, 50], "mirror": true,
                "match": [{"headers": {"x": {"regex": "a.*"}}}], "sessionAffinity": {"cookieName": "c", "maxAge": 9},
                "metrics": [{"name": "request-success-rate", "thresholdRange": {"min": 99}, "interval": "1m"}],
                "webhooks": [{"name": "gate", "type": "confirm-rollout", "url": "http://gate/", "timeout": "5s"}],
            },
            "releaseWindows": [{"schedule": "0 9 * * MON-FRI", "duration": "8h", "timeZone": "Europe/Berlin", "kind": "freeze"}],
        })
        .to_string(),
        json!({
            "targetRef": {"apiVersion": "v1", "kind": "Service", "name": "web"}, "provider": "kubernetes",
            "service": {"port": 80},
            "analysis": {"steps": [{"weight": 5, "pause": "10m"}, {"approval": {}}, {"weight": 100, "match": []}]},
        })
        .to_string(),
    ];
    let words = [
        "\"999999h\"",
        "\"0s\"",
        "\"1ns\"",
        "[0]",
        "[100, 1]",
        "\"steps\":",
        "\"stepWeights\":",
        "\"iterations\":7,",
        "\"* * * * * *\"",
        "\"0 0 29 2 *\"",
        "\"0 0 31 2 *\"",
        "\"timeZone\":\"Mars/One\",",
        "\"metrics\":[{}],",
        ",",
        "\"weight\":0.0001,",
        "\"pause\":{},",
        "\"duration\":\"8760h\",",
    ];
    let corpus = Corpus::new(seeds.iter().map(|seed| seed.as_bytes()), words);
    fuzz("Canary specs", &corpus, |input| {
        let Ok(spec) = serde_json::from_slice::<CanarySpec>(input) else { return };
        if let Ok(plan) = Plan::new(&spec, |_| None) {
            let _ = plan.windows.check(Timestamp::from_second(1_700_000_000).expect("a time"));
        }
    });
}
