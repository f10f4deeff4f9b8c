//! The TLS certificate of the command API: two files, as in a Secret of type
//! `kubernetes.io/tls`. Renewed files are used from the next connection on.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::SystemTime,
};

use parking_lot::Mutex;
use rustls::{
    ServerConfig,
    pki_types::{
        CertificateDer, PrivateKeyDer,
        pem::{self, PemObject as _},
    },
};

#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    #[error("cannot read the certificate {}: {source}", .path.display())]
    Certificate { path: PathBuf, source: pem::Error },
    #[error("cannot read the private key {}: {source}", .path.display())]
    Key { path: PathBuf, source: pem::Error },
    #[error("the private key {} does not match the certificate {}: {source}", .key.display(), .certificate.display())]
    Pair { certificate: PathBuf, key: PathBuf, source: rustls::Error },
}

pub struct Certificate {
    certificate: PathBuf,
    key: PathBuf,
    current: Mutex<(ModifiedTimes, Arc<ServerConfig>)>,
}

/// Of the certificate and the key file.
type ModifiedTimes = [Option<SystemTime>; 2];

impl Certificate {
    /// PEM files: the certificate with its chain, and its private key.
    pub fn load(certificate: PathBuf, key: PathBuf) -> Result<Self, CertificateError> {
        let modified = modified_times(&certificate, &key);
        let current = Mutex::new((modified, config(&certificate, &key)?));
        Ok(Self { certificate, key, current })
    }

    /// Reloads changed files; keeps the previous certificate if they are invalid.
    pub fn config(&self) -> Arc<ServerConfig> {
        let mut current = self.current.lock();
        let modified = modified_times(&self.certificate, &self.key);
        if current.0 != modified {
            current.0 = modified;
            match config(&self.certificate, &self.key) {
                Ok(config) => current.1 = config,
                Err(error) => {
                    tracing::warn!(%error, "cannot load the renewed certificate; the previous one stays in use")
                }
            }
        }
        Arc::clone(&current.1)
    }
}

fn modified_times(certificate: &Path, key: &Path) -> ModifiedTimes {
    let modified = |path: &Path| -> io::Result<SystemTime> { path.metadata()?.modified() };
    [certificate, key].map(|path| modified(path).ok())
}

fn config(certificate: &Path, key: &Path) -> Result<Arc<ServerConfig>, CertificateError> {
    let unreadable = |source| CertificateError::Certificate { path: certificate.to_owned(), source };
    let chain: Vec<_> =
        CertificateDer::pem_file_iter(certificate).and_then(Iterator::collect).map_err(unreadable)?;
    let secret = PrivateKeyDer::from_pem_file(key)
        .map_err(|source| CertificateError::Key { path: key.to_owned(), source })?;
    let config = ServerConfig::builder().with_no_client_auth().with_single_cert(chain, secret);
    let mut config = config.map_err(|source| CertificateError::Pair {
        certificate: certificate.to_owned(),
        key: key.to_owned(),
        source,
    })?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}
