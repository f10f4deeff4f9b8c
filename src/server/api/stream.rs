//! The list of Canaries as it changes, as server-sent events.
//!
//! ```text
//!   id: 1763579000-42            of the process and its last change
//!   event: rows                  {"rows": [Row, …], "gone": ["shop/web"], "more": false}
//!
//!   event: reset                 forget all rows; those that follow are the list
//! ```
//!
//! A client that sends the last id as `Last-Event-ID` gets what changed since; if that is not
//! known any more, a `reset` and everything. Several changes of a Canary between two events
//! are one. A client that does not read for [`SEND_TIMEOUT`] is dropped, and reconnects.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    convert::Infallible,
    sync::Arc,
    time::Duration,
};

use axum::{
    body::Body,
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use futures::stream;
use http::{HeaderMap, StatusCode, header};
use parking_lot::Mutex;
use tokio::{
    sync::{OwnedSemaphorePermit, mpsc},
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    super::access::{User, Visible},
    ApiError, BoardState,
    view::Row,
};
use crate::{
    controller::NamespacedName,
    telemetry::{Change, LiveCanaries},
};

/// Between two events with rows.
const PACE: Duration = Duration::from_secs(1);
/// Of a comment that keeps proxies from closing the connection.
const HEARTBEAT: Duration = Duration::from_secs(15);
/// After it the caller's rights are reviewed again.
const RIGHTS: Duration = Duration::from_secs(10);
const SEND_TIMEOUT: Duration = Duration::from_secs(20);
/// Events that a slow client may be behind.
const BUFFER: usize = 4;
/// Rows of one event.
const MAX_ROWS: usize = 200;

/// Rows as JSON, shared by all clients.
#[derive(Default)]
pub struct Rows(Mutex<HashMap<NamespacedName, (u64, Arc<str>)>>);

impl Rows {
    pub fn text(&self, change: &Change) -> Option<Arc<str>> {
        let mut rows = self.0.lock();
        let Some(canary) = &change.canary else {
            rows.remove(&change.name);
            return None;
        };
        if let Some((number, text)) = rows.get(&change.name)
            && *number == change.number
        {
            return Some(Arc::clone(text));
        }
        let text: Arc<str> = serde_json::to_string(&Row::of(canary)).ok()?.into();
        rows.insert(change.name.clone(), (change.number, Arc::clone(&text)));
        Some(text)
    }

    /// Forgets Canaries that were deleted while nobody looked.
    fn retain(&self, all: &[Change]) {
        let mut rows = self.0.lock();
        if rows.len() > all.len() {
            let there: BTreeSet<&NamespacedName> = all.iter().map(|change| &change.name).collect();
            rows.retain(|name, _| there.contains(name));
        }
    }
}

/// The id of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cursor {
    epoch: u64,
    change: u64,
}

impl Cursor {
    fn parse(headers: &HeaderMap) -> Option<Self> {
        let (epoch, change) = headers.get("last-event-id")?.to_str().ok()?.split_once('-')?;
        Some(Self { epoch: epoch.parse().ok()?, change: change.parse().ok()? })
    }
}

pub async fn open(
    state: BoardState,
    user: User,
    closing: CancellationToken,
    headers: &HeaderMap,
) -> Result<Response, ApiError> {
    let permit = Arc::clone(&state.streams).try_acquire_owned().map_err(|_| ApiError::TooManyStreams)?;
    let visible = state.visible(&user).await?;
    let (sender, receiver) = mpsc::channel(BUFFER);
    let client = Client { state, user, visible, reviewed: Instant::now(), closing, sender };
    tokio::spawn(client.run(Cursor::parse(headers), permit));
    let events = stream::unfold(receiver, async |mut receiver: mpsc::Receiver<Bytes>| {
        Some((Ok::<_, Infallible>(receiver.recv().await?), receiver))
    });
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream"),
        (header::CACHE_CONTROL, "no-store"),
        // Of nginx: no buffering.
        (header::HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    Ok((StatusCode::OK, headers, Body::from_stream(events)).into_response())
}

struct Client {
    state: BoardState,
    user: User,
    visible: Visible,
    reviewed: Instant,
    /// The connection is to be closed; the client comes back with another.
    closing: CancellationToken,
    sender: mpsc::Sender<Bytes>,
}

/// The client is gone, too slow, or may not see anything any more.
struct Ended;

impl Client {
    async fn run(mut self, resume: Option<Cursor>, _permit: OwnedSemaphorePermit) {
        let _ = self.follow(resume).await;
    }

    async fn follow(&mut self, resume: Option<Cursor>) -> Result<(), Ended> {
        let live = Arc::clone(&self.state.live);
        let mut changed = live.subscribe();
        let known = resume.and_then(|cursor| live.since(cursor.epoch, cursor.change));
        let mut cursor = match known {
            Some((changes, next)) => {
                self.send_changes(&live, &changes, next).await?;
                next
            }
            None => self.send_all(&live).await?,
        };
        loop {
            // Without the guard of the value, which must not be held.
            let changed = async { changed.wait_for(|change| *change > cursor).await.map(drop) };
            tokio::select! {
                seen = changed => seen.map_err(|_| Ended)?,
                () = sleep(HEARTBEAT) => self.send(Bytes::from_static(b": still here\n\n")).await?,
                () = self.sender.closed() => return Err(Ended),
                () = self.closing.cancelled() => return Err(Ended),
            }
            if self.reviewed.elapsed() >= RIGHTS {
                let visible = self.state.visible(&self.user).await.map_err(|_| Ended)?;
                let before = std::mem::replace(&mut self.visible, visible);
                self.reviewed = Instant::now();
                if before != self.visible {
                    cursor = self.send_all(&live).await?;
                    continue;
                }
            }
            match live.since(live.epoch, cursor) {
                Some((changes, next)) if next > cursor => {
                    self.send_changes(&live, &changes, next).await?;
                    cursor = next;
                }
                Some(_) => continue,
                None => cursor = self.send_all(&live).await?,
            }
            sleep(PACE).await;
        }
    }

    async fn send_all(&mut self, live: &LiveCanaries) -> Result<u64, Ended> {
        self.send(Bytes::from_static(b"event: reset\ndata: {}\n\n")).await?;
        let (all, cursor) = live.all();
        self.state.rows.retain(&all);
        self.send_changes(live, &all, cursor).await?;
        Ok(cursor)
    }

    async fn send_changes(
        &mut self,
        live: &LiveCanaries,
        changes: &[Change],
        next: u64,
    ) -> Result<(), Ended> {
        // Namespaces that have their first Canary.
        let unknown = changes.iter().any(|change| match &self.visible {
            Visible::All => false,
            Visible::Some(reviewed) => !reviewed.contains_key(&change.name.namespace),
        });
        if unknown {
            self.visible = self.state.visible(&self.user).await.map_err(|_| Ended)?;
        }
        let seen: Vec<&Change> =
            changes.iter().filter(|change| self.visible.contains(&change.name.namespace)).collect();
        let mut chunks = seen.chunks(MAX_ROWS).peekable();
        if chunks.peek().is_none() {
            // The id moves on, and the end of the list is known.
            return self.send(event(&self.state.rows, &[], live.epoch, Some(next))).await;
        }
        while let Some(chunk) = chunks.next() {
            // Only the last one completes: a client that has less begins again.
            let id = chunks.peek().is_none().then_some(next);
            self.send(event(&self.state.rows, chunk, live.epoch, id)).await?;
        }
        Ok(())
    }

    async fn send(&self, event: Bytes) -> Result<(), Ended> {
        timeout(SEND_TIMEOUT, self.sender.send(event)).await.map_err(|_| Ended)?.map_err(|_| Ended)
    }
}

fn event(rows: &Rows, changes: &[&Change], epoch: u64, id: Option<u64>) -> Bytes {
    let mut text = String::with_capacity(64 + 512 * changes.len());
    if let Some(change) = id {
        text.push_str(&format!("id: {epoch}-{change}\n"));
    }
    text.push_str("event: rows\ndata: {\"rows\":[");
    let mut gone = BTreeSet::new();
    let mut is_first = true;
    for change in changes {
        match rows.text(change) {
            Some(row) => {
                if !std::mem::take(&mut is_first) {
                    text.push(',');
                }
                text.push_str(&row);
            }
            None => _ = gone.insert(change.name.to_string()),
        }
    }
    let gone = serde_json::to_string(&gone).unwrap_or_else(|_| "[]".to_owned());
    text.push_str(&format!("],\"gone\":{gone},\"more\":{}}}\n\n", id.is_none()));
    text.into()
}

impl BoardState {
    /// The namespaces with Canaries in which the caller may list them.
    pub async fn visible(&self, user: &User) -> Result<Visible, ApiError> {
        if self.may(user, "list", None).await? {
            return Ok(Visible::All);
        }
        let namespaces: BTreeSet<String> =
            self.live.all().0.into_iter().map(|change| change.name.namespace).collect();
        let mut reviewed = BTreeMap::new();
        for namespace in namespaces.into_iter().take(super::MAX_NAMESPACES) {
            let allowed = self.may(user, "list", Some(&namespace)).await?;
            reviewed.insert(namespace, allowed);
        }
        Ok(Visible::Some(reviewed))
    }
}
