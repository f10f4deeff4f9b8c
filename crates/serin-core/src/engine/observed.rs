//! What the controller saw. Everything here may be a moment old; nothing here
//! is remembered: what must be remembered is in the status.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::{
    action::{Check, GateCall, Split},
    command::Command,
};
use crate::{analysis::measurement::Measurement, api::canary::status::RouteStatus};

/// One observation of the world around a Canary.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Observed {
    /// `metadata.generation` of the Canary.
    pub generation: Option<i64>,
    /// The Canary is being deleted.
    pub deleting: bool,
    /// The target, which is the canary; none while it does not exist.
    pub target: Option<Target>,
    /// None while it does not exist.
    pub primary: Option<Primary>,
    /// The copy kept warm since before the last promotion.
    pub previous: Option<Previous>,
    /// The split that is in force everywhere; none while the router cannot
    /// tell or is still bringing one into force.
    pub split: Option<Split>,
    /// The route that the spec asks for.
    pub route: Option<RouteStatus>,
    /// Whom a split that was written waits for, as the router has it.
    pub route_pending: Option<String>,
    /// Services and routes are as they were before this Canary.
    pub routing_restored: bool,
    /// Answers to questions, in any order, old ones among them.
    pub gate_results: Vec<GateResult>,
    /// Results of the last check.
    pub measurements: Option<CheckMeasurements>,
    /// Commands of people, in the order they came, answered ones among them.
    pub commands: Vec<Command>,
    /// How many releases of this Canary have [started](super::started_releases) by what is on
    /// record: the one that is decided on may have begun since.
    pub persisted_releases: u64,
    /// Releases of other Canaries under way.
    pub other_releases: u32,
    /// How many may be under way at a time.
    pub release_cap: Option<u32>,
}

/// The workload that people write to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Target {
    /// See [`super::revision`]; made in the form of what status records.
    pub revision: String,
    /// A digest of each config it reads, to tell what made the revision.
    pub configs: BTreeMap<String, String>,
    pub pods: Pods,
    /// The release of this Canary after which its pods were last taken away.
    pub scaled_down_after: Option<u64>,
}

/// The workload that serves.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Primary {
    /// The revision that was last copied to it; none if nobody recorded one.
    pub revision: Option<String>,
    pub pods: Pods,
    /// It is kept from shrinking.
    pub pinned: bool,
}

/// A copy of what the primary ran.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Previous {
    pub revision: String,
    pub pods: Pods,
}

/// The pods of a workload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pods {
    /// Asked for.
    pub desired: u32,
    /// Some are there, in whatever state.
    pub exist: bool,
    /// Running the workload's present template.
    pub updated: u32,
    /// Ready to serve, of whatever template.
    pub ready: u32,
}

impl Pods {
    /// All run the present template, and this share of them is ready. Of no
    /// pods asked for, none is missing.
    pub fn are_ready(&self, percent: u32) -> bool {
        let enough = u64::from(self.ready) * 100 >= u64::from(self.desired) * u64::from(percent);
        self.updated >= self.desired && enough && self.can_serve()
    }

    /// So many run the present template and are surely ready.
    pub fn updated_and_ready(&self) -> u32 {
        self.ready.min(self.updated)
    }

    /// One of them can answer a request, or would be started to.
    pub fn can_serve(&self) -> bool {
        self.ready > 0 || self.desired == 0
    }
}

/// An answer to a question.
#[derive(Clone, Debug, PartialEq)]
pub struct GateResult {
    pub call: GateCall,
    pub reply: GateReply,
    pub at: Timestamp,
}

#[derive(Clone, Debug, PartialEq)]
pub enum GateReply {
    Yes {
        by: Option<String>,
    },
    No {
        by: Option<String>,
        why: String,
    },
    /// Nobody answered, which is neither.
    Unreachable {
        why: String,
    },
}

/// Results of one check.
#[derive(Clone, Debug, PartialEq)]
pub struct CheckMeasurements {
    pub check: Check,
    /// Until when requests were counted.
    pub at: Timestamp,
    /// By the metric's name, where the source knows less than until then.
    pub available_until: BTreeMap<String, Timestamp>,
    /// By the metric's name; one that is missing could not be measured.
    pub results: BTreeMap<String, Measurement>,
}

impl CheckMeasurements {
    /// Until when requests were counted for a metric.
    pub fn measured_until(&self, metric: &str) -> Timestamp {
        self.available_until.get(metric).copied().unwrap_or(self.at)
    }
}
