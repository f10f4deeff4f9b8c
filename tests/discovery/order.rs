//! Any order of events, relists, losses and duplicates ends in the inventory of a fresh
//! start.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use serde_json::{Value, json};
use serin::discovery::model::{External, Inventory, Key, Kind, ListScope, Object};

use super::{CLUSTER, inventory, object, web};

/// A cluster of a few objects, and an inventory that follows it badly.
#[derive(Default)]
struct World {
    resource_version: u64,
    objects: BTreeMap<Key, Object>,
    /// Events that were not delivered yet.
    delayed: Vec<Event>,
    inventory: Inventory,
}

#[derive(Clone)]
enum Event {
    Put(Object),
    /// With the resourceVersion of the deletion; objects outside Kubernetes have none.
    Delete(Key, Option<u64>),
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

const SLOTS: usize = 20;

/// Objects outside Kubernetes: a mesh of one account, and a datacenter.
const EXTERNAL_SLOTS: usize = 9;
const ACCOUNT: &str = "aws:123456789012:eu-west-1";
const DATACENTER: &str = "consul:dc1";

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
    // In App Mesh; its environment names a virtual node.
    let node_pod = |name: &str| {
        let mut pod = pod(name);
        pod["metadata"]["annotations"] = json!({});
        let env = json!({"name": "APPMESH_RESOURCE_ARN", "value": format!("mesh/shop/virtualNode/{label}")});
        pod["spec"] = json!({"containers": [{"name": "envoy", "env": [env]}]});
        pod
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
        13 => node_pod("four"),
        14 => {
            json!({"apiVersion": "appmesh.k8s.aws/v1beta2", "kind": "VirtualNode", "metadata": {"name": "node", "namespace": "shop"},
                "spec": {"meshRef": {"name": "shop"}, "awsName": "api", "podSelector": {"matchLabels": {"app": label}}}})
        }
        15 => {
            json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "GatewayClass", "metadata": {"name": "class"},
                "spec": {"controllerName": if odd { "io.cilium/gateway-controller" } else { "example.com/gateway" }},
                "status": {"conditions": [{"type": "Accepted", "status": if variant > 1 { "True" } else { "False" }}]}})
        }
        16 => {
            json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway", "metadata": {"name": label, "namespace": "shop"}, "spec": {"gatewayClassName": "istio-waypoint"}})
        }
        17 => {
            json!({"apiVersion": "networking.istio.io/v1", "kind": "VirtualService", "metadata": {"name": "vs", "namespace": "shop"}, "spec": {"hosts": [label]}})
        }
        18 => {
            json!({"apiVersion": "kuma.io/v1alpha1", "kind": "Mesh", "metadata": {"name": "default"}, "spec": {"mtls": {"enabledBackend": if odd { "ca" } else { "" }}}})
        }
        _ => {
            json!({"kind": "ConfigMap", "metadata": {"name": "istio", "namespace": "istio-system"}, "data": {"mesh": format!("trustDomain: d{variant}")}})
        }
    }
}

/// A version of the object outside Kubernetes in a slot.
fn external(slot: usize, variant: u8) -> Object {
    let odd = variant % 2 == 1;
    let label = if odd { "web" } else { "api" };
    let tags: BTreeMap<String, String> = [("team".to_owned(), label.to_owned())].into();
    let node = || Some(("shop".to_owned(), label.to_owned()));
    let (scope, namespace, kind, name, content) = match slot {
        0 => (ACCOUNT, "", Kind::AppMeshMesh, "shop", External::AppMesh { tags }),
        1 => (ACCOUNT, "shop", Kind::AppMeshVirtualNode, "web", External::VirtualNode { tags }),
        2 => {
            let provider = (variant > 1).then(|| format!("virtualRouter/{label}"));
            (ACCOUNT, "shop", Kind::AppMeshVirtualService, "web.shop", External::VirtualService { provider })
        }
        3 => {
            let provider = Some(format!("virtualNode/{label}"));
            let name = "api.shop.svc.cluster.local";
            (ACCOUNT, "shop", Kind::AppMeshVirtualService, name, External::VirtualService { provider })
        }
        4 => {
            let route = External::Route { targets: vec![label.to_owned()], priority: Some(variant.into()) };
            (ACCOUNT, "shop", Kind::AppMeshRoute, "web/first", route)
        }
        5 => {
            let route = External::Route { targets: Vec::new(), priority: odd.then_some(1) };
            (ACCOUNT, "shop", Kind::AppMeshRoute, "web/second", route)
        }
        6 => {
            let pod = Some(("shop".to_owned(), if odd { "one" } else { "four" }.to_owned()));
            (ACCOUNT, "shop.local", Kind::CloudMapInstance, "i", External::Instance { pod, node: node() })
        }
        7 => {
            let proxied_services = variant.into();
            (DATACENTER, "", Kind::ConsulDatacenter, "dc1", External::ConsulDatacenter { proxied_services })
        }
        _ => (
            DATACENTER,
            "",
            Kind::ConsulService,
            "web",
            External::ConsulService { instances: 2, proxied: variant.into() },
        ),
    };
    Object::external(Key::new(scope, namespace, kind, name), Some(variant.into()), content)
}

impl World {
    fn step(&mut self, step: Step) {
        match step {
            Step::Put { slot, variant, fate } => {
                self.resource_version += 1;
                let (object, fate) = match slot.checked_sub(SLOTS) {
                    None => {
                        let mut manifest = manifest(slot, variant);
                        manifest["metadata"]["resourceVersion"] = self.resource_version.to_string().into();
                        (object(&manifest), fate)
                    }
                    Some(slot) => (external(slot, variant), in_order(fate)),
                };
                self.objects.insert(object.key.clone(), object.clone());
                self.emit(Event::Put(object), fate);
            }
            Step::Delete { slot, fate } => {
                self.resource_version += 1;
                let key = self.objects.keys().nth(slot % self.objects.len().max(1)).cloned();
                let Some(key) = key else { return };
                self.objects.remove(&key);
                let (version, fate) = match key.cluster == CLUSTER {
                    true => (Some(self.resource_version), fate),
                    false => (None, in_order(fate)),
                };
                self.emit(Event::Delete(key, version), fate);
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
            Event::Put(object) => self.inventory.apply(object.clone()),
            Event::Delete(key, version) => self.inventory.remove(key, *version),
        }
    }

    fn relist(&mut self, kind: Kind) {
        for cluster in [CLUSTER, ACCOUNT, DATACENTER] {
            let is_listed = |key: &Key| key.kind == kind && key.cluster == cluster;
            let listed: Vec<Object> =
                self.objects.values().filter(|object| is_listed(&object.key)).cloned().collect();
            let shown: BTreeSet<Key> = listed.iter().map(|object| object.key.clone()).collect();
            listed.into_iter().for_each(|object| self.inventory.apply(object));
            let scope = ListScope { cluster: cluster.to_owned(), kind, namespace: None };
            self.inventory.list_complete(&scope, &shown);
        }
    }
}

/// A source outside Kubernetes reports in order: nothing in it orders two versions.
fn in_order(fate: Fate) -> Fate {
    match fate {
        Fate::Delivered | Fate::Twice => Fate::Delivered,
        Fate::Delayed | Fate::Lost => Fate::Lost,
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
        6 => (0..SLOTS + EXTERNAL_SLOTS, 0..4_u8, fate.clone()).prop_map(|(slot, variant, fate)| Step::Put { slot, variant, fate }),
        2 => (0..SLOTS + EXTERNAL_SLOTS, fate).prop_map(|(slot, fate)| Step::Delete { slot, fate }),
        2 => (0..SLOTS).prop_map(Step::Late),
        2 => (0..Kind::ALL.len()).prop_map(Step::Relist),
        2 => Just(Step::Refresh),
    ];
    proptest::collection::vec(step, 0..80)
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
        world.objects.values().rev().for_each(|object| fresh.apply(object.clone()));
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
