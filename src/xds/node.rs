//! How a proxy describes itself in the metadata of its node: the services that it calls,
//! those that it serves, and its own certificate.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;
use std::sync::Arc;

use envoy_types::pb::google::protobuf::{Struct, Value, value::Kind};
use serde_json::json;

use crate::catalog::{Catalog, ServiceKey};

/// In the metadata of a node.
const METADATA_KEY: &str = "serin";
const MAX_NAME_LENGTH: usize = 253;
/// Of upstreams, and of inbound ports.
const MAX_PORTS: usize = 1000;

/// A service as proxies name it, and the name of its cluster, endpoints and route:
/// `shop/web:80`, or `east/shop/web:80` for a service of another cluster.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceRef {
    /// None: the cluster of the control plane.
    pub cluster: Option<Arc<str>>,
    pub namespace: Arc<str>,
    pub name: Arc<str>,
    pub port: u16,
}

/// A service that a proxy calls, and where its workload reaches it:
/// `shop/web:80=127.0.0.1:15001`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upstream {
    pub service: ServiceRef,
    pub listen: SocketAddr,
}

/// A service that a proxy is in front of: where it listens, and where its workload does:
/// `shop/web:80=0.0.0.0:15080,127.0.0.1:8080`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Inbound {
    pub service: ServiceRef,
    pub listen: SocketAddr,
    pub application: SocketAddr,
}

/// PEM files on the machine of the proxy. It reloads them itself.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TlsFiles {
    pub certificate: String,
    pub key: String,
    /// Of the certificates of other proxies.
    pub ca: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeConfig {
    pub upstreams: Vec<Upstream>,
    pub inbound: Vec<Inbound>,
    /// Its inbound ports are endpoints of their services.
    pub announce: bool,
    pub tls: Option<Arc<TlsFiles>>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NodeError {
    #[error("{0:?} is no service: write NAMESPACE/NAME:PORT, such as shop/web:80")]
    Service(String),
    #[error("{0:?} is no upstream: write SERVICE=ADDRESS, such as shop/web:80=127.0.0.1:15001")]
    Upstream(String),
    #[error(
        "{0:?} is no inbound port: write SERVICE=LISTEN,APPLICATION, such as \
         shop/web:80=0.0.0.0:15080,127.0.0.1:8080"
    )]
    Inbound(String),
    #[error("metadata.{METADATA_KEY}.{field} of the node is no {expected}")]
    Metadata { field: &'static str, expected: &'static str },
    #[error("metadata.{METADATA_KEY}.{field} of the node has more than {MAX_PORTS} entries")]
    TooMany { field: &'static str },
    #[error("two listeners of the node have the address {0}")]
    SameAddress(SocketAddr),
}

impl ServiceRef {
    pub fn of(key: &ServiceKey, own_cluster: &str) -> Self {
        let ServiceKey { cluster, namespace, name, port, protocol: _ } = key;
        let cluster = (**cluster != *own_cluster).then(|| Arc::clone(cluster));
        Self { cluster, namespace: Arc::clone(namespace), name: Arc::clone(name), port: *port }
    }

    /// None if the catalog does not know it.
    pub fn resolve(&self, catalog: &Catalog, own_cluster: &Arc<str>) -> Option<ServiceKey> {
        catalog.resolve(self.cluster.as_ref().unwrap_or(own_cluster), &self.namespace, &self.name, self.port)
    }

    /// Another service of the namespace, or those of its endpoints that run a version.
    pub fn sibling(&self, name: &str, port: Option<u16>, version: Option<&str>) -> Self {
        let name = version.map_or_else(|| name.into(), |version| ServiceKey::name_of_version(name, version));
        Self { name, port: port.unwrap_or(self.port), ..self.clone() }
    }
}

impl fmt::Display for ServiceRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(cluster) = &self.cluster {
            write!(f, "{cluster}/")?;
        }
        write!(f, "{}/{}:{}", self.namespace, self.name, self.port)
    }
}

impl FromStr for ServiceRef {
    type Err = NodeError;

    fn from_str(text: &str) -> Result<Self, NodeError> {
        let parse = || {
            let (path, port) = text.rsplit_once(':')?;
            let port = port.parse().ok().filter(|port| *port != 0)?;
            let mut parts = path.split('/').rev();
            let (name, namespace) = (parts.next()?, parts.next()?);
            let cluster = parts.next();
            let valid = |part: &&str| {
                !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._@".contains(&b))
            };
            let all = [Some(name), Some(namespace), cluster];
            let fits = text.len() <= MAX_NAME_LENGTH && parts.next().is_none();
            (fits && all.iter().flatten().all(valid)).then(|| Self {
                cluster: cluster.map(Arc::from),
                namespace: namespace.into(),
                name: name.into(),
                port,
            })
        };
        parse().ok_or_else(|| NodeError::Service(excerpt(text)))
    }
}

impl FromStr for Upstream {
    type Err = NodeError;

    fn from_str(text: &str) -> Result<Self, NodeError> {
        let parse = || {
            let (service, listen) = text.split_once('=')?;
            Some(Self { service: service.parse().ok()?, listen: listen.parse().ok()? })
        };
        parse().ok_or_else(|| NodeError::Upstream(excerpt(text)))
    }
}

impl fmt::Display for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.service, self.listen)
    }
}

impl FromStr for Inbound {
    type Err = NodeError;

    fn from_str(text: &str) -> Result<Self, NodeError> {
        let parse = || {
            let (service, addresses) = text.split_once('=')?;
            let (listen, application) = addresses.split_once(',')?;
            Some(Self {
                service: service.parse().ok()?,
                listen: listen.parse().ok()?,
                application: application.parse().ok()?,
            })
        };
        parse().ok_or_else(|| NodeError::Inbound(excerpt(text)))
    }
}

impl fmt::Display for Inbound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={},{}", self.service, self.listen, self.application)
    }
}

impl NodeConfig {
    /// For the metadata of a node.
    pub fn to_metadata(&self) -> serde_json::Value {
        let texts = |all: &mut dyn Iterator<Item = String>| all.collect::<Vec<_>>();
        let mut own = json!({
            "upstreams": texts(&mut self.upstreams.iter().map(ToString::to_string)),
            "inbound": texts(&mut self.inbound.iter().map(ToString::to_string)),
            "announce": self.announce,
        });
        if let Some(TlsFiles { certificate, key, ca }) = self.tls.as_deref() {
            own["tls"] = json!({"certificate": certificate, "key": key, "ca": ca});
        }
        json!({ METADATA_KEY: own })
    }

    pub fn from_metadata(metadata: Option<&Struct>) -> Result<Self, NodeError> {
        let Some(own) = metadata.and_then(|metadata| metadata.fields.get(METADATA_KEY)) else {
            return Ok(Self::default());
        };
        let Some(Kind::StructValue(own)) = &own.kind else {
            return Err(NodeError::Metadata { field: "", expected: "object" });
        };
        let mut config = Self::default();
        for text in texts(own, "upstreams")? {
            config.upstreams.push(text.parse()?);
        }
        for text in texts(own, "inbound")? {
            config.inbound.push(text.parse()?);
        }
        config.announce = match own.fields.get("announce").map(|value| &value.kind) {
            None => false,
            Some(Some(Kind::BoolValue(announce))) => *announce,
            Some(_) => return Err(NodeError::Metadata { field: "announce", expected: "boolean" }),
        };
        if let Some(Value { kind: Some(Kind::StructValue(tls)) }) = own.fields.get("tls") {
            let file = |field| match tls.fields.get(field) {
                Some(Value { kind: Some(Kind::StringValue(path)) }) if path.len() < 4096 => Ok(path.clone()),
                _ => Err(NodeError::Metadata { field: "tls", expected: "object of certificate, key and ca" }),
            };
            config.tls = Some(Arc::new(TlsFiles {
                certificate: file("certificate")?,
                key: file("key")?,
                ca: file("ca")?,
            }));
        }
        let mut addresses = BTreeMap::new();
        let listen = config.upstreams.iter().map(|u| u.listen).chain(config.inbound.iter().map(|i| i.listen));
        for address in listen {
            if addresses.insert(address, ()).is_some() {
                return Err(NodeError::SameAddress(address));
            }
        }
        Ok(config)
    }
}

fn texts<'a>(own: &'a Struct, field: &'static str) -> Result<Vec<&'a str>, NodeError> {
    let Some(Value { kind: Some(value) }) = own.fields.get(field) else { return Ok(Vec::new()) };
    let wrong = || NodeError::Metadata { field, expected: "list of texts" };
    let Kind::ListValue(list) = value else { return Err(wrong()) };
    if list.values.len() > MAX_PORTS {
        return Err(NodeError::TooMany { field });
    }
    let text = |value: &'a Value| match &value.kind {
        Some(Kind::StringValue(text)) => Ok(text.as_str()),
        _ => Err(wrong()),
    };
    list.values.iter().map(text).collect()
}

/// Of a text that anybody may send, for a message.
fn excerpt(text: &str) -> String {
    text.chars().take(100).collect()
}
