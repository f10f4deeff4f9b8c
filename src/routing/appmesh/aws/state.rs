//! What a mesh has for one Canary, and whose it is.
//!
//! Tags keep the books: `serin.dev/canary` is on everything that we made or
//! changed; `serin.dev/managed-fields` names what the Canary said of something that we
//! made, so that it goes when it is not said any more; and `serin.dev/original`
//! is on a route that was there before, with the targets that it had.

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

/// Longer values are divided.
const MAX_TAG_VALUE_LENGTH: usize = 256;

/// What everything is called, as Amazon's controller would call it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MeshNames {
    /// What is called by everybody.
    pub service: String,
    /// The canary alone, for tests.
    pub canary_service: String,
    pub router: String,
    pub route: String,
    pub primary: String,
    pub canary: String,
    /// What a virtual node may have been called before there was a Canary.
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

/// Whose something is.
#[derive(Clone, Debug, PartialEq)]
pub enum MeshOwnership {
    /// This Canary made it, and said this of it.
    Owned(ManagedFields),
    /// It was there before, with these targets.
    Adopted(Vec<WeightedTarget>),
    /// Nobody's whom we know.
    Unmanaged,
    /// Another Canary's.
    OwnedByOther(String),
}

impl MeshOwnership {
    fn of(tags: &[TagRef], canary: &Canary) -> Result<Self, BuildError> {
        let Some(mark) = tags.iter().find(|tag| tag.key == CANARY_TAG) else { return Ok(Self::Unmanaged) };
        if mark.value != canary_tag_value(canary) {
            return Ok(Self::OwnedByOther(format!("the Canary {}", mark.value)));
        }
        let mut parts: Vec<_> = tags.iter().filter(|tag| tag.key.starts_with(ORIGINAL_TAG)).collect();
        parts.sort_by_key(|tag| (tag.key.len(), tag.key.as_str()));
        match parts.is_empty() {
            true => {
                let said = tags
                    .iter()
                    .find(|tag| tag.key == MANAGED_FIELDS_TAG)
                    .map_or("", |tag| tag.value.as_str());
                Ok(Self::Owned(parse_managed_fields(said)))
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

/// What `serin.dev/canary` says.
pub fn canary_tag_value(canary: &Canary) -> String {
    format!("{}/{}", canary.namespace().unwrap_or_default(), canary.name_any())
}

/// Fits into a tag?
pub fn can_be_tagged(canary: &Canary) -> bool {
    canary_tag_value(canary).len() <= MAX_TAG_VALUE_LENGTH
}

/// What a Canary says of something.
pub type ManagedFields = BTreeSet<ManagedField>;

pub fn managed_fields<K: ResourceKind>(canary: &Canary) -> ManagedFields {
    let service = canary.spec.service.as_ref();
    let says = |said: &ManagedField| match said {
        ManagedField::Backends => service.is_some_and(|service| !service.backends.is_empty()),
        ManagedField::Retries => service.is_some_and(|service| service.retries.is_some()),
        ManagedField::Timeout => service.is_some_and(|service| service.timeout.is_some()),
    };
    K::MANAGED_FIELDS.iter().copied().filter(says).collect()
}

const MANAGED_FIELD_NAMES: [(ManagedField, &str); 3] = [
    (ManagedField::Backends, "backends"),
    (ManagedField::Retries, "retries"),
    (ManagedField::Timeout, "timeout"),
];

fn parse_managed_fields(text: &str) -> ManagedFields {
    MANAGED_FIELD_NAMES
        .iter()
        .filter(|(_, word)| text.split(' ').any(|said| said == *word))
        .map(|(said, _)| *said)
        .collect()
}

/// The tags of something that we make.
pub fn owned_tags(canary: &Canary, said: &ManagedFields) -> Result<Vec<TagRef>, BuildError> {
    let words: Vec<_> =
        MANAGED_FIELD_NAMES.iter().filter(|(one, _)| said.contains(one)).map(|(_, word)| *word).collect();
    Ok(vec![canary_tag(canary)?, TagRef::builder().key(MANAGED_FIELDS_TAG).value(words.join(" ")).build()?])
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

/// Something in the mesh, and whose it is.
#[derive(Clone, Debug, PartialEq)]
pub struct ObservedResource<S> {
    pub live: LiveResource<S>,
    pub ownership: MeshOwnership,
}

/// All that a mesh has for one Canary.
#[derive(Clone, Debug, PartialEq)]
pub struct MeshState {
    /// The router that it is about: people's, if their service leads to one.
    pub router_name: String,
    pub service: Option<ObservedResource<VirtualServiceSpec>>,
    pub canary_service: Option<ObservedResource<VirtualServiceSpec>>,
    pub router: Option<ObservedResource<VirtualRouterSpec>>,
    /// Everybody's routes of that router, by name.
    pub routes: BTreeMap<String, ObservedResource<RouteSpec>>,
    pub primary: Option<ObservedResource<VirtualNodeSpec>>,
    pub canary: Option<ObservedResource<VirtualNodeSpec>>,
}

impl MeshState {
    /// Asks for everything; what is known to be unchanged `before` is not asked
    /// for again.
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
                // Gone since it was listed, if there is none.
                routes.extend(observed.map(|observed| (name, observed)));
            }
        }
        Ok(Self { router_name, service, canary_service, router, routes, primary, canary: candidate })
    }

    /// Is there anything of this Canary's?
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

    /// Is everything there that a split needs beside its routes?
    pub fn is_complete(&self) -> bool {
        self.service.is_some()
            && self.canary_service.is_some()
            && self.router.is_some()
            && self.primary.is_some()
            && self.canary.is_some()
    }
}

/// The router that a service leads to.
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

/// Tags are asked for once in the life of a thing, and again before it is
/// adopted: only Canaries change ours.
pub async fn fetch_resource<K: ResourceKind>(
    mesh: &MeshClient<'_>,
    canary: &Canary,
    name: &ResourceName,
    known: Option<&ObservedResource<K::Spec>>,
) -> Result<Option<ObservedResource<K::Spec>>, Error> {
    let Some(live) = mesh.find::<K>(name).await? else { return Ok(None) };
    let whose = match known.filter(|known| {
        known.live.uid == live.uid && !matches!(known.ownership, MeshOwnership::OwnedByOther(_))
    }) {
        Some(known) => known.ownership.clone(),
        None => MeshOwnership::of(&mesh.tags(&live.arn).await?, canary)?,
    };
    Ok(Some(ObservedResource { live, ownership: whose }))
}

/// Takes our mark off something that stays.
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
