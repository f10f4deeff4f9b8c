//! Clients that speak for others: the API server in front of an aggregated API. Its
//! certificate is signed by an authority of its own, and has one of a few names.
//!
//! Both are known from a ConfigMap that changes, so they are replaced at runtime. Until the
//! first ones are there, every client is refused.

use std::collections::BTreeSet;
use std::sync::Arc;

use parking_lot::RwLock;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::{self, PemObject as _};
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, RootCertStore, SignatureScheme,
};
use x509_parser::prelude::{FromDer as _, X509Certificate};

#[derive(Debug, thiserror::Error)]
pub enum FrontProxyError {
    #[error("the certificate authority of the front proxy is no PEM: {0}")]
    Pem(#[from] pem::Error),
    #[error("the certificate authority of the front proxy is invalid: {0}")]
    Authority(#[from] Error),
    #[error("clients cannot be verified by the certificate authority of the front proxy: {0}")]
    Verifier(#[from] VerifierBuilderError),
}

/// Verifies a front proxy. Clones share what is accepted.
#[derive(Clone, Debug)]
pub struct FrontProxyVerifier {
    provider: Arc<CryptoProvider>,
    accepted: Arc<RwLock<Option<Accepted>>>,
}

#[derive(Debug)]
struct Accepted {
    verifier: Arc<dyn ClientCertVerifier>,
    /// Common names; empty: any.
    names: BTreeSet<String>,
}

impl Default for FrontProxyVerifier {
    /// Refuses everybody.
    fn default() -> Self {
        Self { provider: Arc::new(ring::default_provider()), accepted: Arc::default() }
    }
}

impl FrontProxyVerifier {
    /// From the next handshake on. Without names any certificate of the authority will do.
    pub fn accept(&self, authority: &str, names: BTreeSet<String>) -> Result<(), FrontProxyError> {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(authority.as_bytes()) {
            roots.add(certificate?)?;
        }
        let provider = Arc::clone(&self.provider);
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build()?;
        *self.accepted.write() = Some(Accepted { verifier, names });
        Ok(())
    }
}

impl ClientCertVerifier for FrontProxyVerifier {
    /// None are hinted at: a client sends the one certificate that it has.
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let accepted = self.accepted.read();
        let Some(Accepted { verifier, names }) = &*accepted else {
            return Err(CertificateError::UnknownIssuer.into());
        };
        let verified = verifier.verify_client_cert(end_entity, intermediates, now)?;
        if names.is_empty() || common_name(end_entity).is_some_and(|name| names.contains(&name)) {
            Ok(verified)
        } else {
            Err(CertificateError::ApplicationVerificationFailure.into())
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

fn common_name(certificate: &CertificateDer<'_>) -> Option<String> {
    let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
    certificate.subject().iter_common_name().next()?.as_str().ok().map(str::to_owned)
}
