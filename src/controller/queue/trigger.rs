//! Reconcile requests: watches, background tasks and the release limiter send them.

use std::fmt;

use kube::{Resource, core::ObjectMeta};
use tokio::sync::mpsc;

/// Anything that has object metadata.
pub trait HasMeta {
    fn metadata(&self) -> &ObjectMeta;
}

impl<K: Resource> HasMeta for K {
    fn metadata(&self) -> &ObjectMeta {
        self.meta()
    }
}

/// A Canary, whether it exists or not.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NamespacedName {
    pub namespace: String,
    pub name: String,
}

impl fmt::Display for NamespacedName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

pub struct ReconcileRequest {
    pub canary: NamespacedName,
    /// Set if a watch event of this version is the only reason.
    pub changed: Option<ObjectVersion>,
}

/// One version of one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectVersion {
    uid: Option<String>,
    resource_version: Option<String>,
}

impl ObjectVersion {
    pub fn of(meta: &ObjectMeta) -> Self {
        Self { uid: meta.uid.clone(), resource_version: meta.resource_version.clone() }
    }
}

#[derive(Clone)]
pub struct RequestSender(mpsc::UnboundedSender<ReconcileRequest>);

impl RequestSender {
    pub fn new() -> (Self, mpsc::UnboundedReceiver<ReconcileRequest>) {
        let (sender, receiver) = mpsc::unbounded_channel();
        (Self(sender), receiver)
    }

    pub fn request(&self, canary: NamespacedName) {
        self.send(ReconcileRequest { canary, changed: None });
    }

    /// For a watch event of this version; none for a list or a deletion.
    pub fn request_for_change(&self, canary: NamespacedName, changed: Option<ObjectVersion>) {
        self.send(ReconcileRequest { canary, changed });
    }

    /// The receiver is gone when the controller stops; requests are moot then.
    fn send(&self, request: ReconcileRequest) {
        let _ = self.0.send(request);
    }
}

impl NamespacedName {
    /// The name of a Canary, valid or not.
    pub fn of(canary: &impl HasMeta) -> Self {
        let meta = canary.metadata();
        Self {
            namespace: meta.namespace.clone().unwrap_or_default(),
            name: meta.name.clone().unwrap_or_default(),
        }
    }
}
