
use super::kinds::Resource; use super::schema::FieldError; use serde_json::Value;
pub fn all() -> Vec<Resource> { Vec::new() }
pub fn default(_k: &Resource, _o: &mut Value) {}
pub fn validate(_k: &Resource, _o: &Value, _old: Option<&Value>) -> Vec<FieldError> { Vec::new() }
pub fn validate_metadata(_k: &Resource, _o: &Value) -> Vec<FieldError> { Vec::new() }
pub fn object_meta() -> Value { Value::Null }
