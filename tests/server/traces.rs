//! Traces of releases, as a collector receives them in OTLP's JSON form.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use serin::api::canary::Phase;
use serin::telemetry::Traces;

use crate::support::receiver::{Receiver, answer};
use crate::world::World;

/// All spans, each checked against the documented form. The first request was refused, and is
/// sent again.
fn spans(collector: &Receiver) -> Vec<Value> {
    let received = collector.received();
    assert!(received.len() < 2 || received[0].body == received[1].body);
    let requests = received.into_iter().skip(1).filter(|request| request.uri.path() == "/v1/traces");
    let mut spans = Vec::new();
    for request in requests {
        assert_eq!(request.header("content-type"), "application/json");
        let body = request.json();
        let resource = &body["resourceSpans"][0];
        let name = json!({"key": "service.name", "value": {"stringValue": "serin"}});
        assert!(resource["resource"]["attributes"].as_array().unwrap().contains(&name));
        for span in resource["scopeSpans"][0]["spans"].as_array().expect("spans") {
            let hex = |key: &str, length: usize| {
                let text = span[key].as_str().expect("a text");
                assert!(text.len() == length && text.bytes().all(|b| b.is_ascii_hexdigit()), "{key}: {text}");
            };
            hex("traceId", 32);
            hex("spanId", 16);
            let nanos = |key: &str| {
                span[key].as_str().and_then(|text| text.parse::<u64>().ok()).expect("nanoseconds")
            };
            assert!(nanos("startTimeUnixNano") <= nanos("endTimeUnixNano"), "{span}");
            for attribute in span["attributes"].as_array().expect("attributes") {
                let value = attribute["value"].as_object().expect("a value");
                let (kind, value) = value.iter().next().expect("one");
                match kind.as_str() {
                    "stringValue" | "intValue" => assert!(value.is_string(), "{attribute}"),
                    "doubleValue" => assert!(value.is_number(), "{attribute}"),
                    other => panic!("{other}"),
                }
            }
            spans.push(span.clone());
        }
    }
    spans
}

fn is_release(span: &Value) -> bool {
    span["name"].as_str().is_some_and(|name| name.starts_with("release "))
}

#[tokio::test]
async fn a_release_is_a_trace_with_its_steps_checks_gates_and_actions() {
    // A collector that is busy at first loses nothing.
    let collector = Receiver::start([answer(503, "")]).await;
    let world = World::new().await;
    let endpoint = collector.url.replace("/hook", "");
    assert!(world.vitals.traces.set(Traces::start(&endpoint, "blue").expect("a client")).is_ok());
    let _serin = world.start().await;
    let steps = json!([{"weight": 10}, {"name": "go-live", "approval": {}}, {"weight": 50}]);
    world.canary("web", json!({"analysis": {"stepWeights": null, "steps": steps}})).await;
    world.reaches("web", Phase::Initialized).await;
    let _traffic = world.traffic();
    world.push("web:v2").await;
    world.approve_when_asked("web", "go-live").await;
    world.reaches("web", Phase::Succeeded).await;
    let began = std::time::Instant::now();
    while !spans(&collector).iter().any(is_release) {
        assert!(began.elapsed().as_secs() < 60, "no root: {:#?}", spans(&collector));
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    let spans = spans(&collector);
    let root = spans.iter().find(|span| is_release(span)).expect("the root");
    assert_eq!((&root["name"], &root["parentSpanId"]), (&json!("release default/web"), &json!("")));
    assert_eq!(root["status"]["code"], 1);
    let of_release: Vec<&Value> = spans.iter().filter(|span| span["traceId"] == root["traceId"]).collect();
    let mut kinds = BTreeMap::<&str, usize>::new();
    for span in of_release.iter().filter(|span| !is_release(span)) {
        assert_eq!(span["parentSpanId"], root["spanId"], "{span}");
        *kinds.entry(span["name"].as_str().unwrap().split(' ').next().unwrap()).or_default() += 1;
    }
    assert_eq!(kinds["step"], 3, "{kinds:?}");
    assert_eq!(kinds["gate"], 1, "{kinds:?}");
    assert!(kinds["check"] >= 2 && kinds["action"] >= 3, "{kinds:?}");
    let traces: std::collections::BTreeSet<String> =
        spans.iter().map(|span| span["traceId"].to_string()).collect();
    assert_eq!(traces.len(), 1, "one trace a release");
}
