//! A minimal cluster: a target, a primary, a router, gates and metrics. It performs
//! actions at once and completely unless set otherwise; the clock jumps from wake
//! to wake.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};
use serin::{
    analysis::measurement::{Arms, Counts, Measurement},
    api::{
        Canary, Weight,
        canary::{CanaryStatus, Phase},
    },
    engine::{
        Action, Decision, Observed, Plan,
        action::{Check, GateCall, MetricWindow, Split, Stable},
        command::{Command, Verb},
        decide,
        observed::{
            CheckMeasurements, Failure, GateReply, GateResult, Pods, Previous, Primary, Respondent, Target,
        },
        replaced_pod, started_releases,
    },
};

/// The canary's measurements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    Good,
    Bad,
    /// Every request to the canary fails; the primary has only its share.
    Broken,
    NoData,
    Unavailable,
    /// There is traffic, but next to none.
    FewRequests,
    /// The primary has requests and the canary has none.
    Silent,
}

pub const REFUSAL: &str = "2 of 3 proxies refused the MeshRoute shop/web: edge-1: invalid regex";

#[derive(Clone, Debug)]
pub struct World {
    pub plan: Plan,
    pub status: CanaryStatus,
    pub now: Timestamp,

    pub target: Target,
    pub target_exists: bool,
    pub primary: Option<Primary>,
    pub previous: Option<Previous>,
    pub split: Split,
    /// Of the route, besides Serin.
    pub route_writer: Option<String>,
    /// Splits that the proxies refuse.
    pub refuses: fn(&Split) -> bool,
    pub restored: bool,
    pub deleting: bool,
    pub finalizer: bool,

    /// Pods of the canary, primary become ready by themselves.
    pub canary_starts: bool,
    pub primary_starts: bool,
    pub router_applies: bool,
    /// Otherwise requests are halved, whatever the split.
    pub router_splits: bool,
    pub health: Health,
    /// The ingestion delay of the metric source.
    pub source_delay: Duration,
    /// Gates that refuse; all others approve.
    pub closed: BTreeSet<String>,
    /// Hooks that do not respond.
    pub unreachable: BTreeSet<String>,
    /// Rollback gates that are open.
    pub rollback_gates_open: BTreeSet<String>,
    pub approvals: BTreeMap<String, bool>,
    pub answers: Vec<GateResult>,
    pub measured: Option<CheckMeasurements>,
    /// Of the canary, the pod of which most requests fail.
    pub broken_pod: Option<String>,
    /// Its deletion has no effect.
    pub broken_pod_stays: bool,
    pub deleted_pod: Option<String>,
    pub persisted_replacement: Option<String>,
    pub commands: Vec<Command>,
    /// Releases that are recorded.
    pub recorded: u64,
    pub other_releases: u32,
    pub release_cap: Option<u32>,
    pub clock_stepped_at: Option<Timestamp>,
    /// Work of the controller that fails again and again.
    pub failures: Vec<Failure>,

    /// Every action, for the snapshots.
    pub journal: Vec<String>,
    ineffective: Vec<Action>,
    /// Revisions written to the primary, in order.
    pub promotions: Vec<String>,
    pub next_wake: Option<Timestamp>,
}

pub fn canary(analysis: &str) -> Canary {
    canary_with("", analysis)
}

/// `spec` and `analysis` are YAML in flow style, without the outer braces. Without a
/// warm-up, unless the analysis has one.
pub fn canary_with(spec: &str, analysis: &str) -> Canary {
    let warmup = if analysis.contains("warmup") { "" } else { "warmup: 0s, " };
    let comma = if spec.is_empty() { "" } else { "," };
    let text = format!(
        "{{apiVersion: serin.dev/v1alpha1, kind: Canary, metadata: {{name: web, namespace: default}}, \
          spec: {{targetRef: {{apiVersion: apps/v1, kind: Deployment, name: web}}, \
          service: {{port: 80}}, analysis: {{{warmup}{analysis}}}{comma} {spec}}}}}"
    );
    serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

pub fn pods(desired: u32) -> Pods {
    Pods { desired, exist: desired > 0, updated: desired, ready: desired, older: 0 }
}

impl World {
    /// A world in which the Canary was just applied.
    pub fn new(canary: &Canary) -> Self {
        Self {
            plan: Plan::try_from(canary).unwrap_or_else(|refusal| panic!("{refusal}")),
            status: CanaryStatus::default(),
            now: "2025-06-02T08:00:00Z".parse().unwrap(),
            target: Target { revision: "v1-a".to_owned(), pods: pods(3), ..Target::default() },
            target_exists: true,
            primary: None,
            previous: None,
            split: Split::all_primary(),
            route_writer: None,
            refuses: |_| false,
            restored: false,
            deleting: false,
            finalizer: true,
            canary_starts: true,
            primary_starts: true,
            router_applies: true,
            router_splits: true,
            health: Health::Good,
            source_delay: Duration::ZERO,
            closed: BTreeSet::new(),
            unreachable: BTreeSet::new(),
            rollback_gates_open: BTreeSet::new(),
            approvals: BTreeMap::new(),
            answers: Vec::new(),
            measured: None,
            broken_pod: None,
            broken_pod_stays: false,
            deleted_pod: None,
            persisted_replacement: None,
            commands: Vec::new(),
            recorded: 0,
            other_releases: 0,
            release_cap: None,
            clock_stepped_at: None,
            failures: Vec::new(),
            journal: Vec::new(),
            ineffective: Vec::new(),
            promotions: Vec::new(),
            next_wake: None,
        }
    }

    /// A world whose primary runs revision `v1-a`.
    pub fn initialized(canary: &Canary) -> Self {
        let mut world = Self::new(canary);
        world.run();
        assert_eq!(world.status.phase, Phase::Initialized);
        world.journal.clear();
        world.promotions.clear();
        world
    }

    /// One that has just been pushed a new revision.
    pub fn releasing(canary: &Canary) -> Self {
        let mut world = Self::initialized(canary);
        world.push("v1-b");
        world
    }

    /// Changes the pod template. Running pods are replaced by their controller.
    pub fn push(&mut self, revision: &str) {
        self.target.revision = revision.to_owned();
        if self.target.pods.desired > 0 {
            let desired = self.target.pods.desired;
            self.target.pods =
                if self.canary_starts { pods(desired) } else { Pods { ready: 0, ..pods(desired) } };
        }
    }

    pub fn command(&mut self, verb: Verb) {
        let id = format!("c{}", self.commands.len());
        self.commands.push(Command { id, verb, revision: None, by: Some("ann".to_owned()) });
    }

    pub fn pass_time(&mut self, length: Duration) {
        self.now += SignedDuration::try_from(length).unwrap();
    }

    pub fn observe(&self) -> Observed {
        let refused = (self.refuses)(&self.split).then(|| REFUSAL.to_owned());
        Observed {
            provider_evidence: None,
            generation: Some(1),
            deleting: self.deleting,
            target: self.target_exists.then(|| self.target.clone()),
            primary: self.primary.clone(),
            previous: self.previous.clone(),
            split: Some(self.split.clone()).filter(|_| refused.is_none()),
            route: None,
            route_pending: refused.clone(),
            route_refused: refused,
            route_writer: self.route_writer.clone(),
            migrated_from: None,
            deleted_pod: self.deleted_pod.clone(),
            persisted_replacement: self.persisted_replacement.clone(),
            failures: self.failures.clone(),
            routing_restored: self.restored,
            gate_results: self.answers.clone(),
            measurements: self.measured.clone(),
            commands: self.commands.clone(),
            persisted_releases: self.recorded,
            other_releases: self.other_releases,
            release_cap: self.release_cap,
            clock_stepped_at: self.clock_stepped_at,
        }
    }

    /// Decides once, performs everything and records.
    pub fn step(&mut self) -> Decision {
        let decision = decide(&self.plan, &self.status, &self.observe(), self.now);
        for report in &decision.report.preceding {
            self.journal.push(format!("{:?}: {}", decision.status.phase, report.message));
        }
        if decision.report.should_notify {
            self.journal.push(format!("{:?}: {}", decision.status.phase, decision.report.message));
        }
        for action in &decision.actions {
            self.perform(action);
        }
        self.record(&decision);
        decision
    }

    pub fn record(&mut self, decision: &Decision) {
        self.status = decision.status.clone();
        self.recorded = started_releases(&self.status);
        self.persisted_replacement = replaced_pod(&self.status).map(str::to_owned);
        self.next_wake = decision.wake.map(|(at, _)| at);
    }

    /// Steps until nothing more happens at this moment.
    pub fn settle(&mut self) -> Decision {
        for _ in 0..100 {
            let before = (self.status.clone(), self.journal.len());
            let decision = self.step();
            if before == (self.status.clone(), self.journal.len()) {
                return decision;
            }
        }
        panic!("the world does not come to rest:\n{}", self.journal.join("\n"));
    }

    /// Lets time pass, from wake to wake, for as long as anything happens.
    pub fn run(&mut self) {
        self.run_for(Duration::from_secs(7 * 24 * 3600));
    }

    /// Lets this much time pass, unless the release is idle before.
    pub fn run_for(&mut self, length: Duration) {
        let end = self.now + SignedDuration::try_from(length).unwrap();
        for _ in 0..20_000 {
            self.settle();
            match self.next_wake {
                Some(at) if at <= end => self.now = at.max(self.now),
                _ => break,
            }
        }
        if self.next_wake.is_some() {
            self.now = end;
            self.settle();
        }
    }

    /// Runs until the release is in this phase.
    #[track_caller]
    pub fn run_to(&mut self, phase: Phase) {
        self.run_until(|world| world.status.phase == phase);
    }

    /// Runs until the canary has this share of the traffic.
    #[track_caller]
    pub fn run_to_weight(&mut self, percent: f64) {
        let weight = Weight::from_percent(percent).unwrap();
        self.run_until(|world| world.split.canary == weight);
    }

    #[track_caller]
    pub fn run_until(&mut self, reached: impl Fn(&Self) -> bool) {
        for _ in 0..20_000 {
            if reached(self) {
                return;
            }
            let before = (self.status.clone(), self.journal.len());
            self.step();
            if before == (self.status.clone(), self.journal.len()) {
                match self.next_wake {
                    Some(at) => self.now = at.max(self.now),
                    None => break,
                }
            }
        }
        panic!("never reached:\n{}", self.journal.join("\n"));
    }

    /// Performs an action. One without effect, such as a call of a gate that does
    /// not respond, is journaled once.
    pub fn perform(&mut self, action: &Action) {
        let before = self.state();
        self.apply_action(action);
        let futile = before == self.state();
        if !futile || !self.ineffective.contains(action) {
            self.journal.push(format!("    {}", describe_action(action)));
        }
        if futile {
            self.ineffective.push(action.clone());
        } else {
            self.ineffective.clear();
        }
    }

    fn state(&self) -> (Observed, bool) {
        (self.observe(), self.finalizer)
    }

    fn apply_action(&mut self, action: &Action) {
        match action {
            Action::CreatePrimary { revision } => {
                if self.target.revision == *revision {
                    let desired = self.target.pods.desired.max(1);
                    self.write_primary(revision, desired);
                }
            }
            Action::ScaleCanary { replicas } => {
                self.target.pods = match self.canary_starts {
                    true => pods(*replicas),
                    false => Pods { ready: 0, ..pods(*replicas) },
                };
            }
            Action::ScaleDownCanary { after } => {
                self.target.pods = pods(0);
                self.target.scaled_down_after = Some(*after);
            }
            Action::ReplacePod { pod } => {
                self.deleted_pod = Some(pod.clone());
                self.broken_pod.take_if(|_| !self.broken_pod_stays);
            }
            Action::PinPrimary => self.with_primary(|primary| primary.pinned = true),
            Action::UnpinPrimary => self.with_primary(|primary| primary.pinned = false),
            Action::Route(split) => {
                if self.router_applies {
                    self.split = split.clone();
                }
            }
            Action::CallGate(question) => self.answer(question),
            Action::Measure(look) => self.measure(look),
            Action::KeepPrevious { revision } => {
                let running = self.primary.as_ref().and_then(|primary| primary.revision.clone());
                if running.as_ref() == Some(revision) {
                    self.previous = Some(Previous { revision: revision.clone(), pods: pods(3) });
                }
            }
            Action::DropPrevious => self.previous = None,
            // The world has one route.
            Action::MigrateRoute { .. } => {}
            Action::Promote { revision } => {
                if self.target.revision == *revision {
                    let desired = self.primary.as_ref().map_or(3, |primary| primary.pods.desired);
                    self.write_primary(revision, desired);
                    self.promotions.push(revision.clone());
                }
            }
            Action::ScalePrimary { replicas } => {
                let starts = self.primary_starts;
                self.with_primary(|primary| {
                    primary.pods = match starts {
                        true => pods(*replicas),
                        false => Pods { desired: *replicas, ..primary.pods },
                    };
                });
            }
            Action::RestorePrimary { revision, replicas } => {
                let present = self.primary.as_ref().map(|primary| primary.pods.desired);
                let is_new = present.is_none();
                self.write_primary(revision, present.or(*replicas).unwrap_or(3));
                if is_new && !self.primary_starts {
                    self.with_primary(|primary| primary.pods.ready = 0);
                }
            }
            Action::RestoreRouting => self.restored = true,
            Action::RemoveFinalizer => self.finalizer = false,
        }
    }

    fn write_primary(&mut self, revision: &str, desired: u32) {
        let already =
            self.primary.as_ref().is_some_and(|primary| primary.revision.as_deref() == Some(revision));
        if already {
            return;
        }
        let Primary { pinned, max_replicas, name, .. } = self.primary.clone().unwrap_or_default();
        // A rollout that does not start leaves the old pods serving.
        let stuck = Pods { desired, exist: true, updated: 1, ready: desired, older: desired };
        self.primary = Some(Primary {
            name,
            trouble: None,
            revision: Some(revision.to_owned()),
            pods: if self.primary_starts { pods(desired) } else { stuck },
            pinned,
            max_replicas,
        });
    }

    fn with_primary(&mut self, change: impl FnOnce(&mut Primary)) {
        if let Some(primary) = &mut self.primary {
            change(primary);
        }
    }

    pub fn answer(&mut self, question: &GateCall) {
        let name = &question.gate;
        let reply = if question.kind.is_none() {
            match self.approvals.get(name) {
                Some(true) => GateReply::Yes { by: Some("ann".to_owned()) },
                Some(false) => GateReply::No { by: Some("ann".to_owned()), why: "not today".to_owned() },
                None => return,
            }
        } else if self.unreachable.contains(name) {
            GateReply::Unreachable { why: "timed out".to_owned() }
        } else if question.kind == Some(serin::api::canary::HookType::Rollback) {
            match self.rollback_gates_open.contains(name) {
                true => GateReply::Yes { by: None },
                false => GateReply::No { by: None, why: "all quiet".to_owned() },
            }
        } else if self.closed.contains(name) {
            GateReply::No { by: None, why: "closed".to_owned() }
        } else {
            GateReply::Yes { by: None }
        };
        let from = if question.kind.is_none() { Respondent::Person } else { Respondent::Webhook };
        self.answers.push(GateResult { call: question.clone(), reply, from, at: self.now });
        // Old gate results are kept for a while, as in a controller.
        if self.answers.len() > 32 {
            self.answers.remove(0);
        }
    }

    pub fn measure(&mut self, look: &Check) {
        let counts = |bad: u64, total: u64| Counts::of_bad(bad, total);
        // As many as the split leaves it beside the canary's two hundred.
        let share = if self.router_splits { self.split.canary.percent() / 100.0 } else { 0.5 };
        let others = if share > 0.0 && share < 1.0 { (200.0 * (1.0 - share) / share) as u64 } else { 800 };
        let primary = counts(others / 200, others);
        let value = |metric: &str| match (self.health, metric) {
            (Health::NoData, _) => Measurement::NoData,
            (Health::Unavailable, _) => Measurement::Unavailable { why: "connection refused".to_owned() },
            (Health::FewRequests, "errors") => Measurement::Scalar(0.0),
            (Health::Good, "errors") => Measurement::Scalar(0.1),
            (Health::Bad | Health::Broken, "errors") => Measurement::Scalar(7.5),
            (health, "ranks" | "more ranks") => {
                let points = |shift: f64| (0..60).map(|i| f64::from(i % 20) + shift).collect();
                let shift = if matches!(health, Health::Bad | Health::Broken) { 15.0 } else { 0.0 };
                Measurement::Samples(Arms { canary: points(shift), primary: points(0.0) })
            }
            (Health::Good, _) if self.broken_pod.is_some() => {
                let canary = (0..4).map(|i| (format!("canary-{i}"), counts(0, 40)));
                let broken = self.broken_pod.clone().map(|pod| (pod, counts(32, 40)));
                let each = |i: u64| (format!("primary-{i}"), counts(primary.bad() / 4, primary.total() / 4));
                Measurement::by_pod(Arms {
                    canary: canary.chain(broken).collect(),
                    primary: (0..4).map(each).collect(),
                })
            }
            (health, _) => Measurement::Counts(match health {
                Health::Bad => Arms { canary: counts(60, 200), primary },
                Health::Broken if share == 1.0 => Arms { canary: counts(200, 200), primary: counts(0, 0) },
                Health::Broken => Arms { canary: counts(200, 200), primary },
                Health::Silent => Arms { canary: counts(0, 0), primary },
                Health::FewRequests => Arms { canary: counts(0, 2), primary: counts(0, 2) },
                _ => Arms { canary: counts(1, 200), primary },
            }),
        };
        let known = |asked: &MetricWindow| (self.now - self.source_delay).max(asked.since);
        let result = |asked: &MetricWindow| match self.source_delay.is_zero() || known(asked) > asked.since {
            true => value(&asked.metric),
            false => Measurement::NoData,
        };
        let results = look.metrics.iter().map(|asked| (asked.metric.clone(), result(asked))).collect();
        let late = look.metrics.iter().filter(|_| !self.source_delay.is_zero());
        let available_until = late.map(|asked| (asked.metric.clone(), known(asked))).collect();
        self.measured = Some(CheckMeasurements {
            check: look.clone(),
            at: self.now,
            available_until,
            known_until: BTreeMap::new(),
            results,
        });
    }
}

/// An action in a few words.
pub fn describe_action(action: &Action) -> String {
    match action {
        Action::CreatePrimary { revision } => format!("create primary {revision}"),
        Action::ScaleCanary { replicas } => format!("scale canary to {replicas}"),
        Action::ScaleDownCanary { after } => format!("empty canary after release {after}"),
        Action::ReplacePod { pod } => format!("replace pod {pod}"),
        Action::PinPrimary => "pin primary".to_owned(),
        Action::UnpinPrimary => "unpin primary".to_owned(),
        Action::Route(Split { canary, matches, mirror, stable }) => {
            let matched = if matches.is_empty() { "" } else { ", matched requests" };
            let mirrored =
                if *mirror > Weight::ZERO { format!(", mirror {mirror} %") } else { String::new() };
            let previous = if *stable == Stable::Previous { ", rest to the version before" } else { "" };
            format!("route {canary} %{matched}{mirrored}{previous}")
        }
        Action::CallGate(question) => format!("ask {}", question.gate),
        Action::Measure(look) => {
            let names: Vec<_> = look.metrics.iter().map(|asked| asked.metric.as_str()).collect();
            format!("measure {}", names.join(", "))
        }
        Action::KeepPrevious { revision } => format!("keep {revision} warm"),
        Action::DropPrevious => "let the version before go".to_owned(),
        Action::Promote { revision } => format!("promote {revision}"),
        Action::ScalePrimary { replicas } => format!("scale primary to {replicas}"),
        Action::RestorePrimary { revision, .. } => format!("restore primary {revision}"),
        Action::MigrateRoute { from } => format!("migrate route from {}", from.service),
        Action::RestoreRouting => "restore routing".to_owned(),
        Action::RemoveFinalizer => "remove finalizer".to_owned(),
    }
}
