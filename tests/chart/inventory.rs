//! The resources of the inventory are read-only to people.

use std::time::Duration;

use serde_json::json;

use crate::install::{CONTROLLER_NAMESPACE, installed};
use crate::rbac::Stage;
use crate::support::chart::{Kubectl, token};
use crate::support::eventually;

/// A machine that also compiles is slow.
const TIMEOUT: Duration = Duration::from_secs(120);

#[tokio::test]
async fn only_the_controller_writes_the_inventory() {
    let (cluster, manifests) = installed().await;
    // No controller runs meanwhile: it would delete a Mesh that it does not find.
    let _stage = Stage::new(cluster, CONTROLLER_NAMESPACE, manifests).await;
    let account = manifests.one("ServiceAccount")["metadata"]["name"].as_str().expect("a name").to_owned();
    let token = token(cluster, CONTROLLER_NAMESPACE, &account).await;
    let (admin, serin) = (Kubectl::admin(cluster), Kubectl::of(cluster, &token));
    let mesh = |name: &str| {
        json!({"apiVersion": "serin.dev/v1alpha1", "kind": "Mesh", "metadata": {"name": name},
            "spec": {"cluster": "local", "kind": "istio", "name": "istio"}})
        .to_string()
    };
    let forge = async || admin.run(&["create", "--dry-run=server", "-f", "-"], &mesh("forged")).await;
    eventually("the policy is in force", TIMEOUT, async || forge().await.stderr.contains("may not")).await;
    let refused = forge().await.refused();
    assert!(refused.contains("may not write meshes of serin.dev: Serin writes the inventory"), "{refused}");

    let written = async || serin.run(&["create", "-f", "-"], &mesh("found")).await;
    eventually("the controller has its rights", TIMEOUT, async || written().await.stdout.contains("created"))
        .await;
    let refused = admin.run(&["delete", "meshes.serin.dev", "found"], "").await.refused();
    assert!(refused.contains("may not write meshes"), "{refused}");
    serin.run(&["delete", "meshes.serin.dev", "found"], "").await.ok();
}
