//! The writes of `serin migrate --live`. Each may be repeated: one that was done changes
//! nothing.

use std::fmt;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{
    Api, ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams, PropagationPolicy,
};
use kube::{Client, Resource as _, ResourceExt as _};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::live::flagger_canaries;
use crate::api::canary::{Canary, CanaryStatus};
use crate::cli::connect::Connection;
use crate::migrate::flagger::MIGRATED;
use crate::workload;

/// Namespace and name.
type Key = (String, String);

/// How long Flagger's pods may take to end.
const END_TIMEOUT: Duration = Duration::from_secs(120);
const END_INTERVAL: Duration = Duration::from_millis(200);

/// How long a running controller may take to let its Canary go.
const FINALIZER_TIMEOUT: Duration = Duration::from_secs(10);

/// Attempts of a write that others keep overtaking.
const MAX_CONFLICTS: u32 = 10;

pub enum Write {
    ScaleFlagger {
        key: Key,
        from: i32,
        to: i32,
    },
    /// Suspended, until everything is its own.
    CreateCanary(Box<Canary>),
    Transfer(Transfer),
    Status {
        key: Key,
        status: Box<CanaryStatus>,
    },
    SuspendTheirs {
        key: Key,
        before: bool,
    },
    Resume {
        key: Key,
    },
    SuspendOurs {
        key: Key,
    },
    GiveBack {
        transfer: Transfer,
        to: String,
        name: String,
    },
    /// It owns nothing any more but what Serin made for itself.
    DeleteOurs {
        key: Key,
    },
    ResumeTheirs {
        key: Key,
        suspend: bool,
    },
    DeleteTheirs {
        key: Key,
    },
}

/// An object whose owner changes.
#[derive(Clone, Debug)]
pub struct Transfer {
    pub resource: ApiResource,
    pub key: Key,
    /// The uid of the owner before.
    pub from: String,
    /// The revision that it runs, if it is a primary.
    pub revision: Option<String>,
}

impl fmt::Display for Write {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |(namespace, name): &Key| format!("{namespace}/{name}");
        match self {
            Self::ScaleFlagger { key, from, to } => {
                write!(f, "scale Deployment {} from {from} to {to}", name(key))
            }
            Self::CreateCanary(canary) => {
                let key = (canary.namespace().unwrap_or_default(), canary.name_any());
                write!(f, "create Canary {} of serin.dev, suspended", name(&key))
            }
            Self::Transfer(Transfer { resource, key, revision, .. }) => {
                write!(f, "make Serin the owner of {} {}", resource.kind, name(key))?;
                match revision {
                    Some(revision) => write!(f, ", which runs {revision}"),
                    None => Ok(()),
                }
            }
            Self::Status { key, status } => write!(
                f,
                "record in Canary {} that it is {:?} at {} %",
                name(key),
                status.phase,
                status.canary_weight
            ),
            Self::SuspendTheirs { key, .. } => write!(f, "suspend Flagger's Canary {}", name(key)),
            Self::Resume { key } => write!(f, "let Serin release {}", name(key)),
            Self::SuspendOurs { key } => write!(f, "suspend Serin's Canary {}", name(key)),
            Self::GiveBack { transfer, .. } => {
                write!(f, "make Flagger the owner of {} {}", transfer.resource.kind, name(&transfer.key))
            }
            Self::DeleteOurs { key } => write!(f, "delete Serin's Canary {} and nothing else", name(key)),
            Self::ResumeTheirs { key, suspend: false } => {
                write!(f, "let Flagger release {}", name(key))
            }
            Self::ResumeTheirs { key, suspend: true } => {
                write!(f, "leave Flagger's Canary {} suspended, as it was", name(key))
            }
            Self::DeleteTheirs { key } => write!(f, "delete Flagger's Canary {} and nothing else", name(key)),
        }
    }
}

impl Write {
    /// What puts Flagger's pods back; any other write is undone by `--undo`.
    pub fn revert(self) -> Self {
        match self {
            Self::ScaleFlagger { key, from, to } => Self::ScaleFlagger { key, from: to, to: from },
            other => other,
        }
    }

    pub async fn perform(&self, connection: &Connection) -> anyhow::Result<()> {
        let client = &connection.client;
        let done = match self {
            Self::ScaleFlagger { key, from, to } => return scale(connection, key, *from, *to).await,
            Self::CreateCanary(canary) => create(client, canary).await,
            Self::Transfer(transfer) => return transfer.to_ours(client).await,
            Self::Status { key, status } => {
                let patch = json!({ "status": status });
                let api = canaries(client, key);
                api.patch_status(&key.1, &PatchParams::default(), &Patch::Merge(&patch)).await.map(drop)
            }
            Self::SuspendTheirs { key, before } => {
                let patch = json!({
                    "metadata": { "annotations": { MIGRATED: before.to_string() } }, "spec": { "suspend": true },
                });
                merge(&theirs(client, key), key, &patch).await
            }
            Self::Resume { key } => {
                merge(&canaries(client, key), key, &json!({ "spec": { "suspend": false } })).await
            }
            Self::SuspendOurs { key } => {
                // Its deletion must not move traffic to the target.
                let patch = json!({ "spec": { "suspend": true, "revertOnDeletion": false } });
                merge(&canaries(client, key), key, &patch).await
            }
            Self::GiveBack { transfer, to, name } => {
                let owner = OwnerReference {
                    api_version: "flagger.app/v1beta1".to_owned(),
                    kind: "Canary".to_owned(),
                    name: name.clone(),
                    uid: to.clone(),
                    controller: Some(true),
                    block_owner_deletion: Some(true),
                };
                return transfer.to(client, owner).await;
            }
            Self::DeleteOurs { key } => delete_ours(client, key).await,
            Self::ResumeTheirs { key, suspend } => {
                let patch = json!({
                    "metadata": { "annotations": { MIGRATED: null } }, "spec": { "suspend": suspend },
                });
                merge(&theirs(client, key), key, &patch).await
            }
            Self::DeleteTheirs { key } => {
                let api = theirs(client, key);
                match merge(&api, key, &json!({ "metadata": { "finalizers": null } })).await {
                    Ok(()) => api.delete(&key.1, &orphan()).await.map(drop),
                    Err(error) => Err(error),
                }
            }
        };
        done.map_err(|error| connection.error(&self.to_string(), &error))
    }
}

fn canaries(client: &Client, key: &Key) -> Api<Canary> {
    Api::namespaced(client.clone(), &key.0)
}

fn theirs(client: &Client, key: &Key) -> Api<DynamicObject> {
    Api::namespaced_with(client.clone(), &key.0, &flagger_canaries())
}

fn orphan() -> DeleteParams {
    DeleteParams { propagation_policy: Some(PropagationPolicy::Orphan), ..DeleteParams::default() }
}

async fn merge<K>(api: &Api<K>, key: &Key, patch: &Value) -> Result<(), kube::Error>
where
    K: Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    api.patch(&key.1, &PatchParams::default(), &Patch::Merge(patch)).await.map(drop)
}

/// The controller removes its finalizer; without a controller this does.
async fn delete_ours(client: &Client, key: &Key) -> Result<(), kube::Error> {
    let api = canaries(client, key);
    api.delete(&key.1, &DeleteParams::default()).await?;
    let began = Instant::now();
    while began.elapsed() < FINALIZER_TIMEOUT {
        if api.get_opt(&key.1).await?.is_none() {
            return Ok(());
        }
        sleep(END_INTERVAL).await;
    }
    match merge(&api, key, &json!({ "metadata": { "finalizers": null } })).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        other => other,
    }
}

/// One that exists is from an earlier run.
async fn create(client: &Client, canary: &Canary) -> Result<(), kube::Error> {
    let api: Api<Canary> = Api::namespaced(client.clone(), &canary.namespace().unwrap_or_default());
    match api.create(&PostParams::default(), canary).await {
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
        other => other.map(drop),
    }
}

/// Waits until the pods are gone: two controllers must not write one route.
async fn scale(connection: &Connection, key: &Key, from: i32, to: i32) -> anyhow::Result<()> {
    let api: Api<Deployment> = Api::namespaced(connection.client.clone(), &key.0);
    let recorded = if to == 0 { json!(from.to_string()) } else { Value::Null };
    let patch = json!({
        "metadata": { "annotations": { MIGRATED: recorded } }, "spec": { "replicas": to },
    });
    let error = |error| connection.error("scale Flagger", &error);
    merge(&api, key, &patch).await.map_err(error)?;
    if to > 0 {
        return Ok(());
    }
    let began = Instant::now();
    loop {
        let live = api.get(&key.1).await.map_err(error)?;
        let status = live.status.unwrap_or_default();
        let seen = status.observed_generation >= live.metadata.generation;
        if seen && status.replicas.unwrap_or_default() == 0 {
            return Ok(());
        }
        ensure!(
            began.elapsed() < END_TIMEOUT,
            "Flagger's pods are still there after {} s; nothing else was changed",
            END_TIMEOUT.as_secs()
        );
        sleep(END_INTERVAL).await;
    }
}

impl Transfer {
    async fn to_ours(&self, client: &Client) -> anyhow::Result<()> {
        let name = self
            .live(client)
            .await?
            .owner_references()
            .iter()
            .find(|owner| owner.uid == self.from)
            .map(|owner| owner.name.clone());
        // Done by an earlier run.
        let Some(name) = name else { return Ok(()) };
        let api = canaries(client, &self.key);
        let canary = api.get(&name).await.with_context(|| format!("read Canary {name}"))?;
        let owner = canary.controller_owner_ref(&()).context("a Canary without a uid")?;
        self.to(client, owner).await
    }

    async fn live(&self, client: &Client) -> anyhow::Result<DynamicObject> {
        let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), &self.key.0, &self.resource);
        api.get(&self.key.1).await.with_context(|| format!("read {} {}", self.resource.kind, self.key.1))
    }

    /// Replaces the owner, and records the revision of a primary.
    async fn to(&self, client: &Client, owner: OwnerReference) -> anyhow::Result<()> {
        let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), &self.key.0, &self.resource);
        for _ in 0..MAX_CONFLICTS {
            let live = self.live(client).await?;
            let mut owners = live.owner_references().to_vec();
            owners.retain(|one| one.uid != self.from && one.uid != owner.uid);
            owners.push(owner.clone());
            let mut patch = json!({
                "metadata": { "resourceVersion": live.resource_version(), "ownerReferences": owners },
            });
            if let Some(revision) = &self.revision {
                patch["metadata"]["annotations"] = json!({ workload::REVISION: revision });
            }
            match api.patch(&self.key.1, &PatchParams::default(), &Patch::Merge(&patch)).await {
                Err(kube::Error::Api(status)) if status.code == 409 => {}
                other => {
                    return other.map(drop).with_context(|| {
                        format!("change the owner of {} {}", self.resource.kind, self.key.1)
                    });
                }
            }
        }
        anyhow::bail!("{} {} changes all the time; try again", self.resource.kind, self.key.1)
    }
}
