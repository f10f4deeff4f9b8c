//! The three releases with their expected outcomes, and the results of those
//! that have ended.

use std::time::Duration;

use serde::{Serialize, Serializer};

use super::load::RequestTotals;
use crate::api::Weight;
use crate::api::canary::status::Outcome;

pub struct Release {
    pub version: &'static str,
    /// Of its image; selects how the pods behave.
    pub tag: &'static str,
    pub description: &'static str,
    pub expected_outcome: Outcome,
}

pub const RELEASES: [Release; 3] = [
    Release {
        version: "v2",
        tag: "v2",
        description: "is healthy and should be promoted",
        expected_outcome: Outcome::Promoted,
    },
    Release {
        version: "v3",
        tag: "v3-errors-2",
        description: "fails 2 % of its requests and should be rolled back",
        expected_outcome: Outcome::RolledBack,
    },
    Release {
        version: "v4",
        tag: "v4-slow",
        description: "is slow, with a p99 of 800 ms, and should be rolled back",
        expected_outcome: Outcome::RolledBack,
    },
];

/// A release that has ended.
pub struct ReleaseResult {
    pub version: &'static str,
    pub outcome: Outcome,
    pub as_expected: bool,
    pub reason: String,
    pub steps: Vec<WeightChange>,
    /// Of both arms, during the release.
    pub totals: RequestTotals,
    pub duration: Duration,
}

/// A new weight of the canary.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct WeightChange {
    pub weight: Weight,
    /// Since the image was changed.
    #[serde(serialize_with = "in_seconds")]
    pub at: Duration,
}

impl ReleaseResult {
    /// One object on one line, for scripts.
    pub fn json(&self) -> serde_json::Result<String> {
        serde_json::to_string(&ReleaseResultJson {
            release: self.version,
            outcome: match self.outcome {
                Outcome::Promoted => "promoted",
                Outcome::RolledBack => "rolledBack",
                Outcome::Aborted => "aborted",
                Outcome::Superseded => "superseded",
            },
            reason: &self.reason,
            steps: &self.steps,
            requests: self.totals.requests,
            failed_requests: self.totals.failed,
            bad_requests: self.totals.bad,
            seconds: self.duration,
        })
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ReleaseResultJson<'a> {
    release: &'a str,
    outcome: &'a str,
    reason: &'a str,
    steps: &'a [WeightChange],
    requests: u64,
    failed_requests: u64,
    bad_requests: u64,
    #[serde(serialize_with = "in_seconds")]
    seconds: Duration,
}

/// To a tenth.
fn in_seconds<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64((time.as_secs_f64() * 10.0).round() / 10.0)
}
