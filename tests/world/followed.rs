//! The changes of an object by a watch: none is missed.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use kube::api::{Api, DynamicObject};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{Config, Event, watcher};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep};
use tokio_util::task::AbortOnDropHandle;

use super::spawn;

/// Something about one object, each time it was another; until dropped.
pub struct Followed<T> {
    values: Arc<Mutex<Vec<T>>>,
    _work: AbortOnDropHandle<()>,
}

impl<T: Clone + PartialEq + Debug + Send + 'static> Followed<T> {
    pub async fn start(api: Api<DynamicObject>, name: &str, read: fn(&Value) -> Option<T>) -> Self {
        let seen = Arc::<Mutex<Vec<T>>>::default();
        let (kept, config) = (Arc::clone(&seen), Config::default().fields(&format!("metadata.name={name}")));
        let (send, listed) = oneshot::channel();
        let mut send = Some(send);
        let work = spawn(async move {
            let mut events = std::pin::pin!(watcher(api, config).default_backoff());
            while let Some(event) = events.next().await {
                match event {
                    Ok(Event::InitApply(object) | Event::Apply(object)) => {
                        let now = read(&serde_json::to_value(object).expect("an object is JSON"));
                        let mut seen = kept.lock();
                        if let Some(now) = now.filter(|now| seen.last() != Some(now)) {
                            seen.push(now);
                        }
                    }
                    Ok(Event::InitDone) => _ = send.take().map(|send| send.send(())),
                    Ok(Event::Init | Event::Delete(_)) | Err(_) => {}
                }
            }
        });
        listed.await.expect("a first list");
        Self { values: seen, _work: work }
    }

    pub fn observed(&self) -> Vec<T> {
        self.values.lock().clone()
    }

    /// It was exactly these, in this order. The watch may be a moment behind.
    pub async fn assert_sequence(&self, expected: &[T]) {
        let deadline = Instant::now() + Duration::from_secs(10);
        while self.observed().len() < expected.len() && Instant::now() < deadline {
            sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(self.observed(), expected);
    }
}
