//! The workloads of a release: the target, which users edit and which is the
//! canary; the primary, which serves; and optionally the previous version, kept
//! for a fast rollback.
//!
//! ```text
//!   podinfo            edited by users; scaled up for a release, else to zero
//!   podinfo-primary    a copy of the target at the promoted revision
//!   podinfo-previous   a copy of the primary from before the last promotion
//! ```
//!
//! A [`Workload`] is the resolved target of a Canary. From cached objects it
//! derives the observed state ([`Workload::observe_target`] and its siblings) and
//! the changes that companions of the target need
//! ([`Workload::companion_changes`]); both are pure. With a client it performs the
//! actions of the engine (`act`). Invariants:
//!
//! - A copy is of exactly the requested revision: target and configs are read,
//!   their revision is compared, and the very text that was compared is written,
//!   with the resourceVersion of the primary as precondition.
//! - Actions are idempotent, and a crash between two writes leaves nothing that
//!   the next attempt does not complete.
//! - The primary differs from the target in one label value, so their selectors
//!   never overlap; every other label stays.
//! - The primary reads copies of the target's ConfigMaps and Secrets. A copy is
//!   named after its contents and is immutable, so neither an edit of the config
//!   nor a partial promotion reaches a running pod.
//! - Objects that Serin did not make are not overwritten.
//!
//! A target may also be an EndpointGroup (`endpoint_group.rs`): its versions run on machines
//! that somebody else deploys to, so nothing is copied, and its status names the version
//! that is the primary.
//!
//! Specs are handled as JSON, not as types of a client library: fields that Serin
//! does not know are hashed and copied too.

mod act;
mod adopt;
mod backup;
mod cached_workload;
mod canary_pod;
mod check;
mod companions;
mod configs;
mod endpoint_group;
pub mod images;
mod labels;
mod manifests;
mod observe;
mod pod_trouble;
pub mod pods;
mod scaler;
mod write;

use std::sync::{Arc, LazyLock};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{
    Resource as _, ResourceExt as _,
    core::{ApiResource, GroupVersionKind, TypeMeta},
};

pub use act::{Error, FromCache, LostPrimary};
pub use adopt::AdoptedRevisions;
pub use cached_workload::CachedWorkload;
pub use companions::{COMPANION_KINDS, CompanionChange};
pub use configs::{ConfigContents, MissingContents};
pub use endpoint_group::versions;
pub use labels::Selectors;
pub use manifests::Port;
pub use pod_trouble::pod_trouble;

use check::TargetPort;

use crate::{
    api::{
        Canary, GROUP, VERSION,
        canary::{AutoscalerKind, AutoscalerRef, TargetKind},
    },
    engine::revision::ConfigRef,
};

/// On the primary's pods: the revision they run.
pub const REVISION: &str = "serin.dev/revision";
/// On the primary: digests of the specs in its [`backup`].
const BACKUP_DIGESTS: &str = "serin.dev/backup-digests";
/// On the target: the Canary and the release after which it was scaled down.
const SCALED_DOWN_AFTER: &str = "serin.dev/scaled-down-after";
/// On the primary's autoscaler: its temporary minimum size.
const PINNED: &str = "serin.dev/pinned";
/// On copies for the primary: kind and name of the original.
const COPY_OF: &str = "serin.dev/copy-of";

/// Options for every Canary of one controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Labels and annotations with one of these prefixes are copied from an
    /// object to its copy; `*` copies all.
    pub prefixes: Vec<String>,
    /// Labels that identify a workload, by precedence. The first in a target's
    /// selector gets another value on its primary.
    pub identity_labels: Vec<String>,
    /// Changes of ConfigMaps and Secrets are new revisions.
    pub track_configs: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            prefixes: Vec::new(),
            identity_labels: ["app", "name", "app.kubernetes.io/name"].map(str::to_owned).to_vec(),
            track_configs: true,
        }
    }
}

/// The kinds of objects that this module reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    Deployment,
    DaemonSet,
    Service,
    EndpointGroup,
    ConfigMap,
    Secret,
    HorizontalPodAutoscaler,
    ScaledObject,
    PodDisruptionBudget,
}

impl Kind {
    pub const ALL: [Self; 9] = [
        Self::Deployment,
        Self::DaemonSet,
        Self::Service,
        Self::EndpointGroup,
        Self::ConfigMap,
        Self::Secret,
        Self::HorizontalPodAutoscaler,
        Self::ScaledObject,
        Self::PodDisruptionBudget,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Deployment => "Deployment",
            Self::DaemonSet => "DaemonSet",
            Self::Service => "Service",
            Self::EndpointGroup => "EndpointGroup",
            Self::ConfigMap => "ConfigMap",
            Self::Secret => "Secret",
            Self::HorizontalPodAutoscaler => "HorizontalPodAutoscaler",
            Self::ScaledObject => "ScaledObject",
            Self::PodDisruptionBudget => "PodDisruptionBudget",
        }
    }

    pub fn resource(self) -> &'static ApiResource {
        static RESOURCES: LazyLock<[ApiResource; 9]> = LazyLock::new(|| Kind::ALL.map(Kind::api_resource));
        &RESOURCES[self as usize]
    }

    fn api_resource(self) -> ApiResource {
        let (group, version) = match self {
            Self::Deployment | Self::DaemonSet => ("apps", "v1"),
            Self::Service | Self::ConfigMap | Self::Secret => ("", "v1"),
            Self::EndpointGroup => (GROUP, VERSION),
            Self::HorizontalPodAutoscaler => ("autoscaling", "v2"),
            Self::ScaledObject => ("keda.sh", "v1alpha1"),
            Self::PodDisruptionBudget => ("policy", "v1"),
        };
        ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, self.name()))
    }

    fn type_meta(self) -> TypeMeta {
        let ApiResource { api_version, kind, .. } = self.resource().clone();
        TypeMeta { api_version, kind }
    }

    fn of(config: &ConfigRef) -> Option<Self> {
        [Self::ConfigMap, Self::Secret].into_iter().find(|kind| kind.name() == config.kind)
    }
}

impl From<TargetKind> for Kind {
    fn from(kind: TargetKind) -> Self {
        match kind {
            TargetKind::Deployment => Self::Deployment,
            TargetKind::DaemonSet => Self::DaemonSet,
            TargetKind::Service => Self::Service,
            TargetKind::EndpointGroup => Self::EndpointGroup,
        }
    }
}

impl From<AutoscalerKind> for Kind {
    fn from(kind: AutoscalerKind) -> Self {
        match kind {
            AutoscalerKind::HorizontalPodAutoscaler => Self::HorizontalPodAutoscaler,
            AutoscalerKind::ScaledObject => Self::ScaledObject,
        }
    }
}

/// Objects of the Canary's namespace whose changes trigger a reconcile.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Reference {
    pub kind: Kind,
    /// None for all objects of the kind.
    pub name: Option<String>,
}

/// Why a target cannot be released.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnsupportedTarget {
    #[error(
        "spec.targetRef names a {kind} of {api_version}, which Serin does not release; use a Deployment or DaemonSet of apps/v1, a Service of v1, or an EndpointGroup of serin.dev/v1alpha1"
    )]
    ApiVersion { kind: &'static str, api_version: String },
    #[error(
        "{kind} {name} selects its pods by no label value, so its primary could not be distinguished from it; add one such as app: {name} to spec.selector.matchLabels and to the pods"
    )]
    NoIdentityLabel { kind: &'static str, name: String },
    #[error(
        "the value of the label {key} on {name} is longer than {} characters, so the primary's could not end in -primary; shorten it, or select by another label",
        labels::MAX_LABEL
    )]
    LabelTooLong { key: String, name: String },
    #[error(
        "{kind} {target} and its primary {primary} would share pods, since the labels of one satisfy the selector of the other; recreate {target} with a label in spec.selector.matchLabels and on its pods whose value {primary} does not have, such as app: {target}"
    )]
    SharedPods { kind: &'static str, target: String, primary: String },
    #[error(
        "{kind} {name} belongs to {owner}, so Serin leaves it alone; point spec.targetRef of a new Canary at another workload"
    )]
    OwnedByOther { kind: &'static str, name: String, owner: String },
    #[error(
        "{kind} {name} exists and no Canary made it, so Serin leaves it alone; rename it, or annotate it with serin.dev/adopt: \"true\" to have it overwritten by a copy of the target"
    )]
    NotAdopted { kind: &'static str, name: String },
    #[error(
        "{kind} {name} exists and is no copy by Serin, so it is left alone; rename it, and Serin makes its own"
    )]
    ForeignCompanion { kind: &'static str, name: String },
    #[error(
        "spec.targetRef names {kind} {name}, which is the primary of Canary {canary}; delete this Canary, and create one that names a workload of your own"
    )]
    TargetIsPrimary { kind: &'static str, name: String, canary: String },
    #[error(
        "spec.service.targetPort names {name:?}, and the containers of {kind} {target} declare {declared}; name one of their ports, or write a number"
    )]
    NamedPort { kind: &'static str, target: String, name: String, declared: String },
    #[error(
        "spec.service.targetPort defaults to spec.service.port, {port}, and the containers of {kind} {target} declare {declared}; set spec.service.targetPort to one of their ports, or to {port} if one of them listens there"
    )]
    ImpliedPort { kind: &'static str, target: String, port: u16, declared: String },
    #[error(
        "spec.service.port is {port}, and EndpointGroup {target} has the port {of_group}; write the same in both"
    )]
    GroupPort { target: String, port: u16, of_group: u16 },
    #[error(
        "spec.rollback.keepWarmSeconds keeps pods of the previous version, and an EndpointGroup has none; remove it: the machines of that version serve again as long as they are listed"
    )]
    KeptWarm,
}

/// The resolved target of a Canary.
#[derive(Clone, Debug)]
pub struct Workload {
    kind: TargetKind,
    namespace: String,
    target: String,
    owner: OwnerReference,
    autoscaler: Option<AutoscalerRef>,
    target_port: TargetPort,
    /// Steps set the canary's size, so the primary's size does not follow it.
    sized_by_steps: bool,
    options: Arc<Options>,
}

impl Workload {
    pub fn new(canary: &Canary, options: &Arc<Options>) -> Result<Self, UnsupportedTarget> {
        let target = &canary.spec.target_ref;
        let kind = Kind::from(target.kind);
        if target.api_version != kind.resource().api_version {
            return Err(UnsupportedTarget::ApiVersion {
                kind: kind.name(),
                api_version: target.api_version.clone(),
            });
        }
        let keeps_warm = canary
            .spec
            .rollback
            .as_ref()
            .and_then(|rollback| rollback.keep_warm_seconds)
            .is_some_and(|seconds| seconds > 0);
        if target.kind == TargetKind::EndpointGroup && keeps_warm {
            return Err(UnsupportedTarget::KeptWarm);
        }
        let owner = OwnerReference {
            api_version: Canary::api_version(&()).into_owned(),
            kind: Canary::kind(&()).into_owned(),
            name: canary.name_any(),
            uid: canary.uid().unwrap_or_default(),
            controller: Some(true),
            block_owner_deletion: Some(true),
        };
        Ok(Self {
            kind: target.kind,
            namespace: canary.namespace().unwrap_or_default(),
            target: target.name.clone(),
            owner,
            target_port: TargetPort::of(canary),
            autoscaler: canary.spec.autoscaler_ref.clone().filter(|_| target.kind == TargetKind::Deployment),
            sized_by_steps: canary.spec.analysis.steps.iter().any(|step| step.replicas.is_some()),
            options: Arc::clone(options),
        })
    }

    /// Kind of the target, the primary and the previous version.
    pub fn kind(&self) -> Kind {
        self.kind.into()
    }

    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    pub fn target_name(&self) -> &str {
        &self.target
    }

    /// Of an EndpointGroup it is the group itself, whose status names the version.
    pub fn primary_name(&self) -> String {
        if self.kind == TargetKind::EndpointGroup {
            return self.target.clone();
        }
        format!("{}-primary", self.target)
    }

    pub fn previous_name(&self) -> String {
        format!("{}-previous", self.target)
    }

    /// Every object whose changes concern this Canary; configs only with the
    /// target.
    pub fn references(&self, target: Option<&CachedWorkload>) -> Vec<Reference> {
        let named = |kind, name: String| Reference { kind, name: Some(name) };
        if self.kind == TargetKind::EndpointGroup {
            return vec![named(self.kind(), self.target.clone())];
        }
        let mut all = vec![
            named(self.kind(), self.target.clone()),
            named(self.kind(), self.primary_name()),
            named(self.kind(), self.previous_name()),
        ];
        match self.kind {
            TargetKind::Service => all.push(named(Kind::Service, self.canary_service_name())),
            TargetKind::Deployment | TargetKind::DaemonSet => {
                all.push(Reference { kind: Kind::PodDisruptionBudget, name: None });
            }
            TargetKind::EndpointGroup => {}
        }
        if let Some(scaler) = &self.autoscaler {
            all.push(named(scaler.kind.into(), scaler.name.clone()));
            all.push(named(scaler.kind.into(), format!("{}-primary", scaler.name)));
        }
        let configs = target.map(|target| self.config_refs(&target.spec())).unwrap_or_default();
        all.extend(configs.into_iter().filter_map(|config| Some(named(Kind::of(&config)?, config.name))));
        all
    }

    /// The Service that selects the canary, if the target is a Service.
    fn canary_service_name(&self) -> String {
        format!("{}-canary", self.target)
    }
}
