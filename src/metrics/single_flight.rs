//! The same question asked twice at once is asked once.

use std::collections::HashMap;
use std::hash::Hash;

use futures::FutureExt;
use futures::future::{BoxFuture, Shared, WeakShared};
use parking_lot::Mutex;

/// Questions under way. Whoever asks one that is under way already shares its
/// answer. A question nobody waits for any more is dropped.
pub struct SingleFlight<K, T: Clone> {
    running: Mutex<HashMap<K, WeakShared<BoxFuture<'static, T>>>>,
}

impl<K, T: Clone> Default for SingleFlight<K, T> {
    fn default() -> Self {
        Self { running: Mutex::default() }
    }
}

impl<K: Eq + Hash, T: Clone + Send + Sync + 'static> SingleFlight<K, T> {
    pub async fn run(&self, question: K, answer: impl Future<Output = T> + Send + 'static) -> T {
        self.share(question, answer).await
    }

    fn share(
        &self,
        question: K,
        answer: impl Future<Output = T> + Send + 'static,
    ) -> Shared<BoxFuture<'static, T>> {
        let mut running = self.running.lock();
        let under_way = running.get(&question).and_then(WeakShared::upgrade);
        // An answer that is there already may be old.
        if let Some(under_way) = under_way.filter(|under_way| under_way.peek().is_none()) {
            return under_way;
        }
        running.retain(|_, shared| shared.upgrade().is_some());
        let shared = answer.boxed().shared();
        if let Some(weak) = shared.downgrade() {
            running.insert(question, weak);
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
        let asked = Arc::new(AtomicU32::new(0));
        let single_flight = SingleFlight::<&str, u32>::default();
        let answer = || {
            let asked = asked.clone();
            async move {
                let nth = asked.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(Duration::from_secs(1)).await;
                nth
            }
        };
        let both = futures::join!(single_flight.run("a", answer()), single_flight.run("a", answer()));
        assert_eq!(both, (0, 0));
        assert_eq!(single_flight.run("a", answer()).await, 1);
        let apart = futures::join!(single_flight.run("a", answer()), single_flight.run("b", answer()));
        assert_eq!(apart, (2, 3));
    }

    #[tokio::test(start_paused = true)]
    async fn a_cancelled_caller_leaves_the_query_to_the_others() {
        let single_flight = SingleFlight::<&str, u32>::default();
        let slow = async {
            tokio::time::sleep(Duration::from_secs(5)).await;
            7
        };
        let impatient = tokio::time::timeout(Duration::from_secs(1), single_flight.run("a", slow));
        let patient = async {
            tokio::time::sleep(Duration::from_millis(500)).await;
            single_flight.run("a", async { 8 }).await
        };
        let (impatient, patient) = futures::join!(impatient, patient);
        assert!(impatient.is_err());
        assert_eq!(patient, 7);
    }
}
