//! Writes into the status of a MeshRoute what the proxies of this replica made of it.
//!
//! Each replica owns its entry by a field manager of its own. An entry is written when it
//! changed: at once when the proxies are through with a generation or refuse it, else
//! within a second. Entries of replicas that are gone count for [`PATIENCE`], until their
//! proxies have connected to another one, and are removed by any of the rest once a newer
//! generation would wait for them.

use std::{
    collections::{BTreeMap, BTreeSet},
    future::pending,
    time::Duration,
};

use k8s_openapi::api::coordination::v1::Lease;
use kube::{
    Api, ResourceExt as _,
    api::{ListParams, Patch, PatchParams},
    core::DynamicObject,
};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until, timeout};

use super::{RouteReport, XdsServer};
use crate::{
    api::{MeshRouteStatus, mesh_route::MeshRouteReplica},
    catalog::ServiceKey,
    controller::context::Context,
    routing::{PATIENCE, mesh_routes},
};

/// For what else changes within it.
const SETTLED_DELAY: Duration = Duration::from_millis(10);
const CHANGE_DELAY: Duration = Duration::from_millis(500);
/// After a write that failed.
const RETRY_DELAY: Duration = Duration::from_secs(2);
/// Between two looks for entries of replicas that are gone.
const SWEEP_INTERVAL: Duration = Duration::from_secs(5);
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);
/// Of the refusal in a status, in characters.
const MAX_REFUSAL: usize = 512;
/// Of the name of a field manager.
const MAX_MANAGER: usize = 128;

/// Writes until dropped.
pub async fn write(ctx: &Context, server: &XdsServer) {
    let mut writer = StatusWriter {
        ctx,
        server,
        started: Instant::now(),
        complete: BTreeMap::new(),
        due: BTreeMap::new(),
        gone_since: BTreeMap::new(),
    };
    let mut sweep = Instant::now() + SWEEP_INTERVAL;
    loop {
        let next = writer.due.values().min().copied();
        tokio::select! {
            // In this order, so that simulations replay.
            biased;
            () = async { match next { Some(due) => sleep_until(due).await, None => pending().await } } => {
                writer.write_due().await;
            }
            changed = server.reports.changed() => changed.into_iter().for_each(|service| writer.schedule(service)),
            () = sleep_until(sweep) => {
                writer.sweep().await;
                sweep = Instant::now() + SWEEP_INTERVAL;
            }
        }
    }
}

struct StatusWriter<'c> {
    ctx: &'c Context,
    server: &'c XdsServer,
    started: Instant,
    /// The generation that all proxies of a service acknowledged: those that leave then
    /// use it.
    complete: BTreeMap<ServiceKey, i64>,
    due: BTreeMap<ServiceKey, Instant>,
    /// Replicas of which entries remain and that are gone.
    gone_since: BTreeMap<String, Instant>,
}

impl StatusWriter<'_> {
    fn schedule(&mut self, service: ServiceKey) {
        let report = self.server.reports.report(&service);
        let settled = report.acknowledged >= report.proxies || !report.refusals.is_empty();
        let due = Instant::now() + if settled { SETTLED_DELAY } else { CHANGE_DELAY };
        let known = self.due.entry(service).or_insert(due);
        *known = due.min(*known);
    }

    async fn write_due(&mut self) {
        let now = Instant::now();
        let due: Vec<ServiceKey> =
            self.due.iter().filter(|(_, due)| **due <= now).map(|(service, _)| service.clone()).collect();
        for service in due {
            self.due.remove(&service);
            if let Err(error) = self.write_one(&service).await {
                tracing::warn!(%error, %service, "cannot report what the proxies made of a MeshRoute");
                self.due.insert(service, Instant::now() + RETRY_DELAY);
            }
        }
    }

    async fn write_one(&mut self, service: &ServiceKey) -> Result<(), WriteError> {
        let Some((namespace, name)) = self.server.objects.mesh_route(service) else { return Ok(()) };
        let Some(live) = self.ctx.caches.object(&mesh_routes(), &namespace, &name) else { return Ok(()) };
        let status = status_of(&live);
        let before = status.replicas.iter().find(|entry| entry.name == self.server.replica);
        let report = self.server.reports.report(service);
        let now = self.entry(service, before, report);
        let is_counted = || status.refused == refusals(&live, &status, &self.server.replica, now.as_ref());
        if now.as_ref() == before && (now.is_none() || is_counted()) {
            return Ok(());
        }
        self.apply(&live, &status, &self.server.replica, now).await
    }

    /// None without proxies.
    fn entry(
        &mut self,
        service: &ServiceKey,
        before: Option<&MeshRouteReplica>,
        report: RouteReport,
    ) -> Option<MeshRouteReplica> {
        let generation = report.generation?;
        if report.acknowledged >= report.proxies {
            self.complete.insert(service.clone(), generation);
        }
        let mut acknowledged = report.acknowledged;
        if self.complete.get(service) == Some(&generation) {
            acknowledged = report.proxies.min(acknowledged + report.gone);
        }
        let mut proxies = report.proxies;
        // The proxies of the process before this one are about to connect again.
        if let Some(before) = before.filter(|_| self.started.elapsed() < PATIENCE)
            && before.proxies > proxies
        {
            let was_complete = before.acknowledged >= before.proxies && before.generation == generation;
            if was_complete && report.refusals.is_empty() {
                return Some(before.clone());
            }
            proxies = before.proxies;
        }
        (proxies > 0).then(|| MeshRouteReplica {
            name: self.server.replica.clone(),
            generation,
            proxies,
            acknowledged,
            refused: u32::try_from(report.refusals.len()).unwrap_or(u32::MAX),
            refusal: report.refusals.first().map(|refusal| refusal.chars().take(MAX_REFUSAL).collect()),
        })
    }

    /// Entries of this replica that are out of date, and those of replicas that are gone.
    async fn sweep(&mut self) {
        self.complete.retain(|service, _| self.server.objects.mesh_route(service).is_some());
        let mut others: BTreeSet<String> = BTreeSet::new();
        let mut stale = Vec::new();
        for route in self.ctx.caches.list_all(&mesh_routes()) {
            for entry in status_of(&route).replicas {
                if entry.name != self.server.replica {
                    // At rest nobody has to be read: entries that agree hold nothing up.
                    let is_current = Some(entry.generation) == route.metadata.generation;
                    if !is_current || entry.acknowledged < entry.proxies {
                        stale.push((route.clone(), entry.name.clone()));
                        others.insert(entry.name);
                    }
                } else if let Some(service) = self
                    .server
                    .objects
                    .routed_service(&route.namespace().unwrap_or_default(), &route.name_any())
                {
                    self.schedule(service);
                } else {
                    stale.push((route.clone(), entry.name));
                }
            }
        }
        if others.is_empty() {
            self.gone_since.clear();
        } else {
            match self.gone(others).await {
                Ok(gone) => {
                    let now = Instant::now();
                    self.gone_since.retain(|replica, _| gone.contains(replica));
                    gone.into_iter().for_each(|replica| _ = self.gone_since.entry(replica).or_insert(now));
                }
                Err(error) => tracing::warn!(%error, "cannot read which replicas run"),
            }
        }
        for (route, replica) in stale {
            if replica != self.server.replica && !self.is_expired(&route, &replica) {
                continue;
            }
            if let Err(error) = self.apply(&route, &status_of(&route), &replica, None).await {
                tracing::warn!(%error, replica, "cannot remove what a replica that is gone reported");
            }
        }
    }

    /// Its proxies have connected to another replica, or had the time to.
    fn is_expired(&self, route: &DynamicObject, replica: &str) -> bool {
        let Some(since) = self.gone_since.get(replica) else { return false };
        let replicas = status_of(route).replicas;
        let proxies =
            |name: &str| replicas.iter().find(|entry| entry.name == name).map_or(0, |entry| entry.proxies);
        let have_moved = !self.server.replicated && proxies(&self.server.replica) >= proxies(replica);
        have_moved || since.elapsed() >= PATIENCE
    }

    /// Those of these replicas that do not run.
    async fn gone(&self, mut replicas: BTreeSet<String>) -> Result<BTreeSet<String>, WriteError> {
        if !self.server.replicated {
            return Ok(replicas);
        }
        let leases: Api<Lease> =
            Api::namespaced(self.ctx.client.clone(), &self.ctx.options.controller_namespace);
        let members = ListParams::default().labels("serin.dev/shards,!serin.dev/shard");
        let listed =
            timeout(WRITE_TIMEOUT, leases.list(&members)).await.map_err(|_| WriteError::Timeout)??;
        // A member is named after its replica and its process.
        let runs = |replica: &String| {
            listed.items.iter().any(|lease| {
                lease.name_any().strip_prefix(replica.as_str()).is_some_and(|rest| rest.starts_with('-'))
            })
        };
        replicas.retain(|replica| !runs(replica));
        Ok(replicas)
    }

    /// Writes the entry of a replica, or removes it.
    async fn apply(
        &self,
        route: &DynamicObject,
        status: &MeshRouteStatus,
        replica: &str,
        entry: Option<MeshRouteReplica>,
    ) -> Result<(), WriteError> {
        let namespace = route.namespace().unwrap_or_default();
        let refused = refusals(route, status, replica, entry.as_ref());
        let kind = mesh_routes();
        let written: Value = match entry {
            Some(entry) => json!({"refused": refused, "replicas": [entry]}),
            None => json!({}),
        };
        let body = json!({
            "apiVersion": kind.api_version,
            "kind": kind.kind,
            // A deleted route is not made again.
            "metadata": {"name": route.name_any(), "namespace": namespace, "uid": route.uid()},
            "status": written,
        });
        let manager: String = format!("serin-xds-{replica}").chars().take(MAX_MANAGER).collect();
        let params = PatchParams::apply(&manager).force();
        let routes: Api<DynamicObject> = Api::namespaced_with(self.ctx.client.clone(), &namespace, &kind);
        let patch = Patch::Apply(body);
        let name = route.name_any();
        match timeout(WRITE_TIMEOUT, routes.patch_status(&name, &params, &patch)).await {
            Err(_) => Err(WriteError::Timeout),
            // Deleted, or replaced by another one.
            Ok(Err(kube::Error::Api(status))) if matches!(status.code, 404 | 409) => Ok(()),
            Ok(written) => Ok(written.map(drop)?),
        }
    }
}

#[derive(Debug, thiserror::Error)]
enum WriteError {
    #[error("the API server did not answer in time")]
    Timeout,
    #[error(transparent)]
    Api(#[from] kube::Error),
}

/// Proxies that refuse the newest generation, with this entry of this replica.
fn refusals(
    route: &DynamicObject,
    status: &MeshRouteStatus,
    replica: &str,
    entry: Option<&MeshRouteReplica>,
) -> u32 {
    let others = status.replicas.iter().filter(|other| other.name != replica);
    let current = others.chain(entry).filter(|entry| Some(entry.generation) == route.metadata.generation);
    current.map(|entry| entry.refused).sum()
}

fn status_of(route: &DynamicObject) -> MeshRouteStatus {
    let status = route.data.get("status").cloned().unwrap_or_default();
    serde_json::from_value(status).unwrap_or_default()
}
