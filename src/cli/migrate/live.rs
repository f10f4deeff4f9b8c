//! `serin migrate --live`: takes Canaries over from a running Flagger.
//!
//! ```text
//!   read ─▶ refuse what is busy ─▶ stop Flagger ─▶ read again ─▶ writes, performed in order
//! ```
//!
//! No weight moves and no release starts: Flagger is scaled down first; its primary, Services
//! and routes change their owner and nothing else; a status records the revisions that they
//! run, and for a release under way its step. Every write may be repeated, so a run that was
//! interrupted is finished by another one. Until `--finish` the Canaries of Flagger stay, as
//! suspended ones, and `--undo` gives everything back.

use anyhow::{Context as _, bail, ensure};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt as _;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, ListParams};
use serde_json::{Value, json};

use super::writes::{Transfer, Write};
use crate::api::Weight;
use crate::api::canary::status::{ReleaseState, ReleaseStatus, Revisions, StepStatus, Trigger};
use crate::api::canary::{Canary, CanaryStatus, Phase};
use crate::cli::connect::Connection;
use crate::engine::Plan;
use crate::migrate::flagger::{self, MIGRATED, argument, is_routed};
use crate::workload::{self, Workload};

/// Kinds of objects that Flagger makes, in the versions to try.
const OWNED_KINDS: [(&str, &[&str], &str); 15] = [
    ("apps", &["v1"], "Deployment"),
    ("apps", &["v1"], "DaemonSet"),
    ("", &["v1"], "Service"),
    ("", &["v1"], "ConfigMap"),
    ("", &["v1"], "Secret"),
    ("autoscaling", &["v2"], "HorizontalPodAutoscaler"),
    ("keda.sh", &["v1alpha1"], "ScaledObject"),
    ("split.smi-spec.io", &["v1alpha4", "v1alpha3", "v1alpha2", "v1alpha1"], "TrafficSplit"),
    ("gateway.networking.k8s.io", &["v1", "v1beta1"], "HTTPRoute"),
    ("networking.istio.io", &["v1", "v1beta1"], "VirtualService"),
    ("networking.istio.io", &["v1", "v1beta1"], "DestinationRule"),
    ("appmesh.k8s.aws", &["v1beta2"], "VirtualNode"),
    ("appmesh.k8s.aws", &["v1beta2"], "VirtualRouter"),
    ("appmesh.k8s.aws", &["v1beta2"], "VirtualService"),
    ("specs.smi-spec.io", &["v1alpha4", "v1alpha3"], "HTTPRouteGroup"),
];

pub fn flagger_canaries() -> ApiResource {
    flagger::resource("Canary")
}

/// What to take over.
pub struct Scope {
    /// None for all.
    pub namespace: Option<String>,
    /// Flagger's Deployment as `NAMESPACE/NAME`; none to find it.
    pub flagger: Option<String>,
}

/// Flagger and its Canaries.
pub struct Found {
    pub flagger: Deployment,
    pub canaries: Vec<DynamicObject>,
}

pub async fn find(connection: &Connection, scope: &Scope) -> anyhow::Result<Found> {
    let flagger = find_flagger(connection, scope.flagger.as_deref()).await?;
    let api: Api<DynamicObject> = match &scope.namespace {
        Some(name) => Api::namespaced_with(connection.client.clone(), name, &flagger_canaries()),
        None => Api::all_with(connection.client.clone(), &flagger_canaries()),
    };
    let list = api.list(&ListParams::default()).await;
    let canaries = list.map_err(|error| connection.error("list Flagger's Canaries", &error))?.items;
    Ok(Found { flagger, canaries })
}

async fn find_flagger(connection: &Connection, named: Option<&str>) -> anyhow::Result<Deployment> {
    let client = connection.client.clone();
    if let Some(named) = named {
        let (namespace, name) =
            named.split_once('/').context("--flagger is the Deployment of Flagger, as NAMESPACE/NAME")?;
        let found = Api::<Deployment>::namespaced(client, namespace).get(name).await;
        return found.map_err(|error| connection.error("read Flagger's Deployment", &error));
    }
    let mut found: Vec<Deployment> = Vec::new();
    for selector in flagger::SELECTORS {
        let list = Api::<Deployment>::all(client.clone()).list(&ListParams::default().labels(selector)).await;
        let mut items = list.map_err(|error| connection.error("list Deployments", &error))?.items;
        items.retain(|one| !found.iter().any(|known| key(known) == key(one)));
        found.extend(items);
    }
    let labels = flagger::SELECTORS.join(" or ");
    match (found.pop(), found.len()) {
        (Some(flagger), 0) => Ok(flagger),
        (None, _) => {
            bail!("no Deployment has the label {labels}; name Flagger's with --flagger NAMESPACE/NAME")
        }
        (Some(_), _) => {
            bail!("several Deployments have the label {labels}; name Flagger's with --flagger NAMESPACE/NAME")
        }
    }
}

/// The write that ends Flagger's pods; none if there are none.
pub fn stop_flagger(found: &Found) -> Option<Write> {
    let replicas = found.flagger.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
    (replicas > 0).then(|| Write::ScaleFlagger { key: key(&found.flagger), from: replicas, to: 0 })
}

/// The writes that take everything over, in their order, from a Flagger that does not run:
/// weights must not change after they were read.
pub async fn take_over(connection: &Connection, found: &Found) -> anyhow::Result<Vec<Write>> {
    let busy: Vec<String> = found.canaries.iter().filter_map(busy).collect();
    ensure!(
        busy.is_empty(),
        "Flagger is at work on {}; nothing was changed, try again when it has ended",
        busy.join(", ")
    );
    let mut writes = Vec::new();
    for theirs in &found.canaries {
        let name = format!("{}/{}", theirs.namespace().unwrap_or_default(), theirs.name_any());
        let more = take_over_one(connection, &found.flagger, theirs).await.with_context(|| name)?;
        writes.extend(more);
    }
    Ok(writes)
}

/// `shop/web (Promoting)`, if the Canary cannot be taken over in this phase.
fn busy(canary: &DynamicObject) -> Option<String> {
    let phase = canary.data["status"]["phase"].as_str().unwrap_or("Initializing");
    let free = ["Initialized", "Succeeded", "Failed", "Progressing"].contains(&phase);
    let name = format!("{}/{}", canary.namespace().unwrap_or_default(), canary.name_any());
    (!free).then(|| format!("{name} ({phase})"))
}

pub fn key(object: &impl kube::ResourceExt) -> (String, String) {
    (object.namespace().unwrap_or_default(), object.name_any())
}

async fn take_over_one(
    connection: &Connection,
    flagger: &Deployment,
    theirs: &DynamicObject,
) -> anyhow::Result<Vec<Write>> {
    let ours = convert(flagger, theirs)?;
    let suspend = ours.spec.suspend;
    let plan = Plan::new(&ours.spec, |_| None);
    let workload = Workload::new(&ours, &std::sync::Arc::new(workload::Options::default()))?;
    let revisions = workload.read_adopted(&connection.client).await?;
    let status = status(theirs, plan.ok().as_ref(), &revisions)?;
    let mut writes = vec![Write::CreateCanary(Box::new(Canary {
        spec: crate::api::CanarySpec { suspend: true, ..ours.spec.clone() },
        ..ours.clone()
    }))];
    let from = theirs.uid().unwrap_or_default();
    for (resource, object) in owned_by(connection, &key(theirs).0, &from).await? {
        let is_primary =
            resource.kind == workload.kind().name() && object.name_any() == workload.primary_name();
        writes.push(Write::Transfer(Transfer {
            resource,
            key: key(&object),
            from: from.clone(),
            revision: is_primary.then(|| revisions.primary.clone()),
        }));
    }
    writes.push(Write::Status { key: key(theirs), status: Box::new(status) });
    let theirs_suspended = theirs.data["spec"]["suspend"] == true;
    if theirs.annotations().get(MIGRATED).is_none() {
        writes.push(Write::SuspendTheirs { key: key(theirs), before: theirs_suspended });
    }
    if !suspend {
        writes.push(Write::Resume { key: key(theirs) });
    }
    Ok(writes)
}

/// Our Canary, with what Flagger's flags say in place of its spec.
fn convert(flagger: &Deployment, theirs: &DynamicObject) -> anyhow::Result<Canary> {
    let mut spec = theirs.data["spec"].clone();
    for (field, flag, default) in
        [("provider", "mesh-provider", Some("istio")), ("metricsServer", "metrics-server", None)]
    {
        if spec[field].is_null()
            && let Some(value) = argument(flagger, flag).or(default.map(str::to_owned))
        {
            spec[field] = json!(value);
        }
    }
    let provider = spec["provider"].as_str().unwrap_or_default();
    ensure!(
        is_routed(provider),
        "provider {provider} is not routed by this version; nothing was changed, leave it to Flagger by naming another --namespace"
    );
    // Suspended by a run before this one.
    if let Some(before) = theirs.annotations().get(MIGRATED) {
        spec["suspend"] = json!(before == "true");
    }
    let annotations: serde_json::Map<String, Value> = theirs
        .annotations()
        .iter()
        .filter(|(name, _)| !name.starts_with("kubectl.kubernetes.io/") && *name != MIGRATED)
        .map(|(name, value)| (name.clone(), json!(value)))
        .collect();
    let canary = json!({
        "apiVersion": "serin.dev/v1alpha1", "kind": "Canary",
        "metadata": {
            "name": theirs.name_any(), "namespace": theirs.namespace(),
            "labels": theirs.labels(), "annotations": annotations,
        },
        "spec": spec,
    });
    serde_json::from_value(canary).context("it has no equal in Serin")
}

/// The status of a Canary that has been Serin's all the time.
fn status(
    theirs: &DynamicObject,
    plan: Option<&Plan>,
    revisions: &workload::AdoptedRevisions,
) -> anyhow::Result<CanaryStatus> {
    let now = Time(Timestamp::now());
    let mut status = CanaryStatus {
        phase: Phase::Initialized,
        revisions: Some(Revisions {
            primary: Some(revisions.primary.clone()),
            seen: Some(revisions.primary.clone()),
            ..Revisions::default()
        }),
        last_transition_time: Some(now.clone()),
        ..CanaryStatus::default()
    };
    match theirs.data["status"]["phase"].as_str() {
        Some("Failed") => {
            status.phase = Phase::Failed;
            let known = status.revisions.get_or_insert_default();
            known.seen = Some(revisions.target.clone());
            known.rejected = Some(revisions.target.clone());
        }
        Some("Succeeded") => status.phase = Phase::Succeeded,
        Some("Progressing") => under_way(&mut status, theirs, plan, revisions, now)?,
        _ => {}
    }
    Ok(status)
}

/// A release that goes on at the step with the weight that Flagger has set.
fn under_way(
    status: &mut CanaryStatus,
    theirs: &DynamicObject,
    plan: Option<&Plan>,
    revisions: &workload::AdoptedRevisions,
    now: Time,
) -> anyhow::Result<()> {
    let plan = plan
        .context("its metrics need templates, so its release cannot be continued; wait until it has ended")?;
    let percent = theirs.data["status"]["canaryWeight"].as_f64().unwrap_or_default();
    let weight = Weight::from_percent(percent)?;
    status.phase = Phase::Progressing;
    status.releases = 1;
    status.canary_weight = weight;
    status.failed_checks = theirs.data["status"]["failedChecks"].as_u64().unwrap_or_default() as u32;
    status.revisions = Some(Revisions {
        primary: Some(revisions.primary.clone()),
        candidate: Some(revisions.target.clone()),
        seen: Some(revisions.target.clone()),
        ..Revisions::default()
    });
    status.release = Some(ReleaseStatus {
        revision: revisions.target.clone(),
        trigger: Trigger::PodTemplate,
        started_at: now.clone(),
        last_progress_at: now.clone(),
        paused: false,
        state: ReleaseState {
            plan: plan.fingerprint.clone(),
            highest_weight: weight,
            holds_slot: true,
            ..ReleaseState::default()
        },
    });
    if weight == Weight::ZERO {
        return Ok(());
    }
    let index =
        plan.steps.iter().position(|step| step.split.canary == weight && step.split.matches.is_empty());
    let index = index.with_context(|| {
        format!("its release is at {percent} %, which is no step of its Canary here; wait until it has ended")
    })?;
    let total = plan.steps.len();
    status.step = Some(StepStatus {
        index: index as u32,
        total: total as u32,
        progress: format!("{}/{total}", index + 1),
        name: plan.steps[index].name.clone(),
        started_at: Some(now),
        ..StepStatus::default()
    });
    Ok(())
}

/// Every object of a namespace whose controller has this uid.
pub async fn owned_by(
    connection: &Connection,
    namespace: &str,
    uid: &str,
) -> anyhow::Result<Vec<(ApiResource, DynamicObject)>> {
    let mut owned = Vec::new();
    for (group, versions, kind) in OWNED_KINDS {
        for version in versions {
            let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
            let api: Api<DynamicObject> =
                Api::namespaced_with(connection.client.clone(), namespace, &resource);
            match api.list(&ListParams::default()).await {
                Ok(list) => {
                    let ours = |object: &DynamicObject| {
                        object.owner_references().iter().any(|owner| owner.uid == uid)
                    };
                    owned.extend(list.items.into_iter().filter(ours).map(|one| (resource.clone(), one)));
                    break;
                }
                // The cluster does not serve the kind in this version.
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                Err(error) => return Err(connection.error(&format!("list {kind} objects"), &error)),
            }
        }
    }
    Ok(owned)
}

/// The writes that give everything back to Flagger.
pub async fn undo(connection: &Connection, found: &Found) -> anyhow::Result<Vec<Write>> {
    let mut writes = Vec::new();
    for theirs in found.canaries.iter().filter(|theirs| theirs.annotations().contains_key(MIGRATED)) {
        let (namespace, name) = key(theirs);
        let api: Api<Canary> = Api::namespaced(connection.client.clone(), &namespace);
        let ours = api.get_opt(&name).await.map_err(|error| connection.error("read the Canary", &error))?;
        if let Some(ours) = ours {
            let from = ours.uid().unwrap_or_default();
            writes.push(Write::SuspendOurs { key: key(theirs) });
            for (resource, object) in owned_by(connection, &namespace, &from).await? {
                writes.push(Write::GiveBack {
                    transfer: Transfer { resource, key: key(&object), from: from.clone(), revision: None },
                    to: theirs.uid().unwrap_or_default(),
                    name: name.clone(),
                });
            }
            writes.push(Write::DeleteOurs { key: key(theirs) });
        }
        let before = theirs.annotations().get(MIGRATED).is_some_and(|before| before == "true");
        writes.push(Write::ResumeTheirs { key: key(theirs), suspend: before });
    }
    let replicas = found.flagger.annotations().get(MIGRATED).and_then(|text| text.parse().ok());
    if let Some(to) = replicas {
        writes.push(Write::ScaleFlagger { key: key(&found.flagger), from: 0, to });
    }
    Ok(writes)
}

/// The writes that remove Flagger's Canaries.
pub async fn finish(connection: &Connection, found: &Found) -> anyhow::Result<Vec<Write>> {
    let mut writes = Vec::new();
    for theirs in found.canaries.iter().filter(|theirs| theirs.annotations().contains_key(MIGRATED)) {
        let (namespace, name) = key(theirs);
        let left = owned_by(connection, &namespace, &theirs.uid().unwrap_or_default()).await?;
        ensure!(
            left.is_empty(),
            "{namespace}/{name} still owns {} objects; run serin migrate --live again first",
            left.len()
        );
        let api: Api<Canary> = Api::namespaced(connection.client.clone(), &namespace);
        let ours = api.get_opt(&name).await.map_err(|error| connection.error("read the Canary", &error))?;
        ensure!(ours.is_some(), "{namespace}/{name} has no Canary of Serin; run serin migrate --live first");
        writes.push(Write::DeleteTheirs { key: key(theirs) });
    }
    Ok(writes)
}
