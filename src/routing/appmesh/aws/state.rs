//! The resources of one Canary in a mesh, and their ownership.
//!
//! Tags record it: `serin.dev/canary` is on everything that we created or changed;
//! `serin.dev/managed-fields`, on resources that we created, lists the fields that
//! the Canary set, so that they are removed when it does not any more;
//! `serin.dev/original`, on an existing route, has its previous targets.

use std::collections::{BTreeMap, BTreeSet};

use aws_sdk_appmesh::{
    error::BuildError,
    types::{
        RouteSpec, TagRef, VirtualNodeSpec, VirtualRouterSpec, VirtualServiceProvider, VirtualServiceSpec,
        WeightedTarget,
    },
};
use futures::try_join;
use kube::ResourceExt as _;

use super::{
    api::{
        LiveResource, ManagedField, MeshClient, MeshRoute, ResourceKind, ResourceName, VirtualNode,
        VirtualRouter, VirtualService,
    },
    error::Error,
};
use crate::{api::Canary, routing::services};

const CANARY_TAG: &str = "serin.dev/canary";
const MANAGED_FIELDS_TAG: &str = "serin.dev/managed-fields";
const ORIGINAL_TAG: &str = "serin.dev/original";

/// Longer values take several tags.
const MAX_TAG_VALUE_LENGTH: usize = 256;

/// Names of all resources, as Amazon's controller would name them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MeshNames {
    /// The virtual service that clients call.
    pub service: String,
    /// Reaches the canary alone, for tests.
    pub canary_service: String,
    pub router: String,
    pub route: String,
    pub primary: String,
    pub canary: String,
    /// Possible names of the target's virtual node from before the Canary.
    pub apex_nodes: [String; 2],
}

impl MeshNames {
    pub fn of(canary: &Canary) -> Self {
        let services::ServiceNames { apex, primary, canary: candidate } = services::ServiceNames::of(canary);
        let namespace = canary.namespace().unwrap_or_default();
        let hosts = canary.spec.service.iter().flat_map(|service| &service.hosts);
        let host = hosts.into_iter().find(|host| *host != "*").cloned();
        Self {
            service: host.unwrap_or_else(|| format!("{apex}.{namespace}")),
            canary_service: format!("{candidate}.{namespace}"),
            router: format!("{apex}_{namespace}"),
            route: apex.clone(),
            primary: format!("{primary}_{namespace}"),
            canary: format!("{candidate}_{namespace}"),
            apex_nodes: [format!("{apex}_{namespace}"), apex],
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub enum MeshOwnership {
    /// Created by this Canary, which set these fields.
    Owned(ManagedFields),
    /// Existed before, with these targets.
    Adopted(Vec<WeightedTarget>),
    /// No Canary manages it.
    Unmanaged,
    /// Created or adopted by another Canary.
    OwnedByOther(String),
}

impl MeshOwnership {
    fn of(tags: &[TagRef], canary: &Canary) -> Result<Self, BuildError> {
        let Some(owner) = tags.iter().find(|tag| tag.key == CANARY_TAG) else { return Ok(Self::Unmanaged) };
        if owner.value != canary_tag_value(canary) {
            return Ok(Self::OwnedByOther(format!("the Canary {}", owner.value)));
        }
        let mut parts: Vec<_> = tags.iter().filter(|tag| tag.key.starts_with(ORIGINAL_TAG)).collect();
        parts.sort_by_key(|tag| (tag.key.len(), tag.key.as_str()));
        match parts.is_empty() {
            true => {
                let fields = tags
                    .iter()
                    .find(|tag| tag.key == MANAGED_FIELDS_TAG)
                    .map_or("", |tag| tag.value.as_str());
                Ok(Self::Owned(parse_managed_fields(fields)))
            }
            false => {
                let original: String = parts.iter().map(|tag| tag.value.as_str()).collect();
                Ok(Self::Adopted(original.split(' ').map(parse_target).collect::<Result<_, _>>()?))
            }
        }
    }

    pub fn is_managed(&self) -> bool {
        matches!(self, Self::Owned(_) | Self::Adopted(_))
    }
}

/// The value of `serin.dev/canary`.
pub fn canary_tag_value(canary: &Canary) -> String {
    format!("{}/{}", canary.namespace().unwrap_or_default(), canary.name_any())
}

pub fn can_be_tagged(canary: &Canary) -> bool {
    canary_tag_value(canary).len() <= MAX_TAG_VALUE_LENGTH
}

pub type ManagedFields = BTreeSet<ManagedField>;

/// The fields of a resource that the Canary sets.
pub fn managed_fields<K: ResourceKind>(canary: &Canary) -> ManagedFields {
    let service = canary.spec.service.as_ref();
    let is_set = |field: &ManagedField| match field {
        ManagedField::Backends => service.is_some_and(|service| !service.backends.is_empty()),
        ManagedField::Retries => service.is_some_and(|service| service.retries.is_some()),
        ManagedField::Timeout => service.is_some_and(|service| service.timeout.is_some()),
    };
    K::MANAGED_FIELDS.iter().copied().filter(is_set).collect()
}

const MANAGED_FIELD_NAMES: [(ManagedField, &str); 3] = [
    (ManagedField::Backends, "backends"),
    (ManagedField::Retries, "retries"),
    (ManagedField::Timeout, "timeout"),
];

fn parse_managed_fields(text: &str) -> ManagedFields {
    MANAGED_FIELD_NAMES
        .iter()
        .filter(|(_, name)| text.split(' ').any(|field| field == *name))
        .map(|(field, _)| *field)
        .collect()
}

/// The tags of a resource that we create.
pub fn owned_tags(canary: &Canary, fields: &ManagedFields) -> Result<Vec<TagRef>, BuildError> {
    let names: Vec<_> =
        MANAGED_FIELD_NAMES.iter().filter(|(one, _)| fields.contains(one)).map(|(_, name)| *name).collect();
    Ok(vec![canary_tag(canary)?, TagRef::builder().key(MANAGED_FIELDS_TAG).value(names.join(" ")).build()?])
}

fn canary_tag(canary: &Canary) -> Result<TagRef, BuildError> {
    TagRef::builder().key(CANARY_TAG).value(canary_tag_value(canary)).build()
}

/// The tags of a route that is adopted.
pub fn adopted_tags(canary: &Canary, original: &[WeightedTarget]) -> Result<Vec<TagRef>, BuildError> {
    let target = |target: &WeightedTarget| {
        let port = target.port.map(|port| port.to_string()).unwrap_or_default();
        format!("{}:{}:{port}", target.virtual_node, target.weight)
    };
    let text = original.iter().map(target).collect::<Vec<_>>().join(" ");
    let characters: Vec<char> = text.chars().collect();
    let mut tags = vec![canary_tag(canary)?];
    for (at, part) in characters.chunks(MAX_TAG_VALUE_LENGTH).enumerate() {
        let key = if at == 0 { ORIGINAL_TAG.to_owned() } else { format!("{ORIGINAL_TAG}-{at}") };
        tags.push(TagRef::builder().key(key).value(part.iter().collect::<String>()).build()?);
    }
    Ok(tags)
}

fn parse_target(text: &str) -> Result<WeightedTarget, BuildError> {
    let mut parts = text.rsplitn(3, ':');
    let (port, weight, node) = (parts.next(), parts.next(), parts.next());
    let number = |text: Option<&str>| text.and_then(|text| text.parse::<i32>().ok());
    let target = WeightedTarget::builder().set_virtual_node(node.map(str::to_owned));
    target.set_weight(number(weight)).set_port(number(port)).build()
}

/// A resource and its ownership.
#[derive(Clone, Debug, PartialEq)]
pub struct ObservedResource<S> {
    pub live: LiveResource<S>,
    pub ownership: MeshOwnership,
}

/// All resources of one Canary in its mesh.
#[derive(Clone, Debug, PartialEq)]
pub struct MeshState {
    /// The router of an existing virtual service, if it has one, else ours.
    pub router_name: String,
    pub service: Option<ObservedResource<VirtualServiceSpec>>,
    pub canary_service: Option<ObservedResource<VirtualServiceSpec>>,
    pub router: Option<ObservedResource<VirtualRouterSpec>>,
    /// All routes of that router by name, ours or not.
    pub routes: BTreeMap<String, ObservedResource<RouteSpec>>,
    pub primary: Option<ObservedResource<VirtualNodeSpec>>,
    pub canary: Option<ObservedResource<VirtualNodeSpec>>,
}

impl MeshState {
    /// Fetches everything, except routes that are unchanged since `before`.
    pub async fn fetch(
        mesh: &MeshClient<'_>,
        canary: &Canary,
        names: &MeshNames,
        before: Option<&Self>,
    ) -> Result<Self, Error> {
        let known = before.and_then(|before| before.service.as_ref());
        let service = find::<VirtualService>(mesh, canary, &names.service, known).await?;
        let theirs = service.as_ref().filter(|service| !service.ownership.is_managed());
        let router_name =
            theirs.and_then(|service| target_router(&service.live.spec)).unwrap_or(names.router.clone());
        let before = before.filter(|before| before.router_name == router_name);
        let (canary_service, router, primary, candidate) = try_join!(
            find::<VirtualService>(
                mesh,
                canary,
                &names.canary_service,
                before.and_then(|b| b.canary_service.as_ref())
            ),
            find::<VirtualRouter>(mesh, canary, &router_name, before.and_then(|b| b.router.as_ref())),
            find::<VirtualNode>(mesh, canary, &names.primary, before.and_then(|b| b.primary.as_ref())),
            find::<VirtualNode>(mesh, canary, &names.canary, before.and_then(|b| b.canary.as_ref())),
        )?;
        let mut routes = BTreeMap::new();
        if router.is_some() {
            for (name, arn, version, created) in mesh.routes(&router_name).await? {
                let known = before.and_then(|before| before.routes.get(&name));
                let same = |observed: &&ObservedResource<RouteSpec>| {
                    (&observed.live.arn, observed.live.version, observed.live.created)
                        == (&arn, version, created)
                };
                let observed = match known.filter(same) {
                    Some(same) => Some(same.clone()),
                    None => {
                        fetch_resource::<MeshRoute>(
                            mesh,
                            canary,
                            &ResourceName::route(&name, &router_name),
                            known,
                        )
                        .await?
                    }
                };
                // None if deleted since it was listed.
                routes.extend(observed.map(|observed| (name, observed)));
            }
        }
        Ok(Self { router_name, service, canary_service, router, routes, primary, canary: candidate })
    }

    /// True if this Canary created or adopted any of them.
    pub fn has_managed(&self) -> bool {
        let ours = [
            self.service.as_ref().map(|observed| &observed.ownership),
            self.canary_service.as_ref().map(|observed| &observed.ownership),
            self.router.as_ref().map(|observed| &observed.ownership),
            self.primary.as_ref().map(|observed| &observed.ownership),
            self.canary.as_ref().map(|observed| &observed.ownership),
        ];
        ours.into_iter()
            .flatten()
            .chain(self.routes.values().map(|observed| &observed.ownership))
            .any(MeshOwnership::is_managed)
    }

    /// True if everything exists that a split needs besides its routes.
    pub fn is_complete(&self) -> bool {
        self.service.is_some()
            && self.canary_service.is_some()
            && self.router.is_some()
            && self.primary.is_some()
            && self.canary.is_some()
    }
}

/// The virtual router that provides a virtual service.
fn target_router(service: &VirtualServiceSpec) -> Option<String> {
    match service.provider.as_ref()? {
        VirtualServiceProvider::VirtualRouter(router) => Some(router.virtual_router_name.clone()),
        _ => None,
    }
}

async fn find<K: ResourceKind>(
    mesh: &MeshClient<'_>,
    canary: &Canary,
    name: &str,
    known: Option<&ObservedResource<K::Spec>>,
) -> Result<Option<ObservedResource<K::Spec>>, Error> {
    fetch_resource::<K>(mesh, canary, &ResourceName::of(name), known).await
}

/// Tags are fetched once per resource, and again before it is adopted: no other
/// client changes ours.
pub async fn fetch_resource<K: ResourceKind>(
    mesh: &MeshClient<'_>,
    canary: &Canary,
    name: &ResourceName,
    known: Option<&ObservedResource<K::Spec>>,
) -> Result<Option<ObservedResource<K::Spec>>, Error> {
    let Some(live) = mesh.find::<K>(name).await? else { return Ok(None) };
    let ownership = match known.filter(|known| {
        known.live.uid == live.uid && !matches!(known.ownership, MeshOwnership::OwnedByOther(_))
    }) {
        Some(known) => known.ownership.clone(),
        None => MeshOwnership::of(&mesh.tags(&live.arn).await?, canary)?,
    };
    Ok(Some(ObservedResource { live, ownership }))
}

/// Removes our tags from a resource that stays.
pub async fn untag(mesh: &MeshClient<'_>, arn: &str) -> Result<(), Error> {
    let ours = |tag: &TagRef| {
        tag.key == CANARY_TAG || tag.key == MANAGED_FIELDS_TAG || tag.key.starts_with(ORIGINAL_TAG)
    };
    let keys: Vec<_> = mesh.tags(arn).await?.into_iter().filter(ours).map(|tag| tag.key).collect();
    if keys.is_empty() { Ok(()) } else { mesh.untag(arn, keys).await }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_targets_of_an_adopted_route_are_read_as_they_were_written() {
        let named = |name: &str| {
            let target = serde_json::json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": name});
            let spec = serde_json::json!({"targetRef": target, "analysis": {"iterations": 1}});
            Canary::new(name, serde_json::from_value(spec).unwrap())
        };
        let canary = named("web");
        let target = |node: &str, weight, port| {
            WeightedTarget::builder().virtual_node(node).weight(weight).set_port(port).build().unwrap()
        };
        let long = "n".repeat(250);
        let targets =
            vec![target("blue:1", 33, Some(8080)), target(&long, 60, None), target("green", 7, None)];
        let tags = adopted_tags(&canary, &targets).unwrap();
        assert!(tags.iter().all(|tag| tag.value.len() <= MAX_TAG_VALUE_LENGTH) && tags.len() == 3);
        assert_eq!(MeshOwnership::of(&tags, &canary).unwrap(), MeshOwnership::Adopted(targets));
        assert!(matches!(MeshOwnership::of(&tags, &named("other")).unwrap(), MeshOwnership::OwnedByOther(_)));
    }
}
