//! Other accounts, other regions.

use aws_sdk_cloudwatch::Client;
use aws_sdk_cloudwatch::primitives::DateTime;
use aws_sdk_cloudwatch::types::{Metric, MetricDataQuery, MetricStat};
use futures::future::join_all;
use serin::aws::{Account, Accounts, Keys};

use super::server::{EXTERNAL_ID, ROLE};
use super::{
    JudgeType, KEY, Measurement, NOON, Server, json, measure, query_on_server, sources, unavailable, window,
};

#[tokio::test]
async fn a_role_is_assumed_once_for_all_queries() {
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
        query_on_server(&server.url, spec(None, EXTERNAL_ID), JudgeType::Threshold),
        query_on_server(&server.url, spec(Some("999999999999"), EXTERNAL_ID), JudgeType::Threshold),
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
    let stranger = query_on_server(&server.url, spec(None, "something-else"), JudgeType::Threshold);
    let why = unavailable(measure(&sources, &stranger, window(0, 300)).await);
    assert!(why.contains("you may not") || why.contains("AccessDenied"), "{why}");
}

#[tokio::test]
async fn clients_of_one_account_share_its_role() {
    let server = Server::start().await;
    let keys = Keys { access_key_id: KEY.into(), secret_access_key: "s".into(), session_token: None };
    let account = Account {
        region: Some("eu-west-1".into()),
        role_arn: Some(ROLE.into()),
        external_id: Some(EXTERNAL_ID.into()),
        endpoint: Some(server.url.clone()),
        sts_endpoint: Some(server.url.clone()),
        keys: Some(keys),
    };
    let accounts = Accounts::default();
    for _ in 0..3 {
        let client = Client::new(&accounts.config(&account).await.expect("a region"));
        let metric = Metric::builder().namespace("shop").metric_name("M").build();
        let metric = MetricStat::builder().metric(metric).period(60).stat("Sum").build();
        let asked = client
            .get_metric_data()
            .start_time(DateTime::from_secs(NOON))
            .end_time(DateTime::from_secs(NOON + 60))
            .metric_data_queries(MetricDataQuery::builder().id("m").metric_stat(metric).build());
        asked.send().await.expect("an answer");
    }
    assert_eq!((server.assumed(), server.requests().len()), (1, 3));
}
