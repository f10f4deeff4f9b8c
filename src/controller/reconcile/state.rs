//! What is remembered of one Canary while the controller runs, and nowhere
//! else: whatever is lost with it is simply asked for again.

use std::{
    collections::VecDeque,
    sync::{Arc, OnceLock},
};

use jiff::Timestamp;
use parking_lot::Mutex;

use super::{
    resolve::{Resolution, ResolutionInputs, ResolvedCanary},
    trigger::ObjectVersion,
};
use crate::{
    api::CanaryStatus,
    engine::{
        action::{Check, GateCall, Split},
        observed::{CheckMeasurements, GateReply, GateResult},
    },
    routing::{ObjectKey, PodSelectors, ServicesMemo},
    workload::{COMPANION_KINDS, CachedWorkload, ConfigContents},
};

#[derive(Default)]
pub struct CanaryState {
    /// Of the Canary: another one by the same name has another state.
    pub uid: Option<String>,
    /// Only ever held by the one reconcile of this Canary.
    pub configs: tokio::sync::Mutex<ConfigContents>,
    pub pending_results: Mutex<PendingResults>,
    /// How the pods were told apart when the target was last seen.
    pub selectors: Mutex<Option<(WatchInputs, Arc<PodSelectors>)>>,
    pub services: ServicesMemo,
    pub route: Mutex<Option<RouteObservation>>,
    pub watches: Mutex<Option<WatchInputs>>,
    /// When everything that accompanies the target was last found to follow it.
    pub companions: Mutex<Option<CompanionInputs>>,
    pub resolution: Mutex<Option<(ResolutionInputs, Resolution)>>,
    /// What was surely written last, then what may have been since.
    status_writes: Mutex<Vec<StatusWrite>>,
    /// What its own writes made of objects, as far as their answers are known.
    own_writes: Mutex<VecDeque<ObjectVersion>>,
}

/// What the router last said.
pub struct RouteObservation {
    pub inputs: RouteInputs,
    pub split: Option<Split>,
    pub pending: Option<String>,
}

/// Everything that it followed from.
pub struct RouteInputs {
    /// Another one whenever the Canary means something else. Of its status a
    /// route follows the cookies only.
    pub objects: Arc<[ObjectKey]>,
    pub cookies: (Option<String>, Option<String>),
    pub selectors: Arc<PodSelectors>,
    /// Of each object of the route.
    pub versions: Vec<Option<String>>,
}

impl PartialEq for RouteInputs {
    fn eq(&self, other: &Self) -> bool {
        let Self { objects, cookies, selectors: arms, versions } = other;
        Arc::ptr_eq(&self.objects, objects)
            && self.cookies == *cookies
            && Arc::ptr_eq(&self.selectors, arms)
            && self.versions == *versions
    }
}

/// What everything that concerns a Canary follows from: what it means, and its
/// target's spec.
#[derive(Clone)]
pub struct WatchInputs {
    objects: Arc<[ObjectKey]>,
    target: (Option<String>, String),
}

impl WatchInputs {
    pub fn of(resolved: &ResolvedCanary, target: &CachedWorkload) -> Self {
        let (uid, version) = target.spec_version();
        let objects = Arc::clone(&resolved.objects);
        Self { objects, target: (uid.map(str::to_owned), version) }
    }
}

impl PartialEq for WatchInputs {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.objects, &other.objects) && self.target == other.target
    }
}

/// Everything that what accompanies a target follows from, and is itself.
pub struct CompanionInputs {
    pub target: Arc<CachedWorkload>,
    /// Of the Canary.
    pub generation: Option<i64>,
    /// Version of the canary's Service, where the target is a Service.
    pub canary_service: Option<String>,
    /// Of each kind of companions, in the namespace.
    pub companions: [u64; COMPANION_KINDS.len()],
}

impl PartialEq for CompanionInputs {
    fn eq(&self, other: &Self) -> bool {
        let Self { target, generation, canary_service, companions } = other;
        self.target.same_manifest(target)
            && self.generation == *generation
            && self.canary_service == *canary_service
            && self.companions == *companions
    }
}

/// So many writes of unknown outcome are remembered.
const MAX_UNCONFIRMED: usize = 8;

/// So many own writes are: a watch that was faster than their answers was so
/// within the one reconcile that made them.
const MAX_OWN_WRITES: usize = 16;

/// The API keeps whole seconds; between two checks a second is a long time, and
/// what was counted in it would be counted twice.
struct StatusWrite {
    exact: Arc<CanaryStatus>,
    /// As the API keeps it: seldom asked for before the API has said it.
    served: OnceLock<Option<CanaryStatus>>,
}

impl StatusWrite {
    fn is_served_as(&self, served: &CanaryStatus) -> bool {
        let kept = || serde_json::to_value(&*self.exact).and_then(serde_json::from_value).ok();
        self.served.get_or_init(kept).as_ref() == Some(served)
    }
}

impl CanaryState {
    pub fn new(uid: Option<String>) -> Self {
        Self { uid, ..Self::default() }
    }

    /// The status as it was decided, if what the API tells is what was written.
    pub fn exact_status(&self, served: Option<&CanaryStatus>) -> Arc<CanaryStatus> {
        let Some(served) = served else { return Arc::default() };
        let written = self.status_writes.lock();
        let exact = written.iter().find(|written| written.is_served_as(served));
        exact.map_or_else(|| Arc::new(served.clone()), |written| Arc::clone(&written.exact))
    }

    pub fn confirm_status_write(&self, exact: Arc<CanaryStatus>, served: CanaryStatus) {
        *self.status_writes.lock() = vec![StatusWrite { exact, served: Some(served).into() }];
    }

    /// It knows what came of a write of its own, if anybody does.
    pub fn remember_own_write(&self, own: Option<ObjectVersion>) {
        let mut known = self.own_writes.lock();
        known.extend(own);
        if known.len() > MAX_OWN_WRITES {
            known.pop_front();
        }
    }

    /// Is it what a write of its own made of an object, and known to be?
    pub fn is_own_write(&self, version: &ObjectVersion) -> bool {
        self.own_writes.lock().contains(version)
    }

    /// Is being written. Whether it was may never be said, but told it will be
    /// as the API keeps it.
    pub fn begin_status_write(&self, exact: Arc<CanaryStatus>) {
        let mut written = self.status_writes.lock();
        if written.len() > MAX_UNCONFIRMED {
            written.remove(1);
        }
        written.push(StatusWrite { exact, served: OnceLock::new() });
    }
}

/// Questions and measurements under way, and what came of them.
#[derive(Default)]
pub struct PendingResults {
    gate_results: Vec<GateResult>,
    calls_in_flight: Vec<GateCall>,
    measurements: Option<CheckMeasurements>,
    check_in_flight: Option<Check>,
    /// The step of a release whose first window has begun.
    windows_opened_for: Option<(u64, u32)>,
}

impl PendingResults {
    /// True if nobody asks this already.
    pub fn start_gate_call(&mut self, call: &GateCall) -> bool {
        let new = !self.calls_in_flight.contains(call);
        if new {
            self.calls_in_flight.push(call.clone());
        }
        new
    }

    pub fn finish_gate_call(&mut self, call: GateCall, reply: GateReply, at: Timestamp) {
        self.calls_in_flight.retain(|asked| *asked != call);
        self.gate_results.retain(|known| known.call != call);
        self.gate_results.push(GateResult { call, reply, at });
    }

    /// True if nobody measures this already. Another check takes the place of
    /// the one before.
    pub fn start_check(&mut self, check: &Check) -> bool {
        let new = self.check_in_flight.as_ref() != Some(check);
        if new {
            self.check_in_flight = Some(check.clone());
        }
        new
    }

    pub fn finish_check(&mut self, measured: CheckMeasurements) {
        self.check_in_flight.take_if(|check| *check == measured.check);
        self.measurements = Some(measured);
    }

    /// True the first time that the check of a step is seen to go on; the step
    /// is none while nothing is looked at.
    pub fn is_first_window(&mut self, step: Option<(u64, u32)>) -> bool {
        let new = step.is_some() && self.windows_opened_for != step;
        self.windows_opened_for = step;
        new
    }

    /// What came, except what was about an earlier release.
    pub fn current(&mut self, release: u64) -> (Vec<GateResult>, Option<CheckMeasurements>) {
        self.gate_results.retain(|answer| answer.call.release >= release);
        self.measurements.take_if(|measured| measured.check.release < release);
        (self.gate_results.clone(), self.measurements.clone())
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;

    fn changed(millisecond: i64) -> CanaryStatus {
        let at = Timestamp::from_millisecond(millisecond).unwrap();
        CanaryStatus { last_transition_time: Some(Time(at)), ..CanaryStatus::default() }
    }

    fn exact(state: &CanaryState, told: i64) -> CanaryStatus {
        CanaryStatus::clone(&state.exact_status(Some(&changed(told))))
    }

    #[test]
    fn a_status_is_exact_even_if_the_write_response_was_lost() {
        let state = CanaryState::default();
        state.confirm_status_write(changed(1_200).into(), changed(1_000));
        for millisecond in 1..20 {
            state.begin_status_write(changed(2_000 + 1_000 * millisecond + millisecond).into());
        }
        assert_eq!(exact(&state, 1_000), changed(1_200), "none was done");
        assert_eq!(exact(&state, 21_000), changed(21_019), "the last one was");
        assert_eq!(exact(&state, 3_000), changed(3_000), "what is too long ago is forgotten");
        state.confirm_status_write(changed(30_500).into(), changed(30_000));
        assert_eq!(exact(&state, 30_000), changed(30_500));
        assert_eq!(exact(&state, 21_000), changed(21_000));
    }
}
