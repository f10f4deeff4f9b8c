//! Whose cryptography is used.

/// rustls wants to know before its first connection. That somebody else said so
/// first is fine.
pub fn choose_cryptography() {
    let _ = rustls::crypto::ring::default_provider().install_default();
}
