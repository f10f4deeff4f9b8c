//! Who asked the API server for what: its audit log, sent here instead of to a
//! file.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::routing::post;
use jiff::Timestamp;
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::json;

use super::support::Extras;

/// How long the API server may keep what it tells.
pub const AUDIT_DELAY: Duration = Duration::from_secs(3);

#[derive(Clone)]
pub struct Audit {
    port: u16,
    seen: Arc<Mutex<SeenRequests>>,
}

#[derive(Default)]
struct SeenRequests {
    /// Each kind of request once; requests name it by number.
    kinds: Vec<Kind>,
    numbers: BTreeMap<Kind, usize>,
    requests: Vec<(Timestamp, usize)>,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Kind {
    user: String,
    verb: String,
    resource: String,
}

/// What one user asked for in some time.
#[derive(Default)]
pub struct Requests {
    /// By verb and resource; neither watches nor leases.
    pub by_kind: BTreeMap<String, usize>,
    pub watches: usize,
    pub leases: usize,
}

impl Requests {
    pub fn count(&self) -> usize {
        self.by_kind.values().sum()
    }
}

#[derive(Deserialize)]
struct EventList {
    items: Vec<Event>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Event {
    stage: String,
    verb: String,
    user: User,
    object_ref: Option<ObjectRef>,
    #[serde(rename = "requestURI")]
    request_uri: String,
    request_received_timestamp: Timestamp,
}

#[derive(Deserialize)]
struct User {
    username: String,
}

#[derive(Deserialize)]
struct ObjectRef {
    resource: Option<String>,
    subresource: Option<String>,
}

impl Audit {
    pub async fn listen() -> Audit {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free loopback port");
        let port = listener.local_addr().expect("a bound listener has an address").port();
        let audit = Audit { port, seen: Arc::default() };
        let app = Router::new()
            .route("/", post(receive))
            .layer(DefaultBodyLimit::disable())
            .with_state(audit.clone());
        tokio::spawn(async move { axum::serve(listener, app).await });
        audit
    }

    /// What makes a cluster tell of these users' requests.
    pub fn extras(&self, users: &[&'static str]) -> Extras {
        let policy = json!({
            "apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"],
            "rules": [{"level": "Metadata", "users": users}, {"level": "None"}],
        });
        let receiver = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "audit",
            "clusters": [{"name": "audit", "cluster": {"server": format!("http://127.0.0.1:{}", self.port)}}],
            "contexts": [{"name": "audit", "context": {"cluster": "audit", "user": ""}}],
        });
        Extras {
            files: vec![("audit-policy", policy.to_string()), ("audit-receiver", receiver.to_string())],
            users: users.to_vec(),
            apiserver_flags: vec![
                "--audit-policy-file=audit-policy",
                "--audit-webhook-config-file=audit-receiver",
                "--audit-webhook-batch-max-wait=1s",
                "--audit-webhook-batch-buffer-size=200000",
                "--audit-webhook-batch-throttle-enable=false",
            ],
            controller_flags: vec![
                "--kube-api-qps=5000",
                "--kube-api-burst=5000",
                "--concurrent-deployment-syncs=32",
                "--concurrent-replicaset-syncs=32",
                "--concurrent-service-endpoint-syncs=32",
            ],
            ..Extras::default()
        }
    }

    /// What `user` asked for; complete once [`AUDIT_DELAY`] has passed.
    pub fn between(&self, user: &str, since: Timestamp, until: Timestamp) -> Requests {
        let seen = self.seen.lock();
        let mut requests = Requests::default();
        let within = seen.requests.iter().filter(|(at, _)| (since..until).contains(at));
        for kind in within.map(|(_, number)| &seen.kinds[*number]).filter(|kind| kind.user == user) {
            match (kind.verb.as_str(), kind.resource.as_str()) {
                ("watch", _) => requests.watches += 1,
                (_, "leases") => requests.leases += 1,
                (verb, resource) => *requests.by_kind.entry(format!("{verb} {resource}")).or_default() += 1,
            }
        }
        requests
    }
}

/// A watch is counted when it begins, everything else when it ends.
async fn receive(State(audit): State<Audit>, body: Bytes) {
    let list: EventList = serde_json::from_slice(&body).expect("a list of audit events");
    let mut seen = audit.seen.lock();
    for event in list.items {
        let counted = if event.verb == "watch" { "ResponseStarted" } else { "ResponseComplete" };
        if event.stage != counted {
            continue;
        }
        let resource = match event.object_ref {
            Some(ObjectRef { resource: Some(resource), subresource: Some(sub) }) => {
                format!("{resource}/{sub}")
            }
            Some(ObjectRef { resource: Some(resource), subresource: None }) => resource,
            _ => event.request_uri,
        };
        let kind = Kind { user: event.user.username, verb: event.verb, resource };
        let known = seen.numbers.get(&kind).copied();
        let number = known.unwrap_or_else(|| {
            let number = seen.kinds.len();
            seen.kinds.push(kind.clone());
            seen.numbers.insert(kind, number);
            number
        });
        seen.requests.push((event.request_received_timestamp, number));
    }
}
