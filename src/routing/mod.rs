//! Traffic routing: one trait, one file per kind of router.
//!
//! ```text
//!   check ───────────▶ rejects Canaries that the router cannot serve, before any write
//!   refresh ─────────▶ fetches state that no reflector has (App Mesh API)
//!   effective_split ─▶ the split in force, from the cache; none while unknown
//!   pending_reason ──▶ the controller or status that a written split waits for
//!   refusal ─────────▶ why a written split never comes into force
//!   apply_split ─────▶ writes Services and route objects that differ
//!   split_object ────▶ the object to read the writer of a revert from
//!   restore ─────────▶ undoes everything on deletion of the Canary
//! ```
//!
//! Invariants of every router, tested by one suite (`tests/routing`) for each
//! router on each API server:
//!
//! - **It owns its route and nothing else.** Objects are written by server-side
//!   apply with the field manager `serin` and only the fields that a router
//!   needs: labels, annotations, ports and fields of other managers survive.
//!   Where the route is one entry of a list, other entries survive too
//!   ([`shared_list`]).
//! - **Adoption is reversible.** An object that existed before is adopted: its
//!   previous values are kept in an annotation, and [`Router::restore`] writes
//!   them back. An object that Serin created has an owner reference and is
//!   deleted with its Canary.
//! - **Objects of another Canary are never taken over.**
//! - **Observing costs no request.** [`Router::effective_split`] is a function of
//!   the cache; [`Router::apply_split`] sends nothing for objects in sync.
//! - **Writes are idempotent.** A partial write, or an edit by another client,
//!   shows as another split or none; applying the split again completes it.
//!
//! A router whose state is outside the cluster [fetches](Router::refresh) it once
//! per reconcile and caches it.

mod affinity;
mod appmesh;
mod fields;
mod gateway;
mod istio;
mod kubernetes;
mod migration;
mod object;
mod object_router;
mod select;
mod service_fields;
mod services;
mod shared_list;
mod smi;
mod split_annotation;
mod traffic_rule;
mod writer;
mod xds;

use std::{collections::BTreeMap, fmt, sync::Arc};

use async_trait::async_trait;
use kube::{
    Client,
    api::{ApiResource, DynamicObject},
};

#[cfg(feature = "aws")]
pub use appmesh::aws;
pub use appmesh::{AppMeshOptions, AppMeshResources};
pub use gateway::Gateway;
pub use istio::Istio;
pub use kubernetes::Kubernetes;
pub use migration::{apex_name, orphaned_objects, recorded_objects, remove_objects};
pub use object::Owner;
pub use select::{RouterSelectionError, SelectedRouter, ServedKinds, provider_name, select};
pub use services::ServicesMemo;
pub use smi::{Smi, SplitVersion};
pub use writer::last_writer;
pub use xds::{PATIENCE, Xds, mesh_routes, port_protocol};

use crate::{
    api::{
        Canary, Weight,
        canary::{HttpMatch, Provider, StringMatch, TargetKind},
    },
    api_error::{api_message, is_refused},
    engine::{Plan, action::Split},
    object_cache::ObjectCache,
};

/// Splits the traffic of a Canary between primary and canary.
#[async_trait]
pub trait Router: Send + Sync + fmt::Debug {
    /// For messages: `smi (v1alpha4)`.
    fn name(&self) -> String;

    /// Depend on the Canary: the same router can do less for a port that is not
    /// HTTP.
    fn capabilities(&self, canary: &Canary) -> Capabilities;

    /// The error names the condition that the router cannot express. Only called
    /// for routers with [`Capabilities::matches`].
    fn supports_match(&self, _condition: &HttpMatch) -> Result<(), &'static str> {
        Ok(())
    }

    /// Fields of `spec.service` that its route carries.
    fn route_fields(&self, _canary: &Canary) -> &'static [&'static str] {
        &[]
    }

    /// Rejects a Canary that the router cannot serve, before any write.
    fn check(&self, canary: &Canary, plan: &Plan) -> Result<(), Unsupported> {
        check_capabilities(self, canary, plan)
    }

    /// Rejects a Canary that the implementation behind the router cannot serve, as far as
    /// objects of the cluster tell; before any write.
    async fn check_implementation(
        &self,
        _client: &Client,
        _canary: &Canary,
        _plan: &Plan,
    ) -> Result<(), Unsupported> {
        Ok(())
    }

    /// False if its state is outside the cluster, where no watch reports
    /// changes.
    fn is_watchable(&self) -> bool {
        true
    }

    /// Fetches state outside the cluster unless the cached state is recent.
    async fn refresh(&self, _canary: &Canary) -> Result<(), Error> {
        Ok(())
    }

    /// Every object that it writes or reads for this Canary: all are watched.
    fn objects(&self, canary: &Canary) -> Vec<ObjectKey>;

    /// The split in force, as far as the cluster reports it; none while objects
    /// are missing or out of sync, or while the split is still propagating.
    fn effective_split(&self, on: &RouteContext<'_>, cache: &dyn ObjectCache) -> Option<Split>;

    /// The object whose fields hold the split; none outside the cluster.
    fn split_object(&self, _canary: &Canary) -> Option<ObjectKey> {
        None
    }

    /// The controller that a written split waits for, and its status: the middle
    /// of a sentence. None if it waits for nothing.
    fn pending_reason(&self, _canary: &Canary, _cache: &dyn ObjectCache) -> Option<String> {
        None
    }

    /// Why the proxies do not use a written split and will not: the release is rolled
    /// back. The middle of a sentence.
    fn refusal(&self, _canary: &Canary, _cache: &dyn ObjectCache) -> Option<String> {
        None
    }

    /// Creates missing objects and writes the split.
    async fn apply_split(
        &self,
        client: &Client,
        on: &RouteContext<'_>,
        cache: &dyn ObjectCache,
        split: &Split,
    ) -> Result<(), Error>;

    /// True once nothing of this Canary's route is left and adopted objects have
    /// their original values.
    fn is_restored(&self, canary: &Canary, cache: &dyn ObjectCache) -> bool;

    /// Restores adopted objects and deletes the route, so that the apex reaches
    /// the target as if there had been no Canary.
    async fn restore(&self, client: &Client, canary: &Canary, cache: &dyn ObjectCache) -> Result<(), Error>;

    /// Deletes what it has outside the cluster for a Canary with another route
    /// now: that of `next`, if this is still its router.
    async fn cleanup_external(&self, _canary: &Canary, _next: Option<&Canary>) -> Result<(), Error> {
        Ok(())
    }
}

/// True if this replica may write for the Canary of this namespace and name.
/// Checked before each write that does not go to the API server.
pub type WriteFence = Arc<dyn Fn(&str, &str) -> bool + Send + Sync>;

/// The router that calls the App Mesh API, if this build can.
#[cfg(feature = "aws")]
pub fn app_mesh(options: &AppMeshOptions, check_fence: WriteFence) -> Option<Arc<dyn Router>> {
    Some(Arc::new(aws::AppMesh::new(options.clone(), Default::default(), check_fence)))
}

/// None: this build lacks the feature `aws`.
#[cfg(not(feature = "aws"))]
pub fn app_mesh(_: &AppMeshOptions, _: WriteFence) -> Option<Arc<dyn Router>> {
    None
}

/// The weights of canary and stable side, in the smallest whole numbers that
/// add up to 100, 1,000 or 10,000.
fn weight_ratio(canary: Weight) -> [u16; 2] {
    let unit = [100, 10, 1].into_iter().find(|unit| canary.hundredths().is_multiple_of(*unit)).unwrap_or(1);
    [canary, canary.complement()].map(|weight| weight.hundredths() / unit)
}

/// A regular expression that matches the whole value.
fn to_regex(text: &StringMatch) -> String {
    let StringMatch { exact, prefix, suffix, regex } = text;
    match (exact, prefix, suffix, regex) {
        (Some(exact), ..) => regex::escape(exact),
        (_, Some(prefix), ..) => format!("{}.*", regex::escape(prefix)),
        (_, _, Some(suffix), _) => format!(".*{}", regex::escape(suffix)),
        (_, _, _, Some(regex)) => regex.clone(),
        (None, None, None, None) => ".*".to_owned(),
    }
}

/// The checks that follow from a router's capabilities.
fn check_capabilities<R: Router + ?Sized>(
    router: &R,
    canary: &Canary,
    plan: &Plan,
) -> Result<(), Unsupported> {
    services::check(canary)?;
    let is_group = canary.spec.target_ref.kind == TargetKind::EndpointGroup;
    if is_group && canary.spec.provider != Some(Provider::Xds) {
        return Err(Unsupported::TargetEndpointGroup { router: router.name() });
    }
    let can = router.capabilities(canary);
    let name = || router.name();
    if canary.spec.service.as_ref().is_some_and(|service| service.delegation) && !can.delegation {
        return Err(Unsupported::Delegation { router: name() });
    }
    service_fields::check(canary, router.route_fields(canary), name)?;
    if plan.affinity.is_some() && !can.affinity {
        return Err(Unsupported::Affinity { router: name() });
    }
    for split in plan.steps.iter().map(|step| &step.split) {
        can.check_split(split, name)?;
        for condition in split.matches.iter() {
            router
                .supports_match(condition)
                .map_err(|condition| Unsupported::Condition { router: name(), condition })?;
        }
    }
    can.check_weight(plan.step_down_weight, "spec.analysis.stepWeightPromotion", name)
}

/// Rejects conditions of `spec.service.match` that a router cannot express.
fn check_service_match<R: Router + ?Sized>(
    router: &R,
    canary: &Canary,
    way_out: &'static str,
) -> Result<(), Unsupported> {
    let mut conditions = canary.spec.service.iter().flat_map(|spec| &spec.match_);
    match conditions.find_map(|condition| router.supports_match(condition).err()) {
        Some(condition) => Err(Unsupported::Field {
            router: router.name(),
            field: "spec.service.match",
            what: condition.to_owned(),
            way_out,
        }),
        None => Ok(()),
    }
}

/// A Canary and the pods that its traffic is split between.
#[derive(Clone, Copy, Debug)]
pub struct RouteContext<'a> {
    pub canary: &'a Canary,
    pub pod_selectors: &'a PodSelectors,
    /// Skips the comparison of Services that were in sync, if given.
    pub services_memo: Option<&'a ServicesMemo>,
}

/// Label selectors of each side's pods, and their ports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodSelectors {
    /// Select the primary's pods and no others.
    pub primary: BTreeMap<String, String>,
    /// Select the target's pods, which are the canary.
    pub canary: BTreeMap<String, String>,
    /// Select the pods of the previous version, kept since the last promotion.
    pub previous: BTreeMap<String, String>,
    /// Ports of the target's containers by name, for `portDiscovery`.
    pub ports: BTreeMap<String, u16>,
}

/// Identifies an object, whether it exists or not.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ObjectKey {
    pub kind: ApiResource,
    pub namespace: String,
    pub name: String,
}

impl ObjectKey {
    fn find(&self, cache: &dyn ObjectCache) -> Option<Arc<DynamicObject>> {
        cache.get(&self.kind, &self.namespace, &self.name)
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}/{}", self.kind.kind, self.namespace, self.name)
    }
}

/// What a router can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Every weight is a multiple of this: 0.01 % at the finest; with 100 % the
    /// router can only switch.
    pub finest_weight: Weight,
    /// Matched requests can go to the canary.
    pub matches: bool,
    /// Matched requests can go to the canary while it has a weight for others.
    pub match_with_weight: bool,
    /// The canary can get a copy of the requests.
    pub mirror: bool,
    /// The copies can be of a percentage of the requests.
    pub partial_mirror: bool,
    /// Users can stay on the version that served them first.
    pub affinity: bool,
    /// Another route can delegate to this one.
    pub delegation: bool,
}

impl Capabilities {
    /// Switches all traffic, and nothing else.
    pub const SWITCH: Self = Self {
        finest_weight: Weight::FULL,
        matches: false,
        match_with_weight: false,
        mirror: false,
        partial_mirror: false,
        affinity: false,
        delegation: false,
    };

    fn check_split(&self, split: &Split, router: impl Fn() -> String) -> Result<(), Unsupported> {
        let matches = !split.matches.is_empty();
        if matches && !self.matches {
            return Err(Unsupported::Match { router: router() });
        }
        if matches && split.canary > Weight::ZERO && !self.match_with_weight {
            return Err(Unsupported::MatchWithWeight { router: router() });
        }
        if split.mirror > Weight::ZERO && !self.mirror {
            return Err(Unsupported::Mirror { router: router() });
        }
        if split.mirror > Weight::ZERO && split.mirror < Weight::FULL && !self.partial_mirror {
            return Err(Unsupported::PartialMirror { router: router() });
        }
        self.check_weight(split.canary, "spec.analysis", router)
    }

    fn check_weight(
        &self,
        weight: Weight,
        field: &'static str,
        router: impl Fn() -> String,
    ) -> Result<(), Unsupported> {
        let finest = self.finest_weight;
        if weight.hundredths().is_multiple_of(finest.hundredths()) {
            Ok(())
        } else if finest == Weight::FULL {
            Err(Unsupported::Weights { router: router(), field, weight })
        } else {
            Err(Unsupported::FineWeight { router: router(), field, weight, finest })
        }
    }
}

/// A feature that a router does not support, and the remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unsupported {
    #[error(
        "{field} asks for {weight} % of the traffic, and {router} can only send all of it one way or the other; use iterations for Blue/Green, or set spec.provider to a router that divides traffic, such as istio, gatewayapi:v1, linkerd or xds"
    )]
    Weights { router: String, field: &'static str, weight: Weight },
    #[error(
        "{field} asks for {weight} %, and {router} divides traffic in steps of {finest} %; write multiples of {finest}"
    )]
    FineWeight { router: String, field: &'static str, weight: Weight, finest: Weight },
    #[error(
        "spec.analysis asks to match requests, and {router} cannot; remove match, or set spec.provider to a router that can, such as istio, gatewayapi:v1 or xds"
    )]
    Match { router: String },
    #[error(
        "spec.analysis matches requests by {condition}, and {router} does not know that condition; match by headers, uri or method, or set spec.provider to istio"
    )]
    Condition { router: String, condition: &'static str },
    #[error(
        "spec.analysis has both match and weights, and {router} can do only one at a time; use match with iterations, or weights without match, or set spec.provider to istio, gatewayapi:v1 or xds"
    )]
    MatchWithWeight { router: String },
    #[error(
        "spec.analysis asks to mirror traffic, and {router} cannot; remove mirror, or set spec.provider to a router that can, such as istio, gatewayapi:v1 or xds"
    )]
    Mirror { router: String },
    #[error(
        "spec.analysis asks to mirror a part of the traffic, and {router} mirrors all or nothing; remove mirrorWeight"
    )]
    PartialMirror { router: String },
    #[error(
        "spec.analysis.sessionAffinity needs a router that sets cookies, and {router} does not; remove it, or set spec.provider to istio, gatewayapi:v1 or xds"
    )]
    Affinity { router: String },
    #[error(
        "spec.service.delegation needs a VirtualService, and {router} writes none; remove it, or set spec.provider to istio"
    )]
    Delegation { router: String },
    #[error(
        "{router} switches the Service, and a target of kind Service has no other to switch to; name the Deployment or DaemonSet behind it as the target, or set spec.provider to a router that divides traffic"
    )]
    TargetService { router: String },
    #[error(
        "spec.targetRef names an EndpointGroup, whose endpoints only the control plane for Envoys routes to, and not {router}; set spec.provider to xds, or leave it out"
    )]
    TargetEndpointGroup { router: String },
    #[error("{field} asks for {what}, and {router} cannot do that; {way_out}, or set another spec.provider")]
    Field { router: String, field: &'static str, what: String, way_out: &'static str },
    #[error(
        "spec.service.{field} is not supported by {router}; remove it, or set spec.provider to {providers}"
    )]
    ServiceField { router: String, field: String, providers: &'static str },
    #[error(
        "{entry} of {object} leads to {backends}, and a release would move all of its traffic; lead that entry to the one Service, or give this Canary a spec.service.name of its own"
    )]
    MixedEntry { object: String, entry: String, backends: String },
    #[error("spec.service is missing; set spec.service.port to the port that the workload is reached at")]
    NoService,
    #[error(
        "the Service {name} would have a name of {} characters, and 63 are allowed; set spec.service.name to a shorter one",
        name.len()
    )]
    NameTooLong { name: String },
}

/// Why a route could not be written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{doing} {object}: {}", api_message(why))]
    Api { doing: &'static str, object: ObjectKey, why: Box<kube::Error> },
    #[error("{object} belongs to {owner}")]
    AlreadyOwned { object: ObjectKey, owner: Owner },
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
    #[error("{object} changed while it was being written; trying again")]
    Conflict { object: ObjectKey },
    #[cfg(feature = "aws")]
    #[error(transparent)]
    AppMesh(#[from] aws::Error),
}

impl Error {
    /// Retries cannot succeed until the spec, an object or a permission changes.
    pub fn is_final(&self) -> bool {
        match self {
            Self::AlreadyOwned { .. } | Self::Unsupported(_) => true,
            Self::Conflict { .. } => false,
            #[cfg(feature = "aws")]
            Self::AppMesh(why) => why.is_final(),
            Self::Api { why, .. } => is_refused(why),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_the_smallest_exact_whole_numbers() {
        let parts = |percent: f64| weight_ratio(Weight::from_percent(percent).unwrap());
        assert_eq!(parts(5.0), [5, 95]);
        assert_eq!(parts(0.5), [5, 995]);
        assert_eq!(parts(0.01), [1, 9999]);
        assert_eq!(parts(33.3), [333, 667]);
    }

    #[test]
    fn string_matches_become_regular_expressions() {
        let exact = StringMatch { exact: Some("a.b".to_owned()), ..Default::default() };
        let prefix = StringMatch { prefix: Some("/api".to_owned()), ..Default::default() };
        assert_eq!(to_regex(&exact), r"a\.b");
        assert_eq!(to_regex(&prefix), "/api.*");
        assert_eq!(to_regex(&StringMatch::default()), ".*");
    }
}
