//! Errors of the App Mesh API, and their remedies.

use aws_sdk_appmesh::error::BuildError;

use crate::{aws::NoRegion, routing::Unsupported};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{doing} {what}: {why}")]
    Api { doing: &'static str, what: String, why: MeshApiError },
    #[error(
        "{what} carries the tag serin.dev/canary of {owner}; give this Canary a spec.service.name of its own, or delete {owner}"
    )]
    AlreadyOwned { what: String, owner: String },
    #[error("{what} changed while it was being written; trying again")]
    Conflict { what: String },
    #[error("App Mesh cannot be called: {0}")]
    NoRegion(#[from] NoRegion),
    #[error("a request to App Mesh lacks a field: {0}")]
    Build(#[from] BuildError),
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
}

impl Error {
    /// Retries cannot succeed until the spec, a resource or a permission changes.
    pub fn is_final(&self) -> bool {
        match self {
            Self::Api { why, .. } => why.is_final(),
            Self::AlreadyOwned { .. } | Self::NoRegion(_) | Self::Build(_) | Self::Unsupported(_) => true,
            Self::Conflict { .. } => false,
        }
    }
}

/// An error response of App Mesh, or none.
#[derive(Debug, thiserror::Error)]
pub enum MeshApiError {
    #[error(
        "it, or what it needs, does not exist ({0}); check the mesh (spec.service.meshName or --appmesh-mesh), its owner (--appmesh-mesh-owner) and the region (--appmesh-region)"
    )]
    NotFound(String),
    #[error("another client writes it at the same time ({0}); trying again")]
    Conflict(String),
    #[error(
        "App Mesh does not accept it ({0}); correct spec.service of the Canary, or the existing resource"
    )]
    BadRequest(String),
    #[error(
        "it is not allowed ({0}); let the controller's role describe, list, create, update, delete, tag and untag the resources of this mesh"
    )]
    Forbidden(String),
    #[error("App Mesh failed ({0}); trying again")]
    Internal(String),
    #[error("a quota of the account is used up ({0}); have it raised, or delete unused resources")]
    LimitExceeded(String),
    #[error("other resources use it ({0}); delete those that refer to it")]
    InUse(String),
    #[error("App Mesh is temporarily unavailable ({0}); trying again")]
    Unavailable(String),
    #[error("App Mesh throttles requests ({0}); trying again")]
    TooManyRequests(String),
    #[error("it has too many tags to add ours ({0}); remove some")]
    TooManyTags(String),
    #[error("unexpected response ({0}); check --appmesh-endpoint and the network path to it")]
    InvalidResponse(String),
    #[error("the response lacks required fields; trying again")]
    Incomplete,
    #[error("too many requests of this controller wait for the rate limit; trying again")]
    RateLimitTimeout,
    #[error("App Mesh accepted the write but does not return it yet; trying again")]
    NotVisibleYet,
    #[error("this replica does not hold the Canary's shard any more, so it writes nothing")]
    Fenced,
}

impl MeshApiError {
    fn is_final(&self) -> bool {
        match self {
            Self::NotFound(_)
            | Self::BadRequest(_)
            | Self::Forbidden(_)
            | Self::LimitExceeded(_)
            | Self::TooManyTags(_) => true,
            Self::Conflict(_)
            | Self::Internal(_)
            | Self::InUse(_)
            | Self::Unavailable(_)
            | Self::TooManyRequests(_)
            | Self::InvalidResponse(_)
            | Self::Incomplete
            | Self::RateLimitTimeout
            | Self::NotVisibleYet
            | Self::Fenced => false,
        }
    }
}
