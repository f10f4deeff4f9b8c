//! Links that approve or reject, for chats without buttons and for mail.
//!
//! ```text
//!   GET  /api/v1/answers/TOKEN   a page that shows the question and asks for a confirmation
//!   POST /api/v1/answers/TOKEN   the confirmation: it answers
//! ```
//!
//! Guarantees: a link whose signature or time is not valid causes no request to the cluster;
//! a GET changes nothing, since chats and mail scanners open links; an answer counts as one
//! user, `LinkOptions::user`, who needs the right to update canaries/approve; a link works
//! once, because its nonce is recorded with the answer; pages have no script, are not cached,
//! cannot be framed, and send their address to nobody.

use std::{sync::Arc, time::Duration};

use axum::{
    Router,
    extract::{Path, State},
    response::Response,
    routing::get,
};
use http::StatusCode;
use jiff::Timestamp;
use k8s_openapi::api::authentication::v1::UserInfo;
use kube::Client;
use tokio::{sync::Semaphore, time::timeout};

use super::{command_api::CommandApiError, notice};
use crate::gates::{
    commands::{self, Caller},
    question::{LinkClaims, LinkError, LinkSigner},
};

/// Others are turned away.
const MAX_CONCURRENT_REQUESTS: usize = 16;
const WORK_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Clone, Debug)]
pub struct LinkOptions {
    pub signer: LinkSigner,
    /// Name of the user that answers count as.
    pub user: String,
}

#[derive(Clone)]
struct LinkState {
    client: Client,
    /// Empty: all.
    namespaces: Arc<[String]>,
    options: Arc<LinkOptions>,
    permits: Arc<Semaphore>,
}

/// For Canaries in these namespaces; empty: in all.
pub fn link_router(client: Client, namespaces: &[String], options: LinkOptions) -> Router {
    let state = LinkState {
        client,
        namespaces: namespaces.into(),
        options: Arc::new(options),
        permits: Arc::new(Semaphore::new(MAX_CONCURRENT_REQUESTS)),
    };
    Router::new().route("/api/v1/answers/{token}", get(show).post(confirm)).with_state(state)
}

async fn show(State(state): State<LinkState>, Path(token): Path<String>) -> Response {
    match state.options.signer.verify(&token, Timestamp::now()) {
        Ok(claims) => page(StatusCode::OK, &title(&claims), Some(&claims)),
        Err(error) => refused(error),
    }
}

async fn confirm(State(state): State<LinkState>, Path(token): Path<String>) -> Response {
    let claims = match state.options.signer.verify(&token, Timestamp::now()) {
        Ok(claims) => claims,
        Err(error) => return refused(error),
    };
    let LinkClaims { question, approve, nonce, .. } = &claims;
    if !state.namespaces.is_empty() && !state.namespaces.contains(&question.namespace) {
        return page(StatusCode::NOT_FOUND, "The namespace of this link is not served here.", None);
    }
    let Ok(_permit) = state.permits.try_acquire() else {
        return page(StatusCode::TOO_MANY_REQUESTS, "Too many requests at the same time: try again.", None);
    };
    let user = UserInfo {
        username: Some(state.options.user.clone()),
        groups: Some(vec!["system:authenticated".to_owned()]),
        ..UserInfo::default()
    };
    let caller = Caller::User(user);
    let answer = commands::answer(&state.client, &caller, question, *approve, Some(nonce));
    match timeout(WORK_TIMEOUT, answer).await {
        Ok(Ok(_)) => {
            let by = &state.options.user;
            let (name, namespace) = (&question.name, &question.namespace);
            tracing::info!(canary = name, namespace, by, approve, "accepted from a link");
            let did = if *approve { "Approved" } else { "Rejected" };
            page(StatusCode::OK, &format!("{did}: {} of {name} in {namespace}.", question.gate), None)
        }
        Ok(Err(error)) => {
            let error = CommandApiError::Command(error);
            let code = error.status_code();
            if code.is_server_error() {
                tracing::warn!(error = crate::error_chain::error_chain(&error), "an answer by link failed");
            }
            page(code, &format!("Nothing is changed: {error}."), None)
        }
        Err(_) => page(StatusCode::GATEWAY_TIMEOUT, "Not done in time: try again.", None),
    }
}

fn refused(error: LinkError) -> Response {
    let (code, text) = match &error {
        LinkError::Invalid => (StatusCode::NOT_FOUND, error.to_string()),
        LinkError::Expired => (StatusCode::GONE, error.to_string()),
        LinkError::Key(_) | LinkError::ShortKey => {
            tracing::warn!(error = crate::error_chain::error_chain(&error), "a link cannot be verified");
            (StatusCode::INTERNAL_SERVER_ERROR, "links do not work here at the moment".to_owned())
        }
    };
    page(code, &text, None)
}

fn title(LinkClaims { question, approve, .. }: &LinkClaims) -> String {
    let verb = if *approve { "Approve" } else { "Reject" };
    format!("{verb} {} of {} in {}?", question.gate, question.name, question.namespace)
}

/// With a button if there is something to confirm: the form is sent to the page's own address.
fn page(code: StatusCode, text: &str, confirm: Option<&LinkClaims>) -> Response {
    let form = match confirm {
        Some(LinkClaims { approve: true, .. }) => "<form method=\"post\"><button>Approve</button></form>",
        Some(LinkClaims { approve: false, .. }) => {
            "<form method=\"post\"><button>Reject, and roll the release back</button></form>"
        }
        None => "",
    };
    notice::page(code, text, form)
}
