//! The judge: measurements in, verdict out. Pure: no async, no clock, no client.
