//! Lists the objects of a cluster into an [`Inventory`], with the caller's own rights.
//!
//! Only kinds that the cluster serves are listed. A kind that the caller may not list
//! is a note beside the inventory, not a failure.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use kube::api::{DynamicObject, ListParams, Request};
use kube::core::ApiResource;
use kube::discovery::Discovery;
use kube::{Client, Resource as _};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::model::{Detail, Inventory, Kind, ListScope, Object, RULES, config_maps};
use crate::api_error::api_message;

const PAGE_SIZE: u32 = 500;
/// Of one page.
const LIST_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("ask the API server which kinds it serves: {}", api_message(.0))]
    Discover(#[source] kube::Error),
    #[error("list {plural}: {source}")]
    List { plural: &'static str, source: kube::Error },
    #[error("list {plural}: no answer within {LIST_TIMEOUT:?}")]
    Timeout { plural: &'static str },
}

pub struct Listing {
    pub inventory: Inventory,
    pub unread: Vec<Unread>,
}

/// Objects that could not be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Unread {
    /// `virtualservices.networking.istio.io`.
    pub resource: String,
    /// None: in all namespaces.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The API server's words and, for a missing right, the rule that grants it.
    pub why: String,
}

/// What is listed.
#[derive(Clone, Copy, Debug)]
pub struct ListRequest<'a> {
    /// Name of the cluster in keys.
    pub cluster: &'a str,
    /// The namespace whose workloads are wanted; control planes are searched in all.
    pub namespace: Option<&'a str>,
    /// Also the pods of other namespaces, which the counts of a mesh include.
    pub all_pods: bool,
}

/// One complete listing of all kinds.
pub async fn list(client: &Client, request: ListRequest<'_>) -> Result<Listing, Error> {
    let served = ServedResources::discover(client).await?;
    let mut lister =
        Lister { client, request, listing: Listing { inventory: Inventory::default(), unread: Vec::new() } };
    for resource in served.names() {
        lister.listing.inventory.apply(Object::served(request.cluster, resource));
    }
    for kind in Kind::ALL.iter().copied() {
        if let Some(resource) = served.resource(kind).filter(|_| kind != Kind::ConfigMap) {
            lister.list_kind(kind, resource).await?;
        }
    }
    lister.listing.inventory.refresh();
    lister.read_config_maps().await?;
    lister.listing.inventory.refresh();
    Ok(lister.listing)
}

/// The resources of known groups that the API server serves, by `plural.group` and
/// version.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServedResources(BTreeMap<(String, String), ApiResource>);

impl ServedResources {
    /// One request for the groups, and one for each version of the known ones.
    pub async fn discover(client: &Client) -> Result<Self, Error> {
        let groups: Vec<&str> = known_groups().into_iter().collect();
        let discovered =
            Discovery::new(client.clone()).filter(&groups).run().await.map_err(Error::Discover)?;
        let resources = discovered.groups().flat_map(|group| {
            group.versions().flat_map(|version| group.versioned_resources(version)).collect::<Vec<_>>()
        });
        let name = |resource: &ApiResource| match resource.group.is_empty() {
            true => resource.plural.clone(),
            false => format!("{}.{}", resource.plural, resource.group),
        };
        let by_name = resources.map(|(resource, _)| ((name(&resource), resource.version.clone()), resource));
        Ok(Self(by_name.collect()))
    }

    /// `plural.group`, each once.
    pub fn names(&self) -> BTreeSet<&str> {
        self.0.keys().map(|(name, _)| name.as_str()).collect()
    }

    /// In the first version that the model can read.
    pub fn resource(&self, kind: Kind) -> Option<&ApiResource> {
        let name = resource_name(kind);
        kind.versions().iter().find_map(|version| self.0.get(&(name.clone(), (*version).to_owned())))
    }
}

/// Groups of the kinds that the model reads, and of those that prove a mesh.
pub fn known_groups() -> BTreeSet<&'static str> {
    let of_rules = RULES.iter().flat_map(|rule| rule.served).filter_map(|resource| resource.split_once('.'));
    let of_kinds = Kind::ALL.iter().map(|kind| kind.group());
    of_rules.map(|(_, group)| group).chain(of_kinds).collect()
}

/// The ConfigMap beside a control plane that has the trust domain of its mesh, as
/// namespace and name.
pub fn wanted_config_maps(inventory: &Inventory) -> BTreeSet<(String, String)> {
    let mut wanted = BTreeSet::new();
    for mesh in inventory.meshes() {
        let Some(plane) = mesh.control_plane else { continue };
        for rule in config_maps().iter().filter(|rule| rule.mesh == mesh.kind) {
            let name = match plane.revision.as_deref() {
                None | Some("default") => rule.name.to_owned(),
                Some(revision) => format!("{}-{revision}", rule.name),
            };
            wanted.insert((plane.workload.namespace.clone(), name));
        }
    }
    wanted
}

pub fn resource_name(kind: Kind) -> String {
    match kind.group() {
        "" => kind.plural().to_owned(),
        group => format!("{}.{group}", kind.plural()),
    }
}

#[derive(Deserialize)]
struct Page {
    #[serde(default)]
    metadata: PageMetadata,
    /// The API server writes `null` for an empty list of metadata.
    items: Option<Vec<Value>>,
}

#[derive(Default, Deserialize)]
struct PageMetadata {
    #[serde(rename = "continue")]
    next: Option<String>,
}

struct Lister<'a> {
    client: &'a Client,
    request: ListRequest<'a>,
    listing: Listing,
}

impl Lister<'_> {
    /// In all namespaces; pods only where they are wanted, unless all are. A caller without the right to
    /// list all namespaces gets the wanted one.
    async fn list_kind(&mut self, kind: Kind, resource: &ApiResource) -> Result<(), Error> {
        let wanted = self.request.namespace.filter(|_| !kind.is_cluster_scoped());
        let first = wanted.filter(|_| kind == Kind::Pod && !self.request.all_pods);
        match self.list_scope(kind, resource, first).await? {
            Some(refusal) if first.is_none() && wanted.is_some() => {
                let second = self.list_scope(kind, resource, wanted).await?;
                self.note(kind, if second.is_some() { wanted } else { None }, second.unwrap_or(refusal));
            }
            Some(refusal) => self.note(kind, first, refusal),
            None => {}
        }
        Ok(())
    }

    fn note(&mut self, kind: Kind, namespace: Option<&str>, why: String) {
        let namespace = namespace.map(str::to_owned);
        self.listing.unread.push(Unread { resource: resource_name(kind), namespace, why });
    }

    /// The server's refusal, if it refuses.
    async fn list_scope(
        &mut self,
        kind: Kind,
        resource: &ApiResource,
        namespace: Option<&str>,
    ) -> Result<Option<String>, Error> {
        let plural = kind.plural();
        let path = Request::new(DynamicObject::url_path(resource, namespace));
        let (mut shown, mut next) = (BTreeSet::new(), None);
        loop {
            let mut params = ListParams::default().limit(PAGE_SIZE);
            params.continue_token = next.take();
            let request = match kind.detail() {
                Detail::Whole => path.list(&params),
                Detail::Metadata => path.list_metadata(&params),
            };
            let Ok(request) = request else { return Ok(Some(format!("{plural} cannot be listed"))) };
            let page = tokio::time::timeout(LIST_TIMEOUT, self.client.request::<Page>(request)).await;
            let page = match page.map_err(|_| Error::Timeout { plural })? {
                Ok(page) => page,
                // The definition was deleted meanwhile.
                Err(kube::Error::Api(status)) if status.code == 404 => break,
                Err(error @ kube::Error::Api(_)) => return Ok(Some(api_message(&error))),
                Err(source) => return Err(Error::List { plural, source }),
            };
            for object in
                page.items.iter().flatten().filter_map(|item| Object::parse(self.request.cluster, kind, item))
            {
                shown.insert(object.key.clone());
                self.listing.inventory.apply(object);
            }
            next = page.metadata.next.filter(|token| !token.is_empty());
            if next.is_none() {
                break;
            }
        }
        let scope = ListScope {
            cluster: self.request.cluster.to_owned(),
            kind,
            namespace: namespace.map(str::to_owned),
        };
        self.listing.inventory.list_complete(&scope, &shown);
        Ok(None)
    }

    /// By name, beside the control planes: ConfigMaps of applications are none of ours.
    async fn read_config_maps(&mut self) -> Result<(), Error> {
        for (namespace, name) in wanted_config_maps(&self.listing.inventory) {
            let path = format!("/api/v1/namespaces/{namespace}/configmaps");
            let Ok(request) = Request::new(path).get(&name, &kube::api::GetParams::default()) else {
                continue;
            };
            let answer = tokio::time::timeout(LIST_TIMEOUT, self.client.request::<Value>(request)).await;
            match answer.map_err(|_| Error::Timeout { plural: "configmaps" })? {
                Ok(value) => {
                    let object = Object::parse(self.request.cluster, Kind::ConfigMap, &value);
                    object.into_iter().for_each(|object| self.listing.inventory.apply(object));
                }
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                Err(error @ kube::Error::Api(_)) => {
                    self.note(Kind::ConfigMap, Some(&namespace), api_message(&error))
                }
                Err(source) => return Err(Error::List { plural: "configmaps", source }),
            }
        }
        Ok(())
    }
}
