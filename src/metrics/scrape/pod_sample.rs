//! What is wanted of a pod, and what one pod said of it.

use std::collections::{BTreeMap, HashSet};

use crate::analysis::measurement::{Arms, Readings};
use crate::metrics::{
    CountQueries, Query, Unit,
    selector::{Selector, SelectorAlternatives, SelectorError},
};

use super::exposition::{MetricTypes, Sample, samples};

/// The selectors of a query.
pub enum SeriesSelectors {
    Value(SelectorAlternatives),
    Counts { part: SelectorAlternatives, total: SelectorAlternatives },
    Buckets(SelectorAlternatives),
}

/// What a counter counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CounterKey {
    Part,
    Total,
    /// Requests within a bound: the bits of its seconds, which sort as they do.
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

/// What one pod said.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodSample {
    pub counters: Counters,
    /// The sum of what does not only grow.
    pub gauge: Option<f64>,
}

impl PodSample {
    /// It said nothing of what was wanted.
    pub fn is_empty(&self) -> bool {
        self.counters.is_empty() && self.gauge.is_none()
    }
}

impl SeriesSelectors {
    /// Of each arm. Points over time are nothing that pods know.
    pub fn of(query: &Query) -> Result<Arms<SeriesSelectors>, SelectorError> {
        match query {
            Query::Scalar(text) | Query::Samples(Arms { canary: text, .. }) => {
                let value = || SelectorAlternatives::parse(text).map(Self::Value);
                Ok(Arms { canary: value()?, primary: value()? })
            }
            Query::Counts(arms) => {
                let counts = |asked: &CountQueries| -> Result<Self, SelectorError> {
                    let (part, total) = (
                        SelectorAlternatives::parse(asked.part.query())?,
                        SelectorAlternatives::parse(&asked.total)?,
                    );
                    Ok(Self::Counts { part, total })
                };
                Ok(Arms { canary: counts(&arms.canary)?, primary: counts(&arms.primary)? })
            }
            Query::Histogram(arms) => {
                let buckets = |text: &str| SelectorAlternatives::parse(text).map(Self::Buckets);
                Ok(Arms { canary: buckets(&arms.canary)?, primary: buckets(&arms.primary)? })
            }
        }
    }

    /// What the text of a pod says of it.
    pub fn read(&self, text: &[u8]) -> Result<PodSample, String> {
        let text = std::str::from_utf8(text).map_err(|_| "the answer is no text".to_owned())?;
        let said: Vec<Sample<'_>> =
            samples(text).collect::<Result<_, _>>().map_err(|malformed| malformed.to_string())?;
        let names: HashSet<&str> = said.iter().map(|sample| sample.name).collect();
        let meant = |alternatives: &SelectorAlternatives| {
            alternatives
                .first_present(|selector| names.iter().any(|name| selector.matches_name(name)))
                .cloned()
        };
        let mut found: BTreeMap<CounterKey, Vec<(&str, f64)>> = BTreeMap::new();
        let mut gauge = None;
        match self {
            Self::Value(alternatives) => {
                let types = MetricTypes::of(text);
                for sample in matching(&said, meant(alternatives)) {
                    if types.is_counter(sample.name) {
                        found.entry(CounterKey::Total).or_default().push((sample.series, sample.value));
                    } else if !sample.value.is_nan() {
                        *gauge.get_or_insert(0.0) += sample.value;
                    }
                }
            }
            Self::Counts { part, total } => {
                for (key, alternatives) in [(CounterKey::Part, part), (CounterKey::Total, total)] {
                    let series =
                        matching(&said, meant(alternatives)).map(|sample| (sample.series, sample.value));
                    found.entry(key).or_default().extend(series);
                }
            }
            Self::Buckets(alternatives) => {
                for sample in matching(&said, meant(alternatives)) {
                    let bound: f64 = sample
                        .label("le")
                        .parse()
                        .map_err(|_| format!("{} has no bound le", sample.series))?;
                    let seconds = Unit::of_series(sample.name).to_seconds(bound);
                    found
                        .entry(CounterKey::Within(seconds.to_bits()))
                        .or_default()
                        .push((sample.series, sample.value));
                }
            }
        }
        found.retain(|_, series| !series.is_empty());
        let counters = found.into_iter().map(|(key, series)| (key, series.into_iter().collect())).collect();
        Ok(PodSample { counters, gauge })
    }
}

fn matching<'s, 't>(
    said: &'s [Sample<'t>],
    selector: Option<Selector>,
) -> impl Iterator<Item = &'s Sample<'t>> {
    said.iter().filter(move |sample| {
        selector.as_ref().is_some_and(|selector| selector.matches(sample.name, |label| sample.label(label)))
    })
}
