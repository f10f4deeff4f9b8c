//! ClusterAnalysisTemplate: an AnalysisTemplate for every namespace.

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{AnalysisTemplateSpec, condition::PlainStatus};

/// The same as an AnalysisTemplate, for every namespace.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, CustomResource, JsonSchema)]
#[kube(
    group = "serin.dev",
    version = "v1alpha1",
    kind = "ClusterAnalysisTemplate",
    status = "PlainStatus",
    derive = "PartialEq",
    category = "serin",
    shortname = "cat",
    doc = "A metric that Canaries of every namespace may use: where it is measured, by which query, and how it is judged.",
    printcolumn(name = "Provider", type_ = "string", json_path = ".spec.provider.type"),
    printcolumn(name = "Judge", type_ = "string", json_path = ".spec.judge.type", priority = "1"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(transparent)]
pub struct ClusterAnalysisTemplateSpec(pub AnalysisTemplateSpec);
