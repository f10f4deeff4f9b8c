//! The fixture of one law.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::api::authentication::v1::UserInfo;
use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, ObjectMeta, Patch, PatchParams, PostParams};
use kube::runtime::{conditions, wait::await_condition};
use kube::{Client, CustomResourceExt as _};
use kube_local::access::{Grant, Identity};
use kube_local::{ApiServer, Options};
use serde_json::{Value, json};
use serin::api::Canary;
use serin::engine::action::GateCall;
use serin::gates::commands::{self, Caller, CanaryRef, CommandError};

use crate::support;

/// A namespace with a Canary that alice, bob and the group `approvers` may approve.
pub struct World {
    pub client: Client,
    pub namespace: String,
    /// With a token: one who may approve, and one who may not.
    pub carol: ApiUser,
    pub mallory: ApiUser,
    kubeconfig: std::path::PathBuf,
    /// Keeps the server and its kubeconfig.
    _kept: Option<(kube_local::serve::ApiServerHandle, support::Folder)>,
}

/// A user that the API server authenticates.
pub struct ApiUser {
    pub name: String,
    pub token: String,
}

impl World {
    pub async fn real() -> World {
        let cluster = support::real().await;
        let (client, namespace) = (cluster.client().await, cluster.namespace("gates").await);
        let role: Role = serde_json::from_value(json!({
            "metadata": {"name": "approver"},
            "rules": [{"apiGroups": ["serin.dev"], "resources": ["canaries/approve"], "verbs": ["update"]}],
        }))
        .unwrap();
        let binding: RoleBinding = serde_json::from_value(json!({
            "metadata": {"name": "approvers"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "approver"},
            "subjects": [
                {"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "approvers"},
                {"kind": "ServiceAccount", "name": "carol", "namespace": namespace},
            ],
        }))
        .unwrap();
        let create = PostParams::default();
        Api::namespaced(client.clone(), &namespace).create(&create, &role).await.expect("a role");
        Api::namespaced(client.clone(), &namespace).create(&create, &binding).await.expect("a binding");
        let known = async |name: &str| {
            let metadata = ObjectMeta { name: Some(name.to_owned()), ..Default::default() };
            let account = ServiceAccount { metadata, ..Default::default() };
            Api::namespaced(client.clone(), &namespace).create(&create, &account).await.expect("an account");
            let token = support::chart::token(cluster, &namespace, name).await;
            ApiUser { name: format!("system:serviceaccount:{namespace}:{name}"), token }
        };
        let (carol, mallory) = (known("carol").await, known("mallory").await);
        let kubeconfig = cluster.kubeconfig();
        let world = World { client, namespace, carol, mallory, kubeconfig, _kept: None };
        // The authorizer learns of a new binding a moment later.
        world.set_up().await
    }

    pub async fn local() -> World {
        serin::tls::install_crypto_provider();
        let namespace = "gates".to_owned();
        let grant = Grant {
            subject: "approvers".to_owned(),
            verb: "update".to_owned(),
            group: "serin.dev".to_owned(),
            resource: "canaries/approve".to_owned(),
            namespace: namespace.clone(),
        };
        // As the role binding of the other server names her.
        let of_carol = Grant { subject: "carol".to_owned(), ..grant.clone() };
        let known = |name: &str, group: &str| {
            let identity = Identity { user: name.to_owned(), groups: vec![group.to_owned()] };
            let known = ApiUser { name: name.to_owned(), token: format!("token-of-{name}") };
            ((known.token.clone(), identity), known)
        };
        let (carol_is, carol) = known("carol", "approvers");
        let (mallory_is, mallory) = known("mallory", "strangers");
        let users = vec![carol_is, mallory_is];
        let local = ApiServer::new(Options { grants: vec![grant, of_carol], users, ..Options::default() });
        let serving = local.serve(([127, 0, 0, 1], 0).into()).await.expect("served");
        let folder = support::Folder::new("gates");
        let kubeconfig = folder.join("kubeconfig");
        serving.write_kubeconfig(&kubeconfig).expect("a kubeconfig");
        let made = Namespace {
            metadata: ObjectMeta { name: Some(namespace.clone()), ..Default::default() },
            ..Default::default()
        };
        let client = local.client();
        Api::all(client.clone()).create(&PostParams::default(), &made).await.expect("a namespace");
        World { client, namespace, carol, mallory, kubeconfig, _kept: Some((serving, folder)) }.set_up().await
    }

    /// Defines Canaries, makes one, and waits until alice may approve it.
    async fn set_up(self) -> World {
        let definitions = Api::<CustomResourceDefinition>::all(self.client.clone());
        let apply = PatchParams::apply("test").force();
        let name = Canary::crd_name();
        definitions.patch(name, &apply, &Patch::Apply(Canary::crd())).await.expect("defined");
        await_condition(definitions, name, conditions::is_crd_established()).await.expect("established");
        let canary: Canary = serde_json::from_value(json!({
            "apiVersion": "serin.dev/v1alpha1", "kind": "Canary", "metadata": {"name": "web"},
            "spec": {
                "targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
                "service": {"port": 80}, "analysis": {"iterations": 1},
            },
        }))
        .expect("a Canary");
        let began = Instant::now();
        // Established, and yet served only a moment later.
        while let Err(error) = self.canaries().create(&PostParams::default(), &canary).await {
            assert!(began.elapsed() < Duration::from_secs(30), "{error}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        while matches!(self.approve("alice", None).await, Err(CommandError::NotAllowed { .. })) {
            assert!(began.elapsed() < Duration::from_secs(30), "alice may still not approve");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        self
    }

    fn canaries(&self) -> Api<Canary> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    pub async fn canary(&self) -> Canary {
        self.canaries().get("web").await.expect("the Canary")
    }

    pub fn name(&self) -> CanaryRef<'_> {
        CanaryRef { namespace: &self.namespace, name: "web" }
    }

    pub fn caller(&self, user: &str) -> Caller {
        user_in_group(user, "approvers")
    }

    pub async fn approve(&self, user: &str, gate: Option<&str>) -> Result<GateCall, CommandError> {
        commands::approve(&self.client, &self.caller(user), self.name(), gate).await
    }

    /// The controller's part: the third release waits for these.
    pub async fn set_waiting_gates(&self, gates: &[Value]) {
        let now = Timestamp::now();
        self.status(json!({
            "phase": "Progressing", "message": "Judging.", "releases": 3, "gates": gates,
            "failedChecks": 0, "canaryWeight": 5, "iterations": 0,
            "release": {"revision": "1-abc", "trigger": "PodTemplate", "startedAt": now, "lastProgressAt": now},
        }))
        .await
    }

    pub async fn status(&self, status: Value) {
        let patch = Patch::Merge(json!({"status": status}));
        self.canaries().patch_status("web", &PatchParams::default(), &patch).await.expect("a status");
    }

    /// Runs the real program as the administrator.
    pub async fn serin(&self, args: &[&str]) -> (i32, String, String) {
        self.serin_anywhere(&[args, &["--namespace", &self.namespace]].concat()).await
    }

    /// In no namespace.
    pub async fn serin_anywhere(&self, args: &[&str]) -> (i32, String, String) {
        let output = tokio::process::Command::new(env!("CARGO_BIN_EXE_serin"))
            .args(args)
            .env("KUBECONFIG", &self.kubeconfig)
            .output()
            .await
            .expect("serin runs");
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
        (output.status.code().expect("an exit code"), text(output.stdout), text(output.stderr))
    }
}

/// An authenticated user of one group.
pub fn user_in_group(name: &str, group: &str) -> Caller {
    let (username, groups) = (Some(name.to_owned()), Some(vec![group.to_owned()]));
    Caller::User(UserInfo { username, groups, ..UserInfo::default() })
}

pub fn gate(name: &str, kind: Option<&str>, step: Option<u32>) -> Value {
    let mut gate = json!({"name": name, "state": "Waiting", "since": Timestamp::now()});
    if let Some(kind) = kind {
        gate["type"] = json!(kind);
    }
    if let Some(step) = step {
        gate["step"] = json!(step);
    }
    gate
}
