//! Webhooks over real HTTP.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use axum::body::{Body, Bytes};
use hmac::{Hmac, KeyInit as _, Mac as _};
use jiff::Timestamp;
use serde_json::json;
use serin::api::canary::{Phase, Severity, Webhook};
use serin::engine::observed::GateReply;
use serin::gates::webhook::{
    Event, HookContext, HookError, HookRequest, HookResponse, HookTransport, MAX_CALL_DURATION,
    SIGNATURE_HEADER, TIMED_SIGNATURE_HEADER, TIMESTAMP_HEADER, Webhooks,
};
use sha2::Sha256;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::support::{
    self,
    receiver::{Receiver, answer},
};

#[tokio::test]
async fn a_webhook_gets_flaggers_payload() {
    let receiver = Receiver::start([]).await;
    let hook =
        Webhook { metadata: [("team".to_owned(), "web".to_owned())].into(), ..hook("gate", &receiver.url) };
    assert_eq!(webhooks().call_gate(&hook, &subject(), None).await, GateReply::Yes { by: None });
    let got = receiver.received().remove(0);
    let expected = json!({
        "name": "web", "namespace": "prod", "phase": "Progressing", "checksum": "1-abc",
        "metadata": {"team": "web"},
    });
    assert_eq!(got.json(), expected);
    assert_eq!(got.header("content-type"), "application/json");
    assert_eq!(got.header(SIGNATURE_HEADER), "", "nobody gave a key");
}

#[tokio::test]
async fn an_event_payload_has_message_and_time() {
    let receiver = Receiver::start([]).await;
    let metadata =
        [("team", "web"), ("eventType", "Mine")].map(|(key, value)| (key.to_owned(), value.to_owned()));
    let hook = Webhook { metadata: metadata.into(), ..hook("events", &receiver.url) };
    let at = Timestamp::from_millisecond(1_700_000_000_123).unwrap();
    let event = Event { message: "It is rolled back.", severity: Severity::Error, at };
    webhooks().send_event(&hook, &subject(), &event, None).await;
    let expected = json!({
        "team": "web", "eventMessage": "It is rolled back.", "eventType": "Warning", "timestamp": "1700000000123",
    });
    assert_eq!(receiver.received()[0].json()["metadata"], expected);
}

#[tokio::test]
async fn statuses_up_to_202_approve_and_others_reject_without_quoting_the_body() {
    for (status, body, expected) in [
        (200, "", None),
        (201, "made", None),
        (202, "", None),
        (204, "", Some("204 No Content")),
        (302, "", Some("302 Found")),
        (403, "an internal page", Some("403 Forbidden")),
        (501, "", Some("501 Not Implemented")),
    ] {
        let receiver = Receiver::start([answer(status, body).header("location", "/elsewhere")]).await;
        let hook = Webhook { retries: Some(3), ..hook("gate", &receiver.url) };
        let expected = match expected {
            None => GateReply::Yes { by: None },
            Some(why) => GateReply::No { by: None, why: why.to_owned() },
        };
        assert_eq!(webhooks().call_gate(&hook, &subject(), None).await, expected);
        assert_eq!(receiver.received().len(), 1, "an answer is an answer: {status}");
    }
}

#[tokio::test]
async fn a_failed_call_is_unreachable_and_discloses_no_secret() {
    let url = format!("http://user:hunter2@127.0.0.1:{}/T0/hunter2?token=hunter2", support::free_port());
    let GateReply::Unreachable { why } = webhooks().call_gate(&hook("gate", &url), &subject(), None).await
    else {
        panic!("nobody is there")
    };
    assert!(why.starts_with("no response: ") && why.contains("refused"), "{why}");
    assert!(!why.contains("hunter2"), "{why}");
    let GateReply::Unreachable { why } =
        webhooks().call_gate(&hook("gate", "hunter2"), &subject(), None).await
    else {
        panic!("that is no URL")
    };
    assert!(why.starts_with("invalid request") && !why.contains("hunter2"), "{why}");
}

#[tokio::test]
async fn a_timed_out_call_is_unreachable() {
    let receiver = Receiver::start([answer(200, "").after(Duration::from_secs(30))]).await;
    let hook = Webhook { timeout: Some("200ms".parse().unwrap()), ..hook("gate", &receiver.url) };
    let began = Instant::now();
    let reply = webhooks().call_gate(&hook, &subject(), None).await;
    assert_eq!(reply, GateReply::Unreachable { why: "no response within 200ms".to_owned() });
    assert!(began.elapsed() < Duration::from_secs(5));
}

#[tokio::test]
async fn an_unreachable_hook_is_retried_as_configured() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let server = tokio::spawn(async move {
        for _ in 0..2 {
            drop(listener.accept().await.unwrap());
        }
        respond_ok(listener.accept().await.unwrap().0).await;
        listener
    });
    let patient = Webhook { retries: Some(2), ..hook("gate", &url) };
    assert_eq!(webhooks().call_gate(&patient, &subject(), None).await, GateReply::Yes { by: None });

    let listener = server.await.unwrap();
    tokio::spawn(async move {
        for _ in 0..2 {
            drop(listener.accept().await.unwrap());
        }
        respond_ok(listener.accept().await.unwrap().0).await;
    });
    let hasty = Webhook { retries: Some(1), ..hook("gate", &url) };
    assert!(matches!(webhooks().call_gate(&hasty, &subject(), None).await, GateReply::Unreachable { .. }));
}

#[tokio::test]
async fn a_status_that_may_change_is_retried_as_configured() {
    for (first, retries, expected) in [
        ([503, 503, 200], 3, Ok(3)),
        ([429, 500, 202], 2, Ok(3)),
        ([502, 503, 200], 1, Err((2, "503 Service Unavailable"))),
        ([500, 200, 200], 0, Err((1, "500 Internal Server Error"))),
        ([503, 403, 200], 3, Err((2, "403 Forbidden"))),
    ] {
        let receiver = Receiver::start(first.map(|status| answer(status, ""))).await;
        let hook = Webhook { retries: Some(retries), ..hook("gate", &receiver.url) };
        let reply = webhooks().call_gate(&hook, &subject(), None).await;
        let (requests, expected) = match expected {
            Ok(requests) => (requests, GateReply::Yes { by: None }),
            Err((requests, why)) => (requests, GateReply::No { by: None, why: why.to_owned() }),
        };
        assert_eq!((receiver.received().len(), reply), (requests, expected), "{first:?}");
    }
}

/// Answers 503 with a `Retry-After` of so many seconds, once; then 200.
struct BusyTransport(u64, AtomicUsize);

#[async_trait]
impl HookTransport for BusyTransport {
    async fn send(&self, _: &HookRequest) -> Result<HookResponse, HookError> {
        if self.1.fetch_add(1, Ordering::Relaxed) > 0 {
            return Ok(HookResponse::default());
        }
        let retry_after = Some(Duration::from_secs(self.0));
        Ok(HookResponse { status: http::StatusCode::SERVICE_UNAVAILABLE, retry_after })
    }
}

#[tokio::test(start_paused = true)]
async fn a_retry_waits_as_long_as_the_receiver_asks_within_the_timeout() {
    for (asked, waited) in [(7, 7), (3600, 20), (0, 0)] {
        let webhooks = Webhooks::with_transport(Arc::new(BusyTransport(asked, AtomicUsize::new(0))));
        let timeout = Some("20s".parse().unwrap());
        let hook = Webhook { timeout, retries: Some(1), ..hook("gate", "http://busy/") };
        let began = tokio::time::Instant::now();
        assert_eq!(webhooks.call_gate(&hook, &subject(), None).await, GateReply::Yes { by: None });
        assert_eq!(began.elapsed().as_secs(), waited);
    }
}

#[tokio::test]
async fn an_endless_response_is_not_read() {
    let endless = futures::stream::repeat_with(|| Ok::<_, std::io::Error>(Bytes::from_static(&[b'x'; 1024])));
    let receiver = Receiver::start([answer(500, Body::from_stream(endless))]).await;
    let began = Instant::now();
    let GateReply::No { why, .. } =
        webhooks().call_gate(&hook("gate", &receiver.url), &subject(), None).await
    else {
        panic!("a refusal")
    };
    assert_eq!(why, "500 Internal Server Error");
    assert!(began.elapsed() < Duration::from_secs(5));
}

#[tokio::test]
async fn a_request_carries_a_verifiable_signature() {
    let receiver = Receiver::start([]).await;
    webhooks().call_gate(&hook("gate", &receiver.url), &subject(), Some(b"the key")).await;
    let got = receiver.received().remove(0);
    let verify = |header: &str, key: &[u8], body: &[u8]| {
        let digits = got.header(header).strip_prefix("sha256=").expect("a signature");
        let bytes: Vec<u8> = (0..digits.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap())
            .collect();
        let mut hmac = Hmac::<Sha256>::new_from_slice(key).unwrap();
        hmac.update(body);
        hmac.verify_slice(&bytes).is_ok()
    };
    let signed = |key: &[u8], body: &[u8]| verify(SIGNATURE_HEADER, key, body);
    assert!(signed(b"the key", &got.body));
    assert!(!signed(b"another", &got.body) && !signed(b"the key", b"{}"));
    let timestamp = got.header(TIMESTAMP_HEADER);
    let timed = [timestamp.as_bytes(), b".", &got.body].concat();
    assert!(verify(TIMED_SIGNATURE_HEADER, b"the key", &timed));
    assert!(!verify(TIMED_SIGNATURE_HEADER, b"the key", &got.body));
    let age = jiff::Timestamp::now().as_second() - timestamp.parse::<i64>().expect("seconds");
    assert!((0..600).contains(&age), "{age}");
}

#[tokio::test]
async fn a_certificate_is_verified_unless_disabled() {
    let webhooks = webhooks();
    let certified = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
    let key = rustls::pki_types::PrivateKeyDer::Pkcs8(certified.signing_key.serialize_der().into());
    let config = rustls::ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![certified.cert.der().clone()], key)
        .unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}/", listener.local_addr().unwrap());
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            if let Ok(stream) = acceptor.accept(stream).await {
                respond_ok(stream).await;
            }
        }
    });
    let strict = hook("gate", &url);
    let GateReply::Unreachable { why } = webhooks.call_gate(&strict, &subject(), None).await else {
        panic!("nobody vouches for it")
    };
    assert!(why.to_lowercase().contains("certificate"), "{why}");
    let lax = Webhook { disable_tls: true, ..strict };
    assert_eq!(webhooks.call_gate(&lax, &subject(), None).await, GateReply::Yes { by: None });
}

fn webhooks() -> Webhooks {
    serin::tls::install_crypto_provider();
    Webhooks::new(&Default::default()).expect("a client")
}

fn hook(name: &str, url: &str) -> Webhook {
    Webhook { name: name.to_owned(), url: url.to_owned(), ..Webhook::default() }
}

fn subject() -> HookContext {
    HookContext {
        name: "web".to_owned(),
        namespace: "prod".to_owned(),
        phase: Phase::Progressing,
        checksum: "1-abc".to_owned(),
    }
}

/// An HTTP server with one response.
async fn respond_ok(mut stream: impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin) {
    let mut request = [0; 4096];
    let _ = stream.read(&mut request).await;
    let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").await;
    let _ = stream.shutdown().await;
}

#[tokio::test]
async fn a_link_local_address_is_not_called() {
    let url = "http://169.254.169.254/latest/meta-data";
    let GateReply::Unreachable { why } = webhooks().call_gate(&hook("gate", url), &subject(), None).await
    else {
        panic!("not called")
    };
    assert_eq!(
        why,
        "invalid request: the url leads to 169.254.169.254, to which tenants' addresses may not lead; name another server, or start the controller with --allow-cidr"
    );
}

/// Never responds; a call of it waits for its timeout.
#[derive(Default)]
struct HangingTransport(AtomicUsize);

#[async_trait]
impl HookTransport for HangingTransport {
    async fn send(&self, request: &HookRequest) -> Result<HookResponse, HookError> {
        self.0.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(request.timeout).await;
        Err(HookError::TimedOut)
    }
}

/// Whatever an API server with an older definition has admitted.
#[tokio::test(start_paused = true)]
async fn a_call_ends_after_five_minutes_with_all_its_retries() {
    for (timeout, attempts) in [("999999h", 1), ("5m", 1), ("2m", 3), ("30s", 10)] {
        let transport = Arc::new(HangingTransport::default());
        let webhooks = Webhooks::with_transport(Arc::clone(&transport) as _);
        let timeout = Some(timeout.parse().unwrap());
        let hook = Webhook { timeout, retries: Some(100), ..hook("gate", "http://hangs/") };
        let began = tokio::time::Instant::now();
        let reply = webhooks.call_gate(&hook, &subject(), None).await;
        assert!(matches!(reply, GateReply::Unreachable { .. }), "{reply:?}");
        assert!(began.elapsed() <= MAX_CALL_DURATION, "{:?}", began.elapsed());
        assert_eq!(transport.0.load(Ordering::Relaxed), attempts, "{timeout:?}");
    }
}
