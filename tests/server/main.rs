//! What a controller shows over HTTP: the real controller on `serin::local`, in
//! real time, asked over real sockets.

#[path = "../support/mod.rs"]
mod support;

mod health;
mod listening;
mod scraped;
mod series;
mod world;
