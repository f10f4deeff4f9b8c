//! `serin approve`, `reject`, `promote`, `abort`, `pause`, `resume`, `retry`,
//! `rollback`: what people say to a release.
//!
//! Each writes to the Canary and then waits a moment for the controller's
//! answer, so that a command that is refused fails.

use std::time::Duration;

use anyhow::Context as _;
use kube::runtime::wait::await_condition;
use kube::{Api, Client};

use crate::api::{self, Canary, canary::status::GateState};
use crate::engine::{action::GateCall, command::Verb};
use crate::gates::commands::{self, Caller, CanaryRef};

/// To whom and for how long: what every command takes.
#[derive(clap::Args)]
pub(super) struct CanaryArgs {
    /// Name of the Canary
    name: String,

    /// Namespace of the Canary [default: that of the kubeconfig's context]
    #[arg(short, long)]
    namespace: Option<String>,

    /// How long to wait for the controller's answer; 0s does not wait
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

    /// Why, for those who read the release's history
    #[arg(long, value_name = "TEXT", default_value = "")]
    reason: String,
}

#[derive(clap::Args)]
pub(super) struct CommandArgs {
    #[command(flatten)]
    canary: CanaryArgs,

    /// The revision that is meant; should another be there, nothing is done
    /// [default: the present one]
    #[arg(long, value_name = "HASH")]
    revision: Option<String>,
}

pub(super) fn approve(args: ApproveArgs) -> anyhow::Result<()> {
    super::runtime()?.block_on(async {
        let ApproveArgs { canary: to, gate } = args;
        let canary = to.connect().await?;
        let question =
            commands::approve(&canary.client, &Caller::Current, canary.name(), gate.as_deref()).await?;
        println!("Approved: {}.", question.gate);
        canary.await_gate(&question).await
    })
}

pub(super) fn reject(args: RejectArgs) -> anyhow::Result<()> {
    super::runtime()?.block_on(async {
        let RejectArgs { canary: to, gate, reason } = args;
        let canary = to.connect().await?;
        let question =
            commands::reject(&canary.client, &Caller::Current, canary.name(), gate.as_deref(), &reason)
                .await?;
        println!("Rejected: {}.", question.gate);
        canary.await_gate(&question).await
    })
}

pub(super) fn command(verb: Verb, args: CommandArgs) -> anyhow::Result<()> {
    super::runtime()?.block_on(async {
        let CommandArgs { canary: to, revision } = args;
        let canary = to.connect().await?;
        let name = canary.name();
        let command =
            commands::command(&canary.client, &Caller::Current, name, verb, revision.as_deref()).await?;
        canary.await_command(&command.id, verb).await
    })
}

struct CanaryConnection {
    client: Client,
    namespace: String,
    name: String,
    wait: Duration,
}

impl CanaryArgs {
    async fn connect(self) -> anyhow::Result<CanaryConnection> {
        let client = Client::try_default().await.context("find the cluster; is KUBECONFIG set?")?;
        let namespace = self.namespace.unwrap_or_else(|| client.default_namespace().to_owned());
        Ok(CanaryConnection { client, namespace, name: self.name, wait: self.wait.get() })
    }
}

impl CanaryConnection {
    fn name(&self) -> CanaryRef<'_> {
        CanaryRef { namespace: &self.namespace, name: &self.name }
    }

    async fn await_command(&self, id: &str, verb: Verb) -> anyhow::Result<()> {
        let answered = |canary: &Canary| {
            let last = canary.status.as_ref()?.last_command.as_ref()?;
            (last.id == id).then(|| (last.accepted, last.message.clone()))
        };
        match self.await_answer(answered).await? {
            None => println!("Asked to {}.", verb.name()),
            Some((true, _)) => println!("Done: {}.", verb.name()),
            Some((false, why)) => anyhow::bail!("refused to {}: {why}", verb.name()),
        }
        Ok(())
    }

    /// The gate waits no longer: it was opened or refused, or its release is over.
    async fn await_gate(&self, question: &GateCall) -> anyhow::Result<()> {
        let answered = |canary: &Canary| {
            let status = canary.status.as_ref()?;
            let waits = status.releases == question.release
                && status.gates.iter().any(|gate| {
                    gate.name == question.gate
                        && gate.type_ == question.kind
                        && gate.state == GateState::Waiting
                });
            (!waits).then(|| status.message.clone().unwrap_or_default())
        };
        if let Some(message) = self.await_answer(answered).await? {
            println!("{message}");
        }
        Ok(())
    }

    /// Watches the Canary until it holds the answer; none if it did not in time.
    async fn await_answer<T>(&self, answer: impl Fn(&Canary) -> Option<T>) -> anyhow::Result<Option<T>> {
        if self.wait.is_zero() {
            return Ok(None);
        }
        let canaries = Api::<Canary>::namespaced(self.client.clone(), &self.namespace);
        let answered = |canary: Option<&Canary>| canary.is_none_or(|canary| answer(canary).is_some());
        match tokio::time::timeout(self.wait, await_condition(canaries, &self.name, answered)).await {
            Err(_) => {
                eprintln!("The controller has not answered within {:?}; it will when it can.", self.wait);
                Ok(None)
            }
            Ok(found) => {
                let found = found.context("wait for the controller's answer")?;
                Ok(found.as_ref().and_then(answer))
            }
        }
    }
}
