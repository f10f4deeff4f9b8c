//! The Gateway API: an HTTPRoute or a GRPCRoute over the primary and the
//! canary Service.
//!
//! **North-south or within a mesh.** The route attaches to what
//! `spec.service.gatewayRefs` names, be it a Gateway or a Service. Without any
//! it attaches to the apex Service, which a mesh that speaks the Gateway API
//! (GAMMA: Istio, Linkerd, Cilium) takes for "whoever calls this Service".
//!
//! **HTTPRoute or GRPCRoute.** A GRPCRoute where the port speaks gRPC
//! (`appProtocol`, else `portName`, by Istio's names), the cluster serves the
//! kind, and the Canary asks for nothing that only an HTTPRoute can say: an
//! HTTPRoute carries gRPC just as well.
//!
//! **In force** is a split once every parent of the route says, of this very
//! generation, that it accepted the route and resolved its references.

mod parents;
mod rules;

use async_trait::async_trait;
use kube::{Client, ResourceExt, api::ApiResource};
use serde_json::{Value, json};

use super::{
    Capabilities, Error, ObjectCache, ObjectKey, RouteContext, Router, Unsupported, check_capabilities,
    object::{self, DesiredObject},
    services::{self, ApexTarget, ServiceNames},
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
};

/// Writes an HTTPRoute or a GRPCRoute.
#[derive(Clone, Debug)]
pub struct Gateway {
    http: ApiResource,
    /// None where the cluster has none.
    grpc: Option<ApiResource>,
}

impl Gateway {
    pub fn new(http: ApiResource, grpc: Option<ApiResource>) -> Self {
        Self { http, grpc }
    }

    /// The route, and that of the other kind, which an edit of the Canary may
    /// have left behind.
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

    fn route_key(&self, canary: &Canary) -> ObjectKey {
        self.route_keys(canary).0
    }

    fn desired(&self, canary: &Canary, split: &Split) -> DesiredObject {
        let spec = canary.spec.service.clone().unwrap_or_default();
        let name = self.route_key(canary);
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

/// A Service needs no group: nobody else has the kind.
fn parent(reference: &service::GatewayRef) -> Value {
    let mut parent = json!(reference);
    if reference.kind.as_deref() == Some("Service") && reference.group.is_none() {
        parent["group"] = json!("");
    }
    parent
}

/// The apex Service at its port: other ports are not divided.
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
impl Router for Gateway {
    fn name(&self) -> String {
        format!("gatewayapi ({})", self.http.version)
    }

    fn capabilities(&self, _: &Canary) -> Capabilities {
        Capabilities {
            finest_weight: Weight::from_hundredths(1).unwrap_or(Weight::FULL),
            matches: true,
            match_with_weight: true,
            mirror: true,
            partial_mirror: true,
            affinity: true,
            delegation: false,
        }
    }

    fn supports_match(&self, condition: &HttpMatch) -> Result<(), &'static str> {
        rules::supports_match(condition)
    }

    fn check(&self, canary: &Canary, plan: &Plan) -> Result<(), Unsupported> {
        check_capabilities(self, canary, plan)?;
        let Some(spec) = &canary.spec.service else { return Ok(()) };
        let refused = |field, what: &str, way_out| {
            Err(Unsupported::Field { router: self.name(), field, what: what.to_owned(), way_out })
        };
        if let Some(condition) = spec.match_.iter().find_map(|one| rules::supports_match(one).err()) {
            return refused("spec.service.match", condition, "match by headers, uri, method or queryParams");
        }
        if spec.cors_policy.as_ref().is_some_and(|policy| rules::has_inexact_origins(&policy.0)) {
            let way_out = "write allowOrigins with exact origins only";
            return refused("spec.service.corsPolicy", "origins other than exact ones", way_out);
        }
        Ok(())
    }

    fn objects(&self, canary: &Canary) -> Vec<ObjectKey> {
        let (route, other) = self.route_keys(canary);
        services::objects(canary).into_iter().chain([route]).chain(other).collect()
    }

    fn effective_split(&self, on: &RouteContext<'_>, cache: &dyn ObjectCache) -> Option<Split> {
        let (route, other) = self.route_keys(on.canary);
        if object::any_managed(other.as_slice(), on.canary, cache) {
            return None;
        }
        let effective_split = split_annotation::effective_split(on, cache, &route, |effective_split| {
            vec![self.desired(on.canary, effective_split)]
        })?;
        parents::pending(&*route.find(cache)?).is_none().then_some(effective_split)
    }

    fn pending_reason(&self, canary: &Canary, cache: &dyn ObjectCache) -> Option<String> {
        let live = self.route_key(canary).find(cache)?;
        let split = split_annotation::parse(&live, Stable::Primary)?;
        let in_sync = self.desired(canary, &split).is_in_sync(canary, cache);
        parents::pending(&live).filter(|_| in_sync)
    }

    async fn apply_split(
        &self,
        client: &Client,
        on: &RouteContext<'_>,
        cache: &dyn ObjectCache,
        split: &Split,
    ) -> Result<(), Error> {
        self.capabilities(on.canary).check_split(split, || self.name())?;
        services::ensure(client, on, cache, ApexTarget::Stable, split.stable).await?;
        self.desired(on.canary, split).ensure(client, on.canary, cache).await?;
        match self.route_keys(on.canary).1 {
            Some(left) => object::delete_or_restore(client, on.canary, cache, &left).await,
            None => Ok(()),
        }
    }

    fn is_restored(&self, canary: &Canary, cache: &dyn ObjectCache) -> bool {
        let (route, other) = self.route_keys(canary);
        let routes: Vec<_> = [route].into_iter().chain(other).collect();
        services::is_restored(canary, cache) && !object::any_managed(&routes, canary, cache)
    }

    async fn restore(&self, client: &Client, canary: &Canary, cache: &dyn ObjectCache) -> Result<(), Error> {
        // The apex leads to the target before the route lets go of it.
        services::restore(client, canary, cache).await?;
        let (route, other) = self.route_keys(canary);
        for name in [route].into_iter().chain(other) {
            object::delete_or_restore(client, canary, cache, &name).await?;
        }
        Ok(())
    }
}
