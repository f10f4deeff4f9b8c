//! The Helm chart: what the real Helm makes of it, accepted by the real API
//! server, and the real controller under exactly the rights that it gives.

#[path = "../support/mod.rs"]
mod support;

mod adoption;
mod approvals;
mod image;
mod install;
mod inventory;
mod kustomize;
mod mesh_apis;
mod meshes;
mod rbac;
mod rbac_rule;
mod render;
mod replicas;
mod rules;
mod smi_metrics;
mod upgrade;
mod xds;
