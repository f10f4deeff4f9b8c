//! A workload as a cache keeps it.

use std::{borrow::Cow, collections::BTreeMap};

use kube::{
    Resource,
    core::{ApiResource, DynamicObject, DynamicResourceScope, ObjectMeta},
};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Value, json, value::RawValue};

use super::{Kind, shape};
use crate::lean;

/// A Deployment, DaemonSet or Service, small enough to keep thousands of, and
/// complete enough to digest: its spec is kept as the API server wrote it.
///
/// A reflector of these is made with [`super::Kind::resource`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Snapshot {
    #[serde(default, deserialize_with = "lean::metadata")]
    pub metadata: ObjectMeta,
    #[serde(default)]
    spec: Spec,
    #[serde(default)]
    pub(super) status: Counts,
}

impl Snapshot {
    /// As the API server gave it.
    pub fn spec(&self) -> Value {
        serde_json::from_str(self.spec.text.get()).unwrap_or_default()
    }

    /// The same for everybody who looks at it: much of what a workload's
    /// controller writes is about its own progress.
    pub fn is_same(&self, other: &Self) -> bool {
        let of = |meta: &'_ ObjectMeta| (meta.generation, meta.deletion_timestamp.is_some());
        let (a, b) = (&self.metadata, &other.metadata);
        self.status == other.status
            && of(a) == of(b)
            && a.owner_references == b.owner_references
            && self.is_written_alike(other)
    }

    /// The same but for what becomes of it by itself.
    pub fn is_written_alike(&self, other: &Self) -> bool {
        let (a, b) = (&self.metadata, &other.metadata);
        a.uid == b.uid
            && a.labels == b.labels
            && a.annotations == b.annotations
            && self.spec.text.get() == other.spec.text.get()
    }

    /// All of it that is kept.
    pub(super) fn object(&self, kind: Kind) -> DynamicObject {
        DynamicObject {
            types: Some(kind.types()),
            metadata: self.metadata.clone(),
            data: json!({ "spec": self.spec() }),
        }
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
    pub fn state(&self) -> (Option<&str>, String) {
        let meta = &self.metadata;
        let version = match meta.generation {
            Some(generation) => generation.to_string(),
            None => meta.resource_version.clone().unwrap_or_default(),
        };
        (meta.uid.as_deref(), version)
    }
}

/// The spec's text, and what is asked for so often that it is not read anew.
#[derive(Clone, Debug)]
struct Spec {
    text: Box<RawValue>,
    replicas: Option<u32>,
    runs_nowhere: bool,
    revision: Option<String>,
}

impl Default for Spec {
    fn default() -> Self {
        Self { text: RawValue::NULL.to_owned(), replicas: None, runs_nowhere: false, revision: None }
    }
}

impl<'de> Deserialize<'de> for Spec {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Box::<RawValue>::deserialize(deserializer)?;
        // Of any other shape it has none of these.
        let Glance { replicas, template } = serde_json::from_str(text.get()).unwrap_or_default();
        Ok(Self {
            replicas,
            runs_nowhere: template.spec.node_selector.is_some_and(|nodes| nodes.contains_key(shape::NOWHERE)),
            revision: template.metadata.annotations.and_then(|mut all| all.remove(super::REVISION)),
            text,
        })
    }
}

impl Serialize for Spec {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.text.serialize(serializer)
    }
}

/// What is read of a spec; the rest is passed over.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Glance {
    replicas: Option<u32>,
    template: Template,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Template {
    metadata: TemplateMeta,
    spec: TemplateSpec,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct TemplateMeta {
    annotations: Option<BTreeMap<String, String>>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct TemplateSpec {
    node_selector: Option<BTreeMap<String, String>>,
}

/// The counts of a status, by the names that each kind has for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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
