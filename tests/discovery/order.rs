//! Any order of events, relists, losses and duplicates ends in the inventory of a fresh
//! start.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use serde_json::{Value, json};
use serin::discovery::model::{Inventory, Key, Kind, ListScope, Object};

use super::{CLUSTER, inventory, object, web};

/// A cluster of a few objects, and an inventory that follows it badly.
#[derive(Default)]
struct World {
    resource_version: u64,
    objects: BTreeMap<Key, Value>,
    /// Events that were not delivered yet.
    delayed: Vec<Event>,
    inventory: Inventory,
}

#[derive(Clone)]
enum Event {
    Put(Value),
    Delete(Key, u64),
}

#[derive(Clone, Copy, Debug)]
enum Fate {
    Delivered,
    Twice,
    Delayed,
    Lost,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Put {
        slot: usize,
        variant: u8,
        fate: Fate,
    },
    Delete {
        slot: usize,
        fate: Fate,
    },
    /// One delayed event, whichever.
    Late(usize),
    Relist(usize),
    Refresh,
}

const SLOTS: usize = 14;

/// A version of the object in a slot.
fn manifest(slot: usize, variant: u8) -> Value {
    let odd = variant % 2 == 1;
    let label = if odd { "web" } else { "api" };
    let mesh = ["ambient.istio.io/redirection", "linkerd.io/proxy-version"][usize::from(variant / 2 % 2)];
    let pod = |name: &str| {
        json!({
            "kind": "Pod",
            "metadata": {
                "name": name, "namespace": "shop", "annotations": {mesh: "enabled"},
                "labels": {"pod-template-hash": "abc"},
                "ownerReferences": [{"kind": "ReplicaSet", "name": format!("{label}-abc"), "controller": true}],
            },
        })
    };
    let deployment = |name: &str| {
        json!({
            "kind": "Deployment", "metadata": {"name": name, "namespace": "shop"},
            "spec": {"template": {"metadata": {"labels": {"app": label, "version": format!("v{variant}")}}}},
        })
    };
    let http = |name: &str| {
        json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute",
            "metadata": {"name": name, "namespace": "shop", "creationTimestamp": format!("2026-01-0{}T00:00:00Z", variant + 1)},
            "spec": {"parentRefs": [{"kind": "Service", "name": label}]},
        })
    };
    match slot {
        0 => pod("one"),
        1 => pod("two"),
        2 => pod("three"),
        3 => deployment("web"),
        4 => deployment("api"),
        5 => {
            json!({"kind": "Service", "metadata": {"name": "web", "namespace": "shop"}, "spec": {"selector": {"app": label}}})
        }
        6 => {
            json!({"kind": "Service", "metadata": {"name": "api", "namespace": "shop"}, "spec": {"selector": {"version": "v1"}, "clusterIP": "None"}})
        }
        7 => http("first"),
        8 => http("second"),
        9 => {
            json!({"apiVersion": "linkerd.io/v1alpha2", "kind": "ServiceProfile", "metadata": {"name": format!("{label}.shop.svc"), "namespace": "shop"}})
        }
        10 => {
            json!({"kind": "Namespace", "metadata": {"name": "shop", "labels": {"istio.io/use-waypoint": label, "istio-injection": if odd { "enabled" } else { "disabled" }}}})
        }
        11 => {
            json!({"apiVersion": "serin.dev/v1alpha1", "kind": "Canary", "metadata": {"name": "c", "namespace": "shop"}, "spec": {"targetRef": {"kind": "Deployment", "name": label}}})
        }
        12 => {
            json!({"kind": "Deployment", "metadata": {"name": "istiod", "namespace": "istio-system", "labels": {"app": if odd { "istiod" } else { "other" }}}, "spec": {"replicas": variant}})
        }
        _ => {
            json!({"kind": "ConfigMap", "metadata": {"name": "istio", "namespace": "istio-system"}, "data": {"mesh": format!("trustDomain: d{variant}")}})
        }
    }
}

impl World {
    fn step(&mut self, step: Step) {
        match step {
            Step::Put { slot, variant, fate } => {
                self.resource_version += 1;
                let mut manifest = manifest(slot, variant);
                manifest["metadata"]["resourceVersion"] = self.resource_version.to_string().into();
                self.objects.insert(object(&manifest).key, manifest.clone());
                self.emit(Event::Put(manifest), fate);
            }
            Step::Delete { slot, fate } => {
                self.resource_version += 1;
                let key = self.objects.keys().nth(slot % self.objects.len().max(1)).cloned();
                let Some(key) = key else { return };
                self.objects.remove(&key);
                self.emit(Event::Delete(key, self.resource_version), fate);
            }
            Step::Late(at) if !self.delayed.is_empty() => {
                let event = self.delayed.swap_remove(at % self.delayed.len());
                self.deliver(&event);
            }
            Step::Late(_) => {}
            Step::Relist(kind) => self.relist(Kind::ALL[kind % Kind::ALL.len()]),
            Step::Refresh => _ = self.inventory.refresh(),
        }
    }

    fn emit(&mut self, event: Event, fate: Fate) {
        match fate {
            Fate::Delivered => self.deliver(&event),
            Fate::Twice => {
                self.deliver(&event);
                self.delayed.push(event);
            }
            Fate::Delayed => self.delayed.push(event),
            Fate::Lost => {}
        }
    }

    fn deliver(&mut self, event: &Event) {
        match event {
            Event::Put(manifest) => self.inventory.apply(object(manifest)),
            Event::Delete(key, version) => self.inventory.remove(key, Some(*version)),
        }
    }

    fn relist(&mut self, kind: Kind) {
        let listed: Vec<Object> = self
            .objects
            .iter()
            .filter(|(key, _)| key.kind == kind)
            .map(|(_, manifest)| object(manifest))
            .collect();
        let shown: BTreeSet<Key> = listed.iter().map(|object| object.key.clone()).collect();
        listed.into_iter().for_each(|object| self.inventory.apply(object));
        self.inventory
            .list_complete(&ListScope { cluster: CLUSTER.to_owned(), kind, namespace: None }, &shown);
    }
}

/// Everything that a reader sees.
fn views(inventory: &Inventory) -> Value {
    let workloads: Vec<_> = inventory.workloads().collect();
    let services: Vec<_> = inventory.services().collect();
    json!({"meshes": inventory.meshes(), "workloads": workloads, "services": services})
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let fate = prop_oneof![
        4 => Just(Fate::Delivered),
        1 => Just(Fate::Twice),
        1 => Just(Fate::Delayed),
        1 => Just(Fate::Lost),
    ];
    let step = prop_oneof![
        6 => (0..SLOTS, 0..4_u8, fate.clone()).prop_map(|(slot, variant, fate)| Step::Put { slot, variant, fate }),
        2 => (0..SLOTS, fate).prop_map(|(slot, fate)| Step::Delete { slot, fate }),
        2 => (0..SLOTS).prop_map(Step::Late),
        2 => (0..Kind::ALL.len()).prop_map(Step::Relist),
        2 => Just(Step::Refresh),
    ];
    proptest::collection::vec(step, 0..60)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_history_ends_in_the_inventory_of_a_fresh_start(steps in steps()) {
        let mut world = World::default();
        steps.into_iter().for_each(|step| world.step(step));
        Kind::ALL.iter().for_each(|kind| world.relist(*kind));
        world.inventory.refresh();
        let mut fresh = Inventory::default();
        world.objects.values().rev().for_each(|manifest| fresh.apply(object(manifest)));
        fresh.refresh();
        prop_assert_eq!(views(&world.inventory), views(&fresh));
    }
}

#[test]
fn a_changed_pod_changes_its_workload_and_nothing_else() {
    let mut inventory = inventory(&(web("", "", "") + &web("", "", "").replace("web", "api")));
    let pod = Key::new(CLUSTER, "shop", Kind::Pod, "web-abc-1");
    inventory.remove(&pod, None);
    let changed = inventory.refresh();
    assert_eq!(changed, [Key::new(CLUSTER, "shop", Kind::Deployment, "web")].into());
}

#[test]
fn a_listing_prunes_its_own_kind_cluster_and_namespace_only() {
    let mut inventory = inventory(&web("", "", ""));
    let before = inventory.len();
    let scope = |cluster: &str, kind, namespace: Option<&str>| ListScope {
        cluster: cluster.to_owned(),
        kind,
        namespace: namespace.map(str::to_owned),
    };
    inventory.list_complete(&scope("west", Kind::Deployment, None), &BTreeSet::new());
    inventory.list_complete(&scope(CLUSTER, Kind::Deployment, Some("other")), &BTreeSet::new());
    inventory.list_complete(&scope(CLUSTER, Kind::Ingress, None), &BTreeSet::new());
    assert_eq!(inventory.len(), before);
    inventory.list_complete(&scope(CLUSTER, Kind::Deployment, Some("shop")), &BTreeSet::new());
    inventory.refresh();
    assert_eq!((inventory.len(), inventory.workloads().count()), (before - 1, 0));
}
