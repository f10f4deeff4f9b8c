//! Sources of endpoints. A provider knows its own API, and neither routes nor proxies.

use std::sync::Arc;

use async_trait::async_trait;

use super::{Catalog, Endpoint, ServiceKey};

/// A source of endpoints: a cluster, a registry, a file.
#[async_trait]
pub trait EndpointsProvider: Send + Sync {
    /// For messages, and to tell sources of the same service apart: `kubernetes/east`.
    fn id(&self) -> &str;

    /// Delivers endpoints until it is dropped. An error of the source keeps what was
    /// delivered, and is retried by the provider.
    async fn run(&self, sink: EndpointsSink);
}

/// Where a provider delivers its endpoints.
#[derive(Clone)]
pub struct EndpointsSink {
    pub(super) catalog: Arc<Catalog>,
    pub(super) provider: Arc<str>,
}

impl EndpointsSink {
    /// All endpoints that the provider has for a service; none removes it.
    pub fn set(&self, service: ServiceKey, endpoints: Vec<Endpoint>) {
        self.catalog.update(|state| state.index.set_endpoints(&self.provider, service, endpoints));
    }

    /// After a complete listing: removes services of this provider that it no longer
    /// lists, and everything was delivered once.
    pub fn retain(&self, listed: impl Fn(&ServiceKey) -> bool) {
        self.catalog.update(|state| state.index.retain_endpoints(&self.provider, listed));
        self.catalog.synced(&self.provider);
    }
}
