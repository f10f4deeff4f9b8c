//! Another Kubernetes cluster: one watch for each kind that it serves.
//!
//! Nothing is polled. Kinds that appear or go are noticed by a watch of the definitions,
//! where the kubeconfig's user may have one. ConfigMaps are not watched, so the trust
//! domain of a mesh in another cluster is not known.

use std::collections::BTreeMap;
use std::pin::pin;
use std::time::Duration;

use futures::{Stream, StreamExt as _};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::{ApiResource, DynamicObject, PartialObjectMeta};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, Config};
use serde::Serialize;
use tokio::time::{sleep, timeout};
use tokio_util::task::AbortOnDropHandle;

use super::Reporter;
use crate::api_error::watch_error;
use crate::discovery::kubernetes::{ServedResources, resource_name};
use crate::discovery::model::{Detail, Kind, Object};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Of asking for the kinds that the cluster serves.
const SERVED_TIMEOUT: Duration = Duration::from_secs(30);

const RETRY_DELAY: Duration = Duration::from_secs(30);

/// A definition is served some moments after it is created.
const DEFINITION_DELAY: Duration = Duration::from_secs(2);

/// The scope of the resources that the cluster serves.
const SERVED: &str = "served resources";

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the kubeconfig names no cluster, user or context that can be used: {0}")]
    Kubeconfig(#[from] kube::config::KubeconfigError),
    #[error("set up the client of the cluster: {0}")]
    Client(#[from] kube::Error),
    #[error("ask the API server which kinds it serves: {0}")]
    Served(String),
}

pub async fn client(kubeconfig: Kubeconfig, context: Option<String>) -> Result<Client, Error> {
    let options = KubeConfigOptions { context, ..KubeConfigOptions::default() };
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &options).await?;
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    Ok(Client::try_from(config)?)
}

/// By kind.
pub async fn kinds(client: &Client) -> Result<(Vec<String>, BTreeMap<Kind, ApiResource>), Error> {
    let answer = timeout(SERVED_TIMEOUT, ServedResources::discover(client)).await;
    let answer = answer.map_err(|_| Error::Served(format!("no answer within {SERVED_TIMEOUT:?}")))?;
    let served = answer.map_err(|error| Error::Served(error.to_string()))?;
    let found = |kind: &Kind| served.resource(*kind).map(|resource| (*kind, resource.clone()));
    let kinds = Kind::ALL.iter().filter(|kind| **kind != Kind::ConfigMap).filter_map(found).collect();
    Ok((served.names().into_iter().map(str::to_owned).collect(), kinds))
}

/// Runs until it is dropped. `cluster` is the cluster of all keys.
pub async fn follow(client: Client, cluster: String, reporter: Reporter) {
    let mut watches: BTreeMap<Kind, AbortOnDropHandle<()>> = BTreeMap::new();
    let definitions = Api::<PartialObjectMeta<CustomResourceDefinition>>::all(client.clone());
    let definitions = watcher(definitions, watcher::Config::default()).default_backoff();
    let mut definitions = pin!(definitions.filter_map(async |event| match event {
        Ok(Event::Apply(_) | Event::Delete(_) | Event::InitDone) => Some(()),
        _ => None,
    }));
    loop {
        let (names, kinds) = match kinds(&client).await {
            Ok(found) => found,
            Err(error) => {
                reporter.failed(SERVED, error.to_string()).await;
                sleep(RETRY_DELAY).await;
                continue;
            }
        };
        let objects = names.iter().map(|name| Object::served(&cluster, name)).collect();
        reporter.listed(SERVED, objects).await;
        let gone: Vec<Kind> = watches.keys().filter(|kind| !kinds.contains_key(kind)).copied().collect();
        for kind in gone {
            watches.remove(&kind);
            reporter.listed(&resource_name(kind), Vec::new()).await;
        }
        for (kind, resource) in kinds {
            watches.entry(kind).or_insert_with(|| {
                let watch = watch(client.clone(), cluster.clone(), (kind, resource), reporter.clone());
                AbortOnDropHandle::new(tokio::spawn(watch))
            });
        }
        if definitions.next().await.is_none() {
            std::future::pending::<()>().await;
        }
        sleep(DEFINITION_DELAY).await;
    }
}

async fn watch(client: Client, cluster: String, (kind, resource): (Kind, ApiResource), reporter: Reporter) {
    let config = watcher::Config::default();
    let parse = Parse { cluster, kind };
    match kind.detail() {
        Detail::Whole => {
            let api = Api::<DynamicObject>::all_with(client, &resource);
            report(watcher(api, config).default_backoff(), &parse, &reporter).await;
        }
        Detail::Metadata => {
            let api = Api::<PartialObjectMeta<DynamicObject>>::all_with(client, &resource);
            report(watcher(api, config).default_backoff(), &parse, &reporter).await;
        }
    }
}

struct Parse {
    cluster: String,
    kind: Kind,
}

impl Parse {
    fn object(&self, object: &impl Serialize) -> Option<Object> {
        Object::parse(&self.cluster, self.kind, &serde_json::to_value(object).ok()?)
    }
}

async fn report<K: Serialize>(
    events: impl Stream<Item = Result<Event<K>, watcher::Error>>,
    parse: &Parse,
    reporter: &Reporter,
) {
    let scope = resource_name(parse.kind);
    let (mut events, mut listed) = (pin!(events), Vec::new());
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Init) => listed.clear(),
            Ok(Event::InitApply(object)) => listed.extend(parse.object(&object)),
            Ok(Event::InitDone) => reporter.listed(&scope, std::mem::take(&mut listed)).await,
            Ok(Event::Apply(object)) => {
                if let Some(object) = parse.object(&object) {
                    reporter.applied(&scope, object).await;
                }
            }
            Ok(Event::Delete(object)) => {
                if let Some(object) = parse.object(&object) {
                    reporter.removed(&scope, object.key).await;
                }
            }
            Err(error) => reporter.failed(&scope, format!("watch {scope}: {}", watch_error(&error).0)).await,
        }
    }
}
