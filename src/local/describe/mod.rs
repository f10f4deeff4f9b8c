
use super::kinds::Kinds; use axum::body::Body; use http::Response;
pub fn answer(_k: &Kinds, _s: &[&str], _accept: &str) -> Option<Response<Body>> { None }
pub mod table { use crate::local::kinds::Resource; use serde_json::Value;
pub fn table(_r: &Resource, _o: &[&Value], _m: Value, _i: &str, _n: jiff::Timestamp) -> Value { Value::Null } }
