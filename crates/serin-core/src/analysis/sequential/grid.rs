//! The odds ratios that the judge compares.

use crate::analysis::contingency_table::OddsRatio;

/// How many odds ratios lie on either side of the margin.
pub(crate) const POINTS_PER_SIDE: usize = 16;
/// Both sides, and the margin between them.
pub(crate) const GRID_POINTS: usize = 2 * POINTS_PER_SIDE + 1;

/// Distances from the margin of the nearest and of the farthest odds ratio.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Distances {
    min: f64,
    max: f64,
}

impl Distances {
    /// Of failed and of slow requests, which are few.
    pub const RARE: Distances = Distances { min: 1.25, max: 32.0 };
    /// Of values: half of them are above the median, and a fifth fewer matter.
    pub const VALUES: Distances = Distances { min: 1.08, max: 8.0 };
}

/// Odds ratios rising on both sides of the margin to its farthest distance, evenly spaced
/// on a log scale. Those above the margin are worse, those below it healthy; on
/// the margin itself both hypotheses meet.
///
/// The grid moves with the margin because each half must lie wholly on its own
/// side: only then does the evidence against "at the margin" also hold against
/// everything on the other side of it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Grid {
    odds: [OddsRatio; GRID_POINTS],
    inverse: [OddsRatio; GRID_POINTS],
}

impl Grid {
    pub fn around(margin: f64, Distances { min, max }: Distances) -> Self {
        let step = (max / min).powf(1.0 / (POINTS_PER_SIDE - 1) as f64);
        let ratios: [f64; GRID_POINTS] = std::array::from_fn(|i| {
            let times = |rank: usize| min * step.powi(rank as i32);
            match i {
                POINTS_PER_SIDE => margin,
                0..POINTS_PER_SIDE => margin / times(POINTS_PER_SIDE - 1 - i),
                _ => margin * times(i - POINTS_PER_SIDE - 1),
            }
        });
        Grid { odds: ratios.map(OddsRatio::new), inverse: ratios.map(|ratio| OddsRatio::new(ratio.recip())) }
    }

    pub fn odds(&self) -> &[OddsRatio; GRID_POINTS] {
        &self.odds
    }

    /// Of good requests in place of bad ones.
    pub fn inverse(&self) -> &[OddsRatio; GRID_POINTS] {
        &self.inverse
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_grid_rises_through_the_margin_and_keeps_its_halves_apart() {
        let grid = Grid::around(1.5, Distances::RARE);
        let odds = grid.odds().map(|odds| odds.ratio());
        assert!(odds.is_sorted());
        assert_eq!(odds[POINTS_PER_SIDE], 1.5);
        for (i, expected) in [
            (0, 1.5 / 32.0),
            (POINTS_PER_SIDE - 1, 1.2),
            (POINTS_PER_SIDE + 1, 1.875),
            (GRID_POINTS - 1, 48.0),
        ] {
            assert!((odds[i] - expected).abs() < 1e-12, "{} is not {expected}", odds[i]);
        }
    }
}
