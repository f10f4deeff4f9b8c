//! The judge: measurements in, verdict out. Pure: no async, no clock, no client.
mod figures;
pub mod mann_whitney;
pub mod measurement;
mod ranks;
pub mod rule;
pub mod sequential;
pub mod split;
mod table;
pub mod threshold;
pub mod verdict;
