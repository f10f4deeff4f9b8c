//! Who carries the weights: one trait, one file per kind of router.
//!
//! ```text
//!                 check ── before anything is touched: can this be done at all?
//!                 look ─── asks for what no reflector has
//!   reflectors ── split ─▶ what is in force, or none while nobody knows
//!                 pending ▶ whom that is waiting for, in words
//!                 set ───▶ Services and routing object, written only where they differ
//!                 restore ▶ everything as it was before the Canary
//! ```
//!
//! What holds for every router, proved by one suite (`tests/routing`) that runs
//! for each of them on each API server:
//!
//! - **It owns its one route.** Objects are written by server-side apply with
//!   the field manager `serin` and nothing but the fields a router needs, so
//!   labels, annotations, ports and fields of other people survive. Where the
//!   route is one entry of a list, theirs in the list survive too ([`shared_list`]).
//! - **What it found, it puts back.** An object that was there before is
//!   adopted: the values it had are kept in an annotation of its own and come
//!   back with [`Router::restore`]. An object that Serin made carries an owner
//!   reference and goes with its Canary.
//! - **It takes nothing away from another Canary.**
//! - **Asking costs nothing.** [`Router::effective_split`] is a function of what was seen;
//!   [`Router::apply_split`] sends no request for an object that is already right.
//! - **Asking again is harmless.** Whatever was half done, or undone by
//!   somebody else, shows as another split, or as none, and setting it again
//!   completes it.
//!
//! A router whose truth is not in the cluster asks for it when it is told to
//! [refresh](Router::refresh), once in a reconcile, and keeps the answer by itself.

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
mod services;
mod shared_list;
mod smi;
mod split_annotation;
mod traffic_rule;

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
pub use migration::{apex_name, orphaned_objects, remove_objects};
pub use select::{RouterSelectionError, SelectedRouter, ServedKinds, select};
pub use services::ServicesMemo;
pub use smi::{Smi, SplitVersion};

use crate::{
    api::{
        Canary, Weight,
        canary::{HttpMatch, StringMatch},
    },
    engine::{Plan, action::Split},
    object_cache::ObjectCache,
};

/// Somebody who can divide the traffic of a Canary.
#[async_trait]
pub trait Router: Send + Sync + fmt::Debug {
    /// For sentences: `smi (v1alpha4)`.
    fn name(&self) -> String;

    /// What it can do for this Canary: one and the same router can do less
    /// with a port that does not speak HTTP.
    fn capabilities(&self, canary: &Canary) -> Capabilities;

    /// Can it tell these requests from others? Only asked of routers that
    /// match at all; the answer names the condition that it does not know.
    fn supports_match(&self, _condition: &HttpMatch) -> Result<(), &'static str> {
        Ok(())
    }

    /// Refuses what it cannot do, before anything is touched.
    fn check(&self, canary: &Canary, plan: &Plan) -> Result<(), Unsupported> {
        check_capabilities(self, canary, plan)
    }

    /// Is everything that it goes by in the cluster? Else nobody is told when
    /// it changes.
    fn is_watchable(&self) -> bool {
        true
    }

    /// Asks for what is not in the cluster, if it was not seen a moment ago.
    async fn refresh(&self, _canary: &Canary) -> Result<(), Error> {
        Ok(())
    }

    /// Every object that it writes or reads for this Canary, so that somebody
    /// watches them.
    fn objects(&self, canary: &Canary) -> Vec<ObjectKey>;

    /// The split that is in force everywhere, as far as anybody can tell; none
    /// while objects are missing or not as they should be, or while the split
    /// is still on its way.
    fn effective_split(&self, on: &RouteContext<'_>, seen: &dyn ObjectCache) -> Option<Split>;

    /// Whom a split that was written waits for, and what they say to it: the
    /// middle of a sentence. None if it waits for nobody.
    fn pending_reason(&self, _canary: &Canary, _cache: &dyn ObjectCache) -> Option<String> {
        None
    }

    /// Makes whatever is missing and divides the traffic.
    async fn apply_split(
        &self,
        client: &Client,
        on: &RouteContext<'_>,
        seen: &dyn ObjectCache,
        split: &Split,
    ) -> Result<(), Error>;

    /// Is everything as it was before this Canary?
    fn is_restored(&self, canary: &Canary, seen: &dyn ObjectCache) -> bool;

    /// Puts adopted objects back as they were and takes the route away, so
    /// that the target is reached as if there had been no Canary.
    async fn restore(&self, client: &Client, canary: &Canary, seen: &dyn ObjectCache) -> Result<(), Error>;

    /// Takes away what it has outside the cluster for a Canary that is reached
    /// in another way by now: as `next` says, if it is still the router.
    async fn cleanup_external(&self, _canary: &Canary, _next: Option<&Canary>) -> Result<(), Error> {
        Ok(())
    }
}

/// May anything be written for the Canary of this namespace and name? Asked
/// before each write that does not go to the API server.
pub type WriteFence = Arc<dyn Fn(&str, &str) -> bool + Send + Sync>;

/// The router that calls App Mesh, if this build can.
#[cfg(feature = "aws")]
pub fn app_mesh(options: &AppMeshOptions, check_fence: WriteFence) -> Option<Arc<dyn Router>> {
    Some(Arc::new(aws::AppMesh::new(options.clone(), Default::default(), check_fence)))
}

/// The router that calls App Mesh: this build cannot.
#[cfg(not(feature = "aws"))]
pub fn app_mesh(_: &AppMeshOptions, _: WriteFence) -> Option<Arc<dyn Router>> {
    None
}

/// The canary's part and the stable side's, in the smallest whole numbers that
/// read as percent or a power of ten finer.
fn weight_ratio(canary: Weight) -> [u16; 2] {
    let unit = [100, 10, 1].into_iter().find(|unit| canary.hundredths().is_multiple_of(*unit)).unwrap_or(1);
    [canary, canary.complement()].map(|weight| weight.hundredths() / unit)
}

/// A regular expression for the whole of what a condition is about.
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

/// What every router refuses by its capabilities.
fn check_capabilities<R: Router + ?Sized>(
    router: &R,
    canary: &Canary,
    plan: &Plan,
) -> Result<(), Unsupported> {
    services::check(canary)?;
    let can = router.capabilities(canary);
    let name = || router.name();
    if canary.spec.service.as_ref().is_some_and(|service| service.delegation) && !can.delegation {
        return Err(Unsupported::Delegation { router: name() });
    }
    if plan.affinity && !can.affinity {
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

/// One Canary and the pods that its traffic is divided between.
#[derive(Clone, Copy, Debug)]
pub struct RouteContext<'a> {
    pub canary: &'a Canary,
    pub pod_selectors: &'a PodSelectors,
    /// Where it is remembered that the Services stand, if anywhere.
    pub services_memo: Option<&'a ServicesMemo>,
}

/// How the pods of each side are told apart, and what they listen on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodSelectors {
    /// Labels that select the primary's pods and nobody else's.
    pub primary: BTreeMap<String, String>,
    /// The same for the target, which is the canary.
    pub canary: BTreeMap<String, String>,
    /// The same for the copy kept warm since before the last promotion.
    pub previous: BTreeMap<String, String>,
    /// Every port of the target's containers by name, for `portDiscovery`.
    pub ports: BTreeMap<String, u16>,
}

/// An object, whether it exists or not.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ObjectKey {
    pub kind: ApiResource,
    pub namespace: String,
    pub name: String,
}

impl ObjectKey {
    fn find(&self, seen: &dyn ObjectCache) -> Option<Arc<DynamicObject>> {
        seen.get(&self.kind, &self.namespace, &self.name)
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
    /// Every weight is a multiple of this: 0.01 % is the finest there is, and
    /// all traffic means that it can only be sent one way or the other.
    pub finest_weight: Weight,
    /// Chosen requests can go to the canary.
    pub matches: bool,
    /// Chosen requests can go to the canary while it has a share of the others.
    pub match_with_weight: bool,
    /// The canary can get a copy of the requests.
    pub mirror: bool,
    /// The copies can be of a share of the requests.
    pub partial_mirror: bool,
    /// Users can be kept on the version that answered them first.
    pub affinity: bool,
    /// The route can be one that another route delegates to.
    pub delegation: bool,
}

impl Capabilities {
    /// All traffic one way or the other, and nothing else.
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

/// What a router cannot do for a Canary, and the way out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unsupported {
    #[error(
        "{field} asks for {weight} % of the traffic, and {router} can only send all of it one way or the other; use iterations for Blue/Green, or set spec.provider to a router that divides traffic, such as istio, gatewayapi:v1 or linkerd"
    )]
    Weights { router: String, field: &'static str, weight: Weight },
    #[error(
        "{field} asks for {weight} %, and {router} divides traffic in steps of {finest} %; write multiples of {finest}"
    )]
    FineWeight { router: String, field: &'static str, weight: Weight, finest: Weight },
    #[error(
        "spec.analysis asks to match requests, and {router} cannot; remove match, or set spec.provider to a router that can, such as istio or gatewayapi:v1"
    )]
    Match { router: String },
    #[error(
        "spec.analysis matches requests by {condition}, and {router} does not know that condition; match by headers, uri or method, or set spec.provider to istio"
    )]
    Condition { router: String, condition: &'static str },
    #[error(
        "spec.analysis has both match and weights, and {router} can do only one at a time; use match with iterations, or weights without match, or set spec.provider to istio or gatewayapi:v1"
    )]
    MatchWithWeight { router: String },
    #[error(
        "spec.analysis asks to mirror traffic, and {router} cannot; remove mirror, or set spec.provider to a router that can, such as istio or gatewayapi:v1"
    )]
    Mirror { router: String },
    #[error(
        "spec.analysis asks to mirror a part of the traffic, and {router} mirrors all or nothing; remove mirrorWeight"
    )]
    PartialMirror { router: String },
    #[error(
        "spec.analysis.sessionAffinity needs a router that sets cookies, and {router} does not; remove it, or set spec.provider to istio or gatewayapi:v1"
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
    #[error("{field} asks for {what}, and {router} cannot do that; {way_out}, or set another spec.provider")]
    Field { router: String, field: &'static str, what: String, way_out: &'static str },
    #[error("spec.service is missing; set spec.service.port to the port that the workload is reached at")]
    NoService,
    #[error(
        "the Service {name} would have a name of {} characters, and 63 are allowed; set spec.service.name to a shorter one",
        name.len()
    )]
    NameTooLong { name: String },
}

/// Why an object could not be written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{doing} {object}: {}", api_message(why))]
    Api { doing: &'static str, object: ObjectKey, why: Box<kube::Error> },
    #[error(
        "{object} belongs to {owner}; give this Canary a spec.service.name of its own, or delete {owner}"
    )]
    AlreadyOwned { object: ObjectKey, owner: String },
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
    #[error("{object} changed while it was being written; trying again")]
    Conflict { object: ObjectKey },
    #[cfg(feature = "aws")]
    #[error(transparent)]
    AppMesh(#[from] aws::Error),
}

/// The server's own words, without how they were wrapped.
fn api_message(why: &kube::Error) -> String {
    match why {
        kube::Error::Api(status) => status.message.clone(),
        why => why.to_string(),
    }
}

impl Error {
    /// Trying again cannot help until somebody changes something.
    pub fn is_final(&self) -> bool {
        match self {
            Self::AlreadyOwned { .. } | Self::Unsupported(_) => true,
            Self::Conflict { .. } => false,
            #[cfg(feature = "aws")]
            Self::AppMesh(why) => why.is_final(),
            Self::Api { why, .. } => {
                matches!(&**why, kube::Error::Api(status) if matches!(status.code, 403 | 422))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_written_in_the_coarsest_parts_that_are_exact() {
        let parts = |percent: f64| weight_ratio(Weight::from_percent(percent).unwrap());
        assert_eq!(parts(5.0), [5, 95]);
        assert_eq!(parts(0.5), [5, 995]);
        assert_eq!(parts(0.01), [1, 9999]);
        assert_eq!(parts(33.3), [333, 667]);
    }

    #[test]
    fn comparisons_become_regular_expressions() {
        let exact = StringMatch { exact: Some("a.b".to_owned()), ..Default::default() };
        let prefix = StringMatch { prefix: Some("/api".to_owned()), ..Default::default() };
        assert_eq!(to_regex(&exact), r"a\.b");
        assert_eq!(to_regex(&prefix), "/api.*");
        assert_eq!(to_regex(&StringMatch::default()), ".*");
    }
}
