//! API errors with the codes, reasons and messages of the real API server: clients match on these.

use axum::body::Body;
use http::{Response, StatusCode, header};
use serde_json::{Value, json};

use super::kinds::Resource;
use super::schema::FieldError;

/// An API error; its body is a `v1.Status`.
#[derive(Debug)]
pub struct StatusError {
    pub code: StatusCode,
    reason: &'static str,
    pub message: String,
    details: Option<Value>,
    retry_after: Option<u64>,
}

impl StatusError {
    fn new(code: StatusCode, reason: &'static str, message: impl Into<String>) -> StatusError {
        StatusError { code, reason, message: message.into(), details: None, retry_after: None }
    }

    fn with_details(mut self, resource: &Resource, name: &str) -> StatusError {
        let mut details = json!({ "name": name, "kind": resource.plural });
        if !resource.group.is_empty() {
            details["group"] = json!(resource.group);
        }
        self.details = Some(details);
        self
    }

    pub fn not_found(resource: &Resource, name: &str) -> StatusError {
        let message = format!("{} {name:?} not found", resource.qualified_name());
        StatusError::new(StatusCode::NOT_FOUND, "NotFound", message).with_details(resource, name)
    }

    pub fn already_exists(resource: &Resource, name: &str) -> StatusError {
        StatusError::exists_error(resource, name, "")
    }

    pub fn exists_but_is_being_deleted(resource: &Resource, name: &str) -> StatusError {
        StatusError::exists_error(resource, name, "object is being deleted: ")
    }

    fn exists_error(resource: &Resource, name: &str, how: &str) -> StatusError {
        let message = format!("{how}{} {name:?} already exists", resource.qualified_name());
        StatusError::new(StatusCode::CONFLICT, "AlreadyExists", message).with_details(resource, name)
    }

    pub fn conflict(resource: &Resource, name: &str, why: &str) -> StatusError {
        let message =
            format!("Operation cannot be fulfilled on {} {name:?}: {why}", resource.qualified_name());
        StatusError::new(StatusCode::CONFLICT, "Conflict", message).with_details(resource, name)
    }

    /// As `conflict`, with the kind in place of the resource: a failed precondition.
    pub fn conflict_on_kind(resource: &Resource, name: &str, why: &str) -> StatusError {
        let group = if resource.group.is_empty() { String::new() } else { format!(".{}", resource.group) };
        let message = format!("Operation cannot be fulfilled on {}{group} {name:?}: {why}", resource.kind);
        StatusError::new(StatusCode::CONFLICT, "Conflict", message).with_details(resource, name)
    }

    pub fn injected_conflict() -> StatusError {
        StatusError::new(StatusCode::CONFLICT, "Conflict", "Operation cannot be fulfilled: injected conflict")
    }

    pub fn modified(resource: &Resource, name: &str) -> StatusError {
        let why =
            "the object has been modified; please apply your changes to the latest version and try again";
        StatusError::conflict(resource, name, why)
    }

    /// An apply conflicts with other managers; `causes` are `(field path, "conflict with …")`.
    pub fn apply_conflict(message: String, causes: &[(String, String)]) -> StatusError {
        let causes: Vec<Value> = causes
            .iter()
            .map(|(field, message)| json!({"reason": "FieldManagerConflict", "message": message, "field": field}))
            .collect();
        let mut error = StatusError::new(StatusCode::CONFLICT, "Conflict", message);
        error.details = Some(json!({ "causes": causes }));
        error
    }

    pub fn invalid(resource: &Resource, name: &str, errors: &[FieldError]) -> StatusError {
        StatusError::invalid_kind(&resource.kind, &resource.group, name, errors)
    }

    /// As `invalid`, for a kind without a resource of its own.
    pub fn invalid_kind(kind_name: &str, group: &str, name: &str, errors: &[FieldError]) -> StatusError {
        let kind = if group.is_empty() { kind_name.to_owned() } else { format!("{kind_name}.{group}") };
        let mut lines: Vec<String> = Vec::new();
        for error in errors {
            let line = error.to_string();
            if !lines.contains(&line) {
                lines.push(line);
            }
        }
        let all = if let [one] = lines.as_slice() { one.clone() } else { format!("[{}]", lines.join(", ")) };
        let causes: Vec<Value> = errors
            .iter()
            .map(|e| json!({"reason": e.reason.code(), "message": e.message, "field": e.field}))
            .collect();
        let mut error = StatusError::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "Invalid",
            format!("{kind} {name:?} is invalid: {all}"),
        );
        let mut details = json!({ "name": name, "kind": kind_name, "causes": causes });
        if !group.is_empty() {
            details["group"] = json!(group);
        }
        error.details = Some(details);
        error
    }

    pub fn forbidden(resource: &Resource, name: &str, why: &str) -> StatusError {
        let what = if name.is_empty() { String::new() } else { format!(" {name:?}") };
        let message = format!("{}{what} is forbidden: {why}", resource.qualified_name());
        StatusError::new(StatusCode::FORBIDDEN, "Forbidden", message).with_details(resource, name)
    }

    /// A terminating namespace accepts no new objects.
    pub fn namespace_terminating(resource: &Resource, name: &str, namespace: &str) -> StatusError {
        let why =
            format!("unable to create new content in namespace {namespace} because it is being terminated");
        let mut error = StatusError::forbidden(resource, name, &why);
        if let Some(details) = &mut error.details {
            let message = format!("namespace {namespace} is being terminated");
            details["causes"] = json!([{ "reason": "NamespaceTerminating", "message": message, "field": "metadata.namespace" }]);
        }
        error
    }

    pub fn bad_request(message: impl Into<String>) -> StatusError {
        StatusError::new(StatusCode::BAD_REQUEST, "BadRequest", message)
    }

    /// Invalid or contradictory options of a list or watch.
    pub fn invalid_list_options(why: &str) -> StatusError {
        StatusError::invalid_options("ListOptions", why)
    }

    pub fn invalid_patch_options(why: &str) -> StatusError {
        StatusError::invalid_options("PatchOptions", why)
    }

    pub fn invalid_delete_options(why: &str) -> StatusError {
        StatusError::invalid_options("DeleteOptions", why)
    }

    /// Invalid or contradictory query parameters.
    pub fn invalid_options(kind: &str, why: &str) -> StatusError {
        let message = format!("{kind}.meta.k8s.io \"\" is invalid: {why}");
        let mut error = StatusError::new(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", message);
        error.details = Some(json!({ "group": "meta.k8s.io", "kind": kind }));
        error
    }

    /// A patch that cannot be applied to its object.
    pub fn unprocessable(why: &str) -> StatusError {
        let message = "the server rejected our request due to an error in our request";
        let mut error = StatusError::new(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", message);
        error.details = Some(json!({ "causes": [{ "message": why }] }));
        error
    }

    /// A path outside the API; the response is plain text.
    pub fn path_not_found() -> StatusError {
        StatusError::new(StatusCode::NOT_FOUND, "", "404 page not found")
    }

    pub fn resource_not_found() -> StatusError {
        let message = "the server could not find the requested resource";
        let mut error = StatusError::new(StatusCode::NOT_FOUND, "NotFound", message);
        error.details = Some(json!({}));
        error
    }

    pub fn not_acceptable() -> StatusError {
        let message = "only the following media types are accepted: application/json";
        StatusError::new(StatusCode::NOT_ACCEPTABLE, "NotAcceptable", message)
    }

    pub fn unauthorized() -> StatusError {
        StatusError::new(StatusCode::UNAUTHORIZED, "Unauthorized", "Unauthorized")
    }

    pub fn method_not_allowed() -> StatusError {
        StatusError::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "MethodNotAllowed",
            "the server does not allow this method on the requested resource",
        )
    }

    pub fn unsupported_media_type(accepted: &[&str]) -> StatusError {
        let message = format!(
            "the body of the request was in an unknown format - accepted media types include: {}",
            accepted.join(", ")
        );
        StatusError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "UnsupportedMediaType", message)
    }

    pub fn too_large() -> StatusError {
        StatusError::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "RequestEntityTooLarge",
            "Request entity too large: limit is 3145728",
        )
    }

    /// The requested version is older than the history (410).
    pub fn expired(message: impl Into<String>) -> StatusError {
        StatusError::new(StatusCode::GONE, "Expired", message)
    }

    /// The requested version is newer than the current one.
    pub fn version_too_large(requested: u64, current: u64) -> StatusError {
        let message = format!("Timeout: Too large resource version: {requested}, current: {current}");
        let mut error = StatusError::new(StatusCode::GATEWAY_TIMEOUT, "Timeout", message);
        error.details = Some(json!({
            "causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}],
            "retryAfterSeconds": 1
        }));
        error.retry_after = Some(1);
        error
    }

    pub fn too_many_requests(retry_after: u64) -> StatusError {
        let message = "the server has received too many requests and has asked us to try again later";
        let mut error = StatusError::new(StatusCode::TOO_MANY_REQUESTS, "TooManyRequests", message);
        error.details = Some(json!({ "retryAfterSeconds": retry_after }));
        error.retry_after = Some(retry_after);
        error
    }

    pub fn internal(why: impl std::fmt::Display) -> StatusError {
        let mut error = StatusError::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "InternalError",
            format!("Internal error occurred: {why}"),
        );
        error.details = Some(json!({ "causes": [{ "message": why.to_string() }] }));
        error
    }

    /// A 500 whose message is not marked as internal, as the API server returns
    /// for some invalid requests.
    pub fn server_failure(message: impl Into<String>) -> StatusError {
        StatusError::new(StatusCode::INTERNAL_SERVER_ERROR, "", message)
    }

    pub fn unavailable(why: &str) -> StatusError {
        StatusError::new(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable", why)
    }

    /// The `v1.Status` object, also sent inside a watch's ERROR event.
    pub fn status(&self) -> Value {
        let mut status = json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.code.as_u16(),
        });
        if let Some(details) = &self.details {
            status["details"] = details.clone();
        }
        status
    }

    pub fn into_response(self) -> Response<Body> {
        if self.code == StatusCode::NOT_FOUND && self.reason.is_empty() {
            let mut response = Response::new(Body::from(format!("{}\n", self.message)));
            *response.status_mut() = self.code;
            return response;
        }
        let mut response = Response::new(Body::from(self.status().to_string()));
        *response.status_mut() = self.code;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
        if let Some(seconds) = self.retry_after {
            headers.insert(header::RETRY_AFTER, seconds.into());
        }
        response
    }
}
