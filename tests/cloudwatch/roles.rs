//! Other accounts, other regions.

use super::server::{EXTERNAL_ID, ROLE};
use super::*;
use futures::future::join_all;

#[tokio::test]
async fn a_role_is_assumed_once_for_all_who_need_it() {
    let server = Server::start().await;
    server.put("shop/M{}", NOON, 3.0);
    server.put("999999999999:shop/M{}", NOON, 4.0);
    let spec = |account: Option<&str>, external: &str| {
        json!({
            "provider": {
                "region": "us-east-2",
                "role": {"roleArn": ROLE, "externalId": external, "endpoint": server.url},
            },
            "query": "m",
            "cloudwatch": {"namespace": "shop", "metrics": {"m": {"name": "M", "accountId": account}}},
        })
    };
    let (own, other) = (
        ask(&server.url, spec(None, EXTERNAL_ID), JudgeType::Threshold),
        ask(&server.url, spec(Some("999999999999"), EXTERNAL_ID), JudgeType::Threshold),
    );
    let sources = sources();
    for _ in 0..3 {
        let all = [&own, &other, &own].map(|ask| measure(&sources, ask, window(0, 300)));
        assert_eq!(join_all(all).await, [3.0, 4.0, 3.0].map(Measurement::Scalar));
    }
    assert_eq!(server.assumed(), 1);
    let requests = server.requests();
    assert!(requests.iter().all(|request| request.key == "ASIA1" && request.region == "us-east-2"));
    assert_eq!(requests.len(), 3, "three at a time");
    let stranger = ask(&server.url, spec(None, "something-else"), JudgeType::Threshold);
    let why = unavailable(measure(&sources, &stranger, window(0, 300)).await);
    assert!(why.contains("you may not") || why.contains("AccessDenied"), "{why}");
}
