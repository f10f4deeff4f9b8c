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
    Capabilities, Error, Lookup, ObjectName, Router, Subject, Unsupported, check_capabilities,
    entries::{Entries, List},
    note,
    object::{self, Wanted},
    services::{self, Apex, Names},
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
    fn route_names(&self, canary: &Canary) -> (ObjectName, Option<ObjectName>) {
        let named = |kind: &ApiResource| ObjectName {
            kind: kind.clone(),
            namespace: canary.namespace().unwrap_or_default(),
            name: Names::of(canary).apex,
        };
        match &self.grpc {
            Some(grpc) if fits_grpc(canary) => (named(grpc), Some(named(&self.http))),
            grpc => (named(&self.http), grpc.as_ref().map(named)),
        }
    }

    fn route_name(&self, canary: &Canary) -> ObjectName {
        self.route_names(canary).0
    }

    fn wanted(&self, canary: &Canary, split: &Split) -> Wanted {
        let spec = canary.spec.service.clone().unwrap_or_default();
        let name = self.route_name(canary);
        let mut metadata = spec.apex.clone().unwrap_or_default();
        metadata.annotations.extend(note::of(split).annotations);
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
        let entries = Entries::new(list(&name), rules);
        Wanted::new(canary, name, metadata, body)
            .unless_adopted(default_parent(canary, &spec))
            .with_entries(entries)
    }
}

pub fn list(route: &ObjectName) -> List {
    List::new(route, ["spec", "rules"], rules::leads_to, rules::is_for_all)
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
    let apex = Names::of(canary).apex;
    json!({"spec": {"parentRefs": [{"group": "", "kind": "Service", "name": apex, "port": spec.port}]}})
}

fn fits_grpc(canary: &Canary) -> bool {
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

    fn understands(&self, condition: &HttpMatch) -> Result<(), &'static str> {
        rules::understands(condition)
    }

    fn check(&self, canary: &Canary, plan: &Plan) -> Result<(), Unsupported> {
        check_capabilities(self, canary, plan)?;
        let Some(spec) = &canary.spec.service else { return Ok(()) };
        let refused = |field, what: &str, way_out| {
            Err(Unsupported::Field { router: self.name(), field, what: what.to_owned(), way_out })
        };
        if let Some(condition) = spec.match_.iter().find_map(|one| rules::understands(one).err()) {
            return refused("spec.service.match", condition, "match by headers, uri, method or queryParams");
        }
        if spec.cors_policy.as_ref().is_some_and(|policy| rules::compares_origins(&policy.0)) {
            let way_out = "write allowOrigins with exact origins only";
            return refused("spec.service.corsPolicy", "origins other than exact ones", way_out);
        }
        Ok(())
    }

    fn objects(&self, canary: &Canary) -> Vec<ObjectName> {
        let (route, other) = self.route_names(canary);
        services::objects(canary).into_iter().chain([route]).chain(other).collect()
    }

    fn split(&self, on: &Subject<'_>, seen: &dyn Lookup) -> Option<Split> {
        let (route, other) = self.route_names(on.canary);
        if object::any_is_ours(other.as_slice(), on.canary, seen) {
            return None;
        }
        let split = note::in_force(on, seen, &route, |split| vec![self.wanted(on.canary, split)])?;
        parents::pending(&*route.find(seen)?).is_none().then_some(split)
    }

    fn pending(&self, canary: &Canary, seen: &dyn Lookup) -> Option<String> {
        let live = self.route_name(canary).find(seen)?;
        let split = note::read(&live, Stable::Primary)?;
        let stands = self.wanted(canary, &split).stands(canary, seen);
        parents::pending(&live).filter(|_| stands)
    }

    async fn set(
        &self,
        client: &Client,
        on: &Subject<'_>,
        seen: &dyn Lookup,
        split: &Split,
    ) -> Result<(), Error> {
        self.capabilities(on.canary).allow(split, || self.name())?;
        services::ensure(client, on, seen, Apex::Stable, split.stable).await?;
        self.wanted(on.canary, split).ensure(client, on.canary, seen).await?;
        match self.route_names(on.canary).1 {
            Some(left) => object::take_back(client, on.canary, seen, &left).await,
            None => Ok(()),
        }
    }

    fn restored(&self, canary: &Canary, seen: &dyn Lookup) -> bool {
        let (route, other) = self.route_names(canary);
        let routes: Vec<_> = [route].into_iter().chain(other).collect();
        services::restored(canary, seen) && !object::any_is_ours(&routes, canary, seen)
    }

    async fn restore(&self, client: &Client, canary: &Canary, seen: &dyn Lookup) -> Result<(), Error> {
        // The apex leads to the target before the route lets go of it.
        services::restore(client, canary, seen).await?;
        let (route, other) = self.route_names(canary);
        for name in [route].into_iter().chain(other) {
            object::take_back(client, canary, seen, &name).await?;
        }
        Ok(())
    }
}
