//! Get and list: objects at the current or an earlier version, in the requested representation.

use std::sync::Arc;

use axum::body::Body;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use http::{Response, StatusCode, header};
use serde_json::{Value, json};

use super::events;
use super::kinds::Resource;
use super::kubectl::table;
use super::request::{Params, View};
use super::selector::Selector;
use super::server::Server;
use super::status_error::StatusError;
use super::store::{Key, Object, Snapshot};

pub fn get(
    server: &Server,
    resource: &Resource,
    key: &Key,
    params: &Params,
    view: View,
) -> Result<Response<Body>, StatusError> {
    let object = server
        .store
        .get(&resource.collection(), key)
        .ok_or_else(|| StatusError::not_found(resource, &key.name))?;
    if let Some(requested) = version(&params.resource_version)? {
        let current = server.store.version();
        if requested > current {
            return Err(StatusError::version_too_large(requested, current));
        }
    }
    Ok(object_response(server, resource, &object.value, params, view))
}

/// A response with one object, in the requested representation.
pub fn object_response(
    server: &Server,
    resource: &Resource,
    object: &Value,
    params: &Params,
    view: View,
) -> Response<Body> {
    let body = match view {
        View::Plain => in_version(object, resource).to_string(),
        View::Metadata => metadata_only(object, "PartialObjectMetadata").to_string(),
        View::Table => {
            let meta = json!({ "resourceVersion": object["metadata"]["resourceVersion"] });
            table::table(resource, &[object], meta, &params.include_object, server.clock.now()).to_string()
        }
    };
    json_response(StatusCode::OK, body)
}

pub fn list(
    server: &Server,
    resource: &Resource,
    namespace: Option<&str>,
    params: &Params,
    view: View,
) -> Result<Response<Body>, StatusError> {
    let selector = Selector::parse(&params.label_selector, &params.field_selector, resource)?;
    let (snapshot, after) = snapshot(server, resource, namespace, params)?;
    let limit = params.limit.filter(|limit| *limit > 0).map_or(usize::MAX, |limit| limit as usize);

    let start = after.map_or(0, |after| snapshot.objects.partition_point(|object| object.key <= after));
    let mut matching = snapshot.objects[start..].iter().filter(|object| selector.matches(&object.value));
    let page: Vec<&Arc<Object>> = matching.by_ref().take(limit).collect();
    let mut meta = json!({ "resourceVersion": snapshot.version.to_string() });
    if let (Some(last), remaining @ 1..) = (page.last(), matching.count()) {
        meta["continue"] =
            json!(ContinueToken { version: snapshot.version, after: last.key.clone() }.encode());
        if selector.is_empty() {
            meta["remainingItemCount"] = json!(remaining);
        }
    }

    let body = match view {
        View::Table => {
            let objects: Vec<&Value> = page.iter().map(|object| &object.value).collect();
            table::table(resource, &objects, meta, &params.include_object, server.clock.now())
                .to_string()
                .into()
        }
        View::Metadata => {
            let items: Vec<Value> =
                page.iter().map(|object| metadata_only(&object.value, "PartialObjectMetadata")).collect();
            json!({"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": meta, "items": items})
                .to_string()
                .into()
        }
        View::Plain => plain_list(resource, &page, &meta),
    };
    Ok(json_response(StatusCode::OK, body))
}

/// The objects of a list request, and the key after which the page starts.
fn snapshot(
    server: &Server,
    resource: &Resource,
    namespace: Option<&str>,
    params: &Params,
) -> Result<(Snapshot, Option<Key>), StatusError> {
    let collection = resource.collection();
    if params.send_initial_events {
        return Err(StatusError::invalid_list_options(
            "sendInitialEvents: Forbidden: sendInitialEvents is forbidden for list",
        ));
    }
    if !params.resource_version_match.is_empty() && params.resource_version.is_empty() {
        return Err(StatusError::invalid_list_options(
            "resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden unless resourceVersion is provided",
        ));
    }
    if !params.continue_token.is_empty() {
        if version(&params.resource_version)?.is_some() {
            return Err(StatusError::bad_request(
                "specifying resource version is not allowed when using continue",
            ));
        }
        let resume = ContinueToken::decode(&params.continue_token)?;
        let snapshot = server.store.list_at(&collection, namespace, resume.version).map_err(|_| {
            StatusError::expired(
                "The provided continue parameter is too old to display a consistent list result.",
            )
        })?;
        return Ok((snapshot, Some(resume.after)));
    }
    let current = server.store.version();
    match (version(&params.resource_version)?, params.resource_version_match.as_str()) {
        (Some(requested), _) if requested > current => {
            Err(StatusError::version_too_large(requested, current))
        }
        (Some(requested), "Exact") => {
            let snapshot = server.store.list_at(&collection, namespace, requested);
            Ok((snapshot.map_err(|compacted| StatusError::expired(compacted.to_string()))?, None))
        }
        (_, "" | "NotOlderThan") => Ok((server.store.list(&collection, namespace), None)),
        (None, "Exact") => Err(StatusError::invalid_list_options(
            "resourceVersionMatch: Forbidden: resourceVersionMatch \"Exact\" is forbidden for resourceVersion \"0\"",
        )),
        (_, other) => Err(StatusError::bad_request(format!(
            "resourceVersionMatch: Unsupported value: {other:?}: supported values: \"Exact\", \"NotOlderThan\""
        ))),
    }
}

/// Joins the cached JSON of the objects, so that nothing is serialised twice.
fn plain_list(resource: &Resource, page: &[&Arc<Object>], meta: &Value) -> Bytes {
    let head = format!(
        "{{\"kind\":\"{}List\",\"apiVersion\":\"{}\",\"metadata\":{meta},\"items\":[",
        resource.kind,
        resource.api_version()
    );
    let mut body = head.into_bytes();
    for (index, object) in page.iter().enumerate() {
        if index > 0 {
            body.push(b',');
        }
        body.extend_from_slice(&json_in_version(object, resource));
    }
    body.extend_from_slice(b"]}");
    body.into()
}

/// An object's JSON in the version of `resource`.
pub fn json_in_version(object: &Object, resource: &Resource) -> Bytes {
    if object.value["apiVersion"] == resource.api_version().as_str() {
        object.json()
    } else {
        Bytes::from(in_version(&object.value, resource).to_string())
    }
}

/// An object in the version of `resource`. Only `apiVersion` differs, as with a
/// CRD's `None` conversion, except for events.
pub fn in_version(object: &Value, resource: &Resource) -> Value {
    let mut object = object.clone();
    events::to_served(resource, &mut object);
    object["apiVersion"] = json!(resource.api_version());
    object["kind"] = json!(resource.kind);
    object
}

pub fn metadata_only(object: &Value, kind: &str) -> Value {
    json!({ "kind": kind, "apiVersion": "meta.k8s.io/v1", "metadata": object["metadata"] })
}

/// A resourceVersion from a query; `None` if absent or `0`, which allow any version.
pub fn version(text: &str) -> Result<Option<u64>, StatusError> {
    match text {
        "" | "0" => Ok(None),
        text => text.parse().map(Some).map_err(|_| {
            StatusError::bad_request(format!(
                "invalid resource version: resourceVersion: Invalid value: {text:?}: it is not a number"
            ))
        }),
    }
}

pub fn json_response(code: StatusCode, body: impl Into<Body>) -> Response<Body> {
    let mut response = Response::new(body.into());
    *response.status_mut() = code;
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
    response
}

/// A `continue` token: the version of a paged list and its position.
struct ContinueToken {
    version: u64,
    after: Key,
}

impl ContinueToken {
    fn encode(&self) -> String {
        let token = json!({"v": "meta.k8s.io/v1", "rv": self.version, "ns": *self.after.namespace, "name": *self.after.name});
        URL_SAFE_NO_PAD.encode(token.to_string())
    }

    fn decode(token: &str) -> Result<ContinueToken, StatusError> {
        let read = || {
            let token: Value = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(token).ok()?).ok()?;
            let after = Key::new(token["ns"].as_str()?, token["name"].as_str()?);
            Some(ContinueToken { version: token["rv"].as_u64()?, after })
        };
        read().ok_or_else(|| {
            StatusError::bad_request(
                "invalid continue token: continue key is not valid: it was not made by this server",
            )
        })
    }
}
