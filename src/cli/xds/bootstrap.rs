//! `serin xds bootstrap`: the configuration to start an Envoy with.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Context as _;
use clap::ValueEnum;

use crate::xds::{Bootstrap, Inbound, NodeConfig, TlsFiles, Upstream};

/// Print the bootstrap of an Envoy that Serin configures
///
/// The Envoy asks for the services that it calls (--upstream) and those that it is
/// in front of (--inbound) and gets nothing else. Their endpoints, weights and
/// rules follow the cluster without a restart:
///
///     serin xds bootstrap edge-1 --control-plane serin-xds.serin:18000 \
///         --upstream shop/web:80=127.0.0.1:15001 > envoy.yaml
///     envoy --config-path envoy.yaml
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub(super) struct Args {
    /// Name of the proxy; no other proxy may have it
    node: String,

    /// Control plane: the address of `serin run --xds-listen`
    #[arg(long, value_name = "HOST:PORT")]
    control_plane: String,

    /// A service that the workload calls, and where it reaches it, such as
    /// shop/web:80=127.0.0.1:15001; may be repeated
    #[arg(long, value_name = "SERVICE=ADDRESS")]
    upstream: Vec<Upstream>,

    /// A service that the workload serves, where the proxy listens for it, and where the
    /// workload does, such as shop/web:80=0.0.0.0:15080,127.0.0.1:8080; may be repeated
    #[arg(long, value_name = "SERVICE=LISTEN,APPLICATION")]
    inbound: Vec<Inbound>,

    /// The inbound addresses are endpoints of their services. Not for pods, whose
    /// endpoints the cluster knows
    #[arg(long, requires = "inbound")]
    announce: bool,

    /// Certificate of the proxy, PEM, with its chain: a file on its machine
    #[arg(long, value_name = "FILE", requires_all = ["key", "ca"])]
    certificate: Option<String>,

    /// Private key of that certificate, PEM
    #[arg(long, value_name = "FILE", requires = "certificate")]
    key: Option<String>,

    /// Certificates that sign those of the control plane and of other proxies, PEM
    #[arg(long, value_name = "FILE", requires = "certificate")]
    ca: Option<String>,

    /// Name in the certificate of the control plane [default: the host of
    /// --control-plane]
    #[arg(long, value_name = "NAME", requires = "certificate")]
    server_name: Option<String>,

    /// Address of the pages of Envoy, among them /stats/prometheus; `none` for none
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9901")]
    admin: String,

    #[arg(short, long, value_name = "FORMAT", value_enum, default_value = "yaml")]
    output: Output,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Output {
    Yaml,
    Json,
}

pub(super) fn run(args: Args) -> anyhow::Result<()> {
    let (host, port) = host_and_port(&args.control_plane)
        .with_context(|| format!("--control-plane: {:?} is no HOST:PORT", args.control_plane))?;
    anyhow::ensure!(
        !args.upstream.is_empty() || !args.inbound.is_empty(),
        "the proxy would have nothing to do: add --upstream or --inbound"
    );
    let admin = match args.admin.as_str() {
        "none" => None,
        address => {
            let address: SocketAddr = address.parse().map_err(|_| {
                anyhow::anyhow!(
                    "--admin: {address} is not an address; write one such as 127.0.0.1:9901, or none"
                )
            })?;
            Some(address)
        }
    };
    let files = match (args.certificate, args.key, args.ca) {
        (Some(certificate), Some(key), Some(ca)) => Some(TlsFiles { certificate, key, ca }),
        _ => None,
    };
    let config = NodeConfig {
        upstreams: args.upstream,
        inbound: args.inbound,
        announce: args.announce,
        tls: files.clone().map(Arc::new),
    };
    let tls = files.map(|files| (files, args.server_name.unwrap_or_else(|| host.clone())));
    let bootstrap = Bootstrap { node: args.node, config, host, port, tls, admin }.to_json();
    match args.output {
        Output::Json => println!("{bootstrap:#}"),
        Output::Yaml => print!("{}", serde_saphyr::to_string(&bootstrap).context("write YAML")?),
    }
    Ok(())
}

fn host_and_port(text: &str) -> Option<(String, u16)> {
    let (host, port) = text.rsplit_once(':')?;
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let port = port.parse().ok().filter(|port| *port != 0)?;
    (!host.is_empty()).then(|| (host.to_owned(), port))
}
