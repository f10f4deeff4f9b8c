//! What goes on beside the reconciles of one shard's Canaries: questions,
//! measurements, events. It ends with the shard.

use parking_lot::Mutex;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// Work beside; what is begun after its end is cancelled at once.
#[derive(Default)]
pub struct Beside(Mutex<Term>);

#[derive(Clone, Default)]
struct Term {
    tasks: TaskTracker,
    over: CancellationToken,
}

impl Beside {
    /// The shard is held again.
    pub fn begin(&self) {
        *self.0.lock() = Term::default();
    }

    /// Cancels what need not come to its end; done when the rest has.
    pub fn end(&self) -> impl Future<Output = ()> + Send + use<> {
        let Term { tasks, over } = self.0.lock().clone();
        over.cancel();
        tasks.close();
        async move { tasks.wait().await }
    }

    /// Works until the end, and no longer.
    pub fn spawn_until_end(&self, work: impl Future<Output = ()> + Send + 'static) {
        let Term { tasks, over } = self.0.lock().clone();
        tasks.spawn(async move { over.run_until_cancelled(work).await });
    }

    /// Is waited for at the end.
    pub fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.0.lock().tasks.spawn(work);
    }
}
