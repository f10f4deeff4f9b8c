//! Schemas of the Rust types, as `kubectl explain` shows them.
//!
//! schemars writes JSON Schema; the API server needs a structural schema, and
//! users read the descriptions. [`tidy`] is applied once to every root and makes
//! the changes that the derives leave open:
//!
//! - an optional field is simply not required. It is never `nullable`: the API
//!   server then drops an explicit `null`, so no CEL rule ever meets one;
//! - nothing is filled in: a default is only named in its description;
//! - the description of each enum value is added to that of the field;
//! - lines of a doc comment are joined into paragraphs, and fenced examples are
//!   indented.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::borrow::Cow;

/// An object copied unchanged into another one, such as an Istio traffic policy.
/// Serin reads few of its fields and loses none.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Object(pub Map<String, Value>);

impl JsonSchema for Object {
    fn schema_name() -> Cow<'static, str> {
        "Object".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true })
    }
}

/// Brings a generated schema into the form described above.
pub(super) fn tidy(schema: &mut Schema) {
    if let Some(object) = schema.as_object_mut() {
        tidy_object(object);
    }
}

fn tidy_object(schema: &mut Map<String, Value>) {
    unwrap_option(schema);
    name_enum_values(schema);
    if let Some(Value::String(text)) = schema.get_mut("description") {
        *text = reflow(text);
    }
    schema.remove("default");
    if schema.contains_key("x-kubernetes-int-or-string") {
        // Explicit, or the derive of the root adds `nullable: true`.
        schema.insert("nullable".into(), false.into());
    }
    // The API server has no unsigned formats and warns about them.
    if schema.get("format").and_then(Value::as_str).is_some_and(|format| format.starts_with("uint")) {
        schema.remove("format");
    }
    for (keyword, value) in schema.iter_mut() {
        match (keyword.as_str(), value) {
            ("properties", Value::Object(properties)) => {
                properties.values_mut().filter_map(Value::as_object_mut).for_each(tidy_object);
            }
            ("items" | "additionalProperties", Value::Object(inner)) => tidy_object(inner),
            _ => {}
        }
    }
}

/// `Option<T>` becomes `T`.
fn unwrap_option(schema: &mut Map<String, Value>) {
    if let Some(Value::Array(variants)) = schema.get_mut("anyOf") {
        variants.retain(|variant| variant != &json!({ "type": "null" }));
        if let [Value::Object(only)] = variants.as_slice() {
            let only = only.clone();
            schema.remove("anyOf");
            adopt(schema, only);
        }
    }
    if let Some(Value::Array(types)) = schema.get_mut("type") {
        types.retain(|name| name != "null");
        if let [only] = types.as_slice() {
            let only = only.clone();
            schema.insert("type".into(), only);
        }
    }
    if let Some(Value::Array(values)) = schema.get_mut("enum") {
        values.retain(|value| !value.is_null());
    }
}

/// Adds the keywords of `inner`; those of the field itself take precedence.
fn adopt(schema: &mut Map<String, Value>, inner: Map<String, Value>) {
    for (keyword, value) in inner {
        schema.entry(keyword).or_insert(value);
    }
}

/// Documented enum values come as `oneOf`; they become one `enum`, with the
/// meaning of each value in the description.
fn name_enum_values(schema: &mut Map<String, Value>) {
    let Some(Value::Array(variants)) = schema.get("oneOf") else {
        return;
    };
    let Some(named) = variants.iter().map(named_value).collect::<Option<Vec<_>>>() else {
        return;
    };
    let values: Vec<Value> = named.iter().map(|(value, _)| (*value).into()).collect();
    let mut text = schema.get("description").and_then(Value::as_str).map(str::to_owned).unwrap_or_default();
    for (value, meaning) in &named {
        text.push_str(&format!("\n\n{value}: {}", reflow(meaning)));
    }
    schema.remove("oneOf");
    schema.insert("type".into(), "string".into());
    schema.entry("enum").or_insert(values.into());
    schema.insert("description".into(), text.trim().into());
}

fn named_value(variant: &Value) -> Option<(&str, &str)> {
    Some((variant.get("const")?.as_str()?, variant.get("description")?.as_str()?))
}

/// Joins the lines of each paragraph, and indents fenced examples.
fn reflow(text: &str) -> String {
    let mut out = String::new();
    let mut example = false;
    let mut joins = false;
    for line in text.lines() {
        if line.starts_with("```") {
            example = !example;
            joins = false;
            continue;
        }
        if !out.is_empty() {
            out.push(if joins && !line.is_empty() { ' ' } else { '\n' });
        }
        if example {
            out.push_str("  ");
        }
        out.push_str(line);
        joins = !example && !line.is_empty();
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(JsonSchema)]
    #[schemars(transform = tidy)]
    #[allow(dead_code)]
    struct Sample {
        /// How it is.
        /// Default: plain.
        mood: Option<Mood>,
        /// How many.
        count: Option<u32>,
    }

    #[derive(JsonSchema)]
    #[serde(rename_all = "lowercase")]
    #[allow(dead_code)]
    enum Mood {
        /// nothing
        /// special.
        Plain,
        /// much.
        Merry,
    }

    #[test]
    fn an_option_is_what_it_holds_and_an_enum_explains_its_values() {
        let schema = schemars::generate::SchemaSettings::openapi3()
            .with(|settings| settings.inline_subschemas = true)
            .into_generator()
            .into_root_schema_for::<Sample>();
        let properties = &schema.as_value()["properties"];
        assert_eq!(
            properties["mood"],
            json!({
                "description": "How it is. Default: plain.\n\nplain: nothing special.\n\nmerry: much.",
                "enum": ["plain", "merry"],
                "type": "string",
            })
        );
        assert_eq!(
            properties["count"],
            json!({ "description": "How many.", "minimum": 0, "type": "integer" })
        );
    }

    #[test]
    fn paragraphs_flow_and_examples_stay() {
        assert_eq!(
            reflow("One\nsentence. For example:\n\n```yaml\na: 1\nb:\n  c: 2\n```\n\nAnother\nsentence."),
            "One sentence. For example:\n\n  a: 1\n  b:\n    c: 2\n\nAnother sentence."
        );
    }
}
