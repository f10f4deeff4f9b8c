//! The identity in the certificate of a proxy. The certificate was verified by rustls.

use rustls::pki_types::CertificateDer;
use x509_parser::prelude::{FromDer as _, GeneralName, X509Certificate};

use crate::catalog::Identity;

/// Of a name that is logged and compared.
const MAX_NAME_LENGTH: usize = 2048;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PeerError {
    #[error("the certificate of the proxy cannot be read")]
    Unreadable,
    #[error("the certificate of the proxy has more than one SPIFFE URI")]
    Ambiguous,
    #[error("the certificate of the proxy has neither a SPIFFE URI nor a common name")]
    Nameless,
}

/// The SPIFFE URI among the alternative names, else the common name.
pub(super) fn identity(certificate: &CertificateDer<'_>) -> Result<Identity, PeerError> {
    let (_, certificate) = X509Certificate::from_der(certificate).map_err(|_| PeerError::Unreadable)?;
    let names = certificate.subject_alternative_name().map_err(|_| PeerError::Unreadable)?;
    let mut uris = names.iter().flat_map(|names| &names.value.general_names).filter_map(|name| match name {
        GeneralName::URI(uri) if uri.starts_with("spiffe://") => Some(*uri),
        _ => None,
    });
    match (uris.next(), uris.next()) {
        (Some(uri), None) if uri.len() <= MAX_NAME_LENGTH => Ok(Identity::Spiffe(uri.into())),
        (Some(_), None) => Err(PeerError::Unreadable),
        (Some(_), Some(_)) => Err(PeerError::Ambiguous),
        (None, _) => {
            let name = certificate.subject().iter_common_name().next().and_then(|name| name.as_str().ok());
            let name = name.filter(|name| !name.is_empty() && name.len() <= MAX_NAME_LENGTH);
            name.map(|name| Identity::CommonName(name.into())).ok_or(PeerError::Nameless)
        }
    }
}
