//! Fixed-point numbers for the status, in units of a ten-thousandth.
//!
//! Evidence is stored in a JSON document that several programs parse and print
//! again. Integers survive that to the last digit, decimal fractions need not;
//! and half a unit of a nat a look is negligible: after a day of looks every ten
//! seconds less than a hundredth.

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Fixed(i64);

const UNITS: f64 = 1e4;

impl Fixed {
    /// Rounds and saturates.
    pub fn of(number: f64) -> Self {
        Fixed((number * UNITS).round() as i64)
    }

    pub fn units(self) -> i64 {
        self.0
    }

    pub fn from_units(units: i64) -> Self {
        Fixed(units)
    }

    pub fn get(self) -> f64 {
        self.0 as f64 / UNITS
    }

    pub fn plus(self, more: f64) -> Self {
        Fixed(self.0.saturating_add(Fixed::of(more).0))
    }
}
