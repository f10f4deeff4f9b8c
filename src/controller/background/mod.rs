//! Background tasks of one shard's Canaries: gate calls, measurements, Events. A
//! reconcile starts them and never waits for them.

pub mod adoption;
pub mod gate_call;
pub mod inventory;
pub mod measure;
pub mod pools;
pub mod publish;
pub mod results;
pub mod served_kinds_watch;
pub mod xds;

use parking_lot::Mutex;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// The tasks of one shard; a task that starts after a shutdown is cancelled at
/// once.
#[derive(Default)]
pub struct TaskGroup(Mutex<Generation>);

#[derive(Clone, Default)]
struct Generation {
    tasks: TaskTracker,
    token: CancellationToken,
}

impl TaskGroup {
    /// The shard was acquired.
    pub fn restart(&self) {
        *self.0.lock() = Generation::default();
    }

    /// Cancels the cancellable tasks; completes when the others have finished.
    pub fn shutdown(&self) -> impl Future<Output = ()> + Send + use<> {
        let Generation { tasks, token } = self.0.lock().clone();
        token.cancel();
        tasks.close();
        async move { tasks.wait().await }
    }

    /// Cancelled by a shutdown.
    pub fn spawn_cancellable(&self, work: impl Future<Output = ()> + Send + 'static) {
        let Generation { tasks, token } = self.0.lock().clone();
        tasks.spawn(async move { token.run_until_cancelled(work).await });
    }

    /// Awaited by a shutdown.
    pub fn spawn_to_completion(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.0.lock().tasks.spawn(work);
    }
}
