//! The judge: measurements in, verdict out.
//!
//! # One look
//!
//! Time has passed since the look before. For each metric the controller hands
//! over a [`Measurement`]: what was *added* in that time, on both arms. The
//! metric's judge takes it in and gives a [`Verdict`]:
//!
//! | judge                          | is given                        | asks                                      |
//! |--------------------------------|---------------------------------|-------------------------------------------|
//! | [`threshold::Threshold`]       | a value, or counts              | is it in the range?                       |
//! | [`sequential::Sequential`]     | counts or histograms, both arms | is the canary worse than the primary?     |
//! | [`mann_whitney::MannWhitney`]  | samples of both arms            | are the canary's points shifted?          |
//! | [`sample_ratio::Split`]               | requests of both arms           | does the route split as it was told to?   |
//!
//! *Fail* means that there is evidence against the canary. *Pass* means that
//! enough was seen and there is none. Everything else is *inconclusive*, with
//! the doubt named; no data, no traffic and a provider that is down are doubts
//! and never evidence. Each verdict carries its numbers, and one message that
//! says them to people.
//!
//! Only two judges remember anything between looks, in
//! [`sequential::Evidence`] and [`sample_ratio::SampleRatioState`]: a few integers that
//! live in the status of the Canary. Judging with evidence that went through
//! JSON and back is judging with the same evidence.
//!
//! # What this room promises
//!
//! - The same inputs give the same bytes: no clock, no randomness, no I/O.
//! - `sequential` rolls back at most `false_rollback` of all releases whose
//!   canary is within the margin, however often it looks and whatever the
//!   traffic, the split and the shared error rate do meanwhile.
//! - No judge passes a canary that nothing was measured of.

mod contingency_table;
mod format;
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
