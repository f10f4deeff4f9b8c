//! The next response of a stream.

use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::time::Instant;

use super::State;
use super::lane::{ABSENT, Held, Outstanding, UNKNOWN, fingerprint};
use super::stream::{Response, Stream, StreamId, Variant};
use crate::xds::config::{Encoded, ResourceKey, ResourceType};

/// What is sent of one resource.
enum Part {
    Content(Arc<str>, Arc<Encoded>),
    Removal(Arc<str>),
}

impl State {
    /// None: there is nothing to send before the stream is notified or receives a request.
    pub fn next_response(&mut self, id: StreamId, now: Instant) -> Option<Response> {
        // Clusters last as well: the removal of one waits until no route is outdated.
        let mut order = ResourceType::ALL.into_iter().chain([ResourceType::Cluster]);
        order.find_map(|kind| self.response_of(id, kind, now))
    }

    pub fn count_sent(&mut self, id: StreamId, bytes: usize) {
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.bytes_sent += bytes as u64;
        }
    }

    fn response_of(&mut self, id: StreamId, kind: ResourceType, now: Instant) -> Option<Response> {
        let stream = self.streams.get(&id)?;
        let lane = stream.lane(kind);
        if lane.outstanding.is_some() || lane.dirty.is_empty() {
            return None;
        }
        let (mut parts, mut versions) = (Vec::new(), Vec::new());
        let (mut clean, mut current) = (Vec::new(), Vec::new());
        for name in &lane.dirty {
            let Some(held) = lane.held.get(name) else {
                clean.push(Arc::clone(name));
                continue;
            };
            versions.push((Arc::clone(name), self.wanted_version(held)));
            match self.part(stream, kind, name, held, now) {
                Due::Now(part) => parts.push((held.alone, part)),
                Due::Never => clean.push(Arc::clone(name)),
                Due::Current => current.push(Arc::clone(name)),
                Due::Later => {}
            }
        }
        if parts.iter().any(|(alone, _)| *alone) {
            parts.retain(|(alone, _)| *alone);
            parts.truncate(1);
        }
        let full = stream.variant == Variant::StateOfTheWorld && kind.is_sent_in_full();
        let parts: Vec<Part> = match (full, parts.is_empty()) {
            (true, false) => self.full(stream, kind),
            _ => parts.into_iter().map(|(_, part)| part).collect(),
        };
        let stream = self.streams.get_mut(&id)?;
        let is_delta = stream.variant == Variant::Delta;
        stream.nonce += 1;
        let nonce = stream.nonce;
        let lane = stream.lane_mut(kind);
        for (name, version) in versions {
            lane.count(&name, version);
        }
        let version = lane.version;
        for name in clean {
            lane.dirty.remove(&name);
        }
        for name in current {
            // It refused what is no longer wanted of it.
            lane.dirty.remove(&name);
            lane.errors.remove(&name);
            if let Some(held) = lane.held.get_mut(&name) {
                held.rejected = UNKNOWN;
            }
        }
        let (mut sent, mut resources, mut removed) = (Vec::new(), Vec::new(), Vec::new());
        for part in parts {
            let (name, version, offers) = match part {
                Part::Content(name, encoded) => {
                    let (version, offers) = (encoded.version, encoded.has_endpoints);
                    resources.push((Arc::clone(&name), encoded));
                    (name, version, offers)
                }
                Part::Removal(name) => {
                    removed.push(Arc::clone(&name));
                    (name, ABSENT, false)
                }
            };
            lane.dirty.remove(&name);
            if let Some(held) = lane.held.get_mut(&name) {
                held.offers = offers;
            }
            sent.push((name, version));
        }
        if sent.is_empty() {
            return None;
        }
        // State of the world has no word for the removal of one.
        if !is_delta && resources.is_empty() && !full {
            self.acknowledged(id, kind, sent);
            return None;
        }
        lane.outstanding = Some(Outstanding { nonce, sent });
        Some(Response { kind, nonce, version, resources, removed })
    }

    fn part(&self, stream: &Stream, kind: ResourceType, name: &Arc<str>, held: &Held, now: Instant) -> Due {
        if !held.wanted {
            return match kind == ResourceType::Cluster && !self.routes_are_settled(stream) {
                true => Due::Later,
                false => Due::Now(Part::Removal(Arc::clone(name))),
            };
        }
        let encoded = held.key.as_ref().and_then(|key| self.encoded(key));
        let target = encoded.map_or(ABSENT, |encoded| encoded.version);
        if target == held.acked {
            return Due::Current;
        }
        if target == held.rejected {
            return Due::Never;
        }
        let Some(encoded) = encoded else {
            let never_had = held.acked == UNKNOWN && !stream.lane(kind).names.contains(name);
            return if never_had { Due::Never } else { Due::Now(Part::Removal(Arc::clone(name))) };
        };
        let unsettled = self.settled.is_some_and(|settled| now < settled);
        let service = held.key.as_ref().map(|key| key.service());
        if !stream.has_clusters(service, &encoded.clusters)
            || (encoded.incomplete && held.earlier && unsettled)
            || (held.acked != UNKNOWN && self.awaits_endpoints(stream, &encoded.splits))
        {
            return Due::Later;
        }
        Due::Now(Part::Content(Arc::clone(name), Arc::clone(encoded)))
    }

    /// A cluster that is to get a share of the requests has no endpoint at this proxy, and
    /// another of the rule has: a pod is ready before its endpoint is known. Without this its
    /// share would be answered with 503. What the proxy does not subscribe to is not awaited.
    fn awaits_endpoints(&self, stream: &Stream, splits: &[Vec<String>]) -> bool {
        let lane = stream.lane(ResourceType::Endpoints);
        let serves = |name: &String| {
            let Some(held) = lane.held.get(&**name) else { return true };
            let encoded = held.key.as_ref().and_then(|key| self.encoded(key));
            // Those of an earlier connection were acknowledged there.
            held.serves || encoded.is_some_and(|now| now.has_endpoints && now.version == held.acked)
        };
        splits.iter().any(|split| split.iter().any(serves) && !split.iter().all(serves))
    }

    /// Everything that a stream should have, and what it may not lose yet.
    fn full(&self, stream: &Stream, kind: ResourceType) -> Vec<Part> {
        let retain = kind == ResourceType::Cluster && !self.routes_are_settled(stream);
        let parts = stream.lane(kind).held.iter().map(|(name, held)| {
            let encoded =
                held.key.as_ref().filter(|_| held.wanted || retain).and_then(|key| self.encoded(key));
            match encoded {
                Some(encoded) => Part::Content(Arc::clone(name), Arc::clone(encoded)),
                None => Part::Removal(Arc::clone(name)),
            }
        });
        parts.collect()
    }

    /// No listener or route of the proxy is outdated: what they do not name is not in use.
    fn routes_are_settled(&self, stream: &Stream) -> bool {
        let listeners = stream.lane(ResourceType::Listener);
        let routes = stream.lane(ResourceType::Route);
        let wanted: BTreeSet<&str> = listeners
            .held
            .values()
            .filter_map(|held| self.encoded(held.key.as_ref()?)?.route.as_deref())
            .collect();
        listeners.subscribed
            && listeners.is_settled()
            && routes.is_settled()
            && wanted.iter().all(|name| routes.held.contains_key(*name))
    }

    pub(super) fn encoded(&self, key: &Arc<ResourceKey>) -> Option<&Arc<Encoded>> {
        self.resources.get(key)?.encoded.as_ref()
    }

    /// Of all resources of the type that the proxy should have; equal for equal resources, in
    /// every process. It is [`Lane::version`](super::lane::Lane::version) once none is dirty.
    pub(super) fn version_of(&self, stream: &Stream, kind: ResourceType) -> u64 {
        let held = stream.lane(kind).held.iter();
        let versions = held.filter_map(|(name, held)| Some(fingerprint(name, self.wanted_version(held)?)));
        versions.fold(0, u64::wrapping_add)
    }

    /// None: the proxy should not have it.
    fn wanted_version(&self, held: &Held) -> Option<u64> {
        let key = held.key.as_ref().filter(|_| held.wanted)?;
        self.encoded(key).map(|encoded| encoded.version)
    }
}

/// When a part is sent.
enum Due {
    Now(Part),
    /// What it waits for makes a response possible again.
    Later,
    /// The proxy has it.
    Current,
    Never,
}
