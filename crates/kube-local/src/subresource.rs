//! Subresources: status, scale, binding, eviction and a namespace's finalize.

use axum::body::Body;
use http::{Response, StatusCode};
use serde_json::{Value, json};

use super::apply::Operation;
use super::delete::{self, DeleteOptions};
use super::kinds::{Resource, ScalePaths};
use super::patch::{self, Patch};
use super::read;
use super::request::Verb;
use super::schema::FieldError;
use super::server::{Call, Server, success};
use super::status_error::StatusError;
use super::write;

pub fn handle_subresource(server: &Server, call: &Call, body: &[u8]) -> Result<Response<Body>, StatusError> {
    let resource = &call.resource;
    match (call.subresource.as_deref().unwrap_or_default(), call.verb) {
        ("status", _) if !resource.has_status => Err(StatusError::resource_not_found()),
        ("status", Verb::Get) => read::get(server, resource, &call.key(), &call.params, call.view),
        ("status", Verb::Update) => {
            let written = write::update(server, resource, &call.key(), call.object(body)?, &call.writer()?)?;
            Ok(server.write_response(call, written))
        }
        ("status", Verb::Patch) => {
            let patch = Patch::parse(call, body)?;
            let written = patch::apply_patch(server, resource, &call.key(), patch, &call.writer()?)?;
            Ok(server.write_response(call, written))
        }
        ("scale", verb) => match &resource.scale {
            Some(paths) => scale(server, call, paths, verb, body),
            None => Err(StatusError::resource_not_found()),
        },
        ("binding", Verb::Create) if resource.kind == "Pod" => bind(server, call, &call.body(body)?),
        ("eviction", Verb::Create) if resource.kind == "Pod" => {
            let eviction = call.body(body)?;
            let options = DeleteOptions::of(call, &eviction["deleteOptions"])?;
            let gone = delete::delete(server, resource, &call.key(), &options)?;
            Ok(read::json_response(StatusCode::CREATED, success(resource, &gone).to_string()))
        }
        ("finalize", Verb::Update) if resource.kind == "Namespace" => {
            finalize(server, call, &call.body(body)?)
        }
        ("status" | "binding" | "eviction" | "finalize", _) => Err(StatusError::method_not_allowed()),
        _ => Err(StatusError::resource_not_found()),
    }
}

/// `autoscaling/v1` Scale, for every resource with scale paths.
fn scale(
    server: &Server,
    call: &Call,
    paths: &ScalePaths,
    verb: Verb,
    body: &[u8],
) -> Result<Response<Body>, StatusError> {
    let resource = &call.resource;
    let key = call.key();
    let live = server
        .store
        .get(&resource.collection(), &key)
        .ok_or_else(|| StatusError::not_found(resource, &key.name))?;
    let shown = |object: &Value| scale_of(resource, object, paths);
    let asked = match verb {
        Verb::Get => return Ok(read::json_response(StatusCode::OK, shown(&live.value).to_string())),
        Verb::Update => call.body(body)?,
        Verb::Patch => match Patch::parse(call, body)? {
            Patch::Apply { config, .. } => config,
            Patch::Strategic(merge) | Patch::Merge(merge) => {
                patch::patched(resource, &shown(&live.value), &Patch::Merge(merge))?
            }
            patch @ Patch::Json(_) => patch::patched(resource, &shown(&live.value), &patch)?,
        },
        _ => return Err(StatusError::method_not_allowed()),
    };
    let replicas = asked["spec"]["replicas"].as_i64().unwrap_or_default();
    if replicas < 0 {
        let error =
            FieldError::invalid("spec.replicas", &json!(replicas), "must be greater than or equal to 0");
        return Err(StatusError::invalid_kind("Scale", "autoscaling", &key.name, &[error]));
    }
    let stated = asked["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned();
    let written = write::modify(server, resource, &key, &call.writer()?, Operation::Update, |live| {
        let mut object = live.clone();
        let conditional = verb == Verb::Update && !stated.is_empty();
        object["metadata"]["resourceVersion"] = if conditional { json!(stated) } else { Value::Null };
        set_path(&mut object, &paths.spec_replicas, json!(replicas));
        Ok(object)
    })?;
    Ok(read::json_response(StatusCode::OK, shown(&written.object).to_string()))
}

fn scale_of(resource: &Resource, object: &Value, paths: &ScalePaths) -> Value {
    let metadata = &object["metadata"];
    let mut scale = json!({
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "uid": metadata["uid"],
            "resourceVersion": metadata["resourceVersion"],
            "creationTimestamp": metadata["creationTimestamp"],
        },
        "spec": { "replicas": at_path(object, &paths.spec_replicas).as_i64().unwrap_or_default() },
        "status": { "replicas": at_path(object, &paths.status_replicas).as_i64().unwrap_or_default() },
    });
    let selector = match &paths.label_selector {
        // Built-in kinds have a structured selector; a Scale has it as text.
        _ if resource.group == "apps" => Some(selector_text(&object["spec"]["selector"])),
        Some(path) => at_path(object, path).as_str().map(str::to_owned),
        None => None,
    };
    if let Some(selector) = selector {
        scale["status"]["selector"] = json!(selector);
    }
    scale
}

fn selector_text(selector: &Value) -> String {
    let labels = selector["matchLabels"].as_object().into_iter().flatten();
    let mut parts: Vec<String> =
        labels.map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default())).collect();
    for expression in selector["matchExpressions"].as_array().into_iter().flatten() {
        let key = expression["key"].as_str().unwrap_or_default();
        let values: Vec<&str> =
            expression["values"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        parts.push(match expression["operator"].as_str().unwrap_or_default() {
            "In" => format!("{key} in ({})", values.join(",")),
            "NotIn" => format!("{key} notin ({})", values.join(",")),
            "DoesNotExist" => format!("!{key}"),
            _ => key.to_owned(),
        });
    }
    parts.join(",")
}

fn bind(server: &Server, call: &Call, binding: &Value) -> Result<Response<Body>, StatusError> {
    let node = binding["target"]["name"].as_str().unwrap_or_default().to_owned();
    let (resource, key) = (&call.resource, call.key());
    write::modify(server, resource, &key, &call.writer()?, Operation::Update, |live| {
        if let Some(held) = live["spec"]["nodeName"].as_str().filter(|held| !held.is_empty()) {
            let why = format!("pod {} is already assigned to node {held:?}", key.name);
            return Err(StatusError::conflict(resource, &key.name, &why));
        }
        let mut pod = live.clone();
        pod["spec"]["nodeName"] = json!(node);
        Ok(pod)
    })?;
    let status =
        json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201 });
    Ok(read::json_response(StatusCode::CREATED, status.to_string()))
}

fn finalize(server: &Server, call: &Call, namespace: &Value) -> Result<Response<Body>, StatusError> {
    let kept = namespace["spec"]["finalizers"].clone();
    let written =
        write::modify(server, &call.resource, &call.key(), &call.writer()?, Operation::Update, |live| {
            let mut object = live.clone();
            object["spec"]["finalizers"] = kept.clone();
            Ok(object)
        })?;
    Ok(server.write_response(call, written))
}

/// The value at a path as in a CRD: `.spec.replicas`.
fn at_path<'a>(object: &'a Value, path: &str) -> &'a Value {
    path.split('.').filter(|name| !name.is_empty()).fold(object, |at, name| &at[name])
}

fn set_path(object: &mut Value, path: &str, value: Value) {
    let at = path.split('.').filter(|name| !name.is_empty()).fold(object, |at, name| {
        if !at.is_object() {
            *at = json!({});
        }
        &mut at[name]
    });
    *at = value;
}
