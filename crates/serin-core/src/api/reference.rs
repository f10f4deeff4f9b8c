//! References from one object to another.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A Secret in the same namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
pub struct SecretRef {
    /// Name of the Secret.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
}

/// An object of any kind in the same namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ObjectRef {
    /// API group and version of the object, such as `networking.k8s.io/v1`.
    #[schemars(length(min = 1, max = 253))]
    pub api_version: String,

    /// Kind of the object.
    #[schemars(length(min = 1, max = 63))]
    pub kind: String,

    /// Name of the object.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,

    /// Namespace of the object. Default: the namespace of the Canary.
    #[schemars(length(min = 1, max = 63))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
}

/// The AlertProvider that an alert goes to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
pub struct AlertProviderRef {
    /// Name of the AlertProvider.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,

    /// Namespace of the AlertProvider. Default: the namespace of the Canary.
    #[schemars(length(min = 1, max = 63))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
}

/// The template of a metric.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
pub struct TemplateRef {
    /// Kind of the template. Default: AnalysisTemplate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<TemplateKind>,

    /// Name of the template.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,

    /// Namespace of the AnalysisTemplate. Default: the namespace of the Canary.
    /// A ClusterAnalysisTemplate has none.
    #[schemars(length(min = 1, max = 63))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
}

/// Kinds of template.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TemplateKind {
    /// a template of one namespace.
    #[default]
    AnalysisTemplate,
    /// a template shared by the whole cluster.
    ClusterAnalysisTemplate,
}
