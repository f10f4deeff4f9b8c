//! Deduplicates concurrent identical requests.

use std::collections::HashMap;
use std::hash::Hash;

use futures::FutureExt;
use futures::future::{BoxFuture, Shared, WeakShared};
use parking_lot::Mutex;

/// Requests in flight. A caller with the same key shares the response. A request
/// without a waiting caller is dropped.
pub struct SingleFlight<K, T: Clone> {
    running: Mutex<HashMap<K, WeakShared<BoxFuture<'static, T>>>>,
}

impl<K, T: Clone> Default for SingleFlight<K, T> {
    fn default() -> Self {
        Self { running: Mutex::default() }
    }
}

impl<K: Eq + Hash, T: Clone + Send + Sync + 'static> SingleFlight<K, T> {
    pub async fn run(&self, key: K, request: impl Future<Output = T> + Send + 'static) -> T {
        self.share(key, request).await
    }

    fn share(
        &self,
        key: K,
        request: impl Future<Output = T> + Send + 'static,
    ) -> Shared<BoxFuture<'static, T>> {
        let mut running = self.running.lock();
        let in_flight = running.get(&key).and_then(WeakShared::upgrade);
        // A response that has arrived already may be stale.
        if let Some(in_flight) = in_flight.filter(|in_flight| in_flight.peek().is_none()) {
            return in_flight;
        }
        running.retain(|_, shared| shared.upgrade().is_some());
        let shared = request.boxed().shared();
        if let Some(weak) = shared.downgrade() {
            running.insert(key, weak);
        }
        shared
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_running_query_is_shared_and_a_later_one_runs_again() {
        let requests = Arc::new(AtomicU32::new(0));
        let single_flight = SingleFlight::<&str, u32>::default();
        let request = || {
            let requests = requests.clone();
            async move {
                let nth = requests.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(Duration::from_secs(1)).await;
                nth
            }
        };
        let both = futures::join!(single_flight.run("a", request()), single_flight.run("a", request()));
        assert_eq!(both, (0, 0));
        assert_eq!(single_flight.run("a", request()).await, 1);
        let distinct = futures::join!(single_flight.run("a", request()), single_flight.run("b", request()));
        assert_eq!(distinct, (2, 3));
    }

    #[tokio::test(start_paused = true)]
    async fn a_cancelled_caller_leaves_the_query_to_the_others() {
        let single_flight = SingleFlight::<&str, u32>::default();
        let slow = async {
            tokio::time::sleep(Duration::from_secs(5)).await;
            7
        };
        let cancelled = tokio::time::timeout(Duration::from_secs(1), single_flight.run("a", slow));
        let waiting = async {
            tokio::time::sleep(Duration::from_millis(500)).await;
            single_flight.run("a", async { 8 }).await
        };
        let (cancelled, waiting) = futures::join!(cancelled, waiting);
        assert!(cancelled.is_err());
        assert_eq!(waiting, 7);
    }
}
