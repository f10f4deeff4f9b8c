//! Subscribers of answers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{
    Catalog, Endpoints, Identity, Mailbox, MailboxSender, NotVisible, ServiceKey, index::Index, mailbox,
};

pub type Answer = Result<Endpoints, NotVisible>;

/// The answers for the services of one subscriber. Dropping it ends the subscription.
pub struct Subscription {
    pub(super) catalog: Arc<Catalog>,
    pub(super) id: u64,
    pub(super) arrived: Mailbox<()>,
}

#[derive(Default)]
pub(super) struct Subscribers {
    by_id: BTreeMap<u64, Subscriber>,
    by_service: BTreeMap<ServiceKey, BTreeSet<u64>>,
    last_id: u64,
}

struct Subscriber {
    identity: Identity,
    /// Version of the answer that was delivered; `Some(None)` is a refusal.
    delivered: BTreeMap<ServiceKey, Option<Option<u64>>>,
    pending: BTreeSet<ServiceKey>,
    arrived: MailboxSender<()>,
}

pub(super) fn answer(index: &Index, identity: &Identity, service: &ServiceKey) -> Answer {
    if index.may_reach(identity, service) {
        Ok(index.endpoints(service))
    } else {
        Err(NotVisible { identity: identity.clone(), service: service.clone() })
    }
}

fn version(answer: &Answer) -> Option<u64> {
    answer.as_ref().ok().map(|endpoints| endpoints.version)
}

impl Subscription {
    /// The answers that changed since the last call; waits for one. The first call
    /// returns all of them.
    pub async fn changed(&mut self) -> Vec<(ServiceKey, Answer)> {
        loop {
            let answers = self.try_changed();
            if !answers.is_empty() {
                return answers;
            }
            self.arrived.changed().await;
        }
    }

    /// Empty if none did.
    pub fn try_changed(&mut self) -> Vec<(ServiceKey, Answer)> {
        let mut state = self.catalog.state.lock();
        let super::State { index, subscribers, .. } = &mut *state;
        let Some(subscriber) = subscribers.by_id.get_mut(&self.id) else { return Vec::new() };
        let pending = std::mem::take(&mut subscriber.pending);
        let answers = pending.into_iter().map(|service| {
            let answer = answer(index, &subscriber.identity, &service);
            subscriber.delivered.insert(service.clone(), Some(version(&answer)));
            (service, answer)
        });
        answers.collect()
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.catalog.state.lock().subscribers.remove(self.id);
    }
}

impl Subscribers {
    pub fn add(&mut self, identity: Identity, services: BTreeSet<ServiceKey>) -> (u64, Mailbox<()>) {
        self.last_id += 1;
        let (sender, arrived) = mailbox();
        for service in &services {
            self.by_service.entry(service.clone()).or_default().insert(self.last_id);
        }
        let delivered = services.iter().map(|service| (service.clone(), None)).collect();
        let subscriber = Subscriber { identity, delivered, pending: services, arrived: sender };
        self.by_id.insert(self.last_id, subscriber);
        (self.last_id, arrived)
    }

    /// That anybody subscribes to.
    pub fn services(&self) -> impl Iterator<Item = &ServiceKey> {
        self.by_service.keys()
    }

    /// An answer that is again as it was delivered is not pending.
    pub fn notify<'a>(&mut self, index: &Index, services: impl Iterator<Item = &'a ServiceKey>) {
        for service in services {
            for id in self.by_service.get(service).into_iter().flatten() {
                let Some(subscriber) = self.by_id.get_mut(id) else { continue };
                let version = Some(version(&answer(index, &subscriber.identity, service)));
                if subscriber.delivered.get(service) == Some(&version) {
                    subscriber.pending.remove(service);
                } else {
                    subscriber.pending.insert(service.clone());
                    subscriber.arrived.send(|()| ());
                }
            }
        }
    }

    fn remove(&mut self, id: u64) {
        let Some(subscriber) = self.by_id.remove(&id) else { return };
        for service in subscriber.delivered.keys() {
            if let Some(ids) = self.by_service.get_mut(service) {
                ids.remove(&id);
                if ids.is_empty() {
                    self.by_service.remove(service);
                }
            }
        }
    }
}
