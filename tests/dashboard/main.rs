//! The dashboard: its API over HTTP, rights on a real API server, signing in at an
//! OpenID provider, and the page in a real
//! Chromium.

#[path = "../support/mod.rs"]
mod support;

mod api;
mod browser;
mod command;
mod pages;
mod provider;
mod rights;
mod sign_in;
mod world;
