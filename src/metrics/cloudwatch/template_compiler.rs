//! From a template to queries: metric math over named metrics, or the list
//! itself, with every word filled in.

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

/// What a template says, and the words in it.
pub struct TemplateCompiler<'a> {
    /// For people.
    pub template: &'a str,
    pub spec: Option<&'a Spec>,
    pub vars: &'a TemplateVars,
}

/// An answer that is none of the metrics has this Id.
const RESULT_ID: &str = "answer";

impl TemplateCompiler<'_> {
    /// The queries of one field, about one arm, as the text that is asked.
    pub fn compile(&self, field: &'static str, text: &str, arm: Arm) -> Result<String, QueryError> {
        let filled = self.vars.render(self.template, field, text, arm)?;
        let named = self.spec.filter(|spec| !spec.metrics.is_empty());
        let query_set = match named.filter(|_| !filled.trim_start().starts_with('[')) {
            Some(spec) => self.math(spec, &spec.metrics, field, filled.trim(), arm)?,
            None => QuerySet::parse(&filled).map_err(|why| self.query_error(field, why))?,
        };
        Ok(query_set.json())
    }

    /// A metric that needs no query, if the template is for such.
    pub fn compile_built_in(&self, metric: &str, judge: JudgeType) -> Result<Option<Query>, QueryError> {
        let Some((spec, known)) = self.spec.and_then(|spec| Some((spec, spec.built_in?))) else {
            return Ok(None);
        };
        let unknown = || QueryError::CloudWatchBuiltIn {
            template: self.template.to_owned(),
            metric: metric.to_owned(),
        };
        let of = BuiltIn::from_name(metric).ok_or_else(unknown)?;
        let table = builtin::BuiltinMetricNames::of(known);
        let spec = Spec { namespace: spec.namespace.clone().or(table.namespace()), ..spec.clone() };
        let metrics = table.metrics();
        let written = |text: &str, arm| Ok(self.math(&spec, &metrics, "cloudwatch", text, arm)?.json());
        let query = table.query(of, judge, written)?;
        match &query {
            Query::Scalar(_) => Ok(Some(query)),
            _ if spec.canary != spec.primary => Ok(Some(query)),
            _ => Err(QueryError::SameForBothArms { template: self.template.to_owned(), field: "cloudwatch" }),
        }
    }

    /// An expression over metrics.
    fn math(
        &self,
        spec: &Spec,
        metrics: &BTreeMap<String, CloudWatchMetric>,
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
        let mut answer = RESULT_ID.to_owned();
        while metrics.contains_key(&answer) {
            answer.push('_');
        }
        let used: Vec<&str> = identifiers(expression).map(|(_, word)| word).collect();
        let mut queries = vec![MetricDataQuery {
            id: answer,
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
        written: &CloudWatchMetric,
        arm: Arm,
    ) -> Result<MetricDataQuery, QueryError> {
        let fill = |text: &str| self.vars.render(self.template, "cloudwatch", text, arm);
        let of_arm = match arm {
            Arm::Canary => &spec.canary,
            Arm::Primary => &spec.primary,
        };
        let mut dimensions = spec.dimensions.clone();
        dimensions.extend(of_arm.clone());
        dimensions.extend(written.dimensions.clone());
        let dimension =
            |(name, value): (&String, &String)| Ok(Dimension { name: name.clone(), value: fill(value)? });
        let namespace = written.namespace.as_ref().or(spec.namespace.as_ref());
        let Some(namespace) = namespace else {
            return Err(QueryError::CloudWatchNamespace {
                template: self.template.to_owned(),
                metric: id.to_owned(),
            });
        };
        // What is no whole number of seconds is refused as a period of none.
        let period = spec.period.map_or(DEFAULT_PERIOD, |period| match period.get().subsec_nanos() {
            0 => u32::try_from(period.get().as_secs()).unwrap_or(0),
            _ => 0,
        });
        Ok(MetricDataQuery {
            id: id.to_owned(),
            metric_stat: Some(MetricStat {
                metric: Metric {
                    namespace: fill(namespace)?,
                    metric_name: fill(&written.name)?,
                    dimensions: dimensions.iter().map(dimension).collect::<Result<_, QueryError>>()?,
                },
                period,
                stat: written.statistic.clone().unwrap_or_else(|| "Sum".to_owned()),
                unit: written.unit.clone(),
            }),
            expression: None,
            label: None,
            return_data: Some(true),
            period: None,
            account_id: written.account_id.clone(),
        })
    }

    fn query_error(&self, field: &'static str, why: QuerySetError) -> QueryError {
        QueryError::CloudWatch { template: self.template.to_owned(), field, why }
    }
}
