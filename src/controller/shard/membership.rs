//! The I/O of a replica's membership: watches the Leases, sends the requests of
//! [`ShardAssignment`], and operates the fence.

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
    assignment::{
        LeaseRequest, LeaseResponse, LeaseRole, LeaseView, ShardAssignment, ShardCountMismatch,
        shard_lease_name,
    },
    fence::{FenceHandle, LEASE_DURATION},
};
use crate::{clock::Clock, patch::FIELD_MANAGER};

/// On every Lease: the shard count.
const SHARD_COUNT_LABEL: &str = "serin.dev/shards";
/// On the Lease of a shard: its number.
const SHARD_LABEL: &str = "serin.dev/shard";

/// A request that takes longer counts as failed.
const LEASE_REQUEST_TIMEOUT: Duration = Duration::from_secs(4);

/// Namespace of the Leases, and identity of this replica.
#[derive(Clone, Debug)]
pub struct ReplicaConfig {
    pub namespace: String,
    /// Its pod name; part of the member name.
    pub identity: String,
    pub shards: u32,
}

/// The membership of one replica among several.
pub struct Membership {
    pub client: Client,
    pub clock: Clock,
    pub config: ReplicaConfig,
    pub handle: FenceHandle,
}

impl Membership {
    /// Holds shards until `over`, then releases all of them at once. After `stop`
    /// it acquires none.
    pub async fn run(
        self,
        stop: CancellationToken,
        over: CancellationToken,
    ) -> Result<(), ShardCountMismatch> {
        let Self { client, clock, config, mut handle } = self;
        let ReplicaConfig { namespace, identity, shards } = config;
        let leases = LeaseClient { api: Api::namespaced(client, &namespace), clock, shards };
        // The container may have run an earlier process.
        let mut assignment =
            ShardAssignment::new(format!("{identity}-{:x}", clock.now().as_microsecond()), shards);
        let ours = watcher::Config::default().labels(SHARD_COUNT_LABEL);
        let mut events = pin!(watcher(leases.api.clone(), ours).default_backoff());
        let (mut listed, mut requests) = (Vec::new(), FuturesUnordered::new());
        let outcome = loop {
            let turn = assignment.poll(Instant::now());
            publish_ownership(&handle, &assignment);
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
                    Ok(Event::InitApply(lease)) => listed.extend(parse_lease(&lease)),
                    Ok(Event::InitDone) => assignment.handle_list(std::mem::take(&mut listed), Instant::now()),
                    Ok(Event::Apply(lease)) => {
                        parse_lease(&lease).into_iter().for_each(|seen| assignment.handle_lease(seen, Instant::now()));
                    }
                    Ok(Event::Delete(lease)) => assignment.handle_delete(&lease.name_any()),
                    Err(error) => tracing::warn!(%error, "the watch of the leases broke; it starts again"),
                },
                Some((request, answer, asked)) = requests.next() => {
                    assignment.handle_response(&request, answer, asked, Instant::now());
                }
                Some(ended) = handle.drained.recv() => assignment.handle_drained(ended),
                () = sleep_until(wake.unwrap_or_else(Instant::now)), if wake.is_some() => {}
                () = stop.cancelled(), if !assignment.is_shutting_down() => assignment.begin_shutdown(),
            }
        };
        if let Some(name) = assignment.member_name() {
            leases.delete_member(name).await;
        }
        outcome
    }
}

/// Passes ownership to the fence, and logs changes.
fn publish_ownership(handle: &FenceHandle, assignment: &ShardAssignment) {
    let ownership = assignment.ownership();
    handle.ownership.send_if_modified(|current| {
        if *current == ownership {
            return false;
        }
        if current.shards != ownership.shards {
            let held = ownership.shards.iter().enumerate();
            let held: Vec<_> = held.filter(|(_, hold)| hold.is_held()).map(|(shard, _)| shard).collect();
            tracing::info!(replica = assignment.member_name(), shards = ?held, "holds {} shards", held.len());
        }
        *current = ownership;
        true
    });
}

#[derive(Clone)]
struct LeaseClient {
    api: Api<Lease>,
    clock: Clock,
    shards: u32,
}

impl LeaseClient {
    /// Returns the send time too.
    fn send(
        &self,
        request: LeaseRequest,
    ) -> impl Future<Output = (LeaseRequest, LeaseResponse, Instant)> + use<> {
        let (leases, asked) = (self.clone(), Instant::now());
        async move {
            let answer = match timeout(LEASE_REQUEST_TIMEOUT, leases.execute(&request)).await {
                Ok(Ok(())) => LeaseResponse::Done,
                Ok(Err(kube::Error::Api(status))) if status.code == 404 => LeaseResponse::NotFound,
                // Another replica won the race.
                Ok(Err(kube::Error::Api(status))) if status.code == 409 => LeaseResponse::Failed,
                Ok(Err(error)) => {
                    tracing::warn!(?request, %error, "a lease was not written");
                    LeaseResponse::Failed
                }
                Err(_) => {
                    tracing::warn!(?request, "a lease was not written in time");
                    LeaseResponse::Failed
                }
            };
            (request, answer, asked)
        }
    }

    async fn execute(&self, request: &LeaseRequest) -> kube::Result<()> {
        let now = MicroTime(self.clock.now());
        match request {
            LeaseRequest::Join { name } => {
                let spec = LeaseSpec {
                    holder_identity: Some(name.clone()),
                    lease_duration_seconds: i32::try_from(LEASE_DURATION.as_secs()).ok(),
                    acquire_time: Some(now.clone()),
                    renew_time: Some(now),
                    ..LeaseSpec::default()
                };
                self.create(name, None, spec).await
            }
            LeaseRequest::Renew { name } => self.patch(name, json!({ "spec": { "renewTime": now } })).await,
            LeaseRequest::Remove { name, version } => {
                let only_this = Preconditions { resource_version: Some(version.clone()), uid: None };
                self.delete(name, Some(only_this)).await
            }
            LeaseRequest::Acquire { shard, member, version: None } => {
                let spec = LeaseSpec {
                    holder_identity: Some(member.clone()),
                    acquire_time: Some(now),
                    ..LeaseSpec::default()
                };
                self.create(&shard_lease_name(*shard, self.shards), Some(*shard), spec).await
            }
            LeaseRequest::Acquire { shard, member, version: Some(version) } => {
                let spec = json!({ "holderIdentity": member, "acquireTime": now });
                self.patch_shard(*shard, version, spec).await
            }
            LeaseRequest::Release { shard, version } => {
                let spec = json!({ "holderIdentity": null, "acquireTime": null });
                self.patch_shard(*shard, version, spec).await
            }
        }
    }

    async fn create(&self, name: &str, shard: Option<u32>, spec: LeaseSpec) -> kube::Result<()> {
        let labels = [(SHARD_COUNT_LABEL, Some(self.shards)), (SHARD_LABEL, shard)];
        let labels = labels.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?.to_string())));
        let labels = labels.collect();
        let metadata = ObjectMeta { name: Some(name.to_owned()), labels: Some(labels), ..Default::default() };
        let params = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..Default::default() };
        self.api.create(&params, &Lease { metadata, spec: Some(spec) }).await.map(drop)
    }

    /// resourceVersion makes sure that one replica wins.
    async fn patch_shard(&self, shard: u32, version: &str, spec: Value) -> kube::Result<()> {
        let patch = json!({ "metadata": { "resourceVersion": version }, "spec": spec });
        self.patch(&shard_lease_name(shard, self.shards), patch).await
    }

    async fn patch(&self, name: &str, patch: Value) -> kube::Result<()> {
        let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..Default::default() };
        self.api.patch(name, &params, &Patch::Merge(patch)).await.map(drop)
    }

    async fn delete(&self, name: &str, preconditions: Option<Preconditions>) -> kube::Result<()> {
        let params = DeleteParams { preconditions, ..DeleteParams::default() };
        self.api.delete(name, &params).await.map(drop)
    }

    /// Others need not wait for its expiry.
    async fn delete_member(&self, name: &str) {
        match timeout(LEASE_REQUEST_TIMEOUT, self.delete(name, None)).await {
            Ok(Ok(())) => {}
            Ok(Err(kube::Error::Api(status))) if status.code == 404 => {}
            _ => tracing::warn!(name, "could not give the shards back; they run out by themselves"),
        }
    }
}

/// None if it is not a member or shard Lease.
fn parse_lease(lease: &Lease) -> Option<LeaseView> {
    let label = |key: &str| lease.labels().get(key);
    let role = match label(SHARD_LABEL) {
        None => LeaseRole::Member,
        Some(number) => {
            let holder = lease.spec.as_ref().and_then(|spec| spec.holder_identity.clone());
            LeaseRole::Shard {
                number: number.parse().ok()?,
                holder: holder.filter(|holder| !holder.is_empty()),
            }
        }
    };
    let shards = label(SHARD_COUNT_LABEL)?.parse().ok()?;
    Some(LeaseView { name: lease.name_any(), version: lease.resource_version()?, shards, role })
}
