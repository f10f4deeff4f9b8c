//! The status of a MeshApi, from the health of its scopes.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::api::condition::{Condition, ConditionStatus, READY};
use crate::api::{MeshApi, MeshApiStatus};

/// A status that differs only in its time is written this often.
const TIME_REFRESH: SignedDuration = SignedDuration::from_mins(10);

/// Of an error in a status; servers' words may be long.
const MAX_MESSAGE_CHARS: usize = 500;

/// How listing one scope goes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// Of the last complete listing.
    pub listed: Option<Timestamp>,
    /// Of the last attempt, if it failed.
    pub error: Option<String>,
}

pub struct Counts {
    pub meshes: usize,
    pub objects: usize,
}

/// None before the first result.
pub fn status(
    api: &MeshApi,
    scopes: &BTreeMap<String, Health>,
    counts: &Counts,
    now: Timestamp,
) -> Option<MeshApiStatus> {
    let error = scopes.values().find_map(|health| health.error.clone());
    let listed = scopes.values().map(|health| health.listed).min().flatten();
    if error.is_none() && listed.is_none() {
        return None;
    }
    let (status, reason, message) = match error {
        Some(error) => {
            let message: String = error.chars().take(MAX_MESSAGE_CHARS).collect();
            (ConditionStatus::False, "ListingFailed", message)
        }
        None => (ConditionStatus::True, "Listed", "The last listing was complete.".to_owned()),
    };
    let before = api.status.as_ref().and_then(|status| status.conditions.iter().find(|c| c.type_ == READY));
    let since = before.filter(|before| before.status == status).and_then(|b| b.last_transition_time.clone());
    let count = |count: usize| Some(u32::try_from(count).unwrap_or(u32::MAX));
    Some(MeshApiStatus {
        observed_generation: api.metadata.generation,
        last_complete_listing: listed.map(Time),
        meshes: count(counts.meshes),
        objects: count(counts.objects),
        conditions: vec![Condition {
            type_: READY.to_owned(),
            status,
            reason: reason.to_owned(),
            message,
            observed_generation: api.metadata.generation,
            last_transition_time: since.or(Some(Time(now))),
            last_update_time: None,
        }],
    })
}

/// Whether a person would see a difference.
pub fn is_worth_writing(old: Option<&MeshApiStatus>, new: &MeshApiStatus) -> bool {
    let Some(old) = old else { return true };
    let time = |status: &MeshApiStatus| status.last_complete_listing.as_ref().map(|time| time.0);
    let aged = match (time(old), time(new)) {
        (Some(old), Some(new)) => new.duration_since(old) >= TIME_REFRESH,
        (old, new) => old.is_some() != new.is_some(),
    };
    // Times of the API server have whole seconds.
    let timeless = |status: &MeshApiStatus| {
        let mut status = status.clone();
        status.last_complete_listing = None;
        status.conditions.iter_mut().for_each(|condition| condition.last_transition_time = None);
        status
    };
    aged || timeless(old) != timeless(new)
}
