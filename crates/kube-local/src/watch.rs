//! Watch: a stream of events from a version on.
//!
//! A watcher keeps a position in its collection's history and sleeps until the
//! collection changes. A plain frame is serialised once and shared by all
//! watchers. Bookmarks report the current version to idle clients. A watch whose
//! position was compacted ends with a 410 event.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use futures::stream;
use http::{Response, StatusCode};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until};

use super::faults::WatchFault;
use super::kinds::Resource;
use super::kubectl::table;
use super::ordered_notify::Subscription;
use super::read;
use super::request::View;
use super::selector::Selector;
use super::server::{Call, Server};
use super::status_error::StatusError;
use super::store::{Change, Event, Object, frame};

const BOOKMARK_INTERVAL: Duration = Duration::from_secs(60);
/// The last bookmark is sent this long before the watch ends.
const LAST_BOOKMARK_BEFORE_END: Duration = Duration::from_secs(2);
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(45 * 60);

pub fn watch(server: &Arc<Server>, call: &Call) -> Result<Response<Body>, StatusError> {
    let (resource, params) = (&call.resource, &call.params);
    if params.send_initial_events && params.resource_version_match != "NotOlderThan" {
        return Err(StatusError::invalid_list_options(
            "resourceVersionMatch: Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
        ));
    }
    if !params.resource_version_match.is_empty() && !params.send_initial_events {
        return Err(StatusError::invalid_list_options(
            "resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
        ));
    }
    let collection = resource.collection();
    let subscription =
        server.store.subscribe(&collection).ok_or_else(|| StatusError::not_found(resource, ""))?;
    let now = Instant::now();
    let deadline = now + params.timeout_seconds.map_or(DEFAULT_TIMEOUT, Duration::from_secs);
    let mut watcher = Watcher {
        server: server.clone(),
        resource: resource.clone(),
        collection,
        namespace: call.namespace.clone(),
        selector: Selector::parse(&params.label_selector, &params.field_selector, resource)?,
        view: call.view,
        fault_exempt: call.fault_exempt,
        include_object: params.include_object.clone(),
        position: 0,
        ready: VecDeque::new(),
        subscription,
        deadline,
        bookmark: params.allow_watch_bookmarks.then(|| next_bookmark(now, deadline)),
        ended: false,
        columns_sent: false,
    };
    let requested = read::version(&params.resource_version)?;
    match requested {
        Some(version) if !params.send_initial_events => {
            watcher.position = version;
            // A compacted version is reported at once, in the stream.
            watcher.advance();
        }
        _ => watcher.send_initial_events(params.send_initial_events && params.allow_watch_bookmarks),
    }
    let frames = stream::unfold(watcher, |mut watcher| async move {
        let frame = watcher.next().await?;
        Some((Ok::<Bytes, Infallible>(frame), watcher))
    });
    Ok(read::json_response(StatusCode::OK, Body::from_stream(frames)))
}

/// After the interval, or shortly before the deadline; at the deadline if both have passed.
fn next_bookmark(now: Instant, deadline: Instant) -> Instant {
    match deadline.checked_sub(LAST_BOOKMARK_BEFORE_END) {
        Some(last) if now < last => last.min(now + BOOKMARK_INTERVAL),
        _ => deadline,
    }
}

struct Watcher {
    server: Arc<Server>,
    resource: Arc<Resource>,
    collection: String,
    namespace: Option<String>,
    selector: Selector,
    view: View,
    /// No faults are injected.
    fault_exempt: bool,
    include_object: String,
    /// Events up to this version were processed.
    position: u64,
    ready: VecDeque<Bytes>,
    subscription: Subscription,
    deadline: Instant,
    /// When the next bookmark is due; `None` if the client requested none.
    bookmark: Option<Instant>,
    ended: bool,
    /// Only the first table has column definitions.
    columns_sent: bool,
}

impl Watcher {
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(frame) = self.ready.pop_front() {
                // An event that could still be lost is not shown.
                self.server.store.committed(self.position).await.ok()?;
                return Some(frame);
            }
            if self.ended {
                return None;
            }
            let next_bookmark = self.bookmark.unwrap_or(self.deadline);
            tokio::select! {
                biased;
                is_open = self.subscription.notified() => match is_open {
                    true => self.handle_notification().await,
                    // The collection was removed with its definition.
                    false => {
                        self.ended = true;
                        self.advance();
                    }
                },
                () = sleep_until(self.deadline) => self.ended = true,
                () = sleep_until(next_bookmark) => self.send_bookmark(),
            }
        }
    }

    async fn handle_notification(&mut self) {
        let fault = if self.fault_exempt { None } else { self.server.faults.on_watch() };
        match fault {
            None => {}
            Some(WatchFault::Dropped) => {
                self.ended = true;
                return;
            }
            Some(WatchFault::Delayed(delay)) => tokio::time::sleep(delay).await,
            Some(WatchFault::Expired) => {
                self.expire("too old resource version: injected");
                return;
            }
        }
        self.advance();
    }

    /// Queues the frames of the events since `position`.
    fn advance(&mut self) {
        self.subscription.mark_seen();
        match self.server.store.events_since(&self.collection, self.position) {
            Err(compacted) => self.expire(&compacted.to_string()),
            Ok(events) => {
                for event in events {
                    self.position = event.object.version;
                    if let Some(frame) = self.filter_event(&event) {
                        self.ready.push_back(frame);
                    }
                }
            }
        }
    }

    /// The frame of an event for this selector: an object that stops matching is
    /// DELETED, one that starts matching is ADDED.
    fn filter_event(&mut self, event: &Event) -> Option<Bytes> {
        if self.namespace.as_deref().is_some_and(|wanted| *event.object.key.namespace != *wanted) {
            return None;
        }
        let shares_frame = self.view == View::Plain
            && self.selector.is_empty()
            && event.object.value["apiVersion"] == self.resource.api_version().as_str();
        if shares_frame {
            return Some(event.frame());
        }
        let before = event.previous.as_ref().is_some_and(|previous| self.selector.matches(&previous.value));
        let now = event.change != Change::Deleted && self.selector.matches(&event.object.value);
        match (before, now) {
            (false, false) => None,
            (false, true) => Some(self.frame(Change::Added, &event.object.value)),
            (true, true) => Some(self.frame(Change::Modified, &event.object.value)),
            (true, false) => {
                let mut last = event.previous.as_ref().unwrap_or(&event.object).value.clone();
                last["metadata"]["resourceVersion"] = json!(event.object.version.to_string());
                Some(self.frame(Change::Deleted, &last))
            }
        }
    }

    /// Starts with the current state, each object as ADDED.
    fn send_initial_events(&mut self, announce_end: bool) {
        let snapshot = self.server.store.list(&self.collection, self.namespace.as_deref());
        self.position = snapshot.version;
        for object in &snapshot.objects {
            if self.selector.matches(&object.value) {
                let frame = self.added_frame(object);
                self.ready.push_back(frame);
            }
        }
        if announce_end {
            let end = self.bookmark_frame(json!({ "k8s.io/initial-events-end": "true" }));
            self.ready.push_back(end);
        }
    }

    fn added_frame(&mut self, object: &Object) -> Bytes {
        match self.view {
            View::Plain => frame(Change::Added, &read::json_in_version(object, &self.resource)),
            View::Table | View::Metadata => self.frame(Change::Added, &object.value),
        }
    }

    fn frame(&mut self, change: Change, object: &Value) -> Bytes {
        let shown = match self.view {
            View::Plain => read::in_version(object, &self.resource),
            View::Metadata => read::metadata_only(object, "PartialObjectMetadata"),
            View::Table => {
                let meta = json!({ "resourceVersion": object["metadata"]["resourceVersion"] });
                let now = self.server.clock.now();
                let mut table = table::table(&self.resource, &[object], meta, &self.include_object, now);
                if std::mem::replace(&mut self.columns_sent, true) {
                    table["columnDefinitions"] = Value::Null;
                }
                table
            }
        };
        frame(change, shown.to_string().as_bytes())
    }

    fn send_bookmark(&mut self) {
        let now = Instant::now();
        // Events of other collections advance the version without a notification.
        self.position =
            self.position.max(self.server.store.bookmark_version(&self.collection, self.position));
        let frame = self.bookmark_frame(Value::Null);
        self.ready.push_back(frame);
        self.bookmark = Some(next_bookmark(now, self.deadline));
    }

    fn bookmark_frame(&self, annotations: Value) -> Bytes {
        let mut object = json!({
            "kind": self.resource.kind,
            "apiVersion": self.resource.api_version(),
            "metadata": { "resourceVersion": self.position.to_string(), "creationTimestamp": null },
        });
        if !annotations.is_null() {
            object["metadata"]["annotations"] = annotations;
        }
        Bytes::from(format!("{{\"type\":\"BOOKMARK\",\"object\":{object}}}\n"))
    }

    fn expire(&mut self, why: &str) {
        let status = StatusError::expired(why).status();
        self.ready.push_back(Bytes::from(format!("{{\"type\":\"ERROR\",\"object\":{status}}}\n")));
        self.ended = true;
    }
}
