//! Requests to pods.

use async_trait::async_trait;
use bytes::Bytes;
use k8s_openapi::api::core::v1::Pod;
use reqwest::header::ACCEPT;

use crate::api::analysis_template::ScrapeTarget;
use crate::metrics::{
    Endpoint, UnsupportedScheme,
    http::{self, BodyError},
};

/// HTTP GET, over the network or to in-process pods.
#[async_trait]
pub trait Fetch: Send + Sync {
    /// The body of a successful response of at most `limit` bytes, or a message.
    async fn fetch(&self, url: &str, limit: usize) -> Result<Bytes, String>;
}

/// Over the network, without a proxy.
pub struct HttpFetch {
    client: reqwest::Client,
}

impl HttpFetch {
    pub fn new() -> Result<Self, reqwest::Error> {
        // Certificates of pods are not issued for their addresses.
        let client = http::client().no_proxy().tls_danger_accept_invalid_certs(true).build()?;
        Ok(Self { client })
    }
}

#[async_trait]
impl Fetch for HttpFetch {
    async fn fetch(&self, url: &str, limit: usize) -> Result<Bytes, String> {
        let request = self.client.get(url).header(ACCEPT, "text/plain;version=0.0.4");
        let response = request.send().await.map_err(|error| http::describe(&error))?;
        if !response.status().is_success() {
            return Err(format!("it responded {}", response.status()));
        }
        match http::body(response, limit).await {
            Ok(body) => Ok(body.into()),
            Err(BodyError::TooLarge) => Err(format!("its response is longer than {} MiB", limit >> 20)),
            Err(BodyError::Connection(error)) => Err(http::describe(&error)),
        }
    }
}

/// By the template, else by the pod's `prometheus.io` annotations, else
/// `/metrics` at `port`. None while the pod has no address, and once it is being
/// deleted.
pub fn endpoint(pod: &Pod, target: Option<&ScrapeTarget>, port: u16) -> Option<Endpoint> {
    let metadata = &pod.metadata;
    let address = pod.status.as_ref()?.pod_ip.as_ref().filter(|address| !address.is_empty())?;
    if metadata.deletion_timestamp.is_some() {
        return None;
    }
    let annotation = |name: &str| metadata.annotations.as_ref()?.get(&format!("prometheus.io/{name}"));
    let port =
        target.and_then(|target| target.port).or_else(|| annotation("port")?.parse().ok()).unwrap_or(port);
    let path = target.and_then(|target| target.path.as_ref()).or_else(|| annotation("path"));
    let path = path.map_or("/metrics", String::as_str);
    let host = if address.contains(':') { format!("[{address}]") } else { address.clone() };
    let slash = if path.starts_with('/') { "" } else { "/" };
    let name = metadata.name.clone()?;
    let url = match annotation("scheme").map_or("http", String::as_str) {
        scheme @ ("http" | "https") => Ok(format!("{scheme}://{host}:{port}{slash}{path}")),
        _ => Err(UnsupportedScheme { pod: name.clone() }),
    };
    Some(Endpoint { pod: metadata.uid.clone()?, name, url })
}
