//! The older variant of the protocol, and endpoints alone.

use std::net::SocketAddr;

use envoy_types::pb::envoy::config::core::v3::Node;
use envoy_types::pb::envoy::config::endpoint::v3::ClusterLoadAssignment;
use envoy_types::pb::envoy::service::discovery::v3::{
    DiscoveryRequest, DiscoveryResponse,
    aggregated_discovery_service_client::AggregatedDiscoveryServiceClient,
};
use envoy_types::pb::envoy::service::endpoint::v3::endpoint_discovery_service_client::EndpointDiscoveryServiceClient;
use envoy_types::pb::google::rpc;
use prost::Message;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tonic::{Code, Status};

use crate::client::{CDS, EDS, LDS, RDS, SILENCE, WEB, channel, node};
use crate::delivery::addresses;
use crate::plane::{LIMIT, Plane, key};

struct Client {
    node: Option<Node>,
    requests: mpsc::Sender<DiscoveryRequest>,
    responses: tonic::Streaming<DiscoveryResponse>,
}

impl Client {
    async fn connect(address: SocketAddr, aggregated: bool) -> Client {
        let (requests, receiver) = mpsc::channel(64);
        let outgoing = futures::stream::unfold(receiver, |mut receiver: mpsc::Receiver<_>| async {
            let request = receiver.recv().await?;
            Some((request, receiver))
        });
        let channel = channel(address).await;
        let responses = if aggregated {
            AggregatedDiscoveryServiceClient::new(channel).stream_aggregated_resources(outgoing).await
        } else {
            EndpointDiscoveryServiceClient::new(channel).stream_endpoints(outgoing).await
        };
        let responses = responses.expect("a stream").into_inner();
        Client { node: Some(node("a", &["shop/web:80=127.0.0.1:15001"])), requests, responses }
    }

    async fn request(&mut self, url: &str, names: &[&str], version: &str, nonce: &str) {
        let request = DiscoveryRequest {
            node: self.node.take(),
            type_url: url.to_owned(),
            resource_names: names.iter().map(ToString::to_string).collect(),
            version_info: version.to_owned(),
            response_nonce: nonce.to_owned(),
            ..DiscoveryRequest::default()
        };
        self.requests.send(request).await.expect("an open stream");
    }

    async fn next(&mut self) -> Result<DiscoveryResponse, Status> {
        let message = timeout(LIMIT, self.responses.message()).await.expect("a response in time")?;
        message.ok_or_else(|| Status::ok("the stream has ended"))
    }

    async fn accept(&mut self, names: &[&str]) -> DiscoveryResponse {
        let response = self.next().await.expect("a response");
        self.request(&response.type_url, names, &response.version_info, &response.nonce).await;
        response
    }

    async fn is_silent(&mut self) -> bool {
        timeout(SILENCE, self.responses.message()).await.is_err()
    }
}

#[tokio::test]
async fn all_resources_are_sent_and_after_a_restart_none() {
    let plane = Plane::start().await;
    plane.web(addresses());
    plane.ready();
    let mut proxy = Client::connect(plane.address, true).await;
    let mut versions = Vec::new();
    let (all, route): (&[&str], &[&str]) = (&[], &["shop/web:80"]);
    for (url, names, count) in [(CDS, all, 3), (EDS, &WEB[..], 3), (LDS, all, 1), (RDS, route, 1)] {
        proxy.request(url, names, "", "").await;
        let response = proxy.accept(names).await;
        assert_eq!((response.type_url.as_str(), response.resources.len()), (url, count));
        versions.push((url, names, response.version_info));
    }
    plane.in_force(1).await;
    plane.split(2, 5_00);
    let response = proxy.accept(&["shop/web:80"]).await;
    assert_eq!((response.type_url.as_str(), response.resources.len()), (RDS, 1));
    versions[3].2 = response.version_info;
    plane.in_force(2).await;

    let after = Plane::start().await;
    after.web(addresses());
    after.split(2, 5_00);
    after.ready();
    let mut proxy = Client::connect(after.address, true).await;
    for (url, names, version) in &versions {
        proxy.request(url, names, version, "").await;
    }
    assert!(proxy.is_silent().await);
    after.in_force(2).await;
}

#[tokio::test]
async fn names_that_are_added_are_answered_and_a_refusal_is_reported() {
    let plane = Plane::start().await;
    plane.web(addresses());
    plane.ready();
    let mut proxy = Client::connect(plane.address, true).await;
    proxy.request(EDS, &WEB[..1], "", "").await;
    let response = proxy.accept(&WEB[..1]).await;
    assert_eq!(response.resources.len(), 1);
    proxy.request(EDS, &WEB, &response.version_info, &response.nonce).await;
    assert_eq!(proxy.accept(&WEB).await.resources.len(), 2, "the ones that it lacks");

    proxy.request(RDS, &["shop/web:80"], "", "").await;
    let response = proxy.next().await.expect("a route");
    let refusal = DiscoveryRequest {
        type_url: RDS.to_owned(),
        resource_names: vec!["shop/web:80".to_owned()],
        response_nonce: response.nonce,
        error_detail: Some(rpc::Status { code: 3, message: "bad".to_owned(), details: Vec::new() }),
        ..DiscoveryRequest::default()
    };
    proxy.requests.send(refusal).await.expect("an open stream");
    assert!(proxy.is_silent().await);
    assert_eq!(&*plane.control.route_state(&key("web")).refusals[0].error, "bad");
}

#[tokio::test]
async fn endpoints_are_streamed_alone() {
    let plane = Plane::start().await;
    plane.web(addresses());
    plane.ready();
    let mut proxy = Client::connect(plane.address, false).await;
    proxy.request(EDS, &["shop/web:80"], "", "").await;
    let response = proxy.accept(&["shop/web:80"]).await;
    let assignment = ClusterLoadAssignment::decode(&*response.resources[0].value).expect("an assignment");
    assert_eq!((assignment.cluster_name.as_str(), assignment.endpoints.len()), ("shop/web:80", 1));
    plane.service("web", &[]);
    let response = proxy.accept(&["shop/web:80"]).await;
    let assignment = ClusterLoadAssignment::decode(&*response.resources[0].value).expect("an assignment");
    assert_eq!(assignment.endpoints.len(), 0);
    proxy.request(CDS, &[], "", "").await;
    assert_eq!(proxy.next().await.expect_err("endpoints only").code(), Code::InvalidArgument);
}
