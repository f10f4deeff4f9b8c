//! Whose cryptography is used.

/// rustls wants to know before its first connection. That somebody else said so
/// first is fine.
pub fn install_crypto_provider() {
    let _ = rustls::crypto::ring::default_provider().install_default();
}
