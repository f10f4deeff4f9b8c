//! What can go wrong with a mesh that is not in the cluster, and the way out.

use aws_sdk_appmesh::error::BuildError;

use crate::{aws::NoRegion, routing::Unsupported};

/// Why App Mesh is not as it should be.
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
    #[error("App Mesh cannot be asked: {0}")]
    NoRegion(#[from] NoRegion),
    #[error("a request to App Mesh lacks a field: {0}")]
    Build(#[from] BuildError),
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
}

impl Error {
    /// Trying again cannot help until somebody changes something.
    pub fn is_final(&self) -> bool {
        match self {
            Self::Api { why, .. } => why.is_final(),
            Self::AlreadyOwned { .. } | Self::NoRegion(_) | Self::Build(_) | Self::Unsupported(_) => true,
            Self::Conflict { .. } => false,
        }
    }
}

/// What App Mesh answered, or that it did not.
#[derive(Debug, thiserror::Error)]
pub enum MeshApiError {
    #[error(
        "it, or what it needs, does not exist ({0}); check the mesh (spec.service.meshName or --appmesh-mesh), its owner (--appmesh-mesh-owner) and the region (--appmesh-region)"
    )]
    NotFound(String),
    #[error("somebody makes or changes it at the same moment ({0}); trying again")]
    Conflict(String),
    #[error(
        "App Mesh does not accept it ({0}); correct spec.service of the Canary, or what is there already"
    )]
    BadRequest(String),
    #[error(
        "it is not allowed ({0}); let the controller's role describe, list, create, update, delete, tag and untag what is in this mesh"
    )]
    Forbidden(String),
    #[error("App Mesh failed ({0}); trying again")]
    Internal(String),
    #[error("a quota of the account is used up ({0}); have it raised, or delete what is not needed any more")]
    LimitExceeded(String),
    #[error("others use it ({0}); delete what leads to it")]
    InUse(String),
    #[error("App Mesh is not available for the moment ({0}); trying again")]
    Unavailable(String),
    #[error("App Mesh is asked too much at a time ({0}); trying again")]
    TooManyRequests(String),
    #[error("it has so many tags that ours find no room ({0}); remove some")]
    TooManyTags(String),
    #[error("no answer that makes sense ({0}); check --appmesh-endpoint and the way to it")]
    InvalidResponse(String),
    #[error("the answer lacks what was asked for; trying again")]
    Incomplete,
    #[error("too many requests of this controller wait for their turn; trying again")]
    RateLimitTimeout,
    #[error("App Mesh took it and does not show it yet; trying again")]
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
