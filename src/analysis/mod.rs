//! The judge: measurements in, verdict out. Pure: no async, no clock, no client.
pub mod measurement;
pub mod sequential;
pub mod threshold;
pub mod verdict;
mod figures;
mod table;
