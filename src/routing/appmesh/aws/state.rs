//! What a mesh has for one Canary, and whose it is.
//!
//! Tags keep the books: `serin.dev/canary` is on everything that we made or
//! changed; `serin.dev/said` names what the Canary said of something that we
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
    api::{Kind, Live, Mesh, Name, Node, Route, Router, Said, Service},
    error::Error,
};
use crate::{api::Canary, routing::services};

const CANARY: &str = "serin.dev/canary";
const SAID: &str = "serin.dev/said";
const ORIGINAL: &str = "serin.dev/original";

/// Longer values are divided.
const TAG_LENGTH: usize = 256;

/// What everything is called, as Amazon's controller would call it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names {
    /// What is called by everybody.
    pub service: String,
    /// The canary alone, for tests.
    pub canary_service: String,
    pub router: String,
    pub route: String,
    pub primary: String,
    pub canary: String,
    /// What a virtual node may have been called before there was a Canary.
    pub apex: [String; 2],
}

impl Names {
    pub fn of(canary: &Canary) -> Self {
        let services::Names { apex, primary, canary: candidate } = services::Names::of(canary);
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
            apex: [format!("{apex}_{namespace}"), apex],
        }
    }
}

/// Whose something is.
#[derive(Clone, Debug, PartialEq)]
pub enum Whose {
    /// This Canary made it, and said this of it.
    Owned(Sayings),
    /// It was there before, with these targets.
    Adopted(Vec<WeightedTarget>),
    /// Nobody's whom we know.
    Foreign,
    /// Another Canary's.
    Taken(String),
}

impl Whose {
    fn of(tags: &[TagRef], canary: &Canary) -> Result<Self, BuildError> {
        let Some(mark) = tags.iter().find(|tag| tag.key == CANARY) else { return Ok(Self::Foreign) };
        if mark.value != mark_of(canary) {
            return Ok(Self::Taken(format!("the Canary {}", mark.value)));
        }
        let mut parts: Vec<_> = tags.iter().filter(|tag| tag.key.starts_with(ORIGINAL)).collect();
        parts.sort_by_key(|tag| (tag.key.len(), tag.key.as_str()));
        match parts.is_empty() {
            true => {
                let said = tags.iter().find(|tag| tag.key == SAID).map_or("", |tag| tag.value.as_str());
                Ok(Self::Owned(read_sayings(said)))
            }
            false => {
                let original: String = parts.iter().map(|tag| tag.value.as_str()).collect();
                Ok(Self::Adopted(original.split(' ').map(read_target).collect::<Result<_, _>>()?))
            }
        }
    }

    pub fn is_ours(&self) -> bool {
        matches!(self, Self::Owned(_) | Self::Adopted(_))
    }
}

/// What `serin.dev/canary` says.
pub fn mark_of(canary: &Canary) -> String {
    format!("{}/{}", canary.namespace().unwrap_or_default(), canary.name_any())
}

/// Fits into a tag?
pub fn can_be_marked(canary: &Canary) -> bool {
    mark_of(canary).len() <= TAG_LENGTH
}

/// What a Canary says of something.
pub type Sayings = BTreeSet<Said>;

pub fn sayings<K: Kind>(canary: &Canary) -> Sayings {
    let service = canary.spec.service.as_ref();
    let says = |said: &Said| match said {
        Said::Backends => service.is_some_and(|service| !service.backends.is_empty()),
        Said::Retries => service.is_some_and(|service| service.retries.is_some()),
        Said::Timeout => service.is_some_and(|service| service.timeout.is_some()),
    };
    K::SAYS.iter().copied().filter(says).collect()
}

const SAYINGS: [(Said, &str); 3] =
    [(Said::Backends, "backends"), (Said::Retries, "retries"), (Said::Timeout, "timeout")];

fn read_sayings(text: &str) -> Sayings {
    SAYINGS
        .iter()
        .filter(|(_, word)| text.split(' ').any(|said| said == *word))
        .map(|(said, _)| *said)
        .collect()
}

/// The tags of something that we make.
pub fn marks(canary: &Canary, said: &Sayings) -> Result<Vec<TagRef>, BuildError> {
    let words: Vec<_> = SAYINGS.iter().filter(|(one, _)| said.contains(one)).map(|(_, word)| *word).collect();
    Ok(vec![mark(canary)?, TagRef::builder().key(SAID).value(words.join(" ")).build()?])
}

fn mark(canary: &Canary) -> Result<TagRef, BuildError> {
    TagRef::builder().key(CANARY).value(mark_of(canary)).build()
}

/// The tags of a route that is adopted.
pub fn marks_with(canary: &Canary, original: &[WeightedTarget]) -> Result<Vec<TagRef>, BuildError> {
    let target = |target: &WeightedTarget| {
        let port = target.port.map(|port| port.to_string()).unwrap_or_default();
        format!("{}:{}:{port}", target.virtual_node, target.weight)
    };
    let text = original.iter().map(target).collect::<Vec<_>>().join(" ");
    let characters: Vec<char> = text.chars().collect();
    let mut tags = vec![mark(canary)?];
    for (at, part) in characters.chunks(TAG_LENGTH).enumerate() {
        let key = if at == 0 { ORIGINAL.to_owned() } else { format!("{ORIGINAL}-{at}") };
        tags.push(TagRef::builder().key(key).value(part.iter().collect::<String>()).build()?);
    }
    Ok(tags)
}

fn read_target(text: &str) -> Result<WeightedTarget, BuildError> {
    let mut parts = text.rsplitn(3, ':');
    let (port, weight, node) = (parts.next(), parts.next(), parts.next());
    let number = |text: Option<&str>| text.and_then(|text| text.parse::<i32>().ok());
    let target = WeightedTarget::builder().set_virtual_node(node.map(str::to_owned));
    target.set_weight(number(weight)).set_port(number(port)).build()
}

/// Something in the mesh, and whose it is.
#[derive(Clone, Debug, PartialEq)]
pub struct Held<S> {
    pub live: Live<S>,
    pub whose: Whose,
}

/// All that a mesh has for one Canary.
#[derive(Clone, Debug, PartialEq)]
pub struct State {
    /// The router that it is about: people's, if their service leads to one.
    pub router_name: String,
    pub service: Option<Held<VirtualServiceSpec>>,
    pub canary_service: Option<Held<VirtualServiceSpec>>,
    pub router: Option<Held<VirtualRouterSpec>>,
    /// Everybody's routes of that router, by name.
    pub routes: BTreeMap<String, Held<RouteSpec>>,
    pub primary: Option<Held<VirtualNodeSpec>>,
    pub canary: Option<Held<VirtualNodeSpec>>,
}

impl State {
    /// Asks for everything; what is known to be unchanged `before` is not asked
    /// for again.
    pub async fn look(
        mesh: &Mesh<'_>,
        canary: &Canary,
        names: &Names,
        before: Option<&Self>,
    ) -> Result<Self, Error> {
        let known = before.and_then(|before| before.service.as_ref());
        let service = find::<Service>(mesh, canary, &names.service, known).await?;
        let theirs = service.as_ref().filter(|service| !service.whose.is_ours());
        let router_name =
            theirs.and_then(|service| leads_to(&service.live.spec)).unwrap_or(names.router.clone());
        let before = before.filter(|before| before.router_name == router_name);
        let (canary_service, router, primary, candidate) = try_join!(
            find::<Service>(
                mesh,
                canary,
                &names.canary_service,
                before.and_then(|b| b.canary_service.as_ref())
            ),
            find::<Router>(mesh, canary, &router_name, before.and_then(|b| b.router.as_ref())),
            find::<Node>(mesh, canary, &names.primary, before.and_then(|b| b.primary.as_ref())),
            find::<Node>(mesh, canary, &names.canary, before.and_then(|b| b.canary.as_ref())),
        )?;
        let mut routes = BTreeMap::new();
        if router.is_some() {
            for (name, arn, version, created) in mesh.routes(&router_name).await? {
                let known = before.and_then(|before| before.routes.get(&name));
                let same = |held: &&Held<RouteSpec>| {
                    (&held.live.arn, held.live.version, held.live.created) == (&arn, version, created)
                };
                let held = match known.filter(same) {
                    Some(same) => Some(same.clone()),
                    None => held::<Route>(mesh, canary, &Name::route(&name, &router_name), known).await?,
                };
                // Gone since it was listed, if there is none.
                routes.extend(held.map(|held| (name, held)));
            }
        }
        Ok(Self { router_name, service, canary_service, router, routes, primary, canary: candidate })
    }

    /// Is there anything of this Canary's?
    pub fn has_ours(&self) -> bool {
        let ours = [
            self.service.as_ref().map(|held| &held.whose),
            self.canary_service.as_ref().map(|held| &held.whose),
            self.router.as_ref().map(|held| &held.whose),
            self.primary.as_ref().map(|held| &held.whose),
            self.canary.as_ref().map(|held| &held.whose),
        ];
        ours.into_iter().flatten().chain(self.routes.values().map(|held| &held.whose)).any(Whose::is_ours)
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
fn leads_to(service: &VirtualServiceSpec) -> Option<String> {
    match service.provider.as_ref()? {
        VirtualServiceProvider::VirtualRouter(router) => Some(router.virtual_router_name.clone()),
        _ => None,
    }
}

async fn find<K: Kind>(
    mesh: &Mesh<'_>,
    canary: &Canary,
    name: &str,
    known: Option<&Held<K::Spec>>,
) -> Result<Option<Held<K::Spec>>, Error> {
    held::<K>(mesh, canary, &Name::of(name), known).await
}

/// Tags are asked for once in the life of a thing, and again before it is
/// adopted: only Canaries change ours.
pub async fn held<K: Kind>(
    mesh: &Mesh<'_>,
    canary: &Canary,
    name: &Name,
    known: Option<&Held<K::Spec>>,
) -> Result<Option<Held<K::Spec>>, Error> {
    let Some(live) = mesh.find::<K>(name).await? else { return Ok(None) };
    let whose =
        match known.filter(|known| known.live.uid == live.uid && !matches!(known.whose, Whose::Taken(_))) {
            Some(known) => known.whose.clone(),
            None => Whose::of(&mesh.tags(&live.arn).await?, canary)?,
        };
    Ok(Some(Held { live, whose }))
}

/// Takes our mark off something that stays.
pub async fn let_go(mesh: &Mesh<'_>, arn: &str) -> Result<(), Error> {
    let ours = |tag: &TagRef| tag.key == CANARY || tag.key == SAID || tag.key.starts_with(ORIGINAL);
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
        let tags = marks_with(&canary, &targets).unwrap();
        assert!(tags.iter().all(|tag| tag.value.len() <= TAG_LENGTH) && tags.len() == 3);
        assert_eq!(Whose::of(&tags, &canary).unwrap(), Whose::Adopted(targets));
        assert!(matches!(Whose::of(&tags, &named("other")).unwrap(), Whose::Taken(_)));
    }
}
