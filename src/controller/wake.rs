//! How a Canary is woken, from wherever.

use std::fmt;

use kube::Resource;
use tokio::sync::mpsc;

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

#[derive(Clone)]
pub struct Waker(mpsc::UnboundedSender<CanaryName>);

impl Waker {
    pub fn new() -> (Self, mpsc::UnboundedReceiver<CanaryName>) {
        let (sender, receiver) = mpsc::unbounded_channel();
        (Self(sender), receiver)
    }

    /// Nobody listens any more when the controller ends, and then nobody needs
    /// to.
    pub fn wake(&self, canary: CanaryName) {
        let _ = self.0.send(canary);
    }
}

impl CanaryName {
    /// Of a Canary, readable or not.
    pub fn of(canary: &impl Resource) -> Self {
        let meta = canary.meta();
        Self {
            namespace: meta.namespace.clone().unwrap_or_default(),
            name: meta.name.clone().unwrap_or_default(),
        }
    }
}
