//! Counts the requests to the API server, as a layer of its client.

use std::{
    sync::Arc,
    task::{Context, Poll},
};

use futures::{FutureExt as _, future::BoxFuture};
use http::{Method, Request, Response, Uri};
use kube::client::Body;
use tower::{BoxError, Service};

use super::Telemetry;
use crate::error_chain::error_chain;

/// Counts the requests of a service. Retries inside of it count once.
#[derive(Clone)]
pub struct CountRequests<S> {
    service: S,
    telemetry: Arc<Telemetry>,
}

impl<S, B> Service<Request<Body>> for CountRequests<S>
where
    S: Service<Request<Body>, Response = Response<B>, Error = BoxError>,
    S::Future: Send + 'static,
{
    type Response = Response<B>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Response<B>, BoxError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let verb = verb(request.method(), request.uri());
        let is_canary_watch = matches!(verb, "list" | "watch") && request.uri().path().ends_with("/canaries");
        let telemetry = Arc::clone(&self.telemetry);
        let count = move |answer: &Result<Response<B>, BoxError>| {
            telemetry.count_response(verb, is_canary_watch, answer)
        };
        self.service.call(request).inspect(count).boxed()
    }
}

impl Telemetry {
    pub fn count_requests<S>(self: &Arc<Self>, service: S) -> CountRequests<S> {
        CountRequests { service, telemetry: Arc::clone(self) }
    }

    fn count_response<B>(
        &self,
        verb: &'static str,
        is_canary_watch: bool,
        answer: &Result<Response<B>, BoxError>,
    ) {
        self.requests.inc([verb.into(), result_label(answer).into()]);
        // The list and watch of Canaries are retried until they succeed, so their
        // last result is the present one. That of a write would be stale until
        // the next write, and another kind may fail by itself.
        if is_canary_watch {
            *self.health.canary_watch_error.lock() = match answer {
                Ok(answer) if !answer.status().is_server_error() => None,
                Ok(answer) => Some(answer.status().to_string()),
                Err(error) => Some(error_chain(&**error)),
            };
        }
    }
}

fn result_label<B>(answer: &Result<Response<B>, BoxError>) -> &'static str {
    match answer.as_ref().map(|answer| answer.status().as_u16()) {
        Ok(409) => "conflict",
        Ok(429) => "throttled",
        Ok(400..=499) => "refused",
        Ok(500..) => "failed",
        Ok(_) => "ok",
        Err(_) => "unreachable",
    }
}

/// The RBAC verb of a request.
fn verb(method: &Method, uri: &Uri) -> &'static str {
    match *method {
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        _ if is_watch(uri) => "watch",
        _ if is_collection(uri.path()) => "list",
        _ => "get",
    }
}

pub fn is_watch(uri: &Uri) -> bool {
    uri.query().is_some_and(|query| query.split('&').any(|part| part == "watch=true"))
}

/// Does a path end in a resource rather than in a name? Else it is an object's, or
/// a discovery path.
fn is_collection(path: &str) -> bool {
    let mut parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
    let version = match parts[0] {
        "api" => 2,
        "apis" => 3,
        _ => return false,
    };
    parts.drain(..version.min(parts.len()));
    if parts.len() > 2 && parts[0] == "namespaces" {
        parts.drain(..2);
    }
    parts.len() == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verb_is_what_the_rules_call_it() {
        let read = |uri: &'static str| verb(&Method::GET, &Uri::from_static(uri));
        for (uri, expected) in [
            ("/api/v1/namespaces", "list"),
            ("/api/v1/namespaces/shop", "get"),
            ("/api/v1/namespaces/shop/pods?limit=5", "list"),
            ("/api/v1/namespaces/shop/pods/web-0", "get"),
            ("/apis/serin.dev/v1alpha1/canaries?watch=true&timeoutSeconds=290", "watch"),
            ("/apis/serin.dev/v1alpha1/canaries?fieldSelector=metadata.name%3Dwatch", "list"),
            ("/apis/serin.dev/v1alpha1/namespaces/shop/canaries/web/status", "get"),
            ("/apis/serin.dev/v1alpha1", "get"),
            ("/apis", "get"),
            ("/version", "get"),
        ] {
            assert_eq!(read(uri), expected, "{uri}");
        }
        assert_eq!(verb(&Method::PATCH, &Uri::from_static("/api/v1/namespaces/shop")), "patch");
    }
}
