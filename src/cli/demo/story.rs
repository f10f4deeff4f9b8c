//! The three releases and how each should end, and what is told of those that
//! have ended.

use std::time::Duration;

use serde_json::{Value, json};

use super::load::Tally;
use crate::api::Weight;
use crate::api::canary::status::Outcome;

/// One release.
pub struct Release {
    pub version: &'static str,
    /// The tag of its image, which says how it behaves.
    pub tag: &'static str,
    /// What there is to know about it.
    pub promise: &'static str,
    pub should: Outcome,
}

pub const RELEASES: [Release; 3] = [
    Release {
        version: "v2",
        tag: "v2",
        promise: "is healthy and should be promoted",
        should: Outcome::Promoted,
    },
    Release {
        version: "v3",
        tag: "v3-errors-2",
        promise: "fails 2 % of its requests and should be rolled back",
        should: Outcome::RolledBack,
    },
    Release {
        version: "v4",
        tag: "v4-slow",
        promise: "is slow, with a p99 of 800 ms, and should be rolled back",
        should: Outcome::RolledBack,
    },
];

/// A release that is over.
pub struct Ended {
    pub version: &'static str,
    pub outcome: Outcome,
    pub as_it_should: bool,
    pub reason: String,
    pub steps: Vec<Step>,
    /// What customers saw meanwhile, of both arms.
    pub seen: Tally,
    pub took: Duration,
}

/// The canary got another share of the traffic.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    pub weight: Weight,
    /// Since the image was changed.
    pub at: Duration,
}

impl Ended {
    pub fn json(&self) -> Value {
        let seconds = |time: Duration| (time.as_secs_f64() * 10.0).round() / 10.0;
        let steps = self.steps.iter().map(|step| json!({"weight": step.weight, "at": seconds(step.at)}));
        json!({
            "release": self.version,
            "outcome": match self.outcome {
                Outcome::Promoted => "promoted",
                Outcome::RolledBack => "rolledBack",
                Outcome::Aborted => "aborted",
                Outcome::Superseded => "superseded",
            },
            "reason": self.reason,
            "steps": steps.collect::<Vec<_>>(),
            "requests": self.seen.requests,
            "badRequests": self.seen.bad,
            "seconds": seconds(self.took),
        })
    }
}
