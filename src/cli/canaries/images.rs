//! The images of a Canary's workloads: people know a revision by them.

use std::collections::HashMap;

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::PodTemplateSpec;
use kube::{Api, Client, ResourceExt as _, api::ListParams};

use crate::api::{Canary, canary::TargetKind};

/// Images of the containers of each workload, by kind, namespace and name.
#[derive(Default)]
pub struct Workloads(HashMap<(bool, String, String), Vec<String>>);

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
        let (deployments, daemon_sets): (Api<Deployment>, Api<DaemonSet>) = match namespace {
            Some(namespace) => {
                (Api::namespaced(client.clone(), namespace), Api::namespaced(client.clone(), namespace))
            }
            None => (Api::all(client.clone()), Api::all(client.clone())),
        };
        let (deployments, daemon_sets) = tokio::join!(deployments.list(&params), daemon_sets.list(&params));
        let mut workloads = Self::default();
        for object in deployments.into_iter().flatten() {
            let key = (false, object.namespace().unwrap_or_default(), object.name_any());
            workloads.0.extend(object.spec.map(|spec| (key, images(&spec.template))));
        }
        for object in daemon_sets.into_iter().flatten() {
            let key = (true, object.namespace().unwrap_or_default(), object.name_any());
            workloads.0.extend(object.spec.map(|spec| (key, images(&spec.template))));
        }
        workloads
    }

    pub fn images_of(&self, canary: &Canary) -> Images {
        let target = &canary.spec.target_ref;
        let of = |name: String| {
            let daemon = target.kind == TargetKind::DaemonSet;
            self.0.get(&(daemon, canary.namespace().unwrap_or_default(), name))
        };
        let (primary, target) = (of(format!("{}-primary", target.name)), of(target.name.clone()));
        // The container whose image differs is the one that is released.
        let differs =
            |at: &usize| primary.and_then(|all| all.get(*at)) != target.and_then(|all| all.get(*at));
        let containers = target.or(primary).map_or(0, Vec::len);
        let at = (0..containers).find(differs).unwrap_or(0);
        let image = |all: Option<&Vec<String>>| all?.get(at).map(|image| short(image).to_owned());
        Images { primary: image(primary), target: image(target) }
    }
}

fn images(template: &PodTemplateSpec) -> Vec<String> {
    let containers = template.spec.iter().flat_map(|spec| &spec.containers);
    containers.map(|container| container.image.clone().unwrap_or_default()).collect()
}

/// Without registry and repository path; of a digest, seven digits.
fn short(image: &str) -> &str {
    let name = image.rsplit('/').next().unwrap_or(image);
    match name.find("@sha256:") {
        Some(at) => name.get(..at + "@sha256:".len() + 7).unwrap_or(name),
        None => name,
    }
}

impl Images {
    /// `web:v1 → v2`, or the one image of both.
    pub fn change(&self) -> String {
        match (&self.primary, &self.target) {
            (Some(old), Some(new)) if old != new => {
                let name = |image: &str| image.split([':', '@']).next().map(str::to_owned);
                match name(old) == name(new) {
                    true => {
                        format!("{old} → {}", new.split_once([':', '@']).map_or(new.as_str(), |(_, tag)| tag))
                    }
                    false => format!("{old} → {new}"),
                }
            }
            (primary, target) => primary.clone().or(target.clone()).unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_shown_by_name_and_tag() {
        let digest = "registry.example.com:5000/team/web@sha256:0123456789abcdef";
        assert_eq!(short(digest), "web@sha256:0123456");
        assert_eq!(short("registry.example.com:5000/team/web:v2"), "web:v2");
        assert_eq!(short("web"), "web");
    }

    #[test]
    fn a_change_names_both_versions_and_the_repository_once() {
        let change = |old: &str, new: &str| {
            Images { primary: Some(old.to_owned()), target: Some(new.to_owned()) }.change()
        };
        assert_eq!(change("web:v1", "web:v2"), "web:v1 → v2");
        assert_eq!(change("web:v1", "shop:v2"), "web:v1 → shop:v2");
        assert_eq!(change("web:v1", "web:v1"), "web:v1");
        assert_eq!(Images { primary: None, target: Some("web:v1".to_owned()) }.change(), "web:v1");
    }
}
