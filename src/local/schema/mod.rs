//! What an object of a kind may look like: a structural schema, parsed once.

use serde_json::Value;

/// A structural schema node, with its CEL rules compiled.
pub struct Schema {}

/// One thing wrong with one field, worded as the API server words it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldError {
    /// `spec.analysis.threshold`
    pub field: String,
    pub reason: Reason,
    /// Without the field: `Invalid value: -1: should be greater than or equal to 0`
    pub message: String,
}

/// The machine-readable cause, serialised as the API server's `FieldValue…`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    Required,
    Invalid,
    NotSupported,
    Forbidden,
    Duplicate,
    TooLong,
    TooMany,
    TypeInvalid,
}

/// How a list merges, for apply and strategic merge.
pub enum ListKind<'a> {
    Atomic,
    Set,
    /// Keyed by these fields of its items.
    Map(&'a [String]),
}

impl Schema {
    /// Parses a CRD's `openAPIV3Schema`; refuses what the API server refuses.
    pub fn parse(_open_api_v3: &Value) -> Result<Schema, Vec<FieldError>> {
        Ok(Schema {})
    }

    /// Fills in `default`s, as deep as the object goes.
    pub fn apply_defaults(&self, _object: &mut Value) {}

    /// Drops the fields the schema does not know and returns their paths.
    pub fn prune(&self, _object: &mut Value) -> Vec<String> {
        Vec::new()
    }

    /// Types, bounds, enums, formats, required fields, then CEL rules (with
    /// `oldSelf` where there is an old object).
    pub fn validate(&self, _object: &Value, _old: Option<&Value>) -> Vec<FieldError> {
        Vec::new()
    }

    /// The schema of a named field: a property, or any entry of a free map.
    pub fn field(&self, _name: &str) -> Option<&Schema> {
        None
    }

    pub fn items(&self) -> Option<&Schema> {
        None
    }

    pub fn list_kind(&self) -> ListKind<'_> {
        ListKind::Atomic
    }

    /// `x-kubernetes-map-type: atomic`: owned and replaced as a whole.
    pub fn is_atomic_map(&self) -> bool {
        false
    }

    /// The default of this field, needed where a list key may be left out
    /// (a port's protocol).
    pub fn default(&self) -> Option<&Value> {
        None
    }
}
