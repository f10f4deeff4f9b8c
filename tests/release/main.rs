//! Whole releases: the real controller on `serin::local`, with its
//! controllers, its node and its mesh, on paused time. Minutes pass in
//! moments; requests, errors and latencies are those of the pods. Only who is
//! asked over HTTP is asked in real time.

#[path = "../support/mod.rs"]
mod support;

mod ends;
mod gateway;
mod hooks;
mod interruptions;
mod world;
