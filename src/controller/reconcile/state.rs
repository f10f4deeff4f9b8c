//! Per-Canary memory of the running controller. Nothing here survives a
//! restart and nothing here is needed: what is lost is read, resolved or
//! measured again.

use std::{
    collections::VecDeque,
    sync::{Arc, OnceLock},
};

use parking_lot::Mutex;

use super::{
    failures::FailureLog,
    pod_looks::PodLooks,
    resolve::{Resolution, ResolutionInputs, ResolvedCanary},
};
use crate::{
    api::{CanaryStatus, canary::status::RouteStatus},
    controller::{background::results::SharedResults, queue::trigger::ObjectVersion},
    engine::action::Split,
    memo::{Identity, Memo},
    routing::{PodSelectors, ServicesMemo},
    workload::{COMPANION_KINDS, CachedWorkload, ConfigContents},
};

/// Two parts of it are shared: background tasks deliver `results`, and the run
/// loop asks about `own_writes`. Everything else belongs to the one reconcile of
/// this Canary.
#[derive(Default)]
pub struct CanaryState {
    /// Of the Canary: a recreated Canary has a new state.
    pub uid: Option<String>,
    pub results: SharedResults,
    pub own_writes: Mutex<OwnWrites>,
    /// Never contended: the work queue runs one reconcile per Canary.
    pub memory: tokio::sync::Mutex<ReconcileMemory>,
}

/// Values that one reconcile leaves to the next, each with its inputs.
#[derive(Default)]
pub struct ReconcileMemory {
    pub resolution: Memo<ResolutionInputs, Resolution>,
    /// Of the last resolution; see [`ResolvedCanary::revision`].
    pub revision: u64,
    /// Set once everything the Canary depends on is watched.
    pub watches: Memo<SpecInputs, ()>,
    /// Kept while the target or the primary is gone.
    pub selectors: Memo<SelectorInputs, Arc<PodSelectors>>,
    pub route: Memo<RouteInputs, RouteObservation>,
    /// Has a lock of its own: routers see it through a shared reference.
    pub services: ServicesMemo,
    /// Set once the companions were found to be in sync.
    pub companions: Memo<CompanionInputs, ()>,
    pub configs: ConfigContents,
    pub status_writes: StatusWrites,
    pub failures: FailureLog,
    /// The last status write was refused.
    pub status_refused: bool,
    /// The pod of the canary that was deleted last.
    pub deleted_pod: Option<String>,
    /// Of the target's pods and of the primary's.
    pub pod_looks: [PodLooks; 2],
    /// The route whose objects were removed last.
    pub migrated_from: Option<RouteStatus>,
}

/// The split in force, or what it waits for.
#[derive(Clone)]
pub struct RouteObservation {
    pub split: Option<Split>,
    pub pending: Option<String>,
    /// Why the proxies refuse the written split.
    pub refused: Option<String>,
}

/// Inputs of a [`RouteObservation`]. Of the status a route depends on the
/// cookies only.
#[derive(PartialEq)]
pub struct RouteInputs {
    pub revision: u64,
    pub cookies: (Option<String>, Option<String>),
    pub selectors: Identity<PodSelectors>,
    /// resourceVersion of each route object.
    pub versions: Vec<Option<String>>,
}

/// uid and generation of a workload.
type SpecVersion = (Option<String>, String);

fn spec_version(workload: &CachedWorkload) -> SpecVersion {
    let (uid, version) = workload.spec_version();
    (uid.map(str::to_owned), version)
}

/// Inputs of whatever depends on the two specs alone: the Canary's and its
/// target's.
#[derive(Clone, PartialEq)]
pub struct SpecInputs {
    revision: u64,
    target: SpecVersion,
}

impl SpecInputs {
    pub fn new(resolved: &ResolvedCanary, target: &CachedWorkload) -> Self {
        Self { revision: resolved.revision, target: spec_version(target) }
    }
}

/// Inputs of the pod selectors: the specs of the Canary and of its workloads.
#[derive(PartialEq)]
pub struct SelectorInputs {
    revision: u64,
    workloads: [Option<SpecVersion>; 3],
}

impl SelectorInputs {
    pub fn new(resolved: &ResolvedCanary, workloads: [Option<&CachedWorkload>; 3]) -> Self {
        let workloads = workloads.map(|workload| workload.map(spec_version));
        Self { revision: resolved.revision, workloads }
    }
}

/// Inputs of the companion sync (copies of HPA, ScaledObject, PDB). Unchanged
/// since a sync that wrote nothing: skip it.
pub struct CompanionInputs {
    pub revision: u64,
    pub target: Arc<CachedWorkload>,
    pub primary: Arc<CachedWorkload>,
    /// resourceVersion of the canary's Service, where the target is a Service.
    pub canary_service: Option<String>,
    /// Namespace revision of each companion kind.
    pub companions: [u64; COMPANION_KINDS.len()],
}

impl PartialEq for CompanionInputs {
    fn eq(&self, other: &Self) -> bool {
        let Self { revision, target, primary, canary_service, companions } = other;
        self.revision == *revision
            && self.target.same_manifest(target)
            && self.primary.same_manifest(primary)
            && self.canary_service == *canary_service
            && self.companions == *companions
    }
}

/// Versions of objects that this Canary's own writes made, so that their watch
/// events trigger no reconcile.
#[derive(Default)]
pub struct OwnWrites(VecDeque<ObjectVersion>);

/// A watch event can only precede its write response within the reconcile that
/// wrote, so a few versions are enough.
const MAX_OWN_WRITES: usize = 16;

impl OwnWrites {
    pub fn remember(&mut self, version: Option<ObjectVersion>) {
        self.0.extend(version);
        if self.0.len() > MAX_OWN_WRITES {
            self.0.pop_front();
        }
    }

    pub fn contains(&self, version: &ObjectVersion) -> bool {
        self.0.contains(version)
    }
}

/// Status updates with an unknown outcome that are remembered.
const MAX_UNCONFIRMED: usize = 8;

/// Statuses as they were decided, by what the API server serves for them. The
/// API keeps whole seconds; a second that is lost between two checks would be
/// counted twice.
#[derive(Default)]
pub struct StatusWrites(Vec<StatusWrite>);

struct StatusWrite {
    exact: Arc<CanaryStatus>,
    /// `exact` as the API serves it; computed when first compared.
    served: OnceLock<Option<CanaryStatus>>,
}

impl StatusWrite {
    fn is_served_as(&self, served: &CanaryStatus) -> bool {
        let round_trip = || serde_json::to_value(&*self.exact).and_then(serde_json::from_value).ok();
        self.served.get_or_init(round_trip).as_ref() == Some(served)
    }
}

impl StatusWrites {
    /// The status as it was decided, if the served one is a write of ours.
    pub fn exact(&self, served: Option<&CanaryStatus>) -> Arc<CanaryStatus> {
        let Some(served) = served else { return Arc::default() };
        let write = self.0.iter().find(|write| write.is_served_as(served));
        write.map_or_else(|| Arc::new(served.clone()), |write| Arc::clone(&write.exact))
    }

    /// Not a write of ours, though this process has written it before.
    pub fn is_foreign(&self, served: Option<&CanaryStatus>) -> bool {
        let ours = |served| self.0.iter().any(|write| write.is_served_as(served));
        !self.0.is_empty() && served.is_some_and(|served| !ours(served))
    }

    /// Call before sending a status update. If the response is lost, the watch
    /// delivers the status with whole-second times; this entry maps it back to
    /// the exact one.
    pub fn begin(&mut self, exact: Arc<CanaryStatus>) {
        if self.0.len() > MAX_UNCONFIRMED {
            self.0.remove(1);
        }
        self.0.push(StatusWrite { exact, served: OnceLock::new() });
    }

    /// This one is what the API server has; all others are obsolete.
    pub fn confirm(&mut self, exact: Arc<CanaryStatus>, served: CanaryStatus) {
        self.0 = vec![StatusWrite { exact, served: Some(served).into() }];
    }
}

impl CanaryState {
    pub fn new(uid: Option<String>) -> Self {
        Self { uid, ..Self::default() }
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;

    fn status_at(millisecond: i64) -> CanaryStatus {
        let at = Timestamp::from_millisecond(millisecond).unwrap();
        CanaryStatus { last_transition_time: Some(Time(at)), ..CanaryStatus::default() }
    }

    fn exact(writes: &StatusWrites, served: i64) -> CanaryStatus {
        CanaryStatus::clone(&writes.exact(Some(&status_at(served))))
    }

    #[test]
    fn a_status_is_exact_with_and_without_a_write_response() {
        let mut writes = StatusWrites::default();
        writes.confirm(status_at(1_200).into(), status_at(1_000));
        for millisecond in 1..20 {
            writes.begin(status_at(2_000 + 1_000 * millisecond + millisecond).into());
        }
        assert_eq!(exact(&writes, 1_000), status_at(1_200), "no write arrived");
        assert_eq!(exact(&writes, 21_000), status_at(21_019), "the last write arrived");
        assert!(!writes.is_foreign(Some(&status_at(21_000))) && !writes.is_foreign(None));
        assert!(writes.is_foreign(Some(&status_at(99_000))), "of another controller");
        assert!(!StatusWrites::default().is_foreign(Some(&status_at(99_000))), "of the process before");
        assert_eq!(exact(&writes, 3_000), status_at(3_000), "too old to be remembered");
        writes.confirm(status_at(30_500).into(), status_at(30_000));
        assert_eq!(exact(&writes, 30_000), status_at(30_500));
        assert_eq!(exact(&writes, 21_000), status_at(21_000));
    }
}
