//! How a metric of a Canary is measured on simulated traffic.

use std::collections::BTreeMap;

use super::source::Reader;
use super::traffic::Traffic;
use crate::analysis::measurement::{Arms, Measurement, SLOW_QUANTILE};
use crate::api::AnalysisTemplateSpec;
use crate::api::canary::{Analysis, Metric, metric::BUILT_IN};
use crate::engine::Plan;
use crate::engine::plan::metrics::Judge;

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MetricModel {
    /// Failed requests of both arms since the last check.
    Errors,
    /// Durations of both arms since the last check.
    Durations,
    /// The values of what both arms ordered since the last check.
    Orders,
    /// The canary's success rate in percent, over a window of this many seconds.
    SuccessRate(f64),
    /// The canary's 99th percentile in milliseconds, over such a window.
    SlowQuantile(f64),
    /// A number that traffic does not determine: it is always this.
    Constant(f64),
    /// Samples that are alike on both arms.
    AlikeSamples,
}

/// Points of [`MetricModel::AlikeSamples`]: more than a judge asks for.
const SAMPLES: usize = 60;

/// Seconds of the window of a query that sets none, as in Flagger.
const DEFAULT_WINDOW: f64 = 60.0;

impl MetricModel {
    /// The models of all metrics of a plan, by name. Templates of counts are errors, those of
    /// histograms durations, those of values orders; the value of any other query is one that passes.
    pub fn of_plan<'t>(
        plan: &Plan,
        analysis: &Analysis,
        template: impl Fn(&Metric) -> Option<&'t AnalysisTemplateSpec>,
    ) -> BTreeMap<String, Self> {
        let model = |metric: &Metric| {
            let planned = plan.metrics.iter().find(|planned| planned.name == metric.name)?;
            Some((metric.name.clone(), Self::new(&planned.policy.judge, metric, template(metric))))
        };
        analysis.metrics.iter().filter_map(model).collect()
    }

    fn new(judge: &Judge, metric: &Metric, template: Option<&AnalysisTemplateSpec>) -> Self {
        let own_query = metric.query.is_some();
        let durations = template.is_some_and(|t| t.histogram.is_some())
            || (!own_query && metric.name == BUILT_IN[1] && template.is_none_or(|t| t.counts.is_none()));
        let errors =
            template.is_some_and(|t| t.counts.is_some()) || (!own_query && metric.name == BUILT_IN[0]);
        let seconds = metric.interval.map_or(DEFAULT_WINDOW, |window| window.get().as_secs_f64());
        match judge {
            Judge::Sequential(_) if template.is_some_and(|t| t.values.is_some()) => Self::Orders,
            Judge::Sequential(_) if durations => Self::Durations,
            Judge::Sequential(_) => Self::Errors,
            Judge::Threshold(_) if errors => Self::SuccessRate(seconds),
            Judge::Threshold(_) if durations => Self::SlowQuantile(seconds),
            Judge::Threshold(range) => Self::Constant(range.passing_value()),
            Judge::MannWhitney(_) => Self::AlikeSamples,
        }
    }

    /// Whether the traffic decides what is measured.
    pub fn is_of_traffic(self) -> bool {
        !matches!(self, Self::Constant(_) | Self::AlikeSamples)
    }

    /// Seconds of a window of its own; none if it continues where the last check ended.
    pub(super) fn window(self) -> Option<f64> {
        match self {
            Self::SuccessRate(seconds) | Self::SlowQuantile(seconds) => Some(seconds),
            Self::Errors | Self::Durations | Self::Orders | Self::Constant(_) | Self::AlikeSamples => None,
        }
    }

    pub(super) fn measure(self, reader: &Reader, traffic: &Traffic<'_>, window: (f64, f64)) -> Measurement {
        match self {
            Self::Errors => reader.errors(traffic, window),
            Self::Durations => reader.durations(traffic, window),
            Self::Orders => reader.orders(traffic, window),
            Self::SuccessRate(_) => match reader.errors(traffic, window).summed() {
                Measurement::Counts(Arms { canary, .. }) => canary
                    .rate()
                    .map_or(Measurement::NoData, |rate| Measurement::Scalar(100.0 * (1.0 - rate))),
                other => other,
            },
            Self::SlowQuantile(_) => match reader.durations(traffic, window) {
                Measurement::Histogram(Arms { canary, .. }) => {
                    canary.quantile(SLOW_QUANTILE).map_or(Measurement::NoData, Measurement::Scalar)
                }
                other => other,
            },
            Self::Constant(value) => Measurement::Scalar(value),
            Self::AlikeSamples => {
                let points: Vec<f64> = (0..SAMPLES).map(|i| (i % 20) as f64).collect();
                Measurement::Samples(Arms { canary: points.clone(), primary: points })
            }
        }
    }
}
