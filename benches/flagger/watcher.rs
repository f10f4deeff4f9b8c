//! When what happened, as one steady watch a kind was told.

use std::pin::pin;
use std::sync::Arc;
use std::time::Instant;

use futures::StreamExt as _;
use kube::api::{Api, ApiResource, DynamicObject};
use kube::core::GroupVersionKind;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Client, ResourceExt as _};
use parking_lot::Mutex;
use serde_json::Value;
use tokio_util::task::AbortOnDropHandle;

/// Of one canary.
#[derive(Clone, Default)]
pub struct ReleaseTimes {
    pub phase: String,
    /// The new revision was there.
    pub pushed: Option<Instant>,
    /// The canary was ready with it.
    pub ready: Option<Instant>,
    /// It had its first share of the traffic.
    pub routed: Option<Instant>,
    pub succeeded: Option<Instant>,
}

pub struct ReleaseWatcher {
    times: Arc<Mutex<Vec<ReleaseTimes>>>,
    _watches: Vec<AbortOnDropHandle<()>>,
}

pub fn name(index: usize) -> String {
    format!("app-{index}")
}

fn index(name: &str) -> Option<usize> {
    name.strip_prefix("app-")?.parse().ok()
}

impl ReleaseWatcher {
    pub fn start(
        client: &Client,
        namespace: &str,
        canaries: ApiResource,
        count: usize,
        image: &str,
    ) -> ReleaseWatcher {
        let moments = Arc::new(Mutex::new(vec![ReleaseTimes::default(); count]));
        let image = image.to_owned();
        let deployments = ApiResource::erase::<k8s_openapi::api::apps::v1::Deployment>(&());
        let see_deployment = move |of: &mut ReleaseTimes, object: &DynamicObject, now| {
            let (spec, status) = (&object.data["spec"], &object.data["status"]);
            if spec["template"]["spec"]["containers"][0]["image"] != *image {
                return;
            }
            of.pushed.get_or_insert(now);
            let number = |value: &Value| value.as_i64().unwrap_or(0);
            let replicas = number(&spec["replicas"]);
            let is_ready = replicas > 0
                && Some(number(&status["observedGeneration"])) == object.metadata.generation
                && number(&status["updatedReplicas"]) == replicas
                && number(&status["availableReplicas"]) == replicas;
            if is_ready {
                of.ready.get_or_insert(now);
            }
        };
        let record_split = |of: &mut ReleaseTimes, object: &DynamicObject, now| {
            let to = format!("{}-canary", object.name_any());
            let backends = object.data["spec"]["backends"].as_array().into_iter().flatten();
            let weight =
                backends.filter(|backend| backend["service"] == *to).find_map(|of| of["weight"].as_f64());
            if of.pushed.is_some() && weight.is_some_and(|weight| weight > 0.0) {
                of.routed.get_or_insert(now);
            }
        };
        let record_canary = |of: &mut ReleaseTimes, object: &DynamicObject, now| {
            of.phase = object.data["status"]["phase"].as_str().unwrap_or_default().to_owned();
            if of.pushed.is_some() && of.phase == "Succeeded" {
                of.succeeded.get_or_insert(now);
            }
        };
        let watch = |kind: &ApiResource, see| watch_kind(client, namespace, kind, Arc::clone(&moments), see);
        let watches = vec![
            watch(&deployments, Box::new(see_deployment)),
            watch(&splits(), Box::new(record_split)),
            watch(&canaries, Box::new(record_canary)),
        ];
        ReleaseWatcher { times: moments, _watches: watches }
    }

    pub fn times(&self) -> Vec<ReleaseTimes> {
        self.times.lock().clone()
    }

    pub fn count(&self, is_in_sync: impl Fn(&ReleaseTimes) -> bool) -> usize {
        self.times.lock().iter().filter(|moments| is_in_sync(moments)).count()
    }
}

type UpdateTimes = Box<dyn Fn(&mut ReleaseTimes, &DynamicObject, Instant) + Send>;

fn watch_kind(
    client: &Client,
    namespace: &str,
    kind: &ApiResource,
    moments: Arc<Mutex<Vec<ReleaseTimes>>>,
    see: UpdateTimes,
) -> AbortOnDropHandle<()> {
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, kind);
    AbortOnDropHandle::new(tokio::spawn(async move {
        let mut events = pin!(watcher(api, watcher::Config::default()).default_backoff());
        while let Some(event) = events.next().await {
            let now = Instant::now();
            let (Ok(Event::Apply(object)) | Ok(Event::InitApply(object))) = event else { continue };
            let mut moments = moments.lock();
            if let Some(of) = index(&object.name_any()).and_then(|index| moments.get_mut(index)) {
                see(of, &object, now);
            }
        }
    }))
}

pub fn splits() -> ApiResource {
    let kind = GroupVersionKind::gvk("split.smi-spec.io", "v1alpha2", "TrafficSplit");
    ApiResource::from_gvk_with_plural(&kind, "trafficsplits")
}
