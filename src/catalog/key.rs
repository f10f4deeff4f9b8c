//! Names of services.

use std::{fmt, sync::Arc};

/// A port of a service. The cluster is in every key, since an inventory may span several.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceKey {
    pub cluster: Arc<str>,
    pub namespace: Arc<str>,
    pub name: Arc<str>,
    pub port: u16,
    pub protocol: Protocol,
}

impl ServiceKey {
    /// The name of a service that has only those endpoints of another which run a version.
    /// No Service of Kubernetes can have such a name.
    pub fn name_of_version(name: &str, version: &str) -> Arc<str> {
        format!("{name}@{version}").into()
    }
}

/// What a proxy has to understand of the bytes that it forwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    Http1,
    /// gRPC too.
    Http2,
    Tcp,
}

/// `shop/web:80`
impl fmt::Display for ServiceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}:{}", self.namespace, self.name, self.port)
    }
}
