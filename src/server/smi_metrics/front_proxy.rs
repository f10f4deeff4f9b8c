//! Users of an aggregated API, as the API server in front of it names them.
//!
//! The ConfigMap `extension-apiserver-authentication` in `kube-system` has the authority of
//! the API server's client certificate, its names, and the headers that it sets:
//! kubernetes.io/docs/tasks/extend-kubernetes/configure-aggregation-layer. Only such a client
//! passes the TLS handshake ([`FrontProxyVerifier`]), so its headers are to be believed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, HeaderName};
use k8s_openapi::api::authentication::v1::UserInfo;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Client};
use parking_lot::RwLock;
use tokio::time::{sleep, timeout};

use crate::api_error::api_message;
use crate::tls::{FrontProxyError, FrontProxyVerifier};

const NAMESPACE: &str = "kube-system";
const CONFIG_MAP: &str = "extension-apiserver-authentication";

/// A rotated authority is accepted after so long.
const REFRESH_INTERVAL: Duration = Duration::from_secs(60);
/// Until it was read once.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);
const READ_TIMEOUT: Duration = Duration::from_secs(30);

/// Of a user, all together: the API server's own limit of headers is larger.
const MAX_VALUES: usize = 1000;

/// Whom to trust, and how users are named. Clones share it.
#[derive(Clone, Default)]
pub struct FrontProxy {
    pub verifier: FrontProxyVerifier,
    headers: Arc<RwLock<Headers>>,
}

/// Names of headers, the first one with a value counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Headers {
    user: Vec<HeaderName>,
    uid: Vec<HeaderName>,
    groups: Vec<HeaderName>,
    /// In lower case, as names of headers are.
    extra_prefixes: Vec<String>,
}

#[derive(Debug, thiserror::Error)]
enum ConfigError {
    #[error("the ConfigMap {CONFIG_MAP} in {NAMESPACE} cannot be read: {0}")]
    Unreadable(String),
    #[error(
        "the ConfigMap {CONFIG_MAP} in {NAMESPACE} has no {0}: the API server was started without a front proxy"
    )]
    Missing(&'static str),
    #[error("{field} of the ConfigMap {CONFIG_MAP} in {NAMESPACE} is no list of {of}")]
    NoList { field: &'static str, of: &'static str },
    #[error(transparent)]
    Authority(#[from] FrontProxyError),
}

impl FrontProxy {
    /// Keeps to the ConfigMap until it is dropped.
    pub async fn follow(self, client: Client) {
        let (mut known, mut reported) = (BTreeMap::new(), false);
        loop {
            let read = timeout(READ_TIMEOUT, self.refresh(&client, &mut known)).await;
            match read.unwrap_or_else(|_| Err(ConfigError::Unreadable("timeout".to_owned()))) {
                Ok(()) => reported = false,
                Err(error) if !reported => {
                    tracing::warn!(%error, "requests of the API server for SMI metrics are checked by what was known before");
                    reported = true;
                }
                Err(_) => {}
            }
            sleep(if known.is_empty() { RETRY_INTERVAL } else { REFRESH_INTERVAL }).await;
        }
    }

    async fn refresh(
        &self,
        client: &Client,
        known: &mut BTreeMap<String, String>,
    ) -> Result<(), ConfigError> {
        let config_maps = Api::<ConfigMap>::namespaced(client.clone(), NAMESPACE);
        let read = config_maps.get(CONFIG_MAP).await;
        let data =
            read.map_err(|error| ConfigError::Unreadable(api_message(&error)))?.data.unwrap_or_default();
        if data != *known {
            self.apply(&data)?;
            *known = data;
        }
        Ok(())
    }

    fn apply(&self, data: &BTreeMap<String, String>) -> Result<(), ConfigError> {
        const AUTHORITY: &str = "requestheader-client-ca-file";
        let authority = data.get(AUTHORITY).ok_or(ConfigError::Missing(AUTHORITY))?;
        let headers = Headers {
            user: header_names(data, "requestheader-username-headers")?,
            uid: header_names(data, "requestheader-uid-headers")?,
            groups: header_names(data, "requestheader-group-headers")?,
            extra_prefixes: list(data, "requestheader-extra-headers-prefix")?
                .into_iter()
                .map(|prefix| prefix.to_ascii_lowercase())
                .collect(),
        };
        let names: BTreeSet<String> = list(data, "requestheader-allowed-names")?.into_iter().collect();
        self.verifier.accept(authority, names)?;
        *self.headers.write() = headers;
        Ok(())
    }

    /// None if no user is named.
    pub fn user(&self, headers: &HeaderMap) -> Option<UserInfo> {
        let names = self.headers.read().clone();
        let texts = |name: &HeaderName| -> Vec<String> {
            let values = headers.get_all(name).iter().take(MAX_VALUES);
            values.filter_map(|value| value.to_str().ok()).map(str::to_owned).collect()
        };
        let first = |names: &[HeaderName]| names.iter().flat_map(texts).find(|text| !text.is_empty());
        let username = first(&names.user)?;
        let groups = names.groups.iter().map(texts).find(|texts| !texts.is_empty());
        let mut extra: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for name in headers.keys().take(MAX_VALUES) {
            let prefix =
                names.extra_prefixes.iter().find_map(|prefix| name.as_str().strip_prefix(prefix.as_str()));
            if let Some(key) = prefix.filter(|key| !key.is_empty()) {
                extra.entry(unescaped(key)).or_default().extend(texts(name));
            }
        }
        let extra = (!extra.is_empty()).then_some(extra);
        Some(UserInfo { username: Some(username), uid: first(&names.uid), groups, extra })
    }
}

/// A JSON list; empty if it is missing.
fn list(data: &BTreeMap<String, String>, field: &'static str) -> Result<Vec<String>, ConfigError> {
    let Some(text) = data.get(field) else { return Ok(Vec::new()) };
    serde_json::from_str(text).map_err(|_| ConfigError::NoList { field, of: "texts in JSON" })
}

fn header_names(
    data: &BTreeMap<String, String>,
    field: &'static str,
) -> Result<Vec<HeaderName>, ConfigError> {
    let names = list(data, field)?.into_iter().map(|name| name.parse());
    names.collect::<Result<_, _>>().map_err(|_| ConfigError::NoList { field, of: "names of headers" })
}

/// Keys of extra values are percent-encoded, since headers allow fewer characters.
fn unescaped(key: &str) -> String {
    let bytes = key.as_bytes();
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        let hex = |from: usize| key.get(from..from + 2).and_then(|hex| u8::from_str_radix(hex, 16).ok());
        match (*byte, hex(at + 1)) {
            (b'%', Some(value)) => {
                decoded.push(value);
                at += 3;
            }
            (other, _) => {
                decoded.push(other);
                at += 1;
            }
        }
    }
    String::from_utf8(decoded).unwrap_or_else(|_| key.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known() -> FrontProxy {
        let headers = Headers {
            user: vec![HeaderName::from_static("x-remote-user")],
            uid: vec![HeaderName::from_static("x-remote-uid")],
            groups: vec![HeaderName::from_static("x-remote-group")],
            extra_prefixes: vec!["x-remote-extra-".to_owned()],
        };
        FrontProxy { headers: Arc::new(RwLock::new(headers)), ..FrontProxy::default() }
    }

    #[test]
    fn a_user_has_groups_and_extra_values() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("x-remote-user", "jane"),
            ("x-remote-group", "dev"),
            ("x-remote-group", "system:authenticated"),
            ("x-remote-extra-example.org%2fscope", "all"),
        ] {
            headers.append(name, value.parse().unwrap());
        }
        let user = known().user(&headers).unwrap();
        assert_eq!(user.username.as_deref(), Some("jane"));
        assert_eq!(user.groups.unwrap(), ["dev", "system:authenticated"]);
        assert_eq!(user.extra.unwrap(), [("example.org/scope".to_owned(), vec!["all".to_owned()])].into());
    }

    #[test]
    fn without_a_name_or_known_headers_there_is_no_user() {
        let mut headers = HeaderMap::new();
        headers.append("x-remote-group", "system:masters".parse().unwrap());
        assert_eq!(known().user(&headers), None);
        headers.append("x-remote-user", "jane".parse().unwrap());
        assert_eq!(FrontProxy::default().user(&headers), None);
    }
}
