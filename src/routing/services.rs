//! The three Services of a Canary: the apex that clients call, one for the
//! primary and one for the canary.
//!
//! A Service is headless or not from its creation: the API does not let that
//! change. A target of kind Service has its own Services.

use std::{collections::BTreeMap, sync::LazyLock};

use k8s_openapi::{api::core::v1::Service, apimachinery::pkg::util::intstr::IntOrString};
use kube::{
    Client, ResourceExt,
    api::{ApiResource, DynamicObject},
};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::{
    Error, ObjectCache, ObjectKey, PodSelectors, RouteContext, Unsupported,
    object::{self, DesiredObject, ObjectOwnership},
};
use crate::{
    api::{
        Canary,
        canary::{TargetKind, service},
    },
    engine::action::Stable,
    memo::Memo,
    patch::merge_diff,
};

type Labels = BTreeMap<String, String>;

static SERVICES: LazyLock<ApiResource> = LazyLock::new(|| ApiResource::erase::<Service>(&()));

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceNames {
    pub apex: String,
    pub primary: String,
    pub canary: String,
}

impl ServiceNames {
    pub fn of(canary: &Canary) -> Self {
        let written = canary.spec.service.as_ref().and_then(|service| service.name.clone());
        let apex =
            written.filter(|name| !name.is_empty()).unwrap_or_else(|| canary.spec.target_ref.name.clone());
        Self::from_apex(apex)
    }

    pub fn from_apex(apex: String) -> Self {
        Self { primary: format!("{apex}-primary"), canary: format!("{apex}-canary"), apex }
    }
}

/// The pods that the apex Service selects, for traffic that no route splits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApexTarget {
    Stable,
    Canary,
}

/// The protocol of the port of a Canary; see [`protocol_name`].
pub fn protocol(spec: &service::Service) -> String {
    protocol_name(spec.app_protocol.as_deref(), port_name(spec))
}

/// The protocol of a port by the rules of Istio: `appProtocol`, else the port name up to
/// a hyphen.
pub fn protocol_name(app_protocol: Option<&str>, port_name: &str) -> String {
    let explicit = app_protocol.filter(|protocol| !protocol.is_empty()).map(|protocol| match protocol {
        "kubernetes.io/h2c" => "http2",
        "kubernetes.io/ws" | "kubernetes.io/wss" => "http",
        other => other,
    });
    // The one protocol with a hyphen.
    let named = || match port_name.starts_with("grpc-web") {
        true => "grpc-web",
        false => port_name.split('-').next().unwrap_or_default(),
    };
    explicit.unwrap_or_else(named).to_ascii_lowercase()
}

pub fn port_name(spec: &service::Service) -> &str {
    spec.port_name.as_deref().filter(|name| !name.is_empty()).unwrap_or("http")
}

/// Rejects a Canary whose Services cannot be created.
pub fn check(canary: &Canary) -> Result<(), Unsupported> {
    if canary.spec.service.is_none() && canary.spec.target_ref.kind != TargetKind::Service {
        return Err(Unsupported::NoService);
    }
    let longest = ServiceNames::of(canary).primary;
    if longest.len() > 63 { Err(Unsupported::NameTooLong { name: longest }) } else { Ok(()) }
}

pub fn apex(canary: &Canary) -> ObjectKey {
    service_key(canary, ServiceNames::of(canary).apex)
}

pub fn objects(canary: &Canary) -> Vec<ObjectKey> {
    let ServiceNames { apex, primary, canary: candidate } = ServiceNames::of(canary);
    if manages_services(canary) {
        [apex, primary, candidate].map(|name| service_key(canary, name)).into()
    } else {
        Vec::new()
    }
}

/// Inputs of the last comparison that found the Services in sync. While they
/// are unchanged the comparison is skipped: a step only changes weights.
#[derive(Debug, Default)]
pub struct ServicesMemo(Mutex<Memo<ServicesInputs, ()>>);

#[derive(Debug, PartialEq)]
struct ServicesInputs {
    generation: Option<i64>,
    pod_selectors: PodSelectors,
    apex: ApexTarget,
    stable: Stable,
    versions: [Option<String>; 3],
}

pub fn is_in_sync(on: &RouteContext<'_>, cache: &dyn ObjectCache, apex: ApexTarget, stable: Stable) -> bool {
    let compare =
        || desired(on, cache, apex, stable).iter().all(|service| service.is_in_sync(on.canary, cache));
    let Some(ServicesMemo(memo)) = on.services_memo else { return compare() };
    let inputs = ServicesInputs {
        generation: on.canary.metadata.generation,
        pod_selectors: on.pod_selectors.clone(),
        apex,
        stable,
        versions: versions(on.canary, cache),
    };
    let mut memo = memo.lock();
    let in_sync = memo.hit(&inputs).is_some() || compare();
    if in_sync {
        memo.set(inputs, ());
    }
    in_sync
}

/// The stable side that the apex and primary Services select, if all Services
/// are in sync with one.
pub fn stable_side(on: &RouteContext<'_>, cache: &dyn ObjectCache) -> Option<Stable> {
    [Stable::Primary, Stable::Previous]
        .into_iter()
        .find(|stable| is_in_sync(on, cache, ApexTarget::Stable, *stable))
}

fn versions(canary: &Canary, cache: &dyn ObjectCache) -> [Option<String>; 3] {
    let ServiceNames { apex, primary, canary: candidate } = ServiceNames::of(canary);
    let namespace = canary.metadata.namespace.as_deref().unwrap_or_default();
    [apex, primary, candidate].map(|name| cache.get(&SERVICES, namespace, &name)?.resource_version())
}

/// Writes the Services that differ. Backends come first: the apex may switch
/// only once they exist.
pub async fn ensure(
    client: &Client,
    on: &RouteContext<'_>,
    cache: &dyn ObjectCache,
    apex: ApexTarget,
    stable: Stable,
) -> Result<(), Error> {
    if is_in_sync(on, cache, apex, stable) {
        return Ok(());
    }
    for service in desired(on, cache, apex, stable) {
        service.ensure(client, on.canary, cache).await?;
    }
    Ok(())
}

/// True once adopted Services are restored and an apex of ours selects the
/// target.
pub fn is_restored(canary: &Canary, cache: &dyn ObjectCache) -> bool {
    let adopted = |service: &ObjectKey| {
        service
            .find(cache)
            .is_some_and(|live| matches!(ObjectOwnership::of(&live, canary), ObjectOwnership::Adopted(_)))
    };
    !objects(canary).iter().any(adopted) && misdirected_apex(canary, cache).is_none()
}

/// Restores adopted Services and makes an apex of ours select the target. The
/// garbage collector deletes it with the Canary unless the user orphans
/// dependents.
pub async fn restore(client: &Client, canary: &Canary, cache: &dyn ObjectCache) -> Result<(), Error> {
    for service in objects(canary) {
        object::restore_adopted(client, canary, &service).await?;
    }
    if let Some((apex, patch)) = misdirected_apex(canary, cache) {
        object::merge_patch(&object::api(client, &apex), &apex, &patch).await?;
    }
    Ok(())
}

/// An apex of ours that does not select the target, and the patch that makes it.
/// The selector is that of the canary Service.
fn misdirected_apex(canary: &Canary, cache: &dyn ObjectCache) -> Option<(ObjectKey, Value)> {
    let names = ServiceNames::of(canary);
    let apex = manages_services(canary).then(|| service_key(canary, names.apex))?;
    let live = apex.find(cache)?;
    let target = service_key(canary, names.canary).find(cache)?;
    let selector = |service: &DynamicObject| service.data["spec"]["selector"].clone();
    let (now, desired) = (selector(&live), selector(&target));
    let ours = matches!(ObjectOwnership::of(&live, canary), ObjectOwnership::Owned);
    (ours && desired.is_object() && now != desired)
        .then(|| (apex, json!({"spec": {"selector": merge_diff(&now, &desired)}})))
}

fn desired(
    on: &RouteContext<'_>,
    cache: &dyn ObjectCache,
    apex: ApexTarget,
    stable: Stable,
) -> Vec<DesiredObject> {
    let RouteContext { canary, pod_selectors, .. } = on;
    let Some(spec) = canary.spec.service.as_ref().filter(|_| manages_services(canary)) else {
        return Vec::new();
    };
    let names = ServiceNames::of(canary);
    let stable = match stable {
        Stable::Primary => &pod_selectors.primary,
        Stable::Previous => &pod_selectors.previous,
    };
    let apex_pods = match apex {
        ApexTarget::Stable => stable,
        ApexTarget::Canary => &pod_selectors.canary,
    };
    [
        (names.primary, stable, &spec.primary),
        (names.canary, &pod_selectors.canary, &spec.canary),
        (names.apex, apex_pods, &spec.apex),
    ]
    .map(|(name, pods, metadata)| {
        let key = service_key(canary, name);
        let live = key.find(cache);
        let service = ServiceOf { key, pods, metadata: metadata.clone().unwrap_or_default() };
        desired_service(on, spec, service, live.as_deref())
    })
    .into()
}

/// One of the three Services, by what differs between them.
struct ServiceOf<'a> {
    key: ObjectKey,
    pods: &'a Labels,
    metadata: service::Metadata,
}

fn desired_service(
    on: &RouteContext<'_>,
    spec: &service::Service,
    service: ServiceOf<'_>,
    live: Option<&DynamicObject>,
) -> DesiredObject {
    let RouteContext { canary, pod_selectors, .. } = on;
    let ServiceOf { key, pods, metadata } = service;
    let before = match live.map(|live| ObjectOwnership::of(live, canary)) {
        None | Some(ObjectOwnership::Owned) => Value::Null,
        Some(ObjectOwnership::Adopted(original)) => original.patch,
        Some(ObjectOwnership::Unmanaged | ObjectOwnership::OwnedByOther(_)) => {
            live.map(|live| live.data.clone()).unwrap_or_default()
        }
    };
    let mut body =
        json!({"spec": {"selector": pods, "ports": ports(spec, pod_selectors, &before["spec"]["ports"])}});
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
    DesiredObject::new(canary, key, metadata, body)
}

fn ports(spec: &service::Service, pod_selectors: &PodSelectors, before: &Value) -> Vec<Value> {
    let own_target = spec.target_port.clone().filter(|target| *target != IntOrString::Int(0));
    let target = own_target.unwrap_or(IntOrString::Int(spec.port.into()));
    let name = port_name(spec);
    let mut first = json!({
        "name": unique_port_name(name, spec.port, before), "port": spec.port, "protocol": "TCP", "targetPort": target,
    });
    if let Some(protocol) = &spec.app_protocol {
        first["appProtocol"] = json!(protocol);
    }
    let is_target = |name: &str, port: u16| {
        port == spec.port
            || target == IntOrString::Int(port.into())
            || target == IntOrString::String(name.to_owned())
    };
    let discovered =
        pod_selectors.ports.iter().filter(|(name, port)| spec.port_discovery && !is_target(name, **port));
    let others = discovered.map(|(name, port)| {
        json!({"name": unique_port_name(name, *port, before), "port": port, "protocol": "TCP", "targetPort": port})
    });
    std::iter::once(first).chain(others).collect()
}

/// An adopted Service may have another port of that name, which clients use.
fn unique_port_name(name: &str, port: u16, before: &Value) -> String {
    let taken = |other: &Value| other["port"] != json!(port) && other["name"] == json!(name);
    let clash = before.as_array().is_some_and(|ports| ports.iter().any(taken));
    if clash { format!("{name}-{port}") } else { name.to_owned() }
}

fn manages_services(canary: &Canary) -> bool {
    match canary.spec.target_ref.kind {
        TargetKind::Deployment | TargetKind::DaemonSet => true,
        TargetKind::Service | TargetKind::EndpointGroup => false,
    }
}

fn service_key(canary: &Canary, name: String) -> ObjectKey {
    let kind = SERVICES.clone();
    ObjectKey { kind, namespace: canary.namespace().unwrap_or_default(), name }
}
