//! The Kubernetes client: HTTP/2 if the API server supports it, with one
//! connection for all requests and one for the watches of each namespace.
//!
//! A connection can be dead without being closed, after a node or firewall
//! failure, and the watches on it would stall for minutes. Idle connections are
//! therefore probed by HTTP/2 pings; a ping without a response closes the
//! connection, and its requests are retried on a new one.

use std::{
    collections::HashMap,
    path::PathBuf,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use anyhow::Context as _;
use http::{Request, Uri};
use hyper_rustls::{FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{self, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use kube::{
    Client, Config,
    client::{Body, ConfigExt as _, retry::RetryPolicy},
};
use parking_lot::Mutex;
use tower::{BoxError, Service, ServiceBuilder, retry::RetryLayer, timeout::TimeoutLayer};

use super::connect::ClusterArgs;
use crate::telemetry::{Telemetry, is_watch};

/// Idle time before a ping.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(15);
/// Of a ping.
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(10);

/// Until the response headers, which a watch gets at once. The API server's own
/// timeout is a minute.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(70);

/// Retries of a request that the API server throttled (429) or failed (5xx).
/// After the last one the reconcile fails and is requeued.
const MAX_RETRIES: u32 = 5;
const MIN_RETRY_DELAY: Duration = Duration::from_millis(50);
const MAX_RETRY_DELAY: Duration = Duration::from_secs(5);

/// For the cluster of `kubeconfig`, else that of kubectl's current context, else
/// the one this process runs in. Counts requests.
pub(super) async fn client(
    kubeconfig: Option<PathBuf>,
    telemetry: &Arc<Telemetry>,
) -> anyhow::Result<Client> {
    let (config, _) = ClusterArgs { kubeconfig, context: None }.config(None).await?;
    connect(config, telemetry).context("set up the client of the cluster")
}

fn connect(config: Config, telemetry: &Arc<Telemetry>) -> anyhow::Result<Client> {
    if config.proxy_url.is_some() {
        anyhow::bail!("the kubeconfig has a proxy-url, which is not supported; leave it out");
    }
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(config.connect_timeout);
    let mut tls =
        HttpsConnectorBuilder::new().with_tls_config(config.rustls_client_config()?).https_or_http();
    if let Some(name) = &config.tls_server_name {
        let name = name.clone().try_into().context("the kubeconfig's tls-server-name")?;
        tls = tls.with_server_name_resolver(FixedServerNameResolver::new(name));
    }
    let mut http = legacy::Client::builder(TokioExecutor::new());
    http.timer(TokioTimer::new())
        .http2_keep_alive_interval(KEEP_ALIVE_INTERVAL)
        .http2_keep_alive_timeout(KEEP_ALIVE_TIMEOUT);
    let connections = Connections::new(http, tls.enable_http1().enable_http2().wrap_connector(tcp));
    let service = ServiceBuilder::new()
        .layer_fn(|service| telemetry.count_requests(service))
        .layer(config.base_uri_layer())
        .layer(RetryLayer::new(RetryPolicy::new(MIN_RETRY_DELAY, MAX_RETRY_DELAY, MAX_RETRIES, true)?))
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .layer(TimeoutLayer::new(RESPONSE_TIMEOUT))
        .map_err(BoxError::from)
        .service(connections);
    Ok(Client::new(service, config.default_namespace))
}

type HttpClient = legacy::Client<HttpsConnector<HttpConnector>, Body>;

/// API servers allow about a hundred concurrent streams per connection. Watches
/// are long-lived: those of a dozen namespaces would use them all up.
#[derive(Clone)]
struct Connections {
    http: legacy::Builder,
    connector: HttpsConnector<HttpConnector>,
    requests: HttpClient,
    /// By namespace; empty for watches of all namespaces.
    watches: Arc<Mutex<HashMap<String, HttpClient>>>,
}

impl Connections {
    fn new(http: legacy::Builder, connector: HttpsConnector<HttpConnector>) -> Self {
        let requests = http.build(connector.clone());
        Self { http, connector, requests, watches: Arc::default() }
    }

    fn watch_client(&self, namespace: &str) -> HttpClient {
        let mut watches = self.watches.lock();
        let new = || self.http.build(self.connector.clone());
        watches.entry(namespace.to_owned()).or_insert_with(new).clone()
    }
}

impl Service<Request<Body>> for Connections {
    type Response = <HttpClient as Service<Request<Body>>>::Response;
    type Error = <HttpClient as Service<Request<Body>>>::Error;
    type Future = <HttpClient as Service<Request<Body>>>::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Service::poll_ready(&mut self.requests, context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        match is_watch(request.uri()) {
            true => self.watch_client(namespace(request.uri())).call(request),
            false => self.requests.call(request),
        }
    }
}

fn namespace(uri: &Uri) -> &str {
    let mut parts = uri.path().split('/');
    parts.by_ref().find(|part| *part == "namespaces").and_then(|_| parts.next()).unwrap_or_default()
}
