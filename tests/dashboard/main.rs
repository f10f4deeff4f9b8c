//! The dashboard: its API over HTTP, rights on a real API server, and the page in a real
//! Chromium.

#[path = "../support/mod.rs"]
mod support;

mod api;
mod browser;
mod command;
mod pages;
mod rights;
mod world;
