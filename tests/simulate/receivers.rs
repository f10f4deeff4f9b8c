//! The receivers of the controller's requests that are not for the API server:
//! metrics pages and webhooks.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use http::StatusCode;
use parking_lot::Mutex;
use serin::gates::webhook::{HookError, HookRequest, HookResponse, HookTransport};
use serin::metrics::scrape::Fetch;
use tokio::time::{sleep, timeout};

use super::recorder::Recorder;
use super::scenario::{Gate, Metrics};

/// Scrapes the pods of the traffic model.
pub struct TrafficFetch(pub Arc<Mutex<Recorder>>);

#[async_trait]
impl Fetch for TrafficFetch {
    async fn fetch(&self, url: &str, _limit: usize) -> Result<Bytes, String> {
        let uri: http::Uri = url.parse().map_err(|error| format!("{error}"))?;
        let read = self.0.lock().scrape(uri.host().unwrap_or_default());
        match read {
            None => Err("connection refused".to_owned()),
            Some((_, Metrics::Gone)) => Err("connection refused".to_owned()),
            Some((_, Metrics::Hanging)) => std::future::pending().await,
            Some((text, Metrics::Available | Metrics::Garbage)) => Ok(text.into()),
        }
    }
}

/// The receivers of webhooks.
pub struct HookReceivers(pub Arc<Mutex<Recorder>>);

#[async_trait]
impl HookTransport for HookReceivers {
    async fn send(&self, question: &HookRequest) -> Result<HookResponse, HookError> {
        let stops = question.url.ends_with("/stop");
        let usual = if stops { Gate::No } else { Gate::Yes };
        let mode = {
            let mut recorder = self.0.lock();
            let mode = recorder.gates.get(&question.url).copied().unwrap_or(usual);
            let of = question.url.split('/').nth(3).unwrap_or_default().to_owned();
            recorder.log(format!("    {} is called: {mode:?}", question.url));
            recorder.count(match mode {
                Gate::Unreachable => "gate dead",
                Gate::Slow(_) => "gate slow",
                Gate::No => "gate says no",
                Gate::Yes => "gate says yes",
            });
            let at = recorder.lag.at();
            if let Some(subject) = recorder.canaries.get_mut(&of) {
                subject.decided_at = at;
                subject.has_negative_evidence |= (mode == Gate::No) != stops;
            }
            mode
        };
        let answer = async {
            match mode {
                Gate::Yes => StatusCode::OK,
                Gate::No => StatusCode::FORBIDDEN,
                Gate::Slow(time) => {
                    sleep(time).await;
                    if stops { StatusCode::FORBIDDEN } else { StatusCode::OK }
                }
                Gate::Unreachable => std::future::pending().await,
            }
        };
        let status = timeout(question.timeout, answer).await.map_err(|_| HookError::TimedOut)?;
        Ok(HookResponse { status })
    }
}
