//! Parses OpenAPI v3 into a [`Schema`].

use std::sync::Arc;

use regex::Regex;
use serde_json::Value;

use super::format::Format;
use super::{
    AdditionalProperties, Bound, FieldError, Limits, ListType, Pattern, Schema, SchemaType, cel, kubernetes,
};

/// Parses a custom resource's schema. Its metadata is that of every kind; a CRD
/// may only restrict the names further.
pub(super) fn parse_structural(json: &Value) -> Result<Schema, Vec<FieldError>> {
    let mut parser = Parser { errors: Vec::new(), kubernetes: None };
    let mut root = parser.node(json, "", NodePosition::Root);
    parser.complete_alternatives(json, json, "", "");
    if !parser.errors.is_empty() {
        parser.errors.sort_by_key(ToString::to_string);
        return Err(parser.errors);
    }
    root.embedded = true;
    for name in ["apiVersion", "kind"] {
        root.properties.entry(name.to_owned()).or_insert_with(|| Arc::new(Schema::of(SchemaType::String)));
    }
    let metadata = kubernetes::metadata(root.properties.remove("metadata").as_deref());
    root.properties.insert("metadata".to_owned(), metadata);
    root.summarize_children();
    Ok(root)
}

/// Parses a built-in type: trusted, since `builtin` validates these kinds.
pub(super) fn parse_builtin(json: &Value, components: &mut kubernetes::SchemaCache<'_>) -> Schema {
    Parser { errors: Vec::new(), kubernetes: Some(components) }.node(json, "", NodePosition::Root)
}

pub(super) struct Parser<'a, 'b> {
    pub(super) errors: Vec<FieldError>,
    /// Targets of `$ref`s; custom resources have none.
    kubernetes: Option<&'a mut kubernetes::SchemaCache<'b>>,
}

/// The position of a node; the API server's rules differ by position.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum NodePosition {
    Root,
    Field,
    Item,
    /// Inside allOf, anyOf, oneOf or not: may only narrow.
    Alternative,
}

impl Parser<'_, '_> {
    fn node(&mut self, json: &Value, path: &str, place: NodePosition) -> Schema {
        let int_or_string = flag(json, "x-kubernetes-int-or-string");
        let type_name = json.get("type").and_then(Value::as_str).unwrap_or_default();
        let kind = if int_or_string { Some(SchemaType::IntOrString) } else { SchemaType::parse(type_name) };
        let mut schema = Schema {
            kind,
            nullable: flag(json, "nullable"),
            preserve_unknown: flag(json, "x-kubernetes-preserve-unknown-fields"),
            embedded: flag(json, "x-kubernetes-embedded-resource"),
            list: list(json),
            atomic_map: json.get("x-kubernetes-map-type").and_then(Value::as_str) == Some("atomic"),
            default: json.get("default").filter(|default| !default.is_null()).cloned(),
            format: Format::parse(json, kind),
            ..Default::default()
        };
        if let Some(properties) = json.get("properties").and_then(Value::as_object) {
            for (name, property) in properties {
                let path = child(path, &format!("properties[{name}]"));
                schema.properties.insert(
                    name.clone(),
                    self.shared(property, &path, place.of_children(NodePosition::Field)),
                );
            }
        }
        schema.additional_properties = match json.get("additionalProperties") {
            None | Some(Value::Null) => AdditionalProperties::Unspecified,
            Some(Value::Bool(false)) => AdditionalProperties::Forbidden,
            Some(Value::Bool(true)) => AdditionalProperties::Any,
            Some(entry) => {
                let place = place.of_children(NodePosition::Field);
                AdditionalProperties::Of(self.shared(entry, &child(path, "additionalProperties"), place))
            }
        };
        if let Some(items) = json.get("items") {
            schema.items =
                Some(self.shared(items, &child(path, "items"), place.of_children(NodePosition::Item)));
        }
        match self.kubernetes {
            // A Go type without declared fields accepts anything.
            Some(_) => {
                let bare = schema.properties.is_empty()
                    && matches!(schema.additional_properties, AdditionalProperties::Unspecified);
                schema.preserve_unknown |= bare && matches!(kind, None | Some(SchemaType::Object));
                schema.format = Format::of_kubernetes(json, kind);
            }
            None => {
                self.check_shape(json, &schema, type_name, path, place);
                schema.limits = self.limits(json, path);
                if place != NodePosition::Alternative {
                    self.check_default(&schema, path);
                }
                schema.rules = self.rules(json, &schema, path, place);
            }
        }
        schema.summarize_children();
        schema
    }

    fn shared(&mut self, json: &Value, path: &str, place: NodePosition) -> Arc<Schema> {
        if let (Some(kubernetes), Some(name)) = (&mut self.kubernetes, kubernetes::referenced(json)) {
            return kubernetes.get(name);
        }
        Arc::new(self.node(json, path, place))
    }

    fn limits(&mut self, json: &Value, path: &str) -> Option<Box<Limits>> {
        let bound = |limit: &str, exclusive: &str| {
            let value = json.get(limit)?.as_f64()?;
            Some(Bound { value, exclusive: flag(json, exclusive) })
        };
        let count = |keyword: &str| json.get(keyword).and_then(Value::as_i64);
        let pattern = json.get("pattern").and_then(Value::as_str).filter(|pattern| !pattern.is_empty());
        let pattern = pattern.and_then(|source| match Regex::new(source) {
            Ok(regex) => Some(Pattern { source: source.to_owned(), regex }),
            Err(error) => {
                let detail = format!("must be a valid regular expression, but isn't: {error}");
                self.errors.push(FieldError::invalid(child(path, "pattern"), &source.into(), &detail));
                None
            }
        });
        let mut limits = Limits {
            required: strings(json, "required"),
            one_of_values: json.get("enum").and_then(Value::as_array).cloned().unwrap_or_default(),
            minimum: bound("minimum", "exclusiveMinimum"),
            maximum: bound("maximum", "exclusiveMaximum"),
            multiple_of: json.get("multipleOf").and_then(Value::as_f64),
            min_length: count("minLength"),
            max_length: count("maxLength"),
            pattern,
            min_items: count("minItems"),
            max_items: count("maxItems"),
            min_properties: count("minProperties"),
            max_properties: count("maxProperties"),
            ..Limits::default()
        };
        let says_int_or_string = flag(json, "x-kubernetes-int-or-string") && is_int_or_string_any_of(json);
        for (keyword, alternatives) in alternatives(json) {
            if keyword == "anyOf" && says_int_or_string {
                continue;
            }
            for (i, alternative) in alternatives.iter().enumerate() {
                let step = if keyword == "not" { "not".to_owned() } else { format!("{keyword}[{i}]") };
                let errors_before = self.errors.len();
                let schema = self.node(alternative, &child(path, &step), NodePosition::Alternative);
                match keyword {
                    "allOf" => {
                        // The other way to spell int-or-string with more conditions.
                        if i == 0 && is_int_or_string_any_of(alternative) {
                            self.errors.truncate(errors_before);
                        }
                        limits.all_of.push(schema);
                    }
                    "anyOf" => limits.any_of.push(schema),
                    "oneOf" => limits.one_of.push(schema),
                    _ => limits.not = Some(schema),
                }
            }
        }
        limits.has_limits().then(|| Box::new(limits))
    }

    fn rules(&mut self, json: &Value, schema: &Schema, path: &str, place: NodePosition) -> Vec<cel::Rule> {
        let mut rules = Vec::new();
        let declared = json.get("x-kubernetes-validations").and_then(Value::as_array);
        for (i, rule) in declared.into_iter().flatten().enumerate() {
            let path = child(path, &format!("x-kubernetes-validations[{i}]"));
            match cel::Rule::parse(rule, schema, place == NodePosition::Root, &path) {
                Ok(rule) => rules.push(rule),
                Err(errors) => self.errors.extend(errors),
            }
        }
        rules
    }
}

impl NodePosition {
    fn of_children(self, child: NodePosition) -> NodePosition {
        if self == NodePosition::Alternative { NodePosition::Alternative } else { child }
    }
}

impl Schema {
    pub(super) fn of(kind: SchemaType) -> Schema {
        Schema { kind: Some(kind), ..Default::default() }
    }

    pub(super) fn summarize_children(&mut self) {
        let entry = match &self.additional_properties {
            AdditionalProperties::Of(entry) => Some(entry),
            AdditionalProperties::Unspecified
            | AdditionalProperties::Forbidden
            | AdditionalProperties::Any => None,
        };
        let children = || self.properties.values().chain(entry).chain(&self.items);
        let (rules, lists) = (children().any(|c| c.has_rules), children().any(|c| c.has_keyed_lists));
        self.has_rules = rules || !self.rules.is_empty();
        self.has_keyed_lists = lists || self.list != ListType::Atomic;
    }
}

impl Limits {
    fn has_limits(&self) -> bool {
        let Limits {
            required,
            one_of_values,
            minimum,
            maximum,
            multiple_of,
            min_length,
            max_length,
            pattern,
            min_items,
            max_items,
            min_properties,
            max_properties,
            all_of,
            any_of,
            one_of,
            not,
        } = self;
        let counts = [min_length, max_length, min_items, max_items, min_properties, max_properties];
        let lists = [all_of, any_of, one_of];
        !(required.is_empty() && one_of_values.is_empty())
            || lists.into_iter().any(|list| !list.is_empty())
            || minimum.is_some()
            || maximum.is_some()
            || multiple_of.is_some()
            || pattern.is_some()
            || not.is_some()
            || counts.into_iter().any(Option::is_some)
    }
}

fn list(json: &Value) -> ListType {
    match json.get("x-kubernetes-list-type").and_then(Value::as_str) {
        Some("set") => ListType::Set,
        Some("map") => ListType::Map(strings(json, "x-kubernetes-list-map-keys")),
        _ => ListType::Atomic,
    }
}

pub(super) fn alternatives(json: &Value) -> impl Iterator<Item = (&'static str, &[Value])> {
    ["allOf", "anyOf", "oneOf", "not"].into_iter().filter_map(|keyword| {
        let value = json.get(keyword)?;
        Some((keyword, value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice)))
    })
}

fn is_int_or_string_any_of(json: &Value) -> bool {
    json.get("anyOf") == Some(&serde_json::json!([{"type": "integer"}, {"type": "string"}]))
}

fn strings(json: &Value, keyword: &str) -> Vec<String> {
    let items = json.get(keyword).and_then(Value::as_array).into_iter().flatten();
    items.filter_map(Value::as_str).map(str::to_owned).collect()
}

pub(super) fn flag(json: &Value, keyword: &str) -> bool {
    json.get(keyword).and_then(Value::as_bool).unwrap_or_default()
}

pub(super) fn child(path: &str, step: &str) -> String {
    if path.is_empty() { step.to_owned() } else { format!("{path}.{step}") }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::Schema;

    fn refusals(schema: Value) -> Vec<String> {
        match Schema::parse(&schema) {
            Ok(_) => Vec::new(),
            Err(errors) => errors.iter().map(ToString::to_string).collect(),
        }
    }

    #[test]
    fn every_field_needs_a_type() {
        assert_eq!(
            refusals(
                json!({"properties": {"spec": {"properties": {"list": {"type": "array", "items": {}}}}}})
            ),
            [
                "properties[spec].properties[list].items.type: Required value: must not be empty for specified array items",
                "properties[spec].type: Required value: must not be empty for specified object fields",
                "type: Required value: must not be empty at the root",
            ]
        );
    }

    #[test]
    fn alternatives_only_narrow_declared_fields() {
        assert_eq!(
            refusals(json!({"type": "object", "properties": {"a": {"type": "string"}},
                "oneOf": [{"properties": {"a": {"type": "string"}}}, {"properties": {"b": {"minLength": 1}}}]})),
            [
                "oneOf[0].properties[a].type: Forbidden: must be empty to be structural",
                "properties[b]: Required value: because it is defined in oneOf[1].properties[b]",
            ]
        );
    }

    #[test]
    fn int_or_string_may_be_written_as_any_of() {
        let any_of = json!([{"type": "integer"}, {"type": "string"}]);
        let port = json!({"x-kubernetes-int-or-string": true, "anyOf": any_of});
        let narrowed =
            json!({"x-kubernetes-int-or-string": true, "allOf": [{"anyOf": any_of}, {"minimum": 1}]});
        let schema = json!({"type": "object", "properties": {"port": port, "narrowed": narrowed}});
        assert!(refusals(schema).is_empty());
    }
}
