//! The built-in metrics, as published by load balancers and App Mesh's Envoys.
//!
//! Requests and errors are sums, and durations are published per request, so that
//! both can be counted.

use std::collections::BTreeMap;

use crate::{
    analysis::measurement::Arms,
    api::{
        cloudwatch::{CloudWatchBuiltIn, CloudWatchMetric},
        judge::JudgeType,
    },
    metrics::{CountQueries, CountedPart, Query, builtin::BuiltIn, metric_query::QueryError, template::Arm},
};

#[derive(Clone, Copy, Debug)]
pub struct BuiltinMetricNames {
    namespace: &'static str,
    requests: &'static str,
    errors: &'static str,
    durations: &'static str,
    /// Units of `durations` per second.
    per_second: u32,
}

const TARGET_GROUPS: BuiltinMetricNames = BuiltinMetricNames {
    namespace: "AWS/ApplicationELB",
    requests: "RequestCount",
    errors: "HTTPCode_Target_5XX_Count",
    durations: "TargetResponseTime",
    per_second: 1,
};

/// With APPMESH_METRIC_EXTENSION_VERSION=1, published by the CloudWatch agent.
/// Queries must have exactly its dimensions.
const APP_MESH: BuiltinMetricNames = BuiltinMetricNames {
    namespace: "CWAgent",
    requests: "envoy.appmesh.RequestCountPerTarget",
    errors: "envoy.appmesh.HTTPCode_Target_5XX_Count",
    durations: "envoy.appmesh.TargetResponseTime",
    per_second: 1000,
};

impl BuiltinMetricNames {
    pub fn of(publisher: CloudWatchBuiltIn) -> Self {
        match publisher {
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

    /// In the form that the judge needs; `compile` makes a query set of an
    /// expression.
    pub fn query(
        &self,
        metric: BuiltIn,
        judge: JudgeType,
        compile: impl Fn(&str, Arm) -> Result<String, QueryError>,
    ) -> Result<Query, QueryError> {
        let both = |text: &str| {
            Ok::<_, QueryError>(Arms {
                canary: compile(text, Arm::Canary)?,
                primary: compile(text, Arm::Primary)?,
            })
        };
        let slow = format!("{} * slow", 1000 / self.per_second);
        let durations = format!("durations / {}", self.per_second);
        Ok(match (metric, judge) {
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
            (BuiltIn::Duration, JudgeType::Threshold) => Query::Scalar(compile(&slow, Arm::Canary)?),
            (BuiltIn::Duration, JudgeType::MannWhitney) => Query::Samples(both(&slow)?),
        })
    }
}
