//! Canaries whose provider the inventory chose or may refuse. One is reconciled when the
//! answer would be another, not when pods come and go.

use std::collections::{BTreeMap, BTreeSet};

use parking_lot::Mutex;

use crate::{
    api::{
        Canary,
        canary::{Provider, TargetKind},
    },
    controller::queue::trigger::{NamespacedName, RequestSender},
    discovery::{
        live::LiveInventory,
        model::{self, Choice, Inventory, Key, Kind, RouteHints},
    },
};

/// Resources without which a mesh cannot be recognised.
const ESSENTIAL: [&str; 4] = ["pods", "services", "deployments.apps", "daemonsets.apps"];

#[derive(Default)]
pub struct Followers(Mutex<Maps>);

#[derive(Default)]
struct Maps {
    by_canary: BTreeMap<NamespacedName, Follower>,
    by_workload: BTreeMap<Key, BTreeSet<NamespacedName>>,
}

struct Follower {
    question: Question,
    answer: Answer,
}

#[derive(Clone, PartialEq, Eq)]
enum Answer {
    Choice(Choice),
    /// Why `istio` is refused.
    IstioObstacle(Option<String>),
}

/// What a provider is chosen by.
#[derive(Clone, PartialEq, Eq)]
struct Question {
    names_istio: bool,
    target: Key,
    primary: Key,
    hints: RouteHints,
}

impl Question {
    fn new(cluster: &str, name: &NamespacedName, canary: &Canary) -> Self {
        let target = &canary.spec.target_ref;
        let kind = match target.kind {
            TargetKind::Deployment => Kind::Deployment,
            TargetKind::DaemonSet => Kind::DaemonSet,
            // Of an EndpointGroup it is not asked: its provider is xds.
            TargetKind::Service | TargetKind::EndpointGroup => Kind::Service,
        };
        let service = canary.spec.service.as_ref();
        Self {
            names_istio: false,
            target: Key::new(cluster, &name.namespace, kind, &target.name),
            primary: Key::new(cluster, &name.namespace, kind, &format!("{}-primary", target.name)),
            hints: RouteHints {
                gateway_refs: service.is_some_and(|service| !service.gateway_refs.is_empty()),
                istio_gateways: service
                    .is_some_and(|service| service.gateways.iter().any(|gateway| gateway != "mesh")),
            },
        }
    }

    fn ask(&self, live: &LiveInventory) -> Answer {
        if self.names_istio {
            let ask =
                |inventory: &Inventory| inventory.istio_obstacle(&self.target, &self.primary, self.hints);
            return Answer::IstioObstacle(live.read(ask));
        }
        Answer::Choice(self.choose(live))
    }

    fn choose(&self, live: &LiveInventory) -> Choice {
        let unread = live.unread();
        if let Some(unread) = unread.iter().find(|unread| ESSENTIAL.contains(&unread.resource.as_str())) {
            return Choice::Unknown(unread.why.clone());
        }
        live.read(|inventory| inventory.choose(&self.target, &self.primary, self.hints))
    }
}

impl Followers {
    /// Chooses the provider of a Canary that names none, and reconciles it when the
    /// choice becomes another.
    pub fn choose(&self, live: &LiveInventory, name: &NamespacedName, canary: &Canary) -> Choice {
        let question = Question::new(live.cluster(), name, canary);
        let choice = question.choose(live);
        self.follow(name, question, Answer::Choice(choice.clone()));
        choice
    }

    /// Why a Canary that names `istio` is refused; it is reconciled when that changes.
    pub fn istio_obstacle(
        &self,
        live: &LiveInventory,
        name: &NamespacedName,
        canary: &Canary,
    ) -> Option<String> {
        let question = Question { names_istio: true, ..Question::new(live.cluster(), name, canary) };
        let answer = question.ask(live);
        self.follow(name, question, answer.clone());
        match answer {
            Answer::IstioObstacle(why) => why,
            Answer::Choice(_) => None,
        }
    }

    fn follow(&self, name: &NamespacedName, question: Question, answer: Answer) {
        let mut maps = self.0.lock();
        match maps.by_canary.get_mut(name) {
            Some(known) if known.question == question => known.answer = answer,
            _ => {
                maps.remove(name);
                for key in [&question.target, &question.primary] {
                    maps.by_workload.entry(key.clone()).or_default().insert(name.clone());
                }
                maps.by_canary.insert(name.clone(), Follower { question, answer });
            }
        }
    }

    pub fn remove(&self, canary: &NamespacedName) {
        self.0.lock().remove(canary);
    }

    /// Requests a reconcile of each Canary for which a changed view changes the choice.
    pub fn notify(&self, live: &LiveInventory, changed: &BTreeSet<Key>, requests: &RequestSender) {
        let maps = self.0.lock();
        let concerned: BTreeSet<&NamespacedName> =
            changed.iter().filter_map(|key| maps.by_workload.get(key)).flatten().collect();
        for canary in concerned {
            let follower = maps.by_canary.get(canary);
            if follower.is_some_and(|follower| follower.question.ask(live) != follower.answer) {
                requests.request(canary.clone());
            }
        }
    }
}

impl Maps {
    fn remove(&mut self, canary: &NamespacedName) {
        let Some(follower) = self.by_canary.remove(canary) else { return };
        for key in [&follower.question.target, &follower.question.primary] {
            if let Some(followers) = self.by_workload.get_mut(key) {
                followers.remove(canary);
                if followers.is_empty() {
                    self.by_workload.remove(key);
                }
            }
        }
    }
}

/// As written in `spec.provider`.
pub fn canary_provider(provider: model::Provider) -> Provider {
    match provider {
        model::Provider::Kubernetes => Provider::Kubernetes,
        model::Provider::Istio => Provider::Istio,
        model::Provider::GatewayApi => Provider::GatewayApiV1,
        model::Provider::Linkerd => Provider::Linkerd,
        model::Provider::Smi => Provider::SmiV1Alpha4,
        model::Provider::Osm => Provider::Osm,
        model::Provider::AppMesh => Provider::AppMeshV1Beta2,
        model::Provider::AppMeshApi => Provider::AppMeshAws,
    }
}
