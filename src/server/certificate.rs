//! Who we are to those who send us tokens: a certificate in two files, as a
//! Secret of type `kubernetes.io/tls` has them. Whoever renews it writes them
//! anew, and the next connection is answered with what is there then.

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

/// Why a certificate cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    #[error("cannot read the certificate {}: {source}", .path.display())]
    Certificate { path: PathBuf, source: pem::Error },
    #[error("cannot read the private key {}: {source}", .path.display())]
    Key { path: PathBuf, source: pem::Error },
    #[error("the private key {} does not go with the certificate {}: {source}", .key.display(), .certificate.display())]
    Pair { certificate: PathBuf, key: PathBuf, source: rustls::Error },
}

pub struct Certificate {
    certificate: PathBuf,
    key: PathBuf,
    current: Mutex<(ModifiedTimes, Arc<ServerConfig>)>,
}

/// When both files were.
type ModifiedTimes = [Option<SystemTime>; 2];

impl Certificate {
    /// PEM files: the certificate with those that vouch for it, and its key.
    pub fn load(certificate: PathBuf, key: PathBuf) -> Result<Self, CertificateError> {
        let written = modified_times(&certificate, &key);
        let used = Mutex::new((written, config(&certificate, &key)?));
        Ok(Self { certificate, key, current: used })
    }

    /// As it is now. What cannot be used does not take the place of what could.
    pub fn config(&self) -> Arc<ServerConfig> {
        let mut used = self.current.lock();
        let written = modified_times(&self.certificate, &self.key);
        if used.0 != written {
            used.0 = written;
            match config(&self.certificate, &self.key) {
                Ok(config) => used.1 = config,
                Err(error) => tracing::warn!(%error, "the certificate was renewed; the one before is used"),
            }
        }
        Arc::clone(&used.1)
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
