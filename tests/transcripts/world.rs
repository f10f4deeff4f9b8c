//! A server with Canaries in chosen states and no controller, so that each screen is the
//! same in every run.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use jiff::{SignedDuration, Timestamp};
use kube::Client;
use kube::api::{Api, DynamicObject, Patch, PatchParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube_local::access::{Grant, Identity};
use kube_local::serve::ApiServerHandle;
use kube_local::{ApiServer, Options};
use regex::Regex;
use serde_json::{Value, json};

#[allow(dead_code)]
#[path = "../support/child.rs"]
mod child;
use child::Folder;

pub struct World {
    folder: Folder,
    client: Client,
    _server: ApiServerHandle,
}

impl World {
    pub async fn new() -> Self {
        let folder = Folder::new("transcripts");
        let guest = Identity { user: "guest".to_owned(), groups: vec!["system:authenticated".to_owned()] };
        let server = ApiServer::new(Options {
            clock: Some(serin::clock::Clock::system()),
            users: vec![("guests-token".to_owned(), guest)],
            grants: vec![
                may_ask("authorization.k8s.io", "selfsubjectaccessreviews"),
                may_ask("authentication.k8s.io", "selfsubjectreviews"),
            ],
            ..Options::default()
        });
        let address: SocketAddr = "127.0.0.1:0".parse().expect("an address");
        let serving = server.serve(address).await.expect("it listens");
        let admin = serving.kubeconfig();
        let write = |name: &str, text: &str| std::fs::write(folder.join(name), text).expect("written");
        write("admin", &admin);
        let token = Regex::new("token: .*").expect("a pattern");
        write("guest", &token.replace(&admin, "token: guests-token"));
        write("stranger", &token.replace(&admin, "token: nobodys-token"));
        // Nobody listens at the port of a listener that is gone.
        let closed = std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("it");
        write("down", &admin.replace(&serving.address.to_string(), &closed.to_string()));
        write("broken", "clusters: [");
        write("good.yaml", include_str!("good.yaml"));
        write(
            "bad.yaml",
            &include_str!("good.yaml").replace("min: 99", "min: 0.99").replace("port: 80", "prot: 80"),
        );
        write("flagger.yaml", include_str!("flagger.yaml"));
        let world = Self { folder, client: server.client(), _server: serving };
        world.fill().await;
        world
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// `admin`, `guest` without rights, `stranger` whom the server does not know, `down`
    /// where nobody listens, `broken` and `none`.
    pub fn kubeconfig(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Without times, ports, tokens and folders of this run; escape codes made visible.
    pub fn normalised(&self, shown: &str) -> String {
        let folder = self.folder.path().display().to_string();
        let mut text = shown.replace(&folder, "FOLDER").replace('\x1b', "␛");
        for (pattern, by) in [
            // How often it is drawn depends on the machine.
            (r"(\r?[█░]+ +\d+ of \d+ releases *)+", "[progress]"),
            (r"127\.0\.0\.1:\d{4,5}", "127.0.0.1:PORT"),
            (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", "TIME"),
            (r"\d\d:\d\d:\d\d UTC", "CLOCK"),
            (r"\b\d+ s ago", "N s ago"),
            (r"in \d+ s\b", "in N s"),
            (r"since \d+ s\b", "since N s"),
            (r"(resourceVersion: |resourceVersion.: .)\d+", "${1}N"),
            (r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "UID"),
        ] {
            text = Regex::new(pattern).expect("a pattern").replace_all(&text, by).into_owned();
        }
        let lines = text.lines().map(|line| line.trim_end().to_owned() + "\n");
        // Completion scripts and man pages are long and not for reading.
        const MAX_LINES: usize = 150;
        let mut lines: Vec<String> = lines.collect();
        if lines.len() > MAX_LINES {
            lines.truncate(MAX_LINES);
            lines.push("[more]\n".to_owned());
        }
        lines.concat()
    }

    /// The state before a command that changes something.
    pub async fn reset(&self) {
        let canaries = self.api("serin.dev/v1alpha1", "Canary", Some("default"));
        let without = Patch::Merge(json!({ "metadata": { "annotations": null } }));
        canaries.patch("web", &PatchParams::default(), &without).await.expect("reset");
        self.canaries().await;
    }

    async fn fill(&self) {
        for crd in serin::api::crds() {
            self.apply(
                "apiextensions.k8s.io/v1",
                "CustomResourceDefinition",
                None,
                serde_json::to_value(crd).expect("JSON"),
            )
            .await;
        }
        for (name, image) in [("web", "web:v2"), ("web-primary", "web:v1")] {
            let spec = json!({
                "replicas": 2, "selector": { "matchLabels": { "app": name } },
                "template": {
                    "metadata": { "labels": { "app": name } },
                    "spec": { "containers": [{ "name": "web", "image": format!("registry.example.com/team/{image}") }] },
                },
            });
            self.apply(
                "apps/v1",
                "Deployment",
                Some("default"),
                json!({ "metadata": { "name": name }, "spec": spec }),
            )
            .await;
        }
        let pod = json!({
            "metadata": { "name": "web-5d8f7-x2x4k", "labels": { "app": "web" } },
            "spec": { "containers": [{ "name": "web", "image": "registry.example.com/team/web:v2" }] },
        });
        self.apply("v1", "Pod", Some("default"), pod).await;
        let crashed = json!({ "containerStatuses": [{
            "name": "web", "ready": false, "restartCount": 3, "image": "web:v2", "imageID": "", "containerID": "x://1",
            "state": { "waiting": { "reason": "CrashLoopBackOff", "message": "back-off 40s" } },
            "lastState": { "terminated": { "exitCode": 137, "reason": "OOMKilled" } },
        }] });
        self.status("v1", "Pod", "web-5d8f7-x2x4k", crashed).await;
        self.canaries().await;
        let event = json!({
            "metadata": { "name": "web.1" }, "type": "Warning", "reason": "CheckFailed", "message": "Check failed, 1 of 3 that roll back: errors.",
            "involvedObject": { "apiVersion": "serin.dev/v1alpha1", "kind": "Canary", "namespace": "default", "name": "web" },
            "firstTimestamp": ago(240), "lastTimestamp": ago(240),
        });
        self.apply("v1", "Event", Some("default"), event).await;
    }

    async fn canaries(&self) {
        for (name, provider) in [("web", "linkerd"), ("api", "nginx")] {
            let spec = json!({
                "provider": provider,
                "targetRef": { "apiVersion": "apps/v1", "kind": "Deployment", "name": name },
                "service": { "port": 80 },
                "analysis": { "interval": "30s", "stepWeights": [5, 25, 50] },
            });
            let metadata = json!({ "name": name });
            self.apply(
                "serin.dev/v1alpha1",
                "Canary",
                Some("default"),
                json!({ "metadata": metadata, "spec": spec }),
            )
            .await;
        }
        let refused = "The Canary is invalid: spec.provider nginx is not supported.";
        let condition = |of: &str, status: &str, reason: &str, message: &str| json!({ "type": of, "status": status, "reason": reason, "message": message });
        let stalled = [
            condition("Ready", "False", "InvalidSpec", refused),
            condition("Stalled", "True", "InvalidSpec", refused),
        ];
        self.status(
            "serin.dev/v1alpha1",
            "Canary",
            "api",
            json!({
                "phase": "Initializing", "state": "Refused", "message": refused, "conditions": stalled,
            }),
        )
        .await;
        let waits = "Step 25 %: waiting for approval.";
        self.status("serin.dev/v1alpha1", "Canary", "web", json!({
            "phase": "Progressing", "state": "AwaitingApproval", "image": "web:v1 → v2", "message": waits,
            "canaryWeight": 25, "releases": 3,
            "step": { "index": 1, "total": 3, "progress": "2/3", "startedAt": ago(300) },
            "revisions": {
                "primary": "v1-1", "candidate": "v1-2", "seen": "v1-2",
                "names": { "v1-1": "web:v1", "v1-2": "web:v2" },
            },
            "release": { "revision": "v1-2", "trigger": "PodTemplate", "startedAt": ago(600), "lastProgressAt": ago(300) },
            "metrics": [
                { "name": "request-success-rate", "verdict": "Pass", "reason": "canary 0 % errors (0 of 900) vs primary 0.1 % (4 of 3,600)", "at": ago(30) },
                { "name": "request-duration", "verdict": "Inconclusive", "reason": "too few requests to tell", "at": ago(30) },
            ],
            "gates": [{ "name": "25 %", "step": 1, "state": "Waiting", "since": ago(240) }],
            "history": [
                { "revision": "v1-1", "outcome": "Promoted", "reason": "", "highestWeight": 50, "startedAt": ago(90_000), "finishedAt": ago(86_400) },
                { "revision": "v1-0", "outcome": "RolledBack", "reason": "2 checks failed, the last one errors", "highestWeight": 5, "startedAt": ago(180_600), "finishedAt": ago(180_000) },
            ],
            "conditions": [condition("Ready", "False", "AwaitingApproval", waits), condition("Reconciling", "True", "AwaitingApproval", waits)],
        }))
        .await;
    }

    async fn apply(&self, api_version: &str, kind: &str, namespace: Option<&str>, mut object: Value) {
        (object["apiVersion"], object["kind"]) = (json!(api_version), json!(kind));
        let name = object["metadata"]["name"].as_str().expect("a name").to_owned();
        let params = PatchParams::apply("transcripts").force();
        self.api(api_version, kind, namespace)
            .patch(&name, &params, &Patch::Apply(&object))
            .await
            .expect("applied");
    }

    async fn status(&self, api_version: &str, kind: &str, name: &str, status: Value) {
        let api = self.api(api_version, kind, Some("default"));
        let patch = Patch::Merge(json!({ "status": status }));
        api.patch_status(name, &PatchParams::default(), &patch).await.expect("a status");
    }

    fn api(&self, api_version: &str, kind: &str, namespace: Option<&str>) -> Api<DynamicObject> {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        match namespace {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, &resource),
            None => Api::all_with(self.client.clone(), &resource),
        }
    }
}

/// As everybody may on a real server.
fn may_ask(group: &str, resource: &str) -> Grant {
    Grant {
        subject: "guest".to_owned(),
        verb: "create".to_owned(),
        group: group.to_owned(),
        resource: resource.to_owned(),
        namespace: String::new(),
    }
}

fn ago(seconds: i64) -> String {
    (Timestamp::now() - SignedDuration::from_secs(seconds)).to_string()
}
