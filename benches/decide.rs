//! What a decision costs.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serin::{
    analysis::measurement::{Arms, Counts, Measurement},
    api::{
        Canary,
        canary::{CanaryStatus, Phase},
    },
    engine::{
        Action, Observed, Plan,
        action::Split,
        decide,
        observed::{CheckMeasurements, Pods, Primary, Target},
    },
};

fn main() {
    divan::main();
}

/// Ten steps, a threshold on latency and a comparison of error rates.
fn plan() -> Plan {
    let canary: Canary = serde_json::from_value(serde_json::json!({
        "apiVersion": "serin.dev/v1alpha1", "kind": "Canary", "metadata": { "name": "web" },
        "spec": {
            "targetRef": { "apiVersion": "apps/v1", "kind": "Deployment", "name": "web" },
            "service": { "port": 80 },
            "analysis": {
                "interval": "10s", "threshold": 5, "stepWeight": 10,
                "metrics": [
                    { "name": "request-success-rate" },
                    { "name": "request-duration", "thresholdRange": { "max": 500 } },
                ],
            },
        },
    }))
    .expect("a Canary");
    Plan::try_from(&canary).expect("a plan")
}

/// A world that does at once what it is told.
struct World {
    plan: Plan,
    status: CanaryStatus,
    seen: Observed,
    now: Timestamp,
}

impl World {
    fn releasing(plan: &Plan) -> Self {
        let ready = Pods { desired: 3, exist: true, updated: 3, ready: 3, older: 0 };
        let mut world = Self {
            plan: plan.clone(),
            status: CanaryStatus::default(),
            seen: Observed {
                generation: Some(1),
                target: Some(Target { revision: "v1-a".into(), pods: ready, ..Target::default() }),
                primary: Some(Primary { revision: Some("v1-a".into()), pods: ready, ..Primary::default() }),
                split: Some(Split::all_primary()),
                ..Observed::default()
            },
            now: Timestamp::UNIX_EPOCH,
        };
        world.run_to(Phase::Initialized);
        if let Some(target) = &mut world.seen.target {
            target.revision = "v1-b".into();
        }
        world
    }

    fn run_to(&mut self, phase: Phase) {
        while self.status.phase != phase {
            self.step();
        }
    }

    fn step(&mut self) {
        let decision = decide(&self.plan, &self.status, &self.seen, self.now);
        if decision.actions.is_empty()
            && let Some((at, _)) = decision.wake
        {
            self.now = at.max(self.now);
        }
        for action in decision.actions {
            self.perform(action);
        }
        self.status = decision.status;
    }

    fn perform(&mut self, action: Action) {
        let all = |desired| Pods { desired, exist: desired > 0, updated: desired, ready: desired, older: 0 };
        match action {
            Action::ScaleCanary { replicas } => {
                if let Some(target) = &mut self.seen.target {
                    target.pods = all(replicas);
                }
            }
            Action::ScaleDownCanary { after } => {
                if let Some(target) = &mut self.seen.target {
                    (target.pods, target.scaled_down_after) = (all(0), Some(after));
                }
            }
            Action::Route(split) => self.seen.split = Some(split),
            Action::PinPrimary | Action::UnpinPrimary => {
                if let Some(primary) = &mut self.seen.primary {
                    primary.pinned = action == Action::PinPrimary;
                }
            }
            Action::Promote { revision } => {
                if let Some(primary) = &mut self.seen.primary {
                    primary.revision = Some(revision);
                }
            }
            Action::Measure(look) => {
                let counts = Arms { canary: Counts::of_bad(1, 200), primary: Counts::of_bad(4, 800) };
                let results = BTreeMap::from([
                    ("request-success-rate".to_owned(), Measurement::Counts(counts)),
                    ("request-duration".to_owned(), Measurement::Scalar(120.0)),
                ]);
                self.seen.measurements = Some(CheckMeasurements {
                    check: look,
                    at: self.now,
                    known_until: Default::default(),
                    available_until: BTreeMap::new(),
                    results,
                });
            }
            _ => {}
        }
    }
}

/// In the middle of a step, between two looks: what most decisions are.
#[divan::bench]
fn a_typical_decision(bencher: divan::Bencher<'_, '_>) {
    let mut world = World::releasing(&plan());
    while world.status.canary_weight.percent() < 50.0 {
        world.step();
    }
    let began = world.now;
    world.step();
    world.now = began + jiff::SignedDuration::from_secs(5);
    let decision = decide(&world.plan, &world.status, &world.seen, world.now);
    assert_eq!((decision.actions.len(), decision.report.reason.code()), (0, "Analyzing"));
    bencher.bench_local(|| decide(&world.plan, &world.status, &world.seen, world.now));
}

/// The one that takes in a look, judges it and moves on.
#[divan::bench]
fn a_decision_with_a_verdict(bencher: divan::Bencher<'_, '_>) {
    let mut world = World::releasing(&plan());
    while world.status.canary_weight.percent() < 50.0 {
        world.step();
    }
    while world.seen.measurements.as_ref().is_none_or(|measured| measured.check.step < 4) {
        world.step();
    }
    let decision = decide(&world.plan, &world.status, &world.seen, world.now);
    assert_eq!(decision.status.canary_weight.percent(), 60.0);
    bencher.bench_local(|| decide(&world.plan, &world.status, &world.seen, world.now));
}

/// Between releases, with nothing to do.
#[divan::bench]
fn an_idle_decision(bencher: divan::Bencher<'_, '_>) {
    let mut world = World::releasing(&plan());
    world.run_to(Phase::Succeeded);
    for _ in 0..3 {
        world.step();
    }
    bencher.bench_local(|| decide(&world.plan, &world.status, &world.seen, world.now));
}

/// From the push to the promotion, every decision of it.
#[divan::bench]
fn a_release_of_ten_steps(bencher: divan::Bencher<'_, '_>) {
    let mut world = World::releasing(&plan());
    let mut moments = Vec::new();
    while world.status.phase != Phase::Succeeded {
        moments.push((world.status.clone(), world.seen.clone(), world.now));
        world.step();
    }
    let steps: Vec<_> = moments.iter().filter_map(|(status, ..)| Some(status.step.as_ref()?.index)).collect();
    assert_eq!(steps.last(), Some(&9));
    bencher.bench_local(|| {
        for (status, seen, now) in &moments {
            divan::black_box(decide(&world.plan, status, seen, *now));
        }
    });
}

/// A spec read and understood, as at each edit of a Canary.
#[divan::bench]
fn a_plan(bencher: divan::Bencher<'_, '_>) {
    bencher.bench_local(plan);
}
