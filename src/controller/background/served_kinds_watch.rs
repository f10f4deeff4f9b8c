//! Canaries that wait for a custom resource definition. While there are any, the
//! served kinds are discovered again and again; when those change, the Canaries are
//! reconciled.
//!
//! A watch of the definitions would need a right in the whole cluster, which a
//! controller of some namespaces does not have; discovery needs none.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;

use crate::{
    controller::{context::Context, queue::trigger::NamespacedName},
    routing::ServedKinds,
};

/// Between two discoveries; doubles each time, and starts again when another Canary
/// begins to wait.
const MIN_INTERVAL: Duration = Duration::from_secs(5);
const MAX_INTERVAL: Duration = Duration::from_secs(60);

#[derive(Default)]
pub struct ServedKindsWatch(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    canaries: BTreeSet<NamespacedName>,
    task: Option<AbortOnDropHandle<()>>,
}

impl ServedKindsWatch {
    /// The Canary does not wait, or no more.
    pub fn remove(&self, canary: &NamespacedName) {
        let mut waiting = self.0.lock();
        if waiting.canaries.remove(canary) && waiting.canaries.is_empty() {
            waiting.task = None;
        }
    }
}

/// Reconciles the Canary when the served kinds have changed.
pub fn wait(ctx: &Arc<Context>, canary: NamespacedName) {
    let mut waiting = ctx.served_kinds_watch.0.lock();
    if waiting.canaries.insert(canary) {
        // Weak: the task belongs to the context.
        let ctx = Arc::downgrade(ctx);
        waiting.task = Some(AbortOnDropHandle::new(tokio::spawn(async move {
            let mut interval = MIN_INTERVAL;
            loop {
                sleep(interval).await;
                interval = (interval * 2).min(MAX_INTERVAL);
                let Some(ctx) = ctx.upgrade() else { return };
                discover(&ctx).await;
            }
        })));
    }
}

/// Discovers the served kinds. A change requests a reconcile of
/// the Canaries that wait; those that still wait after it are not removed.
pub async fn discover(ctx: &Context) {
    let served = match ServedKinds::discover(&ctx.client).await {
        Ok(served) => served,
        Err(error) => return tracing::warn!(%error, "cannot discover which kinds the cluster serves"),
    };
    if *ctx.served.read() == served {
        return;
    }
    *ctx.served.write() = served;
    ctx.inventory_watch.served_changed.notify_one();
    let canaries = ctx.served_kinds_watch.0.lock().canaries.clone();
    canaries.into_iter().for_each(|canary| ctx.requests.request(canary));
}
