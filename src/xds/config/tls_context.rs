//! Mutual TLS between proxies, by certificate files on their machines.

use envoy_types::pb::envoy::config::core::v3::{
    DataSource, TransportSocket, data_source::Specifier, transport_socket::ConfigType,
};
use envoy_types::pb::envoy::extensions::transport_sockets::tls::v3::{
    CertificateValidationContext, CommonTlsContext, DownstreamTlsContext, SubjectAltNameMatcher,
    TlsCertificate, UpstreamTlsContext, common_tls_context::ValidationContextType,
    subject_alt_name_matcher::SanType,
};
use envoy_types::pb::envoy::r#type::matcher::v3::{StringMatcher, string_matcher::MatchPattern};

use super::{pack, yes};
use crate::catalog::Protocol;
use crate::xds::node::TlsFiles;

/// `identities` of the servers; none: every one that the authority knows.
pub(super) fn upstream(files: &TlsFiles, protocol: Protocol, identities: Vec<String>) -> TransportSocket {
    let context = UpstreamTlsContext {
        common_tls_context: Some(common(files, protocol, identities)),
        ..UpstreamTlsContext::default()
    };
    socket(ConfigType::TypedConfig(pack(&context)))
}

pub(super) fn downstream(files: &TlsFiles, protocol: Protocol) -> TransportSocket {
    let context = DownstreamTlsContext {
        common_tls_context: Some(common(files, protocol, Vec::new())),
        require_client_certificate: yes(),
        ..DownstreamTlsContext::default()
    };
    socket(ConfigType::TypedConfig(pack(&context)))
}

fn socket(config: ConfigType) -> TransportSocket {
    TransportSocket { name: "envoy.transport_sockets.tls".to_owned(), config_type: Some(config) }
}

fn common(files: &TlsFiles, protocol: Protocol, identities: Vec<String>) -> CommonTlsContext {
    let file = |path: &str| {
        Some(DataSource { specifier: Some(Specifier::Filename(path.to_owned())), ..DataSource::default() })
    };
    let names = identities.into_iter().map(|uri| SubjectAltNameMatcher {
        san_type: SanType::Uri as i32,
        matcher: Some(StringMatcher {
            match_pattern: Some(MatchPattern::Exact(uri)),
            ..StringMatcher::default()
        }),
        ..SubjectAltNameMatcher::default()
    });
    let validation = CertificateValidationContext {
        trusted_ca: file(&files.ca),
        match_typed_subject_alt_names: names.collect(),
        ..CertificateValidationContext::default()
    };
    let alpn: &[&str] = match protocol {
        Protocol::Http1 => &["http/1.1"],
        Protocol::Http2 => &["h2"],
        Protocol::Tcp => &[],
    };
    CommonTlsContext {
        tls_certificates: vec![TlsCertificate {
            certificate_chain: file(&files.certificate),
            private_key: file(&files.key),
            ..TlsCertificate::default()
        }],
        alpn_protocols: alpn.iter().map(|&protocol| protocol.to_owned()).collect(),
        validation_context_type: Some(ValidationContextType::ValidationContext(validation)),
        ..CommonTlsContext::default()
    }
}
