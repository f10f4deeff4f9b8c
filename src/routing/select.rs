//! Which router a Canary gets.

use std::{collections::BTreeSet, sync::Arc};

use kube::{Client, api::ApiResource, discovery::Discovery};

use super::{Kubernetes, Router, Smi, SplitVersion};
use crate::api::canary::Provider;

/// The API groups that routers write to.
const GROUPS: [&str; 2] = [SPLIT_GROUP, SPECS_GROUP];
const SPLIT_GROUP: &str = "split.smi-spec.io";
const SPECS_GROUP: &str = "specs.smi-spec.io";

/// A router, and what it was chosen by.
#[derive(Clone, Debug)]
pub struct Selected {
    /// Belongs into `spec.provider` before the plan is read: what a plan means
    /// depends on it.
    pub provider: Provider,
    pub router: Arc<dyn Router>,
}

/// Why there is no router for a Canary.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoRouter {
    #[error(
        "spec.provider is missing and the controller was started without --provider; set one of them, such as kubernetes, linkerd or istio"
    )]
    NotSaid,
    #[error(
        "spec.provider {provider} needs the custom resource {kind} ({group}), which this cluster does not serve; install it, or set another spec.provider"
    )]
    NotServed { provider: String, kind: &'static str, group: &'static str },
    #[error(
        "spec.provider {provider} is not supported; set one of kubernetes, linkerd, osm and smi:v1alpha1 to smi:v1alpha4"
    )]
    NotSupported { provider: String },
}

/// The kinds that the cluster serves, as far as routers care.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Served(BTreeSet<Kind>);

/// An `ApiResource` has no order.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Kind {
    group: String,
    kind: String,
    version: String,
    plural: String,
}

impl Served {
    /// Asks the server: a request for the list of groups and one for each
    /// version of those we know.
    pub async fn discover(client: &Client) -> kube::Result<Self> {
        let found = Discovery::new(client.clone()).filter(&GROUPS).run().await?;
        let resources = found.groups().flat_map(|group| {
            group.versions().flat_map(|version| group.versioned_resources(version)).collect::<Vec<_>>()
        });
        Ok(resources.map(|(resource, _)| resource).collect())
    }

    /// Every version of a kind, the newest last.
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

impl FromIterator<ApiResource> for Served {
    fn from_iter<T: IntoIterator<Item = ApiResource>>(resources: T) -> Self {
        let kind = |ApiResource { group, version, kind, plural, .. }| Kind { group, kind, version, plural };
        Self(resources.into_iter().map(kind).collect())
    }
}

/// Finds the router for what a Canary says, or else what the controller was
/// started with.
pub fn select(
    written: Option<Provider>,
    default: Option<Provider>,
    served: &Served,
) -> Result<Selected, NoRouter> {
    let provider = written.or(default).ok_or(NoRouter::NotSaid)?;
    let router: Arc<dyn Router> = match provider {
        Provider::Kubernetes => Arc::new(Kubernetes),
        // What Flagger writes for each; where that is not served, the newest is.
        Provider::SmiV1Alpha1 | Provider::Linkerd => smi(provider, SplitVersion::V1Alpha1, served)?,
        Provider::SmiV1Alpha2 | Provider::Osm => smi(provider, SplitVersion::V1Alpha2, served)?,
        Provider::SmiV1Alpha3 => smi(provider, SplitVersion::V1Alpha3, served)?,
        Provider::SmiV1Alpha4 => smi(provider, SplitVersion::V1Alpha4, served)?,
        Provider::Istio
        | Provider::GatewayApiV1
        | Provider::GatewayApiV1Beta1
        | Provider::AppMesh
        | Provider::AppMeshV1Beta2
        | Provider::Xds
        | Provider::Nginx
        | Provider::Skipper
        | Provider::Contour
        | Provider::Gloo
        | Provider::Traefik
        | Provider::Apisix
        | Provider::Kuma
        | Provider::Knative => return Err(NoRouter::NotSupported { provider: written_name(provider) }),
    };
    Ok(Selected { provider, router })
}

fn smi(provider: Provider, wanted: SplitVersion, served: &Served) -> Result<Arc<Smi>, NoRouter> {
    let versions: Vec<SplitVersion> = served
        .versions(SPLIT_GROUP, "TrafficSplit")
        .filter_map(|resource| SplitVersion::parse(&resource.version))
        .collect();
    let version = versions.iter().find(|version| **version == wanted).or(versions.iter().max());
    let Some(version) = version else {
        return Err(NoRouter::NotServed {
            provider: written_name(provider),
            kind: "TrafficSplit",
            group: SPLIT_GROUP,
        });
    };
    // Conditions on headers came with v1alpha2.
    let groups = served.versions(SPECS_GROUP, "HTTPRouteGroup").filter(|group| group.version != "v1alpha1");
    Ok(Arc::new(Smi::new(*version, groups.last())))
}

/// As people write it.
fn written_name(provider: Provider) -> String {
    match serde_json::to_value(provider) {
        Ok(serde_json::Value::String(name)) => name,
        _ => format!("{provider:?}"),
    }
}
