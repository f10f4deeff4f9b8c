//! `serin approve`, `reject`, `promote`, `abort`, `pause`, `resume`, `retry`,
//! `rollback`.
//!
//! Each writes an annotation of the Canary, then waits for the controller to
//! process it: a refused command exits with an error.

use std::time::Duration;

use kube::Api;
use kube::runtime::wait::{self, await_condition};

use super::canaries::Subject;
use super::connect::{ClusterArgs, Connection};
use crate::api::{self, Canary, canary::status::GateState};
use crate::api_error::watch_error;
use crate::engine::{action::GateCall, command::Verb};
use crate::gates::commands::{self, Caller, CanaryRef, CommandError};

/// Arguments of every command.
#[derive(clap::Args)]
pub(super) struct CanaryArgs {
    /// Name of the Canary
    name: String,

    /// Namespace of the Canary [default: that of the kubeconfig's context]
    #[arg(short, long)]
    namespace: Option<String>,

    #[command(flatten)]
    cluster: ClusterArgs,

    /// How long to wait for the controller to process it; 0s does not wait
    #[arg(long, value_name = "DURATION", default_value = "10s")]
    wait: api::Duration,
}

#[derive(clap::Args)]
pub(super) struct ApproveArgs {
    #[command(flatten)]
    canary: CanaryArgs,

    /// The gate or approval step, if several wait
    #[arg(long, value_name = "NAME")]
    gate: Option<String>,
}

#[derive(clap::Args)]
pub(super) struct RejectArgs {
    #[command(flatten)]
    canary: CanaryArgs,

    /// The approval step, if several wait
    #[arg(long, value_name = "NAME")]
    gate: Option<String>,

    /// Why; recorded in the release's history
    #[arg(long, value_name = "TEXT", default_value = "")]
    reason: String,
}

#[derive(clap::Args)]
pub(super) struct CommandArgs {
    #[command(flatten)]
    canary: CanaryArgs,

    /// Revision that the command applies to; it is refused if the release is of
    /// another one [default: the current one]
    #[arg(long, value_name = "HASH")]
    revision: Option<String>,
}

pub(super) fn approve(args: ApproveArgs) -> anyhow::Result<()> {
    super::runtime()?.block_on(async {
        let ApproveArgs { canary, gate } = args;
        let canary = canary.connect().await?;
        let client = &canary.connection.client;
        let call = commands::approve(client, &Caller::Current, canary.name(), gate.as_deref()).await;
        let call = canary.checked(call).await?;
        println!("Approved: {}.", call.gate);
        canary.await_gate(&call).await
    })
}

pub(super) fn reject(args: RejectArgs) -> anyhow::Result<()> {
    super::runtime()?.block_on(async {
        let RejectArgs { canary, gate, reason } = args;
        let canary = canary.connect().await?;
        let (client, gate) = (&canary.connection.client, gate.as_deref());
        let call = commands::reject(client, &Caller::Current, canary.name(), gate, &reason).await;
        let call = canary.checked(call).await?;
        println!("Rejected: {}.", call.gate);
        canary.await_gate(&call).await
    })
}

pub(super) fn command(verb: Verb, args: CommandArgs) -> anyhow::Result<()> {
    super::runtime()?.block_on(async {
        let CommandArgs { canary, revision } = args;
        let canary = canary.connect().await?;
        let name = canary.name();
        let (client, revision) = (&canary.connection.client, revision.as_deref());
        let command = commands::command(client, &Caller::Current, name, verb, revision).await;
        let command = canary.checked(command).await?;
        canary.await_command(&command.id, verb).await
    })
}

fn verb_phrase(verb: Verb) -> &'static str {
    match verb {
        Verb::Rollback => "roll back",
        verb => verb.name(),
    }
}

struct CanaryConnection {
    connection: Connection,
    namespace: String,
    name: String,
    wait: Duration,
}

impl CanaryArgs {
    async fn connect(self) -> anyhow::Result<CanaryConnection> {
        let connection = self.cluster.connect().await?;
        let namespace = connection.namespace(self.namespace);
        Ok(CanaryConnection { connection, namespace, name: self.name, wait: self.wait.get() })
    }
}

impl CanaryConnection {
    fn name(&self) -> CanaryRef<'_> {
        CanaryRef { namespace: &self.namespace, name: &self.name }
    }

    /// With errors as people read them.
    async fn checked<T>(&self, sent: Result<T, CommandError>) -> anyhow::Result<T> {
        match sent {
            Ok(sent) => Ok(sent),
            Err(CommandError::NoSuchCanary { .. }) => {
                let (connection, namespace, name) =
                    (self.connection.clone(), self.namespace.clone(), self.name.clone());
                Err(Subject { connection, namespace, name }.missing().await)
            }
            Err(error) => Err(self.connection.command_error(error)),
        }
    }

    async fn await_command(&self, id: &str, verb: Verb) -> anyhow::Result<()> {
        let result = |canary: &Canary| {
            let last = canary.status.as_ref()?.last_command.as_ref()?;
            let why = match last.accepted {
                true => canary.status.as_ref()?.message.clone().unwrap_or_default(),
                false => last.message.clone(),
            };
            (last.id == id).then_some((last.accepted, why))
        };
        match self.await_status(result).await? {
            None => println!("Requested: {}.", verb.name()),
            Some((true, after)) if after.is_empty() => println!("Done: {}.", verb.name()),
            Some((true, after)) => println!("{after}"),
            Some((false, why)) => anyhow::bail!("refused to {}: {why}", verb_phrase(verb)),
        }
        Ok(())
    }

    /// Until the gate is no longer pending: opened, refused, or its release over.
    async fn await_gate(&self, call: &GateCall) -> anyhow::Result<()> {
        let result = |canary: &Canary| {
            let status = canary.status.as_ref()?;
            let pending = status.releases == call.release
                && status.gates.iter().any(|gate| {
                    gate.name == call.gate && gate.type_ == call.kind && gate.state == GateState::Waiting
                });
            (!pending).then(|| status.message.clone().unwrap_or_default())
        };
        if let Some(message) = self.await_status(result).await? {
            println!("{message}");
        }
        Ok(())
    }

    /// Watches the Canary until `result` is there; none after the timeout.
    async fn await_status<T>(&self, result: impl Fn(&Canary) -> Option<T>) -> anyhow::Result<Option<T>> {
        if self.wait.is_zero() {
            return Ok(None);
        }
        let canaries = Api::<Canary>::namespaced(self.connection.client.clone(), &self.namespace);
        let done = |canary: Option<&Canary>| canary.is_none_or(|canary| result(canary).is_some());
        match tokio::time::timeout(self.wait, await_condition(canaries, &self.name, done)).await {
            Err(_) => {
                eprintln!(
                    "The controller has not processed it within {:?}; it will when it runs.",
                    self.wait
                );
                Ok(None)
            }
            Ok(canary) => {
                let canary = canary.map_err(|error| match error {
                    wait::Error::ProbeFailed(error) => {
                        anyhow::anyhow!("cannot watch the Canary: {}", watch_error(&error).0)
                    }
                })?;
                Ok(canary.as_ref().and_then(result))
            }
        }
    }
}
