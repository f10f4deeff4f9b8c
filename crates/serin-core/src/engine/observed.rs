//! The controller's observation of the cluster. It may be slightly stale, and
//! none of it is stored: state that must survive is in the status.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::{
    action::{Check, GateCall, Purpose, Split},
    command::Command,
};
use crate::{analysis::measurement::Measurement, api::canary::status::RouteStatus};

/// One observation of a Canary and its objects.
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
    /// The warm copy from before the last promotion.
    pub previous: Option<Previous>,
    /// The split in force everywhere; none while the router does not report one
    /// or is still bringing one into force.
    pub split: Option<Split>,
    /// The route that the spec asks for.
    pub route: Option<RouteStatus>,
    /// Why the provider of that route was chosen, if the spec names none.
    pub provider_evidence: Option<String>,
    /// Why a written split is not in force yet, as the router reports it.
    pub route_pending: Option<String>,
    /// Why the proxies refuse the written split, if so many do that it will not come into
    /// force.
    pub route_refused: Option<String>,
    /// The manager of the fields of the route, besides Serin, that wrote it last.
    /// Read only while the route [is reverted](super::is_route_reverted()).
    pub route_writer: Option<String>,
    /// The recorded route whose objects were removed by [`Action::MigrateRoute`].
    ///
    /// [`Action::MigrateRoute`]: super::Action::MigrateRoute
    pub migrated_from: Option<RouteStatus>,
    /// The pod deleted by [`Action::ReplacePod`], or that was gone already.
    ///
    /// [`Action::ReplacePod`]: super::Action::ReplacePod
    pub deleted_pod: Option<String>,
    /// The [replaced pod](super::replaced_pod()) of the status last written.
    pub persisted_replacement: Option<String>,
    /// Services and routes are as they were before this Canary.
    pub routing_restored: bool,
    /// Work for this Canary that failed again and again.
    pub failures: Vec<Failure>,
    /// Results of gate calls, including old ones: those of people oldest first.
    pub gate_results: Vec<GateResult>,
    /// Results of the last check.
    pub measurements: Option<CheckMeasurements>,
    /// Commands of users, oldest first, including processed ones.
    pub commands: Vec<Command>,
    /// Releases of this Canary [started](super::started_releases) by the status
    /// last written; the current one may have started since.
    pub persisted_releases: u64,
    /// When this process last found that the wall clock was stepped, by the new clock.
    pub clock_stepped_at: Option<Timestamp>,
    /// Running releases of other Canaries.
    pub other_releases: u32,
    /// Limit of running releases.
    pub release_cap: Option<u32>,
}

/// A failure that lasts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub purpose: Purpose,
    /// One sentence without its full stop: the attempt, and the server's own words.
    pub message: String,
    /// The server refuses, so a retry cannot succeed until an object, a policy or a
    /// right changes.
    pub refused: bool,
}

/// The workload that users edit.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Target {
    /// See [`super::revision`]; in the hash version of the recorded one.
    pub revision: String,
    /// What people call that revision.
    pub name: Option<String>,
    /// What keeps a pod of it from becoming ready, as part of a sentence.
    pub trouble: Option<String>,
    /// Digest of each config it reads, to name the ones that changed.
    pub configs: BTreeMap<String, String>,
    pub pods: Pods,
    /// Number of the release after which it was last scaled to zero.
    pub scaled_down_after: Option<u64>,
}

/// The workload that serves.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Primary {
    /// The revision last copied to it; none if it carries no record of one.
    pub revision: Option<String>,
    /// What people call that revision.
    pub name: Option<String>,
    /// What keeps a pod of it from becoming ready, as part of a sentence.
    pub trouble: Option<String>,
    pub pods: Pods,
    /// It is kept from shrinking.
    pub pinned: bool,
    /// The most pods that it can have; none if there is no limit.
    pub max_replicas: Option<u32>,
}

/// A copy of the primary from before the last promotion.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Previous {
    pub revision: String,
    pub pods: Pods,
}

/// The pods of a workload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pods {
    /// Replicas in the spec.
    pub desired: u32,
    /// Some exist, in any state.
    pub exist: bool,
    /// Running the workload's present template.
    pub updated: u32,
    /// Ready to serve, of any template.
    pub ready: u32,
    /// Of an earlier template, in any state.
    pub older: u32,
}

impl Pods {
    /// All run the present template, and this share of them is ready. Zero
    /// desired pods are always ready.
    pub fn are_ready(&self, percent: u32) -> bool {
        let enough = u64::from(self.ready) * 100 >= u64::from(self.desired) * u64::from(percent);
        self.updated >= self.desired && enough && self.can_serve()
    }

    /// Pods of the present template that are ready, at most.
    pub fn updated_and_ready(&self) -> u32 {
        self.ready.min(self.updated)
    }

    /// Pods of the present template that are ready, at least. Grows throughout a
    /// rollout, however many pods it replaces at a time.
    pub fn ready_beyond_older(&self) -> u32 {
        self.ready.saturating_sub(self.older)
    }

    /// At least one is ready, or none is desired: an autoscaler may start one on
    /// demand.
    pub fn can_serve(&self) -> bool {
        self.ready > 0 || self.desired == 0
    }
}

/// Result of a gate call.
#[derive(Clone, Debug, PartialEq)]
pub struct GateResult {
    pub call: GateCall,
    pub reply: GateReply,
    pub from: Respondent,
    /// By the clock of the respondent's machine.
    pub at: Timestamp,
}

/// Who gave the result of a gate call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Respondent {
    Webhook,
    /// A person's answer counts before a webhook's, whatever the clocks show.
    Person,
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
    /// No response, which is neither.
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
    /// By the metric's name, where the source has data only until earlier.
    pub available_until: BTreeMap<String, Timestamp>,
    /// By the metric's name, where not all pods were read at the end of the window:
    /// requests before this moment are counted on all pods of both arms.
    pub known_until: BTreeMap<String, Timestamp>,
    /// By the metric's name; a missing one could not be measured.
    pub results: BTreeMap<String, Measurement>,
}

impl CheckMeasurements {
    /// Until when requests were counted for a metric.
    pub fn measured_until(&self, metric: &str) -> Timestamp {
        self.available_until.get(metric).copied().unwrap_or(self.at)
    }

    /// Until when all requests of both arms were counted for a metric.
    pub fn known_until(&self, metric: &str) -> Timestamp {
        let until = self.measured_until(metric);
        self.known_until.get(metric).map_or(until, |known| until.min(*known))
    }
}
