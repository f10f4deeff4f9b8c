//! The served resources.
//!
//! A [`Resource`] is one kind in one version. Built-in kinds are listed by
//! `builtin`; custom kinds come and go with their CustomResourceDefinition. The
//! other modules treat both alike.

use std::collections::HashMap;
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::Value;

use super::events;
use super::schema::Schema;

/// One kind in one version.
#[derive(Clone)]
pub struct Resource {
    /// Empty for the core group.
    pub group: String,
    pub version: String,
    pub kind: String,
    pub plural: String,
    pub singular: String,
    pub short_names: Vec<String>,
    pub categories: Vec<String>,
    pub namespaced: bool,
    /// Whether `status` is a subresource: other writes ignore it, and status
    /// writes ignore the rest.
    pub has_status: bool,
    pub scale: Option<ScalePaths>,
    pub columns: Vec<Column>,
    /// The parsed schema: defaults, pruning, validation and list types.
    pub schema: Arc<Schema>,
    /// The schema as published for `kubectl explain`: OpenAPI v3.
    pub open_api: Arc<Value>,
    pub origin: Origin,
}

/// Built-in kinds have defaults and validation beyond their schema.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    Builtin,
    Custom,
}

/// Paths of the scale subresource as in a CRD: dotted, with a leading dot.
#[derive(Clone, Debug)]
pub struct ScalePaths {
    pub spec_replicas: String,
    pub status_replicas: String,
    pub label_selector: Option<String>,
}

/// One column of `kubectl get`.
#[derive(Clone)]
pub struct Column {
    pub name: String,
    /// integer, number, string, boolean or date.
    pub kind: String,
    pub format: String,
    pub description: String,
    /// 0 is always shown, more only with `-o wide`.
    pub priority: i32,
    pub cell: Cell,
}

/// The source of a column's value.
#[derive(Clone)]
pub enum Cell {
    /// A JSON path as in a CRD's `additionalPrinterColumns`.
    Path(String),
    /// Built-in columns that are more than one field, such as a pod's READY.
    Function(fn(&Value, Timestamp) -> Value),
}

/// All served resources; replaced as a whole when a definition changes.
#[derive(Default)]
pub struct Kinds {
    all: Vec<Arc<Resource>>,
    by_path: HashMap<(String, String, String), Arc<Resource>>,
}

impl Kinds {
    pub fn new(all: Vec<Arc<Resource>>) -> Kinds {
        let by_path =
            all.iter().map(|r| ((r.group.clone(), r.version.clone(), r.plural.clone()), r.clone())).collect();
        Kinds { all, by_path }
    }

    pub fn all(&self) -> &[Arc<Resource>] {
        &self.all
    }

    pub fn find(&self, group: &str, version: &str, plural: &str) -> Option<&Arc<Resource>> {
        self.by_path.get(&(group.to_owned(), version.to_owned(), plural.to_owned()))
    }
}

impl Resource {
    /// `apps/v1`, or `v1` for the core group.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.clone() } else { format!("{}/{}", self.group, self.version) }
    }

    /// Whether objects are evaluated by the create request and never stored.
    pub fn is_review(&self) -> bool {
        self.origin == Origin::Builtin && self.kind.ends_with("Review")
    }

    /// Whether `metadata.generation` counts the object's changes.
    pub fn has_generation(&self) -> bool {
        match self.origin {
            Origin::Custom => true,
            Origin::Builtin => matches!(
                self.kind.as_str(),
                "Pod"
                    | "Deployment"
                    | "ReplicaSet"
                    | "DaemonSet"
                    | "StatefulSet"
                    | "Ingress"
                    | "PodDisruptionBudget"
                    | "EndpointSlice"
                    | "CustomResourceDefinition"
            ),
        }
    }

    /// The collection of its objects in the store; all versions of a kind share one.
    pub fn collection(&self) -> String {
        if events::has_new_event_shape(self) { "events".to_owned() } else { self.qualified_name() }
    }

    /// `deployments.apps`, as in error messages.
    pub fn qualified_name(&self) -> String {
        if self.group.is_empty() { self.plural.clone() } else { format!("{}.{}", self.plural, self.group) }
    }
}
