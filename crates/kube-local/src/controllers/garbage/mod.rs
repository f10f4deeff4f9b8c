//! Garbage collection: deletes dependents of deleted owners, in the background
//! after the owner or in the foreground before it, or orphans them.
//!
//! Watches the metadata of every kind, with custom kinds as they come and go. An
//! owner that no watch has shown is looked up by name and uid before anything is
//! deleted.

mod graph;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use futures::StreamExt;
use futures::channel::mpsc;
use futures::stream::{AbortHandle, BoxStream, FuturesUnordered, SelectAll, abortable};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::runtime::reflector::Store;
use kube::runtime::scheduler::{ScheduleRequest, scheduler};
use kube::runtime::watcher::Event;
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use tokio::time::Instant;

use super::kinds::{self, Meta, ResourceKind};
use super::runtime::{Attempt, Context, Error, backoff, ignore_not_found, watch, watch_with_store};
use graph::{FOREGROUND, GcAction, Graph, Item, ORPHAN, Propagation, Uid};

pub async fn run(context: Arc<Context>) {
    let (definitions, changes) =
        watch_with_store(Api::<CustomResourceDefinition>::all(context.client.clone()));
    let mut changes = std::pin::pin!(changes);
    let (queue, due) = mpsc::unbounded();
    let mut due = std::pin::pin!(scheduler(due));
    let mut collector = Collector {
        client: context.client.clone(),
        graph: Graph::default(),
        watched: BTreeMap::new(),
        custom: BTreeSet::new(),
        unlisted: HashSet::new(),
        events: SelectAll::new(),
        deferred: BTreeSet::new(),
        in_flight: HashSet::new(),
        attempts: HashMap::new(),
        queue,
    };
    // Events have neither owners nor dependents, and there are many.
    let kinds = kinds::discover(&context.client).await;
    for kind in kinds.into_iter().filter(|kind| kind.resource.kind != "Event") {
        collector.unlisted.insert(kind.key());
        collector.watch(kind);
    }
    let mut jobs = FuturesUnordered::new();
    loop {
        tokio::select! {
            // In this order, so that simulations replay.
            biased;
            Some(event) = changes.next() => {
                if !matches!(event, Event::Init | Event::InitApply(_)) {
                    collector.sync_custom_kinds(&definitions);
                }
            }
            Some((kind, event)) = collector.events.next() => collector.handle_event(&kind, event),
            Some(uid) = due.next() => {
                if !collector.in_flight.contains(&uid) {
                    jobs.extend(collector.start_job(uid, &HashSet::new(), &HashSet::new()).map(Job::run));
                }
            }
            Some(done) = jobs.next() => jobs.extend(collector.finish(done).map(Job::run)),
            else => return,
        }
    }
}

struct Collector {
    client: Client,
    graph: Graph,
    watched: BTreeMap<String, (ResourceKind, AbortHandle)>,
    /// Watched kinds that come from CustomResourceDefinitions.
    custom: BTreeSet<String>,
    /// Kinds present at the start whose first list is pending. Until all are
    /// listed, dependents may be unknown and nothing is deleted.
    unlisted: HashSet<String>,
    events: SelectAll<BoxStream<'static, (String, Event<Meta>)>>,
    deferred: BTreeSet<Uid>,
    in_flight: HashSet<Uid>,
    attempts: HashMap<Uid, u32>,
    queue: mpsc::UnboundedSender<ScheduleRequest<Uid>>,
}

impl Collector {
    fn watch(&mut self, kind: ResourceKind) {
        let key = kind.key();
        let of = key.clone();
        let events = watch(kind.cluster_api(&self.client)).map(move |event| (of.clone(), event));
        let (events, stop) = abortable(events);
        self.events.push(events.boxed());
        self.watched.insert(key, (kind, stop));
    }

    /// Watches the served custom kinds, and stops the watches of others.
    fn sync_custom_kinds(&mut self, definitions: &Store<CustomResourceDefinition>) {
        let served: BTreeMap<String, ResourceKind> = definitions
            .state()
            .iter()
            .filter_map(|definition| kinds::kind_of_definition(definition))
            .map(|kind| (kind.key(), kind))
            .collect();
        for gone in self.custom.iter().filter(|key| !served.contains_key(*key)).cloned().collect::<Vec<_>>() {
            self.custom.remove(&gone);
            self.unlisted.remove(&gone);
            if let Some((_, stop)) = self.watched.remove(&gone) {
                stop.abort();
            }
            let concerned = self.graph.remove_kind(&gone);
            self.enqueue(concerned);
        }
        for (key, kind) in served {
            if !self.watched.contains_key(&key) {
                self.watch(kind);
            }
            self.custom.insert(key);
        }
    }

    fn handle_event(&mut self, kind: &str, event: Event<Meta>) {
        // Left over from an aborted watch.
        if !self.watched.contains_key(kind) {
            return;
        }
        let concerned = match event {
            Event::Init => {
                self.graph.begin_listing(kind);
                Vec::new()
            }
            Event::InitApply(object) | Event::Apply(object) => {
                Item::new(kind, object.metadata).map(|item| self.graph.apply(item)).unwrap_or_default()
            }
            Event::Delete(object) => object.uid().map(|uid| self.graph.remove(&uid)).unwrap_or_default(),
            Event::InitDone => {
                self.unlisted.remove(kind);
                self.graph.end_listing(kind)
            }
        };
        self.enqueue(concerned);
        if self.unlisted.is_empty() {
            let deferred = std::mem::take(&mut self.deferred);
            self.enqueue(deferred);
        }
    }

    fn enqueue(&mut self, uids: impl IntoIterator<Item = Uid>) {
        for uid in uids {
            if !self.unlisted.is_empty() || self.in_flight.contains(&uid) {
                self.deferred.insert(uid);
                continue;
            }
            if self.graph.next_action(&uid, &HashSet::new(), &HashSet::new()) != GcAction::Keep {
                self.schedule(uid, Instant::now());
            }
        }
    }

    fn schedule(&self, message: Uid, run_at: Instant) {
        // Fails only if the receiver, in the same function, is gone.
        let _ = self.queue.unbounded_send(ScheduleRequest { message, run_at });
    }

    /// The job for an object; `present` and `absent` are owners verified on the server.
    fn start_job(&mut self, uid: Uid, present: &HashSet<Uid>, absent: &HashSet<Uid>) -> Option<Job> {
        let Some(item) = self.graph.get(&uid).cloned() else {
            self.attempts.remove(&uid);
            return None;
        };
        let task = match self.graph.next_action(&uid, present, absent) {
            GcAction::Keep => return None,
            GcAction::WaitForDependents(dependents) => {
                let has_action = |uid: &Uid| {
                    !matches!(
                        self.graph.next_action(uid, present, absent),
                        GcAction::Keep | GcAction::WaitForDependents(_)
                    )
                };
                for dependent in dependents.into_iter().filter(has_action) {
                    self.schedule(dependent, Instant::now());
                }
                return None;
            }
            // An owner whose kind is not served cannot be verified: keep the object.
            GcAction::VerifyOwners(owners) => Task::VerifyOwners(
                owners
                    .into_iter()
                    .map(|owner| Some((self.kind_of(&owner)?, owner)))
                    .collect::<Option<_>>()?,
            ),
            GcAction::Delete(propagation) => Task::Delete(propagation),
            GcAction::KeepOwners(owners) => Task::KeepOwners(owners),
            GcAction::OrphanDependents(items) => {
                let kind = |item: Item| Some((self.watched.get(&item.kind)?.0.clone(), item));
                Task::OrphanDependents(items.into_iter().filter_map(kind).collect())
            }
            GcAction::RemoveFinalizer => Task::RemoveFinalizer,
        };
        let kind = self.watched.get(&item.kind)?.0.clone();
        self.in_flight.insert(uid);
        Some(Job { client: self.client.clone(), kind, item, task })
    }

    fn kind_of(&self, owner: &OwnerReference) -> Option<ResourceKind> {
        let group = owner.api_version.rsplit_once('/').map_or("", |(group, _)| group);
        let mut kinds = self.watched.values().map(|(kind, _)| kind);
        kinds.find(|kind| kind.resource.group == group && kind.resource.kind == owner.kind).cloned()
    }

    fn finish(&mut self, (uid, outcome): (Uid, Result<JobResult, Error>)) -> Option<Job> {
        self.in_flight.remove(&uid);
        match outcome {
            Ok(outcome) => {
                self.attempts.remove(&uid);
                if let JobResult::OwnersVerified { present, absent } = outcome
                    && let Some(job) = self.start_job(uid.clone(), &present, &absent)
                {
                    return Some(job);
                }
                if self.deferred.remove(&uid) {
                    self.enqueue([uid]);
                }
            }
            Err(error) => {
                tracing::debug!(%error, "garbage collection failed; retrying");
                let attempt = self.attempts.entry(uid.clone()).or_insert(0);
                *attempt = attempt.saturating_add(1);
                let at = Instant::now() + backoff(*attempt);
                self.deferred.remove(&uid);
                self.schedule(uid, at);
            }
        }
        None
    }
}

/// Requests about one object; needs no graph.
struct Job {
    client: Client,
    kind: ResourceKind,
    item: Item,
    task: Task,
}

enum Task {
    VerifyOwners(Vec<(ResourceKind, OwnerReference)>),
    Delete(Propagation),
    KeepOwners(Vec<OwnerReference>),
    OrphanDependents(Vec<(ResourceKind, Item)>),
    RemoveFinalizer,
}

enum JobResult {
    OwnersVerified { present: HashSet<Uid>, absent: HashSet<Uid> },
    Done,
}

impl Job {
    async fn run(self) -> (Uid, Result<JobResult, Error>) {
        (self.item.uid.clone(), self.perform().await)
    }

    async fn perform(&self) -> Result<JobResult, Error> {
        let api = self.kind.namespaced_api(&self.client, self.item.namespace.as_deref());
        match &self.task {
            Task::VerifyOwners(owners) => return self.verify_owners(owners).await,
            Task::Delete(propagation) => {
                let params = match propagation {
                    Propagation::Background => DeleteParams::background(),
                    Propagation::Foreground => DeleteParams::foreground(),
                    Propagation::Orphan => DeleteParams::orphan(),
                };
                let this_one = Preconditions {
                    uid: Some(self.item.uid.clone()),
                    resource_version: self.item.version.clone(),
                };
                let deleted = api.delete(&self.item.name, &params.preconditions(this_one)).await;
                ignore_not_found(deleted).trying_to("delete an object without owners")?;
            }
            Task::KeepOwners(owners) => set_owners(&api, &self.item, owners).await?,
            Task::OrphanDependents(dependents) => {
                for (kind, dependent) in dependents {
                    let others: Vec<_> =
                        dependent.owners.iter().filter(|owner| owner.uid != self.item.uid).cloned().collect();
                    set_owners(
                        &kind.namespaced_api(&self.client, dependent.namespace.as_deref()),
                        dependent,
                        &others,
                    )
                    .await?;
                }
                self.drop_finalizer(&api, ORPHAN).await?;
            }
            Task::RemoveFinalizer => self.drop_finalizer(&api, FOREGROUND).await?,
        }
        Ok(JobResult::Done)
    }

    async fn verify_owners(&self, owners: &[(ResourceKind, OwnerReference)]) -> Result<JobResult, Error> {
        let (mut present, mut absent) = (HashSet::new(), HashSet::new());
        for (kind, owner) in owners {
            let api = kind.namespaced_api(&self.client, self.item.namespace.as_deref());
            let found = api.get_opt(&owner.name).await.trying_to("verify an owner")?;
            let exists = found.is_some_and(|found| found.uid().as_deref() == Some(owner.uid.as_str()));
            // The namespace of a namespaced owner of a cluster-scoped object is unknown,
            // so its absence cannot be verified.
            let is_unverifiable = kind.namespaced && self.item.namespace.is_none();
            let verified = if exists || is_unverifiable { &mut present } else { &mut absent };
            verified.insert(owner.uid.clone());
        }
        Ok(JobResult::OwnersVerified { present, absent })
    }

    async fn drop_finalizer(&self, api: &Api<Meta>, finalizer: &str) -> Result<(), Error> {
        let rest: Vec<_> = self.item.finalizers.iter().filter(|held| *held != finalizer).collect();
        let patch =
            json!({"metadata": {"resourceVersion": self.item.version, "finalizers": non_empty(&rest)}});
        let dropped = api.patch(&self.item.name, &PatchParams::default(), &Patch::Merge(&patch)).await;
        ignore_not_found(dropped).trying_to("remove a finalizer")?;
        Ok(())
    }
}

async fn set_owners(api: &Api<Meta>, item: &Item, owners: &[OwnerReference]) -> Result<(), Error> {
    let patch = json!({"metadata": {"uid": item.uid, "resourceVersion": item.version, "ownerReferences": non_empty(owners)}});
    let set = api.patch(&item.name, &PatchParams::default(), &Patch::Merge(&patch)).await;
    ignore_not_found(set).trying_to("correct an object's owners")?;
    Ok(())
}

/// The API omits empty lists.
fn non_empty<T>(list: &[T]) -> Option<&[T]> {
    (!list.is_empty()).then_some(list)
}
