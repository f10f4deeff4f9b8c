//! What the proxies have: for `serin xds status`, and to know whether a route is in force.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::State;
use super::lane::UNKNOWN;
use super::stream::Stream;
use crate::catalog::{Identity, ServiceKey};
use crate::xds::config::ResourceType;
use crate::xds::node::ServiceRef;

/// What the connected proxies make of the route of a service. It is in force when
/// `acknowledged == proxies`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RouteState {
    /// Of the newest MeshRoute; None: there is none.
    pub generation: Option<i64>,
    /// Those that subscribe to it, and those that did until a moment ago.
    pub proxies: usize,
    pub acknowledged: usize,
    /// Whose connection ended less than [`Options::patience`](crate::xds::Options) ago.
    pub gone: usize,
    pub refusals: Vec<Refusal>,
}

/// A proxy that does not use the newest route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub proxy: Arc<str>,
    pub error: Arc<str>,
}

#[derive(Clone, Debug)]
pub struct ProxyState {
    pub node: Arc<str>,
    pub identity: Identity,
    pub connected: jiff::Timestamp,
    pub bytes_sent: u64,
    /// Of each type that it subscribes to.
    pub types: Vec<TypeState>,
}

#[derive(Clone, Debug)]
pub struct TypeState {
    /// `CDS`
    pub name: &'static str,
    pub resources: usize,
    /// Of all resources that it should have.
    pub version: u64,
    pub status: TypeStatus,
    pub error: Option<Arc<str>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TypeStatus {
    Synced,
    /// It has not acknowledged the newest version.
    Stale,
    /// It refused the newest version.
    Nack,
}

impl TypeStatus {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Synced => "SYNCED",
            Self::Stale => "STALE",
            Self::Nack => "NACK",
        }
    }
}

impl State {
    pub fn route_state(&self, service: &ServiceKey) -> RouteState {
        let name = ServiceRef::of(service, &self.builder.cluster);
        let generation = self.builder.catalog.route(service).map(|route| route.generation);
        let gone = self.gone.iter().filter(|gone| gone.routes.contains(&name)).count();
        let mut state = RouteState { generation, proxies: gone, gone, ..RouteState::default() };
        for key in self.of_service.get(&name).into_iter().flatten() {
            let Some(resource) = self.resources.get(key) else { continue };
            let Some(encoded) = resource.encoded.as_ref().filter(|encoded| encoded.carries_route) else {
                continue;
            };
            for stream in resource.subscribers.iter().filter_map(|id| self.streams.get(id)) {
                let lane = stream.lane(key.kind());
                let Some(held) = lane.held.get(&resource.name) else { continue };
                state.proxies += 1;
                // A change that is not published yet is in nobody's force.
                if held.acked == encoded.version && encoded.generation == generation {
                    state.acknowledged += 1;
                } else if held.rejected == encoded.version {
                    let proxy = stream.node.as_ref().map_or_else(|| "".into(), |node| Arc::clone(&node.id));
                    let error = lane.errors.get(&resource.name).cloned().unwrap_or_else(|| "".into());
                    state.refusals.push(Refusal { proxy, error });
                }
            }
        }
        state
    }

    /// By name of their node.
    pub fn proxies(&self) -> Vec<ProxyState> {
        let mut proxies: Vec<_> =
            self.streams.values().filter_map(|stream| self.proxy_state(stream)).collect();
        proxies.sort_by(|a, b| (&a.node, a.connected).cmp(&(&b.node, b.connected)));
        proxies
    }

    fn proxy_state(&self, stream: &Stream) -> Option<ProxyState> {
        let node = stream.node.as_ref()?;
        let subscribed = ResourceType::ALL.into_iter().filter(|kind| stream.lane(*kind).subscribed);
        let types = subscribed.map(|kind| {
            let lane = stream.lane(kind);
            let errors: BTreeSet<&Arc<str>> = lane
                .held
                .iter()
                .filter(|(_, h)| h.rejected != UNKNOWN)
                .filter_map(|(n, _)| lane.errors.get(n))
                .collect();
            let status = match (errors.is_empty(), lane.is_settled()) {
                (false, _) => TypeStatus::Nack,
                (true, true) => TypeStatus::Synced,
                (true, false) => TypeStatus::Stale,
            };
            TypeState {
                name: kind.abbreviation(),
                resources: lane.held.values().filter(|held| held.wanted).count(),
                version: self.version_of(stream, kind),
                status,
                error: errors.first().map(|error| Arc::clone(error)),
            }
        });
        Some(ProxyState {
            node: Arc::clone(&node.id),
            identity: stream.identity.clone(),
            connected: stream.connected,
            bytes_sent: stream.bytes_sent,
            types: types.collect(),
        })
    }
}
