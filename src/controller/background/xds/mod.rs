//! The control plane for Envoys in the controller: watches what the service catalog reads,
//! by the reflectors that releases share, and reports to MeshRoutes what their proxies
//! acknowledged.
//!
//! ```text
//!   reflectors ─ Tap ─▶ ClusterObjects ─▶ Catalog ─▶ control plane ─▶ proxies
//!                                                        │ ProxyReports
//!   MeshRoute.status ◀─────────── statuses ◀─────────────┘
//! ```
//!
//! Kinds of SMI may be installed at any time: discovery is repeated, once a minute.

#[cfg(feature = "xds")]
mod reports;
mod statuses;

#[cfg(feature = "xds")]
pub use reports::proxies_of;

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use async_trait::async_trait;
use kube::{core::ApiResource, discovery::Discovery};
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;

use crate::{
    catalog::{
        Catalog, EndpointsProvider, MeshTopology, ServiceKey,
        kubernetes::{ClusterObjects, Kind},
    },
    controller::context::Context,
};

const DISCOVERY_INTERVAL: Duration = Duration::from_secs(60);
/// After a discovery that failed.
const DISCOVERY_RETRY: Duration = Duration::from_secs(5);

/// What the proxies of this replica made of routes.
#[async_trait]
pub trait ProxyReports: Send + Sync {
    fn report(&self, service: &ServiceKey) -> RouteReport;

    /// Services whose report may have changed since the last call. For one task.
    async fn changed(&self) -> BTreeSet<ServiceKey>;
}

/// What the proxies of this replica made of the route of a service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RouteReport {
    /// Of the route that the numbers are of; none if it has none.
    pub generation: Option<i64>,
    /// Proxies that subscribe to the route, with those that are gone and still count.
    pub proxies: u32,
    /// Those that are connected and use this generation.
    pub acknowledged: u32,
    /// Those that are gone and still count.
    pub gone: u32,
    /// Name of the proxy and its reason, of those that refused this generation.
    pub refusals: Vec<String>,
}

/// The control plane of this replica.
#[derive(Clone)]
pub struct XdsServer {
    pub objects: Arc<ClusterObjects>,
    pub reports: Arc<dyn ProxyReports>,
    /// Name of this replica in the status of MeshRoutes.
    pub replica: String,
    /// There may be others.
    pub replicated: bool,
    /// Deliver to the catalog.
    _sources: Arc<[AbortOnDropHandle<()>; 2]>,
}

impl XdsServer {
    /// The objects of a cluster feed the catalog from now on; it is ready once they were
    /// listed. On a tokio runtime.
    pub fn new(
        catalog: &Arc<Catalog>,
        objects: Arc<ClusterObjects>,
        reports: Arc<dyn ProxyReports>,
        replica: &str,
        replicated: bool,
    ) -> Self {
        let (endpoints, topology) = (catalog.endpoints_sink(objects.id()), catalog.topology_sink());
        let (provider, source) = (Arc::clone(&objects), Arc::clone(&objects));
        let sources = [
            tokio::spawn(async move { EndpointsProvider::run(&*provider, endpoints).await }),
            tokio::spawn(async move { MeshTopology::run(&*source, topology).await }),
        ];
        let sources = Arc::new(sources.map(AbortOnDropHandle::new));
        Self { objects, reports, replica: replica.to_owned(), replicated, _sources: sources }
    }
}

/// Serves until dropped, if the controller has a control plane.
pub fn spawn(ctx: &Arc<Context>) -> Option<AbortOnDropHandle<()>> {
    let server = ctx.xds.clone()?;
    let ctx = Arc::clone(ctx);
    Some(AbortOnDropHandle::new(tokio::spawn(async move {
        tokio::join!(watch_kinds(&ctx, &server.objects), statuses::write(&ctx, &server));
    })))
}

/// Watches the kinds that are served.
async fn watch_kinds(ctx: &Context, objects: &Arc<ClusterObjects>) {
    let mut watched = BTreeSet::new();
    let mut listed = false;
    loop {
        let served = match discover(ctx).await {
            Ok(served) => served,
            Err(error) => {
                tracing::warn!(%error, "the control plane for Envoys does not know which kinds are served");
                sleep(DISCOVERY_RETRY).await;
                continue;
            }
        };
        for (_, resource) in &served {
            ctx.caches.watch_for_inventory(resource);
        }
        let kinds: BTreeSet<Kind> = served.iter().map(|(kind, _)| *kind).collect();
        for gone in watched.difference(&kinds) {
            // Nothing shows its objects any more.
            objects.tap(*gone, None).list_completed();
        }
        watched = kinds;
        if !listed {
            wait_for_lists(ctx, &served).await;
            objects.set_listed();
            listed = true;
        }
        sleep(DISCOVERY_INTERVAL).await;
    }
}

/// Until every kind was listed. A kind that may not be listed is waited for: an endpoint
/// or a policy that is not known would count as none.
async fn wait_for_lists(ctx: &Context, kinds: &[(Kind, ApiResource)]) {
    for (_, resource) in kinds {
        while let Err(error) = ctx.caches.ensure_synced(resource).await {
            tracing::warn!(%error, "the control plane for Envoys serves nobody before it has listed this");
            sleep(DISCOVERY_RETRY).await;
        }
    }
}

async fn discover(ctx: &Context) -> kube::Result<Vec<(Kind, ApiResource)>> {
    let groups: BTreeSet<&str> = Kind::ALL.iter().map(|kind| kind.resource().0).collect();
    let groups: Vec<&str> = groups.into_iter().collect();
    let discovered = Discovery::new(ctx.client.clone()).filter(&groups).run().await?;
    let find = |kind: Kind| {
        let (group, name, versions) = kind.resource();
        let group = discovered.get(group)?;
        let served = |version: &&str| {
            let mut resources = group.versioned_resources(version).into_iter();
            resources.find(|(resource, _)| resource.kind == name).map(|(resource, _)| resource)
        };
        Some((kind, versions.iter().find_map(served)?))
    };
    let found: Vec<_> = Kind::ALL.into_iter().filter_map(find).collect();
    // Only policies name ServiceAccounts, which are read from pods.
    let has_policies = found.iter().any(|(kind, _)| *kind == Kind::TrafficTarget);
    Ok(found.into_iter().filter(|(kind, _)| *kind != Kind::Pod || has_policies).collect())
}
