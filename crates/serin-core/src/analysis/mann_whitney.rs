//! The rank test, for samples that come without counts.
//!
//! Kayenta's judgement: the shift between the samples is estimated by Hodges
//! and Lehmann, with a confidence interval by normal approximation, corrected
//! for ties and continuity. The canary fails when the whole interval lies
//! beyond a tolerance on the side that matters, and the effect is as large as
//! configured.
//!
//! Its limits: it judges one look, and unlike the sequential judge, more looks
//! mean more errors. It takes points as independent, and points of a time series
//! seldom are; the verdict warns of autocorrelation. Below fifty points an arm
//! it is inconclusive.

use serde::{Deserialize, Serialize};
use statrs::distribution::{ContinuousCDF, Normal};
use thiserror::Error;

use super::format::{number, percent};
use super::measurement::{Arms, Measurement};
use super::ranks::Ranks;
use super::verdict::{Estimate, InconclusiveReason, JudgeOutcome, Verdict};

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Settings {
    /// Which way is worse.
    pub direction: Direction,
    /// How far from zero the interval must be, as a part of the shift.
    pub tolerance: f64,
    /// Of the interval.
    pub confidence: f64,
    pub effect: Effect,
    /// How points that are not a number count.
    pub nan: Nan,
    /// Whether to leave out points far beyond the quartiles.
    pub outliers: Outliers,
    /// Points of each arm below which the verdict is inconclusive.
    pub min_samples: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            direction: Direction::default(),
            tolerance: 0.25,
            confidence: 0.98,
            effect: Effect::default(),
            nan: Nan::default(),
            outliers: Outliers::default(),
            min_samples: 50,
        }
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Direction {
    #[default]
    Increase,
    Decrease,
    Either,
}

/// How large a difference must be, besides being significant, to fail the
/// canary, and from which size a single look is enough. A missing bound does not
/// matter.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Effect {
    pub measure: EffectMeasure,
    pub allowed_increase: Option<f64>,
    pub allowed_decrease: Option<f64>,
    pub critical_increase: Option<f64>,
    pub critical_decrease: Option<f64>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum EffectMeasure {
    /// Mean of the canary by mean of the primary.
    #[default]
    MeanRatio,
    /// Common language effect size: the chance that a point of the canary is
    /// above one of the primary.
    Cles,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Nan {
    #[default]
    Remove,
    ReplaceByZero,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Outliers {
    #[default]
    Keep,
    Remove,
}

#[derive(Debug, Clone, Copy, PartialEq, Error)]
pub enum SettingsError {
    #[error("tolerance: {0} must be at least 0 and below 1, such as 0.25")]
    Tolerance(f64),
    #[error("confidence: {0} must be above 0.5 and below 1, such as 0.98")]
    Confidence(f64),
    #[error("effectSize: {0} is no effect; a mean ratio is at least 0, a cles from 0 to 1")]
    Effect(f64),
}

/// The judge, with validated settings.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MannWhitney(Settings);

impl TryFrom<Settings> for MannWhitney {
    type Error = SettingsError;

    fn try_from(settings: Settings) -> Result<Self, SettingsError> {
        if !(0.0..1.0).contains(&settings.tolerance) {
            return Err(SettingsError::Tolerance(settings.tolerance));
        }
        if !(settings.confidence > 0.5 && settings.confidence < 1.0) {
            return Err(SettingsError::Confidence(settings.confidence));
        }
        let Effect { measure, allowed_increase, allowed_decrease, critical_increase, critical_decrease } =
            settings.effect;
        let effects = match measure {
            EffectMeasure::MeanRatio => 0.0..=f64::MAX,
            EffectMeasure::Cles => 0.0..=1.0,
        };
        let given =
            [allowed_increase, allowed_decrease, critical_increase, critical_decrease].into_iter().flatten();
        match given.into_iter().find(|effect| !effects.contains(effect)) {
            Some(effect) => Err(SettingsError::Effect(effect)),
            None => Ok(MannWhitney(settings)),
        }
    }
}

/// Correlation of neighbouring points from which on a verdict warns.
const NOTABLE_CORRELATION: f64 = 0.3;
/// Points beyond are no more a number than infinity is: sums of them overflow.
const MAX_MAGNITUDE: f64 = 1e300;
/// Points of an arm; of more, so many are judged, evenly apart.
const MAX_POINTS: usize = 10_000;
/// Quartile ranges beyond the quartiles from which on a point is an outlier.
const OUTLIER_IQRS: f64 = 3.0;

impl MannWhitney {
    pub fn check(&self, measurement: &Measurement) -> Verdict {
        let Measurement::Samples(raw) = measurement else {
            return Verdict::wrong_measurement_kind("samples of canary and primary", measurement);
        };
        let arms = raw.map(|points| self.clean(points));
        let points = arms.map(|points| points.len() as u64);
        if points == Arms::default() {
            return Verdict::no_data();
        }
        let fewest = points.canary.min(points.primary);
        if fewest < self.0.min_samples.max(1) {
            let message = format!(
                "canary {} points, primary {}: too few, {} are needed of each",
                points.canary, points.primary, self.0.min_samples
            );
            return Verdict::inconclusive(InconclusiveReason::TooFewSamples, points, message);
        }
        self.judge(&arms, points)
    }

    fn judge(&self, arms: &Arms<Vec<f64>>, points: Arms<u64>) -> Verdict {
        let ranks = Ranks::new(&arms.canary, &arms.primary);
        let z = Normal::standard().inverse_cdf(0.5 + self.0.confidence / 2.0);
        let shift = ranks.shift();
        let (low, high) = ranks.interval(z);
        let tolerated = self.0.tolerance * shift.abs();
        let Effect { measure, allowed_increase, allowed_decrease, critical_increase, critical_decrease } =
            self.0.effect;
        let effect = match measure {
            EffectMeasure::MeanRatio => ratio(mean(&arms.canary), mean(&arms.primary)),
            EffectMeasure::Cles => ranks.chance_above(),
        };
        let higher = self.0.direction != Direction::Decrease
            && low > tolerated
            && allowed_increase.is_none_or(|allowed| effect >= allowed);
        let lower = self.0.direction != Direction::Increase
            && high < -tolerated
            && allowed_decrease.is_none_or(|allowed| effect <= allowed);
        let (outcome, finding) = if higher {
            (
                JudgeOutcome::Fail { critical: critical_increase.is_some_and(|critical| effect >= critical) },
                "higher",
            )
        } else if lower {
            (
                JudgeOutcome::Fail { critical: critical_decrease.is_some_and(|critical| effect <= critical) },
                "lower",
            )
        } else {
            (JudgeOutcome::Pass { non_inferior: false }, "no difference that counts")
        };
        let message = format!(
            "canary {} vs primary {} at the median, shift {} ({} to {} at {}): {finding}{}",
            number(median(&arms.canary)),
            number(median(&arms.primary)),
            number(shift),
            number(low),
            number(high),
            percent(self.0.confidence),
            caveat(arms),
        );
        let estimate = Some(Estimate { value: shift, low: Some(low), high: Some(high) });
        Verdict { outcome, estimate, samples: points, message }
    }

    fn clean(&self, points: &[f64]) -> Vec<f64> {
        let apart = points.len().div_ceil(MAX_POINTS).max(1);
        let finite = points.iter().step_by(apart).filter_map(|&point| match self.0.nan {
            _ if point.abs() <= MAX_MAGNITUDE => Some(point),
            Nan::Remove => None,
            Nan::ReplaceByZero => Some(0.0),
        });
        let finite: Vec<f64> = finite.collect();
        match self.0.outliers {
            Outliers::Keep => finite,
            Outliers::Remove => without_outliers(finite),
        }
    }
}

fn caveat(arms: &Arms<Vec<f64>>) -> String {
    let correlation = lag_one_autocorrelation(&arms.canary).max(lag_one_autocorrelation(&arms.primary));
    if correlation < NOTABLE_CORRELATION {
        return String::new();
    }
    format!(
        "; but points depend on the one before them (autocorrelation {correlation:.1}), so this is less certain than stated"
    )
}

fn mean(points: &[f64]) -> f64 {
    points.iter().sum::<f64>() / points.len() as f64
}

/// Of means; two zeros are equal.
fn ratio(canary: f64, primary: f64) -> f64 {
    if canary == primary { 1.0 } else { canary / primary }
}

fn median(points: &[f64]) -> f64 {
    quantile(&sorted(points), 0.5)
}

pub(super) fn sorted(points: &[f64]) -> Vec<f64> {
    let mut sorted = points.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted
}

/// Linear between the points around it.
fn quantile(sorted: &[f64], q: f64) -> f64 {
    let at = q * (sorted.len() - 1) as f64;
    let (below, above) = (sorted[at.floor() as usize], sorted[at.ceil() as usize]);
    below + (above - below) * at.fract()
}

fn without_outliers(points: Vec<f64>) -> Vec<f64> {
    if points.is_empty() {
        return points;
    }
    let sorted = sorted(&points);
    let (first, third) = (quantile(&sorted, 0.25), quantile(&sorted, 0.75));
    let reach = OUTLIER_IQRS * (third - first);
    points.into_iter().filter(|point| (first - reach..=third + reach).contains(point)).collect()
}

/// Of each point with the next one; zero for constant points.
fn lag_one_autocorrelation(points: &[f64]) -> f64 {
    let mean = mean(points);
    let variance: f64 = points.iter().map(|point| (point - mean).powi(2)).sum();
    let covariance: f64 = points.windows(2).map(|pair| (pair[0] - mean) * (pair[1] - mean)).sum();
    if variance > 0.0 { covariance / variance } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sixty points that jump about without order around a middle.
    fn around(middle: f64) -> Vec<f64> {
        (0..60).map(|i| middle + f64::from(i * 37 % 60 - 30) / 10.0).collect()
    }

    fn verdict_of(settings: Settings, canary: Vec<f64>, primary: Vec<f64>) -> Verdict {
        MannWhitney::try_from(settings).unwrap().check(&Measurement::Samples(Arms { canary, primary }))
    }

    #[track_caller]
    fn check(settings: Settings, canary: f64, primary: f64, expected: JudgeOutcome) {
        let verdict = verdict_of(settings, around(canary), around(primary));
        assert_eq!(verdict.outcome, expected, "{}", verdict.message);
    }

    const PASS: JudgeOutcome = JudgeOutcome::Pass { non_inferior: false };
    const FAIL: JudgeOutcome = JudgeOutcome::Fail { critical: false };
    const TOO_LITTLE: JudgeOutcome = JudgeOutcome::Inconclusive { reason: InconclusiveReason::TooFewSamples };

    #[test]
    fn only_the_worse_direction_fails() {
        use Direction::*;
        for (direction, up, down) in [(Increase, FAIL, PASS), (Decrease, PASS, FAIL), (Either, FAIL, FAIL)] {
            let settings = Settings { direction, ..Settings::default() };
            check(settings, 110.0, 100.0, up);
            check(settings, 90.0, 100.0, down);
            check(settings, 100.0, 100.0, PASS);
        }
    }

    #[test]
    fn a_real_but_small_effect_passes_where_a_larger_one_is_asked_for() {
        let settings = |effect| Settings { direction: Direction::Either, effect, ..Settings::default() };
        let ratio = settings(Effect {
            allowed_increase: Some(1.2),
            allowed_decrease: Some(0.8),
            critical_increase: Some(1.5),
            critical_decrease: Some(0.5),
            ..Effect::default()
        });
        for (canary, expected) in [
            (40.0, JudgeOutcome::Fail { critical: true }),
            (75.0, FAIL),
            (90.0, PASS),
            (110.0, PASS),
            (125.0, FAIL),
            (160.0, JudgeOutcome::Fail { critical: true }),
        ] {
            check(ratio, canary, 100.0, expected);
        }
        let cles = settings(Effect {
            measure: EffectMeasure::Cles,
            allowed_increase: Some(0.8),
            allowed_decrease: Some(0.2),
            ..Effect::default()
        });
        for (canary, expected) in [(90.0, FAIL), (98.5, PASS), (101.5, PASS), (110.0, FAIL)] {
            check(cles, canary, 100.0, expected);
        }
    }

    #[test]
    fn an_interval_that_reaches_into_the_tolerance_passes() {
        let verdict =
            verdict_of(Settings { tolerance: 0.9, ..Settings::default() }, around(101.5), around(100.0));
        assert_eq!(verdict.outcome, PASS);
        let verdict = verdict_of(Settings::default(), around(101.5), around(100.0));
        assert_eq!(verdict.outcome, FAIL);
        let Estimate { value, low, high } = verdict.estimate.unwrap();
        assert!(low.unwrap() < value && value < high.unwrap() && (value - 1.5).abs() < 0.1);
    }

    #[test]
    fn fewer_than_fifty_points_are_inconclusive_however_bad() {
        let verdict = verdict_of(Settings::default(), vec![1e6; 49], around(1.0));
        assert_eq!(verdict.outcome, TOO_LITTLE);
        assert_eq!(verdict.message, "canary 49 points, primary 60: too few, 50 are needed of each");
    }

    #[test]
    fn points_that_are_not_numbers_are_left_out_or_become_zero() {
        let mut holes = around(100.0);
        holes[..40].fill(f64::NAN);
        assert_eq!(verdict_of(Settings::default(), holes.clone(), around(100.0)).outcome, TOO_LITTLE);
        let zeros = Settings { nan: Nan::ReplaceByZero, direction: Direction::Either, ..Settings::default() };
        assert_eq!(verdict_of(zeros, holes, around(100.0)).outcome, FAIL);
        let none = verdict_of(Settings::default(), vec![f64::NAN; 60], vec![]);
        assert_eq!(none.outcome, JudgeOutcome::Inconclusive { reason: InconclusiveReason::NoData });
    }

    #[test]
    fn absurd_points_are_no_numbers() {
        let mut absurd = around(100.0);
        absurd[..5].copy_from_slice(&[f64::MAX, f64::MIN, f64::INFINITY, f64::NEG_INFINITY, f64::NAN]);
        let verdict = verdict_of(Settings::default(), absurd, around(100.0));
        assert_eq!((verdict.outcome, verdict.samples.canary), (PASS, 55));
    }

    #[test]
    fn a_flood_of_points_is_thinned_and_judged() {
        let points = |above: f64| (0..95_000).map(|i| above + f64::from(i % 997)).collect();
        let verdict = verdict_of(Settings::default(), points(900.0), points(100.0));
        assert_eq!((verdict.outcome, verdict.samples), (FAIL, Arms { canary: 9_500, primary: 9_500 }));
    }

    #[test]
    fn outliers_are_left_out_only_when_asked() {
        let mut wild = around(100.0);
        wild.extend([1e9, 1e9]);
        let points = |outliers| {
            verdict_of(Settings { outliers, ..Settings::default() }, wild.clone(), around(100.0))
                .samples
                .canary
        };
        assert_eq!(points(Outliers::Keep), 62);
        assert_eq!(points(Outliers::Remove), 60);
    }

    #[test]
    fn constant_samples_are_judged_without_noise_or_nonsense() {
        let constant = |canary, primary| verdict_of(Settings::default(), vec![canary; 60], vec![primary; 60]);
        assert_eq!(constant(5.0, 5.0).outcome, PASS);
        assert_eq!(constant(5.0, 3.0).outcome, FAIL);
        assert_eq!(constant(0.0, 0.0).outcome, PASS);
        assert_eq!(constant(5.0, 3.0), constant(5.0, 3.0));
    }

    #[test]
    fn the_verdict_warns_of_autocorrelation() {
        let drifting: Vec<f64> = (0..60).map(f64::from).collect();
        assert!(verdict_of(Settings::default(), drifting.clone(), drifting).message.contains("less certain"));
        let message = verdict_of(Settings::default(), around(110.0), around(100.0)).message;
        assert_eq!(
            message,
            "canary 109.95 vs primary 99.95 at the median, shift 10 (9.2 to 10.8 at 98 %): higher"
        );
    }

    #[test]
    fn invalid_settings_are_refused() {
        let refused = |settings| MannWhitney::try_from(settings).unwrap_err();
        let default = Settings::default();
        assert_eq!(refused(Settings { tolerance: 1.0, ..default }), SettingsError::Tolerance(1.0));
        assert_eq!(refused(Settings { confidence: 98.0, ..default }), SettingsError::Confidence(98.0));
        let effect =
            Effect { measure: EffectMeasure::Cles, allowed_increase: Some(1.2), ..Effect::default() };
        assert_eq!(refused(Settings { effect, ..default }), SettingsError::Effect(1.2));
    }
}
