//! Requests of the controller that are refused for as long as a test wants, as an
//! authorizer or an admission webhook does in front of either server.

// Each test crate that includes this module uses a part of it.
#![allow(dead_code)]

use std::sync::Arc;

use http::{Method, Request, Response};
use kube::Client;
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::json;

/// A refused request, by its method and the end of its path.
#[derive(Clone, Debug)]
pub struct Refusal {
    pub method: &'static str,
    pub path_ends_with: String,
    pub code: u16,
    pub reason: &'static str,
    pub message: String,
}

/// A validating webhook denies a write, in the words and with the default code of
/// apiserver/pkg/admission/plugin/webhook/errors (Kubernetes 1.36).
pub fn denied_by_admission(method: &'static str, path_ends_with: impl Into<String>, why: &str) -> Refusal {
    let path_ends_with = path_ends_with.into();
    let message = format!("admission webhook \"policy.example.com\" denied the request: {why}");
    Refusal { method, path_ends_with, code: 400, reason: "BadRequest", message }
}

/// A validating webhook cannot be called, in the words of
/// apiserver/pkg/admission/plugin/webhook/errors (Kubernetes 1.36).
pub fn webhook_failed(method: &'static str, path_ends_with: impl Into<String>) -> Refusal {
    let message = "Internal error occurred: failed calling webhook \"policy.example.com\": failed to call webhook: \
                   Post \"https://policy.example.svc:443/\": connection refused";
    let path_ends_with = path_ends_with.into();
    Refusal { method, path_ends_with, code: 500, reason: "InternalError", message: message.to_owned() }
}

/// A role lacks a right, in the words of apiserver/pkg/endpoints/handlers/responsewriters
/// (Kubernetes 1.36). `resource` is `plural.group`.
pub fn forbidden(
    method: &'static str,
    path_ends_with: impl Into<String>,
    verb: &str,
    resource: &str,
) -> Refusal {
    let path_ends_with = path_ends_with.into();
    let (plural, group) = resource.split_once('.').unwrap_or((resource, ""));
    let message = format!(
        "{resource} is forbidden: User \"system:serviceaccount:serin:serin\" cannot {verb} resource \
         \"{plural}\" in API group \"{group}\" at the cluster scope"
    );
    Refusal { method, path_ends_with, code: 403, reason: "Forbidden", message }
}

/// A write is invalid, in the words of apimachinery/pkg/api/errors (Kubernetes 1.36).
pub fn invalid(method: &'static str, path_ends_with: impl Into<String>, why: &str) -> Refusal {
    let path_ends_with = path_ends_with.into();
    let message = format!("{path_ends_with} is invalid: spec: Invalid value: {why}");
    Refusal { method, path_ends_with, code: 422, reason: "Invalid", message }
}

#[derive(Clone, Default)]
pub struct Refusals(Arc<Mutex<Vec<Refusal>>>);

impl Refusals {
    pub fn add(&self, refusal: Refusal) {
        self.0.lock().push(refusal);
    }

    pub fn clear(&self) {
        self.0.lock().clear();
    }

    /// A client whose requests are refused as added.
    pub fn client(&self, client: Client) -> Client {
        let refusals = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let (client, refusal) = (client.clone(), refusals.of(&request));
            async move {
                match refusal {
                    None => client.send(request).await,
                    Some(refusal) => Ok(refusal.response()),
                }
            }
        });
        Client::new(service, "default")
    }

    fn of(&self, request: &Request<Body>) -> Option<Refusal> {
        self.0.lock().iter().find(|refusal| refusal.concerns(request.method(), request.uri().path())).cloned()
    }
}

impl Refusal {
    pub fn concerns(&self, method: &Method, path: &str) -> bool {
        self.method == method.as_str() && path.ends_with(&self.path_ends_with)
    }

    pub fn response<B: From<Vec<u8>>>(&self) -> Response<B> {
        let status = json!({
            "apiVersion": "v1", "kind": "Status", "metadata": {}, "status": "Failure",
            "message": self.message, "reason": self.reason, "code": self.code,
        });
        let body = B::from(status.to_string().into_bytes());
        let response = Response::builder().status(self.code).header("content-type", "application/json");
        response.body(body).expect("a response")
    }
}
