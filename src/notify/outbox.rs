//! Delivers notifications in the background.
//!
//! Each address has a bounded queue and one task that empties it, so an
//! unreachable receiver delays no other, and a receiver gets its messages in
//! order. An idle queue and its task are removed.
//!
//! Guarantees: [`Outbox::send`] returns at once; memory is bounded: a full queue
//! drops its oldest message and logs that; attempts are bounded, with exponential
//! backoff or the receiver's `Retry-After`; each address is rate limited.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use reqwest::{StatusCode, header};
use serde_json::Value;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use super::{Destination, Notification};
use crate::api::alert_provider::AlertProviderType;
use crate::error_chain::error_chain;
use crate::retry_after::retry_after;
use crate::tenancy::TenantAddresses;

/// The default suits every supported chat.
#[derive(Clone, Debug)]
pub struct Options {
    /// Messages per address.
    pub queue_capacity: usize,
    /// Addresses with a queue.
    pub max_destinations: usize,
    /// Of them, those that Canaries of one namespace were the first to use.
    pub max_destinations_per_namespace: usize,
    pub timeout: Duration,
    /// Per message, the first one included.
    pub max_attempts: u32,
    /// After the first failure; doubles with each.
    pub initial_backoff: Duration,
    /// Also limits `Retry-After`.
    pub max_backoff: Duration,
    /// Rate limit: one message per address in this time on average …
    pub refill_interval: Duration,
    /// … and this many at once.
    pub burst: u32,
    /// An empty queue is removed after this time.
    pub idle_timeout: Duration,
    pub counters: Arc<DeliveryCounters>,
    /// Receivers and proxies at other addresses get nothing.
    pub addresses: TenantAddresses,
}

/// Messages by result.
#[derive(Debug, Default)]
pub struct DeliveryCounters {
    delivered: AtomicU64,
    refused: AtomicU64,
    failed: AtomicU64,
    dropped: AtomicU64,
}

impl DeliveryCounters {
    /// Results and counts.
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

fn increment(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl Default for Options {
    fn default() -> Self {
        Self {
            queue_capacity: 100,
            max_destinations: 1000,
            max_destinations_per_namespace: 100,
            timeout: Duration::from_secs(10),
            max_attempts: 6,
            initial_backoff: Duration::from_millis(500),
            max_backoff: Duration::from_secs(60),
            refill_interval: Duration::from_secs(1),
            burst: 5,
            idle_timeout: Duration::from_secs(60),
            counters: Arc::default(),
            addresses: TenantAddresses::default(),
        }
    }
}

/// The HTTP client could not be set up.
#[derive(Debug, thiserror::Error)]
#[error("cannot set up the HTTP client for notifications")]
pub struct OutboxSetupError(#[from] reqwest::Error);

/// Clones share queues and connections.
#[derive(Clone)]
pub struct Outbox(Arc<Inner>);

struct Inner {
    options: Options,
    /// For addresses without a proxy.
    client: reqwest::Client,
    queues: Mutex<HashMap<QueueKey, Arc<DestinationQueue>>>,
    runtime: tokio::runtime::Handle,
    tasks: TaskTracker,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct QueueKey {
    url: String,
    proxy: Option<String>,
}

#[derive(Default)]
struct DestinationQueue {
    /// Of the first notification.
    namespace: String,
    state: Mutex<QueueState>,
    not_empty: Notify,
}

#[derive(Default)]
struct QueueState {
    queue: VecDeque<Message>,
    /// A message is being delivered.
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
        let mut queues = inner.queues.lock();
        if let Some(queue) = queues.get(&key) {
            queue.push(message, &inner.options);
            return;
        }
        let namespace = &notification.namespace;
        let of_namespace = queues.values().filter(|queue| queue.namespace == *namespace).count();
        if queues.len() >= inner.options.max_destinations
            || of_namespace >= inner.options.max_destinations_per_namespace
        {
            tracing::warn!(%to, namespace, "a notification is dropped: too many receivers have notifications waiting");
            increment(&inner.options.counters.dropped);
            return;
        }
        let queue =
            Arc::new(DestinationQueue { namespace: namespace.clone(), ..DestinationQueue::default() });
        queue.push(message, &inner.options);
        queues.insert(key.clone(), queue.clone());
        inner.tasks.spawn_on(self.clone().deliver(key, queue), &inner.runtime);
    }

    /// Waits until every message is delivered or given up, at most `within`;
    /// returns false on timeout. For shutdown.
    pub async fn flush(&self, within: Duration) -> bool {
        let end = Instant::now() + within;
        loop {
            let pending = self.0.queues.lock().values().any(|queue| {
                let state = queue.state.lock();
                state.busy || !state.queue.is_empty()
            });
            if !pending || Instant::now() >= end {
                return !pending;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn deliver(self, key: QueueKey, queue: Arc<DestinationQueue>) {
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
            let Some(message) = queue.pop() else {
                let filled = tokio::time::timeout(options.idle_timeout, queue.not_empty.notified()).await;
                if filled.is_err() && self.remove(&key, &queue) {
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
                    tracing::warn!(to = %message.to, why = describe(error), "a notification is dropped: the proxy is unusable");
                    increment(&options.counters.dropped);
                }
            }
            queue.state.lock().busy = false;
        }
    }

    /// Unless a message was queued meanwhile.
    fn remove(&self, key: &QueueKey, queue: &DestinationQueue) -> bool {
        let mut queues = self.0.queues.lock();
        let is_empty = queue.state.lock().queue.is_empty();
        if is_empty {
            queues.remove(key);
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

/// `burst` at once, and one more per `refill_interval`.
struct TokenBucket {
    /// When the messages sent so far are paid for, one interval each.
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

enum AttemptResult {
    Delivered,
    /// Permanent.
    Refused(String),
    /// Transient, with the receiver's `Retry-After`.
    Failed(String, Option<Duration>),
}

async fn send_with_retries(client: &reqwest::Client, message: &Message, options: &Options) {
    let to = &message.to;
    let mut backoff = options.initial_backoff;
    for attempts_left in (0..options.max_attempts.max(1)).rev() {
        let (why, retry_after) = match attempt(client, message, options).await {
            AttemptResult::Delivered => return increment(&options.counters.delivered),
            AttemptResult::Refused(why) => {
                tracing::warn!(%to, why, "a notification was refused");
                return increment(&options.counters.refused);
            }
            AttemptResult::Failed(why, retry_after) => (why, retry_after),
        };
        if attempts_left == 0 {
            tracing::warn!(%to, why, attempts = options.max_attempts, "a notification could not be delivered");
            return increment(&options.counters.failed);
        }
        tracing::debug!(%to, why, "a notification is retried");
        // Between half and all of the backoff, so that retries spread.
        let jitter = 0.5 + (RandomState::new().hash_one(attempts_left) % 512) as f64 / 1024.0;
        let wait = retry_after.unwrap_or_else(|| backoff.mul_f64(jitter)).min(options.max_backoff);
        tokio::time::sleep(wait).await;
        backoff = (backoff * 2).min(options.max_backoff);
    }
}

async fn attempt(client: &reqwest::Client, message: &Message, options: &Options) -> AttemptResult {
    let to = &message.to;
    for url in [Some(to.url()), to.proxy.as_deref()].into_iter().flatten() {
        if let Err(denied) = options.addresses.check(url) {
            return AttemptResult::Refused(format!("its address {denied}"));
        }
    }
    let mut request = client
        .post(to.url())
        .header(header::CONTENT_TYPE, to.content_type())
        .timeout(options.timeout)
        .body(message.body.to_string());
    if let (AlertProviderType::Slack, Some(token)) = (to.kind, &to.token) {
        request = request.bearer_auth(token);
    }
    let mut response = match request.send().await {
        Ok(response) => response,
        Err(error) if error.is_builder() => return AttemptResult::Refused(describe(&error)),
        Err(error) => return AttemptResult::Failed(describe(&error), None),
    };
    let status = response.status();
    let retry_after = retry_after(response.headers());
    let text = read_prefix(&mut response).await;
    let is_transient = status.is_server_error()
        || matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT);
    if is_transient {
        return AttemptResult::Failed(status.to_string(), retry_after);
    }
    if !status.is_success() {
        let line: String = text.lines().next().unwrap_or_default().chars().take(200).collect();
        return AttemptResult::Refused(format!("{status}: {line}"));
    }
    // Slack reports errors of bots in the body of a 200.
    if to.kind == AlertProviderType::Slack
        && let Ok(reply) = serde_json::from_str::<Value>(&text)
        && reply["ok"] == false
    {
        return AttemptResult::Refused(reply["error"].as_str().unwrap_or("no reason given").to_owned());
    }
    AttemptResult::Delivered
}

/// Bounds memory; a prefix is enough for an error.
async fn read_prefix(response: &mut reqwest::Response) -> String {
    const MAX_BYTES: usize = 16 * 1024;
    let mut text = Vec::new();
    while text.len() < MAX_BYTES {
        let Ok(Some(chunk)) = response.chunk().await else { break };
        text.extend_from_slice(&chunk[..chunk.len().min(MAX_BYTES - text.len())]);
    }
    String::from_utf8_lossy(&text).into_owned()
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
    options.addresses.guard(builder).build()
}

/// Without the outermost error, whose text has the URL, which may hold a token.
fn describe(error: &reqwest::Error) -> String {
    let text = if error.is_timeout() { "timeout" } else { "no response" };
    match std::error::Error::source(error) {
        Some(source) => format!("{text}: {}", error_chain(source)),
        None => text.to_owned(),
    }
}
