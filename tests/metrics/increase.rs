//! The increase within a window, across counter resets and failed scrapes.

use serin::analysis::measurement::{Counts, Histogram, Values};

use super::*;
use crate::support::http_fixtures::App;
use crate::support::prometheus::Prometheus;

/// Counters as an application shows them.
fn hits(canary: u64, canary_bad: u64, primary: u64) -> String {
    format!(
        "# TYPE hits_total counter\n\
         hits_total{{app=\"web\",code=\"200\"}} {}\n\
         hits_total{{app=\"web\",code=\"500\"}} {canary_bad}\n\
         hits_total{{app=\"web-primary\",code=\"200\"}} {primary}\n",
        canary - canary_bad
    )
}

async fn watched(app: &App) -> Prometheus {
    Prometheus::start(&format!("- {{job_name: app, static_configs: [{{targets: ['{}']}}]}}", app.address))
        .await
}

async fn await_hits(server: &str, expected: u64) {
    await_value(server, "sum(hits_total)", expected as f64).await;
}

fn counted(server: &str) -> MetricQuery {
    let spec = template(json!({
        "provider": {"type": "prometheus"},
        "counts": {
            "bad": r#"sum(hits_total{app="{{ target }}",code=~"5.."})"#,
            "total": r#"sum(hits_total{app="{{ target }}"})"#,
        },
    }));
    from_template(&spec, JudgeType::Sequential, Some(server)).expect("counts of both arms")
}

fn counts(canary: Counts, primary: Counts) -> Measurement {
    Measurement::Counts(Arms { canary, primary })
}

#[tokio::test]
async fn a_reset_or_a_failed_scrape_adds_nothing_that_was_not_served() {
    let app = App::start().await;
    app.show(&hits(1000, 100, 9000));
    let prometheus = watched(&app).await;
    let server = prometheus.url();
    await_hits(&server, 10_000).await;
    let (sources, ask) = (sources(), counted(&server));

    let since = Timestamp::now();
    app.show(&hits(4, 1, 9010));
    await_hits(&server, 9014).await;
    let measured = measure_since(&sources, &ask, since).await;
    assert_eq!(measured, counts(Counts::of_bad(1, 4), Counts::of_bad(0, 10)), "after a reset");

    // While a scrape fails, Prometheus forgets the series; the window begins then.
    app.fail();
    await_value(&server, "up", 0.0).await;
    let since = Timestamp::now();
    app.show(&hits(24, 3, 9110));
    await_hits(&server, 9134).await;
    let measured = measure_since(&sources, &ask, since).await;
    assert_eq!(measured, counts(Counts::of_bad(2, 20), Counts::of_bad(0, 100)), "after a failed scrape");
}

#[tokio::test]
async fn a_prometheus_that_saw_nothing_before_the_window_has_no_data_for_it() {
    let app = App::start().await;
    let prometheus = watched(&app).await;
    let server = prometheus.url();
    await_value(&server, "up", 0.0).await;
    let (sources, ask) = (sources(), counted(&server));
    let since = Timestamp::now();
    app.show(&hits(1000, 100, 9000));
    await_hits(&server, 10_000).await;
    assert_eq!(measure_since(&sources, &ask, since).await, Measurement::NoData);

    let since = Timestamp::now();
    app.show(&hits(1010, 100, 9000));
    await_hits(&server, 10_010).await;
    let measured = measure_since(&sources, &ask, since).await;
    assert_eq!(measured, counts(Counts::of_bad(0, 10), Counts::of_bad(0, 0)));
}

#[tokio::test]
async fn prometheus_killed_is_unavailable_and_once_back_nothing_is_lost() {
    let app = App::start().await;
    app.show(&hits(100, 0, 900));
    let mut prometheus = watched(&app).await;
    let server = prometheus.url();
    await_hits(&server, 1000).await;
    let (sources, ask) = (sources(), counted(&server));
    let since = Timestamp::now();
    app.show(&hits(110, 1, 900));
    await_hits(&server, 1010).await;

    prometheus.stop();
    let why = unavailable(measure_since(&sources, &ask, since).await);
    assert!(why.contains("cannot be reached") && why.contains("127.0.0.1"), "{why}");

    app.show(&hits(150, 5, 1000));
    prometheus.restart().await;
    await_hits(&server, 1150).await;
    let measured = measure_since(&sources, &ask, since).await;
    assert_eq!(measured, counts(Counts::of_bad(5, 50), Counts::of_bad(0, 100)));
}

#[tokio::test]
async fn expressions_other_than_counters_are_measured_by_increase() {
    let app = App::start().await;
    app.show(&hits(100, 10, 900));
    let prometheus = watched(&app).await;
    let server = prometheus.url();
    await_hits(&server, 1000).await;
    let spec = template(json!({
        "provider": {"type": "prometheus"},
        "counts": {
            "good": r#"sum(hits_total{app="{{ target }}"}) - sum(hits_total{app="{{ target }}",code="500"} or vector(0))"#,
            "total": r#"sum(hits_total{app="{{ target }}",code="200"}) + sum(hits_total{app="{{ target }}",code="500"} or vector(0))"#,
        },
    }));
    let ask = from_template(&spec, JudgeType::Sequential, Some(&server)).expect("counts of both arms");
    // They are followed at steps of five seconds.
    tokio::time::sleep(Duration::from_secs(6)).await;
    let since = Timestamp::now();
    app.show(&hits(130, 12, 950));
    await_hits(&server, 1080).await;
    tokio::time::sleep(Duration::from_secs(6)).await;
    let measured = measure_since(&sources(), &ask, since).await;
    assert_eq!(measured, counts(Counts::of_bad(2, 30), Counts::of_bad(0, 50)));
}

/// What the requests of each arm order, cumulative within 10 and 50, and all of them.
fn orders(arms: [(&str, [u64; 3], u64); 2]) -> String {
    let arm = |(app, [ten, fifty, all], requests): (&str, [u64; 3], u64)| {
        format!(
            "order_value_bucket{{app=\"{app}\",le=\"10\"}} {ten}\n\
             order_value_bucket{{app=\"{app}\",le=\"50\"}} {fifty}\n\
             order_value_bucket{{app=\"{app}\",le=\"+Inf\"}} {all}\n\
             hits_total{{app=\"{app}\",code=\"200\"}} {requests}\n"
        )
    };
    arms.map(arm).concat()
}

#[tokio::test]
async fn values_are_the_increase_of_their_histogram_and_of_all_requests() {
    let app = App::start().await;
    app.show(&orders([("web", [5, 8, 9], 100), ("web-primary", [50, 80, 90], 900)]));
    let prometheus = watched(&app).await;
    let server = prometheus.url();
    await_hits(&server, 1000).await;
    let ask = |total: Option<&str>| {
        let spec = template(json!({
            "provider": {"type": "prometheus"}, "direction": "decrease",
            "values": {"histogram": r#"sum by (le) (order_value_bucket{app="{{ target }}"})"#, "total": total},
        }));
        from_template(&spec, JudgeType::Sequential, Some(&server)).expect("values of both arms")
    };
    let (revenue, orders_only) = (ask(Some(r#"sum(hits_total{app="{{ target }}"})"#)), ask(None));
    let since = Timestamp::now();
    app.show(&orders([("web", [6, 10, 12], 200), ("web-primary", [70, 110, 130], 1900)]));
    await_hits(&server, 2100).await;
    let values = |[ten, fifty, all]: [u64; 3], requests| Values {
        histogram: Histogram::cumulative([(10.0, ten), (50.0, fifty), (f64::INFINITY, all)])
            .expect("buckets"),
        requests,
    };
    let expected = |canary, primary| {
        Measurement::Values(Arms {
            canary: values([1, 2, 3], canary),
            primary: values([20, 30, 40], primary),
        })
    };
    let sources = sources();
    assert_eq!(measure_since(&sources, &revenue, since).await, expected(Some(100), Some(1000)));
    assert_eq!(measure_since(&sources, &orders_only, since).await, expected(None, None));
}

#[tokio::test]
async fn a_response_is_one_number_or_no_data() {
    let app = App::start().await;
    app.show(&hits(100, 10, 900));
    let prometheus = watched(&app).await;
    let server = prometheus.url();
    await_hits(&server, 1000).await;
    let sources = sources();
    let ask = async |query: &str| {
        let spec = template(json!({"provider": {"type": "prometheus", "address": server}, "query": query}));
        let ask = from_template(&spec, JudgeType::Threshold, None).expect("a query");
        measure_since(&sources, &ask, Timestamp::now()).await
    };
    assert_eq!(ask(r#"sum(hits_total{app="{{ target }}"})"#).await, Measurement::Scalar(100.0));
    assert_eq!(ask("42").await, Measurement::Scalar(42.0));
    assert_eq!(ask("sum(nothing_of_the_kind)").await, Measurement::NoData);
    assert_eq!(ask("vector(0) / vector(0)").await, Measurement::NoData);
    let why = unavailable(ask("hits_total").await);
    assert!(
        why.contains(
            "returned 3 values where one was expected, which differ in app, code; sum them in the query"
        ),
        "{why}"
    );
    let why = unavailable(ask("sum(").await);
    assert!(why.contains("refused the query") && why.contains("parse error"), "{why}");
    let why = unavailable(ask("hits_total[1m]").await);
    assert!(why.contains("a range of values"), "{why}");
}
