//! Selects the router of a Canary by its provider and the served kinds.

use std::{collections::BTreeSet, sync::Arc};

use kube::{Client, api::ApiResource, discovery::Discovery};

use super::{
    AppMeshResources, Gateway, Istio, Kubernetes, Router, Smi, SplitVersion, Xds, gateway::RouteReader,
};
use crate::api::{
    GROUP, VERSION,
    canary::{Provider, status::RouteStatus},
};

/// The API groups that routers write to.
const GROUPS: [&str; 6] = [GROUP, SPLIT_GROUP, SPECS_GROUP, GATEWAY_GROUP, ISTIO_GROUP, APPMESH_GROUP];
const SPLIT_GROUP: &str = "split.smi-spec.io";
const SPECS_GROUP: &str = "specs.smi-spec.io";
const GATEWAY_GROUP: &str = "gateway.networking.k8s.io";
const ISTIO_GROUP: &str = "networking.istio.io";
const APPMESH_GROUP: &str = "appmesh.k8s.aws";

/// A router, and the provider that it was selected by.
#[derive(Clone, Debug)]
pub struct SelectedRouter {
    /// Must be in `spec.provider` before the plan is compiled, which depends on
    /// it.
    pub provider: Provider,
    pub router: Arc<dyn Router>,
}

/// Why no router could be selected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RouterSelectionError {
    #[error(
        "spec.provider is missing and the controller was started without --provider; set one of them, such as kubernetes, linkerd or istio"
    )]
    Unset,
    #[error(
        "spec.provider {provider} needs a Serin that was built with the feature aws, and this one was not; run one that was, or set another spec.provider"
    )]
    NotBuilt { provider: String },
    #[error(
        "spec.provider xds needs a controller that Envoys connect to, and this one listens for none; start it with --xds-listen (chart: xds.enabled), or set another spec.provider"
    )]
    NoControlPlane,
    #[error(
        "spec.provider {provider} needs the custom resource {kind} ({group}), which this cluster does not serve; install it, or set another spec.provider"
    )]
    NotServed { provider: String, kind: &'static str, group: &'static str },
    #[error(
        "spec.provider {provider} is not supported; set one of kubernetes, istio, gatewayapi:v1, appmesh:v1beta2, appmesh:aws, linkerd, osm, xds and smi:v1alpha1 to smi:v1alpha4"
    )]
    NotSupported { provider: String },
}

impl RouterSelectionError {
    fn missing(provider: Provider, group: &'static str, kind: &'static str) -> Self {
        Self::NotServed { provider: provider_name(provider), kind, group }
    }
}

/// The kinds of the known API groups that the cluster serves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServedKinds(BTreeSet<ServedKind>);

/// `ApiResource` is not `Ord`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ServedKind {
    group: String,
    kind: String,
    version: String,
    plural: String,
}

impl ServedKinds {
    /// By discovery: one request for the list of groups, and one for each version
    /// of the known ones.
    pub async fn discover(client: &Client) -> kube::Result<Self> {
        let discovered = Discovery::new(client.clone()).filter(&GROUPS).run().await?;
        let resources = discovered.groups().flat_map(|group| {
            group.versions().flat_map(|version| group.versioned_resources(version)).collect::<Vec<_>>()
        });
        Ok(resources.map(|(resource, _)| resource).collect())
    }

    /// Those of the kinds that a recorded route has objects of; all if none are
    /// recorded.
    pub fn of_route(&self, route: &RouteStatus) -> Self {
        let is_recorded = |served: &&ServedKind| {
            route.objects.is_empty()
                || route.objects.iter().any(|one| (one.group(), &one.kind) == (&*served.group, &served.kind))
        };
        Self(self.0.iter().filter(is_recorded).cloned().collect())
    }

    /// The first of these versions that is served.
    fn first_of(&self, group: &str, kind: &str, versions: &[&str]) -> Option<ApiResource> {
        let served: Vec<_> = self.versions(group, kind).collect();
        versions.iter().find_map(|version| served.iter().find(|kind| kind.version == *version)).cloned()
    }

    /// The same, or the error for the status.
    fn require(
        &self,
        provider: Provider,
        group: &'static str,
        kind: &'static str,
        versions: &[&str],
    ) -> Result<ApiResource, RouterSelectionError> {
        self.first_of(group, kind, versions)
            .ok_or_else(|| RouterSelectionError::missing(provider, group, kind))
    }

    /// All served versions of a kind, ordered by name.
    fn versions(&self, group: &str, kind: &str) -> impl Iterator<Item = ApiResource> {
        self.0.iter().filter(move |served| served.group == group && served.kind == kind).map(|served| {
            ApiResource {
                api_version: format!("{}/{}", served.group, served.version),
                group: served.group.clone(),
                version: served.version.clone(),
                kind: served.kind.clone(),
                plural: served.plural.clone(),
            }
        })
    }
}

impl FromIterator<ApiResource> for ServedKinds {
    fn from_iter<T: IntoIterator<Item = ApiResource>>(resources: T) -> Self {
        let kind =
            |ApiResource { group, version, kind, plural, .. }| ServedKind { group, kind, version, plural };
        Self(resources.into_iter().map(kind).collect())
    }
}

/// Selects by the Canary's provider, else by the controller's default.
/// `app_mesh` is the router that calls the App Mesh API, if built in.
pub fn select(
    provider: Option<Provider>,
    default: Option<Provider>,
    served: &ServedKinds,
    app_mesh: Option<&Arc<dyn Router>>,
) -> Result<SelectedRouter, RouterSelectionError> {
    let provider = provider.or(default).ok_or(RouterSelectionError::Unset)?;
    let router: Arc<dyn Router> = match provider {
        Provider::Kubernetes => Arc::new(Kubernetes),
        // The version that Flagger writes; where it is not served, the newest one.
        Provider::SmiV1Alpha1 => smi(provider, SplitVersion::V1Alpha1, served)?,
        Provider::Linkerd => match gateway(provider, ["v1", "v1beta1"], served, RouteReader::Linkerd) {
            Ok(gateway) => gateway,
            // Linkerd before the Gateway API.
            Err(missing) => smi(provider, SplitVersion::V1Alpha1, served).map_err(|_| missing)?,
        },
        Provider::SmiV1Alpha2 | Provider::Osm => smi(provider, SplitVersion::V1Alpha2, served)?,
        Provider::SmiV1Alpha3 => smi(provider, SplitVersion::V1Alpha3, served)?,
        Provider::SmiV1Alpha4 => smi(provider, SplitVersion::V1Alpha4, served)?,
        Provider::GatewayApiV1 => gateway(provider, ["v1", "v1beta1"], served, RouteReader::Any)?,
        Provider::GatewayApiV1Beta1 => gateway(provider, ["v1beta1", "v1"], served, RouteReader::Any)?,
        Provider::Istio => istio(provider, served)?,
        Provider::AppMesh | Provider::AppMeshV1Beta2 => app_mesh_resources(provider, served)?,
        Provider::AppMeshAws => app_mesh
            .cloned()
            .ok_or_else(|| RouterSelectionError::NotBuilt { provider: provider_name(provider) })?,
        Provider::Xds => Arc::new(Xds { kind: served.require(provider, GROUP, "MeshRoute", &[VERSION])? }),
        Provider::Nginx
        | Provider::Skipper
        | Provider::Contour
        | Provider::Gloo
        | Provider::Traefik
        | Provider::Apisix
        | Provider::Kuma
        | Provider::Knative => {
            return Err(RouterSelectionError::NotSupported { provider: provider_name(provider) });
        }
    };
    Ok(SelectedRouter { provider, router })
}

fn smi(
    provider: Provider,
    preferred: SplitVersion,
    served: &ServedKinds,
) -> Result<Arc<dyn Router>, RouterSelectionError> {
    let versions: Vec<SplitVersion> = served
        .versions(SPLIT_GROUP, "TrafficSplit")
        .filter_map(|resource| SplitVersion::parse(&resource.version))
        .collect();
    let version = versions.iter().find(|version| **version == preferred).or(versions.iter().max());
    let Some(version) = version else {
        return Err(RouterSelectionError::missing(provider, SPLIT_GROUP, "TrafficSplit"));
    };
    // Header conditions came with v1alpha2.
    let groups = served.versions(SPECS_GROUP, "HTTPRouteGroup").filter(|group| group.version != "v1alpha1");
    Ok(Arc::new(Smi::new(*version, groups.last())))
}

fn gateway(
    provider: Provider,
    versions: [&str; 2],
    served: &ServedKinds,
    reader: RouteReader,
) -> Result<Arc<dyn Router>, RouterSelectionError> {
    let http = served.require(provider, GATEWAY_GROUP, "HTTPRoute", &versions)?;
    Ok(Arc::new(Gateway::new(http, served.first_of(GATEWAY_GROUP, "GRPCRoute", &["v1"]), reader)))
}

fn istio(provider: Provider, served: &ServedKinds) -> Result<Arc<dyn Router>, RouterSelectionError> {
    let versions = ["v1", "v1beta1", "v1alpha3"];
    let virtual_services = served.require(provider, ISTIO_GROUP, "VirtualService", &versions)?;
    let destination_rules = served.require(provider, ISTIO_GROUP, "DestinationRule", &versions)?;
    Ok(Arc::new(Istio::new(virtual_services, destination_rules)))
}

fn app_mesh_resources(
    provider: Provider,
    served: &ServedKinds,
) -> Result<Arc<dyn Router>, RouterSelectionError> {
    let require = |kind| served.require(provider, APPMESH_GROUP, kind, &["v1beta2"]);
    Ok(Arc::new(AppMeshResources {
        virtual_routers: require("VirtualRouter")?,
        virtual_nodes: require("VirtualNode")?,
        virtual_services: require("VirtualService")?,
    }))
}

/// As written in `spec.provider`.
pub fn provider_name(provider: Provider) -> String {
    match serde_json::to_value(provider) {
        Ok(serde_json::Value::String(name)) => name,
        _ => format!("{provider:?}"),
    }
}
