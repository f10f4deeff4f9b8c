//! What a judge says after a look.

use serde::{Deserialize, Serialize};

use super::measurement::{Arms, Measurement};

/// A judgement with the numbers behind it and one message for people.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Verdict {
    #[serde(flatten)]
    pub outcome: JudgeOutcome,
    /// What was judged, and between which bounds it lies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub estimate: Option<Estimate>,
    /// Requests, or points, behind the verdict.
    pub samples: Arms<u64>,
    pub message: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "camelCase")]
pub enum JudgeOutcome {
    /// Enough was seen and nothing speaks against the canary. `certified`: more
    /// than that, it was shown to be within the margin.
    Pass { non_inferior: bool },
    /// The evidence is against the canary. `critical`: so much that a single
    /// verdict is enough.
    Fail { critical: bool },
    /// Neither; this look does not count, and `doubt` says why.
    Inconclusive { reason: InconclusiveReason },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum InconclusiveReason {
    /// The provider had nothing to tell.
    NoData,
    /// The provider did not answer.
    Unavailable,
    /// There was traffic, but too little of it.
    TooFewSamples,
    /// Something speaks against the canary, and not enough to convict it.
    Suspected,
    /// The judge was handed a kind of measurement it cannot judge.
    WrongMeasurementKind,
}

/// A value and the interval it lies in; an open end is a bound not yet known.
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
    /// A value known as it is.
    pub fn exact(value: f64) -> Self {
        Estimate { value, low: Some(value), high: Some(value) }
    }
}

impl Verdict {
    pub(crate) fn inconclusive(
        doubt: InconclusiveReason,
        samples: Arms<u64>,
        message: impl Into<String>,
    ) -> Self {
        Verdict {
            outcome: JudgeOutcome::Inconclusive { reason: doubt },
            estimate: None,
            samples,
            message: message.into(),
        }
    }

    pub(crate) fn no_data() -> Self {
        Self::inconclusive(
            InconclusiveReason::NoData,
            Arms::default(),
            "no data: the query has no answer, as when there is no traffic",
        )
    }

    pub(crate) fn unavailable(why: &str) -> Self {
        Self::inconclusive(InconclusiveReason::Unavailable, Arms::default(), format!("not measured: {why}"))
    }

    /// For a judge that needs something else than what was measured. Absence
    /// keeps its own meaning.
    pub(crate) fn wrong_measurement_kind(needs: &str, seen: &Measurement) -> Self {
        let got = match seen {
            Measurement::NoData => return Self::no_data(),
            Measurement::Unavailable { why } => return Self::unavailable(why),
            Measurement::Scalar(_) => "a single value",
            Measurement::Counts(_) => "counts",
            Measurement::Histogram(_) => "a histogram",
            Measurement::Samples(_) => "samples",
        };
        Self::inconclusive(
            InconclusiveReason::WrongMeasurementKind,
            Arms::default(),
            format!("not judged: this judge needs {needs} and got {got}"),
        )
    }
}
