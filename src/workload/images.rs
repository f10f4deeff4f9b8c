//! The images of a Canary's workloads, and the versions of an EndpointGroup: people know a
//! revision by them.

use std::collections::HashMap;

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::PodTemplateSpec;
use kube::core::NamespaceResourceScope;
use kube::{Api, Client, Resource, ResourceExt as _, api::ListParams};

use crate::api::{Canary, EndpointGroup, canary::TargetKind};
use crate::engine::names;

/// Images of the containers of each workload, by kind, namespace and name.
#[derive(Default)]
pub struct Workloads(HashMap<(Kind, String, String), Vec<String>>);

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Kind {
    Deployment,
    DaemonSet,
    EndpointGroup,
}

/// What the arms of a Canary run, shortened to name and tag.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Images {
    pub primary: Option<String>,
    pub target: Option<String>,
}

impl Workloads {
    /// Of one namespace, or of all. Kinds that the user may not list are left out.
    pub async fn list(client: &Client, namespace: Option<&str>) -> Self {
        let params = ListParams::default();
        let (deployments, daemon_sets): (Api<Deployment>, Api<DaemonSet>) =
            (api(client, namespace), api(client, namespace));
        let groups: Api<EndpointGroup> = api(client, namespace);
        let (deployments, daemon_sets, groups) =
            tokio::join!(deployments.list(&params), daemon_sets.list(&params), groups.list(&params));
        let mut workloads = Self::default();
        for object in deployments.into_iter().flatten() {
            let key = (Kind::Deployment, object.namespace().unwrap_or_default(), object.name_any());
            workloads.0.extend(object.spec.map(|spec| (key, images(&spec.template))));
        }
        for object in daemon_sets.into_iter().flatten() {
            let key = (Kind::DaemonSet, object.namespace().unwrap_or_default(), object.name_any());
            workloads.0.extend(object.spec.map(|spec| (key, images(&spec.template))));
        }
        for group in groups.into_iter().flatten() {
            let (namespace, name) = (group.namespace().unwrap_or_default(), group.name_any());
            if let Some(primary) = group.status.and_then(|status| status.primary) {
                let key = (Kind::EndpointGroup, namespace.clone(), format!("{name}-primary"));
                workloads.0.insert(key, vec![primary]);
            }
            workloads.0.insert((Kind::EndpointGroup, namespace, name), vec![group.spec.version]);
        }
        workloads
    }

    pub fn images_of(&self, canary: &Canary) -> Images {
        let target = &canary.spec.target_ref;
        let of = |name: String| {
            let kind = match target.kind {
                TargetKind::Deployment => Kind::Deployment,
                TargetKind::DaemonSet => Kind::DaemonSet,
                TargetKind::EndpointGroup => Kind::EndpointGroup,
                TargetKind::Service => return None,
            };
            self.0.get(&(kind, canary.namespace().unwrap_or_default(), name)).map(Vec::as_slice)
        };
        Images::new(of(format!("{}-primary", target.name)), of(target.name.clone()))
    }
}

fn api<K>(client: &Client, namespace: Option<&str>) -> Api<K>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
{
    match namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    }
}

fn images(template: &PodTemplateSpec) -> Vec<String> {
    let containers = template.spec.iter().flat_map(|spec| &spec.containers);
    containers.map(|container| container.image.clone().unwrap_or_default()).collect()
}

impl Images {
    /// Of the containers of primary and target, in their order.
    pub fn new(primary: Option<&[String]>, target: Option<&[String]>) -> Self {
        // The container whose image differs is the one that is released.
        let differs =
            |at: &usize| primary.and_then(|all| all.get(*at)) != target.and_then(|all| all.get(*at));
        let containers = target.or(primary).map_or(0, <[String]>::len);
        let at = (0..containers).find(differs).unwrap_or(0);
        let image = |all: Option<&[String]>| all?.get(at).map(|image| names::short_image(image).to_owned());
        Self { primary: image(primary), target: image(target) }
    }

    /// `web:v1 → v2`, or the one image of both.
    pub fn change(&self) -> String {
        names::change(self.primary.as_deref(), self.target.as_deref())
    }
}
