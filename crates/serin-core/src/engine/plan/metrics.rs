//! The policy of one metric: its judge, with the judge's state decoded from and
//! encoded into the status, and its limits.

use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use crate::{
    analysis::{
        floor::Floor,
        mann_whitney::{self, MannWhitney},
        measurement::Measurement,
        score::{Score, ScoreError},
        sequential::{self, Evidence, Look, Sequential, WorseValues},
        threshold::{Threshold, ThresholdError},
        verdict::Verdict,
    },
    api::{
        AnalysisTemplateSpec, Object,
        canary::{Analysis, Metric, metric::BUILT_IN},
        judge::{
            Direction, EffectMeasure, Judge as JudgeSpec, JudgeType, NanStrategy, OnMissing, Outliers,
            PromoteOn, ThresholdRange,
        },
    },
};

/// How a metric is judged, and the effects of its verdicts.
#[derive(Clone, Debug, PartialEq)]
pub struct MetricPolicy {
    pub judge: Judge,
    /// The step may end as soon as the canary is shown to be non-inferior.
    pub ends_on_evidence: bool,
    /// Failed checks of this metric alone that roll back.
    pub failure_limit: Option<u32>,
    /// Likewise, of checks without data or beyond an absolute limit, which are no
    /// evidence of a sequential judge.
    pub check_failure_limit: Option<u32>,
    /// Inconclusive checks of this metric in a row that roll back.
    pub inconclusive_limit: Option<u32>,
    pub on_no_data: OnMissing,
    pub on_unavailable: OnMissing,
    /// Its part of a common score; none for a metric judged alone.
    pub score_weight: Option<ScoreWeight>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Judge {
    Threshold(Threshold),
    Sequential(Box<Sequential>),
    MannWhitney(MannWhitney),
}

/// The verdict of a judge, and what else it found.
#[derive(Clone, Debug, PartialEq)]
pub struct Judged {
    pub verdict: Verdict,
    /// Against the canary, if the judge computes it.
    pub evidence: Option<f64>,
    /// A much worse canary would not have been found yet.
    pub low_power: bool,
    /// The pod that alone is to blame.
    pub broken_pod: Option<String>,
}

/// Weight of a metric in the score that it shares with others.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScoreWeight {
    pub weight: f64,
    pub score: Score,
}

/// Why a metric cannot be judged.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum JudgeError {
    #[error("it has neither a range nor a judge; set thresholdRange, or a judge")]
    NoJudge,
    #[error("judge threshold needs thresholdRange; set min, max or both")]
    NoRange,
    #[error(
        "thresholdRange beside judge sequential limits errors by min, the smallest success rate, and latency by max; set that one"
    )]
    LimitSide,
    #[error(
        "thresholdRange beside judge sequential limits errors or latency, and this metric has values; remove it, or judge by a query with judge threshold"
    )]
    LimitOfValues,
    #[error("direction: values are worse in one direction; set decrease, as for revenue, or increase")]
    Direction,
    #[error("{0}; correct the range")]
    Range(#[from] ThresholdError),
    #[error("judge.{0}")]
    Sequential(#[from] sequential::SettingsError),
    #[error("judge.{0}")]
    MannWhitney(#[from] mann_whitney::SettingsError),
    #[error("judge: {0}; lower marginalScore or raise passScore")]
    Score(#[from] ScoreError),
}

impl MetricPolicy {
    /// Fields of the metric win over its template, those of the template over
    /// the analysis.
    pub fn new(
        metric: &Metric,
        template: Option<&AnalysisTemplateSpec>,
        analysis: &Analysis,
    ) -> Result<Self, JudgeError> {
        let judge = judge(metric, template, analysis)?;
        let spec = configured_judge(metric, template, analysis);
        // A sequential judge fails on the evidence of all checks, never on a
        // single bad one: waiting for another failure would only serve errors.
        let sequential = matches!(judge, Judge::Sequential(_));
        let failure_limit = metric.failure_limit.or(template.and_then(|t| t.failure_limit));
        Ok(Self {
            ends_on_evidence: sequential
                && spec.and_then(|judge| judge.promote_on) == Some(PromoteOn::Evidence),
            check_failure_limit: if metric.critical { Some(1) } else { failure_limit },
            failure_limit: if metric.critical { Some(1) } else { failure_limit.or(sequential.then_some(1)) },
            inconclusive_limit: metric.inconclusive_limit.or(template.and_then(|t| t.inconclusive_limit)),
            on_no_data: metric
                .on_no_data
                .or(template.and_then(|t| t.on_no_data))
                .or(analysis.on_no_data)
                .unwrap_or_default(),
            on_unavailable: metric
                .on_unavailable
                .or(template.and_then(|t| t.on_unavailable))
                .or(analysis.on_unavailable)
                .unwrap_or_default(),
            score_weight: score_weight(metric, &judge, spec)?,
            judge,
        })
    }
}

impl Judge {
    /// Verdict on everything since the release began. `look` matters to judges that compare
    /// both arms; `first_of_step` resets the evidence for non-inferiority, which each
    /// step must show again.
    pub fn check(
        &self,
        state: &mut Option<Object>,
        measurement: &Measurement,
        look: Look,
        first_of_step: bool,
    ) -> Judged {
        let alone = |verdict| Judged { verdict, evidence: None, low_power: false, broken_pod: None };
        match self {
            Self::Threshold(threshold) => alone(threshold.check(measurement)),
            Self::MannWhitney(ranks) => alone(ranks.check(measurement)),
            Self::Sequential(sequential) => {
                let mut evidence: Evidence = decode_state(state.as_ref());
                if first_of_step {
                    evidence.begin_step();
                }
                let verdict = sequential.check_at(&mut evidence, measurement, look);
                *state = encode_state(&evidence);
                Judged {
                    verdict,
                    evidence: Some(rounded(evidence.p_value().recip())),
                    low_power: sequential.has_low_power(&evidence),
                    broken_pod: evidence.broken_pod().map(str::to_owned),
                }
            }
        }
    }

    /// State to start the next release with: the overdispersion estimate.
    pub fn carry_over(&self, state: Option<&Object>) -> Option<Object> {
        let state = state.filter(|_| self.is_stateful())?;
        encode_state(&decode_state::<Evidence>(Some(state)).next_release())
    }

    /// State to judge the canary of this release anew.
    pub fn restart(&self, state: Option<&Object>) -> Option<Object> {
        let state = state.filter(|_| self.is_stateful())?;
        encode_state(&decode_state::<Evidence>(Some(state)).restart())
    }

    /// May it run interim checks, before the interval is over?
    pub fn may_peek(&self) -> bool {
        self.is_stateful()
    }

    /// Does it accumulate measurements, also those too small for a verdict?
    pub fn is_stateful(&self) -> bool {
        matches!(self, Self::Sequential(_))
    }
}

/// Key of the evidence in a state: one JSON string, cheap to copy at every
/// decision.
const EVIDENCE: &str = "evidence";

/// The default for a state that does not decode, such as one of another judge.
pub(in crate::engine) fn decode_state<E: DeserializeOwned + Default>(state: Option<&Object>) -> E {
    let text = state.and_then(|Object(map)| map.get(EVIDENCE)).and_then(Value::as_str);
    text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
}

pub(in crate::engine) fn encode_state(evidence: &impl Serialize) -> Option<Object> {
    let mut text = Vec::with_capacity(1024);
    serde_json::to_writer(&mut text, evidence).ok()?;
    let text = String::from_utf8(text).ok()?;
    Some(Object([(EVIDENCE.to_owned(), Value::String(text))].into_iter().collect()))
}

/// To three decimals, capped at a million.
fn rounded(evidence: f64) -> f64 {
    (evidence.min(1e6) * 1e3).round() / 1e3
}

fn judge(
    metric: &Metric,
    template: Option<&AnalysisTemplateSpec>,
    analysis: &Analysis,
) -> Result<Judge, JudgeError> {
    let range = range(metric, template);
    let spec = configured_judge(metric, template, analysis);
    let built_in = |t: &AnalysisTemplateSpec| {
        t.cloudwatch.as_ref().is_some_and(|cloudwatch| cloudwatch.built_in.is_some())
    };
    let counts = |t: &AnalysisTemplateSpec| {
        t.counts.is_some() || t.histogram.is_some() || t.values.is_some() || built_in(t)
    };
    let counted =
        template.is_some_and(counts) || (template.is_none() && BUILT_IN.contains(&metric.name.as_str()));
    let type_ = match spec {
        Some(judge) => judge.type_,
        None if range.is_some() => JudgeType::Threshold,
        None if counted => JudgeType::Sequential,
        None => return Err(JudgeError::NoJudge),
    };
    match type_ {
        JudgeType::Threshold => {
            let ThresholdRange { min, max } = range.ok_or(JudgeError::NoRange)?;
            Ok(Judge::Threshold(Threshold::new(min, max)?))
        }
        JudgeType::Sequential => {
            let latency = template.map_or(metric.name == BUILT_IN[1], |t| {
                t.histogram.is_some() || (built_in(t) && metric.name == BUILT_IN[1])
            });
            let direction = metric.direction.or(template.and_then(|t| t.direction));
            let worse_values = match (template.is_some_and(|t| t.values.is_some()), direction) {
                (false, _) => None,
                (true, Some(Direction::Decrease)) => Some(WorseValues::Lower),
                (true, Some(Direction::Increase)) => Some(WorseValues::Higher),
                (true, Some(Direction::Either) | None) => return Err(JudgeError::Direction),
            };
            let margin = match (worse_values, latency) {
                (Some(_), _) => VALUES_MARGIN,
                (None, true) => LATENCY_MARGIN,
                (None, false) => sequential::Settings::default().margin,
            };
            let mut settings = sequential(spec, margin);
            settings.worse_values = worse_values;
            if let Some(ThresholdRange { min, max }) = range {
                if worse_values.is_some() {
                    return Err(JudgeError::LimitOfValues);
                }
                let floor = Floor::new(&Threshold::new(min, max)?, latency);
                settings.floor = Some(floor.ok_or(JudgeError::LimitSide)?);
            }
            Ok(Judge::Sequential(Box::new(Sequential::try_from(settings)?)))
        }
        JudgeType::MannWhitney => {
            let direction = metric.direction.or(template.and_then(|t| t.direction));
            let settings = mann_whitney(spec, direction.unwrap_or_else(|| default_direction(metric)));
            Ok(Judge::MannWhitney(MannWhitney::try_from(settings)?))
        }
    }
}

/// A range on the metric means the threshold judge unless the metric itself sets
/// a judge, whatever its template or the analysis sets.
fn configured_judge<'a>(
    metric: &'a Metric,
    template: Option<&'a AnalysisTemplateSpec>,
    analysis: &'a Analysis,
) -> Option<&'a JudgeSpec> {
    let ranged = metric.threshold_range.is_some() || metric.threshold.is_some();
    let template_ranged = template.is_some_and(|t| t.threshold_range.is_some());
    match (&metric.judge, template.and_then(|t| t.judge.as_ref())) {
        (Some(judge), _) => Some(judge),
        (None, _) if ranged => None,
        (None, Some(judge)) => Some(judge),
        (None, None) if template_ranged => None,
        (None, None) => analysis.judge.as_ref(),
    }
}

fn range(metric: &Metric, template: Option<&AnalysisTemplateSpec>) -> Option<ThresholdRange> {
    let legacy = metric.threshold.map(|threshold| match metric.name.as_str() {
        "request-success-rate" => ThresholdRange { min: Some(threshold), max: None },
        _ => ThresholdRange { min: None, max: Some(threshold) },
    });
    metric.threshold_range.or(legacy).or(template.and_then(|t| t.threshold_range))
}

/// How many times worse latency may be by default. Less than errors: a shift of all
/// durations by a fifth is 1.6 times as many slow requests.
const LATENCY_MARGIN: f64 = 1.25;
/// Likewise values: a tenth fewer of a rare order, or more of a usual one.
const VALUES_MARGIN: f64 = 1.1;

fn sequential(spec: Option<&JudgeSpec>, margin: f64) -> sequential::Settings {
    let default = sequential::Settings { margin, ..sequential::Settings::default() };
    let Some(spec) = spec else { return default };
    sequential::Settings {
        false_rollback: spec.false_rollback.map_or(default.false_rollback, |p| p.fraction()),
        false_promotion: spec.false_promotion.map_or(default.false_promotion, |p| p.fraction()),
        margin: spec.margin.unwrap_or(default.margin),
        min_requests: spec.min_requests.map_or(default.min_requests, u64::from),
        min_power: spec.min_power,
        ..default
    }
}

fn mann_whitney(spec: Option<&JudgeSpec>, direction: Direction) -> mann_whitney::Settings {
    let mut settings = mann_whitney::Settings {
        direction: match direction {
            Direction::Increase => mann_whitney::Direction::Increase,
            Direction::Decrease => mann_whitney::Direction::Decrease,
            Direction::Either => mann_whitney::Direction::Either,
        },
        ..Default::default()
    };
    let Some(spec) = spec else { return settings };
    settings.tolerance = spec.tolerance.unwrap_or(settings.tolerance);
    settings.confidence = spec.confidence.map_or(settings.confidence, |p| p.fraction());
    settings.min_samples = spec.min_samples.map_or(settings.min_samples, u64::from);
    settings.outliers = match spec.outliers.unwrap_or_default() {
        Outliers::Keep => mann_whitney::Outliers::Keep,
        Outliers::Remove => mann_whitney::Outliers::Remove,
    };
    settings.nan = match spec.nan_strategy.unwrap_or_default() {
        NanStrategy::Remove => mann_whitney::Nan::Remove,
        NanStrategy::Replace => mann_whitney::Nan::ReplaceByZero,
    };
    if let Some(effect) = &spec.effect_size {
        settings.effect = mann_whitney::Effect {
            measure: match effect.measure {
                EffectMeasure::MeanRatio => mann_whitney::EffectMeasure::MeanRatio,
                EffectMeasure::Cles => mann_whitney::EffectMeasure::Cles,
            },
            allowed_increase: effect.allowed_increase,
            allowed_decrease: effect.allowed_decrease,
            critical_increase: effect.critical_increase,
            critical_decrease: effect.critical_decrease,
        };
    }
    settings
}

/// A lower success rate is worse; of any other metric a higher value.
fn default_direction(metric: &Metric) -> Direction {
    if metric.name == "request-success-rate" { Direction::Decrease } else { Direction::Increase }
}

/// Metrics that are judged by rank are scored together, as Kayenta does.
fn score_weight(
    metric: &Metric,
    judge: &Judge,
    spec: Option<&JudgeSpec>,
) -> Result<Option<ScoreWeight>, JudgeError> {
    let Judge::MannWhitney(_) = judge else { return Ok(None) };
    let pass = spec.and_then(|judge| judge.pass_score).map_or(0.95, |score| score.fraction());
    let marginal = spec.and_then(|judge| judge.marginal_score).map_or(0.75, |score| score.fraction());
    Ok(Some(ScoreWeight { weight: metric.weight.unwrap_or(1.0), score: Score::new(pass, marginal)? }))
}
