//! Reads and writes that the actions are made of.

use kube::{
    Client, ResourceExt as _,
    api::{Api, DeleteParams, Patch, PostParams, Preconditions},
    core::DynamicObject,
};
use serde_json::json;

use super::{Kind, Workload, act::Error};
use crate::{
    patch::{FIELD_MANAGER, apply_params, merge_diff, merge_params},
    stripped::StrippedObject,
};

impl Workload {
    pub(super) async fn get_required(
        &self,
        client: &Client,
        kind: Kind,
        name: &str,
        attempt: &str,
    ) -> Result<DynamicObject, Error> {
        get(client, &self.namespace, kind, name).await?.ok_or_else(|| Error::Missing {
            attempt: attempt.to_owned(),
            kind: kind.name(),
            name: name.to_owned(),
        })
    }

    /// False if an object of that name exists (409).
    pub(super) async fn create(&self, client: &Client, object: &DynamicObject) -> Result<bool, Error> {
        let create = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..Default::default() };
        match api(client, &self.namespace, self.kind()).create(&create, object).await {
            Err(error) if code(&error) == Some(409) => Ok(false),
            other => other
                .map(|_| true)
                .map_err(Error::api(format!("create {}", kind_and_name(self.kind(), object)))),
        }
    }

    /// Patches the difference, with the resourceVersion as precondition; none on a
    /// conflict. Fields that the cache strips stay.
    pub(super) async fn patch_if_unchanged(
        &self,
        client: &Client,
        from: &DynamicObject,
        to: &DynamicObject,
    ) -> Result<Option<DynamicObject>, Error> {
        let meta = |object: &DynamicObject| {
            let meta = &object.metadata;
            json!({ "labels": meta.labels, "annotations": meta.annotations, "ownerReferences": meta.owner_references })
        };
        let mut metadata = merge_diff(&meta(from), &meta(to));
        metadata["resourceVersion"] = json!(from.resource_version());
        metadata["uid"] = json!(from.uid());
        let patch = json!({ "metadata": metadata, "spec": merge_diff(&from.data["spec"], &to.data["spec"]) });
        match self.workload_api(client).patch(&from.name_any(), &merge_params(), &Patch::Merge(&patch)).await
        {
            Err(error) if code(&error) == Some(409) => Ok(None),
            other => other
                .map(|StrippedObject(written)| Some(written))
                .map_err(Error::api(format!("change {}", kind_and_name(self.kind(), from)))),
        }
    }

    pub(super) fn workload_api(&self, client: &Client) -> Api<StrippedObject> {
        Api::namespaced_with(client.clone(), &self.namespace, self.kind().resource())
    }

    pub(super) async fn apply(
        &self,
        client: &Client,
        kind: Kind,
        object: &DynamicObject,
    ) -> Result<(), Error> {
        api(client, &self.namespace, kind)
            .patch(&object.name_any(), &apply_params(), &Patch::Apply(object))
            .await
            .map_err(Error::api(format!("apply {}", kind_and_name(kind, object))))?;
        Ok(())
    }

    /// Deletes an object if this Canary owns it.
    pub(super) async fn delete_own(&self, client: &Client, kind: Kind, name: &str) -> Result<(), Error> {
        let Some(object) = get(client, &self.namespace, kind, name).await? else { return Ok(()) };
        if !self.is_owner(&object.metadata) {
            return Ok(());
        }
        let precondition = Preconditions { uid: object.uid(), resource_version: None };
        let delete = DeleteParams { preconditions: Some(precondition), ..DeleteParams::background() };
        match api(client, &self.namespace, kind).delete(name, &delete).await {
            Err(error) if code(&error) == Some(404) => Ok(()),
            other => other.map(|_| ()).map_err(Error::api(format!("delete {} {name}", kind.name()))),
        }
    }

    pub(super) fn conflict_error(&self, attempt: &str) -> Error {
        let conflict = kube::core::Status::failure("other clients keep writing to it", "Conflict");
        Error::api(attempt)(kube::Error::Api(Box::new(conflict.with_code(409))))
    }
}

pub(super) async fn get(
    client: &Client,
    namespace: &str,
    kind: Kind,
    name: &str,
) -> Result<Option<DynamicObject>, Error> {
    let attempt = || format!("read {} {name}", kind.name());
    api(client, namespace, kind).get_opt(name).await.map_err(|error| Error::api(attempt())(error))
}

pub(super) fn api(client: &Client, namespace: &str, kind: Kind) -> Api<DynamicObject> {
    Api::namespaced_with(client.clone(), namespace, kind.resource())
}

fn kind_and_name(kind: Kind, object: &DynamicObject) -> String {
    format!("{} {}", kind.name(), object.name_any())
}

pub(super) fn code(error: &kube::Error) -> Option<u16> {
    match error {
        kube::Error::Api(status) => Some(status.code),
        _ => None,
    }
}
