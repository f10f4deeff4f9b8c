//! `meta.k8s.io/v1` tables, as printed by `kubectl get`.

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::age::since;
use super::json_path::JsonPath;
use crate::kinds::{Cell, Column, Origin, Resource};

/// A table of objects. `include` is the part of each object in its row: `None`,
/// `Object`, or (the default) `Metadata`.
pub fn table(resource: &Resource, objects: &[&Value], meta: Value, include: &str, now: Timestamp) -> Value {
    let columns = columns(resource);
    let definitions: Vec<_> = columns
        .iter()
        .map(|column| {
            json!({
                "name": column.name,
                "type": column.kind,
                "format": column.format,
                "description": column.description,
                "priority": column.priority,
            })
        })
        .collect();
    let printers: Vec<_> = columns.iter().map(Printer::of).collect();
    let rows: Vec<_> = objects
        .iter()
        .map(|object| {
            let cells: Vec<_> = printers.iter().map(|printer| printer.cell(object, now)).collect();
            let mut row = Map::new();
            row.insert("cells".to_owned(), cells.into());
            if let Some(object) = included(resource, object, include) {
                row.insert("object".to_owned(), object);
            }
            Value::Object(row)
        })
        .collect();
    json!({
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": meta,
        "columnDefinitions": definitions,
        "rows": rows,
    })
}

fn included(resource: &Resource, object: &Value, include: &str) -> Option<Value> {
    match include {
        "None" => None,
        "Object" => {
            let mut object = object.clone();
            object["apiVersion"] = resource.api_version().into();
            Some(object)
        }
        _ => Some(json!({
            "kind": "PartialObjectMetadata",
            "apiVersion": "meta.k8s.io/v1",
            "metadata": object.get("metadata").cloned().unwrap_or_default(),
        })),
    }
}

/// The columns; for a custom kind the name, then those of its definition or else the age.
fn columns(resource: &Resource) -> Vec<Column> {
    let column = |name: &str, kind: &str, format: &str, description: &str, path: &str| Column {
        name: name.to_owned(),
        kind: kind.to_owned(),
        format: format.to_owned(),
        description: description.to_owned(),
        priority: 0,
        cell: Cell::Path(path.to_owned()),
    };
    match resource.origin {
        Origin::Builtin => resource.columns.clone(),
        Origin::Custom => {
            let description = "Name of the object, unique within its namespace.";
            let mut columns = vec![column("Name", "string", "name", description, ".metadata.name")];
            columns.extend(resource.columns.iter().cloned().map(|mut column| {
                if let (true, Cell::Path(path)) = (column.description.is_empty(), &column.cell) {
                    column.description =
                        format!("Custom resource definition column (in JSONPath format): {path}");
                }
                column
            }));
            if resource.columns.is_empty() {
                let description = "How long ago the object was created.";
                columns.push(column("Age", "date", "", description, ".metadata.creationTimestamp"));
            }
            columns
        }
    }
}

enum Printer<'a> {
    Function(fn(&Value, Timestamp) -> Value),
    Path(JsonPath, &'a str),
    Invalid,
}

impl Printer<'_> {
    fn of(column: &Column) -> Printer<'_> {
        match &column.cell {
            Cell::Function(cell) => Printer::Function(*cell),
            Cell::Path(path) => match JsonPath::parse(path) {
                Some(path) => Printer::Path(path, &column.kind),
                None => Printer::Invalid,
            },
        }
    }

    fn cell(&self, object: &Value, now: Timestamp) -> Value {
        match self {
            Printer::Function(cell) => cell(object, now),
            Printer::Path(path, kind) => {
                path.find(object).first().map_or(Value::Null, |value| typed(value, kind, now))
            }
            Printer::Invalid => Value::Null,
        }
    }
}

/// A value converted to its column's type; null if that fails.
fn typed(value: &Value, kind: &str, now: Timestamp) -> Value {
    match (kind, value) {
        ("string", Value::String(_)) => value.clone(),
        ("string", _) => value.to_string().into(),
        ("integer", Value::Number(number)) => {
            number.as_i64().or_else(|| number.as_f64().map(|float| float as i64)).into()
        }
        ("number", Value::Number(_)) | ("boolean", Value::Bool(_)) => value.clone(),
        ("date", Value::String(time)) if time.parse::<Timestamp>().is_err() => "<invalid>".into(),
        ("date", Value::String(time)) => since(Some(time), now).into(),
        _ => Value::Null,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::builtin;
    use crate::schema::Schema;

    fn custom(columns: Vec<Column>) -> Resource {
        Resource {
            group: "serin.dev".to_owned(),
            version: "v1".to_owned(),
            kind: "Canary".to_owned(),
            plural: "canaries".to_owned(),
            singular: "canary".to_owned(),
            short_names: vec![],
            categories: vec![],
            namespaced: true,
            has_status: true,
            scale: None,
            columns,
            schema: Arc::new(Schema::anything()),
            open_api: Arc::new(json!({})),
            origin: Origin::Custom,
        }
    }

    fn path(name: &str, kind: &str, path: &str) -> Column {
        Column {
            name: name.to_owned(),
            kind: kind.to_owned(),
            format: String::new(),
            description: String::new(),
            priority: 0,
            cell: Cell::Path(path.to_owned()),
        }
    }

    fn now() -> Timestamp {
        "2026-01-01T01:00:00Z".parse().expect("a time")
    }

    #[test]
    fn cells_have_their_columns_type() {
        let resource = custom(vec![
            path("Phase", "string", ".status.phase"),
            path("Weight", "integer", ".status.weight"),
            path("Ready", "string", ".status.conditions[?(@.type==\"Ready\")].status"),
            path("Hosts", "string", ".spec.hosts"),
            path("Since", "date", ".status.since"),
            path("Missing", "integer", ".status.phase"),
        ]);
        let object = json!({
            "metadata": {"name": "web", "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"hosts": ["a", "b"]},
            "status": {"phase": "Progressing", "weight": 20, "since": "2026-01-01T00:59:30Z",
                "conditions": [{"type": "Ready", "status": "True"}]},
        });
        let table = table(&resource, &[&object], json!({"resourceVersion": "7"}), "", now());
        assert_eq!(
            table["rows"][0]["cells"],
            json!(["web", "Progressing", 20, "True", "[\"a\",\"b\"]", "30s", null])
        );
        assert_eq!(table["metadata"]["resourceVersion"], "7");
        assert_eq!(table["rows"][0]["object"]["kind"], "PartialObjectMetadata");
        assert_eq!(table["rows"][0]["object"].get("spec"), None);
    }

    #[test]
    fn without_columns_there_are_name_and_age() {
        let object = json!({"metadata": {"name": "web", "creationTimestamp": "2026-01-01T00:00:00Z"}});
        let table = table(&custom(vec![]), &[&object], json!({}), "None", now());
        assert_eq!(table["rows"], json!([{"cells": ["web", "60m"]}]));
    }

    #[test]
    fn every_builtin_prints_even_an_empty_object() {
        for resource in builtin::all() {
            let table = table(&resource, &[&json!({})], json!({}), "Object", now());
            let cells = table["rows"][0]["cells"].as_array().map_or(0, Vec::len);
            assert_eq!(Some(cells), table["columnDefinitions"].as_array().map(Vec::len), "{}", resource.kind);
        }
    }
}
