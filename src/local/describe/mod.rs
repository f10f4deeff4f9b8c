//! How the server describes itself and its objects to people and to kubectl:
//! discovery, OpenAPI v3, and tables. Documents are made from the list of
//! resources alone; serving them is somebody else's job.

mod age;

pub use age::human_duration;
pub(crate) use age::since;

use super::kinds::Kinds; use axum::body::Body; use http::Response;
pub fn answer(_k: &Kinds, _s: &[&str], _accept: &str) -> Option<Response<Body>> { None }
pub mod table { use crate::local::kinds::Resource; use serde_json::Value;
pub fn table(_r: &Resource, _o: &[&Value], _m: Value, _i: &str, _n: jiff::Timestamp) -> Value { Value::Null } }
