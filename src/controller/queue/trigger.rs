//! How a Canary is woken, from wherever.

use std::fmt;

use kube::core::ObjectMeta;
use tokio::sync::mpsc;

use super::store::HasMeta;

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
    /// What a watch told of, if that is all.
    pub changed: Option<ObjectVersion>,
}

/// One state of one object.
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

    /// A watch told of this version; of none if it told of something else.
    pub fn request_for_change(&self, canary: NamespacedName, changed: Option<ObjectVersion>) {
        self.send(ReconcileRequest { canary, changed });
    }

    /// Nobody listens any more when the controller ends, and then nobody needs
    /// to.
    fn send(&self, request: ReconcileRequest) {
        let _ = self.0.send(request);
    }
}

impl NamespacedName {
    /// Of a Canary, readable or not.
    pub fn of(canary: &impl HasMeta) -> Self {
        let meta = canary.metadata();
        Self {
            namespace: meta.namespace.clone().unwrap_or_default(),
            name: meta.name.clone().unwrap_or_default(),
        }
    }
}
