//! `kube_local`'s node as the kubelet of a cluster.

use async_trait::async_trait;
use axum::body::Body;
use bytes::Bytes;
use http::Request;
use http_body_util::BodyExt as _;
use kube_local::node::address::Network;
use kube_local::node::{Node, NodeOptions};
use serin::metrics::scrape::Fetch;

use super::Cluster;

/// Has the cluster's node run its pods, on a thread of its own: it outlives the runtime of
/// the test that asked for it. It takes every pod that names no node.
pub fn run(cluster: &'static Cluster, network: Network) {
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Runtime::new().expect("a tokio runtime");
        runtime.block_on(async {
            let options = NodeOptions { network, ..NodeOptions::named(super::NODE) };
            Node::new(cluster.client().await, options).run().await;
        });
    });
}

/// Scrapes pods of a node that listens on no sockets.
pub struct FromNode(pub Node);

#[async_trait]
impl Fetch for FromNode {
    async fn fetch(&self, url: &str, _limit: usize) -> Result<Bytes, String> {
        let uri: http::Uri = url.parse().map_err(|error| format!("{error}"))?;
        let to = uri.authority().ok_or("no address")?.as_str();
        let to = to.parse().map_err(|error| format!("{to}: {error}"))?;
        let request = Request::get(uri.path()).body(Body::empty()).map_err(|error| error.to_string())?;
        let response = self.0.call(to, request).await.map_err(|error| error.to_string())?;
        let body = response.into_body().collect().await.map_err(|error| error.to_string())?;
        Ok(body.to_bytes())
    }
}
