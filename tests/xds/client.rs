//! A client of the incremental protocol that answers only when a test says so.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use envoy_types::pb::envoy::config::core::v3::Node;
use envoy_types::pb::envoy::config::endpoint::v3::ClusterLoadAssignment;
use envoy_types::pb::envoy::config::route::v3::{
    RouteConfiguration, route::Action, route_action::ClusterSpecifier,
};
use envoy_types::pb::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse,
    aggregated_discovery_service_client::AggregatedDiscoveryServiceClient,
};
use envoy_types::pb::google::protobuf::{ListValue, Struct, Value, value::Kind};
use envoy_types::pb::google::rpc;
use prost::Message;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;
use tonic::Status;
use tonic::transport::{Channel, Endpoint};

pub const CDS: &str = "type.googleapis.com/envoy.config.cluster.v3.Cluster";
pub const EDS: &str = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment";
pub const LDS: &str = "type.googleapis.com/envoy.config.listener.v3.Listener";
pub const RDS: &str = "type.googleapis.com/envoy.config.route.v3.RouteConfiguration";

/// Longer than anything that is sent at once.
pub const SILENCE: Duration = Duration::from_millis(400);

pub struct Client {
    node: Option<Node>,
    requests: mpsc::Sender<DeltaDiscoveryRequest>,
    responses: Responses,
    /// Received, and of another type than a test asked for.
    other: VecDeque<DeltaDiscoveryResponse>,
    /// By type and name, as acknowledged.
    pub versions: BTreeMap<&'static str, BTreeMap<String, String>>,
}

type Stream = tonic::Streaming<DeltaDiscoveryResponse>;

enum Responses {
    Opening(AbortOnDropHandle<Result<Stream, Status>>),
    Open(Box<Stream>),
}

impl Client {
    pub async fn connect(address: SocketAddr, node: Node) -> Client {
        Self::over(channel(address).await, node).await.expect("a stream")
    }

    /// Once the server has accepted the stream.
    pub async fn over(channel: Channel, node: Node) -> Result<Client, Status> {
        let mut client = Self::open(channel, node);
        client.responses().await?;
        Ok(client)
    }

    /// At once: grpc-go accepts a stream with its first response only.
    pub fn open(channel: Channel, node: Node) -> Client {
        let (requests, receiver) = mpsc::channel(64);
        let outgoing = futures::stream::unfold(receiver, |mut receiver: mpsc::Receiver<_>| async {
            let request = receiver.recv().await?;
            Some((request, receiver))
        });
        let opening = tokio::spawn(async move {
            let mut service = AggregatedDiscoveryServiceClient::new(channel);
            Ok(service.delta_aggregated_resources(outgoing).await?.into_inner())
        });
        let responses = Responses::Opening(AbortOnDropHandle::new(opening));
        let (other, versions) = (VecDeque::new(), BTreeMap::new());
        Client { node: Some(node), requests, responses, other, versions }
    }

    async fn responses(&mut self) -> Result<&mut Stream, Status> {
        if let Responses::Opening(opening) = &mut self.responses {
            self.responses = Responses::Open(Box::new(opening.await.expect("no panic")?));
        }
        match &mut self.responses {
            Responses::Open(responses) => Ok(&mut **responses),
            Responses::Opening(_) => unreachable!("it is open"),
        }
    }

    pub async fn send(&mut self, mut request: DeltaDiscoveryRequest) {
        request.node = self.node.take();
        self.send_raw(request).await;
    }

    /// As it is, with a node or without.
    pub async fn send_raw(&mut self, request: DeltaDiscoveryRequest) {
        // The server may have ended the stream.
        let _ = self.requests.send(request).await;
    }

    pub async fn subscribe(&mut self, url: &'static str, names: &[&str]) {
        let resource_names_subscribe = names.iter().map(ToString::to_string).collect();
        self.send(DeltaDiscoveryRequest { resource_names_subscribe, ..of(url) }).await;
    }

    /// With what an earlier connection had.
    pub async fn resubscribe(&mut self, url: &'static str, names: &[&str], had: &BTreeMap<String, String>) {
        let resource_names_subscribe = names.iter().map(ToString::to_string).collect();
        let initial_resource_versions = had.clone().into_iter().collect();
        self.send(DeltaDiscoveryRequest { resource_names_subscribe, initial_resource_versions, ..of(url) })
            .await;
    }

    pub async fn message(&mut self) -> Result<DeltaDiscoveryResponse, Status> {
        let message = async { self.responses().await?.message().await };
        let message = timeout(super::plane::LIMIT, message).await.expect("a response in time")?;
        message.ok_or_else(|| Status::ok("the stream has ended"))
    }

    /// The next response of this type, not acknowledged.
    pub async fn next(&mut self, url: &str) -> DeltaDiscoveryResponse {
        if let Some(at) = self.other.iter().position(|response| response.type_url == url)
            && let Some(response) = self.other.remove(at)
        {
            return response;
        }
        loop {
            let response = self.message().await.expect("a response");
            if response.type_url == url {
                return response;
            }
            self.other.push_back(response);
        }
    }

    pub async fn ack(&mut self, response: &DeltaDiscoveryResponse) {
        let url =
            [CDS, EDS, LDS, RDS].into_iter().find(|url| *url == response.type_url).expect("a known type");
        let versions = self.versions.entry(url).or_default();
        for resource in &response.resources {
            versions.insert(resource.name.clone(), resource.version.clone());
        }
        for name in &response.removed_resources {
            versions.remove(name);
        }
        self.send(DeltaDiscoveryRequest { response_nonce: response.nonce.clone(), ..of(url) }).await;
    }

    pub async fn nack(&mut self, response: &DeltaDiscoveryResponse, why: &str) {
        let error_detail = Some(rpc::Status { code: 3, message: why.to_owned(), details: Vec::new() });
        let response_nonce = response.nonce.clone();
        self.send(DeltaDiscoveryRequest { response_nonce, error_detail, ..of(&response.type_url) }).await;
    }

    pub async fn accept(&mut self, url: &str) -> DeltaDiscoveryResponse {
        let response = self.next(url).await;
        self.ack(&response).await;
        response
    }

    /// Acknowledges everything until these resources of the type are there.
    pub async fn accept_until(&mut self, url: &'static str, names: &[&str]) {
        loop {
            let had = self.versions.get(url);
            if names.iter().all(|name| had.is_some_and(|had| had.contains_key(*name))) {
                return;
            }
            self.accept(url).await;
        }
    }

    /// The response that came although none was due.
    pub async fn silence(&mut self) -> Option<DeltaDiscoveryResponse> {
        if let Some(response) = self.other.pop_front() {
            return Some(response);
        }
        let message = async { self.responses().await?.message().await };
        let message = timeout(SILENCE, message).await.ok()?;
        Some(message.expect("no error").expect("open"))
    }

    /// A proxy that calls `web`, with all that it is sent acknowledged.
    pub async fn of_web(address: SocketAddr, id: &str) -> Client {
        let mut client = Client::connect(address, node(id, &["shop/web:80=127.0.0.1:15001"])).await;
        client.start_web().await;
        client
    }

    pub async fn start_web(&mut self) {
        self.subscribe(CDS, &[]).await;
        self.accept_until(CDS, &WEB).await;
        self.subscribe(EDS, &WEB).await;
        self.accept_until(EDS, &WEB).await;
        self.subscribe(LDS, &[]).await;
        self.accept(LDS).await;
        self.subscribe(RDS, &["shop/web:80"]).await;
        self.accept(RDS).await;
    }
}

pub const WEB: [&str; 3] = ["shop/web:80", "shop/web-primary:80", "shop/web-canary:80"];

pub async fn channel(address: SocketAddr) -> Channel {
    let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("an address");
    endpoint.connect().await.expect("a connection")
}

pub fn of(url: &str) -> DeltaDiscoveryRequest {
    DeltaDiscoveryRequest { type_url: url.to_owned(), ..DeltaDiscoveryRequest::default() }
}

pub fn node(id: &str, upstreams: &[&str]) -> Node {
    let text = |text: &&str| Value { kind: Some(Kind::StringValue((*text).to_owned())) };
    let list = Kind::ListValue(ListValue { values: upstreams.iter().map(text).collect() });
    node_with(id, [("upstreams", list)])
}

pub fn node_with<const N: usize>(id: &str, fields: [(&str, Kind); N]) -> Node {
    let object = |fields: Vec<(&str, Kind)>| Struct {
        fields: fields
            .into_iter()
            .map(|(name, kind)| (name.to_owned(), Value { kind: Some(kind) }))
            .collect(),
    };
    let own = object(fields.into());
    Node {
        id: id.to_owned(),
        metadata: Some(object(vec![("serin", Kind::StructValue(own))])),
        ..Node::default()
    }
}

pub fn names(response: &DeltaDiscoveryResponse) -> BTreeSet<&str> {
    response.resources.iter().map(|resource| resource.name.as_str()).collect()
}

/// Clusters and weights of the first rule of a route.
pub fn weights(response: &DeltaDiscoveryResponse, name: &str) -> Vec<(String, u32)> {
    let resource = response.resources.iter().find(|resource| resource.name == name).expect("the route");
    let any = resource.resource.as_ref().expect("content");
    let route = RouteConfiguration::decode(&*any.value).expect("a RouteConfiguration");
    let Some(Action::Route(action)) = &route.virtual_hosts[0].routes[0].action else { panic!("{route:?}") };
    let Some(ClusterSpecifier::WeightedClusters(clusters)) = &action.cluster_specifier else {
        panic!("{action:?}")
    };
    clusters.clusters.iter().map(|c| (c.name.clone(), c.weight.map_or(0, |weight| weight.value))).collect()
}

/// How many endpoints each assignment has.
pub fn endpoint_counts(response: &DeltaDiscoveryResponse) -> BTreeMap<String, usize> {
    let resources = response.resources.iter().map(|resource| {
        let any = resource.resource.as_ref().expect("content");
        let assignment = ClusterLoadAssignment::decode(&*any.value).expect("a ClusterLoadAssignment");
        (resource.name.clone(), assignment.endpoints.iter().map(|zone| zone.lb_endpoints.len()).sum())
    });
    resources.collect()
}
