//! A workload as a cache keeps it.

use std::{borrow::Cow, sync::Arc};

use kube::{
    Resource,
    core::{ApiResource, DynamicResourceScope, ObjectMeta},
};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use super::shape;

/// A Deployment, DaemonSet or Service, small enough to keep thousands of, and
/// complete enough to digest: its spec is kept as the API server wrote it.
///
/// A reflector of these is made with [`super::Kind::resource`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Snapshot {
    #[serde(default, deserialize_with = "without_bookkeeping")]
    pub metadata: ObjectMeta,
    #[serde(default)]
    spec: Spec,
    #[serde(default)]
    pub(super) status: Counts,
}

impl Snapshot {
    /// As the API server gave it.
    pub fn spec(&self) -> Value {
        serde_json::from_str(&self.spec.text).unwrap_or_default()
    }

    pub(super) fn replicas(&self) -> Option<u32> {
        self.spec.replicas
    }

    /// A DaemonSet that was asked to run nowhere.
    pub(super) fn runs_nowhere(&self) -> bool {
        self.spec.runs_nowhere
    }

    pub(super) fn annotation(&self, key: &str) -> Option<&str> {
        self.metadata.annotations.as_ref()?.get(key).map(String::as_str)
    }

    /// The revision it was made of, if it is a copy.
    pub(super) fn copied_revision(&self) -> Option<&str> {
        self.spec.revision.as_deref().or_else(|| self.annotation(super::REVISION))
    }

    /// Tells one spec of one object from any other.
    pub(super) fn state(&self) -> (Option<&str>, String) {
        let meta = &self.metadata;
        let version = match meta.generation {
            Some(generation) => generation.to_string(),
            None => meta.resource_version.clone().unwrap_or_default(),
        };
        (meta.uid.as_deref(), version)
    }
}

/// The spec's text, and what is asked for so often that it is not parsed anew.
#[derive(Clone, Debug, Default)]
struct Spec {
    text: Arc<str>,
    replicas: Option<u32>,
    runs_nowhere: bool,
    revision: Option<Box<str>>,
}

impl<'de> Deserialize<'de> for Spec {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let spec = Value::deserialize(deserializer)?;
        Ok(Self {
            replicas: shape::replicas(&spec),
            runs_nowhere: shape::runs_nowhere(&spec),
            revision: shape::template_revision(&spec).map(Into::into),
            text: spec.to_string().into(),
        })
    }
}

impl Serialize for Spec {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let spec: Value = serde_json::from_str(&self.text).unwrap_or_default();
        spec.serialize(serializer)
    }
}

/// The counts of a status, by the names that each kind has for them.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Counts {
    pub observed_generation: i64,
    pub replicas: u32,
    pub updated_replicas: u32,
    pub available_replicas: u32,
    pub desired_number_scheduled: u32,
    pub current_number_scheduled: u32,
    pub number_misscheduled: u32,
    pub updated_number_scheduled: u32,
    pub number_available: u32,
}

/// Who wrote which field, and when, is half of an object's size.
fn without_bookkeeping<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    let mut meta = ObjectMeta::deserialize(deserializer)?;
    meta.managed_fields = None;
    if let Some(annotations) = &mut meta.annotations {
        annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
    }
    Ok(meta)
}

impl Resource for Snapshot {
    type DynamicType = ApiResource;
    type Scope = DynamicResourceScope;

    fn kind(resource: &ApiResource) -> Cow<'_, str> {
        resource.kind.as_str().into()
    }

    fn group(resource: &ApiResource) -> Cow<'_, str> {
        resource.group.as_str().into()
    }

    fn version(resource: &ApiResource) -> Cow<'_, str> {
        resource.version.as_str().into()
    }

    fn api_version(resource: &ApiResource) -> Cow<'_, str> {
        resource.api_version.as_str().into()
    }

    fn plural(resource: &ApiResource) -> Cow<'_, str> {
        resource.plural.as_str().into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}
