//! The control plane of `serin run`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use clap::ValueEnum;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::catalog::kubernetes::ClusterObjects;
use crate::catalog::{Catalog, DefaultAccess};
use crate::cli::run::{ListenAddress, listen};
use crate::controller::{XdsServer, proxies_of};
use crate::routing;
use crate::tls::{Certificate, ClientAuthority};
use crate::xds::{self, ControlPlane, ProxyState, TypeState};

/// For Canaries of the provider xds.
#[derive(clap::Args)]
#[command(next_help_heading = "Control plane for Envoys")]
pub(in crate::cli) struct XdsArgs {
    /// Address at which Envoys get their configuration over xDS, such as 0.0.0.0:18000:
    /// routes of Canaries with the provider xds, of MeshRoutes and of SMI's TrafficSplits.
    /// `serin xds bootstrap` configures an Envoy for it. Other than on loopback it
    /// requires a certificate
    #[arg(long, env = "SERIN_XDS_LISTEN", value_name = "ADDRESS", default_value = "none", value_parser = listen)]
    xds_listen: ListenAddress,

    /// Certificate of the control plane, PEM, with its chain; reloaded when it is renewed
    #[arg(long, env = "SERIN_XDS_CERTIFICATE", value_name = "FILE", requires_all = ["xds_key", "xds_client_ca"])]
    xds_certificate: Option<PathBuf>,

    /// Private key of that certificate, PEM
    #[arg(long, env = "SERIN_XDS_KEY", value_name = "FILE", requires = "xds_certificate")]
    xds_key: Option<PathBuf>,

    /// Certificates that sign those of proxies, PEM: a proxy without such a certificate is
    /// refused, and its SPIFFE URI or common name is its identity
    #[arg(long, env = "SERIN_XDS_CLIENT_CA", value_name = "FILE", requires = "xds_certificate")]
    xds_client_ca: Option<PathBuf>,

    /// Revoked certificates of proxies, PEM
    #[arg(long, env = "SERIN_XDS_CRL", value_name = "FILE", requires = "xds_client_ca")]
    xds_crl: Option<PathBuf>,

    /// Serve without TLS on an address other than loopback: anybody who reaches it can
    /// read the addresses and routes of all services
    #[arg(long, env = "SERIN_XDS_INSECURE", conflicts_with = "xds_certificate")]
    xds_insecure: bool,

    /// Who may reach a service that no TrafficTarget names
    #[arg(long, env = "SERIN_XDS_DEFAULT_ACCESS", value_name = "ACCESS", value_enum, default_value = "open")]
    xds_default_access: Access,

    /// Trust domain of the identities of ServiceAccounts, as in
    /// spiffe://cluster.local/ns/shop/sa/web
    #[arg(long, env = "SERIN_XDS_TRUST_DOMAIN", value_name = "NAME", default_value = "cluster.local")]
    xds_trust_domain: String,
}

/// For proxies, and everything else of this process.
const OPEN_FILES: u64 = 65_536;

/// Where proxies of the same machine are served if nothing else is asked for.
#[cfg(feature = "standalone")]
const LOOPBACK: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 18000);

#[cfg(feature = "standalone")]
impl XdsArgs {
    pub(in crate::cli) fn or_loopback(mut self) -> Self {
        if let ListenAddress::Disabled = self.xds_listen {
            self.xds_listen = ListenAddress::At(LOOPBACK);
        }
        self
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Access {
    Open,
    Closed,
}

/// A control plane that is bound and does not serve yet.
pub(in crate::cli) struct Bound {
    listener: TcpListener,
    certificate: Option<Certificate>,
    access: DefaultAccess,
    trust_domain: String,
}

/// A control plane that serves until this is dropped.
pub(in crate::cli) struct Serving {
    pub server: XdsServer,
    /// What `serin xds status` shows.
    pub proxies: Arc<dyn Fn() -> Value + Send + Sync>,
    stop: CancellationToken,
    task: AbortOnDropHandle<()>,
}

/// A replica of the controller, as proxies and MeshRoutes know it.
pub(in crate::cli) struct Replica<'a> {
    pub cluster: &'a str,
    pub name: &'a str,
    /// There may be others.
    pub replicated: bool,
}

impl Bound {
    pub async fn bind(args: XdsArgs) -> anyhow::Result<Option<Self>> {
        let ListenAddress::At(address) = args.xds_listen else { return Ok(None) };
        raise_file_limit();
        let certificate = certificate(&args, address)?;
        let listener = xds::bind(address).context(
            "--xds-listen (or SERIN_XDS_LISTEN): choose a free address, or none to serve no proxies",
        )?;
        let address = listener.local_addr()?;
        tracing::info!(%address, tls = certificate.is_some(), "serving Envoys over xDS");
        let access = match args.xds_default_access {
            Access::Open => DefaultAccess::Open,
            Access::Closed => DefaultAccess::Closed,
        };
        Ok(Some(Self { listener, certificate, access, trust_domain: args.xds_trust_domain }))
    }

    pub fn serve(self, replica: Replica<'_>) -> Serving {
        let Self { listener, certificate, access, trust_domain } = self;
        let Replica { cluster, name, replicated } = replica;
        let catalog = Catalog::new();
        catalog.set_default_access(access);
        let options = xds::Options {
            cluster: cluster.into(),
            trust_domain: trust_domain.into(),
            patience: routing::PATIENCE,
            ..xds::Options::default()
        };
        let control_plane = ControlPlane::new(Arc::clone(&catalog), options);
        let reports = proxies_of(&control_plane);
        let server = XdsServer::new(&catalog, ClusterObjects::new(cluster), reports, name, replicated);
        let stop = CancellationToken::new();
        let (serving, stopped) = (Arc::clone(&control_plane), stop.clone());
        let task = tokio::spawn(async move { serving.serve(listener, certificate, stopped).await });
        let shown = name.to_owned();
        let proxies = Arc::new(move || {
            let proxies: Vec<Value> = control_plane.proxies().iter().map(proxy).collect();
            json!({"replica": shown, "proxies": proxies})
        });
        Serving { server, proxies, stop, task: AbortOnDropHandle::new(task) }
    }
}

/// Each proxy takes one, and the soft limit of most systems is 1024.
fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    let wanted = limit.maximum.map_or(OPEN_FILES, |maximum| maximum.min(OPEN_FILES));
    if limit.current.is_none_or(|current| current >= wanted) {
        return;
    }
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), ..limit }) {
        tracing::warn!(%error, wanted, "cannot raise the limit of open files; proxies beyond it wait");
    }
}

impl Serving {
    /// Proxies go on with what they have, and connect to another replica.
    pub async fn shutdown(self) {
        self.stop.cancel();
        let _ = self.task.await;
    }
}

fn proxy(state: &ProxyState) -> Value {
    let ProxyState { node, identity, connected, bytes_sent, types } = state;
    let types = types.iter().map(|of| {
        let TypeState { name, resources, version, status, error } = of;
        json!({"name": name, "resources": resources, "version": format!("{version:016x}"),
            "status": status.as_str(), "error": error.as_deref()})
    });
    json!({"node": **node, "identity": identity.to_string(), "connected": connected.to_string(),
        "bytesSent": bytes_sent, "types": types.collect::<Vec<_>>()})
}

fn certificate(args: &XdsArgs, address: SocketAddr) -> anyhow::Result<Option<Certificate>> {
    let XdsArgs { xds_certificate, xds_key, xds_client_ca, xds_crl, xds_insecure, .. } = args;
    match (xds_certificate, xds_key, xds_client_ca) {
        (Some(certificate), Some(key), Some(client_ca)) => {
            let clients = ClientAuthority { certificates: client_ca.clone(), revocations: xds_crl.clone() };
            let loaded = Certificate::load_mutual(certificate.clone(), key.clone(), clients)
                .context("--xds-certificate, --xds-key, --xds-client-ca and --xds-crl (or SERIN_XDS_…)")?;
            Ok(Some(loaded))
        }
        _ if *xds_insecure || address.ip().is_loopback() => Ok(None),
        _ => anyhow::bail!(
            "--xds-listen (or SERIN_XDS_LISTEN): proxies must not be configured unencrypted, nor anybody be taken for \
             one; add --xds-certificate, --xds-key and --xds-client-ca, listen on a loopback address, or add \
             --xds-insecure where the network itself is trusted"
        ),
    }
}
