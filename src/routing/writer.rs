//! Who else writes an object, by its managedFields. The caches lack them.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use kube::Client;
use tokio::time::timeout;

use super::{ObjectKey, object::api};
use crate::patch::FIELD_MANAGER;

/// The name is for a message only: the reconcile does not wait longer for it.
const READ_TIMEOUT: Duration = Duration::from_secs(5);
/// The API server's clock may be behind by so much.
const CLOCK_SKEW: SignedDuration = SignedDuration::from_mins(1);

/// The field manager, besides ours, that wrote the object last and not before
/// `since`. None if there is none, or if it cannot be read.
pub async fn last_writer(client: &Client, object: &ObjectKey, since: Timestamp) -> Option<String> {
    let read = timeout(READ_TIMEOUT, api(client, object).get_metadata(&object.name)).await;
    let managed = match read {
        Ok(Ok(read)) => read.metadata.managed_fields.unwrap_or_default(),
        Ok(Err(error)) => {
            tracing::debug!(%object, %error, "the writer of a route cannot be read");
            return None;
        }
        Err(_) => return None,
    };
    let earliest = since.checked_sub(CLOCK_SKEW).unwrap_or(since);
    managed
        .into_iter()
        .filter(|entry| entry.subresource.is_none())
        .filter(|entry| entry.manager.as_deref() != Some(FIELD_MANAGER))
        .filter_map(|entry| Some((entry.time?.0, entry.manager?)))
        .filter(|(at, _)| *at >= earliest)
        .max_by_key(|(at, _)| *at)
        .map(|(_, manager)| manager)
}
