//! Turns for work on behalf of Canaries, bounded over all, per namespace and per
//! Canary. Work that hangs takes up the turns of its own Canary and leaves those of
//! others.
//!
//! A turn is acquired from the Canary's share, then from the namespace's, then from
//! the total, each first come, first served. So a Canary competes for its
//! namespace's share with at most its own share, and a namespace for the total with
//! at most its own.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use tokio::sync::{AcquireError, Semaphore, SemaphorePermit};

/// How much may run at a time, and wait.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub total: usize,
    pub per_namespace: usize,
    pub per_canary: usize,
    /// Of one Canary, beside what runs.
    pub waiting_per_canary: usize,
}

pub struct FairPool {
    limits: Limits,
    total: Semaphore,
    shares: Mutex<Shares>,
}

/// Those that are in use.
#[derive(Default)]
struct Shares {
    namespaces: HashMap<String, Arc<Semaphore>>,
    /// By namespace and name.
    canaries: HashMap<(String, String), Arc<Semaphore>>,
}

/// A place in the queue for a turn.
pub struct Place {
    pool: Arc<FairPool>,
    /// Namespace and name.
    canary: (String, String),
    canary_share: Arc<Semaphore>,
    namespace_share: Arc<Semaphore>,
}

/// Work may go on until this is dropped.
pub struct Turn<'a> {
    _permits: [SemaphorePermit<'a>; 3],
}

impl FairPool {
    pub fn new(limits: Limits) -> Arc<Self> {
        Arc::new(Self { limits, total: Semaphore::new(limits.total), shares: Mutex::default() })
    }

    /// None if too much of this Canary waits already.
    pub fn enter(self: &Arc<Self>, namespace: &str, canary: &str) -> Option<Place> {
        let Limits { per_namespace, per_canary, waiting_per_canary, .. } = self.limits;
        let mut shares = self.shares.lock();
        let key = (namespace.to_owned(), canary.to_owned());
        // One reference is the map's, the others are those of places.
        let places = shares.canaries.get(&key).map_or(0, |share| Arc::strong_count(share) - 1);
        if places >= per_canary + waiting_per_canary {
            return None;
        }
        let share = |limit: usize| move || Arc::new(Semaphore::new(limit));
        Some(Place {
            pool: Arc::clone(self),
            canary_share: shares.canaries.entry(key.clone()).or_insert_with(share(per_canary)).clone(),
            namespace_share: shares
                .namespaces
                .entry(namespace.to_owned())
                .or_insert_with(share(per_namespace))
                .clone(),
            canary: key,
        })
    }
}

impl Place {
    /// Waits for a turn. The pool is never closed, so this does not fail.
    pub async fn turn(&self) -> Result<Turn<'_>, AcquireError> {
        let canary = self.canary_share.acquire().await?;
        let namespace = self.namespace_share.acquire().await?;
        let total = self.pool.total.acquire().await?;
        Ok(Turn { _permits: [total, namespace, canary] })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // The map's reference and this one.
        let is_last = |share: &Arc<Semaphore>| Arc::strong_count(share) == 2;
        let mut shares = self.pool.shares.lock();
        if is_last(&self.canary_share) {
            shares.canaries.remove(&self.canary);
        }
        if is_last(&self.namespace_share) {
            shares.namespaces.remove(&self.canary.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    const LIMITS: Limits = Limits { total: 5, per_namespace: 3, per_canary: 2, waiting_per_canary: 3 };

    /// Which of these get a turn at once.
    fn admitted<'a>(places: &'a [Place]) -> Vec<Option<Turn<'a>>> {
        places.iter().map(|place| place.turn().now_or_never().map(|turn| turn.unwrap())).collect()
    }

    fn places(pool: &Arc<FairPool>, namespace: &str, canary: &str, count: usize) -> Vec<Place> {
        (0..count).filter_map(|_| pool.enter(namespace, canary)).collect()
    }

    fn running(turns: &[Option<Turn<'_>>]) -> usize {
        turns.iter().flatten().count()
    }

    #[test]
    fn a_canary_a_namespace_and_all_together_have_their_bounds() {
        let pool = FairPool::new(LIMITS);
        let [web, api] = ["web", "api"].map(|canary| places(&pool, "shop", canary, 5));
        let others = places(&pool, "bank", "web", 5);
        let (web, api, others) = (admitted(&web), admitted(&api), admitted(&others));
        assert_eq!([running(&web), running(&api), running(&others)], [2, 1, 2]);
    }

    #[test]
    fn a_canary_may_wait_with_so_much_and_no_more() {
        let pool = FairPool::new(LIMITS);
        let web = places(&pool, "shop", "web", 9);
        assert_eq!(web.len(), 5);
        assert!(pool.enter("shop", "api").is_some(), "another may still enter");
        drop(web);
        assert!(pool.enter("shop", "web").is_some());
    }

    #[test]
    fn nothing_is_kept_for_a_canary_without_work() {
        let pool = FairPool::new(LIMITS);
        let web = places(&pool, "shop", "web", 3);
        drop(admitted(&web));
        drop(web);
        let shares = pool.shares.lock();
        assert!(shares.canaries.is_empty() && shares.namespaces.is_empty());
    }
}
