//! Queries, and the meaning of their results.

use super::*;

/// As Flagger's users write it.
const ERROR_RATE: &str = r#"[
    {"Id": "e1", "Expression": "100 * m1 / m2", "Label": "ErrorRate"},
    {
        "Id": "m1",
        "MetricStat": {
            "Metric": {
                "Namespace": "Shop", "MetricName": "ErrorCount",
                "Dimensions": [{"Name": "appName", "Value": "{{ name }}.{{ namespace }}"}]
            },
            "Period": 60, "Stat": "Sum", "Unit": "Count"
        },
        "ReturnData": false
    },
    {
        "Id": "m2",
        "MetricStat": {
            "Metric": {
                "Namespace": "Shop", "MetricName": "RequestCount",
                "Dimensions": [{"Name": "appName", "Value": "{{ name }}.{{ namespace }}"}]
            },
            "Period": 60, "Stat": "Sum", "Unit": "Count"
        },
        "ReturnData": false
    }
]"#;

#[tokio::test]
async fn a_flagger_query_reads_the_newest_complete_period() {
    let server = Server::start().await;
    for (minute, errors) in [(0, 9.0), (1, 4.0), (2, 50.0)] {
        server.put("Shop/ErrorCount{appName=web.shop}", NOON + minute * 60 + 7, errors);
        server.put("Shop/RequestCount{appName=web.shop}", NOON + minute * 60 + 7, 150.0);
        server.put("Shop/RequestCount{appName=web.shop}", NOON + minute * 60 + 50, 50.0);
    }
    let ask = query_on_server(&server.url, json!({"query": ERROR_RATE}), JudgeType::Threshold);
    // The third minute ended less than two minutes before the end.
    assert_eq!(measure(&sources(), &ask, window(0, 5 * 60 - 1)).await, Measurement::Scalar(2.0));
    assert_eq!(measure(&sources(), &ask, window(0, 5 * 60)).await, Measurement::Scalar(25.0));
    // Data from before the window does not count, however new it is.
    assert_eq!(measure(&sources(), &ask, window(3 * 60, 9 * 60)).await, Measurement::NoData);
}

#[tokio::test]
async fn the_request_equals_that_of_the_aws_sdk() {
    let server = Server::start().await;
    let ask = query_on_server(&server.url, json!({"query": ERROR_RATE}), JudgeType::Threshold);
    measure(&sources(), &ask, window(30, 600)).await;
    let [request] = server.requests().try_into().expect("one request");
    assert_eq!(request.path, "/service/GraniteServiceVersion20100801/operation/GetMetricData");
    let header = |name: &str| request.headers[name].to_str().expect("text").to_owned();
    assert_eq!(header("content-type"), "application/cbor");
    assert_eq!(header("smithy-protocol"), "rpc-v2-cbor");
    assert_eq!((request.key.as_str(), request.region.as_str()), (KEY, "eu-west-1"));
    let sent = &request.body;
    assert_eq!(
        (sent["StartTime"].as_f64(), sent["EndTime"].as_f64()),
        (Some((NOON + 60) as f64), Some((NOON + 480) as f64))
    );
    let metric = |id: &str, name: &str| {
        json!({
            "Id": id, "ReturnData": false,
            "MetricStat": {
                "Metric": {
                    "Namespace": "Shop", "MetricName": name,
                    "Dimensions": [{"Name": "appName", "Value": "web.shop"}],
                },
                "Period": 60, "Stat": "Sum", "Unit": "Count",
            },
        })
    };
    let expected = [
        json!({"Id": "q0", "Expression": "100 * q1 / q2", "Label": "ErrorRate", "ReturnData": true}),
        metric("q1", "ErrorCount"),
        metric("q2", "RequestCount"),
    ];
    assert_eq!(request.queries().as_slice(), expected);
    assert!(!format!("{request:?}").contains("s3cret"));
}

#[tokio::test]
async fn percentiles_and_metric_math_need_no_json() {
    let server = Server::start().await;
    for n in 1..=1000 {
        server.put("shop/Latency{Group=canary}", NOON + n % 60, f64::from(n as i32) / 1000.0);
    }
    let latency = |statistic: &str| json!({"name": "Latency", "statistic": statistic});
    let spec = |query: &str| {
        json!({
            "query": query,
            "cloudwatch": {
                "namespace": "shop", "dimensions": {"Group": "{{ arm }}"},
                "metrics": {"p99": latency("p99"), "p50": latency("p50"), "most": latency("Maximum")},
            },
        })
    };
    for (query, expected) in [("p99", 0.99), ("p50", 0.5), ("1000 * p99", 990.0), ("(most - p50) * 2", 1.0)] {
        let ask = query_on_server(&server.url, spec(query), JudgeType::Threshold);
        let Measurement::Scalar(value) = measure(&sources(), &ask, window(0, 600)).await else {
            panic!("{query} has no value")
        };
        assert!((value - expected).abs() < 1e-9, "{query}: {value}");
    }
}

#[tokio::test]
async fn counts_are_of_the_window_and_windows_that_touch_count_nothing_twice() {
    let server = Server::start().await;
    // A request of each arm a second; one in ten of the canary's is bad.
    for second in -600..1800 {
        server.put("shop/Requests{Group=canary}", NOON + second, 1.0);
        server.put("shop/Requests{Group=primary}", NOON + second, 9.0);
        if second % 10 == 0 {
            server.put("shop/Errors{Group=canary}", NOON + second, 1.0);
        }
    }
    let ask = query_on_server(&server.url, counted(), JudgeType::Sequential);
    let sources = sources();
    let (mut since, mut seen, mut looks) = (at(17), Vec::new(), 0);
    for until in (40..1500).step_by(23) {
        let window = Window { since, until: at(until) };
        let measured = measure(&sources, &ask, window).await;
        since = ask.available_window(window).until;
        looks += 1;
        match measured {
            Measurement::NoData => assert_eq!(since, window.since, "no data, and the window does not move"),
            other => seen.push(other),
        }
    }
    assert!(seen.len() > 10 && seen.len() < looks);
    assert!(seen.iter().all(|minute| *minute == counts((6, 60), (0, 540))), "{seen:?}");
    // Complete are the minutes from the second on until two minutes ago.
    assert_eq!(seen.len(), (1490 - 120) / 60 - 1);
    assert_eq!(server.requests().len(), seen.len(), "an empty window is not asked about");
}

#[tokio::test]
async fn missing_data_is_not_counted_as_zero() {
    let server = Server::start().await;
    let sources = sources();
    let bad = query_on_server(&server.url, counted(), JudgeType::Sequential);
    let mut spec = counted();
    spec["counts"] = json!({"good": "errors", "total": "requests"});
    let good = query_on_server(&server.url, spec, JudgeType::Sequential);
    let minutes = window(0, 600);
    assert_eq!(measure(&sources, &bad, minutes).await, Measurement::NoData);
    server.put("shop/Errors{Group=canary}", NOON, 3.0);
    assert_eq!(measure(&sources, &bad, minutes).await, Measurement::NoData, "errors of no requests");
    server.put("shop/Requests{Group=primary}", NOON, 70.0);
    assert_eq!(measure(&sources, &bad, minutes).await, counts((0, 0), (0, 70)));
    server.put("shop/Requests{Group=canary}", NOON, 10.0);
    assert_eq!(measure(&sources, &bad, minutes).await, counts((3, 10), (0, 70)));
    // The canary proves that good ones are counted: the primary had none.
    assert_eq!(measure(&sources, &good, minutes).await, counts((7, 10), (70, 70)));
    let server = Server::start().await;
    let good = MetricQuery {
        provider: query_on_server(&server.url, counted(), JudgeType::Sequential).provider,
        ..good
    };
    server.put("shop/Requests{Group=primary}", NOON, 70.0);
    assert_eq!(measure(&sources, &good, minutes).await, Measurement::NoData, "is the name right?");
}

#[tokio::test]
async fn samples_have_one_point_per_period() {
    let server = Server::start().await;
    for minute in 0..5 {
        server.put("shop/Load{Group=canary}", NOON + minute * 60, minute as f64);
        server.put("shop/Load{Group=primary}", NOON + minute * 60, 2.0 * minute as f64);
    }
    let spec = json!({
        "query": "load",
        "cloudwatch": {
            "namespace": "shop", "canary": {"Group": "canary"}, "primary": {"Group": "primary"},
            "metrics": {"load": {"name": "Load", "statistic": "Average"}}, "delay": "0s",
        },
    });
    let ask = query_on_server(&server.url, spec, JudgeType::MannWhitney);
    let expected = Arms { canary: vec![1.0, 2.0, 3.0], primary: vec![2.0, 4.0, 6.0] };
    assert_eq!(measure(&sources(), &ask, window(1, 299)).await, Measurement::Samples(expected));
}
