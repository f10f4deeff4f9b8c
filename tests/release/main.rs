//! Whole releases: the real controller on `serin::local`, with its
//! controllers, its node and its mesh, on paused time. Minutes pass in
//! moments; requests, errors and latencies are those of the pods.

mod ends;
mod interruptions;
mod world;
