//! Wakes everybody who listens, in the order in which they began to wait.
//! tokio's `watch` draws that order at random, and simulations would not replay.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::sync::Notify;

/// Rings until it is dropped.
#[derive(Default)]
pub struct Bell(Arc<Tower>);

pub struct Listener {
    tower: Arc<Tower>,
    heard: u64,
}

#[derive(Default)]
struct Tower {
    rung: AtomicU64,
    gone: AtomicBool,
    waiting: Notify,
}

impl Bell {
    pub fn ring(&self) {
        self.0.rung.fetch_add(1, Ordering::Release);
        self.0.waiting.notify_waiters();
    }

    /// From now on; what rang before is not heard.
    pub fn listen(&self) -> Listener {
        let tower = Arc::clone(&self.0);
        Listener { heard: tower.rung.load(Ordering::Acquire), tower }
    }
}

impl Drop for Bell {
    fn drop(&mut self) {
        self.0.gone.store(true, Ordering::Release);
        self.0.waiting.notify_waiters();
    }
}

impl Listener {
    /// Until it rings, or has rung since it was last heard; false once it is
    /// gone.
    pub async fn rings(&mut self) -> bool {
        loop {
            let mut waiting = pin!(self.tower.waiting.notified());
            waiting.as_mut().enable();
            let rung = self.tower.rung.load(Ordering::Acquire);
            if rung != self.heard {
                self.heard = rung;
                return true;
            }
            if self.tower.gone.load(Ordering::Acquire) {
                return false;
            }
            waiting.await;
        }
    }

    /// What rang so far is heard.
    pub fn hear(&mut self) {
        self.heard = self.tower.rung.load(Ordering::Acquire);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn nothing_that_rang_is_missed_and_nothing_is_heard_twice() {
        let bell = Bell::default();
        let mut listener = bell.listen();
        bell.ring();
        bell.ring();
        assert!(listener.rings().await);
        bell.ring();
        listener.hear();
        let later = tokio::spawn(async move { (listener.rings().await, listener.rings().await) });
        tokio::task::yield_now().await;
        bell.ring();
        tokio::task::yield_now().await;
        drop(bell);
        assert_eq!(later.await.unwrap(), (true, false));
    }
}
