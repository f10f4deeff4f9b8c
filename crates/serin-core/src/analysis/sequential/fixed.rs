//! Fixed-point numbers for the status, in millionths.
//!
//! Evidence is stored in a JSON document that several programs parse and print
//! again. Integers survive that to the last digit, decimal fractions need not;
//! and an error of a millionth of a nat a look is negligible.

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Fixed(i64);

impl Fixed {
    /// Rounds and saturates.
    pub fn of(number: f64) -> Self {
        Fixed((number * 1e6).round() as i64)
    }

    pub fn get(self) -> f64 {
        self.0 as f64 / 1e6
    }

    pub fn plus(self, more: f64) -> Self {
        Fixed(self.0.saturating_add(Fixed::of(more).0))
    }
}
