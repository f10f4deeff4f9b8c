//! The OpenAPI document, from the types that are answered.

use schemars::{JsonSchema, SchemaGenerator, generate::SchemaSettings};
use serde_json::{Map, Value, json};

use super::{List, Me, Releases, course::Course, surroundings::Surroundings, view::Detail};
use crate::engine::command::Verb;

const ONE: &str = "/api/v1/namespaces/{namespace}/canaries/{name}";

/// OpenAPI 3.0, as YAML and JSON tools read it.
pub fn document() -> Value {
    let mut generator = SchemaSettings::openapi3().for_serialize().into_generator();
    let mut paths = Map::new();
    let mut read = |path: String, summary: &str, schema: Value| {
        let parameters = parameters(&path);
        let body = json!({ "application/json": { "schema": schema } });
        let get =
            operation(summary, &parameters, json!({ "200": { "description": "Now", "content": body } }));
        paths.insert(path, json!({ "get": get }));
    };
    read("/api/v1/me".to_owned(), "Who the caller is", schema::<Me>(&mut generator));
    read(
        "/api/v1/canaries".to_owned(),
        "All Canaries that the caller may list",
        schema::<List>(&mut generator),
    );
    read(ONE.to_owned(), "One Canary", schema::<Detail>(&mut generator));
    read(format!("{ONE}/course"), "Its release over time", schema::<Course>(&mut generator));
    read(format!("{ONE}/releases"), "Its last ten releases", schema::<Releases>(&mut generator));
    read(
        format!("{ONE}/surroundings"),
        "Images, pods in trouble and events, as far as the caller may read them",
        schema::<Surroundings>(&mut generator),
    );
    let events = json!({ "200": {
        "description": "Server-sent events: `rows` with {rows, gone, more}, and `reset`; resumes after Last-Event-ID",
        "content": { "text/event-stream": { "schema": { "type": "string" } } },
    } });
    paths.insert(
        "/api/v1/stream".to_owned(),
        json!({ "get": operation("The list as it changes", &[], events) }),
    );
    for verb in ["approve", "reject"].into_iter().chain(Verb::ALL.map(Verb::name)) {
        let path = format!("{ONE}/{verb}");
        let accepted =
            json!({ "202": { "description": "Written to the Canary; the controller processes it" } });
        let post = operation(&format!("`serin {verb}`"), &parameters(&path), accepted);
        paths.insert(path, json!({ "post": post }));
    }
    json!({
        "openapi": "3.0.3",
        "info": { "title": "Serin", "version": env!("CARGO_PKG_VERSION") },
        "security": [{ "token": [] }],
        "paths": paths,
        "components": {
            "securitySchemes": { "token": { "type": "http", "scheme": "bearer" } },
            "schemas": generator.take_definitions(true),
        },
    })
}

fn schema<T: JsonSchema>(generator: &mut SchemaGenerator) -> Value {
    generator.subschema_for::<T>().to_value()
}

fn parameters(path: &str) -> Vec<Value> {
    let names = path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    let parameter =
        |name| json!({ "name": name, "in": "path", "required": true, "schema": { "type": "string" } });
    names.map(parameter).collect()
}

fn operation(summary: &str, parameters: &[Value], mut responses: Value) -> Value {
    let error = json!({ "description": "Why not", "content": { "application/json": { "schema": {
        "type": "object", "required": ["error"], "properties": { "error": { "type": "string" } },
    } } } });
    responses["default"] = error;
    json!({ "summary": summary, "parameters": parameters, "responses": responses })
}
