//! Accepts connections, bounded in number and age. When there are too many, the oldest
//! one without a request in progress is closed: clients that send a request slowly, or
//! read a response slowly, keep nobody out.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Weak,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::Router;
use http::Request;
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{sleep, timeout},
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use tokio_util::{
    sync::CancellationToken,
    task::{AbortOnDropHandle, TaskTracker},
};
use tower::ServiceExt as _;

use crate::tls::Certificate;

/// With a request in progress; others wait.
const MAX_CONNECTIONS: usize = 64;
/// Of a page that people look at: each has a stream, and requests beside it.
const MAX_VIEWER_CONNECTIONS: usize = 512;
/// For the TLS handshake, the headers of a request, and idle time before the next.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// Older connections are closed after their current request.
const MAX_CONNECTION_AGE: Duration = Duration::from_secs(60);
/// For the current request of an old connection, and of all at shutdown.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(5);

#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: {source}")]
pub struct BindError {
    pub address: SocketAddr,
    source: std::io::Error,
}

/// Bound, but not serving yet.
pub struct BoundServer {
    pub address: SocketAddr,
    listener: TcpListener,
    max_connections: usize,
}

/// A running server; dropping it aborts all connections.
pub struct ServerHandle {
    pub address: SocketAddr,
    stop: CancellationToken,
    task: AbortOnDropHandle<()>,
}

impl BoundServer {
    /// Port 0 takes a free port.
    pub async fn bind(address: SocketAddr) -> Result<Self, BindError> {
        let failed = |source| BindError { address, source };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok(Self { address, listener, max_connections: MAX_CONNECTIONS })
    }

    /// For more clients, which look at a page.
    pub fn for_viewers(self) -> Self {
        Self { max_connections: MAX_VIEWER_CONNECTIONS, ..self }
    }

    /// With TLS if there is a certificate.
    pub fn serve(self, router: Router, certificate: Option<Certificate>) -> ServerHandle {
        let stop = CancellationToken::new();
        let address = self.address;
        let task = tokio::spawn(accept_loop(self, router, certificate.map(Arc::new), stop.clone()));
        ServerHandle { address, stop, task: AbortOnDropHandle::new(task) }
    }
}

impl ServerHandle {
    /// Accepts no more connections; current requests finish.
    pub async fn shutdown(self) {
        self.stop.cancel();
        let _ = self.task.await;
    }
}

/// An open connection.
#[derive(Default)]
struct Connection {
    /// From the end of a request's headers to its response.
    requests: AtomicUsize,
    shed: CancellationToken,
}

/// In the extensions of a request: cancelled when its connection is to be closed, so that a
/// response that goes on and on can end properly.
#[derive(Clone, Default)]
pub struct Closing(pub CancellationToken);

/// A request in progress.
struct InProgress(Arc<Connection>);

impl InProgress {
    fn on(connection: &Arc<Connection>) -> Self {
        connection.requests.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(connection))
    }
}

impl Drop for InProgress {
    fn drop(&mut self) {
        self.0.requests.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Waits for a place, which is made by closing the oldest idle connection.
async fn place(permits: &Arc<Semaphore>, open: &mut Vec<Weak<Connection>>) -> Option<OwnedSemaphorePermit> {
    open.retain(|connection| connection.strong_count() > 0);
    if permits.available_permits() == 0 {
        let idle = open.iter().filter_map(Weak::upgrade).find(|connection| {
            connection.requests.load(Ordering::Relaxed) == 0 && !connection.shed.is_cancelled()
        });
        if let Some(connection) = idle {
            connection.shed.cancel();
        }
    }
    Arc::clone(permits).acquire_owned().await.ok()
}

async fn accept_loop(
    BoundServer { listener, max_connections, .. }: BoundServer,
    router: Router,
    certificate: Option<Arc<Certificate>>,
    stop: CancellationToken,
) {
    let (permits, connections) = (Arc::new(Semaphore::new(max_connections)), TaskTracker::new());
    let accepting = async {
        let mut open = Vec::new();
        loop {
            match listener.accept().await {
                Ok((stream, _)) => {
                    let Some(permit) = place(&permits, &mut open).await else { return };
                    let connection = Arc::<Connection>::default();
                    open.push(Arc::downgrade(&connection));
                    let (router, certificate, stop) = (router.clone(), certificate.clone(), stop.clone());
                    connections.spawn(async move {
                        let _ = stream.set_nodelay(true);
                        let serve = async {
                            match certificate {
                                None => serve_connection(stream, router, Arc::clone(&connection), stop).await,
                                Some(certificate) => {
                                    if let Some(stream) = tls_accept(stream, &certificate).await {
                                        serve_connection(stream, router, Arc::clone(&connection), stop).await;
                                    }
                                }
                            }
                        };
                        connection.shed.run_until_cancelled(serve).await;
                        drop(permit);
                    });
                }
                // Probably out of file descriptors: wait for connections to close.
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    sleep(Duration::from_millis(100)).await;
                }
            }
        }
    };
    stop.run_until_cancelled(accepting).await;
    drop(listener);
    connections.close();
    connections.wait().await;
}

async fn tls_accept(stream: TcpStream, certificate: &Certificate) -> Option<TlsStream<TcpStream>> {
    let handshake = TlsAcceptor::from(certificate.config()).accept(stream);
    match timeout(HEADER_TIMEOUT, handshake).await {
        Ok(Ok(stream)) => Some(stream),
        Ok(Err(error)) => {
            tracing::debug!(%error, "TLS handshake failed");
            None
        }
        Err(_) => None,
    }
}

async fn serve_connection(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    router: Router,
    open: Arc<Connection>,
    stop: CancellationToken,
) {
    let closing = Closing::default();
    let of_connection = closing.clone();
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(of_connection.clone());
        let (in_progress, response) = (InProgress::on(&open), router.clone().oneshot(request));
        async move {
            let response = response.await;
            drop(in_progress);
            response
        }
    });
    let mut server = auto::Builder::new(TokioExecutor::new()).http1_only();
    server.http1().timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT);
    let connection = server.serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = &mut connection => Some(ended),
        () = stop.cancelled() => None,
        () = sleep(MAX_CONNECTION_AGE) => None,
    };
    let ended = match ended {
        Some(ended) => Ok(ended),
        None => {
            closing.0.cancel();
            connection.as_mut().graceful_shutdown();
            timeout(SHUTDOWN_GRACE, connection).await
        }
    };
    if let Ok(Err(error)) = ended {
        tracing::debug!(error, "connection closed with an error");
    }
}
