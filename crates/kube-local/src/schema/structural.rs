//! Checks that a schema is structural: every field has one type, and alternatives only narrow it.

use serde_json::Value;

use super::parse::{NodePosition, Parser, alternatives, child, flag};
use super::{AdditionalProperties, FieldError, ListType, Schema, SchemaType};

/// The path of a schema that all versions share, in the API server's errors.
const PREFIX: &str = "spec.validation.openAPIV3Schema.";

impl Parser<'_, '_> {
    pub(super) fn check_shape(
        &mut self,
        json: &Value,
        schema: &Schema,
        type_name: &str,
        path: &str,
        place: NodePosition,
    ) {
        if place == NodePosition::Alternative {
            return self.check_alternative(json, path);
        }
        if type_name == "array" && schema.items.is_none() {
            self.errors.push(FieldError::required(child(path, "items"), "must be specified"));
        }
        let type_path = child(path, "type");
        if schema.embedded && type_name != "object" {
            let detail = "must be object if x-kubernetes-embedded-resource is true";
            self.errors.push(if type_name.is_empty() {
                FieldError::required(type_path, detail)
            } else {
                FieldError::invalid(type_path, &type_name.into(), detail)
            });
        } else if type_name.is_empty()
            && schema.kind.is_none()
            && !schema.preserve_unknown
            && json.get("$ref").is_none()
        {
            let detail = match place {
                NodePosition::Root => "must not be empty at the root",
                NodePosition::Item => "must not be empty for specified array items",
                NodePosition::Field | NodePosition::Alternative => {
                    "must not be empty for specified object fields"
                }
            };
            self.errors.push(FieldError::required(type_path, detail));
        } else if !type_name.is_empty() && SchemaType::parse(type_name).is_none() {
            let kinds = ["array", "boolean", "integer", "number", "object", "string"];
            self.errors.push(FieldError::not_supported(type_path, &type_name.into(), &kinds));
        } else if place == NodePosition::Root && !matches!(type_name, "object" | "") {
            self.errors.push(FieldError::invalid(type_path, &type_name.into(), "must be object at the root"));
        }
        if place == NodePosition::Root
            && !matches!(schema.additional_properties, AdditionalProperties::Unspecified)
        {
            self.errors.push(FieldError::forbidden(
                child(path, "additionalProperties"),
                "must not be used at the root",
            ));
        }
        if !schema.properties.is_empty()
            && !matches!(
                schema.additional_properties,
                AdditionalProperties::Unspecified | AdditionalProperties::Forbidden
            )
        {
            self.errors.push(FieldError::forbidden(
                child(path, "additionalProperties"),
                "additionalProperties and properties are mutual exclusive",
            ));
        }
        if flag(json, "uniqueItems") {
            let path = child(path, "uniqueItems");
            let detail = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic";
            self.errors.push(FieldError::forbidden(path, detail));
        }
        if place == NodePosition::Root {
            self.check_metadata(json, path);
        }
        if schema.embedded && !schema.preserve_unknown && schema.properties.is_empty() {
            let detail = "must not be empty if x-kubernetes-embedded-resource is true without \
                          x-kubernetes-preserve-unknown-fields";
            self.errors.push(FieldError::required(child(path, "properties"), detail));
        }
        if place == NodePosition::Root && schema.nullable {
            self.errors
                .push(FieldError::forbidden(child(path, "nullable"), "nullable cannot be true at the root"));
        }
        self.check_unsupported(json, path);
        self.check_list(json, schema, type_name, path);
    }

    fn check_metadata(&mut self, json: &Value, path: &str) {
        let Some(metadata) = json.pointer("/properties/metadata") else { return };
        let path = child(path, "properties[metadata]");
        if metadata.get("type").and_then(Value::as_str) != Some("object") {
            let found = metadata.get("type").cloned().unwrap_or_else(|| "".into());
            self.errors.push(FieldError::invalid(child(&path, "type"), &found, "must be object"));
        }
        let mut properties = metadata.get("properties").and_then(Value::as_object).into_iter().flatten();
        if properties.any(|(name, _)| !matches!(name.as_str(), "name" | "generateName")) {
            let detail = "must not specify anything other than name and generateName, but metadata is implicitly specified";
            self.errors.push(FieldError::forbidden(path, detail));
        }
    }

    fn check_list(&mut self, json: &Value, schema: &Schema, type_name: &str, path: &str) {
        let stated = |keyword: &str| json.get(keyword).and_then(Value::as_str);
        let not_a = |kind: &str, keyword: &str| {
            let detail = format!("must be {kind} if {keyword} is specified");
            match type_name {
                "" => FieldError::required(child(path, "type"), &detail),
                other => FieldError::invalid(child(path, "type"), &other.into(), &detail),
            }
        };
        if let Some(map_type) = stated("x-kubernetes-map-type") {
            if type_name != "object" {
                self.errors.push(not_a("object", "x-kubernetes-map-type"));
            }
            if !matches!(map_type, "atomic" | "granular") {
                let path = child(path, "x-kubernetes-map-type");
                self.errors.push(FieldError::not_supported(path, &map_type.into(), &["atomic", "granular"]));
            }
        }
        let list_type = stated("x-kubernetes-list-type");
        if let Some(list_type) = list_type {
            if type_name != "array" {
                self.errors.push(not_a("array", "x-kubernetes-list-type"));
            }
            if !matches!(list_type, "atomic" | "set" | "map") {
                let path = child(path, "x-kubernetes-list-type");
                self.errors.push(FieldError::not_supported(
                    path,
                    &list_type.into(),
                    &["atomic", "set", "map"],
                ));
            }
        }
        let keys_path = child(path, "x-kubernetes-list-map-keys");
        match (&schema.list, schema.items()) {
            (ListType::Map(keys), Some(items)) => {
                if keys.is_empty() {
                    let detail = "must not be empty if x-kubernetes-list-type is map";
                    self.errors.push(FieldError::required(keys_path.clone(), detail));
                }
                for key in keys {
                    self.check_list_key(items, key, &child(path, "items"), &keys_path, keys);
                }
            }
            (ListType::Set, Some(items)) if items.kind == Some(SchemaType::Object) && !items.atomic_map => {
                let path = child(path, "items.x-kubernetes-map-type");
                let detail = "must be atomic as item of a list with x-kubernetes-list-type=set";
                self.errors.push(FieldError::invalid(path, &Value::Null, detail));
            }
            _ => {}
        }
        if list_type != Some("map") && json.get("x-kubernetes-list-map-keys").is_some() {
            let path = child(path, "x-kubernetes-list-type");
            let detail = "must be map if x-kubernetes-list-map-keys is non-empty";
            self.errors.push(match list_type {
                None => FieldError::required(path, detail),
                Some(other) => FieldError::invalid(path, &other.into(), detail),
            });
        }
        // Items without a key cannot be matched between versions.
        if schema.items.is_some() && !matches!(schema.list, ListType::Map(_)) {
            let items = schema.items.as_deref();
            for (i, rule) in items.iter().flat_map(|items| &items.rules).enumerate() {
                if rule.is_transition() {
                    let at = child(path, &format!("items.x-kubernetes-validations[{i}].rule"));
                    let path = format!("{PREFIX}{path}");
                    let detail = format!(
                        "oldSelf cannot be used on the uncorrelatable portion of the schema within {path}"
                    );
                    self.errors.push(FieldError::invalid(at, &rule.source().into(), &detail));
                }
            }
        }
    }

    fn check_list_key(&mut self, items: &Schema, key: &str, path: &str, keys_path: &str, keys: &[String]) {
        let Some(property) = items.properties.get(key) else {
            let detail = "entries must all be names of item properties";
            self.errors.push(FieldError::invalid(keys_path.to_owned(), &keys.into(), detail));
            return;
        };
        let required =
            items.limits.as_ref().is_some_and(|limits| limits.required.iter().any(|name| name == key));
        if !required && property.default.is_none() {
            let detail = "this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property";
            let path = child(path, &format!("properties[{key}].default"));
            self.errors.push(FieldError::required(path, detail));
        }
    }

    /// Keywords of JSON Schema that a structural schema does not have.
    fn check_unsupported(&mut self, json: &Value, path: &str) {
        for keyword in ["id", "additionalItems", "patternProperties", "definitions", "dependencies", "$ref"] {
            if json.get(keyword).is_some_and(|value| !value.is_null()) {
                self.errors.push(FieldError::forbidden(
                    child(path, keyword),
                    &format!("{keyword} is not supported"),
                ));
            }
        }
        if json.get("x-kubernetes-preserve-unknown-fields") == Some(&Value::Bool(false)) {
            let path = child(path, "x-kubernetes-preserve-unknown-fields");
            self.errors.push(FieldError::invalid(path, &false.into(), "must be true or undefined"));
        }
    }

    /// A default must be valid by itself.
    pub(super) fn check_default(&mut self, schema: &Schema, path: &str) {
        let Some(default) = &schema.default else { return };
        for mut error in super::validate::against(schema, default, None) {
            error.field = match error.field.as_str() {
                "<nil>" => child(path, "default"),
                below => format!("{}.{below}", child(path, "default")),
            };
            self.errors.push(error);
        }
    }

    fn check_alternative(&mut self, json: &Value, path: &str) {
        let empty = |value: &Value| match value {
            Value::Null | Value::Bool(false) => true,
            Value::String(text) => text.is_empty(),
            Value::Array(items) => items.is_empty(),
            Value::Bool(true) | Value::Number(_) | Value::Object(_) => false,
        };
        for (keyword, detail) in [
            ("type", "must be empty to be structural"),
            ("additionalProperties", "must be undefined to be structural"),
            ("default", "must be undefined to be structural"),
            ("title", "must be empty to be structural"),
            ("description", "must be empty to be structural"),
            ("nullable", "must be false to be structural"),
            ("x-kubernetes-preserve-unknown-fields", "must be false to be structural"),
            ("x-kubernetes-embedded-resource", "must be false to be structural"),
            ("x-kubernetes-int-or-string", "must be false to be structural"),
            ("x-kubernetes-list-map-keys", "must be empty to be structural"),
            ("x-kubernetes-list-type", "must be undefined to be structural"),
            ("x-kubernetes-map-type", "must be undefined to be structural"),
            ("x-kubernetes-validations", "must be empty to be structural"),
        ] {
            if json.get(keyword).is_some_and(|value| !empty(value)) {
                self.errors.push(FieldError::forbidden(child(path, keyword), detail));
            }
        }
        if json.pointer("/properties/metadata").is_some() {
            let path = child(path, "properties[metadata]");
            self.errors.push(FieldError::forbidden(path, "must not be specified in a nested context"));
        }
    }

    /// Fields that an alternative narrows must be declared outside of it.
    pub(super) fn complete_alternatives(
        &mut self,
        json: &Value,
        declared: &Value,
        path: &str,
        declared_path: &str,
    ) {
        let missing = |errors: &mut Vec<FieldError>, declared_path: String, path: &str| {
            errors.push(FieldError::required(declared_path, &format!("because it is defined in {path}")));
        };
        for (keyword, alternatives) in alternatives(json) {
            for (i, alternative) in alternatives.iter().enumerate() {
                let step = if keyword == "not" { "not".to_owned() } else { format!("{keyword}[{i}]") };
                let path = child(path, &step);
                if let Some(items) = alternative.get("items") {
                    let (path, declared_path) = (child(&path, "items"), child(declared_path, "items"));
                    match declared.get("items") {
                        Some(declared) => self.complete_alternatives(items, declared, &path, &declared_path),
                        None => missing(&mut self.errors, declared_path, &path),
                    }
                }
                for (name, property) in
                    alternative.get("properties").and_then(Value::as_object).into_iter().flatten()
                {
                    let step = format!("properties[{name}]");
                    let (path, declared_path) = (child(&path, &step), child(declared_path, &step));
                    match declared.get("properties").and_then(|properties| properties.get(name)) {
                        Some(declared) => {
                            self.complete_alternatives(property, declared, &path, &declared_path)
                        }
                        None => missing(&mut self.errors, declared_path, &path),
                    }
                }
                self.complete_alternatives(alternative, declared, &path, declared_path);
            }
        }
    }
}
