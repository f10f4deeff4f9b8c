//! Scraping pods without Prometheus.

use async_trait::async_trait;
use axum::body::Body;
use bytes::Bytes;
use http_body_util::BodyExt;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, PostParams};
use kube_local::node::Node;
use kube_local::{ApiServer, Options};
use serin::analysis::measurement::{Counts, Histogram, PodCounts};
use serin::metrics::MetricKey;
use serin::metrics::scrape::{Fetch, endpoint};

use super::*;
use crate::pods::{CANARY_POD, PRIMARY_POD, Pods, cluster};
use crate::support::http_fixtures::App;

fn endpoints(pods: &[&Pod]) -> Vec<Endpoint> {
    pods.iter().map(|pod| endpoint(pod, None, 8080).expect("a pod with an address")).collect()
}

fn at(url: String, pod: &str) -> Vec<Endpoint> {
    vec![Endpoint { pod: pod.to_owned(), name: pod.to_owned(), url: Ok(url) }]
}

/// A window opens.
async fn open_window(sources: &Sources, asks: &[&MetricQuery], pods: &Arms<Vec<Endpoint>>) -> Timestamp {
    let now = Timestamp::now();
    let window = Window { since: now, until: now };
    for ask in asks {
        sources.open_window(ask, &MeasureContext { window, pods }).await;
    }
    now
}

fn counts(canary: Counts, primary: Counts) -> Measurement {
    Measurement::Counts(Arms { canary, primary })
}

#[tokio::test]
async fn requests_and_durations_are_what_the_pods_served() {
    let namespace = cluster().await.namespace("scraped").await;
    let pods = Pods::new(&namespace).await;
    let (canary, primary) = (pods.start(CANARY_POD).await, pods.start(PRIMARY_POD).await);
    pods.send(&canary, "/", 3).await;
    pods.send(&primary, "/status/500", 40).await;
    let arms = Arms { canary: endpoints(&[&canary]), primary: endpoints(&[&primary]) };
    let sources = sources();
    let ask = |name: &str, judge| built_in(&namespace, name, judge, None);
    let requests = ask("request-success-rate", JudgeType::Sequential);
    let durations = ask("request-duration", JudgeType::Sequential);
    let slow = MetricQuery {
        key: MetricKey { metric: "slow".to_owned(), ..durations.key.clone() },
        ..ask("request-duration", JudgeType::Threshold)
    };
    let since = open_window(&sources, &[&requests, &durations, &slow], &arms).await;

    pods.send(&canary, "/", 90).await;
    pods.send(&canary, "/status/503", 7).await;
    pods.send(&canary, "/delay/300ms", 3).await;
    pods.send(&primary, "/", 50).await;
    let look = async |ask: &MetricQuery, since| measure(&sources, ask, None, since, &arms).await;
    assert_eq!(look(&requests, since).await, counts(Counts::of_bad(7, 100), Counts::of_bad(0, 50)));
    let Measurement::PodCounts(by_pod) = measure_pods(&sources, &requests, None, since, &arms).await else {
        panic!("requests are counted by pod")
    };
    assert_eq!(by_pod.canary, PodCounts::from([(CANARY_POD.to_owned(), Counts::of_bad(7, 100))]));
    assert_eq!(by_pod.primary, PodCounts::from([(PRIMARY_POD.to_owned(), Counts::of_bad(0, 50))]));
    let middle = Timestamp::now();
    let Measurement::Histogram(found) = look(&durations, since).await else {
        panic!("durations are a histogram")
    };
    assert_eq!(found.map(Histogram::total), Arms { canary: 100, primary: 50 });
    assert_eq!(found.canary.slower_than(250_000), Some(Counts::of_bad(3, 100)));
    let Measurement::Scalar(p99) = look(&slow, since).await else { panic!("a percentile is a number") };
    assert!((250.0..500.0).contains(&p99), "{p99}");

    // Another pod comes, and one goes.
    let second = pods.start("web-7d9f8-klmno").await;
    pods.send(&second, "/status/500", 2).await;
    pods.delete(CANARY_POD).await;
    let arms = Arms { canary: endpoints(&[&second]), primary: endpoints(&[&primary]) };
    let measured = measure(&sources, &requests, None, middle, &arms).await;
    assert_eq!(measured, counts(Counts::of_bad(2, 2), Counts::of_bad(0, 0)));
}

#[tokio::test]
async fn counter_resets_and_failed_scrapes_add_no_requests() {
    let (canary, primary) = (App::start().await, App::start().await);
    let arms = Arms { canary: at(canary.url(), "c"), primary: at(primary.url(), "p") };
    let hits = |good: u32, bad: u32| {
        format!(
            "# TYPE http_requests_total counter\nhttp_requests_total{{code=\"200\"}} {good}\nhttp_requests_total{{code=\"500\"}} {bad}\n"
        )
    };
    canary.show(&hits(1000, 10));
    let sources = sources();
    let ask = built_in("shop", "request-success-rate", JudgeType::Sequential, None);
    let look = async |since| measure(&sources, &ask, None, since, &arms).await;
    // The primary cannot be scraped yet: its earlier count is unknown.
    let since = open_window(&sources, &[&ask], &arms).await;
    let why = unavailable(look(since).await);
    assert!(
        why.starts_with("no pod of the primary can be scraped: http://127.0.0.1") && why.contains("500"),
        "{why}"
    );

    primary.show(&hits(50_000, 70));
    canary.show(&hits(1010, 11));
    assert_eq!(look(since).await, counts(Counts::of_bad(1, 11), Counts::of_bad(0, 0)));
    let since = Timestamp::now();
    // One restarts, the other fails for one scrape and then catches up.
    canary.show(&hits(5, 0));
    primary.show(&hits(50_100, 70));
    assert_eq!(look(since).await, counts(Counts::of_bad(0, 5), Counts::of_bad(0, 100)));
    let since = Timestamp::now();
    primary.fail();
    unavailable(look(since).await);
    primary.show(&hits(50_300, 71));
    assert_eq!(look(since).await, counts(Counts::of_bad(0, 0), Counts::of_bad(1, 201)));
    canary.show("<html>");
    assert!(unavailable(look(since).await).contains("line 1 is not in Prometheus' text format"));
}

#[tokio::test]
async fn a_window_nobody_opened_has_no_data_and_the_next_one_has() {
    let app = App::start().await;
    let arms = Arms { canary: at(app.url(), "c"), primary: at(app.url(), "p") };
    app.show("http_requests_total{code=\"200\"} 500\n");
    let sources = sources();
    let ask = built_in("shop", "request-success-rate", JudgeType::Sequential, None);
    let since = Timestamp::now();
    assert_eq!(measure(&sources, &ask, None, since, &arms).await, Measurement::NoData);
    app.show("http_requests_total{code=\"200\"} 520\n");
    let both = Counts::of_bad(0, 20);
    assert_eq!(measure(&sources, &ask, None, since, &arms).await, counts(both, both));
    assert_eq!(measure(&sources, &ask, None, since, &arms).await, counts(both, both), "asked again");

    // A release hours later does not begin with what happened in between.
    let later = Timestamp::now() + Duration::from_secs(3600);
    let window = Window { since: later, until: later + Duration::from_secs(10) };
    app.show("http_requests_total{code=\"200\"} 99999\n");
    assert_eq!(
        sources.measure(&ask, None, &MeasureContext { window, pods: &arms }).await.summed(),
        Measurement::NoData
    );
    app.show("other_series 1\n");
    sources.forget("shop", "web");
    open_window(&sources, &[&ask], &arms).await;
    assert_eq!(measure(&sources, &ask, None, since, &arms).await, Measurement::NoData, "nothing of the kind");
}

#[tokio::test]
async fn a_template_may_query_any_series() {
    let app = App::start().await;
    let arms = Arms { canary: at(app.url(), "c"), primary: Vec::new() };
    let text = |jobs: u32| {
        format!(
            "# TYPE queue_depth gauge\nqueue_depth{{q=\"a\"}} 4\nqueue_depth{{q=\"b\"}} 2.5\njobs_total {jobs}\n"
        )
    };
    app.show(&text(10));
    let sources = sources();
    let ask = |name: &str, query: &str| {
        let spec = template(json!({"provider": {"type": "scrape"}, "query": query}));
        let mut ask = from_template(&spec, JudgeType::Threshold, None).expect("a selector");
        ask.key.metric = name.to_owned();
        ask
    };
    let (depth, jobs) = (ask("depth", "queue_depth{q=~\"a|b\"}"), ask("jobs", "jobs_total"));
    let since = open_window(&sources, &[&jobs], &arms).await;
    assert_eq!(measure(&sources, &depth, None, since, &arms).await, Measurement::Scalar(6.5));
    app.show(&text(30));
    let window = Window { since, until: since + Duration::from_secs(10) };
    let measured = sources.measure(&jobs, None, &MeasureContext { window, pods: &arms }).await;
    assert_eq!(measured, Measurement::Scalar(2.0), "jobs a second");
    assert_eq!(measure(&sources, &ask("x", "nothing"), None, since, &arms).await, Measurement::NoData);
}

#[tokio::test]
async fn values_keep_their_own_unit_and_are_counted_among_all_requests() {
    let (canary, primary) = (App::start().await, App::start().await);
    let arms = Arms { canary: at(canary.url(), "c"), primary: at(primary.url(), "p") };
    let text = |orders: u32, requests: u32| {
        format!(
            "order_ms_bucket{{le=\"10\"}} 0\norder_ms_bucket{{le=\"+Inf\"}} {orders}\nhits_total {requests}\n"
        )
    };
    canary.show(&text(4, 100));
    primary.show(&text(40, 900));
    let spec = template(json!({
        "provider": {"type": "scrape"}, "direction": "decrease",
        "values": {"histogram": "order_ms_bucket", "total": "hits_total"},
    }));
    let ask = from_template(&spec, JudgeType::Sequential, None).expect("selectors");
    let sources = sources();
    let since = open_window(&sources, &[&ask], &arms).await;
    canary.show(&text(7, 200));
    primary.show(&text(70, 1900));
    let Measurement::Values(found) = measure(&sources, &ask, None, since, &arms).await else {
        panic!("values of both arms")
    };
    assert_eq!(found.map(|arm| arm.requests), Arms { canary: Some(100), primary: Some(1000) });
    let all = found.map(|arm| arm.with_zeros().slower_than(0));
    assert_eq!(all, Arms { canary: Some(Counts::of_bad(3, 100)), primary: Some(Counts::of_bad(30, 1000)) });
    assert_eq!(found.canary.histogram.bounds().collect::<Vec<_>>(), [10_000_000], "not milliseconds");
}

/// A p99 that stays at 5 s is no growth of 0, and a growth by fractions is one.
#[tokio::test]
async fn quantiles_are_values_and_growth_is_not_rounded() {
    let app = App::start().await;
    let arms = Arms { canary: at(app.url(), "c"), primary: Vec::new() };
    let text = |cpu: f64| {
        format!(
            "# TYPE rpc_seconds summary\nrpc_seconds{{quantile=\"0.99\"}} 5\nrpc_seconds_sum 50\nrpc_seconds_count 10\n\
             # TYPE process_cpu_seconds_total counter\nprocess_cpu_seconds_total {cpu}\n"
        )
    };
    app.show(&text(12.0));
    let sources = sources();
    let ask = |name: &str, query: &str| {
        let spec = template(json!({"provider": {"type": "scrape"}, "query": query}));
        let mut ask = from_template(&spec, JudgeType::Threshold, None).expect("a selector");
        ask.key.metric = name.to_owned();
        ask
    };
    let slow = ask("slow", "rpc_seconds{quantile=\"0.99\"}");
    let (cpu, count) = (ask("cpu", "process_cpu_seconds_total"), ask("count", "rpc_seconds_count"));
    let since = open_window(&sources, &[&slow, &cpu, &count], &arms).await;
    app.show(&text(12.4));
    let window = Window { since, until: since + Duration::from_secs(5) };
    let context = MeasureContext { window, pods: &arms };
    assert_eq!(sources.measure(&slow, None, &context).await, Measurement::Scalar(5.0));
    let Measurement::Scalar(used) = sources.measure(&cpu, None, &context).await else { panic!("a rate") };
    assert!((used - 0.08).abs() < 1e-9, "{used}");
    assert_eq!(sources.measure(&count, None, &context).await, Measurement::Scalar(0.0), "a counter");
}

/// Scrapes pods that have no sockets.
struct InProcess(Node);

#[async_trait]
impl Fetch for InProcess {
    async fn fetch(&self, url: &str, _limit: usize) -> Result<Bytes, String> {
        let uri: http::Uri = url.parse().map_err(|_| "no URL".to_owned())?;
        let to = uri.authority().and_then(|to| to.as_str().parse().ok()).ok_or("no address")?;
        let request =
            http::Request::get(uri.path()).body(Body::empty()).map_err(|error| error.to_string())?;
        let response = self.0.call(to, request).await.map_err(|refused| refused.to_string())?;
        let body = response.into_body().collect().await.map_err(|error| error.to_string())?;
        Ok(body.to_bytes())
    }
}

#[tokio::test(start_paused = true)]
async fn pods_without_sockets_are_read_in_process() {
    let local = ApiServer::new(Options::default());
    let cluster = local.start_cluster(false);
    let api: Api<Pod> = Api::namespaced(local.client(), "default");
    let mut pods = Vec::new();
    for name in [CANARY_POD, PRIMARY_POD] {
        let pod = json!({
            "metadata": {"name": name},
            "spec": {"containers": [{"name": "app", "image": "app:v1", "ports": [{"containerPort": 8080}]}]},
        });
        api.create(&PostParams::default(), &serde_json::from_value(pod).expect("a pod"))
            .await
            .expect("create");
        let pod = loop {
            let pod = api.get(name).await.expect("the pod");
            match endpoint(&pod, None, 8080) {
                Some(pod) if cluster.node.call(address(&pod), request("/healthz")).await.is_ok() => {
                    break pod;
                }
                _ => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        };
        pods.push(pod);
    }
    let arms = Arms { canary: vec![pods[0].clone()], primary: vec![pods[1].clone()] };
    let sources = Sources::new(Arc::new(InProcess(cluster.node.clone())));
    let ask = built_in("default", "request-success-rate", JudgeType::Sequential, None);
    let since = open_window(&sources, &[&ask], &arms).await;
    for path in ["/", "/", "/status/500"] {
        cluster.node.call(address(&arms.canary[0]), request(path)).await.expect("the pod answers");
    }
    let measured = measure(&sources, &ask, None, since, &arms).await;
    assert_eq!(measured, counts(Counts::of_bad(1, 3), Counts::of_bad(0, 0)));
}

fn address(pod: &Endpoint) -> std::net::SocketAddr {
    let uri: http::Uri = pod.url.as_ref().expect("a URL").parse().expect("a URL");
    uri.authority().expect("an authority").as_str().parse().expect("an address")
}

fn request(path: &str) -> http::Request<Body> {
    http::Request::get(path).body(Body::empty()).expect("a request")
}
