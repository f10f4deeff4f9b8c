//! The message of a release in a chat that can update messages, and the thread below it.
//!
//! A Slack bot posts one message for each release and AlertProvider; each later notification
//! updates it and adds a line to its thread. Channel and timestamp, which identify the
//! message, are in memory, and in an annotation of the Canary that is written once for each
//! release and provider: after a restart, or on another replica, the same message is updated.
//! A controller that is killed between the post and that write posts a second message.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;

use kube::ResourceExt as _;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::Notification;
use crate::api::Canary;

/// The annotation of a provider is this and some digits of the provider's hash.
const ANNOTATION_PREFIX: &str = "serin.dev/chat-message-";

/// Beyond this, messages are looked up in the annotations again.
const MAX_REMEMBERED: usize = 20_000;

/// By provider, as `NAMESPACE/NAME`.
pub type Threads = BTreeMap<String, Thread>;

/// The message of a release.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Thread {
    pub provider: String,
    /// Of the Canary: a copy of the Canary has its own messages.
    pub uid: Option<String>,
    pub release: u64,
    /// Slack's ID of the channel.
    pub channel: String,
    /// Slack's ID of the message in it.
    pub ts: String,
}

impl Thread {
    pub fn annotation(&self) -> String {
        let digest = Sha256::digest(self.provider.as_bytes());
        let digits: String = digest.iter().take(5).map(|byte| format!("{byte:02x}")).collect();
        format!("{ANNOTATION_PREFIX}{digits}")
    }

    fn is_of(&self, notification: &Notification) -> bool {
        self.uid == notification.uid && self.release == notification.release
    }
}

/// Those in the annotations of a Canary; annotations that do not parse are none.
pub fn recorded(canary: &Canary) -> Threads {
    let annotations = canary.annotations().iter().filter(|(key, _)| key.starts_with(ANNOTATION_PREFIX));
    let threads = annotations.filter_map(|(_, value)| serde_json::from_str::<Thread>(value).ok());
    threads.map(|thread| (thread.provider.clone(), thread)).collect()
}

/// Of the Canary, by namespace and name.
type RecordThread = dyn Fn(&str, &str, &Thread) + Send + Sync;

/// Writes a new message to the annotation of its Canary.
#[derive(Clone)]
pub struct ThreadRecorder(pub Arc<RecordThread>);

impl fmt::Debug for ThreadRecorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ThreadRecorder")
    }
}

/// Messages that this process posted: the annotation is in the cache some time later.
#[derive(Default)]
pub struct ThreadMemory(Mutex<HashMap<(String, String, String), Thread>>);

impl ThreadMemory {
    /// The message that this notification updates.
    pub fn find(&self, provider: &str, notification: &Notification) -> Option<Thread> {
        let remembered = self.0.lock().get(&key(provider, notification)).cloned();
        let known = [remembered.as_ref(), notification.threads.get(provider)];
        known.into_iter().flatten().find(|thread| thread.is_of(notification)).cloned()
    }

    pub fn remember(&self, notification: &Notification, thread: Thread) {
        let mut threads = self.0.lock();
        if threads.len() >= MAX_REMEMBERED {
            threads.clear();
        }
        threads.insert(key(&thread.provider.clone(), notification), thread);
    }
}

fn key(provider: &str, notification: &Notification) -> (String, String, String) {
    (provider.to_owned(), notification.namespace.clone(), notification.name.clone())
}
