//! Real Envoys, and workloads behind them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use serde_json::{Value, json};
use serin::xds::{Bootstrap, NodeConfig};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;

use crate::support::{Child, Folder, Part, eventually, free_port, program};

const START_LIMIT: Duration = Duration::from_secs(180);

/// Describes every request in its response.
pub struct Workload {
    pub address: SocketAddr,
    pub requests: Arc<AtomicUsize>,
    _serving: AbortOnDropHandle<()>,
}

impl Workload {
    pub async fn start(name: &'static str) -> Workload {
        let requests = Arc::<AtomicUsize>::default();
        let count = Arc::clone(&requests);
        let answer = move |request: Request| {
            count.fetch_add(1, Ordering::Relaxed);
            std::future::ready(describe(name, &request))
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let router = Router::new().fallback(answer);
        let serving = tokio::spawn(async move { axum::serve(listener, router).await.expect("serve") });
        Workload { address, requests, _serving: AbortOnDropHandle::new(serving) }
    }

    /// Sends its name to every connection.
    pub async fn tcp(name: &'static str) -> Workload {
        let requests = Arc::<AtomicUsize>::default();
        let count = Arc::clone(&requests);
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let serving = tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                count.fetch_add(1, Ordering::Relaxed);
                let _ = stream.write_all(name.as_bytes()).await;
            }
        });
        Workload { address, requests, _serving: AbortOnDropHandle::new(serving) }
    }
}

fn describe(name: &str, request: &Request) -> Response {
    if request.uri().path() == "/fail" {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    }
    let header = |name: &str| {
        request.headers().get(name).map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned())
    };
    let seen = json!({
        "name": name,
        "path": request.uri().path_and_query().map(ToString::to_string),
        "host": header("host"),
        "added": header("x-added"),
        "removed": header("x-removed"),
    });
    ([("served-by", name.to_owned())], seen.to_string()).into_response()
}

pub struct Envoy {
    child: Child,
    admin: SocketAddr,
    _folder: Folder,
}

impl Envoy {
    /// It is ready when it has its listeners.
    pub async fn start(control_plane: SocketAddr, id: &str, config: NodeConfig) -> Envoy {
        Self::start_with(control_plane, id, config, |_| {}).await
    }

    pub async fn start_with(
        control_plane: SocketAddr,
        id: &str,
        config: NodeConfig,
        change: impl FnOnce(&mut Value),
    ) -> Envoy {
        let admin = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let (host, port) = (control_plane.ip().to_string(), control_plane.port());
        let bootstrap = Bootstrap { node: id.to_owned(), config, host, port, tls: None, admin: Some(admin) };
        let mut bootstrap = bootstrap.to_json();
        change(&mut bootstrap);
        let folder = Folder::new("xds-envoy");
        folder.write("envoy.json", &bootstrap.to_string());
        let envoy = program(Part::Envoy, "envoy").unwrap_or_else(|error| panic!("{error}"));
        let arguments = ["--config-path", "envoy.json", "--concurrency", "1", "--disable-hot-restart"];
        let child = Child::start(folder.path(), &envoy, arguments);
        let mut envoy = Envoy { child, admin, _folder: folder };
        let began = std::time::Instant::now();
        while envoy.get("/ready").await.0 != 200 {
            assert!(!envoy.child.has_ended(), "{}", envoy.child.tail());
            assert!(began.elapsed() < START_LIMIT, "{}", envoy.child.tail());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        envoy
    }

    /// From its administration.
    pub async fn get(&self, path: &str) -> (u16, String) {
        let client = reqwest::Client::builder().no_proxy().build().expect("an HTTP client");
        match client.get(format!("http://{}{path}", self.admin)).send().await {
            Ok(answer) => (answer.status().as_u16(), answer.text().await.unwrap_or_default()),
            Err(error) => (0, error.to_string()),
        }
    }

    pub async fn statistic(&self, name: &str) -> u64 {
        let (_, text) = self.get(&format!("/stats?filter=^{name}$")).await;
        text.rsplit_once(": ")
            .and_then(|(_, value)| value.trim().parse().ok())
            .unwrap_or_else(|| panic!("{name}: {text:?}"))
    }

    pub fn log(&self) -> String {
        self.child.tail()
    }

    /// Waits until a listener is there.
    pub async fn listens(&self, address: SocketAddr) {
        eventually(&format!("nothing listens on {address}; {}", self.log()), START_LIMIT, async || {
            tokio::net::TcpStream::connect(address).await.is_ok()
        })
        .await;
    }
}

pub fn local_address() -> SocketAddr {
    ([127, 0, 0, 1], free_port()).into()
}

/// A node that calls `web` by this address.
pub fn calls_web(listen: SocketAddr) -> NodeConfig {
    let upstream = format!("shop/web:80={listen}").parse().expect("an upstream");
    NodeConfig { upstreams: vec![upstream], ..NodeConfig::default() }
}
