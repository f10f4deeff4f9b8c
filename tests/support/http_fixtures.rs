//! Small servers of the tests' own: applications whose counters a test sets,
//! and proxies in front of Prometheus.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use parking_lot::Mutex;
use tokio_util::task::AbortOnDropHandle;

/// An application with the metrics page that a test sets; without one it fails.
pub struct App {
    text: Arc<Mutex<Option<String>>>,
    pub address: String,
    _serving: AbortOnDropHandle<()>,
}

impl App {
    pub async fn start() -> App {
        let text: Arc<Mutex<Option<String>>> = Arc::default();
        let router = Router::new().fallback(show).with_state(text.clone());
        let (address, serving) = serve(router).await;
        App { text, address, _serving: serving }
    }

    pub fn show(&self, text: &str) {
        *self.text.lock() = Some(text.to_owned());
    }

    pub fn fail(&self) {
        *self.text.lock() = None;
    }

    pub fn url(&self) -> String {
        format!("http://{}/metrics", self.address)
    }
}

async fn show(State(text): State<Arc<Mutex<Option<String>>>>) -> Response {
    match text.lock().clone() {
        Some(text) => text.into_response(),
        None => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

/// A proxy that checks tokens, can be closed or slow, and counts requests.
pub struct GuardedProxy {
    pub upstream: String,
    /// The required token; it may change.
    pub bearer: Mutex<Option<&'static str>>,
    pub header: Option<(&'static str, &'static str)>,
    pub refuse_first: u32,
    pub delay: Duration,
    pub requests: AtomicU32,
}

impl GuardedProxy {
    pub fn to(behind: String) -> GuardedProxy {
        GuardedProxy {
            upstream: behind,
            bearer: Mutex::default(),
            header: None,
            refuse_first: 0,
            delay: Duration::ZERO,
            requests: AtomicU32::new(0),
        }
    }

    /// Its URL; it is open until the handle is dropped.
    pub async fn open(self) -> (Arc<GuardedProxy>, String, AbortOnDropHandle<()>) {
        let proxy = Arc::new(self);
        let (address, serving) = serve(Router::new().fallback(pass).with_state(proxy.clone())).await;
        (proxy, format!("http://{address}"), serving)
    }
}

async fn pass(State(proxy): State<Arc<GuardedProxy>>, request: Request) -> Response {
    let knock = proxy.requests.fetch_add(1, Ordering::Relaxed);
    let (request, body) = request.into_parts();
    tokio::time::sleep(proxy.delay).await;
    let header = |name| request.headers.get(name).and_then(|value| value.to_str().ok());
    if knock < proxy.refuse_first {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    }
    let bearer = *proxy.bearer.lock();
    if bearer.is_some_and(|token| header("authorization") != Some(format!("Bearer {token}").as_str())) {
        return StatusCode::FORBIDDEN.into_response();
    }
    if proxy.header.is_some_and(|(name, value)| header(name) != Some(value)) {
        return StatusCode::BAD_REQUEST.into_response();
    }
    let path = request.uri.path_and_query().map_or("/", |path| path.as_str());
    let body = axum::body::to_bytes(body, 1 << 20).await.expect("a body");
    let onward =
        reqwest::Client::new().request(request.method, format!("{}{path}", proxy.upstream)).body(body);
    let onward = match request.headers.get(CONTENT_TYPE) {
        Some(form) => onward.header(CONTENT_TYPE, form),
        None => onward,
    };
    match onward.send().await {
        Ok(answer) => {
            let status = StatusCode::from_u16(answer.status().as_u16()).expect("a status");
            (status, Body::from(answer.bytes().await.unwrap_or_default())).into_response()
        }
        Err(_) => StatusCode::BAD_GATEWAY.into_response(),
    }
}

pub async fn serve(router: Router) -> (String, AbortOnDropHandle<()>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("a bound listener has an address").to_string();
    let serving = tokio::spawn(async move { axum::serve(listener, router).await.expect("serve") });
    (address, AbortOnDropHandle::new(serving))
}
