//! SMI's TrafficMetrics of `serin run`: flags, and the listener behind the API server.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use kube::Client;
use tokio_util::task::AbortOnDropHandle;

use super::run::{ListenAddress, listen};
use crate::metrics::{OwnMetricsServer, ServerAccess};
use crate::server::{BoundServer, FrontProxy, ServerHandle, SmiMetrics, smi_metrics_router};
use crate::tls::Certificate;

/// metrics.smi-spec.io as an aggregated API.
#[derive(clap::Args)]
#[command(next_help_heading = "SMI metrics")]
pub(super) struct SmiMetricsArgs {
    /// Address at which the API server gets metrics.smi-spec.io/v1alpha1, such as
    /// 0.0.0.0:6443: requests and latencies of workloads, pods, namespaces and services in
    /// the form of SMI's TrafficMetrics, from --metrics-server. An APIService leads to it
    /// (chart: smiMetrics)
    #[arg(long, env = "SERIN_SMI_METRICS_LISTEN", value_name = "ADDRESS", default_value = "none", value_parser = listen)]
    smi_metrics_listen: ListenAddress,

    /// Certificate of that API, PEM, with its chain, which the caBundle of the APIService
    /// signs; reloaded when it is renewed
    #[arg(long, env = "SERIN_SMI_METRICS_CERTIFICATE", value_name = "FILE", requires = "smi_metrics_key")]
    smi_metrics_certificate: Option<PathBuf>,

    /// Private key of that certificate, PEM
    #[arg(long, env = "SERIN_SMI_METRICS_KEY", value_name = "FILE", requires = "smi_metrics_certificate")]
    smi_metrics_key: Option<PathBuf>,

    /// Seconds that requests are counted in. At least twice the interval at which the
    /// metrics server scrapes
    #[arg(
        long, env = "SERIN_SMI_METRICS_WINDOW", value_name = "SECONDS", default_value = "60",
        value_parser = clap::value_parser!(u16).range(1..=3600),
    )]
    smi_metrics_window: u16,
}

/// An API that is bound and does not serve yet.
pub(super) struct Bound {
    server: BoundServer,
    certificate: Certificate,
    front_proxy: FrontProxy,
    window: Duration,
}

/// Serves until it is dropped.
pub(super) struct Serving {
    pub server: ServerHandle,
    _follow: AbortOnDropHandle<()>,
}

impl Bound {
    pub async fn bind(args: SmiMetricsArgs, metrics_server: Option<&str>) -> anyhow::Result<Option<Self>> {
        let ListenAddress::At(address) = args.smi_metrics_listen else { return Ok(None) };
        let files = args.smi_metrics_certificate.zip(args.smi_metrics_key);
        let (certificate, key) = files.context(
            "--smi-metrics-listen (or SERIN_SMI_METRICS_LISTEN): add --smi-metrics-certificate and --smi-metrics-key; \
             the API server speaks TLS only",
        )?;
        if metrics_server.is_none() {
            anyhow::bail!(
                "--smi-metrics-listen (or SERIN_SMI_METRICS_LISTEN): add --metrics-server, which the metrics are from"
            );
        }
        let front_proxy = FrontProxy::default();
        let certificate = Certificate::load_behind(certificate, key, front_proxy.verifier.clone()).context(
            "--smi-metrics-certificate and --smi-metrics-key (or SERIN_SMI_METRICS_CERTIFICATE and SERIN_SMI_METRICS_KEY)",
        )?;
        let server = BoundServer::bind(address).await.context(
            "--smi-metrics-listen (or SERIN_SMI_METRICS_LISTEN): choose a free address, or none to serve no SMI metrics",
        )?;
        tracing::info!(address = %server.address, "serving metrics.smi-spec.io/v1alpha1 to the API server");
        let window = Duration::from_secs(args.smi_metrics_window.into());
        Ok(Some(Self { server, certificate, front_proxy, window }))
    }

    pub fn serve(self, client: Client, metrics_server: ServerAccess) -> Serving {
        let Self { server, certificate, front_proxy, window } = self;
        let follow = tokio::spawn(front_proxy.clone().follow(client.clone()));
        let metrics_server = OwnMetricsServer::new(client.clone(), metrics_server);
        let router = smi_metrics_router(SmiMetrics { client, metrics_server, window, front_proxy });
        Serving { server: server.serve(router, Some(certificate)), _follow: AbortOnDropHandle::new(follow) }
    }
}
