//! Connections to Prometheus: credentials, timeouts, body limits, retries.

use std::sync::atomic::Ordering;

use axum::Router;
use parking_lot::Mutex;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

use super::*;
use crate::support::http_fixtures::{GuardedProxy, serve};
use crate::support::prometheus::Prometheus;

const PASSWORD: &str = "a test password";
/// Its bcrypt hash.
const USERS: &str = "serin: $2a$04$4N87f/vrPjJhtSO8apkg8ekeJ.ICozAkVW6VzqYl/I3pWdovsY2Na";

fn one(provider: Value) -> MetricQuery {
    let spec = template(json!({"provider": provider, "query": "vector(1)"}));
    from_template(&spec, JudgeType::Threshold, None).expect("a query")
}

async fn measure_query(ask: &MetricQuery, credentials: Option<&Credentials>) -> Measurement {
    measure(&sources(), ask, credentials, Timestamp::now(), &Arms::default()).await
}

#[tokio::test]
async fn a_protected_prometheus_needs_the_password_and_ca() {
    let (authority, key, certificate) = certificates();
    let prometheus = Prometheus::with_tls_and_password(&certificate, &key, USERS).await;
    let ask =
        one(json!({"type": "prometheus", "address": prometheus.url(), "secretRef": {"name": "prometheus"}}));
    let secret = |password: &str, authority: Option<&str>| {
        let user = [("username", "serin"), ("password", password)];
        Credentials::from_iter(user.into_iter().chain(authority.map(|authority| ("ca.crt", authority))))
    };

    assert_eq!(
        measure_query(&ask, Some(&secret(PASSWORD, Some(&authority)))).await,
        Measurement::Scalar(1.0)
    );

    let why = unavailable(measure_query(&ask, Some(&secret("another password", Some(&authority)))).await);
    assert!(why.contains("responded 401") && !why.contains("another password"), "{why}");
    let why = unavailable(measure_query(&ask, Some(&secret(PASSWORD, None))).await);
    assert!(why.contains("certificate") && !why.contains(PASSWORD), "{why}");
    let why = unavailable(measure_query(&ask, Some(&secret(PASSWORD, Some("no certificate")))).await);
    assert!(why.contains("ca.crt"), "{why}");
    let why = unavailable(measure_query(&ask, None).await);
    assert_eq!(why, "the Secret prometheus in shop does not exist");
    let half = Credentials::from_iter([("username", "serin")]);
    let why = unavailable(measure_query(&ask, Some(&half)).await);
    assert!(why.contains("a username and no password"), "{why}");

    let careless = one(json!({
        "type": "prometheus", "address": prometheus.url(), "secretRef": {"name": "prometheus"}, "insecureSkipVerify": true,
    }));
    assert_eq!(measure_query(&careless, Some(&secret(PASSWORD, None))).await, Measurement::Scalar(1.0));
    let in_address = prometheus.url().replace("://", "://serin:hidden@");
    let why =
        unavailable(measure_query(&one(json!({"type": "prometheus", "address": in_address})), None).await);
    assert!(!why.contains("hidden"), "{why}");
}

#[tokio::test]
async fn tokens_and_headers_are_sent_as_they_are_given() {
    let prometheus = Prometheus::start("").await;
    let proxy = GuardedProxy {
        bearer: Mutex::new(Some("t0ken")),
        header: Some(("x-scope-orgid", "tenant-1")),
        ..GuardedProxy::to(prometheus.url())
    };
    let (_door, url, _open) = proxy.open().await;
    let ask = one(json!({
        "type": "prometheus", "address": url, "secretRef": {"name": "prometheus"}, "headers": {"X-Scope-OrgID": ["tenant-1"]},
    }));
    assert_eq!(
        measure_query(&ask, Some(&Credentials::from_iter([("token", "t0ken\n")]))).await,
        Measurement::Scalar(1.0)
    );
    let why = unavailable(measure_query(&ask, Some(&Credentials::from_iter([("token", "stolen")]))).await);
    assert!(why.contains("responded 403") && !why.contains("stolen"), "{why}");
}

#[tokio::test]
async fn two_canaries_with_the_same_query_make_one_request() {
    let prometheus = Prometheus::start("").await;
    let proxy = GuardedProxy { delay: Duration::from_millis(500), ..GuardedProxy::to(prometheus.url()) };
    let (proxy, url, _open) = proxy.open().await;
    let (sources, since, pods) = (sources(), Timestamp::now(), Arms::default());
    let ask = one(json!({"type": "prometheus", "address": url}));
    let mut other = ask.clone();
    other.key.canary = "another".to_owned();
    let (first, second) = futures::join!(
        measure(&sources, &ask, None, since, &pods),
        measure(&sources, &other, None, since, &pods)
    );
    assert_eq!((first, second), (Measurement::Scalar(1.0), Measurement::Scalar(1.0)));
    assert_eq!(proxy.requests.load(Ordering::Relaxed), 1);
    measure(&sources, &ask, None, since, &pods).await;
    assert_eq!(proxy.requests.load(Ordering::Relaxed), 2, "an answer is not kept");
}

#[tokio::test]
async fn a_transient_error_is_retried_a_limited_number_of_times() {
    let prometheus = Prometheus::start("").await;
    let (proxy, url, _open) =
        GuardedProxy { refuse_first: 2, ..GuardedProxy::to(prometheus.url()) }.open().await;
    assert_eq!(
        measure_query(&one(json!({"type": "prometheus", "address": url})), None).await,
        Measurement::Scalar(1.0)
    );
    assert_eq!(proxy.requests.load(Ordering::Relaxed), 3);

    let (proxy, url, _open) =
        GuardedProxy { refuse_first: 100, ..GuardedProxy::to(prometheus.url()) }.open().await;
    let why = unavailable(measure_query(&one(json!({"type": "prometheus", "address": url})), None).await);
    assert!(why.contains("responded 503"), "{why}");
    assert_eq!(proxy.requests.load(Ordering::Relaxed), 3);
}

#[tokio::test]
async fn endless_and_foreign_responses_are_rejected() {
    let (endless, _open) = serve(Router::new().fallback(|| async { "x".repeat(9 << 20) })).await;
    let why = unavailable(
        measure_query(&one(json!({"type": "prometheus", "address": format!("http://{endless}")})), None)
            .await,
    );
    assert!(why.contains("more than 8 MiB"), "{why}");
    let (page, _open) = serve(Router::new().fallback(|| async { "<html>Please log in</html>" })).await;
    let why = unavailable(
        measure_query(&one(json!({"type": "prometheus", "address": format!("http://{page}")})), None).await,
    );
    assert!(why.contains("no Prometheus response"), "{why}");
}

#[tokio::test(start_paused = true)]
async fn a_hanging_prometheus_times_out() {
    let (hanging, _open) = serve(Router::new().fallback(std::future::pending::<()>)).await;
    let ask = one(json!({"type": "prometheus", "address": format!("http://{hanging}")}));
    let began = tokio::time::Instant::now();
    let why = unavailable(measure_query(&ask, None).await);
    assert!(why.contains("did not respond within"), "{why}");
    assert!(began.elapsed() <= Duration::from_secs(12), "{:?}", began.elapsed());
}

/// An authority, and the key and certificate of a server on loopback.
fn certificates() -> (String, String, String) {
    let key = || KeyPair::generate().expect("a key pair");
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let (authority_key, server_key) = (key(), key());
    let authority = params.self_signed(&authority_key).expect("an authority");
    let server = CertificateParams::new(vec!["127.0.0.1".to_owned()])
        .and_then(|server| server.signed_by(&server_key, &Issuer::new(params, authority_key)))
        .expect("a server certificate");
    (authority.pem(), server_key.serialize_pem(), server.pem())
}
