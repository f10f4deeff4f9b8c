//! Discovery of the kinds that can be listed, watched and deleted.

use std::time::Duration;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::DynamicObject;
use kube::core::{GroupVersionKind, PartialObjectMeta};
use kube::discovery::{ApiResource, Discovery, Scope, verbs};
use kube::{Api, Client};

use super::runtime::backoff;

/// The metadata of an object of any kind.
pub type Meta = PartialObjectMeta<DynamicObject>;

/// A kind in its preferred version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceKind {
    pub resource: ApiResource,
    pub namespaced: bool,
}

impl ResourceKind {
    /// The same for all versions of a kind.
    pub fn key(&self) -> String {
        format!("{}.{}", self.resource.plural, self.resource.group)
    }

    pub fn cluster_api(&self, client: &Client) -> Api<Meta> {
        Api::all_with(client.clone(), &self.resource)
    }

    pub fn namespaced_api(&self, client: &Client, namespace: Option<&str>) -> Api<Meta> {
        match namespace.filter(|_| self.namespaced) {
            Some(namespace) => Api::namespaced_with(client.clone(), namespace, &self.resource),
            None => self.cluster_api(client),
        }
    }
}

/// Discovers the served kinds; retries until it succeeds.
pub async fn discover(client: &Client) -> Vec<ResourceKind> {
    let mut attempt = 0;
    loop {
        match Discovery::new(client.clone()).run().await {
            Ok(discovery) => return kinds_in(&discovery),
            Err(error) => {
                tracing::debug!(%error, "discovery failed; retrying");
                attempt += 1;
                tokio::time::sleep(backoff(attempt).max(Duration::from_millis(100))).await;
            }
        }
    }
}

fn kinds_in(discovery: &Discovery) -> Vec<ResourceKind> {
    let all = discovery.groups_alphabetical().into_iter().flat_map(|group| group.recommended_resources());
    let kept = all.filter(|(_, can)| {
        let verbs = [verbs::LIST, verbs::WATCH, verbs::DELETE];
        verbs.into_iter().all(|verb| can.supports_operation(verb))
    });
    kept.map(|(resource, can)| ResourceKind { resource, namespaced: can.scope == Scope::Namespaced })
        .collect()
}

/// The kind of a definition, once the server serves it.
pub fn kind_of_definition(definition: &CustomResourceDefinition) -> Option<ResourceKind> {
    let conditions = definition.status.as_ref()?.conditions.as_deref().unwrap_or_default();
    let established =
        conditions.iter().any(|condition| condition.type_ == "Established" && condition.status == "True");
    if !established || definition.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let spec = &definition.spec;
    let version = spec.versions.iter().find(|version| version.served)?;
    let gvk = GroupVersionKind::gvk(&spec.group, &version.name, &spec.names.kind);
    Some(ResourceKind {
        resource: ApiResource::from_gvk_with_plural(&gvk, &spec.names.plural),
        namespaced: spec.scope == "Namespaced",
    })
}
