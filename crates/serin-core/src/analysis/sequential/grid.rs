//! The odds ratios that the judge compares.

use crate::analysis::contingency_table::OddsRatio;

/// How many odds ratios lie on either side of the margin.
pub(crate) const POINTS_PER_SIDE: usize = 16;
/// Both sides, and the margin between them.
pub(crate) const GRID_POINTS: usize = 2 * POINTS_PER_SIDE + 1;

const MIN_DISTANCE: f64 = 1.25;
const MAX_DISTANCE: f64 = 32.0;

/// Odds ratios rising from a 32nd of the margin to 32 times it, evenly spaced
/// on a log scale. Those above the margin are worse, those below it healthy; on
/// the margin itself both hypotheses meet.
///
/// The grid moves with the margin because each half must lie wholly on its own
/// side: only then does the evidence against "at the margin" also hold against
/// everything on the other side of it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Grid([OddsRatio; GRID_POINTS]);

impl Grid {
    pub fn around(margin: f64) -> Self {
        let step = (MAX_DISTANCE / MIN_DISTANCE).powf(1.0 / (POINTS_PER_SIDE - 1) as f64);
        Grid(std::array::from_fn(|i| {
            let times = |rank: usize| MIN_DISTANCE * step.powi(rank as i32);
            OddsRatio::new(match i {
                POINTS_PER_SIDE => margin,
                0..POINTS_PER_SIDE => margin / times(POINTS_PER_SIDE - 1 - i),
                _ => margin * times(i - POINTS_PER_SIDE - 1),
            })
        }))
    }

    pub fn odds(&self) -> &[OddsRatio; GRID_POINTS] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_grid_rises_through_the_margin_and_keeps_its_halves_apart() {
        let grid = Grid::around(1.5);
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
