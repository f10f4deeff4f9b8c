//! The verdict of a judge after a look.

use serde::{Deserialize, Serialize};

use super::measurement::{Arms, Measurement};

/// An outcome with the numbers behind it and a message.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Verdict {
    #[serde(flatten)]
    pub outcome: JudgeOutcome,
    /// The judged value and its interval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub estimate: Option<Estimate>,
    /// Requests, or points, behind the verdict.
    pub samples: Arms<u64>,
    pub message: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "camelCase")]
pub enum JudgeOutcome {
    /// Enough data and no evidence against the canary. `non_inferior`: moreover,
    /// it was shown to be within the margin.
    Pass { non_inferior: bool },
    /// Evidence against the canary. `critical`: a single such verdict is enough.
    Fail { critical: bool },
    /// The canary's value is beyond its absolute limit and the primary's is not: one
    /// failed check.
    BeyondLimit,
    /// Neither; this look does not count.
    Inconclusive { reason: InconclusiveReason },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum InconclusiveReason {
    /// The provider has no data.
    NoData,
    /// The provider could not be reached.
    Unavailable,
    /// There was traffic, but too little of it.
    TooFewSamples,
    /// Some evidence against the canary, but not enough to fail it.
    Suspected,
    /// The primary is broken too, or far from its usual self.
    Incident,
    /// The pods of the canary are young.
    WarmingUp,
    /// The judge got a kind of measurement that it cannot judge.
    WrongMeasurementKind,
}

/// A value and its interval; a bound that is none is not known yet.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Estimate {
    pub value: f64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub low: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub high: Option<f64>,
}

impl Estimate {
    /// A value without uncertainty.
    pub fn exact(value: f64) -> Self {
        Estimate { value, low: Some(value), high: Some(value) }
    }
}

impl Verdict {
    pub(crate) fn inconclusive(
        reason: InconclusiveReason,
        samples: Arms<u64>,
        message: impl Into<String>,
    ) -> Self {
        Verdict {
            outcome: JudgeOutcome::Inconclusive { reason },
            estimate: None,
            samples,
            message: message.into(),
        }
    }

    pub(crate) fn no_data() -> Self {
        Self::inconclusive(
            InconclusiveReason::NoData,
            Arms::default(),
            "no data: the query returned nothing, as when there is no traffic",
        )
    }

    pub(crate) fn unavailable(why: &str) -> Self {
        Self::inconclusive(InconclusiveReason::Unavailable, Arms::default(), format!("not measured: {why}"))
    }

    /// For a judge that needs another kind of measurement. A missing one keeps
    /// its own reason.
    pub(crate) fn wrong_measurement_kind(needs: &str, measurement: &Measurement) -> Self {
        let got = match measurement {
            Measurement::NoData => return Self::no_data(),
            Measurement::Unavailable { why } => return Self::unavailable(why),
            Measurement::Scalar(_) => "a single value",
            Measurement::Counts(_) | Measurement::PodCounts(_) => "counts",
            Measurement::Histogram(_) | Measurement::PodHistograms(_) => "a histogram",
            Measurement::Values(_) => "a histogram of values",
            Measurement::Samples(_) => "samples",
        };
        Self::inconclusive(
            InconclusiveReason::WrongMeasurementKind,
            Arms::default(),
            format!("not judged: this judge needs {needs} and got {got}"),
        )
    }
}
