//! What the sequential judge remembers between looks.
//!
//! It belongs to one metric of one release and lives in the status of the
//! Canary: a few hundred bytes for errors, as many again for every latency
//! bound that ever told the arms apart. Everything in it is an integer, except
//! the margin, which has three decimals: it comes back from JSON as it went.

use serde::{Deserialize, Serialize};

use super::e_process::{BadKind, EProcess};
use super::fixed::Fixed;
use super::grid::Grid;
use crate::analysis::measurement::{Arms, Counts};

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Evidence {
    version: LayoutVersion,
    /// The margin it was gathered about; evidence about another says nothing.
    margin: f64,
    /// How many streams share the evidence, also those without a word to say yet.
    shares: u32,
    streams: Vec<EProcess>,
    /// Log of the most evidence there ever was against the canary.
    peak: Fixed,
    /// Requests since the release began.
    seen: Arms<u64>,
    /// Requests to the canary since the last look that had enough of them.
    fresh: u64,
}

impl Evidence {
    /// A new weight is judged on its own traffic: what was enough, or good
    /// enough, at the weight before it no longer is. Evidence against the
    /// canary stays.
    pub fn begin_step(&mut self) {
        self.fresh = 0;
        self.streams.iter_mut().for_each(EProcess::begin_step);
    }

    /// What is worth knowing when the next release begins: nothing about this
    /// canary, but how the primary's bad requests come.
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

    /// Enough was seen for a verdict; the next one needs requests of its own.
    pub(super) fn clear_fresh(&mut self) {
        self.fresh = 0;
    }

    /// Takes in a look: for each kind of bad request the counts of both arms,
    /// out of the same requests. Kinds share the evidence equally; how many
    /// there are is settled by the first look, before it is known what they say.
    pub(super) fn update(&mut self, grid: &Grid, kinds: &[(BadKind, Arms<Counts>)]) {
        let Some((_, first)) = kinds.first() else { return };
        let requests = first.map(Counts::total);
        if self.shares == 0 {
            self.shares = kinds.len() as u32;
            self.streams.retain(|stream| kinds.iter().any(|(of, _)| *of == stream.kind));
        }
        for &(of, look) in kinds {
            if let Some(stream) = self.streams.iter_mut().find(|stream| stream.kind == of) {
                stream.update(grid, look);
            } else if self.streams.len() < self.shares as usize && (of == BadKind::Failed || is_mixed(look)) {
                let mut stream = EProcess::new(of, uniform_history(self.seen, look));
                stream.update(grid, look);
                self.streams.push(stream);
            }
        }
        self.seen.canary = self.seen.canary.saturating_add(requests.canary);
        self.seen.primary = self.seen.primary.saturating_add(requests.primary);
        self.fresh = self.fresh.saturating_add(requests.canary);
        self.peak = self.peak.max(Fixed::of(self.e_value(grid).ln()));
    }

    /// The mean evidence of all streams: valid however they depend on each
    /// other. One that has not begun stands at one.
    pub(super) fn e_value(&self, grid: &Grid) -> f64 {
        let begun: f64 = self.streams.iter().map(|stream| stream.e_value(grid)).sum();
        let silent = (self.shares as usize).saturating_sub(self.streams.len());
        (begun + silent as f64) / f64::from(self.shares)
    }

    /// The streams, for a verdict to name the one that stands out.
    pub(super) fn streams(&self) -> &[EProcess] {
        &self.streams
    }
}

/// Whether there are good and bad requests: a latency bound that all requests
/// are within, or beyond, is not worth a stream yet.
fn is_mixed(look: Arms<Counts>) -> bool {
    let both = sum_arms(look);
    both.bad() > 0 && both.bad() < both.total()
}

/// What a bound had seen before its first mixed look: of requests all alike,
/// such as most are now.
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

/// The version of this layout. Evidence in another is refused on reading:
/// whoever kept it starts anew rather than misread it.
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
