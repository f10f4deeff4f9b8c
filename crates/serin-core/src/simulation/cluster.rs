//! The cluster of a simulated release: a target, a primary and a route that do what the
//! engine requests, pods that become ready after a while, and gates that open.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use crate::analysis::measurement::Arms;
use crate::api::canary::{CanaryStatus, HookType, Phase};
use crate::engine::action::{GateCall, Split};
use crate::engine::observed::{
    CheckMeasurements, GateReply, GateResult, Pods, Previous, Primary, Respondent, Target,
};
use crate::engine::{Action, Decision, Observed, Plan, decide, started_releases};

/// The revision that serves at the start, and the one that is released.
const FIRST: &str = "v1-a";
const SECOND: &str = "v1-b";

/// Gate results that are remembered.
const MAX_GATE_RESULTS: usize = 32;

/// More decisions than one moment needs.
const MAX_DECISIONS: usize = 100;

#[derive(Clone, Debug)]
pub struct Cluster {
    pub plan: Plan,
    pub status: CanaryStatus,
    pub now: Timestamp,
    pub measured: Option<CheckMeasurements>,
    /// The next decision that the engine asked for.
    pub next_wake: Option<Timestamp>,
    replicas: u32,
    /// How long pods take to become ready.
    pod_start: Duration,
    objects: Objects,
    persisted_releases: u64,
}

/// All that actions change.
#[derive(Clone, Debug, PartialEq)]
struct Objects {
    split: Split,
    target: Workload,
    target_scaled_down_after: Option<u64>,
    primary: Option<Workload>,
    previous: Option<Workload>,
    pinned: bool,
    gate_results: Vec<GateResult>,
}

#[derive(Clone, Debug, PartialEq)]
struct Workload {
    revision: String,
    desired: u32,
    ready_at: Timestamp,
}

impl Workload {
    fn pods(&self, now: Timestamp, replaced: bool) -> Pods {
        let (desired, started) = (self.desired, now >= self.ready_at);
        match (started, replaced) {
            (true, _) => Pods { desired, exist: desired > 0, updated: desired, ready: desired, older: 0 },
            // Old pods serve until the new ones are ready.
            (false, true) => Pods { desired, exist: true, updated: 0, ready: desired, older: desired },
            (false, false) => Pods { desired, exist: desired > 0, updated: desired, ready: 0, older: 0 },
        }
    }
}

/// A start that does not depend on the day it is simulated on.
const START: Timestamp = Timestamp::constant(1_748_851_200, 0);

impl Cluster {
    /// A cluster whose primary runs, ready for a new revision. `None` if the plan never gets
    /// that far, as one that is suspended.
    pub fn initialized(plan: Plan, replicas: u32, pod_start: Duration) -> Option<Self> {
        let target = Workload { revision: FIRST.to_owned(), desired: replicas, ready_at: START };
        let mut cluster = Self {
            plan,
            status: CanaryStatus::default(),
            now: START,
            measured: None,
            next_wake: None,
            replicas,
            pod_start,
            objects: Objects {
                split: Split::all_primary(),
                target,
                target_scaled_down_after: None,
                primary: None,
                previous: None,
                pinned: false,
                gate_results: Vec::new(),
            },
            persisted_releases: 0,
        };
        for _ in 0..MAX_DECISIONS {
            let decision = decide(&cluster.plan, &cluster.status, &cluster.observe(), cluster.now);
            let changes = decision.actions.iter().filter(|action| cluster.perform(action)).count();
            let phase = cluster.status.phase;
            cluster.record(&decision);
            if changes > 0 || phase != cluster.status.phase {
                continue;
            }
            if phase == Phase::Initialized {
                return Some(cluster);
            }
            cluster.now = cluster.next_change()?;
        }
        None
    }

    /// The user changes the pod template.
    pub fn push(&mut self) {
        SECOND.clone_into(&mut self.objects.target.revision);
    }

    pub fn observe(&self) -> Observed {
        Observed {
            generation: Some(1),
            target: Some(Target {
                revision: self.objects.target.revision.clone(),
                pods: self.objects.target.pods(self.now, false),
                scaled_down_after: self.objects.target_scaled_down_after,
                ..Target::default()
            }),
            primary: self.objects.primary.as_ref().map(|primary| Primary {
                revision: Some(primary.revision.clone()),
                pods: primary.pods(self.now, primary.revision == SECOND),
                pinned: self.objects.pinned,
                ..Primary::default()
            }),
            previous: self.objects.previous.as_ref().map(|previous| Previous {
                revision: previous.revision.clone(),
                pods: previous.pods(self.now, false),
            }),
            split: Some(self.objects.split.clone()),
            gate_results: self.objects.gate_results.clone(),
            measurements: self.measured.clone(),
            persisted_releases: self.persisted_releases,
            ..Observed::default()
        }
    }

    pub fn record(&mut self, decision: &Decision) {
        self.status = decision.status.clone();
        self.persisted_releases = started_releases(&self.status);
        self.next_wake = decision.wake.map(|(at, _)| at);
    }

    /// When the engine asked to be called, or the next pods become ready.
    pub fn next_change(&self) -> Option<Timestamp> {
        let Objects { target, primary, previous, .. } = &self.objects;
        let workloads = [Some(target), primary.as_ref(), previous.as_ref()];
        let ready = workloads.into_iter().flatten().map(|one| one.ready_at).filter(|at| *at > self.now);
        ready.chain(self.next_wake).min().map(|at| at.max(self.now))
    }

    /// Shares of the requests that each arm gets. Those of a match are as many as
    /// `matched`; of mirrored ones both arms get a copy.
    pub fn shares(&self, matched: f64) -> Arms<f64> {
        let split = &self.objects.split;
        let weight = split.canary.percent() / 100.0;
        let live = if split.matches.is_empty() { weight } else { weight.max(matched) };
        Arms { canary: (live + split.mirror.percent() / 100.0).min(1.0), primary: 1.0 - live }
    }

    /// Performs an action, and reports whether it changed anything. A measurement is the
    /// caller's.
    pub fn perform(&mut self, action: &Action) -> bool {
        let before = self.objects.clone();
        self.change(action);
        before != self.objects
    }

    fn change(&mut self, action: &Action) {
        let ready_at = self.now + SignedDuration::try_from(self.pod_start).unwrap_or(SignedDuration::MAX);
        let replicas = self.replicas;
        let objects = &mut self.objects;
        let is_of_target = |revision: &String| objects.target.revision == *revision;
        match action {
            Action::CreatePrimary { revision } | Action::Promote { revision } if is_of_target(revision) => {
                let desired = objects.primary.as_ref().map_or(replicas, |primary| primary.desired);
                objects.set_primary(revision, desired, ready_at);
            }
            Action::RestorePrimary { revision, replicas: wanted } => {
                let desired = objects.primary.as_ref().map(|primary| primary.desired).or(*wanted);
                objects.set_primary(revision, desired.unwrap_or(replicas), ready_at);
            }
            Action::ScaleCanary { replicas } => {
                if *replicas > objects.target.desired {
                    objects.target.ready_at = ready_at;
                }
                objects.target.desired = *replicas;
            }
            Action::ScaleDownCanary { after } => {
                objects.target.desired = 0;
                objects.target_scaled_down_after = Some(*after);
            }
            Action::ScalePrimary { replicas } => {
                objects.primary.iter_mut().for_each(|primary| primary.desired = *replicas);
            }
            Action::PinPrimary => objects.pinned = true,
            Action::UnpinPrimary => objects.pinned = false,
            Action::Route(split) => objects.split = split.clone(),
            Action::CallGate(call) => objects.open(call, self.now),
            Action::KeepPrevious { revision } => {
                let revision = revision.clone();
                objects.previous.get_or_insert(Workload { revision, desired: replicas, ready_at });
            }
            Action::DropPrevious => objects.previous = None,
            // The model's faults are of a revision, so another pod has them too.
            Action::ReplacePod { .. }
            | Action::CreatePrimary { .. }
            | Action::Promote { .. }
            | Action::Measure(_)
            | Action::MigrateRoute { .. }
            | Action::RestoreRouting
            | Action::RemoveFinalizer => {}
        }
    }
}

impl Objects {
    fn set_primary(&mut self, revision: &str, desired: u32, ready_at: Timestamp) {
        let is_there = self.primary.as_ref().is_some_and(|primary| primary.revision == revision);
        if !is_there {
            self.primary = Some(Workload { revision: revision.to_owned(), desired, ready_at });
        }
    }

    /// A rollback gate that answered yes would roll back.
    fn open(&mut self, call: &GateCall, at: Timestamp) {
        if self.gate_results.iter().any(|result| result.call == *call) {
            return;
        }
        let reply = match call.kind {
            Some(HookType::Rollback) => GateReply::No { by: None, why: "all quiet".to_owned() },
            _ => GateReply::Yes { by: None },
        };
        let from = if call.kind.is_none() { Respondent::Person } else { Respondent::Webhook };
        self.gate_results.push(GateResult { call: call.clone(), reply, from, at });
        if self.gate_results.len() > MAX_GATE_RESULTS {
            self.gate_results.remove(0);
        }
    }
}
