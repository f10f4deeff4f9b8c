//! Serin: a progressive-delivery canary engine for Kubernetes.
//!
//! The map of the house, and who may know whom:
//!
//! | room           | what it is for                                                   | knows             |
//! |----------------|------------------------------------------------------------------|-------------------|
//! | [`api`]        | what people write: the custom resources, one file a kind         | nobody            |
//! | [`engine`]     | the release state machine; pure                                  | `api`, `analysis` |
//! | [`analysis`]   | the judge: measurements in, verdict out; pure                    | nobody            |
//! | [`workload`]   | primary and canary: workloads, their configs and autoscalers     | `api`, `engine`   |
//! | [`routing`]    | who carries the weights: Services and routes                     | `api`, `engine`   |
//! | [`metrics`]    | where measurements come from                                     | `api`, `analysis` |
//! | [`gates`]      | who is asked: webhooks, and people who approve or command        | `api`, `engine`   |
//! | [`notify`]     | who is told: chats and event receivers                           | `api`, `engine`   |
//! | [`controller`] | observe, decide, act, record; on kube                            | all above         |
//! | [`server`]     | what the controller shows and hears over HTTP                    | `api`, `gates`, `controller` |
//! | [`local`]      | a Kubernetes API in one process, with its controllers and a node | nobody            |
//! | [`cli`]        | the commands, one file each                                      | everybody         |
//! | `work_queue`, [`clock`], `stripped`, [`object_cache`], `patch`, [`tls`] | who is next, the time, what is read of an object, the cache of objects, patches, whose cryptography; one file each | nobody |
//! | `aws`          | our way into Amazon's cloud; with the feature of that name       | nobody            |
//!
//! `engine` and `analysis` contain no `async`, no clock and no client; time
//! and randomness are arguments, effects are values. ARCHITECTURE.md says why.

pub mod analysis;
pub mod api;
#[cfg(feature = "aws")]
pub mod aws;
pub mod cli;
pub mod clock;
pub mod controller;
pub mod engine;
pub mod gates;
pub mod local;
pub mod metrics;
pub mod notify;
pub mod object_cache;
mod patch;
pub mod routing;
pub mod server;
mod stripped;
pub mod tls;
mod work_queue;
pub mod workload;
