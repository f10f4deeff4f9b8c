//! A metric source that returns JSON.

use super::*;
use crate::support::receiver::{CannedResponse, Receiver, answer};

fn score(address: &str, web: Value, query: &str) -> MetricQuery {
    let provider = json!({"type": "web", "address": address, "web": web, "secretRef": {"name": "scores"}});
    let spec = template(json!({"provider": provider, "query": query, "variables": {"team": "shop"}}));
    from_template(&spec, JudgeType::Threshold, None).expect("a query")
}

async fn measure_query(ask: &MetricQuery) -> Measurement {
    let token = Credentials::from_iter([("token", "t0ken")]);
    measure(&sources(), ask, Some(&token), Timestamp::now(), &Arms::default()).await
}

/// A receiver with this response, and its URL.
async fn service(answers: impl IntoIterator<Item = CannedResponse>) -> (Receiver, String) {
    let receiver = Receiver::start(answers).await;
    let address = receiver.url.trim_end_matches("/hook").to_owned();
    (receiver, address)
}

#[tokio::test]
async fn a_number_is_taken_out_of_the_answer() {
    let (receiver, address) = service([answer(200, r#"{"data": [{"score": 97.5}]}"#)]).await;
    let ask = score(
        &format!("{address}/api"),
        json!({"valueAt": "/data/0/score"}),
        "/score?app={{ target }}&team={{ variables.team }}",
    );
    assert_eq!(measure_query(&ask).await, Measurement::Scalar(97.5));
    let got = &receiver.received()[0];
    assert_eq!(got.uri, "/api/score?app=web&team=shop");
    assert_eq!(got.header("authorization"), "Bearer t0ken");
}

#[tokio::test]
async fn a_query_may_be_posted() {
    let (receiver, address) = service([answer(200, r#"{"value": "0.25"}"#)]).await;
    let ask = score(&address, json!({"method": "POST", "valueAt": "/value"}), r#"{"app": "{{ target }}"}"#);
    assert_eq!(measure_query(&ask).await, Measurement::Scalar(0.25));
    let got = &receiver.received()[0];
    assert_eq!(got.json(), json!({"app": "web"}));
    assert_eq!(got.header("content-type"), "application/json");
}

#[tokio::test]
async fn an_empty_response_is_no_data_and_errors_are_named() {
    let (_receiver, address) = service([
        answer(200, "null"),
        answer(200, r#"{"values": []}"#),
        answer(200, "<html>Please log in</html>"),
        answer(403, "no"),
    ])
    .await;
    let ask = score(&address, json!({}), "/score");
    assert_eq!(measure_query(&ask).await, Measurement::NoData);
    let why = unavailable(measure_query(&score(&address, json!({"valueAt": "/value"}), "/score")).await);
    assert!(why.contains("/value") && why.contains("there is /values"), "{why}");
    let why = unavailable(measure_query(&ask).await);
    assert!(why.contains("invalid JSON"), "{why}");
    let why = unavailable(measure_query(&ask).await);
    assert!(why.contains("responded 403") && !why.contains("t0ken"), "{why}");
}

#[tokio::test]
async fn a_service_that_recovers_is_queried_again() {
    let (receiver, address) = service([answer(503, ""), answer(500, ""), answer(200, "3")]).await;
    assert_eq!(measure_query(&score(&address, json!({}), "/score")).await, Measurement::Scalar(3.0));
    assert_eq!(receiver.received().len(), 3);
}

#[test]
fn a_judge_that_needs_counts_is_refused_with_a_remedy() {
    let provider = json!({"type": "web", "address": "http://scores"});
    let spec = template(json!({"provider": provider, "query": "/score"}));
    let refused = from_template(&spec, JudgeType::Sequential, None).unwrap_err().to_string();
    assert!(refused.contains("thresholdRange") && refused.contains("prometheus"), "{refused}");
    let counts = json!({"good": "/good?{{ target }}", "total": "/total?{{ target }}"});
    let spec = template(json!({"provider": {"type": "web", "address": "http://scores"}, "counts": counts}));
    let refused = from_template(&spec, JudgeType::Sequential, None).unwrap_err().to_string();
    assert!(refused.contains("provider web"), "{refused}");
    let provider = json!({"type": "web", "address": "scores"});
    let spec = template(json!({"provider": provider, "query": "/score"}));
    assert!(matches!(from_template(&spec, JudgeType::Threshold, None), Err(QueryError::Address { .. })));
}
