//! The proxies of the control plane for Envoys as JSON.
//!
//! ```text
//!   GET /api/v1/xds/proxies     {"replica": "serin-0", "proxies": […]}
//! ```
//!
//! Each replica answers for the proxies that are connected to it. A caller needs the right
//! to `list meshroutes` in the group serin.dev in all namespaces, as reviewed by the API
//! server seconds ago at most.

use std::{sync::Arc, time::Duration};

use axum::{
    Json, Router,
    extract::State,
    response::{IntoResponse, Response},
    routing::get,
};
use http::{HeaderMap, StatusCode};
use serde_json::{Value, json};
use tokio::{sync::Semaphore, time::timeout};

use super::{
    access::{Access, Right},
    command_api::CommandApiError,
};

/// Others wait.
const MAX_CONCURRENT_REQUESTS: usize = 2;
/// Of a whole request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Clone)]
struct XdsApiState {
    access: Arc<Access>,
    proxies: Arc<dyn Fn() -> Value + Send + Sync>,
    permits: Arc<Semaphore>,
}

/// `proxies` returns what is shown.
pub fn xds_router(access: Arc<Access>, proxies: Arc<dyn Fn() -> Value + Send + Sync>) -> Router {
    let permits = Arc::new(Semaphore::new(MAX_CONCURRENT_REQUESTS));
    let state = XdsApiState { access, proxies, permits };
    Router::new().route("/api/v1/xds/proxies", get(list)).with_state(state)
}

#[derive(Debug, thiserror::Error)]
enum XdsApiError {
    #[error("{who} may not list meshroutes in the group serin.dev in all namespaces; ask for that right")]
    Forbidden { who: String },
    #[error("access could not be reviewed by the API server; try again")]
    ReviewFailed(#[source] Box<kube::Error>),
    #[error("not done within {REQUEST_TIMEOUT:?}; try again")]
    Timeout,
    #[error(transparent)]
    Authentication(#[from] CommandApiError),
}

impl IntoResponse for XdsApiError {
    fn into_response(self) -> Response {
        let code = match self {
            Self::Forbidden { .. } => StatusCode::FORBIDDEN,
            Self::ReviewFailed(ref source) => {
                tracing::warn!(error = %source, "{self}");
                StatusCode::BAD_GATEWAY
            }
            Self::Timeout => StatusCode::GATEWAY_TIMEOUT,
            Self::Authentication(error) => return error.into_response(),
        };
        (code, Json(json!({ "error": self.to_string() }))).into_response()
    }
}

async fn list(State(state): State<XdsApiState>, headers: HeaderMap) -> Result<Json<Value>, XdsApiError> {
    let review = async {
        let _permit = state.permits.acquire().await;
        let user = state.access.recognise(&headers).await?;
        let who = user.name().to_owned();
        let right = Right::on_ours("list", "meshroutes", None);
        match state.access.allows(&user, right).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(XdsApiError::Forbidden { who }),
            Err(error) => Err(XdsApiError::ReviewFailed(Box::new(error))),
        }
    };
    timeout(REQUEST_TIMEOUT, review).await.map_err(|_| XdsApiError::Timeout)??;
    Ok(Json((state.proxies)()))
}
