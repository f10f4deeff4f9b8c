//! Mutual TLS: who is let in, and the reload of files.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hyper_util::rt::TokioIo;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DnType, IsCa, Issuer, KeyIdMethod,
    KeyPair, KeyUsagePurpose, RevokedCertParams, SanType, SerialNumber, date_time_ymd,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject as _};
use rustls::{ClientConfig, RootCertStore};
use serin::tls::{Certificate, ClientAuthority};
use serin::xds::Options;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tonic::transport::{Channel, Endpoint};

use crate::client::{Client, RDS, node, weights};
use crate::delivery::addresses;
use crate::plane::Plane;
use crate::support::Folder;

pub const WEB: &str = "spiffe://cluster.local/ns/shop/sa/web";
pub const FRONT: &str = "spiffe://cluster.local/ns/shop/sa/front";

/// An authority, and a folder for what it issues.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: String,
    last_serial: AtomicU64,
}

/// PEM.
#[derive(Clone)]
pub struct Issued {
    pub certificate: String,
    pub key: String,
    pub serial: u64,
}

impl Authority {
    pub fn new() -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "test authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        // A revocation list belongs to the authority of its issuer's name.
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let name = format!("authority {}", COUNT.fetch_add(1, Ordering::Relaxed));
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().expect("a key pair");
        let certificate = params.self_signed(&key).expect("an authority").pem();
        Self { issuer: Issuer::new(params, key), certificate, last_serial: AtomicU64::new(1000) }
    }

    pub fn certificate(&self) -> &str {
        &self.certificate
    }

    pub fn issue(&self, change: impl FnOnce(&mut CertificateParams)) -> Issued {
        let key = KeyPair::generate().expect("a key pair");
        let serial = self.last_serial.fetch_add(1, Ordering::Relaxed);
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.serial_number = Some(SerialNumber::from(serial));
        change(&mut params);
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate").pem();
        Issued { certificate, key: key.serialize_pem(), serial }
    }

    pub fn server(&self) -> Issued {
        self.issue(|params| {
            params.subject_alt_names.push(SanType::DnsName("localhost".try_into().expect("a name")));
        })
    }

    /// Of a proxy.
    pub fn spiffe(&self, uri: &str) -> Issued {
        self.issue(|params| params.subject_alt_names.push(SanType::URI(uri.try_into().expect("a URI"))))
    }

    fn revocations(&self, serials: &[u64]) -> String {
        let revoked = |serial: &u64| RevokedCertParams {
            serial_number: SerialNumber::from(*serial),
            revocation_time: date_time_ymd(2024, 1, 1),
            reason_code: None,
            invalidity_date: None,
        };
        let params = CertificateRevocationListParams {
            this_update: date_time_ymd(2024, 1, 1),
            next_update: date_time_ymd(2090, 1, 1),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: serials.iter().map(revoked).collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        params.signed_by(&self.issuer).expect("a revocation list").pem().expect("PEM")
    }

    /// Files of a control plane.
    pub fn control_plane(&self, folder: &Folder, revoked: &[u64]) -> Certificate {
        serin::tls::install_crypto_provider();
        let server = self.server();
        folder.write("tls.crt", &server.certificate);
        folder.write("tls.key", &server.key);
        folder.write("ca.crt", &self.certificate);
        folder.write("revoked.crl", &self.revocations(revoked));
        let clients = ClientAuthority {
            certificates: folder.join("ca.crt"),
            revocations: Some(folder.join("revoked.crl")),
        };
        Certificate::load_mutual(folder.join("tls.crt"), folder.join("tls.key"), clients)
            .expect("a certificate")
    }

    /// Of a client with this certificate.
    fn client_config(&self, own: Option<&Issued>) -> ClientConfig {
        let mut roots = RootCertStore::empty();
        roots
            .add(CertificateDer::from_pem_slice(self.certificate.as_bytes()).expect("PEM"))
            .expect("an authority");
        let config = ClientConfig::builder().with_root_certificates(roots);
        let mut config = match own {
            None => config.with_no_client_auth(),
            Some(own) => {
                let chain = vec![CertificateDer::from_pem_slice(own.certificate.as_bytes()).expect("PEM")];
                let key = PrivateKeyDer::from_pem_slice(own.key.as_bytes()).expect("PEM");
                config.with_client_auth_cert(chain, key).expect("a pair")
            }
        };
        config.alpn_protocols = vec![b"h2".to_vec()];
        config
    }

    /// A connection with this certificate.
    pub async fn channel(&self, address: SocketAddr, own: Option<&Issued>) -> Result<Channel, String> {
        let connector = TlsConnector::from(Arc::new(self.client_config(own)));
        let connect = tower::service_fn(move |_| {
            let connector = connector.clone();
            async move {
                let stream = TcpStream::connect(address).await?;
                let name = ServerName::try_from("localhost").expect("a name");
                Ok::<_, std::io::Error>(TokioIo::new(connector.connect(name, stream).await?))
            }
        });
        let endpoint = Endpoint::from_static("http://localhost");
        endpoint.connect_with_connector(connect).await.map_err(|error| format!("{error:?}"))
    }

    /// Whether a proxy with this certificate is served, and under which name.
    async fn identity(&self, plane: &Plane, own: Option<&Issued>) -> Result<String, String> {
        let channel = self.channel(plane.address, own).await?;
        let mut client = Client::over(channel, node("a", &["shop/web:80=127.0.0.1:15001"]))
            .await
            .map_err(|status| status.to_string())?;
        client.start_web().await;
        let proxies = plane.control.proxies();
        Ok(proxies.first().expect("connected").identity.to_string())
    }
}

async fn plane(certificate: Certificate) -> Plane {
    let plane = Plane::start_with(Options::default(), Some(certificate)).await;
    plane.web(addresses());
    plane.ready();
    plane
}

#[tokio::test]
async fn the_identity_is_the_spiffe_uri_or_else_the_common_name() {
    let (authority, folder) = (Authority::new(), Folder::new("xds-identity"));
    let named = authority.issue(|params| params.distinguished_name.push(DnType::CommonName, "vm-7"));
    let both = authority.issue(|params| {
        params.distinguished_name.push(DnType::CommonName, "vm-7");
        params.subject_alt_names.push(SanType::URI(WEB.try_into().expect("a URI")));
    });
    for (own, identity) in [(authority.spiffe(WEB), WEB), (named, "CN=vm-7"), (both, WEB)] {
        let plane = plane(authority.control_plane(&folder, &[])).await;
        assert_eq!(authority.identity(&plane, Some(&own)).await.as_deref(), Ok(identity));
    }
}

#[tokio::test]
async fn unknown_expired_revoked_and_ambiguous_certificates_are_refused() {
    let (authority, folder) = (Authority::new(), Folder::new("xds-refused"));
    let revoked = authority.spiffe(WEB);
    let plane = plane(authority.control_plane(&folder, &[revoked.serial])).await;
    let expired = authority.issue(|params| {
        params.subject_alt_names.push(SanType::URI(WEB.try_into().expect("a URI")));
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(2021, 1, 1);
    });
    let future = authority.issue(|params| {
        params.subject_alt_names.push(SanType::URI(WEB.try_into().expect("a URI")));
        params.not_before = date_time_ymd(2090, 1, 1);
    });
    let ambiguous = authority.issue(|params| {
        for uri in [WEB, FRONT] {
            params.subject_alt_names.push(SanType::URI(uri.try_into().expect("a URI")));
        }
    });
    let cases = [
        ("none", None),
        ("of another authority", Some(Authority::new().spiffe(WEB))),
        ("revoked", Some(revoked)),
        ("expired", Some(expired)),
        ("not valid yet", Some(future)),
        ("two identities", Some(ambiguous)),
        ("no name", Some(authority.issue(|_| {}))),
    ];
    for (what, own) in cases {
        let served = authority.identity(&plane, own.as_ref()).await;
        assert!(served.is_err(), "{what}: served as {served:?}");
    }
    assert_eq!(authority.identity(&plane, Some(&authority.spiffe(WEB))).await.as_deref(), Ok(WEB));
}

#[tokio::test]
async fn certificates_are_reloaded_under_load_and_no_stream_is_lost() {
    let (authority, folder) = (Authority::new(), Folder::new("xds-reload"));
    let plane = plane(authority.control_plane(&folder, &[])).await;
    let (old, revoked) = (authority.spiffe(WEB), authority.spiffe(FRONT));
    let mut proxies = Vec::new();
    for n in 0..10 {
        let channel = authority.channel(plane.address, Some(&old)).await.expect("a connection");
        let node = node(&format!("proxy-{n}"), &["shop/web:80=127.0.0.1:15001"]);
        let mut proxy = Client::over(channel, node).await.expect("a stream");
        proxy.start_web().await;
        proxies.push(proxy);
    }
    // Both authorities, then a new certificate of the new one only, while weights change.
    let renewed = Authority::new();
    for generation in 2..30 {
        match generation {
            10 => folder.write("ca.crt", &format!("{}{}", authority.certificate, renewed.certificate)),
            12 => folder.write("revoked.crl", &authority.revocations(&[revoked.serial])),
            14 => folder.write("tls.crt", "half a certificate"),
            16 => {
                let server = renewed.server();
                folder.write("tls.crt", &server.certificate);
                folder.write("tls.key", &server.key);
            }
            _ => {}
        }
        plane.split(generation, generation as u16);
        for proxy in &mut proxies {
            let response = proxy.accept(RDS).await;
            assert_eq!(weights(&response, "shop/web:80")[1].1, generation as u32);
        }
        if [11, 15].contains(&generation) {
            let own = authority.spiffe(WEB);
            authority.channel(plane.address, Some(&own)).await.expect("an invalid file changes nothing");
        }
    }
    assert_eq!(plane.control.proxies().len(), 10, "the same streams");
    assert!(
        authority.channel(plane.address, Some(&old)).await.is_err(),
        "the server's authority is another one"
    );
    // Without the list of its authority nothing is known of a certificate, and it is refused.
    folder.write("revoked.crl", &(authority.revocations(&[revoked.serial]) + &renewed.revocations(&[])));
    let own = renewed.spiffe(WEB);
    assert_eq!(renewed.identity(&plane, Some(&own)).await.as_deref(), Ok(WEB));
}

/// A session that is resumed is not verified, and outlives its certificate.
#[tokio::test]
async fn a_certificate_is_verified_at_every_connection() {
    let (authority, folder) = (Authority::new(), Folder::new("xds-resume"));
    let plane = plane(authority.control_plane(&folder, &[])).await;
    let connector = TlsConnector::from(Arc::new(authority.client_config(Some(&authority.spiffe(WEB)))));
    for _ in 0..3 {
        let stream = TcpStream::connect(plane.address).await.expect("a connection");
        let name = ServerName::try_from("localhost").expect("a name");
        let mut stream = connector.connect(name, stream).await.expect("TLS");
        assert_eq!(stream.get_ref().1.handshake_kind(), Some(rustls::HandshakeKind::Full));
        // Tickets come with the first bytes of the server.
        stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.expect("open");
        stream.read_exact(&mut [0; 9]).await.expect("its settings");
    }
}
