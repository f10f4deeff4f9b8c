//! Pods of one arm differ.
//!
//! Each pod has an error rate of its own: a node with a slow disk, a shard with the
//! large customers. Two arms of few such pods differ by the draw of their pods, however
//! many requests there are, and requests alone would convict the arm with the worse draw.
//! So the variance of the rates between the pods of an arm is estimated, beyond that by
//! chance, and evidence about the arms is worth what such draws leave of it.
//!
//! A look compares the pods that were read in it with each other, so neither a changing
//! rate nor a pod that comes later counts as a difference.
//!
//! A single broken pod is the other case: its arm hardly differs, and it does from every
//! pod of the primary. Each pod of the canary has an e-process of its own, against the
//! whole primary. They share a part of the risk, and need more looks than the arms do:
//! a pod has all of a clump of retries.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use statrs::distribution::{Binomial, DiscreteCDF as _};

use super::confirmation::{Confirmation, Finding, LogEvidence, Look};
use super::e_process::{
    MIN_LOG, downscale, fillings_of_each, log, log_add, log_mean, remaining_prior, start_prior,
};
use super::fixed::Fixed;
use crate::analysis::contingency_table::{ContingencyTable, OddsRatio};
use crate::analysis::measurement::{Arms, Counts, PodCounts, sum_of_pods};

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Pods {
    canary: BTreeMap<String, CanaryPod>,
    primary: BTreeMap<String, Spread>,
    /// Pods of each arm at the last look.
    number: Arms<u32>,
    /// Looks at pods of the canary.
    checks: u32,
    /// The pod with the most evidence against it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    suspect: Option<String>,
    confirmation: Confirmation,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct CanaryPod {
    spread: Spread,
    /// Log-evidence that it has become worse than the margin allows.
    alarm: [Fixed; TIMES_WORSE.len()],
}

/// Requests of a pod, its bad ones if all pods of its arm were alike, and their variance.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Spread(Counts, Fixed, Fixed);

/// How many times beyond the margin a broken pod is.
const TIMES_WORSE: [f64; 4] = [2.0, 4.0, 8.0, 16.0];
/// The log-evidence that one look at a pod adds at most.
const MAX_GAIN: f64 = 1.5;
/// The part of the risk of a false rollback that pods have.
pub(super) const RISK_SHARE: f64 = 0.1;
/// The chance that a pod is named although the pods of the canary are alike.
const CULPRIT_RISK: f64 = 0.05;
/// Pods of an arm that are followed; more hardly move its mean.
const MAX_PODS: usize = 20;
/// Bad requests of the primary that its variance between pods counts for at the canary,
/// which has few at first.
const BORROWED: f64 = 20.0;
/// Squared deviations that a handful of alike pods has beyond the mean by chance.
const CHANCE: f64 = 6.0;
/// Few pods show their variance badly: it is taken for larger by this over its degrees
/// of freedom.
const SMALL_SAMPLE: f64 = 4.0;

impl Pods {
    /// Adds a look. `inflation` is that by overdispersion.
    pub fn update(&mut self, margin: f64, look: &Arms<PodCounts>, inflation: f64) {
        let Arms { canary, primary } = look.map(sum_of_pods);
        self.number = look.map(|pods| pods.len() as u32);
        for (name, counts) in &look.primary {
            if let Some(spread) = followed(&mut self.primary, name) {
                spread.add(*counts, primary);
            }
        }
        let fillings = fillings_of_each(look.canary.len().min(MAX_PODS));
        for (name, counts) in &look.canary {
            let Some(pod) = followed(&mut self.canary, name) else { continue };
            pod.spread.add(*counts, canary);
            let table = downscale(Arms { canary: *counts, primary }, fillings);
            pod.compare(margin, table, start_prior(self.checks), inflation);
        }
        self.checks = self.checks.saturating_add(1);
    }

    /// How much less evidence about the arms is worth because their pods differ, with
    /// these bad and other requests behind it.
    pub fn variance_inflation(&self, of: Arms<Counts>) -> f64 {
        let Arms { canary, primary } = self.relative_variance();
        let mean =
            canary / f64::from(self.number.canary.max(1)) + primary / f64::from(self.number.primary.max(1));
        let freedom = self.number.canary.saturating_sub(1) + self.number.primary.saturating_sub(1);
        1.0 + information(of) * mean * small_sample(freedom)
    }

    /// Of the rates of the pods, in units of their mean.
    fn relative_variance(&self) -> Arms<f64> {
        let primary = Excess::of(self.primary.values());
        let canary = Excess::of(self.canary.values().map(|pod| &pod.spread));
        let borrowed = primary.scaled(BORROWED);
        Arms { canary: canary.plus(borrowed).relative_variance(), primary: primary.relative_variance() }
    }

    /// Whether a pod is convicted, with the log-evidence that convicts an arm. `bursts`
    /// is the variance inflation of the last minutes.
    pub fn finding(&mut self, look: Look, convicts: f64, bursts: f64) -> Finding {
        let worst = self.canary.iter().map(|(name, pod)| (name, self.log_e_value(pod) / bursts));
        let worst = worst.max_by(|(_, a), (_, b)| a.total_cmp(b)).map(|(name, log)| (name.clone(), log));
        let Some((name, evidence)) = worst.filter(|_| self.number.primary > 1 && self.number.canary > 1)
        else {
            return Finding::Calm;
        };
        if self.suspect.as_ref() != Some(&name) {
            self.confirmation = Confirmation::default();
            self.suspect = Some(name);
        }
        let evidence = evidence - f64::from(self.number.canary).ln();
        let logs = LogEvidence { damped: evidence, raw: evidence, worth: evidence };
        self.confirmation.update(logs, look, convicts - RISK_SHARE.ln())
    }

    /// Drops an alarm that later requests did not confirm.
    pub fn drop_alarm(&mut self) {
        if let Some(pod) = self.suspect.as_ref().and_then(|name| self.canary.get_mut(name)) {
            pod.alarm = CanaryPod::default().alarm;
        }
    }

    /// The pod that stands out most, and its requests.
    pub fn suspect(&self) -> Option<(&str, Counts)> {
        let name = self.suspect.as_ref()?;
        Some((name, self.canary.get(name)?.spread.0))
    }

    /// The pod that alone has evidence against it, and more bad requests than any would have
    /// if the pods of the canary were alike; and its requests. A canary that is bad as a whole
    /// has its first errors somewhere.
    pub fn culprit(&self) -> Option<(&str, Counts)> {
        let (name, counts) = self.suspect()?;
        let stands_out =
            |(pod, state): (&String, &CanaryPod)| (pod.as_str() == name) == (self.log_e_value(state) > 0.0);
        let by_chance = self.chance_of_as_many(self.canary.get(name)?) * self.canary.len() as f64;
        (self.canary.iter().all(stands_out) && by_chance < CULPRIT_RISK).then_some((name, counts))
    }

    /// The chance that this pod would have as many of the canary's bad requests if its pods
    /// were alike.
    fn chance_of_as_many(&self, pod: &CanaryPod) -> f64 {
        let Spread(counts, expected, _) = pod.spread;
        let Some(others) = counts.bad().checked_sub(1) else { return 1.0 };
        let all = self.canary.values().fold(0_u64, |sum, pod| sum.saturating_add(pod.spread.0.bad()));
        let share = (expected.get() / all as f64).clamp(0.0, 1.0);
        Binomial::new(share, all).map_or(1.0, |bad| bad.sf(others))
    }

    /// Beyond one it is a root of that by the variance between the pods of the primary.
    fn log_e_value(&self, pod: &CanaryPod) -> f64 {
        let evidence = log_add(log_mean(&pod.alarm), remaining_prior(self.checks).ln());
        let primary = f64::from(self.number.primary.max(1));
        let variance = self.relative_variance().primary
            * (1.0 + 1.0 / primary)
            * small_sample(self.number.primary.saturating_sub(1));
        let of = Arms { canary: pod.spread.0, primary: sum_of(self.primary.values()) };
        if evidence > 0.0 { evidence / (1.0 + information(of) * variance) } else { evidence }
    }
}

impl Default for CanaryPod {
    fn default() -> Self {
        CanaryPod { spread: Spread::default(), alarm: [Fixed::of(MIN_LOG); TIMES_WORSE.len()] }
    }
}

impl CanaryPod {
    fn compare(&mut self, margin: f64, of: Arms<Counts>, start: f64, inflation: f64) {
        let Arms { canary, primary } = of;
        let table = ContingencyTable {
            canary: canary.total(),
            primary: primary.total(),
            events: canary.bad() + primary.bad(),
        };
        if !table.is_informative() {
            return;
        }
        let odds: [OddsRatio; TIMES_WORSE.len() + 1] =
            std::array::from_fn(|i| OddsRatio::new(margin * TIMES_WORSE.get(i).copied().unwrap_or(1.0)));
        let logs = table.log_likelihood(canary.bad(), &odds);
        for (alarm, likelihood) in self.alarm.iter_mut().zip(logs) {
            let gain = (likelihood - logs[TIMES_WORSE.len()]) / inflation;
            *alarm = log(log_add(alarm.get(), start.ln()) + gain.min(MAX_GAIN));
        }
    }
}

impl Spread {
    fn add(&mut self, pod: Counts, arm: Counts) {
        self.0.add(pod);
        let (n, all, bad) = (pod.total() as f64, arm.total() as f64, arm.bad() as f64);
        if n > 0.0 {
            // A pod that was read alone has exactly its own.
            let expected = bad * n / all;
            let variance = expected * (1.0 - n / all) * (all - bad) / (all - 1.0).max(1.0);
            (self.1, self.2) = (self.1.plus(expected), self.2.plus(variance));
        }
    }
}

/// The sum over pods of squared deviations beyond those by chance, and of the expected
/// bad requests. A relative variance of one adds one to the former for each of the latter.
#[derive(Clone, Copy)]
struct Excess {
    squares: f64,
    expected: f64,
}

impl Excess {
    fn of<'s>(pods: impl Iterator<Item = &'s Spread>) -> Self {
        let known = pods.filter(|Spread(.., variance)| variance.get() > 0.0);
        known.fold(Excess { squares: 0.0, expected: 0.0 }, |sum, Spread(counts, expected, variance)| {
            let deviation = counts.bad() as f64 - expected.get();
            Excess {
                squares: sum.squares + deviation * deviation / variance.get() - 1.0,
                expected: sum.expected + expected.get(),
            }
        })
    }

    /// As if of at most so many bad requests.
    fn scaled(self, most: f64) -> Self {
        let part = if self.expected > most { most / self.expected } else { 1.0 };
        Excess { squares: self.squares * part, expected: self.expected * part }
    }

    fn plus(self, more: Self) -> Self {
        Excess { squares: self.squares + more.squares, expected: self.expected + more.expected }
    }

    fn relative_variance(self) -> f64 {
        if self.expected > 0.0 { ((self.squares - CHANCE) / self.expected).max(0.0) } else { 0.0 }
    }
}

fn sum_of<'s>(pods: impl Iterator<Item = &'s Spread>) -> Counts {
    pods.fold(Counts::default(), |mut sum, pod| {
        sum.add(pod.0);
        sum
    })
}

/// Of requests about the log of the ratio of two rates: the inverse of its variance.
fn information(of: Arms<Counts>) -> f64 {
    let (canary, primary) = (of.canary.bad() as f64, of.primary.bad() as f64);
    canary * primary / (canary + primary).max(1.0)
}

fn small_sample(freedom: u32) -> f64 {
    1.0 + SMALL_SAMPLE / f64::from(freedom.max(1))
}

/// The state of a pod; none for one too many.
fn followed<'m, T: Default>(pods: &'m mut BTreeMap<String, T>, name: &str) -> Option<&'m mut T> {
    if !pods.contains_key(name) {
        if pods.len() >= MAX_PODS {
            return None;
        }
        pods.insert(name.to_owned(), T::default());
    }
    pods.get_mut(name)
}
