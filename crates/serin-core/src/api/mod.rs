//! What people write: the custom resources of `serin.dev/v1alpha1`, one file a
//! kind.
//!
//! This room knows nobody: the types carry serde, a schema and the rules that
//! the API server enforces, and nothing else. It promises that
//!
//! - a Flagger manifest means the same here once its `apiVersion` is changed;
//! - whatever the API server accepted deserializes;
//! - nothing that people wrote is lost: objects that belong to a mesh are kept
//!   whole ([`Object`]).
//!
//! The doc comments are what `kubectl explain` shows. An optional field has no
//! default in the schema, so what people applied is what they read back; the
//! default is named in its description and applied by whoever reads the field.

// Printer columns repeat their types, which the lint takes for a mistake.
#![allow(clippy::duplicated_attributes)]

pub mod alert_provider;
pub mod analysis_template;
pub mod canary;
pub mod cloudwatch;
pub mod cluster_analysis_template;
pub mod condition;
mod duration;
pub mod judge;
pub mod reference;
mod schema;
mod weight;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;

pub use alert_provider::{AlertProvider, AlertProviderSpec};
pub use analysis_template::{AnalysisTemplate, AnalysisTemplateSpec};
pub use canary::{Canary, CanarySpec, CanaryStatus};
pub use cluster_analysis_template::{ClusterAnalysisTemplate, ClusterAnalysisTemplateSpec};
pub use duration::{Duration, NotADuration};
pub use schema::Object;
pub use weight::{NotAPercentage, NotAWeight, Percent, Weight};

/// The API group of everything here.
pub const GROUP: &str = "serin.dev";
/// The one version of it.
pub const VERSION: &str = "v1alpha1";

/// Every definition to install, in the order of their names.
pub fn crds() -> [CustomResourceDefinition; 4] {
    [AlertProvider::crd(), AnalysisTemplate::crd(), Canary::crd(), ClusterAnalysisTemplate::crd()]
}

/// For `skip_serializing_if`: what was left out stays out.
fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
