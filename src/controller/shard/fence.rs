//! The fence: every Canary belongs to a shard, every shard to at most one replica,
//! and a replica that lost a shard, or cannot be sure of it, writes nothing more
//! for its Canaries. [`super::assignment`] divides the shards.
//!
//! A fence closes [`FENCE_MARGIN`] before another replica may open its own. A write
//! that was sent before and takes longer still lands: resourceVersions protect the
//! status, and the next holder corrects the rest, which is declarative and read
//! back.

use std::time::Duration;

use kube::Client;
use tokio::{
    sync::{mpsc, watch},
    time::Instant,
};

use crate::controller::queue::trigger::NamespacedName;

/// A replica is alive for this long without a renewal of its Lease.
pub const LEASE_DURATION: Duration = Duration::from_secs(15);
/// Between two renewals.
pub const RENEW_INTERVAL: Duration = Duration::from_secs(5);
/// Its fence closes this long before its Lease expires.
pub const FENCE_MARGIN: Duration = Duration::from_millis(2500);

/// The Canary belongs to another replica, or might.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this replica does not hold the Canary's shard any more, so it writes nothing")]
pub struct Fenced;

/// Ownership of one shard. Each acquisition has a new term.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ShardOwnership {
    #[default]
    NotHeld,
    Held {
        term: u64,
    },
    /// Released once nothing is in progress for it.
    Draining {
        term: u64,
    },
}

impl ShardOwnership {
    pub fn is_held(self) -> bool {
        matches!(self, ShardOwnership::Held { .. })
    }
}

/// Ownership of all shards, and when it expires unless renewed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaOwnership {
    pub until: Option<Instant>,
    pub shards: Vec<ShardOwnership>,
}

/// Permits writes for Canaries whose shard is held.
#[derive(Clone)]
pub struct Fence(Option<FenceChannels>);

#[derive(Clone)]
struct FenceChannels {
    ownership: watch::Receiver<ReplicaOwnership>,
    drained: mpsc::UnboundedSender<ShardTerm>,
}

/// One acquisition of one shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardTerm {
    pub shard: usize,
    pub term: u64,
}

/// Opens and closes a fence.
pub struct FenceHandle {
    pub ownership: watch::Sender<ReplicaOwnership>,
    pub drained: mpsc::UnboundedReceiver<ShardTerm>,
}

impl Fence {
    /// For a single replica: one shard, always held.
    pub fn unsharded() -> Self {
        Self(None)
    }

    pub fn is_unsharded(&self) -> bool {
        self.0.is_none()
    }

    /// Closed for all shards until its handle opens it.
    pub fn sharded(shards: u32) -> (Self, FenceHandle) {
        let shards = vec![ShardOwnership::NotHeld; shards as usize];
        let (sender, ownership) = watch::channel(ReplicaOwnership { until: None, shards });
        let (drained_sender, drained) = mpsc::unbounded_channel();
        (
            Self(Some(FenceChannels { ownership, drained: drained_sender })),
            FenceHandle { ownership: sender, drained },
        )
    }

    pub fn check(&self, canary: &NamespacedName) -> Result<(), Fenced> {
        let Some(FenceChannels { ownership, .. }) = &self.0 else { return Ok(()) };
        let ownership = ownership.borrow();
        let held = ownership.shards[shard_of(canary, ownership.shards.len())] != ShardOwnership::NotHeld;
        match held && ownership.until.is_some_and(|until| Instant::now() < until) {
            true => Ok(()),
            false => Err(Fenced),
        }
    }

    /// A client that sends no write for a Canary once the fence is closed, even in
    /// the middle of several requests.
    pub fn fenced_client(&self, client: &Client, canary: &NamespacedName) -> Client {
        if self.0.is_none() {
            return client.clone();
        }
        let (fence, canary, inner) = (self.clone(), canary.clone(), client.clone());
        let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            let reads = request.method() == http::Method::GET;
            let allowed = if reads { Ok(()) } else { fence.check(&canary) };
            let inner = inner.clone();
            async move {
                allowed.map_err(tower::BoxError::from)?;
                inner.send(request).await.map_err(tower::BoxError::from)
            }
        });
        Client::new(service, client.default_namespace())
    }

    pub fn shard_of(&self, canary: &NamespacedName) -> usize {
        self.0.as_ref().map_or(0, |channels| shard_of(canary, channels.ownership.borrow().shards.len()))
    }

    /// Present ownership, by shard.
    pub fn owned_shards(&mut self) -> Vec<ShardOwnership> {
        match &mut self.0 {
            None => vec![ShardOwnership::Held { term: 0 }],
            Some(channels) => channels.ownership.borrow_and_update().shards.clone(),
        }
    }

    /// Returns when ownership differs from the last [`Fence::owned_shards`].
    pub async fn changed(&mut self) {
        let changed = match &mut self.0 {
            None => None,
            Some(channels) => channels.ownership.changed().await.ok(),
        };
        // The handle is dropped: ownership expires by itself.
        if changed.is_none() {
            std::future::pending().await
        }
    }

    pub fn report_drained(&self, ended: ShardTerm) {
        if let Some(channels) = &self.0 {
            // The receiver is gone when all shards are released at once.
            let _ = channels.drained.send(ended);
        }
    }
}

/// Must never change: replicas of two versions must agree.
fn shard_of(canary: &NamespacedName, shards: usize) -> usize {
    let text = [canary.namespace.as_bytes(), b"/", canary.name.as_bytes()];
    (stable_hash(text.into_iter().flatten()) % shards.max(1) as u64) as usize
}

/// FNV-1a, stirred at the end so that every bit depends on every byte.
pub fn stable_hash<'a>(bytes: impl IntoIterator<Item = &'a u8>) -> u64 {
    let fnv = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    let hash = bytes.into_iter().fold(0xcbf2_9ce4_8422_2325, fnv);
    let hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &str) -> NamespacedName {
        NamespacedName { namespace: "shop".to_owned(), name: name.to_owned() }
    }

    #[test]
    fn the_shard_of_a_canary_never_changes() {
        let shards = ["web", "api", "cart", "payment"].map(|name| shard_of(&named(name), 16));
        assert_eq!(shards, [11, 2, 12, 8]);
    }

    #[test]
    fn canaries_are_spread_evenly() {
        let mut counts = [0u32; 16];
        for number in 0..1600 {
            counts[shard_of(&named(&format!("web-{number}")), 16)] += 1;
        }
        assert!(counts.iter().all(|count| (60..150).contains(count)), "{counts:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_fence_closes_by_itself() {
        let (fence, handle) = Fence::sharded(1);
        assert_eq!(fence.check(&named("web")), Err(Fenced));
        let until = Some(Instant::now() + LEASE_DURATION - FENCE_MARGIN);
        handle
            .ownership
            .send_replace(ReplicaOwnership { until, shards: vec![ShardOwnership::Draining { term: 1 }] });
        assert_eq!(fence.check(&named("web")), Ok(()));
        // As if the process was stopped meanwhile: the fence got no update.
        tokio::time::advance(LEASE_DURATION - FENCE_MARGIN).await;
        assert_eq!(fence.check(&named("web")), Err(Fenced));
        handle.ownership.send_replace(ReplicaOwnership { until, shards: vec![ShardOwnership::NotHeld] });
        assert_eq!(fence.check(&named("web")), Err(Fenced));
    }

    #[tokio::test(start_paused = true)]
    async fn a_stalled_replica_may_read_but_not_write() {
        let local = kube_local::ApiServer::new(Default::default());
        let canary = NamespacedName { namespace: "default".to_owned(), name: "web".to_owned() };
        let (fence, handle) = Fence::sharded(1);
        let guarded = fence.fenced_client(&local.client(), &canary);
        let api: kube::Api<k8s_openapi::api::core::v1::ConfigMap> = kube::Api::default_namespaced(guarded);
        let config = |name: &str| {
            let metadata = kube::core::ObjectMeta { name: Some(name.to_owned()), ..Default::default() };
            k8s_openapi::api::core::v1::ConfigMap { metadata, ..Default::default() }
        };
        let until = Some(Instant::now() + FENCE_MARGIN);
        handle
            .ownership
            .send_replace(ReplicaOwnership { until, shards: vec![ShardOwnership::Held { term: 1 }] });
        api.create(&Default::default(), &config("a")).await.unwrap();
        tokio::time::sleep(LEASE_DURATION).await;
        let refused = api.create(&Default::default(), &config("b")).await.unwrap_err();
        assert!(refused.to_string().contains(&Fenced.to_string()), "{refused}");
        let names: Vec<_> = api.list(&Default::default()).await.unwrap().items;
        assert_eq!(names.len(), 1);
    }
}
