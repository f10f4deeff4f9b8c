//! Request handling: injected faults, authentication, parsing, and dispatch by verb.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use axum::body::Body;
use http::{HeaderMap, Request, Response, StatusCode, header};
use parking_lot::RwLock;
use serde_json::{Map, Value};

use super::access::{Access, Identity};
use super::faults::{FaultInjector, RequestFault};
use super::kinds::{Kinds, Origin, Resource};
use super::kubectl;
use super::node::{Node, WeakNode};
use super::request::{Params, Path, Verb, View};
use super::seeded_rng::SeededRng;
use super::status_error::StatusError;
use super::store::{FIRST_VERSION, Key, Store};
use super::write::{FieldValidation, WriteResult, Writer};
use super::{apply, crd, delete, patch, pod_log, read, subresource, watch, write};
#[cfg(feature = "kubectl")]
use super::{port_forward, protobuf};
use work_queue::clock::Clock;

/// The real server's limit of a request body.
const BODY_LIMIT: usize = 3 * 1024 * 1024;

const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

/// The state shared by all requests.
pub struct Server {
    pub store: Store,
    pub clock: Clock,
    pub rng: SeededRng,
    pub faults: FaultInjector,
    pub access: Access,
    kinds: RwLock<Arc<Kinds>>,
    next_address: AtomicU32,
    /// The node of this process, if it runs one: its pods log.
    node: RwLock<Option<WeakNode>>,
}

/// Extension of requests from this process, which need no token.
#[derive(Clone, Copy)]
pub struct InProcess;

/// Extension of requests into which no faults are injected.
#[derive(Clone, Copy)]
pub struct FaultExempt;

/// A request with its path resolved.
pub struct Call {
    pub verb: Verb,
    pub resource: Arc<Resource>,
    pub namespace: Option<String>,
    pub name: Option<String>,
    pub subresource: Option<String>,
    pub params: Params,
    pub view: View,
    pub headers: HeaderMap,
    pub identity: Identity,
    /// No faults are injected.
    pub fault_exempt: bool,
}

impl Server {
    pub fn new(store: Store, clock: Clock, seed: u64, faults: FaultInjector, access: Access) -> Server {
        // At most one for each earlier write, so no restored Service has one of the next.
        let next_address = u32::try_from(store.version() - FIRST_VERSION).unwrap_or_default() + 1;
        let server = Server {
            store,
            clock,
            rng: SeededRng::seeded(seed),
            faults,
            access,
            kinds: RwLock::default(),
            next_address: AtomicU32::new(next_address),
            node: RwLock::default(),
        };
        crd::serve_builtin_kinds(&server);
        crd::serve_stored_definitions(&server);
        server
    }

    pub fn kinds(&self) -> Arc<Kinds> {
        self.kinds.read().clone()
    }

    /// Replaces the served kinds by the result of `change`.
    pub fn change_kinds(&self, change: impl FnOnce(&Kinds) -> Kinds) {
        let mut held = self.kinds.write();
        let kinds = change(&held);
        for resource in kinds.all() {
            self.store.open(&resource.collection());
        }
        *held = Arc::new(kinds);
    }

    /// Not kept alive: it holds a client of this server.
    pub fn set_node(&self, node: &Node) {
        *self.node.write() = Some(node.downgrade());
    }

    pub fn node(&self) -> Option<Node> {
        self.node.read().as_ref()?.upgrade()
    }

    /// A cluster IP that no Service had before.
    pub fn cluster_ip(&self) -> String {
        let n = self.next_address.fetch_add(1, Ordering::Relaxed);
        format!("10.{}.{}.{}", 96 + (n >> 16) % 16, (n >> 8) & 0xff, n & 0xff)
    }

    pub async fn handle(self: Arc<Self>, request: Request<Body>) -> Response<Body> {
        let fault_exempt = request.extensions().get::<FaultExempt>().is_some();
        let (head, body) = request.into_parts();
        let params = match Params::of(&head.uri) {
            Ok(params) => params,
            Err(error) => return error.into_response(),
        };
        let is_named = matches!(Path::parse(head.uri.path()), Path::Resource { name: Some(_), .. });
        let fault = match Verb::of(&head.method, is_named, &params) {
            Ok(verb) if !fault_exempt => {
                if let Some(delay) = self.faults.request_delay() {
                    tokio::time::sleep(delay).await;
                }
                self.faults.on_request(verb)
            }
            _ => None,
        };
        match fault {
            Some(RequestFault::TooManyRequests) => return StatusError::too_many_requests(1).into_response(),
            Some(RequestFault::ErrorBefore) => {
                return StatusError::unavailable("injected before the work").into_response();
            }
            Some(RequestFault::Conflict) => return StatusError::injected_conflict().into_response(),
            Some(RequestFault::ErrorAfter) | None => {}
        }
        let mut response = self.respond(head, body, params).await.unwrap_or_else(StatusError::into_response);
        // No version may be lost that a client has read or written.
        if let Err(failed) = self.store.committed(self.store.version()).await {
            response = StatusError::internal(failed.to_string()).into_response();
        }
        if !fault_exempt && let Some(delay) = self.faults.response_delay() {
            tokio::time::sleep(delay).await;
        }
        if fault == Some(RequestFault::ErrorAfter) && response.status().is_success() {
            return StatusError::internal("injected after the work").into_response();
        }
        response
    }

    async fn respond(
        self: &Arc<Self>,
        #[cfg_attr(not(feature = "kubectl"), allow(unused_mut))] mut head: http::request::Parts,
        body: Body,
        params: Params,
    ) -> Result<Response<Body>, StatusError> {
        let path = Path::parse(head.uri.path());
        let probe = matches!(&path, Path::Meta(segments) if matches!(segments.first(), Some(&("healthz" | "livez" | "readyz"))));
        let identity = if head.extensions.get::<InProcess>().is_some() || probe {
            Identity::admin()
        } else {
            self.access.authenticate(&head.headers)?
        };
        let accept =
            head.headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let (group, version, plural, namespace, name, subresource) = match path {
            Path::Meta(segments) => {
                return kubectl::respond_to_meta_path(&self.kinds(), &segments, accept)
                    .ok_or_else(StatusError::path_not_found);
            }
            Path::Resource { group, version, namespace, plural, name, subresource } => {
                (group, version, plural, namespace, name, subresource)
            }
        };
        let kinds = self.kinds();
        let Some(resource) = kinds.find(group, version, plural).cloned() else {
            let is_group_served = kinds.all().iter().any(|r| r.group == group && r.version == version);
            return Err(if is_group_served {
                StatusError::resource_not_found()
            } else {
                StatusError::path_not_found()
            });
        };
        let verb = Verb::of(&head.method, name.is_some(), &params)?;
        let needs_namespace = resource.namespaced && (name.is_some() || verb == Verb::Create);
        if needs_namespace && namespace.is_none() || !resource.namespaced && namespace.is_some() {
            return Err(StatusError::resource_not_found());
        }
        let view = View::accepted(accept).ok_or_else(StatusError::not_acceptable)?;
        let name_text = name.unwrap_or_default();
        self.access.check(
            &identity,
            verb,
            &resource,
            subresource,
            namespace.unwrap_or_default(),
            name_text,
        )?;
        let call = Call {
            verb,
            view,
            namespace: namespace.map(str::to_owned),
            name: name.map(str::to_owned),
            subresource: subresource.map(str::to_owned),
            resource,
            params,
            fault_exempt: head.extensions.get::<FaultExempt>().is_some(),
            headers: head.headers,
            identity,
        };
        if call.resource.kind == "Pod" && call.subresource.as_deref() == Some("log") && call.verb == Verb::Get
        {
            return pod_log::log(self, &call, &head.uri);
        }
        #[cfg(feature = "kubectl")]
        if call.resource.kind == "Pod" && call.subresource.as_deref() == Some("portforward") {
            return port_forward::begin(self, &call, head.extensions.remove());
        }
        let body = axum::body::to_bytes(body, BODY_LIMIT).await.map_err(|_| StatusError::too_large())?;
        self.dispatch(call, &body)
    }

    fn dispatch(self: &Arc<Self>, mut call: Call, body: &[u8]) -> Result<Response<Body>, StatusError> {
        if call.subresource.is_some() {
            return subresource::handle_subresource(self, &call, body);
        }
        let resource = call.resource.clone();
        let namespace = call.namespace.as_deref();
        match (call.verb, call.name.as_deref()) {
            (Verb::Create, _) if resource.is_review() => {
                let reviewed = self.access.review(&resource, call.body(body)?, &call.identity)?;
                Ok(read::json_response(
                    StatusCode::CREATED,
                    read::in_version(&reviewed, &resource).to_string(),
                ))
            }
            (_, _) if resource.is_review() => Err(StatusError::method_not_allowed()),
            (Verb::Get, Some(_)) => read::get(self, &resource, &call.key(), &call.params, call.view),
            (Verb::List, _) => read::list(self, &resource, namespace, &call.params, call.view),
            (Verb::Watch, name) => {
                if let Some(name) = name {
                    call.params.field_selector = format!("metadata.name={name}");
                }
                watch::watch(self, &call)
            }
            (Verb::Create, None) => {
                let (object, writer) = (call.object(body)?, call.writer()?);
                let written =
                    write::create(self, &resource, namespace, object, &writer, apply::Operation::Update)?;
                Ok(self.write_response(&call, written))
            }
            (Verb::Update, Some(_)) => {
                let written =
                    write::update(self, &resource, &call.key(), call.object(body)?, &call.writer()?)?;
                Ok(self.write_response(&call, written))
            }
            (Verb::Patch, Some(_)) => {
                let patch = patch::Patch::parse(&call, body)?;
                let written = patch::apply_patch(self, &resource, &call.key(), patch, &call.writer()?)?;
                Ok(self.write_response(&call, written))
            }
            (Verb::Delete, Some(_)) => {
                let options = delete::DeleteOptions::of(&call, &call.body(body)?)?;
                let gone = delete::delete(self, &resource, &call.key(), &options)?;
                Ok(read::json_response(StatusCode::OK, gone.to_string()))
            }
            (Verb::DeleteCollection, _) if resource.kind != "Namespace" => {
                let options = delete::DeleteOptions::of(&call, &call.body(body)?)?;
                let gone = delete::delete_collection(self, &resource, namespace, &call.params, &options)?;
                Ok(read::json_response(StatusCode::OK, gone.to_string()))
            }
            _ => Err(StatusError::method_not_allowed()),
        }
    }

    /// The response to a write: the object, with warnings as headers.
    pub fn write_response(&self, call: &Call, written: WriteResult) -> Response<Body> {
        let mut response =
            read::object_response(self, &call.resource, &written.object, &call.params, call.view);
        if written.created {
            *response.status_mut() = StatusCode::CREATED;
        }
        for warning in written.warnings {
            if let Ok(value) = header::HeaderValue::from_str(&format!("299 - {warning:?}")) {
                response.headers_mut().append(header::WARNING, value);
            }
        }
        response
    }
}

impl Call {
    /// The key of the named object.
    pub fn key(&self) -> Key {
        Key::new(self.namespace.as_deref().unwrap_or_default(), self.name.as_deref().unwrap_or_default())
    }

    /// The object to write; a custom object must have a kind.
    pub fn object(&self, body: &[u8]) -> Result<Value, StatusError> {
        let object = self.body(body)?;
        if self.resource.origin == Origin::Custom && !object["kind"].is_string() {
            return Err(self.unrecognized_object(&format!("Object 'Kind' is missing in '{object}'")));
        }
        Ok(object)
    }

    /// The body as JSON, decoded from JSON, YAML or protobuf; an empty body is `{}`.
    pub fn body(&self, body: &[u8]) -> Result<Value, StatusError> {
        if body.is_empty() {
            return Ok(Value::Object(Map::new()));
        }
        let media =
            self.headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        match media.split(';').next().unwrap_or_default().trim() {
            "" | "application/json" | "application/yaml" => {
                write::parse_json(body).map_err(|error| self.unrecognized_object(&error.message))
            }
            #[cfg(feature = "kubectl")]
            PROTOBUF => {
                protobuf::decode(body).map_err(|malformed| self.unrecognized_object(&malformed.to_string()))
            }
            _ => {
                let accepted = ["application/json", "application/yaml", PROTOBUF];
                Err(StatusError::unsupported_media_type(&accepted))
            }
        }
    }

    fn unrecognized_object(&self, why: &str) -> StatusError {
        let kind = &self.resource.kind;
        StatusError::bad_request(format!(
            "the object provided is unrecognized (must be of type {kind}): {why}"
        ))
    }
    /// Field manager and options of the write.
    pub fn writer(&self) -> Result<Writer, StatusError> {
        let agent =
            self.headers.get(header::USER_AGENT).and_then(|value| value.to_str().ok()).unwrap_or("unknown");
        let name = match self.params.field_manager.as_str() {
            "" => agent.split('/').next().unwrap_or_default().to_owned(),
            stated => stated.to_owned(),
        };
        Ok(Writer {
            name,
            subresource: self.subresource.clone(),
            dry_run: self.params.is_dry_run(self.verb)?,
            field_validation: FieldValidation::parse(&self.params.field_validation, self.verb)?,
            is_patch: self.verb == Verb::Patch,
        })
    }
}

/// The `Status` of a successful request whose response is not the object.
pub fn success(resource: &Resource, object: &Value) -> Value {
    let mut details = serde_json::json!({
        "name": object["metadata"]["name"],
        "kind": resource.plural,
        "uid": object["metadata"]["uid"],
    });
    if !resource.group.is_empty() {
        details["group"] = serde_json::json!(resource.group);
    }
    serde_json::json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details })
}
