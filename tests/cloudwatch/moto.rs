//! CloudWatch and STS as moto imitates them. It lacks the protocol of the SDK, so
//! requests and responses are translated to its JSON.

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::response::Response;
use http::{HeaderMap, Uri};
use serin::aws::{Account, Accounts, Keys};
use tokio_util::task::AbortOnDropHandle;

use super::*;
use crate::support::moto::Moto;

/// Translates between the SDK and moto.
struct JsonTranslator {
    url: String,
    _task: AbortOnDropHandle<()>,
}

impl JsonTranslator {
    async fn start(moto: &Moto) -> Self {
        let app = Router::new().fallback(translate).with_state(moto.url());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let serve = async move { axum::serve(listener, app).await.expect("a server") };
        Self { url, _task: AbortOnDropHandle::new(tokio::spawn(serve)) }
    }
}

async fn translate(State(moto): State<String>, uri: Uri, headers: HeaderMap, body: Bytes) -> Response {
    let operation = uri.path().rsplit('/').next().expect("an operation");
    let answer = reqwest::Client::new()
        .post(moto)
        .header("authorization", &headers["authorization"])
        .header("content-type", "application/x-amz-json-1.0")
        .header("x-amz-target", format!("GraniteServiceVersion20100801.{operation}"))
        .body(cbor::decode(&body).to_string())
        .send()
        .await
        .expect("an answer of moto");
    let status = answer.status();
    let content: Value = answer.json().await.expect("JSON");
    let response = Response::builder().status(status).header("smithy-protocol", "rpc-v2-cbor");
    response
        .header("content-type", "application/cbor")
        .body(cbor::encode(&content).into())
        .expect("a response")
}

async fn put(client: &aws_sdk_cloudwatch::Client, name: &str, arm: &str, values: &[f64], at: i64) {
    use aws_sdk_cloudwatch::primitives::DateTime;
    use aws_sdk_cloudwatch::types::{Dimension, MetricDatum};
    for value in values {
        let group = Dimension::builder().name("Group").value(arm).build();
        let datum = MetricDatum::builder()
            .metric_name(name)
            .dimensions(group)
            .timestamp(DateTime::from_secs(at))
            .value(*value);
        client.put_metric_data().namespace("shop").metric_data(datum.build()).send().await.expect("a put");
    }
}

#[tokio::test]
async fn sums_and_averages_equal_those_of_moto() {
    serin::tls::install_crypto_provider();
    let moto = Moto::start().await;
    let interpreter = JsonTranslator::start(&moto).await;
    let keys = Keys { access_key_id: KEY.into(), secret_access_key: "s".into(), session_token: None };
    let account = Account {
        region: Some("eu-west-1".into()),
        endpoint: Some(interpreter.url.clone()),
        keys: Some(keys),
        ..Account::default()
    };
    let config = Accounts::default().config(&account).await.expect("a region");
    let client = aws_sdk_cloudwatch::Client::new(&config);
    // moto drops data older than two weeks, and refuses future timestamps.
    let recent = Timestamp::now().as_second().div_euclid(60) * 60 - 1800;
    for (name, arm, values) in [
        ("Requests", "canary", [7.0, 3.0]),
        ("Errors", "canary", [1.0, 1.0]),
        ("Requests", "primary", [40.0, 50.0]),
    ] {
        put(&client, name, arm, &values, recent + 5).await;
        put(&client, name, arm, &values, recent + 65).await;
    }
    let since = |seconds: i64| Timestamp::from_second(recent + seconds).expect("a time");
    let sources = sources();
    let ask = |spec, judge| query_on_server(&interpreter.url, spec, judge);
    let counted = ask(counted(), JudgeType::Sequential);
    let whole = Window { since: since(0), until: since(600) };
    assert_eq!(measure(&sources, &counted, whole).await, counts((4, 20), (0, 180)));
    let second = Window { since: since(1), until: since(600) };
    assert_eq!(measure(&sources, &counted, second).await, counts((2, 10), (0, 90)));
    let mean = json!({
        "query": "mean",
        "cloudwatch": {
            "namespace": "shop", "dimensions": {"Group": "{{ arm }}"},
            "metrics": {"mean": {"name": "Requests", "statistic": "Average"}},
        },
    });
    let mean = ask(mean, JudgeType::Threshold);
    assert_eq!(measure(&sources, &mean, whole).await, Measurement::Scalar(5.0));
    let nothing = Window { since: since(300), until: since(900) };
    assert_eq!(measure(&sources, &mean, nothing).await, Measurement::NoData);
}

#[tokio::test]
async fn a_role_is_assumed_by_the_sts_protocol() {
    serin::tls::install_crypto_provider();
    let moto = Moto::start().await;
    let keys = Keys { access_key_id: KEY.into(), secret_access_key: "s".into(), session_token: None };
    let account = Account {
        region: Some("eu-west-1".into()),
        role_arn: Some(server::ROLE.into()),
        external_id: Some(server::EXTERNAL_ID.into()),
        sts_endpoint: Some(moto.url()),
        keys: Some(keys),
        endpoint: None,
    };
    let config = Accounts::default().config(&account).await.expect("a region");
    let credentials = config.credentials_provider().expect("credentials");
    use aws_sdk_cloudwatch::config::ProvideCredentials as _;
    let credentials = credentials.provide_credentials().await.expect("an assumed role");
    assert!(credentials.access_key_id().starts_with("ASIA") && credentials.session_token().is_some());
    assert_eq!(config.endpoint_url(), None, "STS is somewhere else than the service");
}
