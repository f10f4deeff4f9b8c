//! Delivers notifications without anybody waiting for it.
//!
//! Each address has a lane of its own with a short queue and one task that
//! empties it, so a dead receiver delays nobody else, and one receiver gets its
//! messages in order. A lane that had nothing to do for a while ends.
//!
//! Guarantees: [`Outbox::send`] returns at once; memory is bounded, by dropping
//! the oldest message of a full lane with a line in the log; a message is tried
//! a bounded number of times, with growing pauses or when the receiver said to;
//! an address gets no more than its rate.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::Mutex;
use reqwest::{StatusCode, header};
use serde_json::Value;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use super::{Destination, Notification};
use crate::api::alert_provider::AlertProviderType;

/// How messages are delivered; the default suits every chat we know.
#[derive(Clone, Debug)]
pub struct Options {
    /// Messages that may wait for one address.
    pub queue_capacity: usize,
    /// Addresses that may have messages waiting.
    pub max_destinations: usize,
    pub timeout: Duration,
    /// How often one message is tried in all.
    pub max_attempts: u32,
    /// The pause after the first failure; it doubles with each.
    pub initial_backoff: Duration,
    /// No pause is longer, whatever a receiver says.
    pub max_backoff: Duration,
    /// One message per address in this time on average …
    pub refill_interval: Duration,
    /// … and so many at once.
    pub burst: u32,
    /// A lane ends when it had nothing to do for so long.
    pub idle_timeout: Duration,
    /// Where it is counted what became of messages.
    pub counters: Arc<DeliveryCounters>,
}

/// What became of messages.
#[derive(Debug, Default)]
pub struct DeliveryCounters {
    delivered: AtomicU64,
    refused: AtomicU64,
    failed: AtomicU64,
    dropped: AtomicU64,
}

impl DeliveryCounters {
    /// How many, by what became of them.
    pub fn snapshot(&self) -> [(&'static str, u64); 4] {
        let Self { delivered, refused, failed, dropped } = self;
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        [
            ("delivered", read(delivered)),
            ("refused", read(refused)),
            ("failed", read(failed)),
            ("dropped", read(dropped)),
        ]
    }
}

fn increment(of: &AtomicU64) {
    of.fetch_add(1, Ordering::Relaxed);
}

impl Default for Options {
    fn default() -> Self {
        Self {
            queue_capacity: 100,
            max_destinations: 1000,
            timeout: Duration::from_secs(10),
            max_attempts: 6,
            initial_backoff: Duration::from_millis(500),
            max_backoff: Duration::from_secs(60),
            refill_interval: Duration::from_secs(1),
            burst: 5,
            idle_timeout: Duration::from_secs(60),
            counters: Arc::default(),
        }
    }
}

/// The HTTP client could not be set up.
#[derive(Debug, thiserror::Error)]
#[error("cannot set up the HTTP client for notifications")]
pub struct OutboxSetupError(#[from] reqwest::Error);

/// Takes notifications and delivers them; clones share it.
#[derive(Clone)]
pub struct Outbox(Arc<Inner>);

struct Inner {
    options: Options,
    /// For addresses without a proxy of their own.
    client: reqwest::Client,
    queues: Mutex<HashMap<QueueKey, Arc<DestinationQueue>>>,
    runtime: tokio::runtime::Handle,
    tasks: TaskTracker,
}

/// What messages have in common that share a lane.
#[derive(Clone, PartialEq, Eq, Hash)]
struct QueueKey {
    url: String,
    proxy: Option<String>,
}

#[derive(Default)]
struct DestinationQueue {
    state: Mutex<QueueState>,
    not_empty: Notify,
}

#[derive(Default)]
struct QueueState {
    queue: VecDeque<Message>,
    /// One is being delivered.
    busy: bool,
}

struct Message {
    to: Arc<Destination>,
    body: Value,
}

impl Outbox {
    /// Must be called inside the tokio runtime that is to deliver; a default
    /// crypto provider of rustls must be installed before.
    pub fn new(options: Options) -> Result<Self, OutboxSetupError> {
        let client = build_client(&options, None)?;
        Ok(Self(Arc::new(Inner {
            options,
            client,
            queues: Mutex::default(),
            runtime: tokio::runtime::Handle::current(),
            tasks: TaskTracker::new(),
        })))
    }

    /// Queues a notification and returns at once.
    pub fn send(&self, to: &Arc<Destination>, notification: &Notification) {
        let inner = &self.0;
        let key = QueueKey { url: to.url().to_owned(), proxy: to.proxy.clone() };
        let message = Message { to: to.clone(), body: to.message(notification) };
        let mut lanes = inner.queues.lock();
        if let Some(lane) = lanes.get(&key) {
            lane.push(message, &inner.options);
            return;
        }
        if lanes.len() >= inner.options.max_destinations {
            tracing::warn!(%to, "a notification is dropped: too many receivers have notifications waiting");
            increment(&inner.options.counters.dropped);
            return;
        }
        let lane = Arc::new(DestinationQueue::default());
        lane.push(message, &inner.options);
        lanes.insert(key.clone(), lane.clone());
        inner.tasks.spawn_on(self.clone().deliver(key, lane), &inner.runtime);
    }

    /// Waits until everything is delivered or given up, but not longer than
    /// this; false if something is left. For the end of a process.
    pub async fn flush(&self, within: Duration) -> bool {
        let end = Instant::now() + within;
        loop {
            let left = self.0.queues.lock().values().any(|lane| {
                let state = lane.state.lock();
                state.busy || !state.queue.is_empty()
            });
            if !left || Instant::now() >= end {
                return !left;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn deliver(self, key: QueueKey, lane: Arc<DestinationQueue>) {
        let options = &self.0.options;
        let client = match key.proxy.as_deref() {
            None => Ok(self.0.client.clone()),
            Some(proxy) => build_client(options, Some(proxy)),
        };
        let mut rate = TokenBucket {
            paid_until: Instant::now(),
            refill_interval: options.refill_interval,
            burst: options.burst,
        };
        loop {
            let Some(message) = lane.pop() else {
                let filled = tokio::time::timeout(options.idle_timeout, lane.not_empty.notified()).await;
                if filled.is_err() && self.remove(&key, &lane) {
                    return;
                }
                continue;
            };
            match &client {
                Ok(client) => {
                    rate.wait().await;
                    send_with_retries(client, &message, options).await;
                }
                Err(error) => {
                    tracing::warn!(to = %message.to, why = error_chain(error), "a notification is dropped: the proxy is unusable");
                    increment(&options.counters.dropped);
                }
            }
            lane.state.lock().busy = false;
        }
    }

    /// Ends a lane, unless something came in meanwhile.
    fn remove(&self, key: &QueueKey, lane: &DestinationQueue) -> bool {
        let mut lanes = self.0.queues.lock();
        let is_empty = lane.state.lock().queue.is_empty();
        if is_empty {
            lanes.remove(key);
        }
        is_empty
    }
}

impl DestinationQueue {
    fn push(&self, message: Message, options: &Options) {
        let mut state = self.state.lock();
        if state.queue.len() >= options.queue_capacity.max(1) {
            state.queue.pop_front();
            increment(&options.counters.dropped);
            tracing::warn!(to = %message.to, "the oldest notification is dropped: the receiver is too slow");
        }
        state.queue.push_back(message);
        drop(state);
        self.not_empty.notify_one();
    }

    fn pop(&self) -> Option<Message> {
        let mut state = self.state.lock();
        let message = state.queue.pop_front();
        state.busy = message.is_some();
        message
    }
}

/// So many at once, and one more each time `pace` has passed.
struct TokenBucket {
    /// When everything that was sent is paid for.
    paid_until: Instant,
    refill_interval: Duration,
    burst: u32,
}

impl TokenBucket {
    async fn wait(&mut self) {
        let credit = self.refill_interval * self.burst.saturating_sub(1);
        self.paid_until = self.paid_until.max(Instant::now());
        if let Some(at) = self.paid_until.checked_sub(credit) {
            tokio::time::sleep_until(at).await;
        }
        self.paid_until += self.refill_interval;
    }
}

/// What became of one try.
enum AttemptResult {
    Delivered,
    /// Trying again would not help.
    Refused(String),
    /// It may, after this long if the receiver said so.
    Failed(String, Option<Duration>),
}

async fn send_with_retries(client: &reqwest::Client, message: &Message, options: &Options) {
    let to = &message.to;
    let mut pause = options.initial_backoff;
    for left in (0..options.max_attempts.max(1)).rev() {
        let (why, asked) = match attempt(client, message, options.timeout).await {
            AttemptResult::Delivered => return increment(&options.counters.delivered),
            AttemptResult::Refused(why) => {
                tracing::warn!(%to, why, "a notification was refused");
                return increment(&options.counters.refused);
            }
            AttemptResult::Failed(why, asked) => (why, asked),
        };
        if left == 0 {
            tracing::warn!(%to, why, tries = options.max_attempts, "a notification could not be delivered");
            return increment(&options.counters.failed);
        }
        tracing::debug!(%to, why, "a notification is tried again");
        // Between half and all of it, so that many do not come back at once.
        let jitter = 0.5 + (RandomState::new().hash_one(left) % 512) as f64 / 1024.0;
        let wait = asked.unwrap_or_else(|| pause.mul_f64(jitter)).min(options.max_backoff);
        tokio::time::sleep(wait).await;
        pause = (pause * 2).min(options.max_backoff);
    }
}

async fn attempt(client: &reqwest::Client, message: &Message, timeout: Duration) -> AttemptResult {
    let to = &message.to;
    let mut request = client
        .post(to.url())
        .header(header::CONTENT_TYPE, to.content_type())
        .timeout(timeout)
        .body(message.body.to_string());
    if let (AlertProviderType::Slack, Some(token)) = (to.kind, &to.token) {
        request = request.bearer_auth(token);
    }
    let mut response = match request.send().await {
        Ok(response) => response,
        Err(error) if error.is_builder() => return AttemptResult::Refused(error_chain(&error)),
        Err(error) => return AttemptResult::Failed(error_chain(&error), None),
    };
    let status = response.status();
    let asked =
        response.headers().get(header::RETRY_AFTER).and_then(|value| retry_after(value.to_str().ok()?));
    let text = read_prefix(&mut response).await;
    let is_passing = status.is_server_error()
        || matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT);
    if is_passing {
        return AttemptResult::Failed(status.to_string(), asked);
    }
    if !status.is_success() {
        let line: String = text.lines().next().unwrap_or_default().chars().take(200).collect();
        return AttemptResult::Refused(format!("{status}: {line}"));
    }
    // A bot is told of its mistakes in the body.
    if to.kind == AlertProviderType::Slack
        && let Ok(answer) = serde_json::from_str::<Value>(&text)
        && answer["ok"] == false
    {
        return AttemptResult::Refused(answer["error"].as_str().unwrap_or("it does not say why").to_owned());
    }
    AttemptResult::Delivered
}

/// The beginning of an answer is enough to know, and all that we keep of it.
async fn read_prefix(response: &mut reqwest::Response) -> String {
    const MAX_BYTES: usize = 16 * 1024;
    let mut text = Vec::new();
    while text.len() < MAX_BYTES {
        let Ok(Some(chunk)) = response.chunk().await else { break };
        text.extend_from_slice(&chunk[..chunk.len().min(MAX_BYTES - text.len())]);
    }
    String::from_utf8_lossy(&text).into_owned()
}

/// Seconds, or a date.
fn retry_after(value: &str) -> Option<Duration> {
    if let Ok(seconds) = value.trim().parse::<f64>() {
        return Duration::try_from_secs_f64(seconds).ok();
    }
    let at = jiff::fmt::rfc2822::parse(value.trim()).ok()?.timestamp();
    Some(Duration::try_from(at.duration_since(Timestamp::now())).unwrap_or_default())
}

fn build_client(options: &Options, proxy: Option<&str>) -> Result<reqwest::Client, reqwest::Error> {
    crate::tls::install_crypto_provider();
    let mut builder = reqwest::Client::builder()
        .user_agent(concat!("serin/", env!("CARGO_PKG_VERSION")))
        .connect_timeout(options.timeout)
        .redirect(reqwest::redirect::Policy::none());
    if let Some(proxy) = proxy {
        builder = builder.proxy(reqwest::Proxy::all(proxy)?);
    }
    builder.build()
}

/// The error and its causes, without the URL, which may hold a token.
fn error_chain(error: &reqwest::Error) -> String {
    use std::error::Error as _;
    let mut text = match error.is_timeout() {
        true => "no answer in time".to_owned(),
        false => "no answer".to_owned(),
    };
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
