//! CloudWatch queries in the form of its API: a list of MetricDataQueries, each a
//! statistic of one metric or an expression over the others.
//!
//! The JSON is the same as in Flagger. `spec.cloudwatch` is compiled to the same
//! list.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

/// Per request.
pub const MAX_QUERIES: usize = 500;

/// In seconds.
pub const DEFAULT_PERIOD: u32 = 60;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
pub struct MetricDataQuery {
    pub id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metric_stat: Option<MetricStat>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expression: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub return_data: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub period: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub account_id: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
pub struct MetricStat {
    pub metric: Metric,
    pub period: u32,
    pub stat: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unit: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
pub struct Metric {
    pub namespace: String,
    pub metric_name: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dimensions: Vec<Dimension>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
pub struct Dimension {
    pub name: String,
    pub value: String,
}

/// Queries that belong together, one of which has the result.
#[derive(Clone, Debug, PartialEq)]
pub struct QuerySet(Vec<MetricDataQuery>);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuerySetError {
    #[error("is no JSON list of MetricDataQueries ({0}); write one, or name metrics in spec.cloudwatch")]
    Json(String),
    #[error("has {0} queries; write between 1 and {MAX_QUERIES}")]
    QueryCount(usize),
    #[error("has the Id {0:?}; an Id begins with a small letter and goes on with letters, digits and _")]
    Id(String),
    #[error("has two queries with the Id {0:?}; rename one")]
    DuplicateId(String),
    #[error("{0} needs exactly one of MetricStat and Expression")]
    MetricStatOrExpression(String),
    #[error("{id} has the period {period}; write 1, 5, 10, 20, 30 or a multiple of 60 seconds")]
    Period { id: String, period: u32 },
    #[error("returns no data; remove ReturnData from the query with the result")]
    NoReturnData,
    #[error("refers to {word}, which is none of its metrics: {known}")]
    UnknownId { word: String, known: String },
    #[error("{id} counts with the statistic {stat}; counts are made of Sum or SampleCount")]
    UncountableStat { id: String, stat: String },
    #[error("counts with RATE, and rates cannot be counted; write the metric itself")]
    Rate,
    #[error(
        "is no metric of durations; write one whose unit is Seconds, Milliseconds or Microseconds, or make seconds of it, as in durations / 1000"
    )]
    NoDurations,
}

impl QuerySet {
    pub fn parse(json: &str) -> Result<Self, QuerySetError> {
        Self::new(serde_json::from_str(json).map_err(|error| QuerySetError::Json(error.to_string()))?)
    }

    pub fn new(queries: Vec<MetricDataQuery>) -> Result<Self, QuerySetError> {
        if queries.is_empty() || queries.len() > MAX_QUERIES {
            return Err(QuerySetError::QueryCount(queries.len()));
        }
        for (at, query) in queries.iter().enumerate() {
            check_query(query)?;
            if queries[..at].iter().any(|other| other.id == query.id) {
                return Err(QuerySetError::DuplicateId(query.id.clone()));
            }
        }
        if queries.iter().all(|query| query.return_data == Some(false)) {
            return Err(QuerySetError::NoReturnData);
        }
        let query_set = Self(queries);
        if !query_set.must_run_alone() {
            query_set.0.iter().try_for_each(|query| query_set.check_references(query))?;
        }
        Ok(query_set)
    }

    /// For a [`MetricQuery`](crate::metrics::MetricQuery).
    pub fn json(&self) -> String {
        serde_json::to_string(&self.0).unwrap_or_default()
    }

    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// The first that returns data, as in Flagger.
    fn result_index(&self) -> usize {
        self.0.iter().position(|query| query.return_data != Some(false)).unwrap_or_default()
    }

    /// The least common multiple of their periods, in seconds.
    pub fn period(&self) -> u32 {
        let own = self
            .0
            .iter()
            .filter_map(|query| query.metric_stat.as_ref().map(|metric| metric.period).or(query.period));
        own.reduce(least_common_multiple).unwrap_or(DEFAULT_PERIOD)
    }

    /// METRICS() refers to all metrics of a request, and requests are limited to a
    /// few searches and Metrics Insights queries.
    pub fn must_run_alone(&self) -> bool {
        let alone = |expression: &String| {
            let words = identifiers(expression).map(|(_, word)| word.to_ascii_uppercase());
            words
                .into_iter()
                .any(|word| ["METRICS", "SEARCH", "SELECT", "INSIGHT_RULE_METRIC"].contains(&word.as_str()))
        };
        self.0.iter().filter_map(|query| query.expression.as_ref()).any(alone)
    }

    /// Checks that the sum of the results is a number of requests.
    pub fn check_counts(&self) -> Result<(), QuerySetError> {
        for query in &self.0 {
            let stat = query.metric_stat.as_ref().map(|metric| metric.stat.as_str());
            if let Some(stat) =
                stat.filter(|stat| !["Sum", "SampleCount"].contains(stat) && !stat.starts_with("TC("))
            {
                return Err(QuerySetError::UncountableStat { id: query.id.clone(), stat: stat.to_owned() });
            }
            let expression = query.expression.as_deref().unwrap_or_default();
            if identifiers(expression).any(|(_, word)| word.eq_ignore_ascii_case("RATE")) {
                return Err(QuerySetError::Rate);
            }
        }
        Ok(())
    }

    /// The single metric, if it is one of durations, and its units per second.
    pub fn durations(&self) -> Result<(&MetricDataQuery, &MetricStat, f64), QuerySetError> {
        let metrics: Vec<_> =
            self.0.iter().filter_map(|query| Some((query, query.metric_stat.as_ref()?))).collect();
        let [(query, metric)] = metrics[..] else { return Err(QuerySetError::NoDurations) };
        let per_second = match (&self.0[self.result_index()].expression, metric.unit.as_deref()) {
            (Some(expression), _) => expression.split_once('/').and_then(|(divided, by)| {
                let by = by.trim().parse().ok()?;
                (divided.trim() == query.id && by > 0.0).then_some(by)
            }),
            (None, Some("Seconds")) => Some(1.0),
            (None, Some("Milliseconds")) => Some(1e3),
            (None, Some("Microseconds")) => Some(1e6),
            (None, _) => None,
        };
        per_second.map(|per_second| (query, metric, per_second)).ok_or(QuerySetError::NoDurations)
    }

    /// With Ids `q<first>` and following, so that several sets fit in one request;
    /// and the Id of the result, which alone returns data.
    pub fn with_unique_ids(&self, first: usize) -> (Vec<MetricDataQuery>, String) {
        let number = |at: usize| format!("q{}", first + at);
        let numbers: HashMap<&str, String> =
            self.0.iter().enumerate().map(|(at, query)| (query.id.as_str(), number(at))).collect();
        let result = self.result_index();
        let renamed = self.0.iter().enumerate().map(|(at, query)| MetricDataQuery {
            id: number(at),
            expression: query.expression.as_deref().map(|expression| rename_ids(expression, &numbers)),
            return_data: Some(at == result),
            ..query.clone()
        });
        (renamed.collect(), number(result))
    }

    /// With unchanged Ids; the result alone returns data.
    pub fn with_own_ids(&self) -> (Vec<MetricDataQuery>, String) {
        let result = self.result_index();
        let queries = self.0.iter().enumerate();
        let queries =
            queries.map(|(at, query)| MetricDataQuery { return_data: Some(at == result), ..query.clone() });
        (queries.collect(), self.0[result].id.clone())
    }

    /// Refuses words that look like an Id and are none.
    fn check_references(&self, query: &MetricDataQuery) -> Result<(), QuerySetError> {
        let Some(expression) = &query.expression else { return Ok(()) };
        for (at, word) in identifiers(expression) {
            let called = expression[at + word.len()..].trim_start().starts_with('(');
            if !is_id(word) || called || ["and", "or"].contains(&word) {
                continue;
            }
            if !self.0.iter().any(|other| other.id == word && other.id != query.id) {
                let known = self.0.iter().filter(|other| other.id != query.id).map(|other| other.id.as_str());
                let known = known.collect::<Vec<_>>().join(", ");
                return Err(QuerySetError::UnknownId { word: word.to_owned(), known });
            }
        }
        Ok(())
    }
}

fn check_query(query: &MetricDataQuery) -> Result<(), QuerySetError> {
    let MetricDataQuery { id, metric_stat, expression, period, .. } = query;
    if !is_id(id) {
        return Err(QuerySetError::Id(id.clone()));
    }
    if metric_stat.is_some() == expression.is_some() {
        return Err(QuerySetError::MetricStatOrExpression(id.clone()));
    }
    let periods = metric_stat.iter().map(|metric| metric.period).chain(*period);
    for period in periods {
        if !([1, 5, 10, 20, 30].contains(&period) || period > 0 && period % 60 == 0 && period <= 86_400) {
            return Err(QuerySetError::Period { id: id.clone(), period });
        }
    }
    Ok(())
}

pub fn is_id(word: &str) -> bool {
    word.len() <= 255
        && word.starts_with(|first: char| first.is_ascii_lowercase())
        && word.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// The identifiers of an expression and their offsets; not those in quotes, nor
/// the `e` of a number.
pub fn identifiers(expression: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        loop {
            let rest = &expression[at..];
            let first = rest.chars().next()?;
            let length = |belongs: fn(char) -> bool| rest.find(|c| !belongs(c)).unwrap_or(rest.len());
            if first == '"' || first == '\'' {
                at += rest[1..].find(first).map_or(rest.len(), |end| end + 2);
            } else if first.is_ascii_digit() {
                at += length(|c| c.is_ascii_alphanumeric() || c == '.' || c == '_');
            } else if first.is_ascii_alphabetic() || first == '_' {
                let start = at;
                at += length(|c| c.is_ascii_alphanumeric() || c == '_');
                return Some((start, &expression[start..at]));
            } else {
                at += first.len_utf8();
            }
        }
    })
}

fn rename_ids(expression: &str, names: &HashMap<&str, String>) -> String {
    let (mut text, mut end) = (String::new(), 0);
    for (at, word) in identifiers(expression) {
        text.push_str(&expression[end..at]);
        text.push_str(names.get(word).map_or(word, String::as_str));
        end = at + word.len();
    }
    text + &expression[end..]
}

pub fn least_common_multiple(a: u32, b: u32) -> u32 {
    let (mut x, mut y) = (a, b);
    while y != 0 {
        (x, y) = (y, x % y);
    }
    a / x * b
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metric(id: &str, period: u32) -> MetricDataQuery {
        let metric = Metric { namespace: "shop".into(), metric_name: id.into(), dimensions: Vec::new() };
        MetricDataQuery {
            id: id.into(),
            metric_stat: Some(MetricStat { metric, period, stat: "Sum".into(), unit: None }),
            expression: None,
            label: None,
            return_data: Some(false),
            period: None,
            account_id: None,
        }
    }

    fn expression(id: &str, text: &str) -> MetricDataQuery {
        MetricDataQuery {
            id: id.into(),
            metric_stat: None,
            expression: Some(text.into()),
            return_data: None,
            ..metric(id, 60)
        }
    }

    fn over(metrics: &[&str], text: &str) -> Result<QuerySet, QuerySetError> {
        let metrics = metrics.iter().map(|id| metric(id, 60));
        QuerySet::new([expression("answer", text)].into_iter().chain(metrics).collect())
    }

    fn numbered(metrics: &[&str], text: &str, first: usize) -> String {
        let (queries, answer) = over(metrics, text).expect("queries").with_unique_ids(first);
        assert_eq!(answer, format!("q{first}"));
        assert!(queries.iter().all(|query| query.return_data == Some(query.id == answer)));
        queries[0].expression.clone().expect("an expression")
    }

    #[test]
    fn ids_are_renamed_and_nothing_else() {
        assert_eq!(numbered(&["m1", "m2"], "m1 / m2 * 100", 7), "q8 / q9 * 100");
        // An Id inside another, in quotes, in a number, as a function.
        assert_eq!(
            numbered(&["m", "m1", "e5"], r#"IF(m1>1e5 AND m<e5, FILL(m,0), "m1 'm" + 'e5')"#, 0),
            r#"IF(q2>1e5 AND q1<q3, FILL(q1,0), "m1 'm" + 'e5')"#
        );
        // A new Id may equal the old Id of another query.
        assert_eq!(numbered(&["q2", "q1"], "q1-q2", 0), "q2-q1");
        assert_eq!(numbered(&["m"], "(m+0.5e3)/m é", 3), "(q4+0.5e3)/q4 é");
    }

    #[test]
    fn an_unknown_id_is_refused_with_the_known_ones() {
        let refused = over(&["errors", "requests"], "errors / request").unwrap_err();
        assert_eq!(
            refused,
            QuerySetError::UnknownId { word: "request".to_owned(), known: "errors, requests".to_owned() }
        );
        assert!(over(&["m"], "answer + m").is_err(), "an expression that refers to itself");
    }

    #[test]
    fn a_query_over_all_metrics_must_run_alone() {
        let alone = |text| over(&["m"], text).expect("queries").must_run_alone();
        assert!(alone("SUM(METRICS())") && alone("SEARCH('{a,b} m', 'Sum', 60)"));
        assert!(alone(r#"SELECT AVG(cpu) FROM "AWS/EC2""#));
        assert!(!alone("SUM([m, m])") && !alone("m + 1"));
    }

    #[test]
    fn invalid_queries_are_refused_with_a_reason() {
        let refused = |queries| QuerySet::new(queries).unwrap_err().to_string();
        assert!(refused(vec![]).contains("between 1 and 500"));
        assert!(refused(vec![metric("Errors", 60)]).contains("small letter"));
        assert!(refused(vec![metric("m", 60), metric("m", 60)]).contains("two queries"));
        assert!(refused(vec![metric("m", 45)]).contains("multiple of 60"));
        assert!(refused(vec![metric("m", 60)]).contains("ReturnData"));
        assert!(QuerySet::parse("[{}]").unwrap_err().to_string().contains("Id"));
        assert!(QuerySet::parse("m1 / m2").unwrap_err().to_string().contains("list"));
    }

    #[test]
    fn durations_are_of_one_metric_and_of_a_known_unit() {
        let per_second =
            |queries| QuerySet::new(queries).unwrap().durations().map(|(_, _, per_second)| per_second);
        let of_unit = |unit: &str| {
            let MetricDataQuery { metric_stat, .. } = metric("m", 60);
            let metric_stat = metric_stat.map(|stat| MetricStat { unit: Some(unit.into()), ..stat });
            vec![MetricDataQuery { metric_stat, return_data: None, ..metric("m", 60) }]
        };
        let divided = |text| vec![expression("answer", text), metric("m", 60)];
        assert_eq!((per_second(of_unit("Seconds")), per_second(of_unit("Milliseconds"))), (Ok(1.0), Ok(1e3)));
        assert_eq!((per_second(divided("m / 1000")), per_second(divided("m/1"))), (Ok(1e3), Ok(1.0)));
        for text in ["m * 1000", "m / 0", "m / m", "m / 1000 + m"] {
            assert_eq!(per_second(divided(text)), Err(QuerySetError::NoDurations), "{text}");
        }
        assert_eq!(per_second(of_unit("Count")), Err(QuerySetError::NoDurations));
    }

    #[test]
    fn periods_of_different_lengths_close_together() {
        let period = |periods: &[u32]| {
            let metrics = periods.iter().enumerate().map(|(at, period)| metric(&format!("m{at}"), *period));
            QuerySet::new([expression("answer", "m0")].into_iter().chain(metrics).collect()).unwrap().period()
        };
        assert_eq!((period(&[60]), period(&[60, 300]), period(&[10, 60])), (60, 300, 60));
        assert_eq!(period(&[120, 180]), 360);
    }
}
