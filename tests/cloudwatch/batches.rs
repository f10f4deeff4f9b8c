//! Concurrent queries are batched into few requests.

use super::*;
use futures::future::join_all;

/// Two metrics under the same Ids for everybody, and how they are made one.
fn rate(server: &Server, app: &str) -> MetricQuery {
    let spec = json!({
        "provider": {"address": server.url},
        "query": "100 * m1 / m2",
        "cloudwatch": {
            "namespace": "shop", "dimensions": {"App": "{{ target }}"},
            "metrics": {"m1": {"name": "Errors"}, "m2": {"name": "Requests"}},
        },
    });
    query_of(app, "errors", spec, JudgeType::Threshold).expect("a query")
}

fn put(server: &Server, app: &str, errors: f64, requests: f64) {
    server.put(&format!("shop/Errors{{App={app}}}"), NOON + 70, errors);
    server.put(&format!("shop/Requests{{App={app}}}"), NOON + 70, requests);
}

#[tokio::test]
async fn concurrent_queries_share_requests_and_get_their_own_results() {
    let server = Server::start().await;
    let sources = sources();
    let apps: Vec<String> = (0..300).map(|n| format!("app-{n}")).collect();
    apps.iter().enumerate().for_each(|(n, app)| put(&server, app, n as f64, 1000.0));
    let asks: Vec<MetricQuery> = apps.iter().map(|app| rate(&server, app)).collect();
    let answers = join_all(asks.iter().map(|ask| measure(&sources, ask, window(0, 300)))).await;
    for (n, answer) in answers.iter().enumerate() {
        let Measurement::Scalar(value) = answer else { panic!("{answer:?}") };
        assert!((value - n as f64 / 10.0).abs() < 1e-9, "app-{n}: {value}");
    }
    // Nine hundred queries, of which no request takes more than 500.
    let sizes: Vec<usize> = server.requests().iter().map(|request| request.queries().len()).collect();
    assert_eq!(sizes.iter().sum::<usize>(), 900);
    assert_eq!(sizes.len(), 2, "{sizes:?}");
    // Without a measurement there is no request.
    tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    assert_eq!(server.requests().len(), 2);
}

#[tokio::test]
async fn another_window_is_another_request() {
    let server = Server::start().await;
    let sources = sources();
    put(&server, "web", 1.0, 10.0);
    let ask = rate(&server, "web");
    let both =
        futures::join!(measure(&sources, &ask, window(0, 300)), measure(&sources, &ask, window(120, 360)));
    assert_eq!(both, (Measurement::Scalar(10.0), Measurement::NoData));
    assert_eq!(server.requests().len(), 2);
}

#[tokio::test]
async fn a_query_over_all_metrics_has_a_request_of_its_own() {
    let server = Server::start().await;
    let sources = sources();
    put(&server, "web", 1.0, 10.0);
    put(&server, "api", 5.0, 10.0);
    let all = json!({
        "provider": {"address": server.url},
        "query": "SUM(METRICS())",
        "cloudwatch": {
            "namespace": "shop", "dimensions": {"App": "web"},
            "metrics": {"m1": {"name": "Errors"}, "m2": {"name": "Requests"}},
        },
    });
    let all = query_of("web", "all", all, JudgeType::Threshold).expect("a query");
    let (web, api) = (rate(&server, "web"), rate(&server, "api"));
    let answers = join_all([&web, &all, &api].map(|ask| measure(&sources, ask, window(0, 300)))).await;
    assert_eq!(answers, [10.0, 11.0, 50.0].map(Measurement::Scalar));
    assert_eq!(server.requests().len(), 2);
}

#[tokio::test]
async fn an_invalid_query_does_not_fail_others_in_its_batch() {
    let server = Server::start().await;
    let sources = sources();
    let apps: Vec<String> = (0..32).map(|n| format!("app-{n}")).collect();
    apps.iter().for_each(|app| put(&server, app, 1.0, 10.0));
    let mut asks: Vec<MetricQuery> = apps.iter().map(|app| rate(&server, app)).collect();
    let wrong = json!({
        "provider": {"address": server.url},
        "query": "NONSENSE(m1)",
        "cloudwatch": {"namespace": "shop", "metrics": {"m1": {"name": "Errors"}}},
    });
    asks.insert(11, query_of("web", "wrong", wrong, JudgeType::Threshold).expect("a query"));
    let answers = join_all(asks.iter().map(|ask| measure(&sources, ask, window(0, 300)))).await;
    for (n, answer) in answers.into_iter().enumerate() {
        match n {
            11 => assert!(unavailable(answer).contains("Unknown function NONSENSE")),
            _ => assert_eq!(answer, Measurement::Scalar(10.0)),
        }
    }
    assert!(server.requests().len() <= 13, "{} requests", server.requests().len());
}

#[tokio::test]
async fn a_cancelled_query_does_not_cancel_others_in_its_batch() {
    let server = Server::start().await;
    let sources = sources();
    put(&server, "web", 1.0, 10.0);
    let ask = rate(&server, "web");
    let first = measure(&sources, &ask, window(0, 300));
    let (impatient, patient) = futures::join!(
        tokio::time::timeout(std::time::Duration::from_millis(1), first),
        measure(&sources, &ask, window(0, 300))
    );
    assert!(impatient.is_err());
    assert_eq!(patient, Measurement::Scalar(10.0));
}
