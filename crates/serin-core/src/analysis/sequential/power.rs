//! What the requests so far could have shown.
//!
//! For each odds ratio above the margin: would a canary as bad have been convicted
//! with a probability of 90 %? By the mean and the standard deviation of its
//! log-evidence.

use super::e_process::EProcess;
use super::grid::{Grid, POINTS_PER_SIDE};

/// Standard deviations below the mean that one in ten is.
const ONE_IN_TEN: f64 = 1.28;
/// Log-evidence that the mixture over odds ratios and beginnings costs.
const MIXTURE_COST: f64 = 2.0;

/// The smallest odds ratio that would have been found at any of these e-processes;
/// none if no odds ratio of the grid would.
pub(super) fn detectable(streams: &[EProcess], grid: &Grid, false_rollback: f64) -> Option<f64> {
    let least =
        streams.iter().filter_map(|stream| detectable_by(stream, grid, false_rollback, streams.len()));
    least.min_by(f64::total_cmp)
}

fn detectable_by(stream: &EProcess, grid: &Grid, false_rollback: f64, shares: usize) -> Option<f64> {
    let (canary, primary) = (stream.seen.canary.total() as f64, stream.seen.primary);
    let control = primary.total() as f64;
    if control == 0.0 || canary == 0.0 {
        return None;
    }
    // Without any failure half of one is as likely as not.
    let share = (primary.bad() as f64).max(0.5) / control;
    if share >= 1.0 {
        return None;
    }
    let odds = share / (1.0 - share);
    let of = |ratio: f64| ratio * odds / (1.0 + ratio * odds);
    let margin = of(grid.odds()[POINTS_PER_SIDE].ratio());
    let needed = -false_rollback.ln() + MIXTURE_COST + (shares as f64).ln();
    let inflation = stream.variance_inflation();
    let found = |ratio: f64| {
        let bad = of(ratio);
        let (gain, loss) = ((bad / margin).ln(), ((1.0 - bad) / (1.0 - margin)).ln());
        // A small control is uncertain itself.
        let requests = canary * control / (control + ratio * canary);
        let mean = requests * (bad * gain + (1.0 - bad) * loss);
        let deviation = (requests * bad * (1.0 - bad)).sqrt() * (gain - loss);
        mean / inflation - ONE_IN_TEN * deviation / inflation.sqrt() >= needed
    };
    grid.odds()[POINTS_PER_SIDE + 1..].iter().map(|odds| odds.ratio()).find(|ratio| found(*ratio))
}
