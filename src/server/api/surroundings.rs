//! What is around a Canary: images and what changed, pods in trouble, events. Read from the
//! API server when somebody looks, at most every [`REUSE`] for each Canary and for all
//! callers together, and shown to callers who may read the same objects themselves.

use std::{collections::HashMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{Event, Pod},
    apimachinery::pkg::apis::meta::v1::LabelSelector,
};
use kube::{
    Api, Client, ResourceExt as _,
    api::ListParams,
    core::{ApiResource, DynamicObject},
};
use parking_lot::Mutex;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;
use tokio::time::Instant;

use crate::{
    api::{Canary, canary::TargetKind},
    controller::NamespacedName,
    engine::names,
    workload::{pod_trouble, pods},
};

/// How long an answer is reused.
const REUSE: Duration = Duration::from_secs(2);
/// Canaries whose surroundings are kept.
const MAX_KEPT: usize = 256;
const MAX_PODS: usize = 8;
const MAX_EVENTS: usize = 40;
/// Pods and events that are read at most.
const MAX_READ: u32 = 500;
const MAX_MESSAGE_CHARS: usize = 600;

#[derive(Clone, Default, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Surroundings {
    /// None: the caller may not read the workloads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub images: Option<Images>,
    /// None: the caller may not list pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pods: Option<Vec<String>>,
    /// Newest first. None: the caller may not list events.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub events: Option<Vec<EventView>>,
}

#[derive(Clone, Default, Serialize, JsonSchema)]
pub struct Images {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub primary: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub canary: Option<String>,
    /// What differs between the pod templates of the arms, without values other than images.
    pub changes: Vec<String>,
}

#[derive(Clone, Serialize, JsonSchema)]
pub struct EventView {
    #[schemars(with = "Option<String>")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<Timestamp>,
    pub warning: bool,
    pub reason: String,
    pub message: String,
}

/// Which parts a caller may see.
#[derive(Clone, Copy)]
pub struct May {
    pub workloads: bool,
    pub pods: bool,
    pub events: bool,
}

#[derive(Default)]
pub struct Reader {
    kept: Mutex<HashMap<NamespacedName, Slot>>,
}

/// Held while it is read, so that callers at the same time read once.
type Slot = Arc<tokio::sync::Mutex<Option<(Instant, Surroundings)>>>;

impl Reader {
    pub async fn read(&self, client: &Client, canary: &Canary, may: May) -> Surroundings {
        let slot = self.slot(NamespacedName::of(canary));
        let mut held = slot.lock().await;
        let fresh = held.as_ref().filter(|(at, _)| at.elapsed() < REUSE).map(|(_, found)| found.clone());
        let found = match fresh {
            Some(found) => found,
            None => {
                let found = read(client, canary).await;
                *held = Some((Instant::now(), found.clone()));
                found
            }
        };
        Surroundings {
            images: found.images.filter(|_| may.workloads),
            pods: found.pods.filter(|_| may.pods),
            events: found.events.filter(|_| may.events),
        }
    }

    fn slot(&self, name: NamespacedName) -> Slot {
        let mut kept = self.kept.lock();
        if kept.len() >= MAX_KEPT {
            kept.retain(|_, slot| Arc::strong_count(slot) > 1);
        }
        Arc::clone(kept.entry(name).or_default())
    }
}

/// Parts that cannot be read are left out.
async fn read(client: &Client, canary: &Canary) -> Surroundings {
    let namespace = canary.namespace().unwrap_or_default();
    let ((images, selector), events) =
        tokio::join!(read_images(client, canary, &namespace), read_events(client, canary, &namespace));
    let pods = match selector.as_ref().and_then(pods::selector) {
        Some(selector) => {
            let params = ListParams::default().limit(MAX_READ).labels_from(&selector);
            Api::<Pod>::namespaced(client.clone(), &namespace).list(&params).await.ok().map(|listed| {
                let now = Timestamp::now();
                let mut troubles: Vec<String> =
                    listed.items.iter().filter_map(|pod| pod_trouble(pod, now)).collect();
                let more = troubles.len().saturating_sub(MAX_PODS);
                troubles.truncate(MAX_PODS);
                troubles.iter_mut().for_each(shorten);
                troubles.extend((more > 0).then(|| format!("{more} more pods")));
                troubles
            })
        }
        None => Some(Vec::new()),
    };
    Surroundings { images, pods, events }
}

fn shorten(text: &mut String) {
    if let Some((at, _)) = text.char_indices().nth(MAX_MESSAGE_CHARS) {
        text.truncate(at);
        text.push('…');
    }
}

/// And the selector of the canary's pods.
async fn read_images(
    client: &Client,
    canary: &Canary,
    namespace: &str,
) -> (Option<Images>, Option<LabelSelector>) {
    let target = &canary.spec.target_ref;
    let resource = match target.kind {
        TargetKind::Deployment => ApiResource::erase::<k8s_openapi::api::apps::v1::Deployment>(&()),
        TargetKind::DaemonSet => ApiResource::erase::<k8s_openapi::api::apps::v1::DaemonSet>(&()),
        TargetKind::Service | TargetKind::EndpointGroup => return (None, None),
    };
    let api = Api::<DynamicObject>::namespaced_with(client.clone(), namespace, &resource);
    let primary = format!("{}-primary", target.name);
    let (target, primary) = tokio::join!(api.get_opt(&target.name), api.get_opt(&primary));
    let (Ok(target), Ok(primary)) = (target, primary) else { return (None, None) };
    let selector = target.as_ref().map(|target| target.data["spec"]["selector"].clone());
    let selector = selector.and_then(|selector| serde_json::from_value(selector).ok());
    let containers = |object: &Option<DynamicObject>| {
        let data =
            object.as_ref().map(|object| object.data["spec"]["template"]["spec"]["containers"].clone());
        data.and_then(|containers| containers.as_array().cloned()).unwrap_or_default()
    };
    (Some(compare(&containers(&primary), &containers(&target))), selector)
}

/// Values of variables and arguments may be secrets: only their names are shown.
fn compare(primary: &[Value], canary: &[Value]) -> Images {
    let named = |all: &[Value], name: &Value| all.iter().find(|one| one["name"] == *name).cloned();
    let (mut shown, mut changes) = (None, Vec::new());
    for new in canary {
        let name = new["name"].as_str().unwrap_or_default();
        let Some(old) = named(primary, &new["name"]) else {
            if !primary.is_empty() {
                changes.push(format!("{name}: a new container"));
            }
            continue;
        };
        if old["image"] != new["image"] {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            changes.push(format!("{name}: image {} → {}", text(&old["image"]), text(&new["image"])));
            shown = shown.or(Some((old.clone(), new.clone())));
        }
        changes.extend(changed_env(&old, new).into_iter().map(|change| format!("{name}: {change}")));
        for field in
            ["command", "args", "resources", "ports", "readinessProbe", "livenessProbe", "securityContext"]
        {
            if old[field] != new[field] {
                changes.push(format!("{name}: {field}"));
            }
        }
    }
    let gone = primary.iter().filter(|old| named(canary, &old["name"]).is_none() && !canary.is_empty());
    changes
        .extend(gone.map(|old| format!("{}: container removed", old["name"].as_str().unwrap_or_default())));
    let (old, new) = match shown {
        Some((old, new)) => (Some(old), Some(new)),
        None => (primary.first().cloned(), canary.first().cloned()),
    };
    let image = |container: Option<Value>| Some(names::short_image(container?["image"].as_str()?).to_owned());
    Images { primary: image(old), canary: image(new), changes }
}

fn changed_env(old: &Value, new: &Value) -> Vec<String> {
    let none = Vec::new();
    let (before, after) = (old["env"].as_array().unwrap_or(&none), new["env"].as_array().unwrap_or(&none));
    let find = |all: &[Value], name: &Value| all.iter().find(|one| one["name"] == *name).cloned();
    let name = |variable: &Value| variable["name"].as_str().unwrap_or_default().to_owned();
    let mut changes = Vec::new();
    for variable in after {
        match find(before, &variable["name"]) {
            None => changes.push(format!("env {} added", name(variable))),
            // Copies of ConfigMaps and Secrets have names of their own.
            Some(earlier) if earlier["value"] != variable["value"] => {
                changes.push(format!("env {} changed", name(variable)));
            }
            Some(_) => {}
        }
    }
    let gone = before.iter().filter(|earlier| find(after, &earlier["name"]).is_none());
    changes.extend(gone.map(|earlier| format!("env {} removed", name(earlier))));
    changes
}

async fn read_events(client: &Client, canary: &Canary, namespace: &str) -> Option<Vec<EventView>> {
    let about = format!("involvedObject.kind=Canary,involvedObject.name={}", canary.name_any());
    let params = ListParams::default().limit(MAX_READ).fields(&about);
    let listed = Api::<Event>::namespaced(client.clone(), namespace).list(&params).await.ok()?;
    let mut events: Vec<EventView> = listed
        .items
        .into_iter()
        // Of an earlier Canary of this name.
        .filter(|event| event.involved_object.uid == canary.metadata.uid)
        .map(|event| {
            let at = event.last_timestamp.map(|at| at.0).or(event.event_time.map(|at| at.0));
            let mut message = event.message.unwrap_or_default();
            shorten(&mut message);
            EventView {
                at: at.or(event.metadata.creation_timestamp.map(|at| at.0)),
                warning: event.type_.as_deref() == Some("Warning"),
                reason: event.reason.unwrap_or_default(),
                message,
            }
        })
        .collect();
    events.sort_by_key(|event| std::cmp::Reverse(event.at));
    events.truncate(MAX_EVENTS);
    Some(events)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_change_names_images_and_variables_but_no_values() {
        let container = |image: &str, env: Value| json!({"name": "app", "image": image, "env": env});
        let old = container(
            "r.example/web:v1",
            json!([{"name": "KEY", "value": "old"}, {"name": "GONE", "value": "x"}]),
        );
        let new = container(
            "r.example/web:v2",
            json!([{"name": "KEY", "value": "s3cret"}, {"name": "NEW", "value": "y"}]),
        );
        let images = compare(&[old], &[new]);
        assert_eq!((images.primary.as_deref(), images.canary.as_deref()), (Some("web:v1"), Some("web:v2")));
        let expected = [
            "app: image r.example/web:v1 → r.example/web:v2",
            "app: env KEY changed",
            "app: env NEW added",
            "app: env GONE removed",
        ];
        assert_eq!(images.changes, expected);
    }
}
