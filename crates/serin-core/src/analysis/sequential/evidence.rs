//! State of the sequential judge between looks.
//!
//! It belongs to one metric of one release and is stored in the status of the
//! Canary: a few hundred bytes for errors, as many again for every informative
//! latency bound, at most 8 kB for two dozen. Everything in it is an integer, except
//! the margin, which has three decimals: a round trip through JSON does not change it.

use serde::{Deserialize, Serialize};

use super::baseline::{Baseline, Incident};
use super::confirmation::{Confirmation, Finding, LogEvidence, Look};
use super::e_process::{BadKind, EProcess, fillings_of_each, log_add};
use super::fixed::Fixed;
use super::grid::Grid;
use super::pods::Pods;
use super::thresholds::Thresholds;
use super::total_failure::TotalFailure;
use crate::analysis::measurement::{Arms, Counts, Histogram, PodCounts, PodHistograms};

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Evidence {
    version: LayoutVersion,
    /// The margin of the evidence; with another margin it is discarded.
    margin: f64,
    /// Number of e-processes that share the evidence, including those not
    /// started yet.
    shares: u32,
    streams: Vec<EProcess>,
    /// Absent in evidence about latency.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    total_failure: Option<TotalFailure>,
    /// Absent in evidence about latency.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    baseline: Option<Baseline>,
    /// Absent where the source does not count by pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pods: Option<Pods>,
    /// The latency bound at which pods are compared. Absent in other evidence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pod_bound: Option<u64>,
    /// Absent in evidence about anything but values.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    thresholds: Option<Thresholds>,
    confirmation: Confirmation,
    /// Convicted once is convicted for the rest of the release.
    convicted: Option<Conviction>,
    /// Log of the highest evidence against the canary since the last dropped alarm.
    peak: Fixed,
    /// Counts of this check against the absolute limit.
    limited: Arms<Counts>,
    /// Requests since the release began.
    seen: Arms<u64>,
    /// Requests since the last pass.
    fresh: Arms<u64>,
}

/// How the canary was convicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Conviction {
    Compared,
    TotalFailure,
    /// One pod of it.
    Pod,
}

impl Evidence {
    /// A new step is judged on its own traffic: request counts and evidence of
    /// non-inferiority start over. Evidence against the canary stays.
    pub fn begin_step(&mut self) {
        self.fresh = Arms::default();
        self.limited = Arms::default();
        self.streams.iter_mut().for_each(EProcess::begin_step);
    }

    /// State for the next release: nothing about this canary, only the usual
    /// failures and values of the primary and their overdispersion.
    pub fn next_release(&self) -> Self {
        Evidence {
            streams: self.streams.iter().map(EProcess::next_release).collect(),
            baseline: self.baseline.as_ref().map(Baseline::next_release),
            thresholds: self.thresholds.as_ref().map(Thresholds::next_release),
            ..Evidence::for_margin(self.margin)
        }
    }

    /// State to judge the canary anew in the same release.
    pub fn restart(&self) -> Self {
        let (baseline, thresholds) = (self.baseline.clone(), self.thresholds.clone());
        Evidence { baseline, thresholds, ..self.next_release() }
    }

    /// The pod of a convicted canary that alone has evidence against it.
    pub fn broken_pod(&self) -> Option<&str> {
        self.convicted?;
        self.culprit().map(|(pod, _)| pod)
    }

    /// The anytime-valid p-value: the chance that a canary within the margin
    /// would ever have looked this bad.
    pub fn p_value(&self) -> f64 {
        (-self.peak.get()).exp().min(1.0)
    }

    /// Requests since the release began.
    pub fn seen(&self) -> Arms<u64> {
        self.seen
    }

    /// Pairs of looks that the overdispersion of the primary's errors is estimated from.
    pub fn overdispersion_pairs(&self) -> f64 {
        let errors = self.streams.iter().find(|stream| stream.kind == BadKind::Failed);
        errors.map_or(0.0, EProcess::overdispersion_pairs)
    }

    pub(super) fn for_margin(margin: f64) -> Self {
        Evidence { margin, ..Evidence::default() }
    }

    pub(super) fn margin(&self) -> f64 {
        self.margin
    }

    pub(super) fn fresh(&self) -> Arms<u64> {
        self.fresh
    }

    /// After a pass: the next verdict needs new requests.
    pub(super) fn clear_fresh(&mut self) {
        self.fresh = Arms::default();
    }

    /// Adds a look: for each kind of bad request the counts of both arms, out of
    /// the same requests. Kinds share the evidence equally; their number is fixed
    /// at the first look, independent of the data. `convicts` is the log-evidence
    /// that convicts. Returns whether the look had more evidence against the canary than
    /// one may add: the next look shows whether it was a burst.
    pub(super) fn update(
        &mut self,
        grid: &Grid,
        kinds: &[(BadKind, Arms<Counts>)],
        look: Look,
        convicts: f64,
    ) -> bool {
        let Some((_, first)) = kinds.first() else { return false };
        let requests = first.map(Counts::total);
        if let Some((_, failed)) = kinds.iter().find(|(kind, _)| *kind == BadKind::Failed) {
            self.total_failure.get_or_insert_default().update(*failed);
            self.baseline.get_or_insert_default().update(*failed);
        }
        let mut is_sudden = false;
        if !look.warming_up {
            is_sudden = self.compare(grid, kinds);
            self.seen.canary = self.seen.canary.saturating_add(requests.canary);
            self.seen.primary = self.seen.primary.saturating_add(requests.primary);
            self.fresh.canary = self.fresh.canary.saturating_add(requests.canary);
            self.fresh.primary = self.fresh.primary.saturating_add(requests.primary);
        }
        self.confirm(look, convicts);
        is_sudden
    }

    /// Adds a look at the values of the primary, and returns the thresholds to judge it by.
    pub(super) fn update_thresholds(&mut self, primary: &Histogram) -> Option<Vec<u64>> {
        let frozen = self.thresholds.get_or_insert_default().update(primary)?;
        Some(frozen.iter().copied().collect())
    }

    /// Values of the primary that are known.
    pub(super) fn known_values(&self) -> u64 {
        self.thresholds.as_ref().map_or(0, Thresholds::known)
    }

    /// Adds the same look by pod, before [`Evidence::update`].
    pub(super) fn update_pods(&mut self, pods: &Arms<PodCounts>, look: Look) {
        if !look.warming_up {
            let inflation = self.pod_stream().map_or(1.0, EProcess::variance_inflation);
            self.pods.get_or_insert_default().update(self.margin, pods, inflation);
        }
    }

    /// Adds the same look at durations by pod, before [`Evidence::update`]. Pods are
    /// compared at one bound: two dozen of each pod would not fit into a status. It is
    /// chosen by a look before those that it counts in.
    pub(super) fn update_slow_pods(&mut self, pods: &Arms<PodHistograms>, primary: &Histogram, look: Look) {
        let Some(bound) = self.pod_bound else {
            self.pod_bound = slow_bound(primary);
            return;
        };
        let counts = pods.map(|pods| {
            let slow = |(name, pod): (&String, &Histogram)| Some((name.clone(), pod.slower_than(bound)?));
            pods.iter().filter_map(slow).collect()
        });
        self.update_pods(&counts, look);
    }

    /// The e-process of the arms about what pods are compared by.
    pub(super) fn pod_stream(&self) -> Option<&EProcess> {
        let kind = self.pod_bound.map_or(BadKind::Failed, BadKind::Slower);
        self.streams.iter().find(|stream| stream.kind == kind)
    }

    fn compare(&mut self, grid: &Grid, kinds: &[(BadKind, Arms<Counts>)]) -> bool {
        let mut is_sudden = false;
        if self.shares == 0 {
            self.shares = kinds.len() as u32;
            self.streams.retain(|stream| kinds.iter().any(|(kind, _)| *kind == stream.kind));
        }
        let fillings = fillings_of_each(kinds.len());
        for &(kind, look) in kinds {
            if let Some(stream) = self.streams.iter_mut().find(|stream| stream.kind == kind) {
                is_sudden |= stream.update(grid, look, fillings);
            } else if self.streams.len() < self.shares as usize && (kind == BadKind::Failed || is_mixed(look))
            {
                let mut stream = EProcess::new(kind, uniform_history(self.seen, look));
                is_sudden |= stream.update(grid, look, fillings);
                self.streams.push(stream);
            }
        }
        is_sudden
    }

    fn confirm(&mut self, look: Look, convicts: f64) {
        let compared = self.confirmation.update(self.log_e_values(), look, convicts);
        if compared == Finding::Refuted {
            self.streams.iter_mut().for_each(EProcess::drop_alarm);
        }
        let total = self.total_failure.as_mut().map_or(Finding::Calm, |total| total.finding(look, convicts));
        if total == Finding::Refuted {
            self.total_failure.iter_mut().for_each(TotalFailure::drop_alarm);
        }
        let bursts = self.pod_stream().map_or(1.0, EProcess::recent_bursts);
        let pod = self.pods.as_mut().map_or(Finding::Calm, |pods| pods.finding(look, convicts, bursts));
        if pod == Finding::Refuted {
            self.pods.iter_mut().for_each(Pods::drop_alarm);
        }
        let total_failure = self.total_failure.as_ref().map_or(0.0, TotalFailure::log_e_value_unless_shared);
        let evidence = Fixed::of(self.log_e_value().max(total_failure));
        let refuted = [compared, total].contains(&Finding::Refuted);
        self.peak = if refuted { evidence } else { self.peak.max(evidence) };
        let found =
            [(Conviction::Compared, compared), (Conviction::TotalFailure, total), (Conviction::Pod, pod)];
        let convicted = found.into_iter().find(|(_, found)| *found == Finding::Convicted);
        self.convicted = self.convicted.or(convicted.map(|(kind, _)| kind));
    }

    pub(super) fn convicted(&self) -> Option<Conviction> {
        self.convicted
    }

    /// The primary is far from its usual self, and the canary no better.
    pub(super) fn incident(&self) -> Option<Incident> {
        self.baseline.as_ref()?.incident()
    }

    /// Adds to the counts against the absolute limit; those of the whole check.
    pub(super) fn add_limited(&mut self, counts: Arms<Counts>) -> Arms<Counts> {
        self.limited.canary.add(counts.canary);
        self.limited.primary.add(counts.primary);
        self.limited
    }

    /// The next check has its own counts against the absolute limit.
    pub(super) fn clear_limited(&mut self) {
        self.limited = Arms::default();
    }

    /// The log of the mean evidence of all e-processes: valid however they depend on
    /// each other. One that has not started is at one.
    pub(super) fn log_e_value(&self) -> f64 {
        let evidence = self.log_mean_of(EProcess::log_e_value);
        let worst = self.streams.iter().max_by(|a, b| a.log_e_value().total_cmp(&b.log_e_value()));
        let pods = self.pods.as_ref().zip(worst);
        let inflation = pods.map_or(1.0, |(pods, stream)| pods.variance_inflation(stream.suspect));
        if evidence > 0.0 { evidence / inflation } else { evidence }
    }

    fn log_e_values(&self) -> LogEvidence {
        LogEvidence {
            damped: self.log_mean_of(EProcess::log_e_value),
            raw: self.log_mean_of(EProcess::raw_log_e_value),
            worth: if self.is_slow_by_few() { 0.0 } else { self.log_e_value() },
        }
    }

    /// Whether the evidence is about the latency of a handful of requests. Their
    /// durations depend on each other: a pod that dies, or a node under load, delays all
    /// that it holds.
    fn is_slow_by_few(&self) -> bool {
        let worst = self.streams.iter().max_by(|a, b| a.log_e_value().total_cmp(&b.log_e_value()));
        worst.is_some_and(|stream| {
            stream.kind != BadKind::Failed && stream.suspect.canary.total() < MIN_SLOW_REQUESTS
        })
    }

    fn log_mean_of(&self, log_e_value: impl Fn(&EProcess) -> f64) -> f64 {
        let not_started = (self.shares as usize).saturating_sub(self.streams.len());
        let logs = self.streams.iter().map(log_e_value);
        let not_started = (not_started > 0).then(|| (not_started as f64).ln());
        let sum = logs.chain(not_started).reduce(log_add);
        sum.map_or(0.0, |sum| sum - f64::from(self.shares.max(1)).ln())
    }

    /// The canary's requests behind a total failure.
    pub(super) fn total_failure(&self) -> Option<Counts> {
        let convicted = self.convicted == Some(Conviction::TotalFailure);
        self.total_failure.as_ref().filter(|_| convicted).map(TotalFailure::suspect)
    }

    /// The pod that stands out, and its requests.
    pub(super) fn suspect_pod(&self) -> Option<(&str, Counts)> {
        self.pods.as_ref()?.suspect()
    }

    /// The pod that alone has evidence against it.
    pub(super) fn culprit(&self) -> Option<(&str, Counts)> {
        self.pods.as_ref()?.culprit()
    }

    /// Are there requests of the primary to compare with? None at all, as with all
    /// traffic on the canary, need not be awaited.
    pub(super) fn lacks_control(&self, min_requests: u64) -> bool {
        let idle = self.streams.iter().all(EProcess::primary_is_idle);
        self.seen.primary < min_requests || (self.fresh.primary < min_requests && !idle)
    }

    /// The e-processes, for a verdict to name the worst.
    pub(super) fn streams(&self) -> &[EProcess] {
        &self.streams
    }
}

/// Requests to the canary from which on their durations convict it.
const MIN_SLOW_REQUESTS: u64 = 20;

/// The share of the primary's requests that pods are compared by: slow ones, and enough of
/// them.
const SLOW_SHARE: f64 = 0.1;

/// The bound that a share nearest to [`SLOW_SHARE`] is beyond.
fn slow_bound(primary: &Histogram) -> Option<u64> {
    let distance = |bound: u64| {
        let share = primary.slower_than(bound).and_then(|slow| slow.rate()).unwrap_or(0.0);
        (share - SLOW_SHARE).abs()
    };
    primary.bounds().min_by(|a, b| distance(*a).total_cmp(&distance(*b)))
}

/// Whether there are good and bad requests: a latency bound that all requests
/// are within, or beyond, needs no e-process yet.
fn is_mixed(look: Arms<Counts>) -> bool {
    let both = sum_arms(look);
    both.bad() > 0 && both.bad() < both.total()
}

/// Counts at a bound before its first mixed look: all requests alike, good or
/// bad as most are now.
fn uniform_history(requests: Arms<u64>, now: Arms<Counts>) -> Arms<Counts> {
    let both = sum_arms(now);
    let mostly_bad = both.bad() > both.total() / 2;
    requests.map(|&total| Counts::of_bad(if mostly_bad { total } else { 0 }, total))
}

fn sum_arms(Arms { canary, primary }: Arms<Counts>) -> Counts {
    let mut both = canary;
    both.add(primary);
    both
}

/// The version of this layout. Evidence in another one does not deserialize, and
/// the judge starts over.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "u8", into = "u8")]
struct LayoutVersion;

impl LayoutVersion {
    const CURRENT: u8 = 4;
}

impl From<LayoutVersion> for u8 {
    fn from(LayoutVersion: LayoutVersion) -> u8 {
        LayoutVersion::CURRENT
    }
}

impl TryFrom<u8> for LayoutVersion {
    type Error = String;

    fn try_from(version: u8) -> Result<Self, String> {
        if version == LayoutVersion::CURRENT {
            Ok(LayoutVersion)
        } else {
            Err(format!("evidence of version {version}, this judge reads version {}", LayoutVersion::CURRENT))
        }
    }
}
