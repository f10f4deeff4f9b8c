//! Which resources the server serves: the vocabulary of every other file here.
//!
//! A [`Resource`] is one kind in one version. Built-in kinds are listed by
//! `builtin`, custom ones come and go with their CustomResourceDefinition;
//! from here on the two are the same thing.

use std::collections::HashMap;
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::Value;

use super::events;
use super::schema::Schema;

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
    /// Writes to the main resource leave `status` alone, and the other way round.
    pub has_status: bool,
    pub scale: Option<ScalePaths>,
    pub columns: Vec<Column>,
    /// Parsed: defaults, prunes, validates, and knows which lists are maps.
    pub schema: Arc<Schema>,
    /// As published for `kubectl explain`: OpenAPI v3.
    pub open_api: Arc<Value>,
    pub origin: Origin,
}

/// Where a resource's rules beyond its schema come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    Builtin,
    Custom,
}

/// Dotted JSON paths, each beginning with a dot, as written in a CRD.
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

/// How a column's value is taken from an object.
#[derive(Clone)]
pub enum Cell {
    /// A JSON path as in a CRD's `additionalPrinterColumns`.
    Path(String),
    /// Built-in columns that are more than one field, such as a pod's READY.
    Function(fn(&Value, Timestamp) -> Value),
}

/// All that is served now; replaced as a whole when a definition changes.
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

    /// Created to be answered at once, never stored.
    pub fn is_review(&self) -> bool {
        self.origin == Origin::Builtin && self.kind.ends_with("Review")
    }

    /// Whether `metadata.generation` counts its changes.
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

    /// Where its objects are stored: all versions of a kind share one place.
    pub fn collection(&self) -> String {
        if events::has_new_event_shape(self) { "events".to_owned() } else { self.qualified_name() }
    }

    /// `deployments.apps`: what error messages and field selectors call it.
    pub fn qualified_name(&self) -> String {
        if self.group.is_empty() { self.plural.clone() } else { format!("{}.{}", self.plural, self.group) }
    }
}
