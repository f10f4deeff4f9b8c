//! Accepts connections, bounded in number and age.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use axum::Router;
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
    service::TowerToHyperService,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    time::{sleep, timeout},
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use tokio_util::{
    sync::CancellationToken,
    task::{AbortOnDropHandle, TaskTracker},
};

use super::certificate::Certificate;

/// Others wait to be accepted.
const MAX_CONNECTIONS: usize = 64;
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
        Ok(Self { address: listener.local_addr().map_err(failed)?, listener })
    }

    /// With TLS if there is a certificate.
    pub fn serve(self, router: Router, certificate: Option<Certificate>) -> ServerHandle {
        let stop = CancellationToken::new();
        let task = tokio::spawn(accept_loop(self.listener, router, certificate.map(Arc::new), stop.clone()));
        ServerHandle { address: self.address, stop, task: AbortOnDropHandle::new(task) }
    }
}

impl ServerHandle {
    /// Accepts no more connections; current requests finish.
    pub async fn shutdown(self) {
        self.stop.cancel();
        let _ = self.task.await;
    }
}

async fn accept_loop(
    listener: TcpListener,
    router: Router,
    certificate: Option<Arc<Certificate>>,
    stop: CancellationToken,
) {
    let (permits, connections) = (Arc::new(Semaphore::new(MAX_CONNECTIONS)), TaskTracker::new());
    let accepting = async {
        while let Ok(permit) = Arc::clone(&permits).acquire_owned().await {
            match listener.accept().await {
                Ok((stream, _)) => {
                    let (router, certificate, stop) = (router.clone(), certificate.clone(), stop.clone());
                    connections.spawn(async move {
                        let _ = stream.set_nodelay(true);
                        match certificate {
                            None => serve_connection(stream, router, stop).await,
                            Some(certificate) => {
                                if let Some(stream) = tls_accept(stream, &certificate).await {
                                    serve_connection(stream, router, stop).await;
                                }
                            }
                        }
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
    stop: CancellationToken,
) {
    let mut server = auto::Builder::new(TokioExecutor::new()).http1_only();
    server.http1().timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT);
    let connection = server.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = &mut connection => Some(ended),
        () = stop.cancelled() => None,
        () = sleep(MAX_CONNECTION_AGE) => None,
    };
    let ended = match ended {
        Some(ended) => Ok(ended),
        None => {
            connection.as_mut().graceful_shutdown();
            timeout(SHUTDOWN_GRACE, connection).await
        }
    };
    if let Ok(Err(error)) = ended {
        tracing::debug!(error, "connection closed with an error");
    }
}
