//! A real HTTP receiver on loopback that keeps its requests and sends canned
//! responses.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::response::Response;
use http::{HeaderMap, StatusCode, Uri};
use parking_lot::Mutex;
use serde_json::Value;
use tokio_util::task::AbortOnDropHandle;

pub struct Receiver {
    pub url: String,
    shared: Arc<Shared>,
    _task: AbortOnDropHandle<()>,
}

#[derive(Default)]
struct Shared {
    received: Mutex<Vec<ReceivedRequest>>,
    answers: Mutex<VecDeque<CannedResponse>>,
}

/// One request.
#[derive(Clone, Debug)]
pub struct ReceivedRequest {
    pub uri: Uri,
    pub headers: HeaderMap,
    pub body: Bytes,
    pub at: Instant,
}

impl ReceivedRequest {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).expect("a body in JSON")
    }

    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map(|value| value.to_str().expect("a header of text")).unwrap_or_default()
    }
}

/// A response; 200 once the canned ones are used up.
pub struct CannedResponse {
    status: u16,
    headers: Vec<(&'static str, String)>,
    body: Body,
    after: Duration,
}

pub fn answer(status: u16, body: impl Into<Body>) -> CannedResponse {
    CannedResponse { status, headers: Vec::new(), body: body.into(), after: Duration::ZERO }
}

/// Refuses for longer than any test lasts.
pub fn endless_refusals() -> impl Iterator<Item = CannedResponse> {
    std::iter::repeat_with(|| answer(403, "not yet")).take(10_000)
}

impl CannedResponse {
    pub fn header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    pub fn after(mut self, after: Duration) -> Self {
        self.after = after;
        self
    }
}

impl Receiver {
    /// Sends these responses first, in their order.
    pub async fn start(answers: impl IntoIterator<Item = CannedResponse>) -> Receiver {
        let shared =
            Arc::new(Shared { answers: Mutex::new(answers.into_iter().collect()), ..Default::default() });
        let router = Router::new().fallback(receive).with_state(shared.clone());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a loopback port");
        let url = format!("http://{}/hook", listener.local_addr().expect("a bound listener"));
        let task = tokio::spawn(async move { axum::serve(listener, router).await.expect("serving") });
        Receiver { url, shared, _task: AbortOnDropHandle::new(task) }
    }

    /// Replaces the remaining responses.
    pub fn set_responses(&self, answers: impl IntoIterator<Item = CannedResponse>) {
        *self.shared.answers.lock() = answers.into_iter().collect();
    }

    pub fn received(&self) -> Vec<ReceivedRequest> {
        self.shared.received.lock().clone()
    }

    /// Waits until so many requests have come.
    pub async fn await_received(&self, count: usize) -> Vec<ReceivedRequest> {
        let began = Instant::now();
        loop {
            let got = self.received();
            if got.len() >= count {
                return got;
            }
            assert!(began.elapsed() < Duration::from_secs(30), "{} of {count} requests came", got.len());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

async fn receive(State(shared): State<Arc<Shared>>, uri: Uri, headers: HeaderMap, body: Bytes) -> Response {
    shared.received.lock().push(ReceivedRequest { uri, headers, body, at: Instant::now() });
    let answer = shared.answers.lock().pop_front();
    let CannedResponse { status, headers, body, after } = answer.unwrap_or_else(|| self::answer(200, "ok"));
    tokio::time::sleep(after).await;
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::from_u16(status).expect("a status");
    for (name, value) in headers {
        response.headers_mut().insert(name, value.parse().expect("a header"));
    }
    response
}
