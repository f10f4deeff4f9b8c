//! One pool for each kind of background task, so that hooks that hang delay no
//! measurement, and a chat no gate.

use std::sync::Arc;

use crate::fair_pool::{FairPool, Limits};

/// What a background task does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskKind {
    GateCall,
    Measurement,
    EventHook,
    Alert,
    PodLook,
}

impl TaskKind {
    /// Label value.
    pub fn name(self) -> &'static str {
        match self {
            Self::GateCall => "gate_call",
            Self::Measurement => "measurement",
            Self::EventHook => "event_hook",
            Self::Alert => "alert",
            Self::PodLook => "pod_look",
        }
    }

    /// A Canary has at most fifty webhooks and one check at a time; only event
    /// hooks and alerts can pile up.
    fn limits(self) -> Limits {
        let (per_canary, waiting_per_canary) = match self {
            Self::GateCall => (8, 100),
            Self::Measurement => (4, 100),
            Self::EventHook => (8, 100),
            Self::Alert => (4, 100),
            Self::PodLook => (2, 2),
        };
        Limits { total: 256, per_namespace: 64, per_canary, waiting_per_canary }
    }
}

pub struct Pools {
    gate_calls: Arc<FairPool>,
    measurements: Arc<FairPool>,
    event_hooks: Arc<FairPool>,
    alerts: Arc<FairPool>,
    pod_looks: Arc<FairPool>,
}

impl Default for Pools {
    fn default() -> Self {
        let pool = |kind: TaskKind| FairPool::new(kind.limits());
        Self {
            gate_calls: pool(TaskKind::GateCall),
            measurements: pool(TaskKind::Measurement),
            event_hooks: pool(TaskKind::EventHook),
            alerts: pool(TaskKind::Alert),
            pod_looks: pool(TaskKind::PodLook),
        }
    }
}

impl Pools {
    pub fn of(&self, kind: TaskKind) -> &Arc<FairPool> {
        match kind {
            TaskKind::GateCall => &self.gate_calls,
            TaskKind::Measurement => &self.measurements,
            TaskKind::EventHook => &self.event_hooks,
            TaskKind::Alert => &self.alerts,
            TaskKind::PodLook => &self.pod_looks,
        }
    }
}
