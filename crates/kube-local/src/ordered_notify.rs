//! Notifies all subscribers in the order in which they began to wait. tokio's
//! `watch` wakes them in random order, which simulations could not replay.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::sync::Notify;

/// The sender; dropping it ends its subscriptions.
#[derive(Default)]
pub struct OrderedNotify(Arc<Inner>);

/// The receiver.
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

    /// A subscription to notifications from now on.
    pub fn subscribe(&self) -> Subscription {
        let inner = Arc::clone(&self.0);
        Subscription { seen: inner.generation.load(Ordering::Acquire), inner }
    }
}

impl Drop for OrderedNotify {
    fn drop(&mut self) {
        self.0.closed.store(true, Ordering::Release);
        self.0.notify.notify_waiters();
    }
}

impl Subscription {
    /// Waits for a notification that was not seen yet; false once the sender is dropped.
    pub async fn notified(&mut self) -> bool {
        loop {
            let mut waiting = pin!(self.inner.notify.notified());
            waiting.as_mut().enable();
            let generation = self.inner.generation.load(Ordering::Acquire);
            if generation != self.seen {
                self.seen = generation;
                return true;
            }
            if self.inner.closed.load(Ordering::Acquire) {
                return false;
            }
            waiting.await;
        }
    }

    /// Marks all notifications so far as seen.
    pub fn mark_seen(&mut self) {
        self.seen = self.inner.generation.load(Ordering::Acquire);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn every_notification_is_seen_exactly_once() {
        let sender = OrderedNotify::default();
        let mut subscription = sender.subscribe();
        sender.notify();
        sender.notify();
        assert!(subscription.notified().await);
        sender.notify();
        subscription.mark_seen();
        let later =
            tokio::spawn(async move { (subscription.notified().await, subscription.notified().await) });
        tokio::task::yield_now().await;
        sender.notify();
        tokio::task::yield_now().await;
        drop(sender);
        assert_eq!(later.await.unwrap(), (true, false));
    }
}
