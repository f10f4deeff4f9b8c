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
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use super::{
    Destination, Notification,
    delivery::{Delivery, build_client, describe},
    mail::MailMemory,
    thread::{ThreadMemory, ThreadRecorder},
};
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
    /// Records the messages of releases; without it they are forgotten at a restart.
    pub recorder: Option<ThreadRecorder>,
}

/// Messages by result.
#[derive(Debug, Default)]
pub struct DeliveryCounters {
    pub(super) delivered: AtomicU64,
    pub(super) refused: AtomicU64,
    pub(super) failed: AtomicU64,
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

pub(super) fn increment(counter: &AtomicU64) {
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
            recorder: None,
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
    threads: ThreadMemory,
    mails: MailMemory,
    runtime: tokio::runtime::Handle,
    tasks: TaskTracker,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct QueueKey {
    url: String,
    proxy: Option<String>,
    /// Of a bot, whose channels share one URL and are limited each.
    channel: Option<String>,
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
    notification: Notification,
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
            threads: ThreadMemory::default(),
            mails: MailMemory::default(),
            runtime: tokio::runtime::Handle::current(),
            tasks: TaskTracker::new(),
        })))
    }

    /// Queues a notification and returns at once.
    pub fn send(&self, to: &Arc<Destination>, notification: &Notification) {
        let inner = &self.0;
        let channel = to.channel.clone().filter(|_| to.is_bot());
        let key = QueueKey { url: to.url().to_owned(), proxy: to.proxy.clone(), channel };
        let message = Message { to: to.clone(), notification: to.reworded(notification) };
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
                    let Message { to, notification } = &message;
                    let Inner { threads, mails, .. } = &*self.0;
                    let delivery = Delivery { client, to, options, threads, mails };
                    delivery.deliver(notification).await;
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
