//! What the controller shows and hears over HTTP: `/metrics` for Prometheus,
//! `/healthz` and `/readyz` for the kubelet; and, at an address of its own, what
//! [`people`] say to releases.
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
mod exposition;
mod flagger;
mod listen;
mod people;
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

use crate::{api::canary::Provider, controller::vitals::Vitals};
use exposition::{Exposition, Format};
use series::Shown;

pub use certificate::{Certificate, Unusable};
pub use listen::{CannotListen, Server, Serving};
pub use people::people;

/// Scrapes that are answered at a time; others wait.
const SCRAPES: usize = 2;

/// What is shown beside what is always.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// The same facts under Flagger's names.
    pub flagger_metrics: bool,
    /// For Canaries that name none; Flagger's names show it.
    pub provider: Option<Provider>,
}

#[derive(Clone)]
struct Shows {
    vitals: Arc<Vitals>,
    options: Options,
    scrapes: Arc<Semaphore>,
}

/// The three pages.
pub fn pages(vitals: Arc<Vitals>, options: Options) -> Router {
    Router::new()
        .route("/metrics", get(metrics))
        .route("/healthz", get(health))
        .route("/readyz", get(readiness))
        .with_state(Shows { vitals, options, scrapes: Arc::new(Semaphore::new(SCRAPES)) })
}

async fn metrics(State(shows): State<Shows>, headers: HeaderMap) -> Response {
    let Ok(_turn) = shows.scrapes.acquire().await else {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    };
    let format = Format::wanted(&headers);
    let (vitals, options) = (Arc::clone(&shows.vitals), shows.options);
    // Thousands of Canaries take milliseconds, which are not the loop's to lose.
    match tokio::task::spawn_blocking(move || text(&vitals, options, format)).await {
        Ok(text) => ([(header::CONTENT_TYPE, format.content_type())], text).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

fn text(vitals: &Vitals, options: Options, format: Format) -> String {
    let canaries = vitals.canaries();
    let counts = series::by_namespace(canaries.iter().map(|(canary, _)| &**canary));
    let shown: Vec<Shown<'_>> =
        canaries.iter().filter_map(|(canary, tally)| Shown::of(canary, tally)).collect();
    let mut text = Exposition::new(format);
    series::write_process(&mut text, vitals);
    series::write_canaries(&mut text, &counts, &shown);
    if options.flagger_metrics {
        flagger::write(&mut text, options.provider, &counts, &shown);
    }
    process::write(&mut text);
    text.finish()
}

async fn health(State(shows): State<Shows>) -> Response {
    match shows.vitals.check_alive().await {
        Ok(()) => "ok\n".into_response(),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")).into_response(),
    }
}

async fn readiness(State(shows): State<Shows>) -> Response {
    match shows.vitals.check_ready() {
        Ok(()) => "ok\n".into_response(),
        Err(missing) => (StatusCode::SERVICE_UNAVAILABLE, missing.join("\n") + "\n").into_response(),
    }
}
