//! One replica of several, on the API: watches the Leases, sends what
//! [`Replica`] asks for, and keeps the fence.

use std::{pin::pin, time::Duration};

use futures::{StreamExt as _, stream::FuturesUnordered};
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::MicroTime,
};
use kube::{
    Api, Client, ResourceExt as _,
    api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions},
    core::ObjectMeta,
    runtime::{
        WatchStreamExt as _,
        watcher::{self, Event, watcher},
    },
};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::{
    lease::{Keeper, LENGTH},
    shards::{Answer, Disagreement, Replica, Request, Role, Seen, lease_of},
};
use crate::{clock::Clock, workload::FIELD_MANAGER};

/// How many shards there are, on every Lease.
const SHARDS: &str = "serin.dev/shards";
/// Which of them it is, on the Lease of a shard.
const SHARD: &str = "serin.dev/shard";

/// A request that takes longer has failed.
const PATIENCE: Duration = Duration::from_secs(4);

/// Where the Leases are, and who this replica is.
#[derive(Clone, Debug)]
pub struct Claim {
    pub namespace: String,
    /// The name that people know it by.
    pub me: String,
    pub shards: u32,
}

/// Holds shards until `over`, then lets all of them go at once. Takes none from
/// when it is told to `stop`.
pub async fn hold(
    client: Client,
    clock: Clock,
    claim: Claim,
    mut keeper: Keeper,
    stop: CancellationToken,
    over: CancellationToken,
) -> Result<(), Disagreement> {
    let Claim { namespace, me, shards } = claim;
    let leases = Leases { api: Api::namespaced(client, &namespace), clock, shards };
    // Its container may have had a process before this one.
    let mut replica = Replica::new(format!("{me}-{:x}", clock.now().as_microsecond()), shards);
    let ours = watcher::Config::default().labels(SHARDS);
    let mut events = pin!(watcher(leases.api.clone(), ours).default_backoff());
    let (mut listed, mut requests) = (Vec::new(), FuturesUnordered::new());
    let outcome = loop {
        let turn = replica.turn(Instant::now());
        publish(&keeper, &replica);
        let wake = match turn {
            Ok((wanted, wake)) => {
                requests.extend(wanted.into_iter().map(|request| leases.send(request)));
                wake
            }
            Err(disagreement) => break Err(disagreement),
        };
        tokio::select! {
            biased;
            () = over.cancelled() => break Ok(()),
            Some(event) = events.next() => match event {
                Ok(Event::Init) => listed.clear(),
                Ok(Event::InitApply(lease)) => listed.extend(read(&lease)),
                Ok(Event::InitDone) => replica.list(std::mem::take(&mut listed), Instant::now()),
                Ok(Event::Apply(lease)) => {
                    read(&lease).into_iter().for_each(|seen| replica.see(seen, Instant::now()));
                }
                Ok(Event::Delete(lease)) => replica.gone(&lease.name_any()),
                Err(error) => tracing::warn!(%error, "the watch of the leases broke; it starts again"),
            },
            Some((request, answer, asked)) = requests.next() => {
                replica.answered(&request, answer, asked, Instant::now());
            }
            Some(ended) = keeper.ended.recv() => replica.ended(ended),
            () = sleep_until(wake.unwrap_or_else(Instant::now)), if wake.is_some() => {}
            () = stop.cancelled(), if !replica.is_leaving() => replica.leave(),
        }
    };
    if let Some(name) = replica.name() {
        leases.withdraw(name).await;
    }
    outcome
}

/// Says what is held, to the fence and to people.
fn publish(keeper: &Keeper, replica: &Replica) {
    let tenure = replica.tenure();
    keeper.tenure.send_if_modified(|told| {
        if *told == tenure {
            return false;
        }
        if told.shards != tenure.shards {
            let held = tenure.shards.iter().enumerate();
            let held: Vec<_> = held.filter(|(_, hold)| hold.is_kept()).map(|(shard, _)| shard).collect();
            tracing::info!(replica = replica.name(), shards = ?held, "holds {} shards", held.len());
        }
        *told = tenure;
        true
    });
}

#[derive(Clone)]
struct Leases {
    api: Api<Lease>,
    clock: Clock,
    shards: u32,
}

impl Leases {
    /// Says too when it was sent.
    fn send(&self, request: Request) -> impl Future<Output = (Request, Answer, Instant)> + use<> {
        let (leases, asked) = (self.clone(), Instant::now());
        async move {
            let answer = match timeout(PATIENCE, leases.perform(&request)).await {
                Ok(Ok(())) => Answer::Done,
                Ok(Err(kube::Error::Api(status))) if status.code == 404 => Answer::Absent,
                // Another replica was faster.
                Ok(Err(kube::Error::Api(status))) if status.code == 409 => Answer::Failed,
                Ok(Err(error)) => {
                    tracing::warn!(?request, %error, "a lease was not written");
                    Answer::Failed
                }
                Err(_) => {
                    tracing::warn!(?request, "a lease was not written in time");
                    Answer::Failed
                }
            };
            (request, answer, asked)
        }
    }

    async fn perform(&self, request: &Request) -> kube::Result<()> {
        let now = MicroTime(self.clock.now());
        match request {
            Request::Join { name } => {
                let spec = LeaseSpec {
                    holder_identity: Some(name.clone()),
                    lease_duration_seconds: i32::try_from(LENGTH.as_secs()).ok(),
                    acquire_time: Some(now.clone()),
                    renew_time: Some(now),
                    ..LeaseSpec::default()
                };
                self.create(name, None, spec).await
            }
            Request::Renew { name } => self.change(name, json!({ "spec": { "renewTime": now } })).await,
            Request::Remove { name, version } => {
                let only_this = Preconditions { resource_version: Some(version.clone()), uid: None };
                self.delete(name, Some(only_this)).await
            }
            Request::Take { shard, member, version: None } => {
                let spec = LeaseSpec {
                    holder_identity: Some(member.clone()),
                    acquire_time: Some(now),
                    ..LeaseSpec::default()
                };
                self.create(&lease_of(*shard, self.shards), Some(*shard), spec).await
            }
            Request::Take { shard, member, version: Some(version) } => {
                let spec = json!({ "holderIdentity": member, "acquireTime": now });
                self.change_shard(*shard, version, spec).await
            }
            Request::GiveBack { shard, version } => {
                let spec = json!({ "holderIdentity": null, "acquireTime": null });
                self.change_shard(*shard, version, spec).await
            }
        }
    }

    async fn create(&self, name: &str, shard: Option<u32>, spec: LeaseSpec) -> kube::Result<()> {
        let labels = [(SHARDS, Some(self.shards)), (SHARD, shard)];
        let labels = labels.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?.to_string())));
        let labels = labels.collect();
        let metadata = ObjectMeta { name: Some(name.to_owned()), labels: Some(labels), ..Default::default() };
        let params = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..Default::default() };
        self.api.create(&params, &Lease { metadata, spec: Some(spec) }).await.map(drop)
    }

    /// The version makes sure that only one replica does.
    async fn change_shard(&self, shard: u32, version: &str, spec: Value) -> kube::Result<()> {
        let patch = json!({ "metadata": { "resourceVersion": version }, "spec": spec });
        self.change(&lease_of(shard, self.shards), patch).await
    }

    async fn change(&self, name: &str, patch: Value) -> kube::Result<()> {
        let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..Default::default() };
        self.api.patch(name, &params, &Patch::Merge(patch)).await.map(drop)
    }

    async fn delete(&self, name: &str, preconditions: Option<Preconditions>) -> kube::Result<()> {
        let params = DeleteParams { preconditions, ..DeleteParams::default() };
        self.api.delete(name, &params).await.map(drop)
    }

    /// Nobody need wait for it to run out.
    async fn withdraw(&self, name: &str) {
        match timeout(PATIENCE, self.delete(name, None)).await {
            Ok(Ok(())) => {}
            Ok(Err(kube::Error::Api(status))) if status.code == 404 => {}
            _ => tracing::warn!(name, "could not give the shards back; they run out by themselves"),
        }
    }
}

/// None if it is no Lease of ours after all.
fn read(lease: &Lease) -> Option<Seen> {
    let label = |key: &str| lease.labels().get(key);
    let role = match label(SHARD) {
        None => Role::Member,
        Some(number) => {
            let holder = lease.spec.as_ref().and_then(|spec| spec.holder_identity.clone());
            Role::Shard { number: number.parse().ok()?, holder: holder.filter(|holder| !holder.is_empty()) }
        }
    };
    let shards = label(SHARDS)?.parse().ok()?;
    Some(Seen { name: lease.name_any(), version: lease.resource_version()?, shards, role })
}
