//! Liveness and readiness of the controller, from what it does: the run loop
//! answers heartbeats, and a [`ControllerView`] shows its caches.

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    sync::watch,
    time::{Instant, timeout},
};

use crate::controller::{CachedCanary, NamespacedName};

/// The run loop answers a heartbeat within this time.
const HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(3);

/// Every request has a timeout of at most five minutes: if Canaries are queued
/// and no reconcile has finished for this long, none will.
const STUCK_AFTER: Duration = Duration::from_secs(900);

/// The running controller, as health checks and series see it.
pub trait ControllerView: Send + Sync {
    /// Canaries of the shards that this replica holds.
    fn canaries(&self) -> Vec<(NamespacedName, Arc<CachedCanary>)>;

    /// An unsharded controller holds the one shard there is.
    fn held_shards(&self) -> usize;

    /// First lists that are not complete, a line each.
    fn pending_syncs(&self) -> Vec<String>;
}

pub struct Health {
    queued: AtomicUsize,
    processing: AtomicUsize,
    /// Why the last list or watch of Canaries failed.
    pub canary_watch_error: Mutex<Option<String>>,
    /// When a reconcile last finished.
    last_finished: Mutex<Instant>,
    heartbeat_requested: watch::Sender<u64>,
    heartbeat_answered: watch::Sender<u64>,
    lifecycle: Mutex<Lifecycle>,
}

enum Lifecycle {
    Starting,
    Running(Weak<dyn ControllerView>),
    /// Reconciles in progress finish.
    Stopping,
}

impl Default for Health {
    fn default() -> Self {
        Self {
            queued: AtomicUsize::new(0),
            processing: AtomicUsize::new(0),
            canary_watch_error: Mutex::default(),
            last_finished: Mutex::new(Instant::now()),
            heartbeat_requested: watch::Sender::new(0),
            heartbeat_answered: watch::Sender::new(0),
            lifecycle: Mutex::new(Lifecycle::Starting),
        }
    }
}

/// For the server.
impl Health {
    /// The controller, while it runs.
    pub fn controller(&self) -> Option<Arc<dyn ControllerView>> {
        match &*self.lifecycle.lock() {
            Lifecycle::Running(controller) => controller.upgrade(),
            Lifecycle::Starting | Lifecycle::Stopping => None,
        }
    }

    /// Canaries in the work queue.
    pub fn queued(&self) -> usize {
        self.queued.load(Ordering::Relaxed)
    }

    /// Reconciles in progress.
    pub fn processing(&self) -> usize {
        self.processing.load(Ordering::Relaxed)
    }

    /// Fails if the run loop does not answer a heartbeat, or if reconciles are
    /// stuck. A controller that has not started, or stops, is alive.
    pub async fn liveness(&self) -> Result<(), String> {
        if self.controller().is_none() {
            return Ok(());
        }
        let mut requested = 0;
        self.heartbeat_requested.send_modify(|count| {
            *count += 1;
            requested = *count;
        });
        let mut answered = self.heartbeat_answered.subscribe();
        let answer = timeout(HEARTBEAT_TIMEOUT, answered.wait_for(|answered| *answered >= requested)).await;
        if answer.is_err() && self.controller().is_some() {
            return Err(format!("the controller's loop did not answer within {HEARTBEAT_TIMEOUT:?}"));
        }
        let (queued, since) = (self.queued(), self.last_finished.lock().elapsed());
        if queued > 0 && since > STUCK_AFTER {
            let processing = self.processing();
            return Err(format!(
                "{queued} Canaries wait and work on {processing} has not ended for {} s",
                since.as_secs()
            ));
        }
        Ok(())
    }

    /// Fails with what is missing, a line each.
    pub fn readiness(&self) -> Result<(), Vec<String>> {
        let mut missing = Vec::new();
        match &*self.lifecycle.lock() {
            Lifecycle::Starting => missing.push("the controller has not begun yet".to_owned()),
            Lifecycle::Stopping => missing.push("the controller ends".to_owned()),
            Lifecycle::Running(controller) => match controller.upgrade() {
                None => missing.push("the controller has ended".to_owned()),
                Some(controller) => missing.extend(controller.pending_syncs()),
            },
        }
        if let Some(why) = &*self.canary_watch_error.lock() {
            missing.push(format!("the API server does not answer: {why}"));
        }
        if missing.is_empty() { Ok(()) } else { Err(missing) }
    }
}

/// For the controller.
impl Health {
    /// Returns the heartbeats that the run loop answers with
    /// [`Self::heartbeat`].
    pub fn started(&self, controller: Weak<dyn ControllerView>) -> watch::Receiver<u64> {
        *self.lifecycle.lock() = Lifecycle::Running(controller);
        self.reconcile_finished();
        let mut requested = self.heartbeat_requested.subscribe();
        // A heartbeat that was requested before is for this loop too.
        requested.mark_changed();
        requested
    }

    pub fn stopping(&self) {
        *self.lifecycle.lock() = Lifecycle::Stopping;
    }

    pub fn heartbeat(&self, requested: u64) {
        self.heartbeat_answered.send_replace(requested);
    }

    pub fn set_queue_depth(&self, queued: usize, processing: usize) {
        self.queued.store(queued, Ordering::Relaxed);
        self.processing.store(processing, Ordering::Relaxed);
    }

    pub fn reconcile_finished(&self) {
        *self.last_finished.lock() = Instant::now();
    }
}
