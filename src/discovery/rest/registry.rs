//! Services of Consul and Cloud Map that EndpointGroups name: the followers of their APIs
//! report the instances, for the status of the groups.
//!
//! ```text
//!   EndpointGroups ─ Wanted ─▶ consul, app_mesh ─ Found ─▶ EndpointGroup.status.endpoints
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::str::FromStr as _;

use tokio::sync::{mpsc, watch};

use crate::api::endpoint_group::{EndpointHealth, GroupEndpoint, RegistryService};

/// Key of the version, where a group names none.
const VERSION_KEY: &str = "version";
/// Of a version and of a zone, as the definition of EndpointGroups has it.
const MAX_TEXT: usize = 63;
const MAX_WEIGHT: u32 = 1000;

/// A service in its registry. Consul's have no namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Service {
    pub namespace: Option<String>,
    pub name: String,
}

/// Services that groups name, by MeshApi.
pub type Wanted = BTreeMap<String, BTreeSet<Service>>;

/// An instance, as its registry knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Instance {
    pub address: String,
    pub port: Option<u16>,
    /// Consul's metadata, Cloud Map's attributes.
    pub attributes: BTreeMap<String, String>,
    pub zone: Option<String>,
    pub weight: Option<u32>,
    pub health: EndpointHealth,
}

/// All instances of a service in a scope of a MeshApi: a region, or Consul's catalogue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    pub mesh_api: String,
    pub scope: String,
    pub service: Service,
    pub instances: Vec<Instance>,
}

/// Between the groups and the followers of registries.
#[derive(Clone)]
pub struct Registries {
    pub wanted: watch::Receiver<Wanted>,
    pub found: mpsc::Sender<Found>,
}

impl Service {
    pub fn of(source: &RegistryService) -> Self {
        Self { namespace: source.namespace.clone(), name: source.service.clone() }
    }
}

impl Instance {
    /// None without a version, and for a name in place of an IP address, which proxies would
    /// have to resolve.
    pub fn endpoint(&self, source: &RegistryService) -> Option<GroupEndpoint> {
        let fits = |text: &&String| !text.is_empty() && text.len() <= MAX_TEXT && is_label(text);
        let key = source.version_key.as_deref().unwrap_or(VERSION_KEY);
        Some(GroupEndpoint {
            address: IpAddr::from_str(&self.address).ok()?,
            port: self.port.filter(|port| *port > 0),
            version: self.attributes.get(key).filter(fits)?.clone(),
            zone: self.zone.clone().filter(|zone| !zone.is_empty() && zone.len() <= MAX_TEXT),
            weight: self.weight.filter(|weight| *weight != 1).map(|weight| weight.min(MAX_WEIGHT)),
            health: self.health,
        })
    }
}

/// As the value of a label, which versions are.
fn is_label(text: &str) -> bool {
    let ends = [text.chars().next(), text.chars().last()];
    ends.iter().flatten().all(char::is_ascii_alphanumeric)
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn instance(address: &str, version: &str) -> Instance {
        let attributes = BTreeMap::from([("version".to_owned(), version.to_owned())]);
        Instance { address: address.to_owned(), attributes, ..Instance::default() }
    }

    #[test]
    fn an_instance_is_an_endpoint_if_it_has_an_address_and_a_version() {
        let source = RegistryService::default();
        let endpoint = instance("10.0.0.1", "v2").endpoint(&source).expect("an endpoint");
        assert_eq!((endpoint.address.to_string().as_str(), endpoint.version.as_str()), ("10.0.0.1", "v2"));
        for (address, version) in
            [("vm.local", "v2"), ("10.0.0.1", ""), ("10.0.0.1", "-"), ("10.0.0.1", "a b")]
        {
            assert_eq!(instance(address, version).endpoint(&source), None, "{address} {version}");
        }
        let other = RegistryService { version_key: Some("build".to_owned()), ..RegistryService::default() };
        assert_eq!(instance("10.0.0.1", "v2").endpoint(&other), None);
    }
}
