//! Discovery, OpenAPI v3 and tables, for kubectl and other clients; computed from
//! the list of resources alone. OpenAPI v2 is an empty document: kubectl requests
//! it only for kinds without v3, such as `List`, and then leaves validation to
//! the server.

mod age;
mod discovery;
mod json_path;
#[cfg(feature = "kubectl")]
mod openapi;
pub mod table;

use axum::body::Body;
use http::{Response, header};
use serde_json::{Value, json};

use super::kinds::Kinds;
pub(crate) use age::since;

#[cfg(feature = "kubectl")]
const OPENAPI_V2: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";

/// `swagger: "2.0"` and nothing else, in the only encoding that kubectl reads.
#[cfg(feature = "kubectl")]
const EMPTY_OPENAPI_V2: &str = "\n\u{3}2.0";

/// The response to a request outside any resource; `None` for an unknown path.
pub fn respond_to_meta_path(kinds: &Kinds, segments: &[&str], accept: &str) -> Option<Response<Body>> {
    let all = kinds.all();
    let aggregated = accept.contains("g=apidiscovery.k8s.io") && accept.contains("v=v2");
    let document = match segments {
        ["api"] if aggregated => return Some(aggregate(&discovery::aggregated(all, true))),
        ["apis"] if aggregated => return Some(aggregate(&discovery::aggregated(all, false))),
        ["api"] => discovery::core_versions(),
        ["apis"] => discovery::groups(all),
        ["apis", group] => discovery::group(all, group)?,
        ["api", version] => discovery::resources(all, "", version)?,
        ["apis", group, version] => discovery::resources(all, group, version)?,
        #[cfg(feature = "kubectl")]
        ["openapi", "v3"] => openapi::index(all),
        #[cfg(feature = "kubectl")]
        ["openapi", "v3", "api", version] => openapi::document(all, "", version)?,
        #[cfg(feature = "kubectl")]
        ["openapi", "v3", "apis", group, version] => openapi::document(all, group, version)?,
        #[cfg(feature = "kubectl")]
        ["openapi", "v2"] => return Some(media_response(OPENAPI_V2, EMPTY_OPENAPI_V2)),
        ["version"] => version(),
        ["healthz" | "livez" | "readyz", ..] => {
            return Some(media_response("text/plain; charset=utf-8", "ok"));
        }
        [] => json!({"paths": [
            "/api", "/api/v1", "/apis", "/healthz", "/livez", "/openapi/v3", "/readyz", "/version"]}),
        _ => return None,
    };
    Some(media_response("application/json", document.to_string()))
}

fn aggregate(document: &Value) -> Response<Body> {
    media_response(
        "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList",
        document.to_string(),
    )
}

fn media_response(media: &'static str, body: impl Into<Body>) -> Response<Body> {
    let mut response = Response::new(body.into());
    response.headers_mut().insert(header::CONTENT_TYPE, http::HeaderValue::from_static(media));
    response
}

/// The Kubernetes version that this server follows; kubectl warns of version skew.
fn version() -> Value {
    json!({
        "major": "1",
        "minor": "36",
        "gitVersion": concat!("v1.36.1+serin-", env!("CARGO_PKG_VERSION")),
        "gitCommit": "",
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "",
        "compiler": "rustc",
        "platform": format!("{}/{}", std::env::consts::OS, match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        }),
    })
}
