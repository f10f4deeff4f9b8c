//! Where a service is served.

use std::net::SocketAddr;
use std::sync::Arc;

/// One address of a service.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Endpoint {
    pub address: SocketAddr,
    /// In proportion to the other endpoints of the service; 0 gets no new requests.
    pub weight: u32,
    pub zone: Option<Arc<str>>,
    pub health: Health,
    /// The version that it runs, where the source knows.
    pub version: Option<Arc<str>>,
    /// A proxy that admits only callers with a certificate.
    pub mtls: bool,
}

impl Endpoint {
    /// A healthy one, of weight 1.
    pub fn at(address: SocketAddr) -> Self {
        Self { address, weight: 1, zone: None, health: Health::Healthy, version: None, mtls: false }
    }
}

/// The endpoints of a service, by address. Equal ones have equal versions, also after a
/// restart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoints {
    pub version: u64,
    pub endpoints: Arc<[Endpoint]>,
}

impl Default for Endpoints {
    fn default() -> Self {
        Self { version: 0, endpoints: Arc::new([]) }
    }
}

/// As the source of the endpoint knows it. A proxy may find out more by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Health {
    #[default]
    Healthy,
    /// Finishes its requests, and gets no new ones while others are healthy.
    Draining,
    Unhealthy,
}
