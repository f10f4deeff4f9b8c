//! The crypto provider of rustls.

/// Must run before the first TLS connection; later calls have no effect.
pub fn install_crypto_provider() {
    let _ = rustls::crypto::ring::default_provider().install_default();
}
