//! Recording: the status, once, last, and only if it changed; and the news, as
//! Events.

use std::sync::{
    Arc,
    atomic::{AtomicI64, Ordering},
};

use k8s_openapi::{
    api::core::v1::{Event, EventSource, ObjectReference},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};
use kube::{Api, Resource as _, ResourceExt as _, api::PostParams, core::DeserializeGuard};

use super::{Shared, desk::Desk, lease::Fenced};
use crate::{
    api::{Canary, CanaryStatus, canary::Severity},
    engine::{Decision, Report},
    workload::FIELD_MANAGER,
};

/// Why the status was not written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Fenced(#[from] Fenced),
    #[error("cannot write the status: {0}")]
    Status(Box<kube::Error>),
}

/// Records what was decided on `status`, which is what `canary` carried.
pub async fn record(
    shared: &Arc<Shared>,
    desk: &Desk,
    canary: &Canary,
    status: &CanaryStatus,
    decision: &Decision,
) -> Result<(), Error> {
    if decision.status != *status {
        shared.fence.check()?;
        write_status(shared, desk, canary, &decision.status).await?;
    }
    let said = decision.report.before.iter().chain(Some(&decision.report).filter(|report| report.news));
    for report in said {
        tell(shared, canary, report);
    }
    Ok(())
}

/// The version makes sure that nothing was decided on what has changed since.
async fn write_status(
    shared: &Shared,
    desk: &Desk,
    canary: &Canary,
    status: &CanaryStatus,
) -> Result<(), Error> {
    let mut object = Canary::new(&canary.name_any(), canary.spec.clone());
    object.metadata = ObjectMeta {
        name: canary.metadata.name.clone(),
        namespace: canary.metadata.namespace.clone(),
        uid: canary.metadata.uid.clone(),
        resource_version: canary.metadata.resource_version.clone(),
        ..ObjectMeta::default()
    };
    object.status = Some(status.clone());
    let api: Api<Canary> = Api::namespaced(shared.client.clone(), &canary.namespace().unwrap_or_default());
    let params = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..Default::default() };
    match api.replace_status(&canary.name_any(), &params, &object).await {
        Ok(mut written) => {
            written.metadata.managed_fields = None;
            desk.wrote_status(status.clone(), written.status.clone().unwrap_or_default());
            shared.caches.canaries.put_answer(DeserializeGuard(Ok(written)));
            Ok(())
        }
        // Gone, and its status with it.
        Err(kube::Error::Api(answer)) if answer.code == 404 => Ok(()),
        Err(error) => Err(Error::Status(Box::new(error))),
    }
}

/// An Event that cannot be written is lost; the status says it too.
fn tell(shared: &Arc<Shared>, canary: &Canary, report: &Report) {
    let severe = report.severity != Severity::Info;
    match severe {
        true => {
            tracing::warn!(canary = canary.name_any(), namespace = canary.namespace(), "{}", report.sentence)
        }
        false => {
            tracing::info!(canary = canary.name_any(), namespace = canary.namespace(), "{}", report.sentence)
        }
    }
    static COUNT: AtomicI64 = AtomicI64::new(0);
    let now = shared.clock.now();
    let number = now.as_microsecond().wrapping_add(COUNT.fetch_add(1, Ordering::Relaxed));
    let (name, namespace) = (canary.name_any(), canary.namespace().unwrap_or_default());
    let event = Event {
        metadata: ObjectMeta {
            name: Some(format!("{name}.{number:x}")),
            namespace: Some(namespace.clone()),
            ..ObjectMeta::default()
        },
        involved_object: ObjectReference {
            api_version: Some(Canary::api_version(&()).into_owned()),
            kind: Some(Canary::kind(&()).into_owned()),
            namespace: Some(namespace.clone()),
            name: Some(name),
            uid: canary.metadata.uid.clone(),
            ..ObjectReference::default()
        },
        type_: Some(if severe { "Warning" } else { "Normal" }.to_owned()),
        reason: Some(report.reason.code().to_owned()),
        message: Some(report.sentence.clone()),
        source: Some(EventSource { component: Some(FIELD_MANAGER.to_owned()), host: None }),
        reporting_component: Some(FIELD_MANAGER.to_owned()),
        first_timestamp: Some(Time(now)),
        last_timestamp: Some(Time(now)),
        count: Some(1),
        ..Event::default()
    };
    let events: Api<Event> = Api::namespaced(shared.client.clone(), &namespace);
    shared.background.spawn(async move {
        if let Err(error) = events.create(&PostParams::default(), &event).await {
            tracing::debug!(%error, "an event was lost");
        }
    });
}
