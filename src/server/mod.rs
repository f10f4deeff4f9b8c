//! The HTTP server of the controller: `/metrics` for Prometheus, `/healthz` and
//! `/readyz` for the kubelet; and, at an address of its own, [`command_api`], [`api`] and the
//! [`dashboard`] that reads it, [`inventory_api`], [`xds_api`], [`slack_api`] and
//! [`answer_links`], and [`oidc`] for signing in; and behind the API server [`smi_metrics`].
//!
//! Guarantees of the three pages:
//!
//! - no work without a request: series of Canaries are computed at a scrape, and
//!   the run loop is probed when the kubelet probes;
//! - connections and scrapes are bounded, slow clients are disconnected; probes may
//!   have an address of their own;
//! - read-only, without any content of a Secret.
//!
//! `/healthz` is about this process: the run loop responds and reconciles
//! finish. An unreachable API server does not make it fail, since a restart would
//! not help. `/readyz` covers everything the controller needs.

mod access;
mod answer_links;
mod api;
mod command_api;
pub mod dashboard;
mod exposition;
mod flagger;
mod inventory_api;
mod listen;
mod notice;
mod oidc;
mod process;
mod series;
mod slack_api;
mod smi_metrics;
mod xds_api;

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

pub use access::Access;
pub use answer_links::{LinkOptions, link_router};
pub use api::{BoardSources, board_router, openapi_document};
pub use command_api::command_router;
pub use inventory_api::inventory_router;
pub use listen::{BindError, BoundServer, ServerHandle};
pub use oidc::{OidcOptions, SignIn, is_private};
pub use slack_api::{SlackOptions, slack_router};
pub use smi_metrics::{FrontProxy, SmiMetrics, smi_metrics_router};
pub use xds_api::xds_router;

/// Others wait.
const MAX_CONCURRENT_SCRAPES: usize = 2;

/// Optional series.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Adds the series of [`flagger`].
    pub flagger_metrics: bool,
    /// The controller's default; a label of `flagger_info`.
    pub provider: Option<Provider>,
}

#[derive(Clone)]
struct PagesState {
    telemetry: Arc<Telemetry>,
    options: Options,
    scrape_permits: Arc<Semaphore>,
}

/// Serves the three pages.
pub fn metrics_router(telemetry: Arc<Telemetry>, options: Options) -> Router {
    let state = PagesState {
        telemetry: Arc::clone(&telemetry),
        options,
        scrape_permits: Arc::new(Semaphore::new(MAX_CONCURRENT_SCRAPES)),
    };
    Router::new().route("/metrics", get(metrics)).with_state(state).merge(probe_router(telemetry))
}

/// Serves the pages for the kubelet, which no other client should be able to keep busy.
pub fn probe_router(telemetry: Arc<Telemetry>) -> Router {
    Router::new().route("/healthz", get(health)).route("/readyz", get(readiness)).with_state(telemetry)
}

async fn metrics(State(state): State<PagesState>, headers: HeaderMap) -> Response {
    let Ok(_permit) = state.scrape_permits.acquire().await else {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    };
    let format = Format::negotiate(&headers);
    let (telemetry, options) = (Arc::clone(&state.telemetry), state.options);
    // Thousands of Canaries take milliseconds: keep them off the run loop's thread.
    match tokio::task::spawn_blocking(move || render_metrics(&telemetry, options, format)).await {
        Ok(text) => ([(header::CONTENT_TYPE, format.content_type())], text).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

fn render_metrics(telemetry: &Telemetry, options: Options, format: Format) -> String {
    let canaries = telemetry.canaries();
    let counts = series::count_by_namespace(canaries.iter().map(|(canary, _)| &**canary));
    let series: Vec<CanarySeries<'_>> = canaries
        .iter()
        .filter_map(|(canary, counters)| CanarySeries::from_cached(canary, counters))
        .collect();
    let mut text = Exposition::new(format);
    series::write_process(&mut text, telemetry);
    series::write_canaries(&mut text, &counts, &series);
    if options.flagger_metrics {
        flagger::write(&mut text, options.provider, &counts, &series);
    }
    process::write(&mut text);
    text.finish()
}

async fn health(State(telemetry): State<Arc<Telemetry>>) -> Response {
    match telemetry.health.liveness().await {
        Ok(()) => "ok\n".into_response(),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")).into_response(),
    }
}

async fn readiness(State(telemetry): State<Arc<Telemetry>>) -> Response {
    match telemetry.health.readiness() {
        Ok(()) => "ok\n".into_response(),
        Err(missing) => (StatusCode::SERVICE_UNAVAILABLE, missing.join("\n") + "\n").into_response(),
    }
}
