//! Errors are reported as errors, never as numbers.

use super::*;

fn one(server: &str) -> MetricQuery {
    query_on_server(
        server,
        json!({"query": "m", "cloudwatch": {"namespace": "shop", "metrics": {"m": {"name": "M"}}}}),
        JudgeType::Threshold,
    )
}

#[tokio::test]
async fn partial_data_is_no_data() {
    let server = Server::start().await;
    server.put("shop/M{}", NOON, 3.0);
    let ask = one(&server.url);
    for (status, says) in
        [("PartialData", "part of the data"), ("InternalError", "InternalError"), ("Forbidden", "Forbidden")]
    {
        server.configure(|state| state.status = Some(("shop/M".to_owned(), status)));
        let why = unavailable(measure(&sources(), &ask, window(0, 300)).await);
        assert!(why.contains(says) && why.contains("eu-west-1"), "{why}");
    }
    server.configure(|state| state.status = None);
    assert_eq!(measure(&sources(), &ask, window(0, 300)).await, Measurement::Scalar(3.0));
}

#[tokio::test]
async fn a_count_without_its_total_is_no_data() {
    let server = Server::start().await;
    for group in ["canary", "primary"] {
        server.put(&format!("shop/Requests{{Group={group}}}"), NOON, 10.0);
    }
    server.configure(|state| state.status = Some(("Errors{Group=canary}".to_owned(), "PartialData")));
    let ask = query_on_server(&server.url, counted(), JudgeType::Sequential);
    unavailable(measure(&sources(), &ask, window(0, 300)).await);
}

#[tokio::test]
async fn a_throttled_query_is_retried_a_limited_number_of_times() {
    let server = Server::start().await;
    server.put("shop/M{}", NOON, 3.0);
    let ask = one(&server.url);
    server.configure(|state| state.throttle = 2);
    assert_eq!(measure(&sources(), &ask, window(0, 300)).await, Measurement::Scalar(3.0));
    assert_eq!(server.requests().len(), 3);
    server.configure(|state| state.throttle = usize::MAX);
    let why = unavailable(measure(&sources(), &ask, window(0, 300)).await);
    assert!(why.contains("throttles requests") && why.contains("Rate exceeded"), "{why}");
    assert_eq!(server.requests().len(), 6);
}

#[tokio::test]
async fn a_paged_response_is_read_to_its_end() {
    let server = Server::start().await;
    for minute in 0..10 {
        for (metric, value) in [
            ("Requests{Group=canary}", 10.0),
            ("Requests{Group=primary}", 90.0),
            ("Errors{Group=canary}", 1.0),
        ] {
            server.put(&format!("shop/{metric}"), NOON + minute * 60, value);
        }
    }
    server.configure(|state| state.page = Some(7));
    let ask = query_on_server(&server.url, counted(), JudgeType::Sequential);
    assert_eq!(measure(&sources(), &ask, window(0, 720)).await, counts((10, 100), (0, 900)));
    assert_eq!(server.requests().len(), 5, "thirty datapoints");
    server.configure(|state| state.endless = true);
    let why = unavailable(measure(&sources(), &ask, window(0, 720)).await);
    assert!(why.contains("pages"), "{why}");
}

#[tokio::test]
async fn an_unreachable_source_is_named_and_no_secret_is_disclosed() {
    let server = Server::start().await;
    let ask = one(&server.url);
    let stranger =
        Credentials::from_iter([("aws_access_key_id", "AKIANOBODY"), ("aws_secret_access_key", "s3cret")]);
    let view = MeasureContext { window: window(0, 300), pods: &Arms::default() };
    let why = unavailable(sources().measure(&ask, Some(&stranger), &view).await);
    assert!(why.contains("security token") && !why.contains("s3cret"), "{why}");
    let half = Credentials::from_iter([("aws_access_key_id", KEY)]);
    let why = unavailable(sources().measure(&ask, Some(&half), &view).await);
    assert!(why.contains("aws_secret_access_key"), "{why}");
    let nobody = one(&format!("http://127.0.0.1:{}", support::free_port()));
    let why = unavailable(measure(&sources(), &nobody, window(0, 300)).await);
    assert!(why.contains("cannot be reached"), "{why}");
}
