//! Changes on their way to one reader. They are coalesced while it is busy, so its
//! memory is bounded by what there is to change.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::Notify;

/// The reading end; `T` collects the changes.
pub struct Mailbox<T>(Arc<Shared<T>>);

/// The writing end. The reader may be gone.
pub(crate) struct MailboxSender<T>(Weak<Shared<T>>);

struct Shared<T> {
    pending: Mutex<Option<T>>,
    arrived: Notify,
}

pub(crate) fn mailbox<T>() -> (MailboxSender<T>, Mailbox<T>) {
    let shared = Arc::new(Shared { pending: Mutex::new(None), arrived: Notify::new() });
    (MailboxSender(Arc::downgrade(&shared)), Mailbox(shared))
}

impl<T> Mailbox<T> {
    /// All changes since the last call; waits for one. May be dropped at any time
    /// without a loss.
    pub async fn changed(&mut self) -> T {
        loop {
            if let Some(changes) = self.try_changed() {
                return changes;
            }
            self.0.arrived.notified().await;
        }
    }

    pub fn try_changed(&mut self) -> Option<T> {
        self.0.pending.lock().take()
    }
}

impl<T: Default> MailboxSender<T> {
    /// False when the reader is gone.
    pub(crate) fn send(&self, add: impl FnOnce(&mut T)) -> bool {
        let Some(shared) = self.0.upgrade() else { return false };
        add(shared.pending.lock().get_or_insert_default());
        shared.arrived.notify_one();
        true
    }
}
