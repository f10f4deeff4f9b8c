//! The cluster that a person's command talks to: kubectl's, chosen by kubectl's flags.
//! Its errors name the server and the way out.

use std::path::PathBuf;

use anyhow::Context as _;
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};

use crate::api_error::api_message;
use crate::error_chain::{error_chain, root_cause};
use crate::gates::commands::CommandError;

#[derive(Clone, Default, clap::Args)]
#[command(next_help_heading = "Cluster")]
pub(super) struct ClusterArgs {
    /// The cluster's kubeconfig [default: kubectl's]
    #[arg(long, value_name = "FILE", global = true)]
    pub kubeconfig: Option<PathBuf>,

    /// Context of the kubeconfig [default: the current one]
    #[arg(long, value_name = "NAME", global = true)]
    pub context: Option<String>,
}

#[derive(Clone)]
pub(super) struct Connection {
    pub client: Client,
    server: String,
    /// As the kubeconfig calls the cluster; empty for the cluster that this process runs in.
    pub cluster: String,
}

impl ClusterArgs {
    pub async fn connect(self) -> anyhow::Result<Connection> {
        self.connect_to(None).await
    }

    /// `cluster` is one of the kubeconfig, instead of that of the context.
    pub async fn connect_to(self, cluster: Option<String>) -> anyhow::Result<Connection> {
        let (config, cluster) = self.config(cluster).await?;
        let server = config.cluster_url.to_string();
        let client = Client::try_from(config).context("set up the client of the cluster")?;
        Ok(Connection { client, server: server.trim_end_matches('/').to_owned(), cluster })
    }

    /// With the kubeconfig's name of the cluster.
    pub async fn config(self, cluster: Option<String>) -> anyhow::Result<(Config, String)> {
        let context = self.context.clone();
        let (config, cluster) = match self.read()? {
            Some(kubeconfig) => {
                let name = cluster
                    .clone()
                    .or_else(|| context.clone())
                    .or_else(|| kubeconfig.current_context.clone());
                let contexts: Vec<String> =
                    kubeconfig.contexts.iter().map(|context| context.name.clone()).collect();
                let options = KubeConfigOptions { context, cluster, ..KubeConfigOptions::default() };
                let config = Config::from_custom_kubeconfig(kubeconfig, &options).await;
                (config.map_err(|error| unusable(&error, &contexts))?, name.unwrap_or_default())
            }
            None => (Config::incluster().map_err(|_| no_cluster(&kubeconfig_paths()))?, String::new()),
        };
        Ok((config, cluster))
    }

    /// None if there is no kubeconfig: the process may run in the cluster.
    pub fn read(&self) -> anyhow::Result<Option<Kubeconfig>> {
        let (read, path) = match &self.kubeconfig {
            Some(path) => (Kubeconfig::read_from(path), path.display().to_string()),
            None => (Kubeconfig::read(), kubeconfig_paths()),
        };
        match read {
            Ok(kubeconfig) => Ok(Some(kubeconfig)),
            Err(KubeconfigError::FindPath | KubeconfigError::ReadConfig(..)) if self.kubeconfig.is_none() => {
                match self.context {
                    None => Ok(None),
                    Some(_) => Err(no_cluster(&path)),
                }
            }
            Err(KubeconfigError::ReadConfig(error, _)) => {
                Err(anyhow::anyhow!("cannot read the kubeconfig {path}: {}", plain_cause(&error)))
            }
            Err(error) => {
                Err(anyhow::anyhow!("{path} is no valid kubeconfig: {}", plain_cause(root_cause(&error))))
            }
        }
    }
}

/// kubectl's, as errors name it.
fn kubeconfig_paths() -> String {
    match std::env::var("KUBECONFIG") {
        Ok(paths) if !paths.is_empty() => paths,
        _ => "~/.kube/config".to_owned(),
    }
}

fn no_cluster(paths: &str) -> anyhow::Error {
    anyhow::anyhow!(
        "no cluster to talk to: {paths} cannot be read; set KUBECONFIG or --kubeconfig, or try `serin local`"
    )
}

fn unusable(error: &KubeconfigError, contexts: &[String]) -> anyhow::Error {
    match error {
        KubeconfigError::LoadContext(name) => {
            let known = match contexts.is_empty() {
                true => "it has none".to_owned(),
                false => format!("it has {}", contexts.join(", ")),
            };
            anyhow::anyhow!("the kubeconfig has no context {name}, {known}; choose one with --context")
        }
        KubeconfigError::CurrentContextNotSet => {
            anyhow::anyhow!("the kubeconfig has no current context; choose one with --context")
        }
        error => anyhow::anyhow!("the kubeconfig cannot be used: {}", error_chain(error)),
    }
}

impl Connection {
    /// The address of the API server.
    pub fn server(&self) -> &str {
        &self.server
    }

    pub fn namespace(&self, given: Option<String>) -> String {
        given.unwrap_or_else(|| self.client.default_namespace().to_owned())
    }

    /// An error of the API server, with its own words; of the way there, with its
    /// address.
    pub fn error(&self, attempt: &str, error: &kube::Error) -> anyhow::Error {
        let server = &self.server;
        match error {
            kube::Error::Api(status) if status.code == 404 && !status.message.contains('"') => {
                anyhow::anyhow!("{server} knows no Canaries: run `serin crds | kubectl apply -f -` first")
            }
            kube::Error::Api(status) if status.code == 401 => anyhow::anyhow!(
                "cannot {attempt}: {server} does not accept these credentials; renew them, or choose others with --context"
            ),
            kube::Error::Api(_) => anyhow::anyhow!("cannot {attempt} at {server}: {}", api_message(error)),
            error => anyhow::anyhow!(
                "cannot {attempt} at {server}: {}; is that the cluster that you mean? --context chooses another",
                plain_cause(root_cause(error))
            ),
        }
    }

    /// An error that an error of the API server, or of the way there, is the cause of.
    pub fn caused_error(&self, attempt: &str, error: anyhow::Error) -> anyhow::Error {
        match error.chain().find_map(|cause| cause.downcast_ref::<kube::Error>()) {
            Some(cause) if !matches!(cause, kube::Error::Api(_)) => self.error(attempt, cause),
            _ => error,
        }
    }

    /// An error of a command, likewise.
    pub fn command_error(&self, error: CommandError) -> anyhow::Error {
        match error {
            CommandError::Api { doing, source } => self.error(doing, &source),
            error => error.into(),
        }
    }
}

/// Without the number that Rust appends to errors of the operating system.
fn plain_cause(error: &(dyn std::error::Error + 'static)) -> String {
    let text = error.to_string();
    let text = text.lines().next().unwrap_or_default();
    match text.find(" (os error ") {
        Some(at) => text[..at].to_lowercase(),
        None => text.to_owned(),
    }
}
