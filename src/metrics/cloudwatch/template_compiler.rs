//! Compiles a template to queries: metric math over named metrics, or the JSON
//! list itself, with variables rendered.

use std::collections::BTreeMap;

use super::{
    builtin,
    query::{
        DEFAULT_PERIOD, Dimension, Metric, MetricDataQuery, MetricStat, QuerySet, QuerySetError, identifiers,
        is_id,
    },
};
use crate::{
    api::{
        cloudwatch::{CloudWatch as Spec, CloudWatchMetric},
        judge::JudgeType,
    },
    metrics::{
        Query,
        builtin::BuiltIn,
        metric_query::QueryError,
        template::{Arm, TemplateVars},
    },
};

pub struct TemplateCompiler<'a> {
    /// For messages.
    pub template: &'a str,
    pub spec: Option<&'a Spec>,
    pub vars: &'a TemplateVars,
}

/// Id of the result if it is an expression.
const RESULT_ID: &str = "answer";

/// Metrics by their Ids in expressions.
#[derive(Clone, Copy)]
struct NamedMetrics<'a> {
    /// Namespace, dimensions and period of all of them.
    spec: &'a Spec,
    metrics: &'a BTreeMap<String, CloudWatchMetric>,
}

impl TemplateCompiler<'_> {
    /// The queries of one field for one arm, as JSON.
    pub fn compile(&self, field: &'static str, text: &str, arm: Arm) -> Result<String, QueryError> {
        let rendered = self.vars.render(self.template, field, text, arm)?;
        let named = self.spec.filter(|spec| !spec.metrics.is_empty());
        let query_set = match named.filter(|_| !rendered.trim_start().starts_with('[')) {
            Some(spec) => {
                let metrics = NamedMetrics { spec, metrics: &spec.metrics };
                self.math(metrics, field, rendered.trim(), arm)?
            }
            None => QuerySet::parse(&rendered).map_err(|why| self.query_error(field, why))?,
        };
        Ok(query_set.json())
    }

    /// If the template sets `cloudwatch.builtIn`.
    pub fn compile_built_in(&self, metric: &str, judge: JudgeType) -> Result<Option<Query>, QueryError> {
        let Some((spec, publisher)) = self.spec.and_then(|spec| Some((spec, spec.built_in?))) else {
            return Ok(None);
        };
        let unknown = || QueryError::CloudWatchBuiltIn {
            template: self.template.to_owned(),
            metric: metric.to_owned(),
        };
        let built_in = BuiltIn::from_name(metric).ok_or_else(unknown)?;
        let names = builtin::BuiltinMetricNames::of(publisher);
        let spec = Spec { namespace: spec.namespace.clone().or(names.namespace()), ..spec.clone() };
        let metrics = names.metrics();
        let named = NamedMetrics { spec: &spec, metrics: &metrics };
        let compile = |text: &str, arm| Ok(self.math(named, "cloudwatch", text, arm)?.json());
        let query = names.query(built_in, judge, compile)?;
        match &query {
            Query::Scalar(_) => Ok(Some(query)),
            _ if spec.canary != spec.primary => Ok(Some(query)),
            _ => Err(QueryError::SameForBothArms { template: self.template.to_owned(), field: "cloudwatch" }),
        }
    }

    /// An expression over metrics.
    fn math(
        &self,
        NamedMetrics { spec, metrics }: NamedMetrics<'_>,
        field: &'static str,
        expression: &str,
        arm: Arm,
    ) -> Result<QuerySet, QueryError> {
        let refused = |why| self.query_error(field, why);
        if let Some(id) = metrics.keys().find(|id| !is_id(id)) {
            return Err(refused(QuerySetError::Id(id.clone())));
        }
        if let Some(metric) = metrics.get(expression) {
            let query = self.metric(spec, expression, metric, arm)?;
            return QuerySet::new(vec![query]).map_err(refused);
        }
        let mut id = RESULT_ID.to_owned();
        while metrics.contains_key(&id) {
            id.push('_');
        }
        let used: Vec<&str> = identifiers(expression).map(|(_, word)| word).collect();
        let mut queries = vec![MetricDataQuery {
            id,
            metric_stat: None,
            expression: Some(expression.to_owned()),
            label: None,
            return_data: Some(true),
            period: None,
            account_id: None,
        }];
        for (id, metric) in metrics {
            if used.contains(&id.as_str()) || used.contains(&"METRICS") {
                let query = self.metric(spec, id, metric, arm)?;
                queries.push(MetricDataQuery { return_data: Some(false), ..query });
            }
        }
        QuerySet::new(queries).map_err(|why| match why {
            QuerySetError::UnknownId { word, .. } => {
                let known = metrics.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
                refused(QuerySetError::UnknownId { word, known })
            }
            why => refused(why),
        })
    }

    fn metric(
        &self,
        spec: &Spec,
        id: &str,
        metric: &CloudWatchMetric,
        arm: Arm,
    ) -> Result<MetricDataQuery, QueryError> {
        let render = |text: &str| self.vars.render(self.template, "cloudwatch", text, arm);
        let of_arm = match arm {
            Arm::Canary => &spec.canary,
            Arm::Primary => &spec.primary,
        };
        let mut dimensions = spec.dimensions.clone();
        dimensions.extend(of_arm.clone());
        dimensions.extend(metric.dimensions.clone());
        let dimension =
            |(name, value): (&String, &String)| Ok(Dimension { name: name.clone(), value: render(value)? });
        let namespace = metric.namespace.as_ref().or(spec.namespace.as_ref());
        let Some(namespace) = namespace else {
            return Err(QueryError::CloudWatchNamespace {
                template: self.template.to_owned(),
                metric: id.to_owned(),
            });
        };
        // Fractions of a second become 0, which is refused as a period.
        let period = spec.period.map_or(DEFAULT_PERIOD, |period| match period.get().subsec_nanos() {
            0 => u32::try_from(period.get().as_secs()).unwrap_or(0),
            _ => 0,
        });
        Ok(MetricDataQuery {
            id: id.to_owned(),
            metric_stat: Some(MetricStat {
                metric: Metric {
                    namespace: render(namespace)?,
                    metric_name: render(&metric.name)?,
                    dimensions: dimensions.iter().map(dimension).collect::<Result<_, QueryError>>()?,
                },
                period,
                stat: metric.statistic.clone().unwrap_or_else(|| "Sum".to_owned()),
                unit: metric.unit.clone(),
            }),
            expression: None,
            label: None,
            return_data: Some(true),
            period: None,
            account_id: metric.account_id.clone(),
        })
    }

    fn query_error(&self, field: &'static str, why: QuerySetError) -> QueryError {
        QueryError::CloudWatch { template: self.template.to_owned(), field, why }
    }
}
