//! Connections of proxies. They are accepted at once and served at a bounded rate, so that a
//! restart is no storm, and end at an age with jitter, so that proxies spread over replicas
//! again.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use envoy_types::pb::envoy::service::discovery::v3::aggregated_discovery_service_server::AggregatedDiscoveryServiceServer;
use envoy_types::pb::envoy::service::endpoint::v3::endpoint_discovery_service_server::EndpointDiscoveryServiceServer;
use http::Request;
use hyper::{body::Incoming, server::conn::http2, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tonic::service::Routes;
use tower::ServiceExt as _;

use super::ControlPlane;
use super::discovery::{Discovery, Peer};
use super::peer;
use crate::catalog::Identity;
use crate::tls::Certificate;

/// Connections that the kernel keeps until they are accepted; it resets others. Its own limit
/// (`net.core.somaxconn`) is 4096 by default.
const BACKLOG: u32 = 4096;
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// A proxy that is gone without a word is noticed.
const PING_INTERVAL: Duration = Duration::from_secs(20);
const PING_TIMEOUT: Duration = Duration::from_secs(10);
/// For streams to end after the GOAWAY.
const CLOSE_GRACE: Duration = Duration::from_secs(5);
const MAX_STREAMS_PER_CONNECTION: u32 = 16;
const MAX_HEADER_BYTES: u32 = 16 * 1024;
/// Sources that have not delivered are reported that often.
const READY_REPORT_INTERVAL: Duration = Duration::from_secs(10);

/// A listener that a storm of connections does not overflow. In a tokio runtime.
pub fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv6() { TcpSocket::new_v6() } else { TcpSocket::new_v4() }?;
    // As `TcpListener::bind` does: the port of a process that has just ended is free.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

impl ControlPlane {
    /// Serves proxies until `shutdown`, once the catalog is complete; with mutual TLS if
    /// there is a certificate. Without one every proxy is anonymous.
    pub async fn serve(
        self: &Arc<Self>,
        listener: TcpListener,
        certificate: Option<Certificate>,
        shutdown: CancellationToken,
    ) {
        let (certificate, connections) = (certificate.map(Arc::new), TaskTracker::new());
        let accepting = async {
            self.catalog_ready().await;
            self.accept(&listener, certificate, &connections, &shutdown).await;
        };
        shutdown.run_until_cancelled(accepting).await;
        drop(listener);
        connections.close();
        connections.wait().await;
    }

    async fn catalog_ready(&self) {
        while timeout(READY_REPORT_INTERVAL, self.catalog.ready()).await.is_err() {
            let waiting_for = self.catalog.unsynced();
            tracing::warn!(
                ?waiting_for,
                "no proxy is configured before these sources have delivered everything once"
            );
        }
    }

    async fn accept(
        self: &Arc<Self>,
        listener: &TcpListener,
        certificate: Option<Arc<Certificate>>,
        connections: &TaskTracker,
        shutdown: &CancellationToken,
    ) {
        let permits = Arc::new(Semaphore::new(self.options.max_connections));
        let interval = Duration::from_secs(1) / self.options.accept_rate.max(1);
        // A tenth of a second's connections may be served at once.
        let burst = Duration::from_millis(100);
        let mut next = Instant::now();
        let router = self.router();
        loop {
            let Ok(permit) = Arc::clone(&permits).acquire_owned().await else { return };
            let stream = match listener.accept().await {
                Ok((stream, _)) => stream,
                // Probably out of file descriptors: wait for connections to close.
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection of a proxy");
                    sleep(Duration::from_millis(100)).await;
                    continue;
                }
            };
            let now = Instant::now();
            let start = next.max(now.checked_sub(burst).unwrap_or(now));
            next = start + interval;
            let (plane, router) = (Arc::clone(self), router.clone());
            let (certificate, shutdown) = (certificate.clone(), shutdown.clone());
            connections.spawn(async move {
                if shutdown.run_until_cancelled(sleep_until(start)).await.is_some() {
                    plane.connection(stream, router, certificate, shutdown).await;
                }
                drop(permit);
            });
        }
    }

    fn router(&self) -> Router {
        let discovery = Discovery { shared: Arc::clone(&self.shared) };
        let limit = self.options.max_request_bytes;
        let aggregated =
            AggregatedDiscoveryServiceServer::new(discovery.clone()).max_decoding_message_size(limit);
        let endpoints = EndpointDiscoveryServiceServer::new(discovery).max_decoding_message_size(limit);
        Routes::new(aggregated).add_service(endpoints).prepare().into_axum_router()
    }

    async fn connection(
        self: Arc<Self>,
        stream: TcpStream,
        router: Router,
        certificate: Option<Arc<Certificate>>,
        shutdown: CancellationToken,
    ) {
        let _ = stream.set_nodelay(true);
        let Ok(address) = stream.peer_addr() else { return };
        let closing = CancellationToken::new();
        let peer = |identity| Peer { identity, address: address.ip(), closing: closing.clone() };
        let Some(certificate) = certificate else {
            let serving = self.serve_connection(stream, peer(Identity::Anonymous), router, shutdown);
            return Box::pin(serving).await;
        };
        // Memory of one stage is not kept through the next: there is a task for each proxy.
        let handshake = TlsAcceptor::from(certificate.config()).accept(stream);
        let stream = match Box::pin(timeout(HANDSHAKE_TIMEOUT, handshake)).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return tracing::info!(%address, %error, "TLS handshake with a proxy failed"),
            Err(_) => return,
        };
        let chain = stream.get_ref().1.peer_certificates().unwrap_or_default();
        let identity = chain.first().ok_or(peer::PeerError::Unreadable).and_then(peer::identity);
        match identity {
            Ok(identity) => {
                let peer = peer(identity);
                Box::pin(self.serve_connection(stream, peer, router, shutdown)).await;
            }
            Err(error) => tracing::info!(%address, %error, "a proxy was refused"),
        }
    }

    async fn serve_connection(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        peer: Peer,
        router: Router,
        shutdown: CancellationToken,
    ) {
        let closing = peer.closing.clone();
        let service = service_fn(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(peer.clone());
            router.clone().oneshot(request)
        });
        let mut server = http2::Builder::new(TokioExecutor::new());
        server
            .timer(TokioTimer::new())
            .keep_alive_interval(PING_INTERVAL)
            .keep_alive_timeout(PING_TIMEOUT)
            .max_concurrent_streams(MAX_STREAMS_PER_CONNECTION)
            .max_header_list_size(MAX_HEADER_BYTES);
        let mut connection = Box::pin(server.serve_connection(TokioIo::new(stream), service));
        let age = self.options.max_connection_age.mul_f64(0.9 + 0.2 * fastrand::f64());
        let ended = tokio::select! {
            ended = &mut connection => Some(ended),
            () = shutdown.cancelled() => None,
            () = sleep(age) => None,
        };
        let ended = match ended {
            Some(ended) => Ok(ended),
            None => {
                connection.as_mut().graceful_shutdown();
                closing.cancel();
                timeout(CLOSE_GRACE, connection).await
            }
        };
        if let Ok(Err(error)) = ended {
            tracing::debug!(%error, "the connection of a proxy ended with an error");
        }
    }
}
