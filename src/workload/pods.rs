//! The selector of a workload's pods.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::core::{Expression, Selector};

/// None if it would select all pods.
pub fn selector(selector: &LabelSelector) -> Option<Selector> {
    let labels = selector.match_labels.iter().flatten();
    let equal = labels.map(|(key, value)| Expression::Equal(key.clone(), value.clone()));
    let selector: Selector = equal.collect();
    (!selector.selects_all()).then_some(selector)
}
