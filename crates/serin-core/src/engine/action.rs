//! Actions that the engine requests. Actions are values: the controller
//! performs them by [`Purpose`], each time they are requested, and writes the
//! status last.
//!
//! An action is requested until its effect is observed, so every one must be
//! idempotent, and a running one is not started again.

use std::sync::Arc;

use jiff::Timestamp;

use crate::api::{
    Weight,
    canary::{HookType, HttpMatch, status::RouteStatus},
};

#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Create the primary, as a copy of the target at exactly this revision, or
    /// overwrite one at another revision that has not served yet.
    CreatePrimary { revision: String },
    /// Give the target, which is the canary, this many replicas.
    ScaleCanary { replicas: u32 },
    /// Scale the target to zero, and annotate it with the number of this
    /// release.
    ScaleDownCanary { after: u64 },
    /// Keep the primary from shrinking below its present size, so that it can
    /// take all traffic back at any moment.
    PinPrimary,
    /// Let the primary scale freely again.
    UnpinPrimary,
    /// Bring a split into force.
    Route(Split),
    /// Call a gate or hook; the result comes in a later observation.
    CallGate(GateCall),
    /// Measure; the results come in a later observation.
    Measure(Check),
    /// Delete this pod of the canary; its workload starts another one.
    ReplacePod { pod: String },
    /// Start a copy of the primary, at its revision and size, to fall back on.
    KeepPrevious { revision: String },
    /// Delete that copy.
    DropPrevious,
    /// Copy the target to the primary, if it still is at exactly this revision.
    Promote { revision: String },
    /// Give the primary this many replicas, and keep it from shrinking below them.
    ScalePrimary { replicas: u32 },
    /// Restore the primary's backup, at exactly this revision; one that does not
    /// exist is created with this many replicas, by default those of the backup.
    RestorePrimary { revision: String, replicas: Option<u32> },
    /// Remove the objects of the recorded route, which the Canary no longer uses.
    MigrateRoute { from: RouteStatus },
    /// Restore Services and routes to their state before this Canary.
    RestoreRouting,
    /// Let the API server delete the Canary.
    RemoveFinalizer,
}

/// Why an action is performed, in the order of performance. A failure of a later
/// purpose never blocks an earlier one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Purpose {
    /// Users: traffic, judging what has traffic.
    Protect,
    /// The release: its pods, its promotion, its end.
    Advance,
    /// Everything around it: companions, warm copies, orphaned routes.
    Maintain,
}

impl Purpose {
    pub fn name(self) -> &'static str {
        match self {
            Self::Protect => "protect",
            Self::Advance => "advance",
            Self::Maintain => "maintain",
        }
    }
}

impl Action {
    pub fn purpose(&self) -> Purpose {
        match self {
            Self::Route(_) | Self::Measure(_) | Self::CallGate(_) | Self::RestorePrimary { .. } => {
                Purpose::Protect
            }
            Self::CreatePrimary { .. }
            | Self::ScaleCanary { .. }
            | Self::ScaleDownCanary { .. }
            | Self::ReplacePod { .. }
            | Self::KeepPrevious { .. }
            | Self::Promote { .. }
            | Self::ScalePrimary { .. }
            | Self::RestoreRouting
            | Self::RemoveFinalizer => Purpose::Advance,
            Self::PinPrimary | Self::UnpinPrimary | Self::DropPrevious | Self::MigrateRoute { .. } => {
                Purpose::Maintain
            }
        }
    }

    /// As part of a sentence.
    pub fn name(&self) -> &'static str {
        match self {
            Self::CreatePrimary { .. } => "create the primary",
            Self::ScaleCanary { .. } => "scale the canary",
            Self::ScaleDownCanary { .. } => "scale the canary down",
            Self::PinPrimary => "pin the primary",
            Self::UnpinPrimary => "unpin the primary",
            Self::Route(_) => "set the split",
            Self::CallGate(_) => "call a gate",
            Self::Measure(_) => "measure",
            Self::ReplacePod { .. } => "replace a pod of the canary",
            Self::KeepPrevious { .. } => "keep a warm copy of the primary",
            Self::DropPrevious => "delete the warm copy of the primary",
            Self::Promote { .. } => "promote",
            Self::ScalePrimary { .. } => "scale the primary",
            Self::RestorePrimary { .. } => "restore the primary",
            Self::MigrateRoute { .. } => "remove the previous route",
            Self::RestoreRouting => "restore the routing",
            Self::RemoveFinalizer => "remove the finalizer",
        }
    }
}

/// How traffic is divided.
#[derive(Clone, Debug, PartialEq)]
pub struct Split {
    /// The canary's share; the stable side has the rest.
    pub canary: Weight,
    /// Requests that go to the canary whatever its share.
    pub matches: Arc<[HttpMatch]>,
    /// The share of requests of which the canary gets a copy.
    pub mirror: Weight,
    pub stable: Stable,
}

/// The workload that serves all requests not sent to the canary.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stable {
    #[default]
    Primary,
    /// The warm copy from before the last promotion.
    Previous,
}

impl Split {
    /// All traffic to the primary.
    pub fn all_primary() -> Self {
        Self::weight(Weight::ZERO)
    }

    /// This share to the canary and nothing special besides.
    pub fn weight(canary: Weight) -> Self {
        Self { canary, matches: Arc::default(), mirror: Weight::ZERO, stable: Stable::Primary }
    }

    /// Does any live request reach the canary? Mirrored copies do not count.
    pub fn reaches_canary(&self) -> bool {
        self.canary > Weight::ZERO || !self.matches.is_empty()
    }
}

/// A call of a gate or hook, or a request for approval. A result counts only
/// for exactly this call: the same gate in another release, or at another step,
/// is another call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GateCall {
    /// Which release of this Canary, counted from 1.
    pub release: u64,
    /// Name of the webhook, or of the step that needs approval.
    pub gate: String,
    /// Kind of the webhook; none for an approval.
    pub kind: Option<HookType>,
    pub scope: GateScope,
}

/// At which point of a release a gate is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateScope {
    /// Once, at any step.
    Release,
    /// On the way into, or in, this step.
    Step(u32),
    /// At one check of this step.
    Check { step: u32, check: u32 },
}

/// A request to measure. Results count only for exactly this check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    pub release: u64,
    pub step: u32,
    /// Which check of the step, from 0.
    pub index: u32,
    /// Every metric of the step, as opposed to an interim check before its
    /// interval is over.
    pub full: bool,
    /// Each from the end of its last window until now.
    pub metrics: Vec<MetricWindow>,
}

/// A metric and the start of the time not measured yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetricWindow {
    pub metric: String,
    pub since: Timestamp,
}
