//! The judge: measurements in, verdict out. Pure: no async, no clock, no client.
mod figures;
pub mod measurement;
pub mod sequential;
mod table;
pub mod threshold;
pub mod verdict;
