//! The cluster that a person's command talks to: kubectl's, chosen by kubectl's flags.

use std::path::PathBuf;

use anyhow::Context as _;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

use crate::api_error::api_message;
use crate::error_chain::root_cause;

#[derive(clap::Args)]
pub(super) struct ClusterArgs {
    /// The cluster's kubeconfig [default: kubectl's]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,

    /// Context of the kubeconfig [default: the current one]
    #[arg(long)]
    context: Option<String>,
}

#[derive(Clone)]
pub(super) struct Connection {
    pub client: Client,
    server: String,
}

impl ClusterArgs {
    pub async fn connect(self) -> anyhow::Result<Connection> {
        let options = KubeConfigOptions { context: self.context.clone(), ..KubeConfigOptions::default() };
        let config = match self.kubeconfig {
            Some(path) => {
                let kubeconfig =
                    Kubeconfig::read_from(&path).with_context(|| format!("read {}", path.display()))?;
                Config::from_custom_kubeconfig(kubeconfig, &options).await?
            }
            None if self.context.is_some() => Config::from_kubeconfig(&options).await?,
            None => Config::infer()
                .await
                .map_err(|_| anyhow::anyhow!("no cluster to talk to: set KUBECONFIG or --kubeconfig"))?,
        };
        let server = config.cluster_url.to_string();
        let client = Client::try_from(config).context("set up the client of the cluster")?;
        Ok(Connection { client, server: server.trim_end_matches('/').to_owned() })
    }
}

impl Connection {
    pub fn namespace(&self, given: Option<String>) -> String {
        given.unwrap_or_else(|| self.client.default_namespace().to_owned())
    }

    /// An error of the API server, with its own words; of the way there, with its
    /// address.
    pub fn error(&self, attempt: &str, error: &kube::Error) -> anyhow::Error {
        match error {
            kube::Error::Api(status) if status.code == 404 && !status.message.contains('"') => {
                anyhow::anyhow!(
                    "{} knows no Canaries: run `serin crds | kubectl apply -f -` first",
                    self.server
                )
            }
            kube::Error::Api(_) => anyhow::anyhow!("cannot {attempt}: {}", api_message(error)),
            error => anyhow::anyhow!("cannot {attempt} at {}: {}", self.server, root_cause(error)),
        }
    }
}
