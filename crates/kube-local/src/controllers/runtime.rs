//! The runtime of every controller: watches, triggers, work queue and retries.
//!
//! A controller reads the objects it is about to change from the server, not from
//! a cache, so that a late watch causes no duplicates. Caches only decide *when*
//! to reconcile. An idle cluster costs its open watches and no requests.

use std::fmt::Debug;
use std::future::ready;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, BoxStream, SelectAll};
use futures::{Stream, StreamExt};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta, OwnerReference, Time};
use kube::core::Selector;
use kube::runtime::WatchStreamExt;
use kube::runtime::reflector::{self, ObjectRef, Store};
use kube::runtime::utils::Backoff;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep_until};

use super::Options;
use super::events::EventRecorder;
use work_queue::WorkQueue;

/// Passed to every reconcile.
pub struct Context {
    pub client: Client,
    pub options: Options,
    pub events: EventRecorder,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("could not {attempt}: {source}")]
    Api { attempt: &'static str, source: kube::Error },
    #[error("invalid selector: {0}")]
    Selector(#[from] kube::core::ParseExpressionError),
}

impl Context {
    /// `component` is the source of its Events.
    pub fn new(client: Client, options: Options, component: &'static str) -> Arc<Context> {
        let events = EventRecorder::new(client.clone(), options.clock, component);
        Arc::new(Context { client, options, events })
    }

    pub fn now(&self) -> Time {
        Time(self.options.clock.now())
    }
}

/// Adds the purpose of a request to its error.
pub trait Attempt<T> {
    fn trying_to(self, attempt: &'static str) -> Result<T, Error>;
}

impl<T> Attempt<T> for kube::Result<T> {
    fn trying_to(self, attempt: &'static str) -> Result<T, Error> {
        self.map_err(|source| Error::Api { attempt, source })
    }
}

/// Maps 404 to `None`, as after a concurrent delete.
pub fn ignore_not_found<T>(result: kube::Result<T>) -> kube::Result<Option<T>> {
    match result {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
        other => other.map(Some),
    }
}

pub fn is_conflict(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 409)
}

/// 10 ms, doubling, at most 10 s. Without jitter, so that simulations replay.
pub fn backoff(attempt: u32) -> Duration {
    Duration::from_millis(10u64.saturating_mul(1 << attempt.saturating_sub(1).min(10)))
        .min(Duration::from_secs(10))
}

#[derive(Default)]
struct WatchBackoff(u32);

impl Iterator for WatchBackoff {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        self.0 = self.0.saturating_add(1);
        Some(backoff(self.0))
    }
}

impl Backoff for WatchBackoff {
    fn reset(&mut self) {
        self.0 = 0;
    }
}

/// A watch that retries forever: errors are logged and not passed on.
pub fn watch<K>(api: Api<K>) -> impl Stream<Item = Event<K>> + Send
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let url = api.resource_url().to_owned();
    watcher(api, watcher::Config::default()).backoff(WatchBackoff::default()).filter_map(move |event| {
        let event = event.inspect_err(|error| tracing::debug!(url, %error, "watch failed; retrying")).ok();
        ready(event)
    })
}

/// A watch with a store of the objects seen.
pub fn watch_with_store<K>(api: Api<K>) -> (Store<K>, impl Stream<Item = Event<K>> + Send)
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
{
    let (reader, mut writer) = reflector::store();
    (reader, watch(api).inspect(move |event| writer.apply_watcher_event(event)))
}

/// The store of the reconciled objects, and the streams that trigger them.
pub struct Controller<K: Resource<DynamicType = ()> + 'static> {
    store: Store<K>,
    triggers: SelectAll<BoxStream<'static, ObjectRef<K>>>,
}

/// A controller triggered by every change of its objects, including its own
/// status writes: these reveal a write based on a stale cache.
pub fn controller<K>(api: Api<K>) -> Controller<K>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
{
    let (store, changes) = watch_with_store(api);
    let own = trigger_with(changes, store.clone(), |object: &K, _| [ObjectRef::from_obj(object)]);
    Controller { store, triggers: SelectAll::new() }.reconcile_on(own)
}

impl<K: Resource<DynamicType = ()> + Clone + Send + Sync + 'static> Controller<K> {
    pub fn store(&self) -> Store<K> {
        self.store.clone()
    }

    pub fn reconcile_on(
        mut self,
        triggers: impl Stream<Item = ObjectRef<K>> + Send + 'static,
    ) -> Controller<K> {
        self.triggers.push(triggers.boxed());
        self
    }
}

/// Triggers the objects that a change of another object concerns.
///
/// A relist does not show which objects were deleted meanwhile, so it triggers
/// all.
pub fn trigger_with<K, C, I>(
    changes: impl Stream<Item = Event<C>> + Send + 'static,
    objects: Store<K>,
    concerned: impl Fn(&C, &Store<K>) -> I + Send + 'static,
) -> impl Stream<Item = ObjectRef<K>> + Send + 'static
where
    K: Resource<DynamicType = ()> + Clone + Send + Sync + 'static,
    C: Send + 'static,
    I: IntoIterator<Item = ObjectRef<K>>,
{
    changes.flat_map(move |event| {
        let triggered: Vec<_> = match event {
            Event::Apply(changed) | Event::Delete(changed) => {
                concerned(&changed, &objects).into_iter().collect()
            }
            Event::InitDone => sorted_refs(objects.state()),
            Event::Init | Event::InitApply(_) => Vec::new(),
        };
        stream::iter(triggered)
    })
}

/// The objects that a change of a child concerns: its controller or, without one,
/// the objects that select it and may adopt it.
pub fn owner_or_selecting<K, C>(
    child: &C,
    objects: &Store<K>,
    selects: impl Fn(&K, &ObjectMeta) -> bool,
) -> Vec<ObjectRef<K>>
where
    K: Resource<DynamicType = ()> + Clone,
    C: Resource,
{
    let meta = child.meta();
    match controller_of(meta) {
        Some(owner) => ObjectRef::from_owner_ref(meta.namespace.as_deref(), owner, ()).into_iter().collect(),
        None => sorted_refs(
            objects.state_filter(|object| object.meta().namespace == meta.namespace && selects(object, meta)),
        ),
    }
}

/// Sorted, since a store has no order and simulations replay.
fn sorted_refs<K: Resource<DynamicType = ()>>(objects: Vec<Arc<K>>) -> Vec<ObjectRef<K>> {
    let mut names: Vec<_> = objects.iter().map(|object| ObjectRef::from_obj(&**object)).collect();
    names.sort_by_cached_key(ToString::to_string);
    names
}

/// The delay after which to reconcile again without a change.
pub type RequeueResult = Result<Option<Duration>, Error>;

/// Runs until dropped. Reconciles one object at a time, in the order of their
/// triggers: a set that shrinks does so before another grows in its place, and
/// simulations replay. Failed objects are requeued with backoff. kube's own
/// runner keeps no order.
pub async fn run<K, Work>(
    controller: Controller<K>,
    context: Arc<Context>,
    reconcile: impl Fn(Arc<K>, Arc<Context>) -> Work,
) where
    K: Resource<DynamicType = ()> + Clone + Send + Sync + 'static,
    Work: Future<Output = RequeueResult> + Send + 'static,
{
    let Controller { store, mut triggers } = controller;
    let mut work_queue = WorkQueue::<(Option<String>, String)>::default();
    // Before the first list the store is incomplete.
    let (mut listed, mut is_listed) = (pin!(store.wait_until_ready()), false);
    loop {
        let next_due = work_queue.next_due();
        tokio::select! {
            biased;
            Some(ObjectRef { namespace, name, .. }) = triggers.next() => work_queue.enqueue((namespace, name)),
            _ = &mut listed, if !is_listed => is_listed = true,
            () = sleep_until(next_due.unwrap_or_else(Instant::now)), if next_due.is_some() => {
                work_queue.enqueue_due(Instant::now());
            }
            () = ready(()), if is_listed && work_queue.queued() > 0 => {
                let Some(name) = work_queue.start_next() else { continue };
                let mut object = ObjectRef::new(&name.1);
                object.namespace.clone_from(&name.0);
                let outcome = match store.get(&object) {
                    Some(object) => reconcile(object, context.clone()).await,
                    None => Ok(None),
                };
                match outcome {
                    Ok(again) => work_queue.done(name, again.map(|after| Instant::now() + after)),
                    Err(error) => {
                        tracing::debug!(%object, %error, "reconcile failed; retrying");
                        work_queue.requeue_failed(name, Instant::now(), backoff);
                    }
                }
            }
            else => return,
        }
    }
}

pub fn controller_of(meta: &ObjectMeta) -> Option<&OwnerReference> {
    meta.owner_references.iter().flatten().find(|owner| owner.controller == Some(true))
}

pub fn is_controlled_by(meta: &ObjectMeta, uid: Option<&str>) -> bool {
    controller_of(meta).is_some_and(|owner| Some(owner.uid.as_str()) == uid)
}

/// The owner reference that makes `owner` the controller of an object.
pub fn controller_reference<K: Resource<DynamicType = ()>>(owner: &K) -> OwnerReference {
    OwnerReference {
        api_version: K::api_version(&()).into_owned(),
        kind: K::kind(&()).into_owned(),
        name: owner.meta().name.clone().unwrap_or_default(),
        uid: owner.meta().uid.clone().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

/// Parses a workload's selector; the API refuses empty ones.
pub fn selector_of(selector: &LabelSelector) -> Result<Selector, Error> {
    Ok(Selector::try_from(selector.clone())?)
}
