//! The resources of one type on one stream.
//!
//! ```text
//!   changed ─▶ dirty ─▶ outstanding ─ ACK ──▶ acknowledged
//!                ▲           │
//!                │           └─ NACK of one ──▶ rejected: not sent again in this version
//!                └───────────── NACK of several: each alone, to learn which one it is
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;

use crate::xds::config::ResourceKey;

/// Version of a resource that a proxy has no content for. Versions of contents are
/// hashes; one that is equal costs a message.
pub(super) const ABSENT: u64 = u64::MAX;
/// Version of a resource that a proxy is not known to have an answer for.
pub(super) const UNKNOWN: u64 = 0;

#[derive(Default)]
pub(super) struct Lane {
    pub subscribed: bool,
    /// All resources of the type that are for this proxy.
    pub wildcard: bool,
    /// Subscribed by name.
    pub names: BTreeSet<Arc<str>>,
    pub held: BTreeMap<Arc<str>, Held>,
    /// May differ from what the proxy has.
    pub dirty: BTreeSet<Arc<str>>,
    pub outstanding: Option<Outstanding>,
    /// Reasons of refusals, by name.
    pub errors: BTreeMap<Arc<str>, Arc<str>>,
    /// Of all resources that the proxy should have, but for those that are dirty: the sum of
    /// their [`fingerprint`]s, so that one change costs nothing for the others.
    pub version: u64,
}

/// A resource that a proxy has or should have.
pub(super) struct Held {
    /// None: it has it from an earlier connection, and should not.
    pub key: Option<Arc<ResourceKey>>,
    pub wanted: bool,
    pub acked: u64,
    pub rejected: u64,
    /// Only with itself in a response.
    pub alone: bool,
    /// It is from an earlier connection.
    pub earlier: bool,
    /// The content that was sent last has endpoints.
    pub offers: bool,
    /// The content that was acknowledged last has.
    pub serves: bool,
    /// Its part of [`Lane::version`].
    pub counted: u64,
}

impl Held {
    pub fn new(key: Option<Arc<ResourceKey>>) -> Self {
        let wanted = key.is_some();
        Self {
            key,
            wanted,
            acked: UNKNOWN,
            rejected: UNKNOWN,
            alone: false,
            earlier: false,
            offers: false,
            serves: false,
            counted: 0,
        }
    }
}

/// A response that was neither acknowledged nor rejected.
pub(super) struct Outstanding {
    pub nonce: u64,
    /// Names and versions.
    pub sent: Vec<(Arc<str>, u64)>,
}

/// Of a version of a resource; equal in every process.
pub(super) fn fingerprint(name: &str, version: u64) -> u64 {
    let mut hasher = DefaultHasher::new();
    (name, version).hash(&mut hasher);
    hasher.finish()
}

impl Lane {
    /// The version of a resource that the proxy should have, or that it should not.
    pub fn count(&mut self, name: &str, version: Option<u64>) {
        let Some(held) = self.held.get_mut(name) else { return };
        let counted = version.map_or(0, |version| fingerprint(name, version));
        self.version = self.version.wrapping_sub(held.counted).wrapping_add(counted);
        held.counted = counted;
    }

    pub fn is_settled(&self) -> bool {
        self.outstanding.is_none() && self.dirty.is_empty() && self.errors.is_empty()
    }
}
