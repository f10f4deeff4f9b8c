//! State of the sequential judge between looks.
//!
//! It belongs to one metric of one release and is stored in the status of the
//! Canary: a few hundred bytes for errors, as many again for every informative
//! latency bound. Everything in it is an integer, except the margin, which has
//! three decimals: a round trip through JSON does not change it.

use serde::{Deserialize, Serialize};

use super::e_process::{BadKind, EProcess};
use super::fixed::Fixed;
use super::grid::Grid;
use crate::analysis::measurement::{Arms, Counts};

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
    /// Log of the highest evidence against the canary so far.
    peak: Fixed,
    /// Requests since the release began.
    seen: Arms<u64>,
    /// Requests to the canary since its last pass.
    fresh: u64,
}

impl Evidence {
    /// A new step is judged on its own traffic: request counts and evidence of
    /// non-inferiority start over. Evidence against the canary stays.
    pub fn begin_step(&mut self) {
        self.fresh = 0;
        self.streams.iter_mut().for_each(EProcess::begin_step);
    }

    /// State for the next release: nothing about this canary, only the
    /// overdispersion of the primary.
    pub fn next_release(&self) -> Self {
        Evidence {
            streams: self.streams.iter().map(EProcess::next_release).collect(),
            ..Evidence::for_margin(self.margin)
        }
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

    pub(super) fn for_margin(margin: f64) -> Self {
        Evidence { margin, ..Evidence::default() }
    }

    pub(super) fn margin(&self) -> f64 {
        self.margin
    }

    pub(super) fn fresh(&self) -> u64 {
        self.fresh
    }

    /// After a pass: the next verdict needs new requests.
    pub(super) fn clear_fresh(&mut self) {
        self.fresh = 0;
    }

    /// Adds a look: for each kind of bad request the counts of both arms, out of
    /// the same requests. Kinds share the evidence equally; their number is fixed
    /// at the first look, independent of the data.
    pub(super) fn update(&mut self, grid: &Grid, kinds: &[(BadKind, Arms<Counts>)]) {
        let Some((_, first)) = kinds.first() else { return };
        let requests = first.map(Counts::total);
        if self.shares == 0 {
            self.shares = kinds.len() as u32;
            self.streams.retain(|stream| kinds.iter().any(|(kind, _)| *kind == stream.kind));
        }
        for &(kind, look) in kinds {
            if let Some(stream) = self.streams.iter_mut().find(|stream| stream.kind == kind) {
                stream.update(grid, look);
            } else if self.streams.len() < self.shares as usize && (kind == BadKind::Failed || is_mixed(look))
            {
                let mut stream = EProcess::new(kind, uniform_history(self.seen, look));
                stream.update(grid, look);
                self.streams.push(stream);
            }
        }
        self.seen.canary = self.seen.canary.saturating_add(requests.canary);
        self.seen.primary = self.seen.primary.saturating_add(requests.primary);
        self.fresh = self.fresh.saturating_add(requests.canary);
        self.peak = self.peak.max(Fixed::of(self.e_value(grid).ln()));
    }

    /// The mean evidence of all e-processes: valid however they depend on each
    /// other. One that has not started is at one.
    pub(super) fn e_value(&self, grid: &Grid) -> f64 {
        let started: f64 = self.streams.iter().map(|stream| stream.e_value(grid)).sum();
        let not_started = (self.shares as usize).saturating_sub(self.streams.len());
        (started + not_started as f64) / f64::from(self.shares)
    }

    /// The e-processes, for a verdict to name the worst.
    pub(super) fn streams(&self) -> &[EProcess] {
        &self.streams
    }
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
    const CURRENT: u8 = 1;
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
