//! Services, routes and policies. A topology knows neither addresses nor proxies.

use std::sync::Arc;

use async_trait::async_trait;

use super::{Catalog, ServiceKey};
use crate::api::{
    MeshRouteSpec,
    canary::HttpMatch,
    endpoint_group::{HealthCheck, OutlierDetection},
};

/// A source of services, routes and policies: the objects of a cluster, or files.
#[async_trait]
pub trait MeshTopology: Send + Sync {
    /// Delivers until it is dropped.
    async fn run(&self, sink: TopologySink);
}

/// A service that proxies may call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Service {
    /// Names that clients call it by, beside `name`, `name.namespace` and
    /// `name.namespace.svc`.
    pub hosts: Vec<String>,
    /// ServiceAccounts of its workloads, as `(namespace, name)`: whom policies name as
    /// destination.
    pub accounts: Vec<Account>,
    /// Versions of its endpoints, each of which is a service of its own as well
    /// ([`ServiceKey::name_of_version`]).
    pub versions: Vec<Arc<str>>,
    pub health: HealthPolicy,
}

/// How proxies find out which endpoints serve.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HealthPolicy {
    pub check: Option<HealthCheck>,
    pub outliers: OutlierDetection,
}

/// Namespace and name of a ServiceAccount.
pub type Account = (Arc<str>, Arc<str>);

/// Where the requests for a service go.
#[derive(Clone, Debug, PartialEq)]
pub struct ServiceRoute {
    /// Of the MeshRoute.
    pub generation: i64,
    pub spec: Arc<MeshRouteSpec>,
}

/// Who may reach the workloads of a ServiceAccount: an SMI TrafficTarget with the
/// HTTPRouteGroups and TCPRoutes that it names resolved.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// ServiceAccount of the destination.
    pub destination: Account,
    /// Only this port, if given.
    pub port: Option<u16>,
    /// ServiceAccounts that may.
    pub sources: Vec<Account>,
    pub allow: AccessRule,
}

#[derive(Clone, Debug, PartialEq)]
pub enum AccessRule {
    /// TCP, and every HTTP request.
    Everything,
    /// Requests that match any of these.
    Http(Vec<HttpAccess>),
}

#[derive(Clone, Debug, PartialEq)]
pub struct HttpAccess {
    /// Empty: all.
    pub methods: Vec<String>,
    /// Path and headers.
    pub request: HttpMatch,
}

/// Where a topology delivers.
#[derive(Clone)]
pub struct TopologySink {
    pub(super) catalog: Arc<Catalog>,
    pub(super) id: Arc<str>,
}

impl TopologySink {
    /// None removes it.
    pub fn set_service(&self, key: ServiceKey, service: Option<Service>) {
        self.catalog.update(|state| state.index.set_service(key, service));
    }

    /// The route of a service and its generation, which acknowledgements are counted for.
    pub fn set_route(&self, service: ServiceKey, route: Option<(i64, MeshRouteSpec)>) {
        let route = route.map(|(generation, spec)| ServiceRoute { generation, spec: Arc::new(spec) });
        self.catalog.update(|state| state.index.set_route(service, route));
    }

    /// `id` names the TrafficTarget.
    pub fn set_policy(&self, id: String, policy: Option<Policy>) {
        self.catalog.update(|state| state.index.set_policy(id, policy));
    }

    /// Everything was delivered once.
    pub fn synced(&self) {
        self.catalog.synced(&self.id);
    }
}
