//! The Gateway API: an HTTPRoute or a GRPCRoute over the primary and the
//! canary Service.
//!
//! **North-south or within a mesh.** The route attaches to the Gateways or
//! Services in `spec.service.gatewayRefs`. Without any it attaches to the apex
//! Service: a mesh that supports the Gateway API (GAMMA: Istio, Linkerd, Cilium)
//! then applies it to every client of that Service.
//!
//! **HTTPRoute or GRPCRoute.** A GRPCRoute where the port is gRPC
//! (`appProtocol`, else `portName`, by Istio's names), the cluster serves the
//! kind, and the Canary needs no feature of an HTTPRoute: an HTTPRoute carries
//! gRPC just as well.
//!
//! **In force** is a split once every parent of the route reports, for the
//! current generation, `Accepted` and `ResolvedRefs`.

mod classes;
mod parents;
mod rules;

use async_trait::async_trait;
use kube::{
    Client, ResourceExt,
    api::{ApiResource, DynamicObject},
};
use serde_json::{Value, json};

use super::{
    Capabilities, ObjectKey, RouteContext, Unsupported, check_service_match,
    object::DesiredObject,
    object_router::ObjectRouter,
    services::{self, ServiceNames},
    shared_list::{ManagedEntries, SharedList},
    split_annotation,
};
use crate::{
    api::{
        Canary, Weight,
        canary::{HttpMatch, service},
    },
    engine::{
        Plan,
        action::{Split, Stable},
    },
    object_cache::ObjectCache,
};

/// `GatewayClass.spec.controllerName` of VPC Lattice (pkg/config/controller_config.go of
/// aws/aws-application-networking-k8s). A weight of its API is at most 999.
const VPC_LATTICE: &str = "application-networking.k8s.aws/gateway-api-controller";

/// Its finest weight, in hundredths of a percent.
const LATTICE_STEP: u16 = 10;

/// Writes an HTTPRoute or a GRPCRoute.
#[derive(Clone, Debug)]
pub struct Gateway {
    http: ApiResource,
    /// None where the cluster does not serve it.
    grpc: Option<ApiResource>,
    reader: RouteReader,
}

/// The implementation that a route is for, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouteReader {
    /// Any that the parents belong to.
    Any,
    /// Drops a route with a filter other than for headers, and reports it as accepted
    /// (`policy-controller/k8s/index/src/outbound/index/http.rs` of linkerd/linkerd2).
    /// It reads no timeout of a backend.
    Linkerd,
}

impl Gateway {
    pub fn new(http: ApiResource, grpc: Option<ApiResource>, reader: RouteReader) -> Self {
        Self { http, grpc, reader }
    }

    /// The route, and the one of the other kind, which may exist since before an
    /// edit of the Canary.
    fn route_keys(&self, canary: &Canary) -> (ObjectKey, Option<ObjectKey>) {
        let named = |kind: &ApiResource| ObjectKey {
            kind: kind.clone(),
            namespace: canary.namespace().unwrap_or_default(),
            name: ServiceNames::of(canary).apex,
        };
        match &self.grpc {
            Some(grpc) if can_use_grpc_route(canary) => (named(grpc), Some(named(&self.http))),
            grpc => (named(&self.http), grpc.as_ref().map(named)),
        }
    }

    fn check_lattice(&self, canary: &Canary, weight: Weight) -> Result<(), Unsupported> {
        let finest_weight = Weight::from_hundredths(LATTICE_STEP).unwrap_or(Weight::FULL);
        let can = Capabilities { finest_weight, ..ObjectRouter::capabilities(self, canary) };
        can.check_weight(weight, "spec.analysis", || format!("{} of VPC Lattice", self.name()))
    }

    fn desired_route(&self, canary: &Canary, split: &Split) -> DesiredObject {
        let spec = canary.spec.service.clone().unwrap_or_default();
        let name = self.route_object(canary);
        let mut metadata = spec.apex.clone().unwrap_or_default();
        metadata.annotations.extend(split_annotation::annotation(split).annotations);
        let mut body = json!({});
        if !spec.gateway_refs.is_empty() {
            body["spec"]["parentRefs"] = spec.gateway_refs.iter().map(parent).collect();
        }
        if !spec.hosts.is_empty() {
            body["spec"]["hostnames"] = json!(spec.hosts);
        }
        let grpc = name.kind.kind == "GRPCRoute";
        let (canary_, split) = (canary.clone(), split.clone());
        let rules = move |original: Option<&Value>| rules::rules(&canary_, &split, grpc, original);
        let entries = ManagedEntries::new(shared_list(&name), rules);
        DesiredObject::new(canary, name, metadata, body)
            .with_owned_defaults(default_parent(canary, &spec))
            .with_entries(entries)
    }
}

pub fn shared_list(route: &ObjectKey) -> SharedList {
    SharedList::new(route, ["spec", "rules"], rules::backends, rules::is_catch_all)
}

/// The group of a Service may be omitted in the Canary, not in the route.
fn parent(reference: &service::GatewayRef) -> Value {
    let mut parent = json!(reference);
    if reference.kind.as_deref() == Some("Service") && reference.group.is_none() {
        parent["group"] = json!("");
    }
    parent
}

/// The apex Service at its port: traffic of other ports is not split.
fn default_parent(canary: &Canary, spec: &service::Service) -> Value {
    let apex = ServiceNames::of(canary).apex;
    json!({"spec": {"parentRefs": [{"group": "", "kind": "Service", "name": apex, "port": spec.port}]}})
}

fn can_use_grpc_route(canary: &Canary) -> bool {
    let Some(spec) = &canary.spec.service else { return false };
    let analysis = &canary.spec.analysis;
    let mut conditions =
        spec.match_.iter().chain(&analysis.match_).chain(analysis.steps.iter().flat_map(|step| &step.match_));
    let by_http = |condition: &HttpMatch| {
        condition.uri.is_some() || condition.method.is_some() || !condition.query_params.is_empty()
    };
    services::protocol(spec).starts_with("grpc")
        && spec.timeout.is_none()
        && spec.backend_timeout.is_none()
        && spec.rewrite.is_none()
        && spec.cors_policy.is_none()
        && !conditions.any(by_http)
}

#[async_trait]
impl ObjectRouter for Gateway {
    fn name(&self) -> String {
        match self.reader {
            RouteReader::Any => format!("gatewayapi ({})", self.http.version),
            RouteReader::Linkerd => format!("linkerd (HTTPRoute {})", self.http.version),
        }
    }

    fn capabilities(&self, _: &Canary) -> Capabilities {
        let mirror = self.reader == RouteReader::Any;
        Capabilities {
            finest_weight: Weight::from_hundredths(1).unwrap_or(Weight::FULL),
            matches: true,
            match_with_weight: true,
            mirror,
            partial_mirror: mirror,
            affinity: true,
            delegation: false,
        }
    }

    fn supports_match(&self, condition: &HttpMatch) -> Result<(), &'static str> {
        rules::supports_match(condition)
    }

    fn route_fields(&self, _: &Canary) -> &'static [&'static str] {
        match self.reader {
            RouteReader::Any => &[
                "gatewayRefs",
                "hosts",
                "match",
                "timeout",
                "backendTimeout",
                "headers",
                "rewrite",
                "mirror",
                "corsPolicy",
            ],
            RouteReader::Linkerd => &["gatewayRefs", "hosts", "match", "timeout", "headers"],
        }
    }

    fn check_spec(&self, canary: &Canary) -> Result<(), Unsupported> {
        check_service_match(self, canary, "match by headers, uri, method or queryParams")?;
        let Some(spec) = &canary.spec.service else { return Ok(()) };
        if spec.cors_policy.as_ref().is_some_and(|policy| rules::has_inexact_origins(&policy.0)) {
            return Err(Unsupported::Field {
                router: self.name(),
                field: "spec.service.corsPolicy",
                what: "origins other than exact ones".to_owned(),
                way_out: "write allowOrigins with exact origins only",
            });
        }
        Ok(())
    }

    /// By the classes of the Gateways. The ones of a mesh have no limit.
    async fn check_implementation(
        &self,
        client: &Client,
        canary: &Canary,
        plan: &Plan,
    ) -> Result<(), Unsupported> {
        let weights = || plan.steps.iter().map(|step| step.split.canary).chain([plan.step_down_weight]);
        let fits = weights().all(|weight| weight.hundredths().is_multiple_of(LATTICE_STEP));
        if fits || !classes::controllers(client, canary).await.iter().any(|name| name == VPC_LATTICE) {
            return Ok(());
        }
        weights().try_for_each(|weight| self.check_lattice(canary, weight))
    }

    fn route_object(&self, canary: &Canary) -> ObjectKey {
        self.route_keys(canary).0
    }

    fn other_objects(&self, canary: &Canary) -> Vec<ObjectKey> {
        self.route_keys(canary).1.into_iter().collect()
    }

    /// The route of the other kind, from before an edit of the Canary.
    fn obsolete_objects(&self, canary: &Canary) -> Vec<ObjectKey> {
        self.other_objects(canary)
    }

    fn desired(&self, on: &RouteContext<'_>, split: &Split) -> Vec<DesiredObject> {
        vec![self.desired_route(on.canary, split)]
    }

    /// For Gateways that could not be read: every controller repeats the name of its
    /// GatewayClass in the status that it writes to the route.
    fn check_live(&self, canary: &Canary, cache: &dyn ObjectCache, split: &Split) -> Result<(), Unsupported> {
        let lattice = self
            .route_object(canary)
            .find(cache)
            .is_some_and(|route| parents::controllers(&route).any(|name| name == VPC_LATTICE));
        if lattice { self.check_lattice(canary, split.canary) } else { Ok(()) }
    }

    fn inactive_reason(&self, route: &DynamicObject) -> Option<String> {
        parents::pending(route)
    }

    /// Only while the route is in sync: else the status is about the edit of
    /// another client, which is about to be reverted.
    fn pending_reason(&self, canary: &Canary, cache: &dyn ObjectCache) -> Option<String> {
        let live = self.route_object(canary).find(cache)?;
        let split = split_annotation::parse(&live, Stable::Primary)?;
        let in_sync = self.desired_route(canary, &split).is_in_sync(canary, cache);
        parents::pending(&live).filter(|_| in_sync)
    }
}
