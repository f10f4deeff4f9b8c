//! What a controller shows over HTTP: the real controller on `kube_local`, in
//! real time, asked over real sockets.

#[path = "../support/mod.rs"]
mod support;

mod health;
mod listening;
mod prometheus_scrape;
mod series;
mod world;
