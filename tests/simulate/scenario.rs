//! The scenario of a seed: Canaries, user events and faults.

use std::time::Duration;

use jiff::SignedDuration;
use kube_local::faults::FaultPlan;
use serde_json::Value;
use serin::api::canary::Phase;
use serin::engine::command::Verb;

use super::dice::Dice;
use super::letters::{environment_events, fault_events, user_events};
use super::refusals::PlannedRefusal;
use super::specs::subject;
use super::trouble::add_trouble;

/// The time of user events and faults.
pub const ACTIVE_PERIOD: Duration = Duration::from_secs(15 * 60);

pub struct Scenario {
    pub canaries: Vec<CanarySetup>,
    /// In the order of time.
    pub events: Vec<(Duration, Event)>,
    /// Two replicas share the work by a Lease.
    pub replicas: bool,
}

/// One Canary and what it releases.
pub struct CanarySetup {
    pub name: &'static str,
    pub kind: &'static str,
    pub replicas: u32,
    pub reads_config: bool,
    pub has_autoscaler: bool,
    pub has_budget: bool,
    /// A metric refers to an AnalysisTemplate.
    pub has_template: bool,
    /// Pods are replaced one after the other.
    pub rolls_one_by_one: bool,
    pub spec: Value,
    /// Requests a second.
    pub rate: f64,
    /// Of a load test, straight to the canary.
    pub direct_rate: f64,
}

#[derive(Clone, Debug)]
pub enum Event {
    Push {
        on: usize,
        image: String,
    },
    /// A value may name a behaviour, as an image tag does.
    EditConfig {
        on: usize,
        value: String,
    },
    Edit {
        on: usize,
        spec: Value,
    },
    Command {
        on: usize,
        verb: Verb,
    },
    /// Answers the pending approvals.
    Answer {
        on: usize,
        yes: bool,
    },
    Delete {
        on: usize,
    },
    Create {
        on: usize,
    },
    Scale {
        on: usize,
        primary: bool,
        replicas: u32,
    },
    KillPods {
        on: usize,
        primary: bool,
        all: bool,
    },
    Traffic {
        on: usize,
        rate: f64,
    },
    Metrics {
        on: usize,
        mode: Metrics,
    },
    Gate {
        on: usize,
        hook: &'static str,
        mode: Gate,
    },
    Faults(FaultPlan),
    /// Ends the controller, gently or not, and starts another after a while.
    /// Of two replicas maybe only one.
    Restart {
        gently: bool,
        after: Duration,
        both: bool,
    },
    /// One of two replicas is frozen.
    Freeze {
        which: usize,
        length: Duration,
    },
    /// Requests of the controller are refused from now on.
    Refuse(PlannedRefusal),
    /// The refusal of this number ends.
    Allow(u32),
    /// Deletes an object that a Canary depends on.
    Lose {
        on: usize,
        what: Dependency,
    },
    /// Creates it again.
    Restore {
        on: usize,
        what: Dependency,
    },
    /// Deletes the target and creates it again, as a chart with another immutable
    /// selector does.
    RecreateTarget {
        on: usize,
        after: Duration,
        /// Replaces the additional label of the selector.
        label: Option<ExtraLabel>,
    },
    /// Somebody else's tool sets the target's replicas again and again.
    RevertReplicas {
        on: usize,
        replicas: u32,
        every: Duration,
        times: u32,
    },
    /// Somebody else's tool routes everything to the primary again and again.
    RevertRoute {
        on: usize,
        every: Duration,
        times: u32,
    },
    /// The target's pods die, if their image dies under traffic and they have some.
    DieUnderTraffic {
        on: usize,
    },
    /// The wall clock of all machines is stepped, as by NTP.
    StepClock(SignedDuration),
    /// An event that follows once the Canary is in a phase.
    When {
        on: usize,
        phases: &'static [Phase],
        after: Duration,
        then: Box<Event>,
    },
}

/// A label of a target's selector, besides `app`.
pub type ExtraLabel = (&'static str, &'static str);

/// An object that a Canary depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dependency {
    Autoscaler,
    Budget,
    Template,
    Primary,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Metrics {
    #[default]
    Available,
    Gone,
    Hanging,
    Garbage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    Yes,
    No,
    Slow(Duration),
    Unreachable,
}

impl Scenario {
    pub fn of(seed: u64) -> Self {
        let dice = Dice::of(seed);
        let count = dice.pick(&[1, 1, 1, 2, 2, 3]);
        let subjects: Vec<_> =
            ["web", "shop", "mail"][..count].iter().map(|name| subject(&dice, name)).collect();
        let replicas = dice.happens(0.25);
        let mut scenario = Self { canaries: subjects, events: Vec::new(), replicas };
        for (on, subject) in scenario.canaries.iter().enumerate() {
            user_events(&dice, on, subject, &mut scenario.events);
            environment_events(&dice, on, subject, &mut scenario.events);
        }
        fault_events(&dice, replicas, &mut scenario.events);
        add_trouble(seed, &mut scenario);
        scenario.events.sort_by_key(|(at, _)| *at);
        scenario
    }
}
