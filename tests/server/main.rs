//! The HTTP pages of the real controller on `kube_local`, in real time, over
//! real sockets.

#[path = "../support/mod.rs"]
mod support;

mod gitops;
mod health;
mod listening;
mod prometheus_scrape;
mod series;
mod traces;
mod world;
