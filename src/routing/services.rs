//! The three Services of a Canary: the apex that everybody calls, one for the
//! primary and one for the canary.
//!
//! A Service is headless or not from its first day: the API has no way to
//! change that later. A target of kind Service brings its own Services.

use std::{collections::BTreeMap, sync::LazyLock};

use k8s_openapi::{api::core::v1::Service, apimachinery::pkg::util::intstr::IntOrString};
use kube::{
    Client, ResourceExt,
    api::{ApiResource, DynamicObject},
};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::{
    Arms, Error, Lookup, ObjectName, Subject, Unsupported,
    fields::difference,
    object::{self, Standing, Wanted},
};
use crate::{
    api::{
        Canary,
        canary::{TargetKind, service},
    },
    engine::action::Stable,
};

type Labels = BTreeMap<String, String>;

static SERVICES: LazyLock<ApiResource> = LazyLock::new(|| ApiResource::erase::<Service>(&()));

/// What the Services are called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names {
    pub apex: String,
    pub primary: String,
    pub canary: String,
}

impl Names {
    pub fn of(canary: &Canary) -> Self {
        let written = canary.spec.service.as_ref().and_then(|service| service.name.clone());
        let apex =
            written.filter(|name| !name.is_empty()).unwrap_or_else(|| canary.spec.target_ref.name.clone());
        Self::under(apex)
    }

    /// Of the Services that belong to an apex.
    pub fn under(apex: String) -> Self {
        Self { primary: format!("{apex}-primary"), canary: format!("{apex}-canary"), apex }
    }
}

/// Whom the apex Service leads to, for those that no route divides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Apex {
    Stable,
    Canary,
}

/// What the port speaks, by the rules of Istio: `appProtocol` says it, else the
/// name of the port up to a hyphen.
pub fn protocol(spec: &service::Service) -> String {
    let said = spec.app_protocol.as_deref().filter(|protocol| !protocol.is_empty());
    let said = said.map(|protocol| match protocol {
        "kubernetes.io/h2c" => "http2",
        "kubernetes.io/ws" | "kubernetes.io/wss" => "http",
        other => other,
    });
    let named = || port_name(spec).split('-').next().unwrap_or_default();
    said.unwrap_or_else(named).to_ascii_lowercase()
}

fn port_name(spec: &service::Service) -> &str {
    spec.port_name.as_deref().filter(|name| !name.is_empty()).unwrap_or("http")
}

/// Refuses a Canary whose Services cannot be made.
pub fn check(canary: &Canary) -> Result<(), Unsupported> {
    if canary.spec.service.is_none() && makes_services(canary) {
        return Err(Unsupported::NoService);
    }
    let longest = Names::of(canary).primary;
    if longest.len() > 63 { Err(Unsupported::NameTooLong { name: longest }) } else { Ok(()) }
}

pub fn objects(canary: &Canary) -> Vec<ObjectName> {
    let Names { apex, primary, canary: candidate } = Names::of(canary);
    if makes_services(canary) {
        [apex, primary, candidate].map(|name| named(canary, name)).into()
    } else {
        Vec::new()
    }
}

/// How the Services were last found to stand. Until one of them changes, or
/// what they follow from, they are not composed and compared again: a step only
/// moves the weights.
#[derive(Debug, Default)]
pub struct Stood(Mutex<Option<Found>>);

#[derive(Debug)]
struct Found {
    generation: Option<i64>,
    arms: Arms,
    apex: Apex,
    stable: Stable,
    versions: [Option<String>; 3],
}

/// Do the Services lead where they should?
pub fn stand(on: &Subject<'_>, seen: &dyn Lookup, apex: Apex, stable: Stable) -> bool {
    let compare = || wanted(on, seen, apex, stable).iter().all(|service| service.stands(on.canary, seen));
    let Some(Stood(stood)) = on.stood else { return compare() };
    let (generation, arms, versions) = (on.canary.metadata.generation, on.arms, versions(on.canary, seen));
    let is_found = |found: &Found| {
        (found.generation, found.apex, found.stable) == (generation, apex, stable)
            && found.versions == versions
            && found.arms == *arms
    };
    if stood.lock().as_ref().is_some_and(is_found) {
        return true;
    }
    let stands = compare();
    if stands {
        *stood.lock() = Some(Found { generation, arms: arms.clone(), apex, stable, versions });
    }
    stands
}

fn versions(canary: &Canary, seen: &dyn Lookup) -> [Option<String>; 3] {
    let Names { apex, primary, canary: candidate } = Names::of(canary);
    let namespace = canary.metadata.namespace.as_deref().unwrap_or_default();
    [apex, primary, candidate].map(|name| seen.get(&SERVICES, namespace, &name)?.resource_version())
}

/// Makes the Services lead there. The backends come first: whoever changes
/// the apex must find them in place.
pub async fn ensure(
    client: &Client,
    on: &Subject<'_>,
    seen: &dyn Lookup,
    apex: Apex,
    stable: Stable,
) -> Result<(), Error> {
    if stand(on, seen, apex, stable) {
        return Ok(());
    }
    for service in wanted(on, seen, apex, stable) {
        service.ensure(client, on.canary, seen).await?;
    }
    Ok(())
}

/// Adopted Services are as they were, and an apex of ours leads to the target.
pub fn restored(canary: &Canary, seen: &dyn Lookup) -> bool {
    let adopted = |name: &ObjectName| {
        name.find(seen).is_some_and(|live| matches!(Standing::of(&live, canary), Standing::Adopted(_)))
    };
    !objects(canary).iter().any(adopted) && astray(canary, seen).is_none()
}

/// Puts adopted Services back and points an apex of ours to the target; the
/// garbage collector takes it away with the Canary, unless people asked for
/// what it leaves behind.
pub async fn restore(client: &Client, canary: &Canary, seen: &dyn Lookup) -> Result<(), Error> {
    for name in objects(canary) {
        object::put_back(client, canary, &name).await?;
    }
    if let Some((apex, patch)) = astray(canary, seen) {
        object::change(&object::api(client, &apex), &apex, &patch).await?;
    }
    Ok(())
}

/// An apex of ours that does not lead to the target, and the patch that makes
/// it. The canary Service knows how the target's pods are selected.
fn astray(canary: &Canary, seen: &dyn Lookup) -> Option<(ObjectName, Value)> {
    let names = Names::of(canary);
    let apex = makes_services(canary).then(|| named(canary, names.apex))?;
    let live = apex.find(seen)?;
    let target = named(canary, names.canary).find(seen)?;
    let selector = |service: &DynamicObject| service.data["spec"]["selector"].clone();
    let (now, wanted) = (selector(&live), selector(&target));
    let ours = matches!(Standing::of(&live, canary), Standing::Owned);
    (ours && wanted.is_object() && now != wanted)
        .then(|| (apex, json!({"spec": {"selector": difference(&now, &wanted)}})))
}

fn wanted(on: &Subject<'_>, seen: &dyn Lookup, apex: Apex, stable: Stable) -> Vec<Wanted> {
    let Subject { canary, arms, .. } = on;
    let Some(spec) = canary.spec.service.as_ref().filter(|_| makes_services(canary)) else {
        return Vec::new();
    };
    let names = Names::of(canary);
    let stable = match stable {
        Stable::Primary => &arms.primary,
        Stable::Previous => &arms.previous,
    };
    let front = match apex {
        Apex::Stable => stable,
        Apex::Canary => &arms.canary,
    };
    [
        (names.primary, stable, &spec.primary),
        (names.canary, &arms.canary, &spec.canary),
        (names.apex, front, &spec.apex),
    ]
    .map(|(name, pods, metadata)| {
        let name = named(canary, name);
        let live = name.find(seen);
        one(canary, spec, arms, name, live.as_deref(), pods, metadata.clone().unwrap_or_default())
    })
    .into()
}

fn one(
    canary: &Canary,
    spec: &service::Service,
    arms: &Arms,
    name: ObjectName,
    live: Option<&DynamicObject>,
    pods: &Labels,
    metadata: service::Metadata,
) -> Wanted {
    let before = match live.map(|live| Standing::of(live, canary)) {
        None | Some(Standing::Owned) => Value::Null,
        Some(Standing::Adopted(original)) => original.patch,
        Some(Standing::Foreign | Standing::Taken(_)) => {
            live.map(|live| live.data.clone()).unwrap_or_default()
        }
    };
    let mut body = json!({"spec": {"selector": pods, "ports": ports(spec, arms, &before["spec"]["ports"])}});
    let headless = match live {
        None => spec.headless,
        Some(live) => live.data["spec"]["clusterIP"] == "None",
    };
    if headless {
        body["spec"]["clusterIP"] = json!("None");
    }
    if let Some(preference) = spec.traffic_distribution {
        body["spec"]["trafficDistribution"] = json!(preference);
    }
    Wanted::new(canary, name, metadata, body)
}

fn ports(spec: &service::Service, arms: &Arms, before: &Value) -> Vec<Value> {
    let own_target = spec.target_port.clone().filter(|target| *target != IntOrString::Int(0));
    let target = own_target.unwrap_or(IntOrString::Int(spec.port.into()));
    let name = port_name(spec);
    let mut first = json!({
        "name": free_name(name, spec.port, before), "port": spec.port, "protocol": "TCP", "targetPort": target,
    });
    if let Some(protocol) = &spec.app_protocol {
        first["appProtocol"] = json!(protocol);
    }
    let served = |name: &str, port: u16| {
        port == spec.port
            || target == IntOrString::Int(port.into())
            || target == IntOrString::String(name.to_owned())
    };
    let discovered = arms.ports.iter().filter(|(name, port)| spec.port_discovery && !served(name, **port));
    let others = discovered.map(|(name, port)| {
        json!({"name": free_name(name, *port, before), "port": port, "protocol": "TCP", "targetPort": port})
    });
    std::iter::once(first).chain(others).collect()
}

/// An adopted Service may have another port by that name, which people use.
fn free_name(name: &str, port: u16, before: &Value) -> String {
    let taken = |other: &Value| other["port"] != json!(port) && other["name"] == json!(name);
    let clash = before.as_array().is_some_and(|ports| ports.iter().any(taken));
    if clash { format!("{name}-{port}") } else { name.to_owned() }
}

fn makes_services(canary: &Canary) -> bool {
    canary.spec.target_ref.kind != TargetKind::Service
}

fn named(canary: &Canary, name: String) -> ObjectName {
    let kind = SERVICES.clone();
    ObjectName { kind, namespace: canary.namespace().unwrap_or_default(), name }
}
