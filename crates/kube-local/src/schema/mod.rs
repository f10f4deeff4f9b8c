//! Structural schemas, parsed once.
//!
//! One tree serves defaulting, pruning, validation, and the merging of lists and
//! maps. Messages and their order follow kube-apiserver 1.36. Regular expressions
//! and CEL rules are compiled while parsing.

mod cel;
mod cel_types;
mod defaults;
mod error;
mod format;
pub mod kubernetes;
mod lists;
mod parse;
mod path;
mod prune;
mod structural;
#[cfg(test)]
mod tests;
mod validate;

use std::collections::BTreeMap;
use std::sync::Arc;

use regex::Regex;
use serde_json::Value;

pub use error::{FieldError, Reason, go_quote};
pub(crate) use format::is_quantity;

/// A structural schema node, with its CEL rules compiled.
#[derive(Default)]
pub struct Schema {
    kind: Option<SchemaType>,
    nullable: bool,
    preserve_unknown: bool,
    /// The object is itself a resource, with `kind`, `apiVersion` and `metadata`.
    embedded: bool,
    properties: BTreeMap<String, Arc<Schema>>,
    additional_properties: AdditionalProperties,
    items: Option<Arc<Schema>>,
    list: ListType,
    atomic_map: bool,
    default: Option<Value>,
    format: Option<format::Format>,
    limits: Option<Box<Limits>>,
    rules: Vec<cel::Rule>,
    /// Whether this subtree has CEL rules; validation skips those without.
    has_rules: bool,
    has_keyed_lists: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum SchemaType {
    Object,
    Array,
    String,
    Integer,
    Number,
    Boolean,
    IntOrString,
}

/// `additionalProperties`.
#[derive(Default)]
enum AdditionalProperties {
    #[default]
    Unspecified,
    Forbidden,
    Any,
    Of(Arc<Schema>),
}

#[derive(Default, PartialEq, Eq)]
enum ListType {
    #[default]
    Atomic,
    Set,
    Map(Vec<String>),
}

/// Constraints beyond the type; most nodes have none.
#[derive(Default)]
struct Limits {
    required: Vec<String>,
    one_of_values: Vec<Value>,
    minimum: Option<Bound>,
    maximum: Option<Bound>,
    multiple_of: Option<f64>,
    min_length: Option<i64>,
    max_length: Option<i64>,
    pattern: Option<Pattern>,
    min_items: Option<i64>,
    max_items: Option<i64>,
    min_properties: Option<i64>,
    max_properties: Option<i64>,
    all_of: Vec<Schema>,
    any_of: Vec<Schema>,
    one_of: Vec<Schema>,
    not: Option<Schema>,
}

struct Bound {
    value: f64,
    exclusive: bool,
}

struct Pattern {
    source: String,
    regex: Regex,
}

/// How a list merges in apply and strategic merge patches.
#[derive(Debug, PartialEq, Eq)]
pub enum ListKind<'a> {
    Atomic,
    Set,
    /// Keyed by these fields of its items.
    Map(&'a [String]),
}

impl Schema {
    /// Parses a CRD's `openAPIV3Schema`, with the API server's checks. Error
    /// paths start at the schema (`properties[spec].type`).
    pub fn parse(open_api_v3: &Value) -> Result<Schema, Vec<FieldError>> {
        parse::parse_structural(open_api_v3)
    }

    /// The schema of a kind without one: every field is kept and valid.
    pub fn anything() -> Schema {
        Schema { preserve_unknown: true, embedded: true, ..Default::default() }
    }

    /// Fills in `default`s at every depth. A null in a field that is not nullable
    /// is replaced by the default or removed.
    pub fn apply_defaults(&self, object: &mut Value) {
        defaults::apply(self, object);
    }

    /// Drops unknown fields and returns their sorted paths, such as `spec.foo`
    /// and `spec.list[0].bar`.
    pub fn prune(&self, object: &mut Value) -> Vec<String> {
        prune::prune(self, object)
    }

    /// Checks types, bounds, enums, formats and required fields, then CEL rules
    /// (with `oldSelf` if there is an old object). Unchanged invalid values are
    /// accepted, as in the API server.
    pub fn validate(&self, object: &Value, old: Option<&Value>) -> Vec<FieldError> {
        let mut errors = validate::against(self, object, old);
        if self.has_keyed_lists && old.is_none_or(|old| lists::duplicates(self, old).is_empty()) {
            errors.extend(lists::duplicates(self, object));
        }
        if self.has_rules {
            if errors.iter().any(|error| error.reason.blocks_rules()) {
                errors.push(FieldError::invalid_without_path(
                    "null",
                    "some validation rules were not checked because the object was invalid; \
                     correct the existing errors to complete validation",
                ));
            } else {
                errors.extend(cel::check(self, object, old));
            }
        }
        errors
    }

    /// The schema of a named field: a property, or any entry of a free map.
    pub fn field(&self, name: &str) -> Option<&Schema> {
        match (self.properties.get(name), &self.additional_properties) {
            (Some(property), _) => Some(property),
            (None, AdditionalProperties::Of(entry)) => Some(entry),
            (
                None,
                AdditionalProperties::Unspecified
                | AdditionalProperties::Forbidden
                | AdditionalProperties::Any,
            ) => None,
        }
    }

    pub fn items(&self) -> Option<&Schema> {
        self.items.as_deref()
    }

    pub fn list_kind(&self) -> ListKind<'_> {
        match &self.list {
            ListType::Atomic => ListKind::Atomic,
            ListType::Set => ListKind::Set,
            ListType::Map(keys) => ListKind::Map(keys),
        }
    }

    /// A map with arbitrary keys, such as labels.
    pub fn is_free_map(&self) -> bool {
        matches!(self.additional_properties, AdditionalProperties::Of(_) | AdditionalProperties::Any)
    }

    /// `x-kubernetes-map-type: atomic`: owned and replaced as a whole.
    pub fn is_atomic_map(&self) -> bool {
        self.atomic_map
    }

    /// The default of this field, needed for list keys that may be omitted (a port's protocol).
    pub fn default(&self) -> Option<&Value> {
        self.default.as_ref()
    }

    /// For strategic merge: the one field that identifies an item of this
    /// list. `None` means the list is replaced (or, for a set, united).
    pub fn merge_key(&self) -> Option<&str> {
        match &self.list {
            ListType::Map(keys) => keys.first().map(String::as_str),
            ListType::Atomic | ListType::Set => None,
        }
    }

    /// Whether fields below this node may be undeclared.
    pub fn preserves_unknown_fields(&self) -> bool {
        self.preserve_unknown
    }
}

impl SchemaType {
    fn parse(name: &str) -> Option<SchemaType> {
        Some(match name {
            "object" => SchemaType::Object,
            "array" => SchemaType::Array,
            "string" => SchemaType::String,
            "integer" => SchemaType::Integer,
            "number" => SchemaType::Number,
            "boolean" => SchemaType::Boolean,
            _ => return None,
        })
    }

    fn name(self) -> &'static str {
        match self {
            SchemaType::Object => "object",
            SchemaType::Array => "array",
            SchemaType::String => "string",
            SchemaType::Integer => "integer",
            SchemaType::Number => "number",
            SchemaType::Boolean => "boolean",
            SchemaType::IntOrString => "integer,string",
        }
    }

    /// Whether this type includes `kind`.
    fn includes(self, kind: SchemaType) -> bool {
        self == kind
            || (self == SchemaType::IntOrString && matches!(kind, SchemaType::Integer | SchemaType::String))
    }
}
