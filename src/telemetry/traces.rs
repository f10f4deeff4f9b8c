//! Traces of releases: one for each, with spans for its steps, checks, gates and actions, sent
//! by OTLP over HTTP in its JSON form (opentelemetry.io/docs/specs/otlp: "OTLP/HTTP", "JSON
//! Protobuf Encoding").
//!
//! A span is derived from two statuses of a Canary and sent when it is over. The IDs of trace
//! and root are hashes of the Canary's uid and the number of the release, so that a restart, or
//! another replica, continues the same trace, and nothing has to be kept.
//!
//! Guarantees: observing never blocks a reconcile; a full queue drops spans and counts them in
//! the log; requests have a timeout and a bounded number of attempts.

use std::time::Duration;

use jiff::Timestamp;
use kube::ResourceExt as _;
use reqwest::StatusCode;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;

use super::label_value;
use crate::api::{
    Canary, CanaryStatus,
    canary::{
        HookType, Phase,
        status::{GateState, GateStatus, Outcome, StepStatus},
    },
};

/// Spans that wait.
const QUEUE_CAPACITY: usize = 4096;
/// Spans of one request.
const MAX_BATCH: usize = 512;
/// How long spans are collected for one request.
const BATCH_DELAY: Duration = Duration::from_secs(2);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
const MAX_ATTEMPTS: u32 = 4;
const INITIAL_BACKOFF: Duration = Duration::from_millis(500);

/// Sends spans while it lives.
pub struct Traces {
    queue: mpsc::Sender<Value>,
    _task: AbortOnDropHandle<()>,
}

/// A release, as the spans of it are named.
struct ReleaseId<'a> {
    canary: &'a Canary,
    number: u64,
}

/// OTLP's status codes.
#[derive(Clone, Copy)]
enum SpanStatus {
    Unset = 0,
    Ok = 1,
    Error = 2,
}

struct Span {
    name: String,
    start: Timestamp,
    end: Timestamp,
    status: SpanStatus,
    attributes: Vec<(&'static str, Value)>,
}

impl Traces {
    /// To an endpoint such as `http://collector:4318`, inside a tokio runtime.
    pub fn start(endpoint: &str, cluster: &str) -> Result<Self, reqwest::Error> {
        crate::tls::install_crypto_provider();
        let client = reqwest::Client::builder()
            .user_agent(concat!("serin/", env!("CARGO_PKG_VERSION")))
            .timeout(REQUEST_TIMEOUT)
            .redirect(reqwest::redirect::Policy::none())
            .build()?;
        let url = format!("{}/v1/traces", endpoint.trim_end_matches('/'));
        let resource = attributes(&[("service.name", json!("serin")), ("k8s.cluster.name", json!(cluster))]);
        let (queue, mut spans) = mpsc::channel(QUEUE_CAPACITY);
        let task = tokio::spawn(async move {
            let mut batch = Vec::new();
            while let Some(first) = spans.recv().await {
                batch.push(first);
                tokio::time::sleep(BATCH_DELAY).await;
                while batch.len() < MAX_BATCH
                    && let Ok(span) = spans.try_recv()
                {
                    batch.push(span);
                }
                send(&client, &url, &request(&resource, std::mem::take(&mut batch))).await;
            }
        });
        Ok(Self { queue, _task: AbortOnDropHandle::new(task) })
    }

    /// Sends what ended between two recorded statuses of a Canary.
    pub fn observe(&self, canary: &Canary, before: &CanaryStatus, after: &CanaryStatus, now: Timestamp) {
        let release = ReleaseId { canary, number: before.releases };
        let same_release = before.releases == after.releases;
        let moved = |step: &StepStatus| after.step.as_ref().is_none_or(|next| next.index != step.index);
        if before.phase == Phase::Progressing
            && let Some(step) = &before.step
            && let Some(started) = &step.started_at
            && (!same_release || after.phase != Phase::Progressing || moved(step))
        {
            let weight = before.canary_weight.percent();
            let attributes = vec![
                ("serin.step.index", json!(step.index)),
                ("serin.step.name", json!(step.name)),
                ("serin.weight", json!(weight)),
            ];
            let name = format!("step {}", step.progress);
            self.child(
                &release,
                Span { name, start: started.0, end: now, status: SpanStatus::Ok, attributes },
            );
        }
        for gate in after.gates.iter().filter(|gate| same_release && gate.state != GateState::Waiting) {
            let same = |other: &&GateStatus| key(gate) == key(other);
            let Some(asked) = before.gates.iter().find(same) else { continue };
            if asked.state != GateState::Waiting {
                continue;
            }
            let refused = matches!(gate.state, GateState::Refused | GateState::Expired);
            let status = if refused { SpanStatus::Error } else { SpanStatus::Ok };
            let start = asked.since.as_ref().map_or(now, |since| since.0);
            let attributes = vec![
                ("serin.gate.state", json!(label_value(&gate.state))),
                ("serin.gate.by", json!(gate.by)),
                ("serin.gate.message", json!(gate.message)),
            ];
            self.child(
                &release,
                Span { name: format!("gate {}", gate.name), start, end: now, status, attributes },
            );
        }
        let began = before.step.as_ref().and_then(|step| step.check_started_at.as_ref());
        for metric in after.metrics.iter().filter(|_| same_release) {
            let earlier = before.metrics.iter().find(|other| other.name == metric.name);
            let Some(at) = metric.at.as_ref().filter(|at| earlier.and_then(|it| it.at.as_ref()) != Some(*at))
            else {
                continue;
            };
            let attributes = vec![
                ("serin.check.verdict", json!(label_value(&metric.verdict))),
                ("serin.check.reason", json!(metric.reason)),
                ("serin.check.canary", json!(metric.canary)),
                ("serin.check.primary", json!(metric.primary)),
            ];
            let start = began.map_or(at.0, |began| began.0.min(at.0));
            let name = format!("check {}", metric.name);
            self.child(&release, Span { name, start, end: at.0, status: SpanStatus::Unset, attributes });
        }
        for past in after.history.iter().take_while(|past| Some(*past) != before.history.first()) {
            let status = match past.outcome {
                Outcome::Promoted => SpanStatus::Ok,
                Outcome::RolledBack => SpanStatus::Error,
                Outcome::Aborted | Outcome::Superseded => SpanStatus::Unset,
            };
            let attributes = vec![
                ("serin.revision", json!(past.revision)),
                ("serin.outcome", json!(label_value(&past.outcome))),
                ("serin.reason", json!(past.reason)),
                ("serin.highest_weight", json!(past.highest_weight.percent())),
            ];
            let (start, end) = (past.started_at.0, past.finished_at.0);
            let name = format!("release {}/{}", canary.namespace().unwrap_or_default(), canary.name_any());
            self.send(&release, None, Span { name, start, end, status, attributes });
        }
    }

    /// An action, most of which are writes; none between releases.
    pub fn observe_action(
        &self,
        canary: &Canary,
        action: &str,
        (start, end): (Timestamp, Timestamp),
        ok: bool,
    ) {
        let Some(status) = canary.status.as_ref().filter(|status| status.release.is_some()) else { return };
        let release = ReleaseId { canary, number: status.releases };
        let status = if ok { SpanStatus::Ok } else { SpanStatus::Error };
        self.child(
            &release,
            Span { name: format!("action {action}"), start, end, status, attributes: Vec::new() },
        );
    }

    fn child(&self, release: &ReleaseId<'_>, span: Span) {
        self.send(release, Some(release.root()), span);
    }

    fn send(&self, release: &ReleaseId<'_>, parent: Option<String>, span: Span) {
        let id = match &parent {
            None => release.root(),
            Some(_) => release.hash(&format!("{} {} {}", span.name, span.start, span.end), 8),
        };
        let Span { name, start, end, status, attributes: own } = span;
        let canary = release.canary;
        let common = [
            ("k8s.namespace.name", json!(canary.namespace())),
            ("serin.canary", json!(canary.name_any())),
            ("serin.release", json!(release.number)),
        ];
        let span = json!({
            "traceId": release.hash("trace", 16),
            "spanId": id,
            "parentSpanId": parent.unwrap_or_default(),
            "name": name,
            // SPAN_KIND_INTERNAL
            "kind": 1,
            "startTimeUnixNano": start.as_nanosecond().to_string(),
            "endTimeUnixNano": end.max(start).as_nanosecond().to_string(),
            "attributes": attributes(&[&common[..], &own].concat()),
            "status": {"code": status as u8},
        });
        if self.queue.try_send(span).is_err() {
            tracing::debug!("a span is dropped: the collector is too slow");
        }
    }
}

fn key(gate: &GateStatus) -> (&String, Option<HookType>, Option<u32>) {
    (&gate.name, gate.type_, gate.step)
}

impl ReleaseId<'_> {
    fn root(&self) -> String {
        self.hash("root", 8)
    }

    /// So many bytes in hexadecimal digits.
    fn hash(&self, what: &str, bytes: usize) -> String {
        let uid = self.canary.metadata.uid.as_deref().unwrap_or_default();
        let digest = Sha256::digest(format!("{uid} {} {what}", self.number).as_bytes());
        digest.iter().take(bytes).map(|byte| format!("{byte:02x}")).collect()
    }
}

/// In OTLP's form; null is left out.
fn attributes(pairs: &[(&'static str, Value)]) -> Value {
    let typed = |value: &Value| match value {
        Value::String(text) => json!({"stringValue": text}),
        Value::Bool(value) => json!({"boolValue": value}),
        Value::Number(number) if number.is_f64() => json!({"doubleValue": number}),
        other => json!({"intValue": other.to_string()}),
    };
    let present = pairs.iter().filter(|(_, value)| !value.is_null());
    present.map(|(key, value)| json!({"key": key, "value": typed(value)})).collect()
}

fn request(resource: &Value, spans: Vec<Value>) -> Value {
    let scope = json!({"name": "serin", "version": env!("CARGO_PKG_VERSION")});
    json!({"resourceSpans": [{
        "resource": {"attributes": resource},
        "scopeSpans": [{"scope": scope, "spans": spans}],
    }]})
}

async fn send(client: &reqwest::Client, url: &str, request: &Value) {
    let mut backoff = INITIAL_BACKOFF;
    for attempt in 1..=MAX_ATTEMPTS {
        let why = match client.post(url).json(request).send().await {
            Ok(response) if response.status().is_success() => return,
            Ok(response) => {
                let status = response.status();
                let retryable = status == StatusCode::TOO_MANY_REQUESTS || status.is_server_error();
                if !retryable {
                    tracing::warn!(%status, "the collector refuses traces");
                    return;
                }
                status.to_string()
            }
            Err(error) => error.without_url().to_string(),
        };
        if attempt == MAX_ATTEMPTS {
            tracing::warn!(why, "traces are lost: the collector does not take them");
            return;
        }
        tokio::time::sleep(backoff).await;
        backoff *= 2;
    }
}
