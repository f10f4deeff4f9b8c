//! Watches the objects of a cluster into a [`LiveInventory`], with the caller's own
//! rights, for a command that shows it as it changes.

use std::fmt::Debug;
use std::sync::Arc;

use futures::StreamExt as _;
use futures::future::join_all;
use kube::api::{Api, DynamicObject};
use kube::core::{ApiResource, PartialObjectMeta};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Client, Resource};
use parking_lot::Mutex;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::kubernetes::{Error, ServedResources, Unread, resource_name};
use super::live::{LiveInventory, Tap};
use super::model::{Detail, Kind, Object};
use crate::api_error::watch_error;

/// Kinds that cannot be watched, by their name; the notes of the inventory.
type Refusals = Arc<Mutex<Vec<Unread>>>;

/// Feeds the inventory until dropped. Kinds that the cluster serves later are not
/// watched.
pub async fn watch(client: &Client, live: &Arc<LiveInventory>) -> Result<(), Error> {
    let served = ServedResources::discover(client).await?;
    live.update(|inventory| {
        served.names().into_iter().for_each(|name| inventory.apply(Object::served(live.cluster(), name)));
    });
    let refusals = Refusals::default();
    let kinds = Kind::ALL.iter().copied().filter(|kind| *kind != Kind::ConfigMap);
    let watches = kinds.filter_map(|kind| {
        let resource = served.resource(kind)?;
        Some(watch_kind(client.clone(), resource.clone(), live.tap(kind, None), Arc::clone(&refusals)))
    });
    join_all(watches).await;
    Ok(())
}

async fn watch_kind(client: Client, resource: ApiResource, tap: Tap, refusals: Refusals) {
    match tap.kind().detail() {
        Detail::Whole => {
            feed::<DynamicObject>(Api::all_with(client, &resource), tap, refusals).await;
        }
        Detail::Metadata => {
            feed::<PartialObjectMeta<DynamicObject>>(Api::all_with(client, &resource), tap, refusals).await;
        }
    }
}

async fn feed<K>(api: Api<K>, mut tap: Tap, refusals: Refusals)
where
    K: Resource + Clone + Debug + Send + Serialize + DeserializeOwned + 'static,
{
    let mut events = std::pin::pin!(watcher(api, watcher::Config::default()).default_backoff());
    let manifest = |object: K| serde_json::to_value(object).unwrap_or(Value::Null);
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Init) => tap.list_started(),
            Ok(Event::InitApply(object)) => tap.listed(&manifest(object)),
            Ok(Event::InitDone) => {
                tap.list_completed();
                let name = resource_name(tap.kind());
                refusals.lock().retain(|refused| refused.resource != name);
                tap.live().set_unread(refusals.lock().clone());
            }
            Ok(Event::Apply(object)) => tap.applied(&manifest(object)),
            Ok(Event::Delete(object)) => tap.deleted(&manifest(object)),
            Err(error) => {
                let (why, _) = watch_error(&error);
                let unread = Unread { resource: resource_name(tap.kind()), namespace: None, why };
                let mut refusals = refusals.lock();
                refusals.retain(|refused| refused.resource != unread.resource);
                refusals.push(unread);
                refusals.sort_by(|a, b| a.resource.cmp(&b.resource));
                tap.live().set_unread(refusals.clone());
            }
        }
    }
}
