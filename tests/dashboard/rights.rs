//! Who may not see, sees nothing: users × endpoints × verbs, on a real API server with RBAC.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, RoleBinding};
use kube::api::{Api, ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Client, CustomResourceExt as _};
use serde_json::{Value, json};
use serin::api::Canary;
use serin::controller::CachedCanary;
use serin::server::{Access, BoundServer, ServerHandle};
use serin::telemetry::Telemetry;

use crate::support::{self, chart, eventually};
use crate::world::router;

const TIMEOUT: Duration = Duration::from_secs(120);

/// Two namespaces with a Canary each, and the API over both.
pub struct World {
    pub client: Client,
    pub shop: String,
    pub bank: String,
    pub telemetry: Telemetry,
    pub tokens: BTreeMap<&'static str, String>,
    server: ServerHandle,
}

/// Group, resource and verb.
type Rule = (&'static str, &'static str, &'static str);

/// Name of a user, their rules, and where: in the cluster or in the namespace `shop`.
const USERS: [(&str, &[Rule], bool); 6] = [
    ("admin", &[("*", "*", "*")], true),
    ("viewer", &[("serin.dev", "canaries", "get"), ("serin.dev", "canaries", "list")], true),
    ("shop-viewer", &[("serin.dev", "canaries", "get"), ("serin.dev", "canaries", "list")], false),
    (
        "shop-approver",
        &[
            ("serin.dev", "canaries", "get"),
            ("serin.dev", "canaries", "list"),
            ("serin.dev", "canaries/approve", "update"),
            ("", "events", "list"),
        ],
        false,
    ),
    // Patching Canaries is not approving them.
    ("shop-editor", &[("serin.dev", "canaries", "patch"), ("serin.dev", "canaries", "update")], false),
    ("nobody", &[], true),
];

impl World {
    pub async fn new() -> Self {
        let cluster = support::real().await;
        let client = cluster.client().await;
        let (shop, bank) = (cluster.namespace("shop").await, cluster.namespace("bank").await);
        let definitions = Api::<
            k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
        >::all(client.clone());
        let apply = PatchParams::apply("test").force();
        let name = Canary::crd_name();
        definitions.patch(name, &apply, &Patch::Apply(Canary::crd())).await.expect("defined");
        let telemetry = Telemetry::default();
        for namespace in [&shop, &bank] {
            let canary: Canary = serde_json::from_value(json!({
                "apiVersion": "serin.dev/v1alpha1", "kind": "Canary", "metadata": {"name": "web"},
                "spec": {
                    "targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
                    "service": {"port": 80}, "analysis": {"iterations": 1},
                },
            }))
            .expect("a Canary");
            let canaries = Api::<Canary>::namespaced(client.clone(), namespace);
            // Established, and yet served only a moment later.
            eventually("Canaries are served", TIMEOUT, async || {
                canaries.create(&PostParams::default(), &canary).await.is_ok()
            })
            .await;
            let created = canaries.get("web").await.expect("the Canary");
            telemetry.live.apply(&Arc::new(CachedCanary::Valid(Arc::new(created))), Timestamp::now());
        }
        telemetry.live.set_complete();
        let mut tokens = BTreeMap::new();
        for (name, rules, in_cluster) in USERS {
            let namespaced = (!in_cluster).then_some(shop.as_str());
            bind(&client, &shop, name, rules, namespaced).await;
            tokens.insert(name, chart::token(cluster, &shop, name).await);
        }
        let access = Access::by_token(client.clone(), Vec::new());
        let server = BoundServer::bind(([127, 0, 0, 1], 0).into()).await.expect("a free port");
        let server = server.serve(router(access, &telemetry, Arc::new(Timestamp::now), None), None);
        let world = Self { client, shop, bank, telemetry, tokens, server };
        // The authorizer learns of a new binding a moment later.
        eventually("the rights are in force", TIMEOUT, async || {
            let seen = world.get("admin", &format!("/api/v1/namespaces/{}/canaries/web", world.bank)).await.0;
            let acts =
                world.get("shop-approver", &format!("/api/v1/namespaces/{}/canaries/web", world.shop)).await;
            let list = world.list("viewer").await;
            seen == StatusCode::OK && acts.1["mayAct"] == true && list.len() == 2
        })
        .await;
        world
    }

    async fn get(&self, user: &str, path: &str) -> (StatusCode, Value) {
        let client = reqwest::Client::builder().no_proxy().build().expect("an HTTP client");
        let request =
            client.get(format!("http://{}{path}", self.server.address)).bearer_auth(&self.tokens[user]);
        let response = request.send().await.expect("an answer");
        (response.status(), response.json().await.unwrap_or_default())
    }

    async fn post(&self, user: &str, path: &str) -> StatusCode {
        let client = reqwest::Client::builder().no_proxy().build().expect("an HTTP client");
        let request =
            client.post(format!("http://{}{path}", self.server.address)).bearer_auth(&self.tokens[user]);
        request.send().await.expect("an answer").status()
    }

    /// Namespaces of the Canaries that a user sees.
    async fn list(&self, user: &str) -> Vec<String> {
        let (code, list) = self.get(user, "/api/v1/canaries").await;
        assert_eq!(code, StatusCode::OK, "{list}");
        let ours = [&self.shop, &self.bank];
        let items = list["items"].as_array().expect("items").iter();
        let namespaces = items.filter_map(|item| item["namespace"].as_str().map(str::to_owned));
        namespaces.filter(|namespace| ours.contains(&namespace)).collect()
    }
}

/// A ServiceAccount with a role of these rules, in the cluster or in a namespace.
async fn bind(
    client: &Client,
    home: &str,
    name: &str,
    rules: &[(&str, &str, &str)],
    namespace: Option<&str>,
) {
    let create = PostParams::default();
    let role = format!("{home}-{name}");
    let metadata = |name: &str| ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
    let account = ServiceAccount { metadata: metadata(name), ..ServiceAccount::default() };
    Api::namespaced(client.clone(), home).create(&create, &account).await.expect("an account");
    let rules: Vec<Value> = rules
        .iter()
        .map(
            |(group, resource, verb)| json!({"apiGroups": [group], "resources": [resource], "verbs": [verb]}),
        )
        .collect();
    let cluster_role: ClusterRole =
        serde_json::from_value(json!({"metadata": {"name": role}, "rules": rules})).expect("a role");
    Api::all(client.clone()).create(&create, &cluster_role).await.expect("a role");
    let binding = json!({
        "metadata": {"name": role},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": home}],
    });
    match namespace {
        Some(namespace) => {
            let binding: RoleBinding = serde_json::from_value(binding).expect("a binding");
            Api::namespaced(client.clone(), namespace).create(&create, &binding).await.expect("a binding");
        }
        None => {
            let binding: ClusterRoleBinding = serde_json::from_value(binding).expect("a binding");
            Api::all(client.clone()).create(&create, &binding).await.expect("a binding");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_user_sees_and_does_what_rbac_allows_and_nothing_else() {
    let world = World::new().await;
    let (shop, bank) = (&world.shop, &world.bank);
    // User, namespaces of the list, may get in shop and in bank, may act in shop and in bank.
    let both = vec![bank.clone(), shop.clone()];
    let matrix = [
        ("admin", both.clone(), [true, true], [true, true]),
        ("viewer", both, [true, true], [false, false]),
        ("shop-viewer", vec![shop.clone()], [true, false], [false, false]),
        ("shop-approver", vec![shop.clone()], [true, false], [true, false]),
        ("shop-editor", Vec::new(), [false, false], [false, false]),
        ("nobody", Vec::new(), [false, false], [false, false]),
    ];
    let verbs = ["approve", "reject", "abort", "promote", "pause", "resume", "retry", "rollback"];
    for (user, listed, sees, acts) in matrix {
        assert_eq!(world.list(user).await, listed, "{user}");
        let stream = first_rows(&world, user).await;
        assert_eq!(stream, listed, "the stream of {user}");
        for (at, namespace) in [shop, bank].into_iter().enumerate() {
            let one = format!("/api/v1/namespaces/{namespace}/canaries/web");
            for part in ["", "/course", "/releases", "/surroundings"] {
                let (code, body) = world.get(user, &format!("{one}{part}")).await;
                let expected = if sees[at] { StatusCode::OK } else { StatusCode::FORBIDDEN };
                assert_eq!(code, expected, "{user} {one}{part}: {body}");
                if part.is_empty() && sees[at] {
                    assert_eq!(body["mayAct"], acts[at], "{user} {one}");
                }
                // Whether a Canary exists is not disclosed.
                let gone = format!("/api/v1/namespaces/{namespace}/canaries/gone{part}");
                let expected = if sees[at] { StatusCode::NOT_FOUND } else { StatusCode::FORBIDDEN };
                assert_eq!(world.get(user, &gone).await.0, expected, "{user} {gone}");
            }
            for verb in verbs {
                let code = world.post(user, &format!("{one}/{verb}")).await;
                // Nothing waits for approval: that is known to those only who may approve.
                let allowed = matches!(
                    code,
                    StatusCode::ACCEPTED | StatusCode::CONFLICT | StatusCode::TOO_MANY_REQUESTS
                );
                assert_eq!(allowed, acts[at], "{user} {one}/{verb}: {code}");
                assert!(allowed || code == StatusCode::FORBIDDEN, "{user} {one}/{verb}: {code}");
            }
        }
    }
    // Parts of one Canary that need rights of their own.
    let around = |user: &'static str| {
        let path = format!("/api/v1/namespaces/{shop}/canaries/web/surroundings");
        let world = &world;
        async move { world.get(user, &path).await.1 }
    };
    let (admin, approver, viewer) =
        (around("admin").await, around("shop-approver").await, around("viewer").await);
    assert!(admin["pods"].is_array() && admin["events"].is_array() && admin["images"].is_object(), "{admin}");
    assert!(approver["events"].is_array() && approver["pods"].is_null() && approver["images"].is_null());
    assert_eq!(viewer, json!({}));
}

async fn first_rows(world: &World, user: &str) -> Vec<String> {
    let client = reqwest::Client::builder().no_proxy().build().expect("an HTTP client");
    let request = client.get(format!("http://{}/api/v1/stream", world.server.address));
    let mut response = request.bearer_auth(&world.tokens[user]).send().await.expect("an answer");
    let mut text = String::new();
    while !text.contains("\"more\":false") {
        let chunk = tokio::time::timeout(TIMEOUT, response.chunk()).await.expect("an event").expect("bytes");
        text.push_str(&String::from_utf8_lossy(&chunk.expect("more")));
    }
    let mut seen: Vec<String> = [&world.bank, &world.shop]
        .into_iter()
        .filter(|namespace| text.contains(&format!("\"namespace\":\"{namespace}\"")))
        .cloned()
        .collect();
    seen.sort();
    seen
}

#[tokio::test(flavor = "multi_thread")]
async fn a_right_that_is_taken_away_is_gone_within_seconds() {
    let world = World::new().await;
    let one = format!("/api/v1/namespaces/{}/canaries/web", world.shop);
    assert_eq!(world.get("shop-viewer", &one).await.0, StatusCode::OK);
    let bindings = Api::<RoleBinding>::namespaced(world.client.clone(), &world.shop);
    let name = format!("{}-shop-viewer", world.shop);
    bindings.delete(&name, &Default::default()).await.expect("a deletion");
    eventually("the right is gone", Duration::from_secs(60), async || {
        world.get("shop-viewer", &one).await.0 == StatusCode::FORBIDDEN
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn with_an_audience_of_its_own_other_tokens_are_of_no_use() {
    let world = World::new().await;
    let access = Access::by_token(world.client.clone(), vec!["serin".to_owned()]);
    let telemetry = Telemetry::default();
    telemetry.live.set_complete();
    let server = BoundServer::bind(([127, 0, 0, 1], 0).into()).await.expect("a free port");
    let server = server.serve(router(access, &telemetry, Arc::new(Timestamp::now), None), None);
    let accounts: Api<ServiceAccount> = Api::namespaced(world.client.clone(), &world.shop);
    let request: k8s_openapi::api::authentication::v1::TokenRequest = serde_json::from_value(json!({
        "spec": {"audiences": ["serin"], "expirationSeconds": 7200},
    }))
    .expect("a request");
    let issued = accounts.create_token_request("admin", &PostParams::default(), &request).await;
    let meant = issued.expect("a token").status.expect("an answer").token;
    let client = reqwest::Client::builder().no_proxy().build().expect("an HTTP client");
    let me =
        |token: String| client.get(format!("http://{}/api/v1/me", server.address)).bearer_auth(token).send();
    assert_eq!(me(meant.clone()).await.expect("an answer").status(), StatusCode::OK);
    assert_eq!(
        me(world.tokens["admin"].clone()).await.expect("an answer").status(),
        StatusCode::UNAUTHORIZED
    );
    // And the other way round.
    let elsewhere =
        client.get(format!("http://{}/api/v1/me", world.server.address)).bearer_auth(meant).send();
    assert_eq!(elsewhere.await.expect("an answer").status(), StatusCode::UNAUTHORIZED);
}
