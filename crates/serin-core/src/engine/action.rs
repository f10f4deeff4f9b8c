//! What the engine wants done. Actions are values: the controller performs
//! them in order, each as often as it is asked, and records status last.
//!
//! An action is asked for as long as what it is for is not yet observed, so
//! every one must be idempotent, and one already under way is not begun again.

use std::sync::Arc;

use jiff::Timestamp;

use crate::api::{
    Weight,
    canary::{HookType, HttpMatch, status::RouteStatus},
};

#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Make the primary, as a copy of the target at exactly this revision.
    CreatePrimary { revision: String },
    /// Give the target, which is the canary, this many replicas.
    ScaleCanary { replicas: u32 },
    /// Take the pods of the target away, and note on it that they went after
    /// this release.
    ScaleDownCanary { after: u64 },
    /// Keep the primary from shrinking below its present size, so that it can
    /// take all traffic back at any moment.
    PinPrimary,
    /// Let the primary scale freely again.
    UnpinPrimary,
    /// Divide the traffic.
    Route(Split),
    /// Ask a gate or hook; the answer comes in a later observation.
    CallGate(GateCall),
    /// Measure; the answer comes in a later observation.
    Measure(Check),
    /// Start a copy of what the primary runs, at its size, to fall back on.
    KeepPrevious { revision: String },
    /// End that copy.
    DropPrevious,
    /// Copy the target to the primary, if it still is at exactly this revision.
    Promote { revision: String },
    /// Give the primary back what it ran before, at exactly this revision.
    RestorePrimary { revision: String },
    /// Remove the objects of the recorded route, which the Canary no longer uses.
    MigrateRoute { from: RouteStatus },
    /// Put Services and routes back as they were before this Canary.
    RestoreRouting,
    /// Let the Canary go.
    RemoveFinalizer,
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
    /// Who the stable side is.
    pub stable: Stable,
}

/// Who serves what does not go to the canary.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stable {
    #[default]
    Primary,
    /// The copy kept warm since before the last promotion.
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

    /// Does any request reach the canary that somebody waits for the answer of?
    pub fn reaches_canary(&self) -> bool {
        self.canary > Weight::ZERO || !self.matches.is_empty()
    }
}

/// A question to a gate, hook or person. An answer counts only for the very
/// question it was given to: the same gate asked in another release, or at
/// another step, is another question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GateCall {
    /// Which release of this Canary, counted from 1.
    pub release: u64,
    /// Name of the webhook, or of the step that asks for approval.
    pub gate: String,
    /// Kind of the webhook; none for an approval.
    pub kind: Option<HookType>,
    pub scope: GateScope,
}

/// At which point of a release a question is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateScope {
    /// Once, at whatever step.
    Release,
    /// On the way into, or in, this step.
    Step(u32),
    /// At one check of this step.
    Check { step: u32, check: u32 },
}

/// One check at the metrics. Results count for the very check they were asked
/// for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    pub release: u64,
    pub step: u32,
    /// Which check of the step, from 0.
    pub index: u32,
    /// Everything the step judges, as opposed to a glance before its interval
    /// is over.
    pub full: bool,
    /// What to measure, each from its own moment until now.
    pub metrics: Vec<MetricWindow>,
}

/// A metric and the moment from which on it was not yet measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetricWindow {
    pub metric: String,
    pub since: Timestamp,
}
