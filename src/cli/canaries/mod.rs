//! Commands that show Canaries: `serin get`, `status`, `history`, `events`, `logs` and
//! `wait`. They change nothing, but for the keys of `status --watch`.

pub mod events;
pub mod get;
pub mod history;
pub mod logs;
pub mod status;
pub mod view;
pub mod wait;

use clap::ValueEnum;
use jiff::{SignedDuration, Timestamp};
use kube::{Api, ResourceExt as _, api::ListParams};

use super::connect::{ClusterArgs, Connection};
use crate::api::Canary;
use crate::engine::names::state_of as state;

/// One Canary, as every command names it.
#[derive(clap::Args)]
pub(super) struct CanaryArgs {
    /// Name of the Canary
    name: String,

    /// Namespace of the Canary [default: that of the kubeconfig's context]
    #[arg(short, long)]
    namespace: Option<String>,

    #[command(flatten)]
    cluster: ClusterArgs,
}

/// As in kubectl.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Output {
    /// More columns or lines
    Wide,
    Json,
    Yaml,
}

/// A Canary and the cluster it is in.
#[derive(Clone)]
pub(super) struct Subject {
    pub(super) connection: Connection,
    pub(super) namespace: String,
    pub(super) name: String,
}

impl CanaryArgs {
    async fn connect(self) -> anyhow::Result<Subject> {
        let connection = self.cluster.connect().await?;
        Ok(Subject { namespace: connection.namespace(self.namespace), connection, name: self.name })
    }
}

impl Subject {
    fn api(&self) -> Api<Canary> {
        Api::namespaced(self.connection.client.clone(), &self.namespace)
    }

    async fn read(&self) -> anyhow::Result<Canary> {
        let error = |error| self.connection.error("read the Canary", &error);
        match self.api().get_opt(&self.name).await.map_err(error)? {
            Some(canary) => Ok(canary),
            None => Err(self.missing().await),
        }
    }

    /// The names that there are, in place of one that there is not.
    pub(super) async fn missing(&self) -> anyhow::Error {
        let Self { name, namespace, .. } = self;
        let all = match self.api().list(&ListParams::default()).await {
            Err(error) => return self.connection.error("list Canaries", &error),
            Ok(all) => all.items.iter().map(|canary| canary.name_any()).collect::<Vec<_>>(),
        };
        match all.is_empty() {
            true => {
                anyhow::anyhow!("namespace {namespace} has no Canary; try another with -n, or `serin get -A`")
            }
            false => match nearest(name, &all) {
                Some(meant) => {
                    anyhow::anyhow!("namespace {namespace} has no Canary {name}; did you mean {meant}?")
                }
                None => anyhow::anyhow!("namespace {namespace} has no Canary {name}, only {}", some_of(&all)),
            },
        }
    }
}

/// The name that was meant, if it is spelled much like it.
fn nearest<'a>(name: &str, names: &'a [String]) -> Option<&'a String> {
    const SIMILAR: f64 = 0.6;
    let likeness = |other: &String| strsim::normalized_damerau_levenshtein(name, other);
    let best = names.iter().max_by(|a, b| likeness(a).total_cmp(&likeness(b)))?;
    (likeness(best) >= SIMILAR).then_some(best)
}

/// The first names of a list.
fn some_of(names: &[String]) -> String {
    const SHOWN: usize = 8;
    match names.len().checked_sub(SHOWN).filter(|more| *more > 0) {
        Some(more) => format!("{} and {more} more", names[..SHOWN].join(", ")),
        None => names.join(", "),
    }
}

/// `25 s`, `4 min`, `3 h`, `2 d`
pub(super) fn length(duration: SignedDuration) -> String {
    let seconds = duration.as_secs().max(0);
    match seconds {
        0..=99 => format!("{seconds} s"),
        100..=5_999 => format!("{} min", (seconds + 30) / 60),
        6_000..=172_799 => format!("{} h", (seconds + 1_800) / 3_600),
        _ => format!("{} d", (seconds + 43_200) / 86_400),
    }
}

/// `4 min ago`, `in 25 s`
pub(super) fn relative(at: Timestamp, now: Timestamp) -> String {
    match now.duration_since(at) {
        past if past >= SignedDuration::ZERO => format!("{} ago", length(past)),
        future => format!("in {}", length(-future)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn canary(status: Value) -> Canary {
        let spec = json!({
            "targetRef": { "apiVersion": "apps/v1", "kind": "Deployment", "name": "web" },
            "service": { "port": 80 },
            "analysis": { "stepWeight": 10 },
        });
        let canary = json!({
            "apiVersion": "serin.dev/v1alpha1", "kind": "Canary", "metadata": { "name": "web" },
            "spec": spec, "status": status,
        });
        serde_json::from_value(canary).unwrap()
    }

    #[test]
    fn the_state_is_what_a_person_must_know() {
        let release = json!({
            "revision": "v1-1", "trigger": "PodTemplate",
            "startedAt": "2026-01-01T00:00:00Z", "lastProgressAt": "2026-01-01T00:00:00Z",
        });
        let stalled =
            json!([{ "type": "Stalled", "status": "True", "reason": "InvalidSpec", "message": "" }]);
        let rolled_back =
            json!([{ "type": "Stalled", "status": "True", "reason": "RolledBack", "message": "" }]);
        let gate = |type_: Value| json!([{ "name": "50 %", "type": type_, "state": "Waiting" }]);
        for (status, state_) in [
            (json!({ "phase": "Progressing" }), "Progressing"),
            (json!({ "phase": "Initializing", "conditions": stalled }), "Refused"),
            (json!({ "phase": "Failed", "conditions": rolled_back }), "Failed"),
            (
                json!({ "phase": "Progressing", "release": release, "gates": gate(Value::Null) }),
                "AwaitingApproval",
            ),
            (
                json!({ "phase": "WaitingPromotion", "release": release, "gates": gate(json!("confirm-promotion")) }),
                "AwaitingGate",
            ),
            // Of a release that is over.
            (json!({ "phase": "Failed", "gates": gate(Value::Null) }), "Failed"),
        ] {
            assert_eq!(state(&canary(status.clone())), state_, "{status}");
        }
    }

    #[test]
    fn times_are_rounded_to_what_a_person_reads() {
        let now = Timestamp::from_second(1_000_000).unwrap();
        let at = |seconds: i64| relative(Timestamp::from_second(1_000_000 + seconds).unwrap(), now);
        assert_eq!(
            [0, -99, -130, -7_200, -200_000, 25].map(at),
            ["0 s ago", "99 s ago", "2 min ago", "2 h ago", "2 d ago", "in 25 s"]
        );
    }
}
