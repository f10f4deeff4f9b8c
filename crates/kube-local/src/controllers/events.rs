//! Records Events. Best effort: an Event that cannot be written is dropped.

use std::sync::atomic::{AtomicI64, Ordering};

use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::api::PostParams;
use kube::{Api, Client, Resource};

use work_queue::clock::Clock;

/// Writes the Events of one component.
pub struct EventRecorder {
    client: Client,
    clock: Clock,
    component: &'static str,
    next: AtomicI64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventType {
    Normal,
    Warning,
}

impl EventRecorder {
    pub fn new(client: Client, clock: Clock, component: &'static str) -> EventRecorder {
        EventRecorder { client, clock, component, next: AtomicI64::new(clock.now().as_microsecond()) }
    }

    pub async fn publish<K: Resource<DynamicType = ()>>(
        &self,
        object: &K,
        event_type: EventType,
        reason: &str,
        message: String,
    ) {
        let meta = object.meta();
        let namespace = meta.namespace.clone().unwrap_or_else(|| "default".to_owned());
        let name = meta.name.clone().unwrap_or_default();
        let now = Some(Time(self.clock.now()));
        let event = Event {
            metadata: ObjectMeta {
                name: Some(format!("{name}.{:x}", self.next.fetch_add(1, Ordering::Relaxed))),
                namespace: Some(namespace.clone()),
                ..ObjectMeta::default()
            },
            involved_object: ObjectReference {
                api_version: Some(K::api_version(&()).into_owned()),
                kind: Some(K::kind(&()).into_owned()),
                namespace: meta.namespace.clone(),
                name: Some(name),
                uid: meta.uid.clone(),
                resource_version: meta.resource_version.clone(),
                ..ObjectReference::default()
            },
            type_: Some(match event_type {
                EventType::Normal => "Normal".to_owned(),
                EventType::Warning => "Warning".to_owned(),
            }),
            reason: Some(reason.to_owned()),
            message: Some(message),
            source: Some(EventSource { component: Some(self.component.to_owned()), host: None }),
            reporting_component: Some(self.component.to_owned()),
            first_timestamp: now.clone(),
            last_timestamp: now,
            count: Some(1),
            ..Event::default()
        };
        let api: Api<Event> = Api::namespaced(self.client.clone(), &namespace);
        if let Err(error) = api.create(&PostParams::default(), &event).await {
            tracing::debug!(%error, reason, "cannot write an event");
        }
    }
}
