//! Serin: a progressive-delivery canary engine for Kubernetes.
//!
//! Crates:
//!
//! | crate        | contents                                                            | depends on   |
//! |--------------|---------------------------------------------------------------------|--------------|
//! | `serin-core` | [`api`]: custom resource types, one file per kind                   |              |
//! |              | [`analysis`]: statistics, measurements in and verdict out           |              |
//! |              | [`engine`]: the release state machine, on `api` and `analysis`      |              |
//! | `work-queue` | the reconcile queue, and a [`clock`] that follows tokio's time      |              |
//! | `kube-local` | a Kubernetes API in one process, with controllers, a node, a mesh   | `work-queue` |
//! | `serin`      | the rooms below                                                     | all above    |
//!
//! Rooms of `serin`; each may import `serin-core`, the last four rooms and:
//!
//! | room           | purpose                                                           | may import   |
//! |----------------|-------------------------------------------------------------------|--------------|
//! | [`workload`]   | primary and canary workloads, their configs and autoscalers       |              |
//! | [`routing`]    | Services and route objects that carry the weights                 |              |
//! | [`metrics`]    | metric sources: queries and measurements                          |              |
//! | [`gates`]      | webhooks, approvals and commands                                  |              |
//! | [`discovery`]  | the inventory of meshes, workloads and services                   |              |
//! | [`catalog`]    | endpoints and topology joined, for proxies that Serin configures  |              |
//! | [`xds`]        | the control plane for Envoys; with the feature `xds`              | `catalog`, `tls` |
//! | [`notify`]     | notifications to chats and event receivers                        |              |
//! | `telemetry`    | health and counters of the controller                             | `notify`     |
//! | [`controller`] | the reconcile loop: observe, decide, act, record                  | all above    |
//! | [`server`]     | `/metrics`, `/healthz`, `/readyz`, the APIs and the dashboard     | `gates`, `notify`, `telemetry`, `controller`, `workload`, `routing`, `discovery` |
//! | `lint`         | findings about manifests, without a cluster                       | `workload`, `routing`, `metrics`, `kube-local` |
//! | [`migrate`]    | manifests of Flagger and Argo Rollouts as Serin's; knows Flagger  |              |
//! | [`cli`]        | the commands, one file each                                       | all, `kube-local` |
//! | `object_cache` | the cache of objects that `routing` and `workload` read and write through |              |
//! | `patch`        | the field manager, patch parameters and merge diffs               |              |
//! | `fair_pool`    | turns for work, bounded over all, per namespace and per Canary   |              |
//! | `memo`         | memoisation with explicit inputs                                  |              |
//! | `stripped`     | decodes objects without managedFields                             |              |
//! | `error_chain`  | errors as one line of text                                        |              |
//! | `api_error`    | errors of the Kubernetes API as users read them                   |              |
//! | [`tenancy`]    | limits of what the objects of tenants may cause                   |              |
//! | `tenant_template` | templates of tenants, without statements                        |              |
//! | [`tls`]        | the crypto provider of rustls, certificates of servers            |              |
//! | `aws`          | AWS client configuration; with the feature `aws`                  |              |
//!
//! `engine`, `analysis` and `discovery::model` contain no `async`, no clock and no client; time and
//! randomness are arguments, effects are values. ARCHITECTURE.md gives the reasons.

mod api_error;
#[cfg(feature = "aws")]
pub mod aws;
pub mod catalog;
pub mod cli;
pub mod controller;
pub mod discovery;
mod error_chain;
mod fair_pool;
pub mod gates;
#[cfg(feature = "lint")]
pub mod lint;
mod memo;
pub mod metrics;
pub mod migrate;
pub mod notify;
pub mod object_cache;
mod patch;
mod retry_after;
pub mod routing;
pub mod server;
mod stripped;
pub mod telemetry;
pub mod tenancy;
mod tenant_template;
pub mod tls;
pub mod workload;
#[cfg(feature = "xds")]
pub mod xds;

pub use serin_core::{analysis, api, engine};
pub use work_queue::{WorkQueue, clock};
