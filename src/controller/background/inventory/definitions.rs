//! Notices kinds that appear and go, by a metadata watch of their definitions.

use std::{collections::BTreeSet, pin::Pin, time::Duration};

use futures::{Stream, StreamExt as _};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api,
    core::PartialObjectMeta,
    runtime::{
        WatchStreamExt as _,
        watcher::{self, Event, watcher},
    },
};
use tokio::time::{Instant, sleep_until};

use crate::{
    controller::context::Context,
    discovery::kubernetes::{ServedResources, known_groups},
};

type Definition = PartialObjectMeta<CustomResourceDefinition>;

/// A definition is served some moments after it is created: discovery is repeated after
/// this time, which doubles each time, and no more than so often.
const MIN_DELAY: Duration = Duration::from_secs(1);
const MAX_DISCOVERIES: u32 = 6;

pub struct Definitions {
    events: Pin<Box<dyn Stream<Item = watcher::Result<Event<Definition>>> + Send>>,
    /// `plural.group` of definitions that exist, and of those that went.
    exist: BTreeSet<String>,
    gone: BTreeSet<String>,
    listed: BTreeSet<String>,
    discoveries: u32,
    due: Option<Instant>,
}

impl Definitions {
    /// A controller of some namespaces has no right to watch definitions.
    pub fn watch(ctx: &Context) -> Self {
        let api: Api<Definition> = Api::all(ctx.client.clone());
        let events: Pin<Box<dyn Stream<Item = _> + Send>> = match ctx.options.namespaces.is_empty() {
            true => Box::pin(watcher(api, watcher::Config::default()).default_backoff()),
            false => Box::pin(futures::stream::pending()),
        };
        Self {
            events,
            exist: BTreeSet::new(),
            gone: BTreeSet::new(),
            listed: BTreeSet::new(),
            discoveries: 0,
            due: None,
        }
    }

    /// Completes when the served kinds may be others than these. May be dropped and
    /// called again at any time.
    pub async fn stale(&mut self, served: &ServedResources) {
        loop {
            let due = self.due;
            tokio::select! {
                // In this order, so that simulations replay.
                biased;
                Some(event) = self.events.next() => self.apply(event, served),
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                    self.discoveries += 1;
                    self.schedule(served);
                    return;
                }
            }
        }
    }

    fn apply(&mut self, event: watcher::Result<Event<Definition>>, served: &ServedResources) {
        let name = |definition: &Definition| definition.metadata.name.clone().unwrap_or_default();
        match event {
            Err(error) => return tracing::debug!(%error, "the watch of definitions broke; it starts again"),
            Ok(Event::Init) => return self.listed.clear(),
            Ok(Event::InitApply(definition)) => {
                self.listed.insert(name(&definition));
                return;
            }
            Ok(Event::InitDone) => {
                let listed = std::mem::take(&mut self.listed);
                self.gone.extend(self.exist.difference(&listed).cloned());
                self.exist = listed;
            }
            Ok(Event::Apply(definition)) => {
                self.gone.remove(&name(&definition));
                self.exist.insert(name(&definition));
            }
            Ok(Event::Delete(definition)) => {
                self.exist.remove(&name(&definition));
                self.gone.insert(name(&definition));
            }
        }
        self.discoveries = 0;
        self.schedule(served);
    }

    /// Again, while what is served differs from the definitions that exist.
    fn schedule(&mut self, served: &ServedResources) {
        let (names, groups) = (served.names(), known_groups());
        let is_known = |name: &&String| name.split_once('.').is_some_and(|(_, group)| groups.contains(group));
        let differs = self.exist.iter().filter(is_known).any(|name| !names.contains(name.as_str()))
            || self.gone.iter().any(|name| names.contains(name.as_str()));
        self.due = (differs && self.discoveries < MAX_DISCOVERIES)
            .then(|| Instant::now() + MIN_DELAY * 2_u32.pow(self.discoveries));
    }
}
