//! The status of route objects, for tests that play the controllers of meshes.

use serde_json::{Value, json};

/// All parents of a route have taken it as it is; whether its backends were
/// found is `resolved`.
pub fn parent_status(route: &Value, resolved: &str) -> Value {
    let condition = |kind: &str, status: &str| {
        json!({"type": kind, "status": status, "observedGeneration": route["metadata"]["generation"],
            "reason": "Because", "message": "The test says so.", "lastTransitionTime": "2026-01-01T00:00:00Z"})
    };
    let report = |parent: &Value| {
        json!({"parentRef": parent, "controllerName": "example.com/gateway",
            "conditions": [condition("Accepted", "True"), condition("ResolvedRefs", resolved)]})
    };
    let parents = route["spec"]["parentRefs"].as_array().into_iter().flatten();
    json!({"parents": parents.map(report).collect::<Vec<_>>()})
}

/// Whether App Mesh has the virtual router as it is.
pub fn app_mesh_status(router: &Value, active: &str) -> Value {
    let condition = json!({"type": "VirtualRouterActive", "status": active, "message": "the test says so"});
    json!({"observedGeneration": router["metadata"]["generation"], "conditions": [condition]})
}
