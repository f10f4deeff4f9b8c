//! How a Canary is woken, from wherever.

use std::fmt;

use kube::core::ObjectMeta;
use tokio::sync::mpsc;

use super::table::Held;

/// A Canary, whether it exists or not.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CanaryName {
    pub namespace: String,
    pub name: String,
}

impl fmt::Display for CanaryName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

pub struct Woken {
    pub canary: CanaryName,
    /// What a watch told of, if that is all.
    pub by: Option<Version>,
}

/// One state of one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    uid: Option<String>,
    version: Option<String>,
}

impl Version {
    pub fn of(meta: &ObjectMeta) -> Self {
        Self { uid: meta.uid.clone(), version: meta.resource_version.clone() }
    }
}

#[derive(Clone)]
pub struct Waker(mpsc::UnboundedSender<Woken>);

impl Waker {
    pub fn new() -> (Self, mpsc::UnboundedReceiver<Woken>) {
        let (sender, receiver) = mpsc::unbounded_channel();
        (Self(sender), receiver)
    }

    pub fn wake(&self, canary: CanaryName) {
        self.send(Woken { canary, by: None });
    }

    /// A watch told of this version; of none if it told of something else.
    pub fn tell(&self, canary: CanaryName, by: Option<Version>) {
        self.send(Woken { canary, by });
    }

    /// Nobody listens any more when the controller ends, and then nobody needs
    /// to.
    fn send(&self, woken: Woken) {
        let _ = self.0.send(woken);
    }
}

impl CanaryName {
    /// Of a Canary, readable or not.
    pub fn of(canary: &impl Held) -> Self {
        let meta = canary.metadata();
        Self {
            namespace: meta.namespace.clone().unwrap_or_default(),
            name: meta.name.clone().unwrap_or_default(),
        }
    }
}
