//! The judge: measurements in, verdict out.
//!
//! # One look
//!
//! A look is one check, interim or full. For each metric the judge gets a
//! [`Measurement`], the *increase* of both arms since the look before, and
//! returns a [`Verdict`]:
//!
//! | judge                             | input                           | question                              |
//! |-----------------------------------|---------------------------------|---------------------------------------|
//! | [`threshold::Threshold`]          | a value, or counts              | is it in the range?                   |
//! | [`sequential::Sequential`]        | counts or histograms, both arms | is the canary worse than the primary? |
//! | [`mann_whitney::MannWhitney`]     | samples of both arms            | are the canary's points shifted?      |
//! | [`sample_ratio::SampleRatioTest`] | requests of both arms           | does the route split by its weight?   |
//!
//! *Fail* means that there is evidence against the canary. *Pass* means that
//! there is enough data and no such evidence. Everything else is *inconclusive*,
//! with a reason; no data, no traffic and an unavailable provider are never
//! evidence. Each verdict carries its numbers and a message.
//!
//! Only two judges keep state between looks: [`sequential::Evidence`] and
//! [`sample_ratio::SampleRatioState`], a few integers in the status of the
//! Canary. A round trip through JSON does not change them.
//!
//! # Guarantees
//!
//! - The same inputs give the same bytes: no clock, no randomness, no I/O.
//! - The work of a look is bounded, whatever its counts: larger ones are scaled down.
//! - `sequential` rolls back at most `false_rollback` of all releases whose
//!   canary is within the margin, at any number of looks and for any course of
//!   the traffic, the split and the shared error rate.
//! - No judge passes a canary without a measurement.

mod contingency_table;
pub mod floor;
mod format;
pub mod interval;
pub mod mann_whitney;
pub mod measurement;
mod ranks;
pub mod sample_ratio;
pub mod score;
pub mod sequential;
pub mod threshold;
pub mod verdict;

pub use measurement::Measurement;
pub use verdict::Verdict;
