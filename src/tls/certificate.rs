//! The TLS certificate of a server: two files, as in a Secret of type
//! `kubernetes.io/tls`, and for clients with certificates their authority and its
//! revocations. Renewed files are used from the next connection on.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::SystemTime,
};

use parking_lot::Mutex;
use rustls::{
    RootCertStore, ServerConfig,
    pki_types::{
        CertificateDer, CertificateRevocationListDer, PrivateKeyDer,
        pem::{self, PemObject},
    },
    server::{
        NoServerSessionStorage, VerifierBuilderError, WebPkiClientVerifier, danger::ClientCertVerifier,
    },
};

use super::FrontProxyVerifier;

#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    #[error("cannot read the certificate {}: {source}", .path.display())]
    Certificate { path: PathBuf, source: pem::Error },
    #[error("cannot read the private key {}: {source}", .path.display())]
    Key { path: PathBuf, source: pem::Error },
    #[error("the private key {} does not match the certificate {}: {source}", .key.display(), .certificate.display())]
    Pair { certificate: PathBuf, key: PathBuf, source: rustls::Error },
    #[error("cannot read the certificate authority {}: {source}", .path.display())]
    Authority { path: PathBuf, source: pem::Error },
    #[error("the certificate authority {} is invalid: {source}", .path.display())]
    InvalidAuthority { path: PathBuf, source: rustls::Error },
    #[error("cannot read the revocation list {}: {source}", .path.display())]
    Revocations { path: PathBuf, source: pem::Error },
    #[error("cannot verify clients by the certificate authority {}: {source}", .path.display())]
    Verifier { path: PathBuf, source: VerifierBuilderError },
}

/// Who issues the certificates of clients.
#[derive(Clone, Debug)]
pub struct ClientAuthority {
    /// PEM: one certificate or more.
    pub certificates: PathBuf,
    /// PEM: certificates that are no longer accepted, a list of each authority. Lists are
    /// found by the name of their authority, so two authorities need two names.
    pub revocations: Option<PathBuf>,
}

pub struct Certificate {
    files: Files,
    current: Mutex<(ModifiedTimes, Arc<ServerConfig>)>,
}

struct Files {
    certificate: PathBuf,
    key: PathBuf,
    clients: Clients,
    protocol: &'static [u8],
}

/// Who is served.
enum Clients {
    Everybody,
    Signed(ClientAuthority),
    FrontProxy(FrontProxyVerifier),
}

/// Of all files.
type ModifiedTimes = Vec<Option<SystemTime>>;

impl Certificate {
    /// For HTTP/1.1. PEM files: the certificate with its chain, and its private key.
    pub fn load(certificate: PathBuf, key: PathBuf) -> Result<Self, CertificateError> {
        Self::of(Files { certificate, key, clients: Clients::Everybody, protocol: b"http/1.1" })
    }

    /// For HTTP/1.1, and the API server as the only client.
    pub fn load_behind(
        certificate: PathBuf,
        key: PathBuf,
        front_proxy: FrontProxyVerifier,
    ) -> Result<Self, CertificateError> {
        Self::of(Files { certificate, key, clients: Clients::FrontProxy(front_proxy), protocol: b"http/1.1" })
    }

    /// For gRPC, and clients with a certificate only.
    pub fn load_mutual(
        certificate: PathBuf,
        key: PathBuf,
        clients: ClientAuthority,
    ) -> Result<Self, CertificateError> {
        Self::of(Files { certificate, key, clients: Clients::Signed(clients), protocol: b"h2" })
    }

    fn of(files: Files) -> Result<Self, CertificateError> {
        let current = Mutex::new((files.modified_times(), files.config()?));
        Ok(Self { files, current })
    }

    /// Reloads changed files; keeps the previous ones if they are invalid.
    pub fn config(&self) -> Arc<ServerConfig> {
        let mut current = self.current.lock();
        let modified = self.files.modified_times();
        if current.0 != modified {
            current.0 = modified;
            match self.files.config() {
                Ok(config) => current.1 = config,
                Err(error) => {
                    tracing::warn!(%error, "cannot load the renewed certificate; the previous one stays in use")
                }
            }
        }
        Arc::clone(&current.1)
    }
}

impl Files {
    fn modified_times(&self) -> ModifiedTimes {
        let modified = |path: &PathBuf| -> io::Result<SystemTime> { path.metadata()?.modified() };
        let clients = match &self.clients {
            Clients::Signed(authority) => [Some(&authority.certificates), authority.revocations.as_ref()],
            Clients::Everybody | Clients::FrontProxy(_) => [None, None],
        };
        let clients = clients.into_iter().flatten();
        [&self.certificate, &self.key].into_iter().chain(clients).map(|path| modified(path).ok()).collect()
    }

    fn config(&self) -> Result<Arc<ServerConfig>, CertificateError> {
        let Self { certificate, key, clients, protocol } = self;
        let unreadable = |source| CertificateError::Certificate { path: certificate.clone(), source };
        let chain: Vec<CertificateDer> = all(certificate).map_err(unreadable)?;
        let secret = PrivateKeyDer::from_pem_file(key)
            .map_err(|source| CertificateError::Key { path: key.clone(), source })?;
        let verifier: Option<Arc<dyn ClientCertVerifier>> = match clients {
            Clients::Everybody => None,
            Clients::Signed(authority) => Some(authority.verifier()?),
            Clients::FrontProxy(verifier) => Some(Arc::new(verifier.clone())),
        };
        let verifies = verifier.is_some();
        let builder = match verifier {
            None => ServerConfig::builder().with_no_client_auth(),
            Some(verifier) => ServerConfig::builder().with_client_cert_verifier(verifier),
        };
        let config = builder.with_single_cert(chain, secret);
        let mut config = config.map_err(|source| CertificateError::Pair {
            certificate: certificate.clone(),
            key: key.clone(),
            source,
        })?;
        config.alpn_protocols = vec![protocol.to_vec()];
        if verifies {
            // A resumed session would not be verified again: its certificate may have expired.
            config.session_storage = Arc::new(NoServerSessionStorage {});
            config.send_tls13_tickets = 0;
        }
        Ok(Arc::new(config))
    }
}

impl ClientAuthority {
    fn verifier(&self) -> Result<Arc<dyn ClientCertVerifier>, CertificateError> {
        let path = &self.certificates;
        let unreadable = |source| CertificateError::Authority { path: path.clone(), source };
        let mut roots = RootCertStore::empty();
        for certificate in all(path).map_err(unreadable)? {
            roots
                .add(certificate)
                .map_err(|source| CertificateError::InvalidAuthority { path: path.clone(), source })?;
        }
        let mut builder = WebPkiClientVerifier::builder(Arc::new(roots));
        if let Some(path) = &self.revocations {
            let lists: Vec<CertificateRevocationListDer> =
                all(path).map_err(|source| CertificateError::Revocations { path: path.clone(), source })?;
            // Of intermediate authorities there is no list.
            builder = builder.with_crls(lists).only_check_end_entity_revocation();
        }
        builder.build().map_err(|source| CertificateError::Verifier { path: path.clone(), source })
    }
}

fn all<T: PemObject>(path: &Path) -> Result<Vec<T>, pem::Error> {
    T::pem_file_iter(path)?.collect()
}
