//! The crypto provider of rustls, and the certificates of servers.

mod certificate;
mod front_proxy;

pub use certificate::{Certificate, CertificateError, ClientAuthority};
pub use front_proxy::{FrontProxyError, FrontProxyVerifier};

/// Must run before the first TLS connection; later calls have no effect.
pub fn install_crypto_provider() {
    let _ = rustls::crypto::ring::default_provider().install_default();
}
