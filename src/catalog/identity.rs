//! Who asks.

use std::fmt;
use std::sync::Arc;

/// Identity of a proxy: the SPIFFE URI of its certificate, else its common name; for a
/// listener without TLS a name that anybody may choose, which no policy admits.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Identity {
    /// `spiffe://cluster.local/ns/shop/sa/web`
    Spiffe(Arc<str>),
    CommonName(Arc<str>),
    Anonymous,
}

impl Identity {
    /// The ServiceAccount of a SPIFFE URI in Kubernetes' form, `(namespace, name)`.
    pub fn service_account(&self) -> Option<(&str, &str)> {
        let Self::Spiffe(uri) = self else { return None };
        let path = uri.strip_prefix("spiffe://")?.split_once('/')?.1;
        let (namespace, name) = path.strip_prefix("ns/")?.split_once("/sa/")?;
        (!namespace.is_empty() && !name.is_empty() && !name.contains('/')).then_some((namespace, name))
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Spiffe(uri) => f.write_str(uri),
            Self::CommonName(name) => write!(f, "CN={name}"),
            Self::Anonymous => f.write_str("anonymous"),
        }
    }
}
