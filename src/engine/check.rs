//! One look: hooks are asked, metrics are measured, and what they say becomes
//! one of a few words.
//!
//! A look begins when the step's split is in force and ends, one interval
//! later, with everything the step judges. Judges that may look at any time do
//! so in between as well: they can end a bad release early, and on evidence a
//! good step.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::{
    WakeReason,
    action::{Action, Look, Moment, Since},
    observed::{Measured, Reply},
    pass::{Pass, after},
    plan::MetricPlan,
    report::Cause,
    steps::Step,
};
use crate::{
    analysis::{
        measurement::{Arms, Counts, Histogram, Measurement, SLOW},
        verdict::{Doubt, Outcome, Verdict},
    },
    api::{
        canary::{
            HookType,
            status::{MetricStatus, Verdict as Word},
        },
        judge::Silence,
    },
};

/// What a look came to.
pub(super) enum Looked {
    /// It is not over, or not all answers are there.
    NotYet,
    Passed,
    /// The evidence is in favour; the step need not go on.
    Certified,
    Failed(String),
    /// One metric alone ends the release.
    Decided(Cause),
    /// Neither good nor bad.
    Doubt(String),
}

/// How often judges look that may look at any time: several times in a look,
/// for they hardly believe a single one; but never faster or slower than this.
const GLANCES: u32 = 4;
const FASTEST: Duration = Duration::from_secs(1);
const SLOWEST: Duration = Duration::from_secs(10);

impl Pass<'_> {
    /// The split is in force: from here on requests count.
    pub fn begin_look(&mut self) {
        let now = self.now;
        if let Some(step) = &mut self.status.step
            && step.look_started_at.is_none()
        {
            step.look_started_at = Some(Time(now));
            self.status.metrics.iter_mut().for_each(|metric| metric.measured_until = None);
            self.progress();
        }
    }

    /// The split is not in force any more. What is being measured is not what
    /// is meant to be.
    pub fn stop_look(&mut self) {
        if let Some(step) = &mut self.status.step
            && step.look_started_at.take().is_some()
        {
            step.looks = step.looks.saturating_add(1);
        }
    }

    /// Another step: certainty about the canary is gathered anew.
    pub fn begin_judging(&mut self) {
        for metric in &mut self.status.metrics {
            metric.measured_until = None;
            metric.inconclusives = 0;
        }
    }

    /// Another release: nothing that was seen of a canary counts for the next.
    /// How the primary's bad requests come is worth knowing from its first look.
    pub fn forget_canary(&mut self) {
        let plan = self.plan;
        for known in std::mem::take(&mut self.status.metrics) {
            let judge = plan.metrics.iter().find(|metric| metric.name == known.name);
            let judge = judge.map(|metric| &metric.terms.judge);
            let kept = judge.and_then(|judge| judge.carry_over(known.analysis_state.as_ref()));
            if kept.is_some() {
                self.metric_status(&known.name).analysis_state = kept;
            }
        }
    }

    /// Looks, if it is time.
    pub fn look(&mut self, at: usize, step: &Step) -> Looked {
        let Some(began) = self.look_began() else { return Looked::NotYet };
        if step.looks == 0 && !step.split.reaches_canary() {
            return Looked::NotYet;
        }
        let ends = after(began, step.interval);
        if ends <= self.now {
            return self.full_look(at, step);
        }
        self.wake_at(ends, WakeReason::Look);
        self.glance(at, step, began)
    }

    fn look_began(&self) -> Option<Timestamp> {
        Some(self.status.step.as_ref()?.look_started_at.as_ref()?.0)
    }

    fn full_look(&mut self, at: usize, step: &Step) -> Looked {
        let hooks = self.hooks(at);
        let look = self.the_look(at, step, true);
        if !look.metrics.is_empty() && self.results(&look).is_none() {
            self.act(Action::Measure(look));
            return Looked::NotYet;
        }
        let Some(hooks) = hooks else { return Looked::NotYet };
        let looked = worse(hooks, self.judge(step, &look));
        if let Some(step) = &mut self.status.step {
            step.look_started_at = Some(Time(self.now));
            step.looks = step.looks.saturating_add(1);
        }
        self.wake_at(after(self.now, step.interval), WakeReason::Look);
        looked
    }

    /// Asks the hooks of a look. None while one has not answered; one that
    /// cannot be reached says nothing about the canary.
    fn hooks(&mut self, at: usize) -> Option<Looked> {
        let plan = self.plan;
        let look = self.status.step.as_ref().map_or(0, |step| step.looks);
        let moment = Moment::Look { step: at as u32, look };
        let mut all = Some(Looked::Certified);
        for gate in plan.gates(HookType::Rollout) {
            let Some(answer) = self.ask(&gate.name, Some(HookType::Rollout), moment) else {
                all = None;
                continue;
            };
            let said = match &answer.reply {
                Reply::Yes { .. } => Looked::Passed,
                Reply::No { why, .. } => Looked::Failed(format!("the hook {} said no ({why})", gate.name)),
                Reply::Silence { why } => {
                    Looked::Doubt(format!("the hook {} did not answer ({why})", gate.name))
                }
            };
            all = all.map(|so_far| worse(so_far, said));
        }
        all
    }

    /// Looks before the interval is over, with the judges that may.
    fn glance(&mut self, at: usize, step: &Step, began: Timestamp) -> Looked {
        let mut quick =
            step.metrics.iter().map(|at| &self.plan.metrics[*at]).filter(|m| m.terms.judge.may_peek());
        let last = |metric: &MetricPlan| {
            let known = self.status.metrics.iter().find(|known| known.name == metric.name)?;
            known.at.as_ref().map(|at| at.0)
        };
        let Some(first) = quick.next() else { return Looked::NotYet };
        let last = quick.filter_map(last).chain(last(first)).max();
        let pause = (step.interval / GLANCES).clamp(FASTEST, SLOWEST);
        let due = after(last.map_or(began, |last| last.max(began)), pause);
        if due >= after(began, step.interval) {
            return Looked::NotYet;
        }
        if due > self.now {
            self.wake_at(due, WakeReason::Look);
            return Looked::NotYet;
        }
        let look = self.the_look(at, step, false);
        if self.results(&look).is_none() {
            self.act(Action::Measure(look));
            return Looked::NotYet;
        }
        let looked = self.judge(step, &look);
        if let Some(step) = &mut self.status.step {
            step.looks = step.looks.saturating_add(1);
        }
        let all =
            look.metrics.len() == step.metrics.len() && self.plan.gates(HookType::Rollout).next().is_none();
        match looked {
            Looked::Decided(_) => looked,
            Looked::Certified if all => looked,
            _ => Looked::NotYet,
        }
    }

    fn the_look(&self, at: usize, step: &Step, full: bool) -> Look {
        let began = self.look_began().unwrap_or(self.now);
        let since = |metric: &MetricPlan| {
            let known = self.status.metrics.iter().find(|known| known.name == metric.name);
            known.and_then(|known| known.measured_until.as_ref()).map_or(began, |until| until.0)
        };
        let metrics = step.metrics.iter().map(|at| &self.plan.metrics[*at]);
        Look {
            release: self.status.releases,
            step: at as u32,
            look: self.status.step.as_ref().map_or(0, |step| step.looks),
            full,
            metrics: metrics
                .filter(|metric| full || metric.terms.judge.may_peek())
                .map(|metric| Since { metric: metric.name.clone(), since: since(metric) })
                .collect(),
        }
    }

    /// What was measured for exactly this look.
    fn results(&self, look: &Look) -> Option<&Measured> {
        self.seen.measured.as_ref().filter(|measured| measured.look == *look)
    }

    fn judge(&mut self, step: &Step, look: &Look) -> Looked {
        let plan = self.plan;
        let mut all = Looked::Certified;
        let mut scored = Vec::new();
        for metric in step.metrics.iter().map(|at| &plan.metrics[*at]) {
            let Some(asked) = look.metrics.iter().find(|asked| asked.metric == metric.name) else { continue };
            let measured = self.seen.measured.as_ref();
            let until = measured.map_or(self.now, |measured| measured.until(&metric.name));
            let window = (asked.since, until);
            let looked = match measured.and_then(|measured| measured.results.get(&metric.name)) {
                Some(result) => self.judge_one(metric, result, window, look.full),
                None => {
                    let missing = Measurement::Unavailable { why: "nothing was returned".to_owned() };
                    self.judge_one(metric, &missing, window, look.full)
                }
            };
            match (&metric.terms.share, &looked) {
                (Some(share), Looked::Passed) => scored.push((share, Outcome::Pass { certified: false })),
                (Some(share), Looked::Failed(_)) => scored.push((share, Outcome::Fail { critical: false })),
                _ => all = worse(all, looked),
            }
        }
        if let Some((share, _)) = scored.first() {
            all = worse(
                all,
                together(share.score.of(scored.iter().map(|(share, outcome)| (*outcome, share.weight)))),
            );
        }
        match worse(all, self.bear_out_split(step, look)) {
            Looked::Certified if step.metrics.is_empty() => Looked::Passed,
            all => all,
        }
    }

    /// One of the metrics counts requests, and what it took in of this look
    /// must bear the split out. After that its counts are spent, so it is the
    /// same one at every look.
    fn bear_out_split(&mut self, step: &Step, look: &Look) -> Looked {
        let plan = self.plan;
        let mut counting = step.metrics.iter().map(|at| &plan.metrics[*at]);
        let Some(metric) = counting.find(|metric| metric.counts_requests && self.checks_split(step)) else {
            return Looked::Certified;
        };
        let until = self.results(look).map(|measured| measured.until(&metric.name));
        let taken_in = self.metric_status(&metric.name).measured_until == until.map(Time);
        let measured = self.results(look).and_then(|measured| measured.results.get(&metric.name));
        let since = look.metrics.iter().find(|asked| asked.metric == metric.name).map(|asked| asked.since);
        let lasted = since.zip(until).and_then(|(since, until)| until.duration_since(since).try_into().ok());
        let requests = measured.filter(|_| taken_in).map(|measured| figures(measured).1).zip(lasted);
        self.check_split(step, requests.unwrap_or_default(), look.full)
    }

    /// Judges what was measured from one moment until another. Only full looks
    /// are counted towards limits; a glance can decide, where one failure does.
    fn judge_one(
        &mut self,
        plan: &MetricPlan,
        measured: &Measurement,
        (since, until): (Timestamp, Timestamp),
        full: bool,
    ) -> Looked {
        let (began, now) = (self.look_began(), self.now);
        let terms = &plan.terms;
        let status = self.metric_status(&plan.name);
        let (verdict, evidence) =
            terms.judge.look(&mut status.analysis_state, measured, status.measured_until.is_none());
        let passed_before = status.verdict == Word::Pass
            && status.at.as_ref().zip(began).is_some_and(|(at, began)| at.0 > began);
        let taken_in = match verdict.outcome {
            Outcome::Pass { .. } | Outcome::Fail { .. } => true,
            Outcome::Inconclusive { doubt } => {
                matches!(doubt, Doubt::TooLittle | Doubt::Suspicion) && terms.judge.remembers()
            }
        };
        if taken_in {
            status.measured_until = Some(Time(until));
        } else if until <= since {
            // The source has not heard of anything yet. It will, and the next
            // look must not begin after what it then tells of.
            status.measured_until = Some(Time(since));
        }
        let looked = match verdict.outcome {
            // The rest of a look that has already passed may well be too short,
            // or shorter than a source takes to hear of it.
            Outcome::Inconclusive { doubt: Doubt::TooLittle | Doubt::NoData } if passed_before => {
                status.at = Some(Time(now));
                return Looked::Passed;
            }
            outcome => meaning(plan, outcome, &verdict.sentence),
        };
        write_down(status, verdict, measured, now);
        status.evidence = evidence;
        let (count, limit) = match &looked {
            Looked::Failed(_) => {
                status.inconclusives = 0;
                status.failures = status.failures.saturating_add(u32::from(full));
                (status.failures.max(1), terms.failure_limit)
            }
            Looked::Doubt(_) => {
                status.inconclusives = status.inconclusives.saturating_add(u32::from(full));
                (status.inconclusives, terms.inconclusive_limit)
            }
            _ => {
                status.inconclusives = 0;
                return looked;
            }
        };
        match limit {
            Some(limit) if count >= limit => decided(plan, &status.reason),
            _ => looked,
        }
    }

    fn metric_status(&mut self, name: &str) -> &mut MetricStatus {
        let metrics = &mut self.status.metrics;
        let at = metrics.iter().position(|metric| metric.name == name).unwrap_or_else(|| {
            metrics.push(MetricStatus {
                name: name.to_owned(),
                verdict: Word::Inconclusive,
                reason: "not judged yet".to_owned(),
                at: None,
                canary: None,
                primary: None,
                canary_count: None,
                primary_count: None,
                evidence: None,
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

/// The rule by which several answers make one: all must pass for the release
/// to advance, any failure counts, and a decision overrides everything.
fn worse(a: Looked, b: Looked) -> Looked {
    let rank = |looked: &Looked| match looked {
        Looked::Certified => 0,
        Looked::Passed => 1,
        Looked::NotYet => 2,
        Looked::Doubt(_) => 3,
        Looked::Failed(_) => 4,
        Looked::Decided(_) => 5,
    };
    if rank(&b) > rank(&a) { b } else { a }
}

/// What one verdict means on the terms of its metric.
fn meaning(plan: &MetricPlan, outcome: Outcome, sentence: &str) -> Looked {
    let said = || format!("{}: {sentence}", plan.name);
    let silence = match outcome {
        Outcome::Pass { certified } if certified && plan.terms.ends_on_evidence => return Looked::Certified,
        Outcome::Pass { .. } => return Looked::Passed,
        Outcome::Fail { critical: true } => return decided(plan, sentence),
        Outcome::Fail { critical: false } => return Looked::Failed(said()),
        Outcome::Inconclusive { doubt: Doubt::NoData } => plan.terms.on_no_data,
        Outcome::Inconclusive { doubt: Doubt::Unavailable } => plan.terms.on_unavailable,
        Outcome::Inconclusive { doubt: Doubt::TooLittle | Doubt::Suspicion | Doubt::Unfit } => Silence::Hold,
    };
    match silence {
        Silence::Hold => Looked::Doubt(said()),
        Silence::Fail => Looked::Failed(said()),
        Silence::Ignore => Looked::Passed,
    }
}

fn decided(plan: &MetricPlan, why: &str) -> Looked {
    Looked::Decided(Cause::Metric { metric: plan.name.clone(), why: why.to_owned() })
}

/// What the score of several metrics means.
fn together(verdict: Verdict) -> Looked {
    match verdict.outcome {
        Outcome::Pass { .. } => Looked::Passed,
        Outcome::Fail { .. } => Looked::Failed(verdict.sentence),
        Outcome::Inconclusive { .. } => Looked::Doubt(verdict.sentence),
    }
}

fn write_down(status: &mut MetricStatus, verdict: Verdict, measured: &Measurement, now: Timestamp) {
    status.verdict = match verdict.outcome {
        Outcome::Pass { .. } => Word::Pass,
        Outcome::Fail { .. } => Word::Fail,
        Outcome::Inconclusive { .. } => Word::Inconclusive,
    };
    status.reason = verdict.sentence;
    status.at = Some(Time(now));
    let (values, counts) = figures(measured);
    (status.canary, status.primary) = (values.canary, values.primary);
    let some = |count: u64| (count > 0).then_some(count as f64);
    (status.canary_count, status.primary_count) = (some(counts.canary), some(counts.primary));
}

/// What was measured of each arm in a number, and how many requests or points
/// that rests on.
fn figures(measured: &Measurement) -> (Arms<Option<f64>>, Arms<u64>) {
    match measured {
        Measurement::Scalar(value) => (Arms { canary: Some(*value), primary: None }, Arms::default()),
        Measurement::Counts(arms) => {
            let success = |counts: &Counts| counts.rate().map(|bad| rounded(100.0 * (1.0 - bad)));
            (arms.map(success), arms.map(Counts::total))
        }
        Measurement::Histogram(arms) => {
            (arms.map(|arm| arm.quantile(SLOW).map(rounded)), arms.map(Histogram::total))
        }
        Measurement::Samples(arms) => (arms.map(|arm| median(arm)), arms.map(|arm| arm.len() as u64)),
        Measurement::NoData | Measurement::Unavailable { .. } => Default::default(),
    }
}

/// To what is worth reading.
fn rounded(value: f64) -> f64 {
    (value * 1e6).round() / 1e6
}

fn median(points: &[f64]) -> Option<f64> {
    let mut points: Vec<f64> = points.iter().copied().filter(|point| point.is_finite()).collect();
    points.sort_by(f64::total_cmp);
    points.get(points.len() / 2).copied()
}
