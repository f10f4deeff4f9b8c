//! Wakes everybody who listens, in the order in which they began to wait.
//! tokio's `watch` draws that order at random, and simulations would not replay.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::sync::Notify;

/// Rings until it is dropped.
#[derive(Default)]
pub struct OrderedNotify(Arc<Inner>);

pub struct Subscription {
    inner: Arc<Inner>,
    seen: u64,
}

#[derive(Default)]
struct Inner {
    generation: AtomicU64,
    closed: AtomicBool,
    notify: Notify,
}

impl OrderedNotify {
    pub fn notify(&self) {
        self.0.generation.fetch_add(1, Ordering::Release);
        self.0.notify.notify_waiters();
    }

    /// From now on; what rang before is not heard.
    pub fn subscribe(&self) -> Subscription {
        let tower = Arc::clone(&self.0);
        Subscription { seen: tower.generation.load(Ordering::Acquire), inner: tower }
    }
}

impl Drop for OrderedNotify {
    fn drop(&mut self) {
        self.0.closed.store(true, Ordering::Release);
        self.0.notify.notify_waiters();
    }
}

impl Subscription {
    /// Until it rings, or has rung since it was last heard; false once it is
    /// gone.
    pub async fn notified(&mut self) -> bool {
        loop {
            let mut waiting = pin!(self.inner.notify.notified());
            waiting.as_mut().enable();
            let rung = self.inner.generation.load(Ordering::Acquire);
            if rung != self.seen {
                self.seen = rung;
                return true;
            }
            if self.inner.closed.load(Ordering::Acquire) {
                return false;
            }
            waiting.await;
        }
    }

    /// What rang so far is heard.
    pub fn mark_seen(&mut self) {
        self.seen = self.inner.generation.load(Ordering::Acquire);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn every_notification_is_seen_exactly_once() {
        let bell = OrderedNotify::default();
        let mut listener = bell.subscribe();
        bell.notify();
        bell.notify();
        assert!(listener.notified().await);
        bell.notify();
        listener.mark_seen();
        let later = tokio::spawn(async move { (listener.notified().await, listener.notified().await) });
        tokio::task::yield_now().await;
        bell.notify();
        tokio::task::yield_now().await;
        drop(bell);
        assert_eq!(later.await.unwrap(), (true, false));
    }
}
