//! What goes on beside the reconciles of one shard's Canaries: questions,
//! measurements, events. It ends with the shard.

use parking_lot::Mutex;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// Work beside; what is begun after its end is cancelled at once.
#[derive(Default)]
pub struct TaskGroup(Mutex<Generation>);

#[derive(Clone, Default)]
struct Generation {
    tasks: TaskTracker,
    token: CancellationToken,
}

impl TaskGroup {
    /// The shard is held again.
    pub fn restart(&self) {
        *self.0.lock() = Generation::default();
    }

    /// Cancels what need not come to its end; done when the rest has.
    pub fn shutdown(&self) -> impl Future<Output = ()> + Send + use<> {
        let Generation { tasks, token } = self.0.lock().clone();
        token.cancel();
        tasks.close();
        async move { tasks.wait().await }
    }

    /// Works until the end, and no longer.
    pub fn spawn_cancellable(&self, work: impl Future<Output = ()> + Send + 'static) {
        let Generation { tasks, token } = self.0.lock().clone();
        tasks.spawn(async move { token.run_until_cancelled(work).await });
    }

    /// Is waited for at the end.
    pub fn spawn_to_completion(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.0.lock().tasks.spawn(work);
    }
}
