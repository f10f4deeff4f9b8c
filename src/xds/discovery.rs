//! The gRPC services: ADS, incremental and state of the world, and EDS alone.

#![allow(clippy::result_large_err, reason = "tonic's Status")]

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;

use async_trait::async_trait;
use envoy_types::pb::envoy::config::core::v3::Node;
use envoy_types::pb::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse, Resource,
    aggregated_discovery_service_server::AggregatedDiscoveryService,
};
use envoy_types::pb::envoy::service::endpoint::v3::endpoint_discovery_service_server::EndpointDiscoveryService;
use futures::{Stream, stream};
use prost::Message;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::{Code, Request, Response, Status, Streaming};

use super::Shared;
use super::config::ResourceType;
use super::node::{NodeConfig, NodeError};
use super::state::{Refused, Request as StateRequest, Response as StateResponse, Variant};
use crate::catalog::Identity;

/// Who is at the other end of a connection.
#[derive(Clone)]
pub(super) struct Peer {
    pub identity: Identity,
    pub address: IpAddr,
    /// The connection is about to be closed: its streams end.
    pub closing: CancellationToken,
}

#[derive(Clone)]
pub(super) struct Discovery {
    pub shared: Arc<Shared>,
}

type Responses<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// One variant of the protocol.
trait Protocol: Send + 'static {
    const VARIANT: Variant;
    type Request: Send + 'static;
    type Response: Message + Send + 'static;

    fn request(&mut self, request: Self::Request) -> Result<(ResourceType, StateRequest), Status>;
    fn response(response: StateResponse) -> Self::Response;
}

struct Incremental;

/// Remembers the names of each type: a request repeats them all.
#[derive(Default)]
struct StateOfTheWorld {
    names: [BTreeSet<String>; 4],
}

struct Session<P: Protocol> {
    shared: Arc<Shared>,
    id: u64,
    wake: Arc<Notify>,
    requests: Streaming<P::Request>,
    protocol: P,
    /// The only type of a stream that is not aggregated.
    only: Option<ResourceType>,
    closing: CancellationToken,
    ended: bool,
}

#[async_trait]
impl AggregatedDiscoveryService for Discovery {
    type StreamAggregatedResourcesStream = Responses<DiscoveryResponse>;
    type DeltaAggregatedResourcesStream = Responses<DeltaDiscoveryResponse>;

    async fn stream_aggregated_resources(
        &self,
        request: Request<Streaming<DiscoveryRequest>>,
    ) -> Result<Response<Self::StreamAggregatedResourcesStream>, Status> {
        self.open(request, StateOfTheWorld::default(), None)
    }

    async fn delta_aggregated_resources(
        &self,
        request: Request<Streaming<DeltaDiscoveryRequest>>,
    ) -> Result<Response<Self::DeltaAggregatedResourcesStream>, Status> {
        self.open(request, Incremental, None)
    }
}

#[async_trait]
impl EndpointDiscoveryService for Discovery {
    type StreamEndpointsStream = Responses<DiscoveryResponse>;
    type DeltaEndpointsStream = Responses<DeltaDiscoveryResponse>;

    async fn stream_endpoints(
        &self,
        request: Request<Streaming<DiscoveryRequest>>,
    ) -> Result<Response<Self::StreamEndpointsStream>, Status> {
        self.open(request, StateOfTheWorld::default(), Some(ResourceType::Endpoints))
    }

    async fn delta_endpoints(
        &self,
        request: Request<Streaming<DeltaDiscoveryRequest>>,
    ) -> Result<Response<Self::DeltaEndpointsStream>, Status> {
        self.open(request, Incremental, Some(ResourceType::Endpoints))
    }

    async fn fetch_endpoints(
        &self,
        _: Request<DiscoveryRequest>,
    ) -> Result<Response<DiscoveryResponse>, Status> {
        Err(Status::unimplemented("endpoints are streamed: use StreamEndpoints or DeltaEndpoints"))
    }
}

impl Discovery {
    fn open<P: Protocol>(
        &self,
        request: Request<Streaming<P::Request>>,
        protocol: P,
        only: Option<ResourceType>,
    ) -> Result<Response<Responses<P::Response>>, Status> {
        let peer = request.extensions().get::<Peer>().cloned();
        let Peer { identity, address, closing } = peer.ok_or_else(|| Status::internal("no peer"))?;
        let connected = self.shared.state.lock().connect(P::VARIANT, identity, address);
        let (id, wake) = connected.map_err(status)?;
        let (shared, requests) = (Arc::clone(&self.shared), request.into_inner());
        let session = Session { shared, id, wake, requests, protocol, only, closing, ended: false };
        let responses = stream::unfold(session, |mut session| async move {
            let response = session.next().await?;
            Some((response, session))
        });
        Ok(Response::new(Box::pin(responses)))
    }
}

impl<P: Protocol> Session<P> {
    /// None: the stream has ended.
    async fn next(&mut self) -> Option<Result<P::Response, Status>> {
        while !self.ended {
            if let Some(response) = self.response() {
                return Some(Ok(response));
            }
            tokio::select! {
                biased;
                () = self.closing.cancelled() => return None,
                () = self.wake.notified() => {}
                request = self.requests.message() => match request {
                    Ok(Some(request)) => {
                        if let Err(refused) = self.receive(request) {
                            self.ended = true;
                            return Some(Err(refused));
                        }
                    }
                    Ok(None) => return None,
                    // Reset by the proxy, or not a message of the protocol.
                    Err(error) => {
                        self.ended = true;
                        return Some(Err(error));
                    }
                },
            }
        }
        None
    }

    fn response(&mut self) -> Option<P::Response> {
        let response = self.shared.state.lock().next_response(self.id, Instant::now())?;
        let response = P::response(response);
        self.shared.state.lock().count_sent(self.id, response.encoded_len());
        Some(response)
    }

    fn receive(&mut self, request: P::Request) -> Result<(), Status> {
        let (kind, request) = self.protocol.request(request)?;
        if self.only.is_some_and(|only| only != kind) {
            return Err(Status::invalid_argument(format!(
                "this stream is for {} only",
                ResourceType::Endpoints.url()
            )));
        }
        self.shared.state.lock().receive(self.id, kind, request).map_err(status)
    }
}

impl<P: Protocol> Drop for Session<P> {
    fn drop(&mut self) {
        self.shared.state.lock().disconnect(self.id, Instant::now());
        self.shared.deadline.notify_one();
    }
}

impl Protocol for Incremental {
    const VARIANT: Variant = Variant::Delta;
    type Request = DeltaDiscoveryRequest;
    type Response = DeltaDiscoveryResponse;

    fn request(&mut self, request: DeltaDiscoveryRequest) -> Result<(ResourceType, StateRequest), Status> {
        let kind = kind(&request.type_url)?;
        let initial = request.initial_resource_versions.into_iter();
        let request = StateRequest {
            node: node(request.node)?,
            subscribe: request.resource_names_subscribe,
            unsubscribe: request.resource_names_unsubscribe,
            // Of another program: as if it had none.
            initial: initial.map(|(name, version)| (name, parse_version(&version).unwrap_or(1))).collect(),
            version: None,
            nonce: request.response_nonce,
            error: request.error_detail.map(|status| status.message),
        };
        Ok((kind, request))
    }

    fn response(response: StateResponse) -> DeltaDiscoveryResponse {
        let StateResponse { kind, nonce, version, resources, removed } = response;
        let resources = resources.into_iter().map(|(name, encoded)| Resource {
            name: name.to_string(),
            version: format_version(encoded.version),
            resource: Some(encoded.any.clone()),
            ..Resource::default()
        });
        DeltaDiscoveryResponse {
            system_version_info: format_version(version),
            resources: resources.collect(),
            type_url: kind.url().to_owned(),
            removed_resources: removed.iter().map(ToString::to_string).collect(),
            nonce: nonce.to_string(),
            ..DeltaDiscoveryResponse::default()
        }
    }
}

impl Protocol for StateOfTheWorld {
    const VARIANT: Variant = Variant::StateOfTheWorld;
    type Request = DiscoveryRequest;
    type Response = DiscoveryResponse;

    fn request(&mut self, request: DiscoveryRequest) -> Result<(ResourceType, StateRequest), Status> {
        let kind = kind(&request.type_url)?;
        let names: BTreeSet<String> = request.resource_names.into_iter().collect();
        let before = std::mem::replace(&mut self.names[kind as usize], names.clone());
        let request = StateRequest {
            node: node(request.node)?,
            subscribe: names.difference(&before).cloned().collect(),
            unsubscribe: before.difference(&names).cloned().collect(),
            version: parse_version(&request.version_info),
            nonce: request.response_nonce,
            error: request.error_detail.map(|status| status.message),
            ..StateRequest::default()
        };
        Ok((kind, request))
    }

    fn response(response: StateResponse) -> DiscoveryResponse {
        let StateResponse { kind, nonce, version, resources, removed: _ } = response;
        DiscoveryResponse {
            version_info: format_version(version),
            resources: resources.into_iter().map(|(_, encoded)| encoded.any.clone()).collect(),
            type_url: kind.url().to_owned(),
            nonce: nonce.to_string(),
            ..DiscoveryResponse::default()
        }
    }
}

fn kind(url: &str) -> Result<ResourceType, Status> {
    let unknown = || {
        let url: String = url.chars().take(200).collect();
        Status::invalid_argument(format!(
            "no resources of type {url:?} are served: clusters, endpoints, listeners and routes are"
        ))
    };
    ResourceType::of_url(url).ok_or_else(unknown)
}

fn node(node: Option<Node>) -> Result<Option<(String, NodeConfig)>, Status> {
    let Some(node) = node else { return Ok(None) };
    let invalid = |error: NodeError| Status::invalid_argument(error.to_string());
    let config = NodeConfig::from_metadata(node.metadata.as_ref()).map_err(invalid)?;
    Ok(Some((node.id, config)))
}

fn status(refused: Refused) -> Status {
    let code = match refused {
        Refused::TooManyStreams { .. } | Refused::TooManySubscriptions { .. } => Code::ResourceExhausted,
        Refused::NoNode | Refused::NodeId | Refused::Name => Code::InvalidArgument,
        Refused::Ended => Code::Aborted,
    };
    Status::new(code, refused.to_string())
}

fn format_version(version: u64) -> String {
    format!("{version:016x}")
}

fn parse_version(text: &str) -> Option<u64> {
    u64::from_str_radix(text, 16).ok()
}
