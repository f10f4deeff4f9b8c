//! Whole clusters in simulation.
