//! The metrics that need no query, as load balancers and App Mesh's Envoys
//! send them.
//!
//! Requests and bad requests are sums, and durations are sent one by one, so
//! that both can be counted.

use std::collections::BTreeMap;

use crate::{
    analysis::measurement::Arms,
    api::{
        cloudwatch::{CloudWatchBuiltIn, CloudWatchMetric},
        judge::JudgeType,
    },
    metrics::{CountQueries, CountedPart, Query, builtin::BuiltIn, metric_query::QueryError, template::Arm},
};

/// What one kind of sender calls its metrics.
#[derive(Clone, Copy, Debug)]
pub struct BuiltinMetricNames {
    namespace: &'static str,
    requests: &'static str,
    errors: &'static str,
    durations: &'static str,
    /// How many of its units of time are a second.
    per_second: u32,
}

const TARGET_GROUPS: BuiltinMetricNames = BuiltinMetricNames {
    namespace: "AWS/ApplicationELB",
    requests: "RequestCount",
    errors: "HTTPCode_Target_5XX_Count",
    durations: "TargetResponseTime",
    per_second: 1,
};

/// With APPMESH_METRIC_EXTENSION_VERSION=1, by way of Amazon's agent. Exactly the
/// dimensions that it sends have to be named.
const APP_MESH: BuiltinMetricNames = BuiltinMetricNames {
    namespace: "CWAgent",
    requests: "envoy.appmesh.RequestCountPerTarget",
    errors: "envoy.appmesh.HTTPCode_Target_5XX_Count",
    durations: "envoy.appmesh.TargetResponseTime",
    per_second: 1000,
};

impl BuiltinMetricNames {
    pub fn of(known: CloudWatchBuiltIn) -> Self {
        match known {
            CloudWatchBuiltIn::TargetGroups => TARGET_GROUPS,
            CloudWatchBuiltIn::AppMesh => APP_MESH,
        }
    }

    pub fn namespace(&self) -> Option<String> {
        Some(self.namespace.to_owned())
    }

    pub fn metrics(&self) -> BTreeMap<String, CloudWatchMetric> {
        let metric = |name: &str, statistic: &str| CloudWatchMetric {
            name: name.to_owned(),
            statistic: Some(statistic.to_owned()),
            ..CloudWatchMetric::default()
        };
        [
            ("requests", metric(self.requests, "Sum")),
            ("errors", metric(self.errors, "Sum")),
            ("durations", metric(self.durations, "SampleCount")),
            ("slow", metric(self.durations, "p99")),
        ]
        .map(|(id, metric)| (id.to_owned(), metric))
        .into()
    }

    /// The query in the form that a judge wants, each text of which `written`
    /// makes a list of.
    pub fn query(
        &self,
        of: BuiltIn,
        judge: JudgeType,
        written: impl Fn(&str, Arm) -> Result<String, QueryError>,
    ) -> Result<Query, QueryError> {
        let both = |text: &str| {
            Ok::<_, QueryError>(Arms {
                canary: written(text, Arm::Canary)?,
                primary: written(text, Arm::Primary)?,
            })
        };
        let slow = format!("{} * slow", 1000 / self.per_second);
        let durations = format!("durations / {}", self.per_second);
        Ok(match (of, judge) {
            (BuiltIn::SuccessRate, JudgeType::Threshold | JudgeType::Sequential) => {
                let (errors, requests) = (both("errors")?, both("requests")?);
                let arm = |bad, total| CountQueries { part: CountedPart::Bad(bad), total };
                Query::Counts(Arms {
                    canary: arm(errors.canary, requests.canary),
                    primary: arm(errors.primary, requests.primary),
                })
            }
            (BuiltIn::SuccessRate, JudgeType::MannWhitney) => {
                Query::Samples(both("100 - 100 * FILL(errors, 0) / requests")?)
            }
            (BuiltIn::Duration, JudgeType::Sequential) => Query::Histogram(both(&durations)?),
            (BuiltIn::Duration, JudgeType::Threshold) => Query::Scalar(written(&slow, Arm::Canary)?),
            (BuiltIn::Duration, JudgeType::MannWhitney) => Query::Samples(both(&slow)?),
        })
    }
}
