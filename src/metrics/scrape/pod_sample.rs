//! Selects the series of a query from the metrics of one pod.

use std::collections::{BTreeMap, HashSet};

use crate::analysis::measurement::Arms;
use crate::metrics::{
    CountQueries, MAX_BOUNDS, Query, Unit, ValueQueries,
    selector::{Selector, SelectorAlternatives, SelectorError},
};

use super::exposition::{MetricTypes, Sample, samples};

pub enum SeriesSelectors {
    Value(SelectorAlternatives),
    Counts {
        part: SelectorAlternatives,
        total: SelectorAlternatives,
    },
    Buckets(SelectorAlternatives),
    /// Buckets in a unit of their own, and all requests.
    Values {
        buckets: SelectorAlternatives,
        total: Option<SelectorAlternatives>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CounterKey {
    Part,
    Total,
    /// Requests within a bound: the bits of its seconds, or of its value, which sort like
    /// the number.
    Within(u64),
}

impl CounterKey {
    pub fn bound(self) -> Option<f64> {
        match self {
            Self::Within(bits) => Some(f64::from_bits(bits)),
            Self::Part | Self::Total => None,
        }
    }
}

pub type Counters = BTreeMap<CounterKey, Readings>;

/// Values of counters, by series.
pub type Readings = BTreeMap<String, f64>;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodSample {
    pub counters: Counters,
    /// The sum of series that are not counters.
    pub gauge: Option<f64>,
}

impl PodSample {
    /// No series matched.
    pub fn is_empty(&self) -> bool {
        self.counters.is_empty() && self.gauge.is_none()
    }
}

impl SeriesSelectors {
    /// Of each arm. Samples are parsed like scalars; scrape does not support them.
    pub fn of(query: &Query) -> Result<Arms<SeriesSelectors>, SelectorError> {
        match query {
            Query::Scalar(text) | Query::Samples(Arms { canary: text, .. }) => {
                let value = || SelectorAlternatives::parse(text).map(Self::Value);
                Ok(Arms { canary: value()?, primary: value()? })
            }
            Query::Counts(arms) => {
                let counts = |queries: &CountQueries| -> Result<Self, SelectorError> {
                    let (part, total) = (
                        SelectorAlternatives::parse(queries.part.query())?,
                        SelectorAlternatives::parse(&queries.total)?,
                    );
                    Ok(Self::Counts { part, total })
                };
                Ok(Arms { canary: counts(&arms.canary)?, primary: counts(&arms.primary)? })
            }
            Query::Histogram(arms) => {
                let buckets = |text: &str| SelectorAlternatives::parse(text).map(Self::Buckets);
                Ok(Arms { canary: buckets(&arms.canary)?, primary: buckets(&arms.primary)? })
            }
            Query::Values(arms) => {
                let values = |queries: &ValueQueries| -> Result<Self, SelectorError> {
                    let total = queries.total.as_deref().map(SelectorAlternatives::parse).transpose()?;
                    Ok(Self::Values { buckets: SelectorAlternatives::parse(&queries.histogram)?, total })
                };
                Ok(Arms { canary: values(&arms.canary)?, primary: values(&arms.primary)? })
            }
        }
    }

    /// Parses the metrics of a pod.
    pub fn read(&self, text: &[u8]) -> Result<PodSample, String> {
        let text = std::str::from_utf8(text).map_err(|_| "the response is not text".to_owned())?;
        let all: Vec<Sample<'_>> =
            samples(text).collect::<Result<_, _>>().map_err(|malformed| malformed.to_string())?;
        let names: HashSet<&str> = all.iter().map(|sample| sample.name).collect();
        let selected = |alternatives: &SelectorAlternatives| {
            alternatives
                .first_present(|selector| names.iter().any(|name| selector.matches_name(name)))
                .cloned()
        };
        let mut counters: BTreeMap<CounterKey, Vec<(&str, f64)>> = BTreeMap::new();
        let mut gauge = None;
        match self {
            Self::Value(alternatives) => {
                let types = MetricTypes::of(text);
                for sample in matching(&all, selected(alternatives)) {
                    if types.is_counter(sample.name) {
                        counters.entry(CounterKey::Total).or_default().push((sample.series, sample.value));
                    } else if !sample.value.is_nan() {
                        *gauge.get_or_insert(0.0) += sample.value;
                    }
                }
            }
            Self::Counts { part, total } => {
                for (key, alternatives) in [(CounterKey::Part, part), (CounterKey::Total, total)] {
                    let series =
                        matching(&all, selected(alternatives)).map(|sample| (sample.series, sample.value));
                    counters.entry(key).or_default().extend(series);
                }
            }
            Self::Buckets(alternatives) | Self::Values { buckets: alternatives, .. } => {
                for sample in matching(&all, selected(alternatives)) {
                    let bound: f64 =
                        sample.label("le").parse().map_err(|_| format!("{} has no bound le", sample.name))?;
                    let bound = match self {
                        Self::Buckets(_) => Unit::of_series(sample.name).to_seconds(bound),
                        _ => bound,
                    };
                    counters
                        .entry(CounterKey::Within(bound.to_bits()))
                        .or_default()
                        .push((sample.series, sample.value));
                }
                if let Self::Values { total: Some(total), .. } = self {
                    let series = matching(&all, selected(total)).map(|sample| (sample.series, sample.value));
                    counters.entry(CounterKey::Total).or_default().extend(series);
                }
            }
        }
        counters.retain(|_, series| !series.is_empty());
        let bounds = counters.keys().filter(|key| key.bound().is_some()).count();
        if bounds > MAX_BOUNDS {
            return Err(format!(
                "the histogram has {bounds} bounds, and at most {MAX_BOUNDS} are read; aggregate or drop some"
            ));
        }
        let counters = counters.into_iter().map(|(key, series)| (key, readings(series))).collect();
        Ok(PodSample { counters, gauge })
    }
}

fn readings(series: Vec<(&str, f64)>) -> Readings {
    series.into_iter().map(|(series, value)| (series.to_owned(), value)).collect()
}

fn matching<'s, 't>(
    samples: &'s [Sample<'t>],
    selector: Option<Selector>,
) -> impl Iterator<Item = &'s Sample<'t>> {
    samples.iter().filter(move |sample| {
        selector.as_ref().is_some_and(|selector| selector.matches(sample.name, |label| sample.label(label)))
    })
}
