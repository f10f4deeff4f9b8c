//! Rights to approve, and attempts to forge an approval.

use std::time::Duration;

use k8s_openapi::api::admissionregistration::v1::ValidatingAdmissionPolicy;
use kube::Api;
use serde_json::{Value, json};
use serin::gates::annotations::{APPROVALS, COMMANDS};
use tokio::process::Command;

use crate::install::installed;
use crate::support::chart::{CommandOutput, Kubectl, run, token};
use crate::support::{self, Cluster};

/// A machine that also compiles is slow.
const TIMEOUT: Duration = Duration::from_secs(120);

/// A namespace with a Canary and users.
struct World {
    cluster: &'static Cluster,
    namespace: String,
    admin: Kubectl,
}

impl World {
    async fn new() -> Self {
        let (cluster, _) = installed().await;
        let namespace = cluster.namespace("approvals").await;
        let world = Self { cluster, namespace, admin: Kubectl::admin(cluster) };
        world.admin.apply(&world.canary(json!({})).to_string()).await;
        world
    }

    fn canary(&self, annotations: Value) -> Value {
        json!({
            "apiVersion": "serin.dev/v1alpha1", "kind": "Canary",
            "metadata": {"name": "web", "namespace": self.namespace, "annotations": annotations},
            "spec": {
                "targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
                "service": {"port": 80}, "analysis": {"iterations": 1},
            },
        })
    }

    /// A user with these ClusterRoles in the namespace.
    async fn user_with_roles(&self, name: &str, roles: &[&str]) -> Kubectl {
        let ok = async |arguments: &[&str]| _ = self.admin.run(arguments, "").await.ok();
        let within = format!("--namespace={}", self.namespace);
        ok(&["create", "serviceaccount", name, &within]).await;
        for role in roles {
            let (role, binding) = (format!("--clusterrole={role}"), format!("{name}-{role}"));
            let account = format!("--serviceaccount={}:{name}", self.namespace);
            ok(&["create", "rolebinding", &binding, &role, &account, &within]).await;
        }
        Kubectl::of(self.cluster, &token(self.cluster, &self.namespace, name).await)
    }

    async fn annotate(&self, who: &Kubectl, key: &str, value: &str) -> CommandOutput {
        let within = format!("--namespace={}", self.namespace);
        who.run(&["annotate", "--overwrite", "canary", "web", &format!("{key}={value}"), &within], "").await
    }

    async fn patch(&self, who: &Kubectl, patch: Value, more: &[&str]) -> CommandOutput {
        let (within, patch) = (format!("--namespace={}", self.namespace), patch.to_string());
        let arguments = ["patch", "canary", "web", &within, "--type=merge", "--patch", &patch];
        who.run(&[&arguments[..], more].concat(), "").await
    }

    /// As the command line does it.
    async fn serin(&self, who: &Kubectl, verb: &str) -> CommandOutput {
        let mut command = Command::new(env!("CARGO_BIN_EXE_serin"));
        command.args([verb, "web", "--namespace", &self.namespace]).env("KUBECONFIG", who.kubeconfig());
        run(command, "").await
    }
}

/// A policy and aggregated roles take effect a moment after they are written.
async fn eventually(what: &str, condition: impl AsyncFnMut() -> bool) {
    support::eventually(what, TIMEOUT, condition).await;
}

async fn can(who: &Kubectl, namespace: &str, verb: &str, subresource: &str) -> bool {
    let (within, of) = (format!("--namespace={namespace}"), format!("--subresource={subresource}"));
    who.run(&["auth", "can-i", verb, "canaries.serin.dev", &of, &within], "").await.stdout.trim() == "yes"
}

#[tokio::test]
async fn an_editor_cannot_forge_an_approval() {
    let world = World::new().await;
    let editor = world.user_with_roles("editor", &["edit"]).await;
    eventually("edit includes Canaries", async || can(&editor, &world.namespace, "patch", "").await).await;
    let dry = async |key: &str| {
        let patch = json!({"metadata": {"annotations": {key: "[]"}}});
        world.patch(&editor, patch, &["--dry-run=server"]).await
    };
    eventually("the policy is in force", async || dry(APPROVALS).await.stderr.contains("may not")).await;

    for key in [APPROVALS, COMMANDS] {
        let refused = world.annotate(&editor, key, "[]").await.refused();
        let sentence = format!(
            "system:serviceaccount:{0}:editor may not change the annotations serin.dev/approvals and \
             serin.dev/commands of web in the namespace {0}: it takes the right to update canaries/approve, \
             which the ClusterRole serin-approver gives",
            world.namespace
        );
        assert!(refused.contains(&sentence) && refused.contains("Forbidden"), "{refused}");
    }
    let forged = world.canary(json!({APPROVALS: "[]"})).to_string();
    let apply = ["apply", "--server-side", "--force-conflicts", "-f", "-"];
    editor.run(&apply, &forged).await.refused();
    let born = forged.replace("\"web\"", "\"born\"");
    assert!(editor.run(&["create", "-f", "-"], &born).await.refused().contains("may not change"));

    // Every other field may be edited.
    let other =
        json!({"metadata": {"annotations": {"team": "shop"}}, "spec": {"analysis": {"iterations": 3}}});
    world.patch(&editor, other, &[]).await.ok();
    // Our command line reports the same before it writes.
    let refused = world.serin(&editor, "abort").await.refused();
    assert!(refused.contains("the right to update canaries/approve"), "{refused}");
}

#[tokio::test]
async fn an_approver_is_admitted_and_others_may_reapply_the_result() {
    let world = World::new().await;
    let approver = world.user_with_roles("approver", &["serin-approver"]).await;
    let editor = world.user_with_roles("editor", &["edit"]).await;
    world.serin(&approver, "abort").await.ok();
    world.annotate(&approver, APPROVALS, "[]").await.ok();

    // As a GitOps tool does: the same annotations, and other fields.
    let get = ["get", "canary", "web", "-o", "json", &format!("--namespace={}", world.namespace)];
    let found: Value = serde_json::from_str(&world.admin.run(&get, "").await.ok()).expect("JSON");
    let annotations = &found["metadata"]["annotations"];
    assert!(annotations[COMMANDS].as_str().is_some_and(|text| text.contains("abort")), "{annotations}");
    eventually("edit includes Canaries", async || can(&editor, &world.namespace, "patch", "").await).await;
    let again = world.canary(json!({APPROVALS: "[]", COMMANDS: annotations[COMMANDS]})).to_string();
    editor.run(&["apply", "--server-side", "--force-conflicts", "-f", "-"], &again).await.ok();
    editor.run(&["replace", "-f", "-"], &again).await.ok();
    // Removing an approval changes the annotation, too.
    eventually("the policy is in force", async || {
        let without = json!({"metadata": {"annotations": {COMMANDS: null}}});
        world.patch(&editor, without, &["--dry-run=server"]).await.stderr.contains("may not")
    })
    .await;
}

#[tokio::test]
async fn a_status_writer_cannot_bypass_the_policy() {
    let world = World::new().await;
    let within = format!("--namespace={}", world.namespace);
    let create = ["create", "role", "status", "--verb=get,patch", "--resource=canaries.serin.dev/status"];
    world.admin.run(&[&create[..], &["--resource=canaries.serin.dev", &within]].concat(), "").await.ok();
    let writer = world.user_with_roles("writer", &[]).await;
    let account = format!("--serviceaccount={}:writer", world.namespace);
    let bind = ["create", "rolebinding", "status", "--role=status", &account, &within];
    world.admin.run(&bind, "").await.ok();

    let forged = json!({"metadata": {"annotations": {APPROVALS: "[]"}}});
    world.patch(&writer, forged, &["--subresource=status"]).await.ok();
    let get = ["get", "canary", "web", "-o", "json", &within];
    let found: Value = serde_json::from_str(&world.admin.run(&get, "").await.ok()).expect("JSON");
    assert_eq!(found["metadata"]["annotations"].get(APPROVALS), None);
}

#[tokio::test]
async fn viewers_can_read_and_no_default_role_can_approve() {
    let world = World::new().await;
    let (viewer, admin) =
        (world.user_with_roles("viewer", &["view"]).await, world.user_with_roles("boss", &["admin"]).await);
    eventually("view includes Canaries", async || can(&viewer, &world.namespace, "get", "").await).await;
    assert!(!can(&viewer, &world.namespace, "patch", "").await);
    eventually("admin includes Canaries", async || can(&admin, &world.namespace, "patch", "").await).await;
    assert!(!can(&admin, &world.namespace, "update", "approve").await);
}

/// The API server checks the expressions against our definitions.
#[tokio::test]
async fn the_policy_type_checks() {
    let (cluster, _) = installed().await;
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(cluster.client().await);
    eventually("the policy is checked", async || {
        let policy = policies.get("serin-approvals").await.expect("the policy");
        let Some(checked) = policy.status.and_then(|status| status.type_checking) else { return false };
        assert_eq!(checked.expression_warnings.unwrap_or_default(), []);
        true
    })
    .await;
}
