//! Feeds the work queue with the Canaries of the shards that are held. An
//! acquired shard enqueues its Canaries; a lost one is dropped.
//!
//! ```text
//!   NotHeld ─ acquired ─▶ Acquired ─ relist ─▶ Syncing ─ caches as new as the
//!      ▲                                          │       last holder's
//!      │                                          ▼
//!      └─ nothing in progress ◀─ Draining ◀─── Active
//! ```
//!
//! and from any phase back to NotHeld, at once, when the shard is lost.

use std::{collections::HashMap, sync::Arc, time::Duration};

use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};

use super::trigger::{NamespacedName, ObjectVersion, ReconcileRequest};
use crate::controller::{
    context::Context,
    reconcile::Requeue,
    shard::fence::{Fence, ShardOwnership, ShardTerm, stable_hash},
};
use work_queue::WorkQueue;

/// How a reconcile ended.
pub enum ReconcileResult {
    Done(Requeue),
    /// Requeued with backoff; the reason is logged.
    Failed(String),
}

/// Between two attempts to relist.
const RESYNC_RETRY: Duration = Duration::from_secs(1);

/// Backoff of failed reconciles: doubles with each consecutive failure.
const MIN_BACKOFF: Duration = Duration::from_millis(200);
const MAX_BACKOFF: Duration = Duration::from_secs(30);

pub struct Dispatcher {
    ctx: Arc<Context>,
    fence: Fence,
    pub queue: WorkQueue<NamespacedName>,
    /// Watch events that came during a reconcile of their Canary. An event may
    /// precede the response of the write that caused it, and only the response
    /// shows that it is an own write.
    deferred_changes: HashMap<NamespacedName, Vec<ObjectVersion>>,
    phases: Vec<ShardPhase>,
    resyncs: JoinSet<Vec<ShardTerm>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ShardPhase {
    NotHeld,
    Acquired(u64),
    Syncing(u64),
    Active(u64),
    Draining(u64),
}

impl Dispatcher {
    /// An unsharded controller starts active and needs no relist.
    pub fn new(ctx: Arc<Context>) -> Self {
        let mut fence = ctx.fence.clone();
        let alone = fence.is_unsharded();
        let phase = |_| if alone { ShardPhase::Active(0) } else { ShardPhase::NotHeld };
        let phases = fence.owned_shards().into_iter().map(phase).collect();
        let mut dispatcher = Self {
            ctx,
            fence,
            queue: WorkQueue::default(),
            deferred_changes: HashMap::new(),
            phases,
            resyncs: JoinSet::new(),
        };
        dispatcher.apply(ShardChange::OwnershipChanged);
        dispatcher
    }

    /// Returns when ownership changed or a relist is done.
    pub async fn next_shard_change(&mut self) -> ShardChange {
        tokio::select! {
            biased;
            () = self.fence.changed() => ShardChange::OwnershipChanged,
            Some(Ok(terms)) = self.resyncs.join_next() => ShardChange::Resynced(terms),
        }
    }

    pub fn apply(&mut self, change: ShardChange) {
        match change {
            ShardChange::OwnershipChanged => self.apply_ownership(),
            ShardChange::Resynced(terms) => self.activate(&terms),
        }
        let gained = self.phases.iter().enumerate();
        let gained: Vec<ShardTerm> = gained
            .filter_map(|(shard, phase)| match phase {
                ShardPhase::Acquired(term) => Some(ShardTerm { shard, term: *term }),
                _ => None,
            })
            .collect();
        // One relist at a time, for all shards acquired before it.
        if !gained.is_empty() && self.resyncs.is_empty() {
            for ShardTerm { shard, term } in &gained {
                self.phases[*shard] = ShardPhase::Syncing(*term);
            }
            self.resyncs.spawn(resync(Arc::clone(&self.ctx), gained));
        }
    }

    pub fn dispatch(&mut self, ReconcileRequest { canary, changed: by }: ReconcileRequest) {
        let ShardPhase::Active(_) = self.phases[self.fence.shard_of(&canary)] else { return };
        match by {
            Some(version) if !self.ctx.is_foreign_change(&canary, &version) => {}
            Some(version) if self.queue.processing().contains(&canary) => {
                self.deferred_changes.entry(canary).or_default().push(version);
            }
            _ => self.queue.enqueue(canary),
        }
    }

    pub fn finish(&mut self, canary: NamespacedName, result: ReconcileResult) {
        let shard = self.fence.shard_of(&canary);
        let deferred = self.deferred_changes.remove(&canary).unwrap_or_default();
        if !matches!(self.phases[shard], ShardPhase::Active(_)) {
            self.queue.remove(&canary);
            self.ctx.forget(&canary);
            return self.release_if_idle(shard);
        }
        if deferred.iter().any(|version| self.ctx.is_foreign_change(&canary, version)) {
            self.queue.enqueue(canary.clone());
        }
        match result {
            ReconcileResult::Done(Requeue::OnChange) => self.queue.done(canary, None),
            ReconcileResult::Done(Requeue::At(time)) => {
                let requeue_at = self.ctx.requeue_instant(time);
                self.queue.done(canary, Some(requeue_at));
            }
            ReconcileResult::Done(Requeue::Retry(latest)) => {
                let latest = latest.map(|time| self.ctx.requeue_instant(time));
                let now = Instant::now();
                let wait = |failures| {
                    let wait = backoff(&canary, failures);
                    latest.map_or(wait, |latest| wait.min(latest.saturating_duration_since(now)))
                };
                self.queue.requeue_failed(canary.clone(), now, wait);
            }
            ReconcileResult::Failed(why) => {
                let wait = |failures| backoff(&canary, failures);
                let failures = self.queue.requeue_failed(canary.clone(), Instant::now(), wait);
                tracing::debug!(%canary, failures, "{why}; trying again");
                if failures == 5 {
                    tracing::warn!(%canary, "{why}; trying again and again");
                }
            }
        }
    }

    fn apply_ownership(&mut self) {
        for (shard, hold) in self.fence.owned_shards().into_iter().enumerate() {
            match (self.phases[shard], hold) {
                (
                    ShardPhase::Acquired(now) | ShardPhase::Syncing(now) | ShardPhase::Active(now),
                    ShardOwnership::Held { term },
                ) if now == term => {}
                (ShardPhase::Draining(now), ShardOwnership::Draining { term }) if now == term => {}
                (ShardPhase::NotHeld, ShardOwnership::NotHeld) => {}
                (ShardPhase::Active(now), ShardOwnership::Draining { term }) if now == term => {
                    self.dequeue_shard(shard);
                    self.phases[shard] = ShardPhase::Draining(term);
                    self.release_if_idle(shard);
                }
                (_, hold) => {
                    self.drop_shard(shard);
                    match hold {
                        ShardOwnership::NotHeld => {}
                        ShardOwnership::Held { term } => self.phases[shard] = ShardPhase::Acquired(term),
                        // It was never active.
                        ShardOwnership::Draining { term } => {
                            self.phases[shard] = ShardPhase::Draining(term);
                            self.release_if_idle(shard);
                        }
                    }
                }
            }
        }
    }

    fn activate(&mut self, terms: &[ShardTerm]) {
        let new: Vec<bool> = (0..self.phases.len())
            .map(|shard| {
                let term = terms.iter().find(|term| term.shard == shard).map(|term| term.term);
                term.is_some_and(|term| self.phases[shard] == ShardPhase::Syncing(term))
            })
            .collect();
        for ShardTerm { shard, term } in terms.iter().filter(|term| new[term.shard]) {
            self.ctx.task_groups[*shard].restart();
            self.phases[*shard] = ShardPhase::Active(*term);
        }
        for canary in self.ctx.caches.canaries.list_all() {
            let canary = NamespacedName::of(&*canary);
            if new[self.fence.shard_of(&canary)] {
                self.queue.enqueue(canary);
            }
        }
    }

    /// Releases a draining shard once nothing is in progress for it.
    fn release_if_idle(&mut self, shard: usize) {
        let ShardPhase::Draining(term) = self.phases[shard] else { return };
        if self.queue.processing().iter().any(|canary| self.fence.shard_of(canary) == shard) {
            return;
        }
        self.forget_shard(shard);
        let (fence, rest) = (self.fence.clone(), self.ctx.task_groups[shard].shutdown());
        tokio::spawn(async move {
            rest.await;
            fence.report_drained(ShardTerm { shard, term });
        });
    }

    fn drop_shard(&mut self, shard: usize) {
        self.dequeue_shard(shard);
        self.forget_shard(shard);
        // Its background tasks are not awaited.
        drop(self.ctx.task_groups[shard].shutdown());
        self.phases[shard] = ShardPhase::NotHeld;
    }

    fn dequeue_shard(&mut self, shard: usize) {
        let fence = &self.fence;
        self.queue.remove_matching(|canary| fence.shard_of(canary) == shard);
    }

    fn forget_shard(&self, shard: usize) {
        let states = self.ctx.states.lock();
        let ours = states.keys().filter(|canary| self.fence.shard_of(canary) == shard);
        let ours: Vec<NamespacedName> = ours.cloned().collect();
        drop(states);
        ours.iter().for_each(|canary| self.ctx.forget(canary));
    }
}

/// Input of [`Dispatcher::apply`].
pub enum ShardChange {
    OwnershipChanged,
    Resynced(Vec<ShardTerm>),
}

/// Decisions must not be based on objects older than those that the last holder
/// saw or wrote.
async fn resync(ctx: Arc<Context>, gained: Vec<ShardTerm>) -> Vec<ShardTerm> {
    while let Err(error) = ctx.caches.relist().await {
        tracing::warn!(%error, "cannot list what the Canaries of new shards are about; trying again");
        sleep(RESYNC_RETRY).await;
    }
    gained
}

/// Jitter by name, so that Canaries that failed together are not retried together;
/// not random, so that simulations replay.
fn backoff(canary: &NamespacedName, failures: u32) -> Duration {
    let wait = MIN_BACKOFF.saturating_mul(1 << failures.saturating_sub(1).min(10)).min(MAX_BACKOFF);
    let spread = stable_hash(format!("{canary}{failures}").as_bytes());
    wait.mul_f64(0.5 + (spread >> 40) as f64 / (1u64 << 24) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_wait_longer_each_time_up_to_a_limit() {
        let web = NamespacedName { namespace: "shop".to_owned(), name: "web".to_owned() };
        let waits: Vec<Duration> = (1..=20).map(|failures| backoff(&web, failures)).collect();
        assert!(waits[0] < Duration::from_millis(301) && waits[5] > waits[0].mul_f64(4.0));
        assert!(waits.iter().all(|wait| *wait <= MAX_BACKOFF.mul_f64(1.5)));
    }
}
