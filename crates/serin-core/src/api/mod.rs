//! The custom resources of `serin.dev/v1alpha1`, one file per kind.
//!
//! The types carry serde, a schema and the validation rules of the API server,
//! and depend on no other module. They guarantee that
//!
//! - a Flagger manifest means the same here once its `apiVersion` is changed;
//! - every object the API server accepted deserializes;
//! - no field is lost: objects that belong to a mesh are kept whole
//!   ([`Object`]).
//!
//! `kubectl explain` shows the doc comments. An optional field has no default in
//! the schema, so users read back exactly the object they applied; the default
//! is named in the description and applied where the field is read.

// Printer columns repeat their types, which the lint takes for a mistake.
#![allow(clippy::duplicated_attributes)]

pub mod alert_provider;
pub mod analysis_template;
pub mod canary;
pub mod cloudwatch;
pub mod cluster_analysis_template;
pub mod condition;
mod duration;
pub mod endpoint_group;
pub mod inventory;
pub mod judge;
mod mesh;
pub mod mesh_api;
pub mod mesh_route;
mod mesh_service;
pub mod reference;
mod schema;
mod weight;
mod workload;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;

pub use alert_provider::{AlertProvider, AlertProviderSpec};
pub use analysis_template::{AnalysisTemplate, AnalysisTemplateSpec};
pub use canary::{Canary, CanarySpec, CanaryStatus};
pub use cluster_analysis_template::{ClusterAnalysisTemplate, ClusterAnalysisTemplateSpec};
pub use duration::{Duration, NotADuration};
pub use endpoint_group::{EndpointGroup, EndpointGroupSpec, EndpointGroupStatus};
pub use mesh::{Mesh, MeshSpec};
pub use mesh_api::{MeshApi, MeshApiSpec, MeshApiStatus};
pub use mesh_route::{MeshRoute, MeshRouteSpec, MeshRouteStatus};
pub use mesh_service::{MeshService, MeshServiceSpec};
pub use schema::Object;
pub use weight::{NotAPercentage, NotAWeight, Percent, Weight};
pub use workload::{Workload, WorkloadSpec};

/// The API group of all kinds.
pub const GROUP: &str = "serin.dev";
/// Its only version.
pub const VERSION: &str = "v1alpha1";

/// Every definition to install, in the order of their names.
pub fn crds() -> [CustomResourceDefinition; 10] {
    [
        AlertProvider::crd(),
        AnalysisTemplate::crd(),
        Canary::crd(),
        ClusterAnalysisTemplate::crd(),
        EndpointGroup::crd(),
        MeshApi::crd(),
        Mesh::crd(),
        MeshRoute::crd(),
        MeshService::crd(),
        Workload::crd(),
    ]
}

/// For `skip_serializing_if`: an omitted field stays omitted.
fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
