//! What the controller shows and hears over HTTP: `/metrics` for Prometheus,
//! `/healthz` and `/readyz` for the kubelet; and, at an address of its own, what
//! [`command_api`] say to releases.
//!
//! Promises of the three pages:
//!
//! - nothing is done when nobody asks: numbers of Canaries are computed at a
//!   scrape, and the controller's loop is asked whether it turns when the
//!   kubelet asks;
//! - nobody can hold it up: connections and scrapes are bounded, a client that
//!   is slow is left;
//! - it only reads, and shows nothing that a Secret holds.
//!
//! `/healthz` is about this process: the loop took up what it was asked, and
//! work comes to an end. An API server that is away is no reason to be started
//! anew. `/readyz` is about everything it needs.

mod certificate;
mod command_api;
mod exposition;
mod flagger;
mod listen;
mod process;
mod series;

use std::sync::Arc;

use axum::{
    Router,
    extract::State,
    response::{IntoResponse, Response},
    routing::get,
};
use http::{HeaderMap, StatusCode, header};
use tokio::sync::Semaphore;

use crate::{api::canary::Provider, telemetry::Telemetry};
use exposition::{Exposition, Format};
use series::CanarySeries;

pub use certificate::{Certificate, CertificateError};
pub use command_api::command_router;
pub use listen::{BindError, BoundServer, ServerHandle};

/// Scrapes that are answered at a time; others wait.
const MAX_CONCURRENT_SCRAPES: usize = 2;

/// What is shown beside what is always.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// The same facts under Flagger's names.
    pub flagger_metrics: bool,
    /// For Canaries that name none; Flagger's names show it.
    pub provider: Option<Provider>,
}

#[derive(Clone)]
struct PagesState {
    vitals: Arc<Telemetry>,
    options: Options,
    scrape_permits: Arc<Semaphore>,
}

/// The three pages.
pub fn metrics_router(vitals: Arc<Telemetry>, options: Options) -> Router {
    Router::new()
        .route("/metrics", get(metrics))
        .route("/healthz", get(health))
        .route("/readyz", get(readiness))
        .with_state(PagesState {
            vitals,
            options,
            scrape_permits: Arc::new(Semaphore::new(MAX_CONCURRENT_SCRAPES)),
        })
}

async fn metrics(State(shows): State<PagesState>, headers: HeaderMap) -> Response {
    let Ok(_turn) = shows.scrape_permits.acquire().await else {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    };
    let format = Format::negotiate(&headers);
    let (vitals, options) = (Arc::clone(&shows.vitals), shows.options);
    // Thousands of Canaries take milliseconds, which are not the loop's to lose.
    match tokio::task::spawn_blocking(move || render_metrics(&vitals, options, format)).await {
        Ok(text) => ([(header::CONTENT_TYPE, format.content_type())], text).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

fn render_metrics(vitals: &Telemetry, options: Options, format: Format) -> String {
    let canaries = vitals.canaries();
    let counts = series::count_by_namespace(canaries.iter().map(|(canary, _)| &**canary));
    let shown: Vec<CanarySeries<'_>> = canaries
        .iter()
        .filter_map(|(canary, counters)| CanarySeries::from_cached(canary, counters))
        .collect();
    let mut text = Exposition::new(format);
    series::write_process(&mut text, vitals);
    series::write_canaries(&mut text, &counts, &shown);
    if options.flagger_metrics {
        flagger::write(&mut text, options.provider, &counts, &shown);
    }
    process::write(&mut text);
    text.finish()
}

async fn health(State(shows): State<PagesState>) -> Response {
    match shows.vitals.health.liveness().await {
        Ok(()) => "ok\n".into_response(),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")).into_response(),
    }
}

async fn readiness(State(shows): State<PagesState>) -> Response {
    match shows.vitals.health.readiness() {
        Ok(()) => "ok\n".into_response(),
        Err(missing) => (StatusCode::SERVICE_UNAVAILABLE, missing.join("\n") + "\n").into_response(),
    }
}
