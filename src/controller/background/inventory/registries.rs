//! Instances of Consul and Cloud Map as endpoints of the EndpointGroups that name them.
//!
//! They are written to the status of the group by the replica that follows the registries,
//! so that every replica serves them to its proxies and counts them in releases, and so
//! that they stay while a registry does not answer.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use serde_json::json;
use tokio::{
    sync::{mpsc, watch},
    time::{sleep, timeout},
};

use crate::{
    api::{
        EndpointGroup,
        endpoint_group::{GroupEndpoint, RegistryService},
    },
    api_error::api_message,
    catalog::kubernetes::{ClusterObjects, RegisteredGroups},
    discovery::rest::registry::{Found, Instance, Registries, Service, Wanted},
};

const MAX_WAITING: usize = 64;
/// Between two rounds of writes, however often registries change.
const MIN_INTERVAL: Duration = Duration::from_millis(200);
/// After a write that failed.
const RETRY_DELAY: Duration = Duration::from_secs(5);
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);
/// As the definition has it.
const MAX_ENDPOINTS: usize = 1000;

/// Instances of a service of a MeshApi, by scope.
type Known = BTreeMap<(String, Service), BTreeMap<String, Vec<Instance>>>;

/// Writes what is found until it is dropped.
pub struct RegistryWriter {
    client: Client,
    groups: watch::Receiver<RegisteredGroups>,
    wanted: watch::Sender<Wanted>,
    found: mpsc::Receiver<Found>,
    known: Known,
}

impl RegistryWriter {
    /// The other half is for the followers of the registries.
    pub fn new(client: Client, objects: &Arc<ClusterObjects>) -> (Self, Registries) {
        let (wanted, wanted_receiver) = watch::channel(Wanted::new());
        let (sender, found) = mpsc::channel(MAX_WAITING);
        let mut groups = objects.registered_groups();
        groups.mark_changed();
        let writer = Self { client, groups, wanted, found, known: Known::new() };
        (writer, Registries { wanted: wanted_receiver, found: sender })
    }

    pub async fn run(mut self) {
        let mut retry = false;
        loop {
            tokio::select! {
                Ok(()) = self.groups.changed() => self.want(),
                Some(found) = self.found.recv() => self.learn(found),
                () = sleep(RETRY_DELAY), if retry => {}
                else => return,
            }
            retry = !self.write().await;
            sleep(MIN_INTERVAL).await;
        }
    }

    fn want(&mut self) {
        let mut wanted = Wanted::new();
        for group in self.groups.borrow_and_update().values() {
            wanted.entry(group.registry.mesh_api.clone()).or_default().insert(Service::of(&group.registry));
        }
        self.known.retain(|(api, service), _| wanted.get(api).is_some_and(|of_api| of_api.contains(service)));
        self.wanted.send_if_modified(|before| {
            let is_changed = *before != wanted;
            *before = wanted;
            is_changed
        });
    }

    fn learn(&mut self, Found { mesh_api, scope, service, instances }: Found) {
        self.known.entry((mesh_api, service)).or_default().insert(scope, instances);
    }

    /// Every status that differs; false if one could not be written.
    async fn write(&self) -> bool {
        let differing: Vec<_> = {
            let groups = self.groups.borrow();
            let differing = groups.iter().filter_map(|((namespace, name), group)| {
                let endpoints = self.endpoints(&group.registry)?;
                (endpoints != group.endpoints).then(|| (Arc::clone(namespace), Arc::clone(name), endpoints))
            });
            differing.collect()
        };
        let mut written = true;
        for (namespace, name, endpoints) in differing {
            let groups: Api<EndpointGroup> = Api::namespaced(self.client.clone(), &namespace);
            let patch = Patch::Merge(json!({"status": {"endpoints": endpoints}}));
            let params = PatchParams::default();
            let why = match timeout(WRITE_TIMEOUT, groups.patch_status(&name, &params, &patch)).await {
                Ok(Ok(_)) => continue,
                // Deleted meanwhile.
                Ok(Err(kube::Error::Api(status))) if status.code == 404 => continue,
                Ok(Err(error)) => api_message(&error),
                Err(_) => "no answer".to_owned(),
            };
            tracing::warn!(%namespace, endpointgroup = %name, "write the instances of its registry: {why}");
            written = false;
        }
        written
    }

    /// None before the registry has listed the service.
    fn endpoints(&self, registry: &RegistryService) -> Option<Vec<GroupEndpoint>> {
        let scopes = self.known.get(&(registry.mesh_api.clone(), Service::of(registry)))?;
        let instances = scopes.values().flatten();
        let mut endpoints: Vec<_> = instances.filter_map(|instance| instance.endpoint(registry)).collect();
        endpoints.sort();
        endpoints.dedup();
        endpoints.truncate(MAX_ENDPOINTS);
        Some(endpoints)
    }
}
