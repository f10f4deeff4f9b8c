//! Who may write: every Canary belongs to a shard, every shard to at most one
//! replica, and a replica that lost one, or cannot tell, writes nothing more
//! for its Canaries. How shards are shared out is told in [`super::shards`].
//!
//! The fence is closed a while before anybody else may open theirs. A write
//! that was sent before and takes longer than that still lands: then versions
//! protect the status, and whoever holds the shard corrects the rest, since
//! everything else is declared and read back.

use std::time::Duration;

use kube::Client;
use tokio::{
    sync::{mpsc, watch},
    time::Instant,
};

use super::CanaryName;

/// How long a replica counts as alive without renewing its Lease.
pub const LENGTH: Duration = Duration::from_secs(15);
/// How often it renews it.
pub const RENEWED_EVERY: Duration = Duration::from_secs(5);
/// How long before that end it stops writing.
pub const MARGIN: Duration = Duration::from_millis(2500);

/// The Canary belongs to another replica by now, or might.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this replica does not hold the Canary's shard any more, so it writes nothing")]
pub struct Fenced;

/// What a replica has of one shard. The term tells one time of holding it from
/// the next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Hold {
    #[default]
    None,
    Kept {
        term: u64,
    },
    /// Given back once nothing is under way.
    Ending {
        term: u64,
    },
}

impl Hold {
    pub fn is_kept(self) -> bool {
        matches!(self, Hold::Kept { .. })
    }
}

/// What a replica has of all shards, and until when unless it is renewed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tenure {
    pub until: Option<Instant>,
    pub shards: Vec<Hold>,
}

/// Lets writes through for Canaries whose shard is held.
#[derive(Clone)]
pub struct Fence(Option<Shared>);

#[derive(Clone)]
struct Shared {
    tenure: watch::Receiver<Tenure>,
    ended: mpsc::UnboundedSender<Ended>,
}

/// Nothing is under way any more for a shard that is to be given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    pub shard: usize,
    pub term: u64,
}

/// The other side of a fence: who opens and closes it.
pub struct Keeper {
    pub tenure: watch::Sender<Tenure>,
    pub ended: mpsc::UnboundedReceiver<Ended>,
}

impl Fence {
    /// For a replica that is alone: one shard, always held.
    pub fn open() -> Self {
        Self(None)
    }

    pub fn is_open(&self) -> bool {
        self.0.is_none()
    }

    /// Closed everywhere until its keeper says otherwise.
    pub fn kept(shards: u32) -> (Self, Keeper) {
        let shards = vec![Hold::None; shards as usize];
        let (tell, tenure) = watch::channel(Tenure { until: None, shards });
        let (sender, ended) = mpsc::unbounded_channel();
        (Self(Some(Shared { tenure, ended: sender })), Keeper { tenure: tell, ended })
    }

    pub fn check(&self, canary: &CanaryName) -> Result<(), Fenced> {
        let Some(Shared { tenure, .. }) = &self.0 else { return Ok(()) };
        let tenure = tenure.borrow();
        let held = tenure.shards[shard_of(canary, tenure.shards.len())] != Hold::None;
        match held && tenure.until.is_some_and(|until| Instant::now() < until) {
            true => Ok(()),
            false => Err(Fenced),
        }
    }

    /// A client that sends no write for a Canary once the fence is closed, in
    /// whatever work of several requests the process stood still.
    pub fn guard(&self, client: &Client, canary: &CanaryName) -> Client {
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

    pub fn shard_of(&self, canary: &CanaryName) -> usize {
        self.0.as_ref().map_or(0, |shared| shard_of(canary, shared.tenure.borrow().shards.len()))
    }

    /// What is held now.
    pub fn holds(&mut self) -> Vec<Hold> {
        match &mut self.0 {
            None => vec![Hold::Kept { term: 0 }],
            Some(shared) => shared.tenure.borrow_and_update().shards.clone(),
        }
    }

    /// Until something else is held than [`Fence::holds`] said last.
    pub async fn changed(&mut self) {
        let changed = match &mut self.0 {
            None => None,
            Some(shared) => shared.tenure.changed().await.ok(),
        };
        // Whoever keeps the fence has ended: what was held runs out.
        if changed.is_none() {
            std::future::pending().await
        }
    }

    pub fn ended(&self, ended: Ended) {
        if let Some(shared) = &self.0 {
            // Nobody listens any more when all shards are given back at once.
            let _ = shared.ended.send(ended);
        }
    }
}

/// Stable for ever: replicas of two versions must agree.
fn shard_of(canary: &CanaryName, shards: usize) -> usize {
    let text = [canary.namespace.as_bytes(), b"/", canary.name.as_bytes()];
    (hash(text.into_iter().flatten()) % shards.max(1) as u64) as usize
}

/// FNV-1a, stirred at the end so that every bit depends on every byte.
pub fn hash<'a>(bytes: impl IntoIterator<Item = &'a u8>) -> u64 {
    let fnv = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    let hash = bytes.into_iter().fold(0xcbf2_9ce4_8422_2325, fnv);
    let hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &str) -> CanaryName {
        CanaryName { namespace: "shop".to_owned(), name: name.to_owned() }
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
        let (fence, keeper) = Fence::kept(1);
        assert_eq!(fence.check(&named("web")), Err(Fenced));
        let until = Some(Instant::now() + LENGTH - MARGIN);
        keeper.tenure.send_replace(Tenure { until, shards: vec![Hold::Ending { term: 1 }] });
        assert_eq!(fence.check(&named("web")), Ok(()));
        // As if the process was stopped meanwhile: nobody told the fence.
        tokio::time::advance(LENGTH - MARGIN).await;
        assert_eq!(fence.check(&named("web")), Err(Fenced));
        keeper.tenure.send_replace(Tenure { until, shards: vec![Hold::None] });
        assert_eq!(fence.check(&named("web")), Err(Fenced));
    }

    #[tokio::test(start_paused = true)]
    async fn work_that_stood_still_reads_but_does_not_write() {
        let local = crate::local::Local::new(Default::default());
        let canary = CanaryName { namespace: "default".to_owned(), name: "web".to_owned() };
        let (fence, keeper) = Fence::kept(1);
        let guarded = fence.guard(&local.client(), &canary);
        let api: kube::Api<k8s_openapi::api::core::v1::ConfigMap> = kube::Api::default_namespaced(guarded);
        let config = |name: &str| {
            let metadata = kube::core::ObjectMeta { name: Some(name.to_owned()), ..Default::default() };
            k8s_openapi::api::core::v1::ConfigMap { metadata, ..Default::default() }
        };
        let until = Some(Instant::now() + MARGIN);
        keeper.tenure.send_replace(Tenure { until, shards: vec![Hold::Kept { term: 1 }] });
        api.create(&Default::default(), &config("a")).await.unwrap();
        tokio::time::sleep(LENGTH).await;
        let refused = api.create(&Default::default(), &config("b")).await.unwrap_err();
        assert!(refused.to_string().contains(&Fenced.to_string()), "{refused}");
        let names: Vec<_> = api.list(&Default::default()).await.unwrap().items;
        assert_eq!(names.len(), 1);
    }
}
