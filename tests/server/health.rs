//! Health and readiness.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::body::Body;
use http::{Method, Request};
use kube::Client;
use kube::config::{KubeConfigOptions, Kubeconfig};
use parking_lot::Mutex;
use serde_json::json;
use serin::server::{self, Options};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tower::ServiceExt as _;

use crate::world::World;

/// The loop has a thread and a runtime of its own. Of the threads of one runtime it
/// may be the one that waits for sockets and timers on behalf of all, and when it
/// hangs, no thread is left to detect it.
#[tokio::test]
async fn a_hanging_run_loop_fails_liveness() {
    let world = World::new().await;
    let pages = world.pages(Options::default()).await;
    assert_eq!(pages.get("/healthz").await.code, 200);
    let (hangs, stop) = (Arc::new(AtomicBool::new(false)), CancellationToken::new());
    let hang = Arc::clone(&hangs);
    let mut stopped = Box::pin(stop.clone().cancelled_owned());
    let stopped = poll_fn(move |context| {
        while hang.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(5));
        }
        stopped.as_mut().poll(context)
    });
    let controller = world.controller(world.client.clone()).await;
    let serin = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(controller.run(stopped));
    });
    pages.becomes("/readyz", 200, "ok").await;
    assert_eq!(pages.get("/healthz").await.code, 200);

    hangs.store(true, Ordering::Relaxed);
    pages.becomes("/healthz", 503, "the controller's loop did not answer within 3s").await;
    hangs.store(false, Ordering::Relaxed);
    pages.becomes("/healthz", 200, "ok\n").await;

    stop.cancel();
    pages.becomes("/readyz", 503, "the controller ends\n").await;
    tokio::task::spawn_blocking(|| serin.join()).await.expect("a thread").expect("it ends well");
}

/// On paused time, and so not over sockets.
#[tokio::test(start_paused = true)]
async fn a_stuck_reconcile_that_blocks_others_fails_liveness() {
    let world = World::new().await;
    for name in ["web", "web-too"] {
        world.canary(name, json!({})).await;
    }
    let inner = world.client.clone();
    let client = client_with_middleware(inner, |request| async move {
        match *request.method() {
            Method::POST | Method::PATCH | Method::PUT => std::future::pending().await,
            _ => request,
        }
    });
    let options = serin::controller::Options { concurrency: 1, ..Default::default() };
    let controller = world.controller_with(client, options).await;
    let _serin = AbortOnDropHandle::new(tokio::spawn(controller.run(std::future::pending())));
    let pages = server::metrics_router(Arc::clone(&world.vitals), Options::default());
    let health = async || {
        let request = Request::get("/healthz").body(Body::empty()).expect("a request");
        let answer = pages.clone().oneshot(request).await.expect("an answer");
        let code = answer.status().as_u16();
        let body = axum::body::to_bytes(answer.into_body(), 4096).await.expect("a body");
        (code, String::from_utf8(body.to_vec()).expect("text"))
    };
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(health().await.0, 200);
    assert_eq!((world.vitals.health.queued(), world.vitals.health.processing()), (1, 1));
    tokio::time::sleep(Duration::from_secs(600)).await;
    let (code, why) = health().await;
    assert_eq!(code, 503, "{why}");
    assert!(why.starts_with("1 Canaries wait and work on 1 has not ended for 1"), "{why}");
}

#[tokio::test]
async fn the_controller_is_ready_after_the_first_lists() {
    let world = World::new().await;
    world.canary("web", json!({})).await;
    let pages = world.pages(Options::default()).await;
    let answer = pages.get("/readyz").await;
    assert_eq!((answer.code, answer.text.as_str()), (503, "the controller has not begun yet\n"));

    let (open, opened) = watch::channel(Vec::new());
    let client = client_with_middleware(world.client.clone(), move |request| {
        let mut opened = opened.clone();
        async move {
            // Discovery names no kind, so it goes through.
            let kind = ["canaries", "deployments"]
                .into_iter()
                .find(|kind| request.uri().path().trim_end_matches('/').ends_with(kind));
            if let Some(kind) = kind {
                let _ = opened.wait_for(|opened: &Vec<&str>| opened.contains(&kind)).await;
            }
            request
        }
    });
    let controller = world.controller(client).await;
    let _serin = AbortOnDropHandle::new(tokio::spawn(controller.run(std::future::pending())));
    pages.becomes("/readyz", 503, "the list of canaries has not come yet\n").await;
    assert_eq!(pages.get("/healthz").await.code, 200);
    open.send_modify(|opened| opened.push("canaries"));
    pages.becomes("/readyz", 503, "the list of deployments has not come yet\n").await;
    open.send_modify(|opened| opened.push("deployments"));
    pages.becomes("/readyz", 200, "ok\n").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_api_server_the_controller_is_alive_and_not_ready() {
    let world = World::new().await;
    world.canary("web", json!({})).await;
    let serving = world.api_server.serve(([127, 0, 0, 1], 0).into()).await.expect("a free port");
    let road = CuttableConnection::to(serving.address).await;
    let kubeconfig =
        serving.kubeconfig().replace(&serving.address.port().to_string(), &road.port.to_string());
    let kubeconfig = Kubeconfig::from_yaml(&kubeconfig).expect("a kubeconfig");
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await;
    let client = Client::try_from(config.expect("a complete kubeconfig")).expect("a client");

    let pages = world.pages(Options::default()).await;
    let (controller, stop) = (world.controller(client).await, CancellationToken::new());
    let serin = tokio::spawn(controller.run(stop.clone().cancelled_owned()));
    pages.becomes("/readyz", 200, "ok\n").await;
    road.cut();
    pages.becomes("/readyz", 503, "the API server does not answer: ").await;
    assert_eq!(pages.get("/healthz").await.code, 200);
    let shown = pages.series().await;
    shown.at_least("serin_watch_restarts_total", 1.0);
    shown.at_least(r#"serin_api_requests_total{verb="watch",result="unreachable"}"#, 1.0);
    shown.is(r#"serin_canaries{namespace="default"}"#, 1.0);
    road.restore().await;
    pages.becomes("/readyz", 200, "ok\n").await;

    stop.cancel();
    serin.await.expect("it ends well");
    pages.becomes("/readyz", 503, "the controller ends\n").await;
    assert_eq!(pages.get("/healthz").await.code, 200);
}

/// A client whose requests pass a filter.
fn client_with_middleware<P, F>(client: Client, pass: P) -> Client
where
    P: Fn(Request<kube::client::Body>) -> F + Send + Sync + 'static,
    F: Future<Output = Request<kube::client::Body>> + Send + 'static,
{
    let service = tower::service_fn(move |request| {
        let (client, passing) = (client.clone(), pass(request));
        async move { client.send(passing.await).await }
    });
    Client::new(service, "default")
}

/// Connections to a server, which can be cut.
struct CuttableConnection {
    port: u16,
    to: std::net::SocketAddr,
    forwarding: Mutex<Option<AbortOnDropHandle<()>>>,
}

impl CuttableConnection {
    async fn to(to: std::net::SocketAddr) -> Self {
        let road = Self { port: crate::support::free_port(), to, forwarding: Mutex::default() };
        road.restore().await;
        road
    }

    fn cut(&self) {
        *self.forwarding.lock() = None;
    }

    async fn restore(&self) {
        let listener = TcpListener::bind(("127.0.0.1", self.port)).await.expect("the port is still free");
        let to = self.to;
        let carry = async move {
            let mut carried = tokio::task::JoinSet::new();
            while let Ok((mut from, _)) = listener.accept().await {
                carried.spawn(async move {
                    let mut to = TcpStream::connect(to).await.expect("the server");
                    let _ = tokio::io::copy_bidirectional(&mut from, &mut to).await;
                });
            }
        };
        *self.forwarding.lock() = Some(AbortOnDropHandle::new(tokio::spawn(carry)));
    }
}
