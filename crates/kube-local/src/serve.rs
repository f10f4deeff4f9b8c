//! Serves the API on loopback, over TLS, for kubectl and other clients outside the process.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use axum::body::Body;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::Request;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    SanType,
};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_util::task::AbortOnDropHandle;

use super::server::Server;

/// The reason why the API cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("cannot listen on {address}: {source}")]
    Listen { address: SocketAddr, source: std::io::Error },
    #[error("cannot make the server's certificate: {0}")]
    Certificate(#[from] rcgen::Error),
    #[error("cannot set up TLS: {0}")]
    Tls(#[from] rustls::Error),
    #[error("cannot write {path}: {source}")]
    Kubeconfig { path: String, source: std::io::Error },
}

/// Concurrent requests on one connection, as a real API server allows.
const MAX_CONCURRENT_STREAMS: u32 = 100;

/// A listening server; it stops when this is dropped.
pub struct ApiServerHandle {
    pub address: SocketAddr,
    /// The CA that signed the server's certificate, PEM.
    pub ca: String,
    token: String,
    _accepting: AbortOnDropHandle<()>,
}

impl ApiServerHandle {
    pub fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    /// A kubeconfig for the administrator.
    pub fn kubeconfig(&self) -> String {
        let mut text = String::from("apiVersion: v1\nkind: Config\ncurrent-context: serin-local\n");
        // Writing to a String cannot fail.
        let _ = write!(
            text,
            "clusters:\n- name: serin-local\n  cluster:\n    server: {}\n    certificate-authority-data: {}\n\
             users:\n- name: admin\n  user:\n    token: {}\n\
             contexts:\n- name: serin-local\n  context: {{cluster: serin-local, user: admin, namespace: default}}\n",
            self.url(),
            STANDARD.encode(&self.ca),
            self.token
        );
        text
    }

    /// Writes the kubeconfig, readable by its owner only: it holds a token.
    pub fn write_kubeconfig(&self, path: &Path) -> Result<(), ServeError> {
        use std::io::Write;
        use std::os::unix::fs::OpenOptionsExt;
        let failed = |source| ServeError::Kubeconfig { path: path.display().to_string(), source };
        let mut options = std::fs::OpenOptions::new();
        let mut file =
            options.write(true).create(true).truncate(true).mode(0o600).open(path).map_err(failed)?;
        file.write_all(self.kubeconfig().as_bytes()).map_err(failed)
    }
}

pub async fn serve(
    server: Arc<Server>,
    address: SocketAddr,
    token: String,
) -> Result<ApiServerHandle, ServeError> {
    let listener =
        TcpListener::bind(address).await.map_err(|source| ServeError::Listen { address, source })?;
    let address = listener.local_addr().map_err(|source| ServeError::Listen { address, source })?;
    let (ca, tls) = certificates(address)?;
    let acceptor = TlsAcceptor::from(Arc::new(tls));
    let accepting = tokio::spawn(async move {
        loop {
            match listener.accept().await {
                Ok((stream, _)) => {
                    _ = tokio::spawn(serve_connection(server.clone(), acceptor.clone(), stream))
                }
                // Most likely out of file descriptors: wait until connections close.
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
                }
            }
        }
    });
    Ok(ApiServerHandle { address, ca, token, _accepting: AbortOnDropHandle::new(accepting) })
}

async fn serve_connection(server: Arc<Server>, acceptor: TlsAcceptor, stream: TcpStream) {
    let _ = stream.set_nodelay(true);
    let stream = match acceptor.accept(stream).await {
        Ok(stream) => stream,
        Err(error) => return tracing::debug!(%error, "a client's TLS handshake failed"),
    };
    let service = hyper::service::service_fn(move |request: Request<hyper::body::Incoming>| {
        let server = server.clone();
        async move { Ok::<_, std::convert::Infallible>(server.handle(request.map(Body::new)).await) }
    });
    let mut http = auto::Builder::new(TokioExecutor::new());
    http.http2().max_concurrent_streams(MAX_CONCURRENT_STREAMS);
    if let Err(error) = http.serve_connection_with_upgrades(TokioIo::new(stream), service).await {
        tracing::debug!(%error, "a connection ended early");
    }
}

/// A CA created for this server, and a certificate for loopback signed by it.
fn certificates(address: SocketAddr) -> Result<(String, rustls::ServerConfig), ServeError> {
    let mut authority = CertificateParams::new(Vec::new())?;
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    authority.distinguished_name.push(DnType::CommonName, "serin-local-ca");
    let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate()?)?;

    let mut leaf = CertificateParams::new(vec!["localhost".to_owned(), "127.0.0.1".to_owned()])?;
    leaf.subject_alt_names.push(SanType::IpAddress(address.ip()));
    leaf.distinguished_name.push(DnType::CommonName, "serin-local");
    leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let key = KeyPair::generate()?;
    let certificate = leaf.signed_by(&key, &authority)?;

    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut tls = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key)?;
    tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok((authority.pem(), tls))
}
