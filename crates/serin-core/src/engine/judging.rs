//! The result of a check: each metric is judged, its verdict is recorded in the status
//! and becomes a [`CheckResult`] by the policy of the metric, and the results are combined.
//!
//! Two results need no metric of their own: a canary that falls silent, and request
//! counts that contradict the weight.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::{
    action::Check,
    check::CheckResult,
    decider::{Decider, after},
    plan::{MetricPlan, metrics::Judged, steps::Step},
    report::RollbackCause,
};
use crate::{
    analysis::{
        measurement::{Arms, Counts, Histogram, Measurement, SLOW_QUANTILE, Values},
        sequential::Look,
        verdict::{Estimate, InconclusiveReason, JudgeOutcome, Verdict},
    },
    api::{
        canary::status::{MetricStatus, TimesWorse, Verdict as StatusVerdict},
        judge::OnMissing,
    },
};

/// Checks in a row at which only the primary has requests, and the time since the
/// step began, after which the release is rolled back: a metrics server may find new
/// pods late.
const MAX_SILENT_CHECKS: u32 = 3;
const MIN_SILENCE: Duration = Duration::from_secs(120);
/// Requests that the weight owes the canary for their absence to be silence.
const MIN_OWED_REQUESTS: f64 = 20.0;
impl Decider<'_> {
    pub(super) fn judge(&mut self, step: &Step, check: &Check) -> CheckResult {
        let plan = self.plan;
        let mut all = CheckResult::PassedEarly;
        let mut scored = Vec::new();
        for metric in step.metrics.iter().map(|at| &plan.metrics[*at]) {
            let Some(requested) = check.metrics.iter().find(|window| window.metric == metric.name) else {
                continue;
            };
            let measured = self.observed.measurements.as_ref();
            let until = measured.map_or(self.now, |measured| measured.measured_until(&metric.name));
            let known = measured.map_or(until, |measured| measured.known_until(&metric.name));
            let lag = Duration::try_from(until.duration_since(known)).unwrap_or_default();
            let look = Look {
                until: until.as_millisecond(),
                known_until: known.as_millisecond(),
                warming_up: self.is_warming_up(requested.since, lag),
                full: check.full,
            };
            let window = (requested.since, until);
            let check_result = match measured.and_then(|measured| measured.results.get(&metric.name)) {
                Some(result) => self.judge_metric(metric, result, window, look),
                None => {
                    let missing = Measurement::Unavailable { why: "nothing was returned".to_owned() };
                    self.judge_metric(metric, &missing, window, look)
                }
            };
            match (&metric.policy.score_weight, &check_result) {
                (Some(share), CheckResult::Passed) => {
                    scored.push((share, JudgeOutcome::Pass { non_inferior: false }))
                }
                (Some(share), CheckResult::Failed(_)) => {
                    scored.push((share, JudgeOutcome::Fail { critical: false }))
                }
                _ => all = most_severe(all, check_result),
            }
        }
        if let Some((share, _)) = scored.first() {
            all = most_severe(
                all,
                score_result(
                    share.score.combine(scored.iter().map(|(share, outcome)| (*outcome, share.weight))),
                ),
            );
        }
        all = most_severe(all, self.check_silence(step, check));
        match most_severe(all, self.check_sample_ratio(step, check)) {
            CheckResult::PassedEarly if step.metrics.is_empty() => CheckResult::Passed,
            all => all,
        }
    }

    /// A canary that has a weight and no requests, while the primary has some, for
    /// several checks: its requests are lost, or nobody sees what it answers.
    fn check_silence(&mut self, step: &Step, check: &Check) -> CheckResult {
        let plan = self.plan;
        let mut counting = step.metrics.iter().map(|at| &plan.metrics[*at]);
        let Some(metric) = counting.find(|metric| {
            metric.counts_requests
                && metric.policy.on_no_data != OnMissing::Ignore
                && self.sample_ratio_applies(step)
        }) else {
            return CheckResult::PassedEarly;
        };
        let measured = self.results(check).and_then(|measured| measured.results.get(&metric.name));
        let Some(requests) = measured.map(|measured| summary_values(measured).1) else {
            return CheckResult::PassedEarly;
        };
        let (weight, now) = (step.split.canary, self.now);
        let owed = requests.primary as f64 * weight.percent() / weight.complement().percent();
        let began =
            self.status.step.as_ref().and_then(|step| step.started_at.as_ref()).map_or(now, |at| at.0);
        let state = &mut self.release().state;
        if requests.canary > 0 {
            state.silent_checks = 0;
        } else if check.full && owed >= MIN_OWED_REQUESTS {
            state.silent_checks = state.silent_checks.saturating_add(1);
        }
        let checks = state.silent_checks;
        if checks < MAX_SILENT_CHECKS || now < after(began, MIN_SILENCE) {
            return CheckResult::PassedEarly;
        }
        roll_back_for(
            metric,
            &format!(
                "the canary has a weight of {weight} % and counted no request in {checks} checks, the primary {} \
                 in the last one: its requests are lost, or its metrics are; set onNoData: ignore to go on",
                requests.primary
            ),
        )
    }

    /// Feeds the requests of the first metric that counts them to the sample
    /// ratio test: always the same metric, so no request counts twice.
    fn check_sample_ratio(&mut self, step: &Step, check: &Check) -> CheckResult {
        let plan = self.plan;
        let mut counting = step.metrics.iter().map(|at| &plan.metrics[*at]);
        let Some(metric) = counting.find(|metric| metric.counts_requests && self.sample_ratio_applies(step))
        else {
            return CheckResult::PassedEarly;
        };
        let until = self.results(check).map(|measured| measured.measured_until(&metric.name));
        let counted = self.metric_status(&metric.name).measured_until == until.map(Time);
        let measured = self.results(check).and_then(|measured| measured.results.get(&metric.name));
        let since = check.metrics.iter().find(|window| window.metric == metric.name).map(|w| w.since);
        let lasted = since.zip(until).and_then(|(since, until)| until.duration_since(since).try_into().ok());
        let requests = measured.filter(|_| counted).map(|measured| summary_values(measured).1).zip(lasted);
        self.update_sample_ratio(step, requests.unwrap_or_default(), check.full)
    }

    /// Judges the measurement of one window. Only full checks count towards
    /// limits; an interim check rolls back only where one failure does.
    fn judge_metric(
        &mut self,
        plan: &MetricPlan,
        measured: &Measurement,
        (since, until): (Timestamp, Timestamp),
        look: Look,
    ) -> CheckResult {
        let full = look.full;
        let (began, now) = (self.check_started_at(), self.now);
        let policy = &plan.policy;
        let may_replace_pod = self.may_replace_pod();
        let status = self.metric_status(&plan.name);
        let Judged { verdict, evidence, low_power, broken_pod } =
            policy.judge.check(&mut status.analysis_state, measured, look, status.measured_until.is_none());
        let passed_before = status.verdict == StatusVerdict::Pass
            && status.at.as_ref().zip(began).is_some_and(|(at, began)| at.0 > began);
        let counted = match verdict.outcome {
            JudgeOutcome::Pass { .. } | JudgeOutcome::Fail { .. } | JudgeOutcome::BeyondLimit => true,
            JudgeOutcome::Inconclusive { reason } => {
                !matches!(
                    reason,
                    InconclusiveReason::NoData
                        | InconclusiveReason::Unavailable
                        | InconclusiveReason::WrongMeasurementKind
                ) && policy.judge.is_stateful()
            }
        };
        if counted {
            status.measured_until = Some(Time(until));
        } else if until <= since {
            // The source lags and has no data of this window yet. The next
            // window must not start after the data it will have then.
            status.measured_until = Some(Time(since));
        }
        let check_result = match verdict.outcome {
            // After an interim check passed, the rest of the interval may be too
            // short for a verdict, or for the lag of the source.
            JudgeOutcome::Inconclusive {
                reason: InconclusiveReason::TooFewSamples | InconclusiveReason::NoData,
            } if passed_before => {
                status.at = Some(Time(now));
                return CheckResult::Passed;
            }
            outcome => to_check_result(plan, outcome, &verdict.message, full),
        };
        let outcome = verdict.outcome;
        let estimate = verdict.estimate.filter(|_| policy.judge.is_stateful());
        record_verdict(status, verdict, measured, now);
        status.evidence = evidence;
        status.low_power = low_power;
        status.times_worse = estimate.map(|Estimate { value, low, high }| TimesWorse {
            value: hundredths(value),
            low: low.map(hundredths),
            high: high.map(hundredths),
        });
        let (count, limit) = match &check_result {
            CheckResult::Failed(_) => {
                status.inconclusives = 0;
                status.failures = status.failures.saturating_add(u32::from(full));
                match outcome {
                    JudgeOutcome::Fail { .. } => (status.failures.max(1), policy.failure_limit),
                    _ => (status.failures, policy.check_failure_limit),
                }
            }
            CheckResult::Inconclusive(_) => {
                let temporary = matches!(
                    outcome,
                    JudgeOutcome::Inconclusive {
                        reason: InconclusiveReason::WarmingUp | InconclusiveReason::Incident
                    }
                );
                status.inconclusives = status.inconclusives.saturating_add(u32::from(full && !temporary));
                (status.inconclusives, policy.inconclusive_limit)
            }
            _ => {
                status.inconclusives = 0;
                return check_result;
            }
        };
        match limit {
            Some(limit) if count >= limit => match broken_pod.filter(|_| may_replace_pod) {
                Some(pod) => {
                    CheckResult::ReplacePod { pod, why: format!("{}: {}", plan.name, status.reason) }
                }
                None => roll_back_for(plan, &status.reason),
            },
            _ => check_result,
        }
    }

    pub(super) fn metric_status(&mut self, name: &str) -> &mut MetricStatus {
        let metrics = &mut self.status.metrics;
        let at = metrics.iter().position(|metric| metric.name == name).unwrap_or_else(|| {
            metrics.push(MetricStatus {
                name: name.to_owned(),
                verdict: StatusVerdict::Inconclusive,
                reason: "not judged yet".to_owned(),
                at: None,
                canary: None,
                primary: None,
                canary_count: None,
                primary_count: None,
                evidence: None,
                times_worse: None,
                low_power: false,
                failures: 0,
                inconclusives: 0,
                measured_until: None,
                analysis_state: None,
            });
            metrics.len() - 1
        });
        &mut metrics[at]
    }
}

/// Combines results: all must pass for the release to advance, any failure
/// counts, and a rollback overrides everything.
pub(super) fn most_severe(a: CheckResult, b: CheckResult) -> CheckResult {
    let rank = |check_result: &CheckResult| match check_result {
        CheckResult::PassedEarly => 0,
        CheckResult::Passed => 1,
        CheckResult::Pending => 2,
        CheckResult::Inconclusive(_) => 3,
        CheckResult::Failed(_) => 4,
        CheckResult::ReplacePod { .. } => 5,
        CheckResult::RollBack(_) => 6,
    };
    if rank(&b) > rank(&a) { b } else { a }
}

/// Applies the policy of a metric to a verdict. A metric without data at an interim
/// check may have some at the full one.
fn to_check_result(plan: &MetricPlan, outcome: JudgeOutcome, message: &str, full: bool) -> CheckResult {
    let why = || format!("{}: {message}", plan.name);
    let on_missing = match outcome {
        JudgeOutcome::Pass { non_inferior: true } if plan.policy.ends_on_evidence => {
            return CheckResult::PassedEarly;
        }
        JudgeOutcome::Pass { .. } => return CheckResult::Passed,
        JudgeOutcome::Fail { critical: true } => return roll_back_for(plan, message),
        JudgeOutcome::Fail { critical: false } | JudgeOutcome::BeyondLimit => {
            return CheckResult::Failed(why());
        }
        JudgeOutcome::Inconclusive { reason: InconclusiveReason::NoData } => plan.policy.on_no_data,
        JudgeOutcome::Inconclusive { reason: InconclusiveReason::Unavailable } => plan.policy.on_unavailable,
        JudgeOutcome::Inconclusive {
            reason:
                InconclusiveReason::TooFewSamples
                | InconclusiveReason::Suspected
                | InconclusiveReason::Incident
                | InconclusiveReason::WarmingUp
                | InconclusiveReason::WrongMeasurementKind,
        } => OnMissing::Hold,
    };
    match on_missing {
        OnMissing::Hold => CheckResult::Inconclusive(why()),
        OnMissing::Fail if full => CheckResult::Failed(why()),
        OnMissing::Fail => CheckResult::Inconclusive(why()),
        OnMissing::Ignore => CheckResult::Passed,
    }
}

fn roll_back_for(plan: &MetricPlan, why: &str) -> CheckResult {
    CheckResult::RollBack(RollbackCause::Metric { metric: plan.name.clone(), why: why.to_owned() })
}

/// Result of the common score of several metrics.
fn score_result(verdict: Verdict) -> CheckResult {
    match verdict.outcome {
        JudgeOutcome::Pass { .. } => CheckResult::Passed,
        JudgeOutcome::Fail { .. } | JudgeOutcome::BeyondLimit => CheckResult::Failed(verdict.message),
        JudgeOutcome::Inconclusive { .. } => CheckResult::Inconclusive(verdict.message),
    }
}

fn record_verdict(status: &mut MetricStatus, verdict: Verdict, measured: &Measurement, now: Timestamp) {
    status.verdict = match verdict.outcome {
        JudgeOutcome::Pass { .. } => StatusVerdict::Pass,
        JudgeOutcome::Fail { .. } | JudgeOutcome::BeyondLimit => StatusVerdict::Fail,
        JudgeOutcome::Inconclusive { .. } => StatusVerdict::Inconclusive,
    };
    status.reason = verdict.message;
    status.at = Some(Time(now));
    let (values, counts) = summary_values(measured);
    (status.canary, status.primary) = (values.canary, values.primary);
    let some = |count: u64| (count > 0).then_some(count as f64);
    (status.canary_count, status.primary_count) = (some(counts.canary), some(counts.primary));
}

/// One value per arm for the status, and the requests or points behind it.
fn summary_values(measured: &Measurement) -> (Arms<Option<f64>>, Arms<u64>) {
    match measured {
        Measurement::Scalar(value) => (Arms { canary: Some(*value), primary: None }, Arms::default()),
        Measurement::Counts(arms) => {
            let success = |counts: &Counts| counts.rate().map(|bad| rounded(100.0 * (1.0 - bad)));
            (arms.map(success), arms.map(Counts::total))
        }
        Measurement::PodCounts(_) | Measurement::PodHistograms(_) => {
            summary_values(&measured.clone().summed())
        }
        Measurement::Histogram(arms) => {
            (arms.map(|arm| arm.quantile(SLOW_QUANTILE).map(rounded)), arms.map(Histogram::total))
        }
        Measurement::Values(arms) => (arms.map(|arm| arm.summary().map(rounded)), arms.map(Values::requests)),
        Measurement::Samples(arms) => (arms.map(|arm| median(arm)), arms.map(|arm| arm.len() as u64)),
        Measurement::NoData | Measurement::Unavailable { .. } => Default::default(),
    }
}

fn hundredths(ratio: f64) -> f64 {
    (ratio * 100.0).round() / 100.0
}

/// To six decimals.
fn rounded(value: f64) -> f64 {
    (value * 1e6).round() / 1e6
}

fn median(points: &[f64]) -> Option<f64> {
    let mut points: Vec<f64> = points.iter().copied().filter(|point| point.is_finite()).collect();
    points.sort_by(f64::total_cmp);
    points.get(points.len() / 2).copied()
}
