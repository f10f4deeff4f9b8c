//! The fixture of one law: a namespace of its own and plain HTTP.
//!
//! Laws use HTTP rather than a typed client so that nothing between them and
//! the server hides a status code, a header or a field.

use std::pin::Pin;
use std::time::{Duration, Instant};

use futures::io::{AsyncBufRead, AsyncBufReadExt};
use http::{HeaderMap, Request};
use http_body_util::BodyExt;
use kube::Client;
use serde_json::{Value, json};

use crate::support::{Cluster, User};

/// How long anything asynchronous may take before a law is broken. A correct
/// server mostly needs milliseconds; but the real garbage collector learns of a
/// new kind only every 30 s, and a machine that also compiles is slow.
const TIMEOUT: Duration = Duration::from_secs(120);

pub const APPS: &str = "/apis/apps/v1/namespaces/{ns}";

pub struct Session {
    pub cluster: &'static Cluster,
    client: Client,
    /// Fresh, and used by one law only.
    pub ns: String,
}

/// The body formats of PATCH.
#[derive(Clone, Copy, Debug)]
pub enum Patch {
    Merge,
    Json,
    Strategic,
    Apply,
}

impl Session {
    pub async fn new(cluster: &'static Cluster, area: &str) -> Session {
        Session { cluster, client: cluster.client().await, ns: cluster.namespace(area).await }
    }

    /// The same session as another user.
    pub async fn as_user(&self, user: User) -> Session {
        Session { cluster: self.cluster, client: self.cluster.client_of(user).await, ns: self.ns.clone() }
    }

    /// The bearer token this session is known by.
    pub fn token(&self) -> String {
        self.cluster.token()
    }

    /// `{ns}` in a path is the session's namespace; a path without a leading
    /// slash is below it in the core group.
    fn url(&self, path: &str) -> String {
        if path.starts_with('/') {
            path.replace("{ns}", &self.ns)
        } else {
            format!("/api/v1/namespaces/{}/{path}", self.ns)
        }
    }

    pub async fn send(&self, request: http::request::Builder, body: Vec<u8>) -> ApiResponse {
        let request = request.body(body.into()).expect("a well-formed request");
        let what = format!("{} {}", request.method(), request.uri());
        let response = self.client.send(request).await.unwrap_or_else(|error| panic!("{what}: {error}"));
        let (head, body) = response.into_parts();
        let bytes = body.collect().await.unwrap_or_else(|error| panic!("{what}: {error}")).to_bytes();
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let body = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
        ApiResponse { request: what, code: head.status.as_u16(), headers: head.headers, text, body }
    }

    pub async fn get(&self, path: &str) -> ApiResponse {
        self.send(Request::get(self.url(path)), Vec::new()).await
    }

    /// GET with an `Accept` header.
    pub async fn get_as(&self, path: &str, accept: &str) -> ApiResponse {
        self.send(Request::get(self.url(path)).header("accept", accept), Vec::new()).await
    }

    pub async fn post(&self, path: &str, body: Value) -> ApiResponse {
        let request = Request::post(self.url(path)).header("content-type", "application/json");
        self.send(request, body.to_string().into_bytes()).await
    }

    pub async fn put(&self, path: &str, body: Value) -> ApiResponse {
        let request = Request::put(self.url(path)).header("content-type", "application/json");
        self.send(request, body.to_string().into_bytes()).await
    }

    pub async fn delete(&self, path: &str) -> ApiResponse {
        self.send(Request::delete(self.url(path)), Vec::new()).await
    }

    /// DELETE with `DeleteOptions`.
    pub async fn delete_with(&self, path: &str, options: Value) -> ApiResponse {
        let request = Request::delete(self.url(path)).header("content-type", "application/json");
        self.send(request, options.to_string().into_bytes()).await
    }

    pub async fn patch(&self, kind: Patch, path: &str, body: Value) -> ApiResponse {
        let content_type = match kind {
            Patch::Merge => "application/merge-patch+json",
            Patch::Json => "application/json-patch+json",
            Patch::Strategic => "application/strategic-merge-patch+json",
            Patch::Apply => "application/apply-patch+yaml",
        };
        let request = Request::patch(self.url(path)).header("content-type", content_type);
        self.send(request, body.to_string().into_bytes()).await
    }

    /// Server-side apply under a manager's name.
    pub async fn apply(&self, manager: &str, path: &str, body: Value) -> ApiResponse {
        self.patch(Patch::Apply, &with_query(path, &format!("fieldManager={manager}")), body).await
    }

    /// Server-side apply that takes contested fields.
    pub async fn force_apply(&self, manager: &str, path: &str, body: Value) -> ApiResponse {
        self.patch(Patch::Apply, &with_query(path, &format!("force=true&fieldManager={manager}")), body).await
    }

    /// A ConfigMap with this data, made.
    pub async fn config_map(&self, name: &str, data: Value) -> Value {
        self.post("configmaps", json!({"metadata": {"name": name}, "data": data})).await.created()
    }

    /// `path` may hold further query parameters.
    pub async fn watch(&self, path: &str) -> Watch {
        let url = self.url(&with_query(path, "watch=true"));
        let request = Request::get(&url).body(Vec::new()).expect("a well-formed request");
        let stream =
            self.client.request_stream(request).await.unwrap_or_else(|error| panic!("{url}: {error}"));
        Watch { url, stream: Box::pin(stream) }
    }

    /// Polls until the object satisfies the test.
    pub async fn eventually(&self, path: &str, wanted: &str, test: impl Fn(&Value) -> bool) -> Value {
        let began = Instant::now();
        loop {
            let answer = self.get(path).await;
            if answer.code == 200 && test(&answer.body) {
                return answer.body;
            }
            assert!(began.elapsed() < TIMEOUT, "{path} is not {wanted} after {TIMEOUT:?}: {}", answer.text);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Polls until the object is gone.
    pub async fn eventually_gone(&self, path: &str) {
        let began = Instant::now();
        while self.get(path).await.code != 404 {
            assert!(began.elapsed() < TIMEOUT, "{path} is still there after {TIMEOUT:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

fn with_query(path: &str, query: &str) -> String {
    format!("{path}{}{query}", if path.contains('?') { '&' } else { '?' })
}

/// A response.
#[derive(Debug)]
pub struct ApiResponse {
    request: String,
    pub code: u16,
    pub headers: HeaderMap,
    pub text: String,
    /// Null when the body is not JSON.
    pub body: Value,
}

impl ApiResponse {
    #[track_caller]
    pub fn expect(self, code: u16) -> Value {
        assert_eq!(self.code, code, "{} answered {}", self.request, self.text);
        self.body
    }

    #[track_caller]
    pub fn ok(self) -> Value {
        self.expect(200)
    }

    #[track_caller]
    pub fn created(self) -> Value {
        self.expect(201)
    }

    /// A `Status` that refuses, with its code and reason; returns its message.
    #[track_caller]
    pub fn refused(&self, code: u16, reason: &str) -> &str {
        assert_eq!(self.code, code, "{} answered {}", self.request, self.text);
        assert_eq!(self.body["kind"], "Status", "{} answered {}", self.request, self.text);
        assert_eq!(self.body["apiVersion"], "v1", "{} answered {}", self.request, self.text);
        assert_eq!(self.body["status"], "Failure", "{} answered {}", self.request, self.text);
        assert_eq!(self.body["code"], code, "{} answered {}", self.request, self.text);
        assert_eq!(self.body["reason"], reason, "{} answered {}", self.request, self.text);
        self.body["message"].as_str().unwrap_or_else(|| panic!("{} answered {}", self.request, self.text))
    }

    /// The warnings of the response, only their text.
    pub fn warnings(&self) -> Vec<String> {
        let quoted = |value: &http::HeaderValue| {
            let text = value.to_str().expect("a warning is text").to_owned();
            let inner =
                text.split_once('"').and_then(|(_, rest)| rest.rsplit_once('"')).map(|(inner, _)| inner);
            inner.unwrap_or(&text).replace("\\\"", "\"")
        };
        self.headers.get_all("warning").iter().map(quoted).collect()
    }
}

/// An open watch.
pub struct Watch {
    url: String,
    stream: Pin<Box<dyn AsyncBufRead + Send>>,
}

impl Watch {
    /// The next event's type and object.
    pub async fn next(&mut self) -> (String, Value) {
        self.next_or_end().await.unwrap_or_else(|| panic!("the watch {} ended", self.url))
    }

    /// None once the server has ended the watch.
    pub async fn next_or_end(&mut self) -> Option<(String, Value)> {
        let mut line = String::new();
        let read = tokio::time::timeout(TIMEOUT, self.stream.read_line(&mut line))
            .await
            .unwrap_or_else(|_| panic!("no event on {} for {TIMEOUT:?}", self.url))
            .unwrap_or_else(|error| panic!("{}: {error}", self.url));
        if read == 0 {
            return None;
        }
        let mut event: Value =
            serde_json::from_str(&line).unwrap_or_else(|error| panic!("{}: {error} in {line}", self.url));
        let kind = event["type"].as_str().expect("an event has a type").to_owned();
        Some((kind, event["object"].take()))
    }

    /// Everything until the server ends the watch, as `ADDED name`.
    pub async fn rest(&mut self) -> Vec<String> {
        let mut events = Vec::new();
        while let Some((kind, object)) = self.next_or_end().await {
            events.push(format!("{kind} {}", name(&object)));
        }
        events
    }

    /// The next event, as `ADDED name`.
    pub async fn next_summary(&mut self) -> String {
        let (kind, object) = self.next().await;
        format!("{kind} {}", name(&object))
    }
}

/// An object's name; empty if it has none.
pub fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}

/// The names of a list's items, in its order.
pub fn names(list: &Value) -> Vec<&str> {
    list["items"].as_array().expect("a list has items").iter().map(name).collect()
}

pub fn version(object: &Value) -> String {
    object["metadata"]["resourceVersion"].as_str().expect("a stored object has a resourceVersion").to_owned()
}

pub fn uid(object: &Value) -> String {
    object["metadata"]["uid"].as_str().expect("a stored object has a uid").to_owned()
}
