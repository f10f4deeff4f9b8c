//! `serin run --adopt-flagger`: manifests of Flagger, applied as they are and released by
//! Serin, on both servers, with Flagger's own definitions.

#[path = "../support/mod.rs"]
mod support;

use std::path::Path;
use std::time::Duration;

use kube::ResourceExt as _;
use kube::api::{
    Api, ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams,
    PostParams,
};
use kube::{Client, core::ObjectList};
use kube_local::node::address::Network;
use serde_json::{Value, json};
use support::chart::Kubectl;
use support::{Child, Cluster, Folder, Part, definitions, eventually};
use tokio::sync::OnceCell;

const PROGRAM: &str = env!("CARGO_BIN_EXE_serin");
/// Two cores shared with a build are slow.
const PATIENCE: Duration = Duration::from_secs(240);

macro_rules! laws {
    ($($server:ident: $($law:ident)*;)*) => {
        $(mod $server {
            static FURNISHED: crate::OnceCell<()> = crate::OnceCell::const_new();

            $(#[tokio::test(flavor = "multi_thread")]
            async fn $law() {
                let cluster = crate::support::$server().await;
                crate::$law(crate::World::new(cluster, &FURNISHED).await).await
            })*
        })*
    };
}

laws! {
    real:
        a_manifest_of_flagger_is_released_and_shows_flaggers_phases
        an_edit_is_followed_and_a_deletion_too
        no_canary_is_served_while_a_flagger_runs
        a_refusal_is_on_the_object_of_flagger;
    local:
        a_manifest_of_flagger_is_released_and_shows_flaggers_phases
        an_edit_is_followed_and_a_deletion_too
        no_canary_is_served_while_a_flagger_runs
        a_refusal_is_on_the_object_of_flagger;
}

struct World {
    cluster: &'static Cluster,
    client: Client,
    namespace: String,
    _folder: Folder,
    _serin: Child,
}

impl World {
    async fn new(cluster: &'static Cluster, furnished: &'static OnceCell<()>) -> Self {
        let client = cluster.client().await;
        furnished
            .get_or_init(async || {
                support::node::run(cluster, Network::Private);
                let split = definitions::shipped(Part::Osm, "smi_traffic_split.yaml");
                definitions::install(&client, definitions::ours().into_iter().chain([split])).await;
                let theirs = Part::Flagger.folder().join("artifacts/flagger/crd.yaml");
                let kubectl = Kubectl::admin(cluster);
                kubectl.apply(&std::fs::read_to_string(theirs).expect("Flagger's definitions")).await;
                kubectl.run(&["wait", "--for=condition=Established", "crds", "--all"], "").await.ok();
            })
            .await;
        let namespace = cluster.namespace("adoption").await;
        let folder = Folder::new("adoption");
        let arguments = [
            "run".to_owned(),
            "--adopt-flagger".to_owned(),
            format!("--kubeconfig={}", cluster.kubeconfig().display()),
            format!("--namespaces={namespace}"),
        ];
        let serin = Child::start(folder.path(), Path::new(PROGRAM), &arguments);
        Self { cluster, client, namespace, _folder: folder, _serin: serin }
    }

    fn api(&self, (group, version, kind): (&str, &str, &str)) -> Api<DynamicObject> {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        Api::namespaced_with(self.client.clone(), &self.namespace, &resource)
    }

    async fn create(&self, kind: (&str, &str, &str), object: Value) {
        let object: DynamicObject = serde_json::from_value(object).expect("an object");
        self.api(kind).create(&PostParams::default(), &object).await.expect("a new object");
    }

    async fn patch(&self, kind: (&str, &str, &str), name: &str, patch: Value) {
        self.api(kind).patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.expect("a patch");
    }

    /// The object without its metadata; null if there is none.
    async fn get(&self, kind: (&str, &str, &str), name: &str) -> Value {
        self.api(kind).get_opt(name).await.expect("a read").map_or(Value::Null, |found| found.data)
    }

    async fn deployment(&self, name: &str, image: &str, arguments: &[String]) {
        let object = json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": { "name": name, "labels": { "app.kubernetes.io/name": name } },
            "spec": {
                "replicas": 1,
                "selector": { "matchLabels": { "app": name } },
                "template": {
                    "metadata": { "labels": { "app": name } },
                    "spec": { "containers": [{
                        "name": "app", "image": image, "args": arguments,
                        "ports": [{ "name": "http", "containerPort": 8080 }],
                    }] },
                },
            },
        });
        self.create(DEPLOYMENT, object).await;
    }

    /// A Canary of Flagger for the Deployment `web`.
    async fn canary(&self, more: Value) {
        let mut canary = json!({
            "apiVersion": "flagger.app/v1beta1", "kind": "Canary", "metadata": { "name": "web" },
            "spec": {
                "provider": "smi:v1alpha2",
                "targetRef": { "apiVersion": "apps/v1", "kind": "Deployment", "name": "web" },
                "progressDeadlineSeconds": 600,
                "service": { "port": 80, "targetPort": 8080 },
                "analysis": { "interval": "2s", "threshold": 5, "maxWeight": 40, "stepWeight": 20 },
            },
        });
        json_patch::merge(&mut canary, &more);
        self.create(THEIRS, canary).await;
    }

    async fn phase(&self) -> String {
        self.get(THEIRS, "web").await["status"]["phase"].as_str().unwrap_or_default().to_owned()
    }

    async fn initialized(&self) {
        self.deployment("web", "app:v1", &[]).await;
        self.canary(json!({})).await;
        eventually("it is initialized", PATIENCE, async || self.phase().await == "Initialized").await;
    }

    async fn push(&self, image: &str) {
        let containers = json!([{ "name": "app", "image": image }]);
        let patch =
            Patch::Strategic(json!({ "spec": { "template": { "spec": { "containers": containers } } } }));
        self.api(DEPLOYMENT).patch("web", &PatchParams::default(), &patch).await.expect("a push");
    }

    /// Of one kind of Flagger's, `reason: message`.
    async fn events(&self, kind: &str) -> Vec<String> {
        let events: ObjectList<DynamicObject> =
            self.api(("", "v1", "Event")).list(&ListParams::default()).await.expect("events");
        let about = |event: &&DynamicObject| {
            let about = &event.data["involvedObject"];
            about["apiVersion"] == "flagger.app/v1beta1" && about["kind"] == kind
        };
        let text = |event: &DynamicObject| {
            let [reason, message] =
                ["reason", "message"].map(|field| event.data[field].as_str().unwrap_or_default());
            format!("{reason}: {message}")
        };
        events.items.iter().filter(about).map(text).collect()
    }

    async fn has_event(&self, kind: &str, words: &str) {
        eventually(words, PATIENCE, async || self.events(kind).await.iter().any(|text| text.contains(words)))
            .await;
    }

    fn condition(status: &Value, type_: &str) -> Value {
        let all = status["conditions"].as_array().cloned().unwrap_or_default();
        all.into_iter().find(|one| one["type"] == type_).unwrap_or_default()
    }
}

const DEPLOYMENT: (&str, &str, &str) = ("apps", "v1", "Deployment");
const THEIRS: (&str, &str, &str) = ("flagger.app", "v1beta1", "Canary");
const OURS: (&str, &str, &str) = ("serin.dev", "v1alpha1", "Canary");

async fn a_manifest_of_flagger_is_released_and_shows_flaggers_phases(world: World) {
    world.initialized().await;
    let before = world.get(THEIRS, "web").await["spec"].clone();
    world.push("app:v2").await;
    let mut seen: Vec<(String, u64)> = Vec::new();
    eventually("it is promoted", PATIENCE, async || {
        let status = world.get(THEIRS, "web").await["status"].take();
        let weight = status["canaryWeight"].as_u64().expect("a weight");
        let now = (status["phase"].as_str().expect("a phase").to_owned(), weight);
        if seen.last() != Some(&now) {
            seen.push(now);
        }
        status["phase"] == "Succeeded"
    })
    .await;
    for step in [("Progressing", 20), ("Progressing", 40), ("Succeeded", 0)] {
        let step = (step.0.to_owned(), step.1);
        assert!(seen.contains(&step), "{step:?} in {seen:?}");
    }
    let canary = world.get(THEIRS, "web").await;
    let promoted = World::condition(&canary["status"], "Promoted");
    assert_eq!((&promoted["status"], &promoted["reason"]), (&json!("True"), &json!("Succeeded")));
    assert_eq!(canary["spec"], before, "their spec is not edited");
    let image =
        &world.get(DEPLOYMENT, "web-primary").await["spec"]["template"]["spec"]["containers"][0]["image"];
    assert_eq!(image, "app:v2");
    world.has_event("Canary", "Promoted").await;

    let kubectl = Kubectl::admin(world.cluster);
    let table = kubectl.run(&["get", "canaries.flagger.app", "--namespace", &world.namespace], "").await.ok();
    assert!(table.contains("Succeeded") && table.contains("LASTTRANSITIONTIME"), "{table}");
}

async fn an_edit_is_followed_and_a_deletion_too(world: World) {
    world.initialized().await;
    let template = json!({
        "apiVersion": "flagger.app/v1beta1", "kind": "MetricTemplate", "metadata": { "name": "errors" },
        "spec": { "provider": { "type": "prometheus", "address": "http://prometheus:9090" }, "query": "up" },
    });
    world.create(("flagger.app", "v1beta1", "MetricTemplate"), template).await;
    let provider = json!({
        "apiVersion": "flagger.app/v1beta1", "kind": "AlertProvider", "metadata": { "name": "chat" },
        "spec": { "type": "slack", "address": "http://chat.example.com" },
    });
    world.create(("flagger.app", "v1beta1", "AlertProvider"), provider).await;
    for (kind, name) in [("AnalysisTemplate", "errors"), ("AlertProvider", "chat")] {
        let kind = ("serin.dev", "v1alpha1", kind);
        eventually("it has one of ours", PATIENCE, async || !world.get(kind, name).await.is_null()).await;
    }

    let analysis = json!({ "stepWeight": null, "maxWeight": null, "stepWeights": [10, 30], "threshold": 3 });
    world.patch(THEIRS, "web", json!({ "spec": { "analysis": analysis } })).await;
    eventually("the edit is followed", PATIENCE, async || {
        let analysis = world.get(OURS, "web").await["spec"]["analysis"].take();
        analysis["stepWeights"] == json!([10, 30])
            && analysis["stepWeight"].is_null()
            && analysis["threshold"] == 3
    })
    .await;
    // An edit of ours is set back.
    world.patch(OURS, "web", json!({ "spec": { "analysis": { "threshold": 9 } } })).await;
    eventually("ours follows again", PATIENCE, async || {
        world.get(OURS, "web").await["spec"]["analysis"]["threshold"] == 3
    })
    .await;

    world.api(THEIRS).delete("web", &DeleteParams::default()).await.expect("a deletion");
    eventually("ours goes with it", PATIENCE, async || world.get(OURS, "web").await.is_null()).await;
    eventually("the primary goes", PATIENCE, async || world.get(DEPLOYMENT, "web-primary").await.is_null())
        .await;
    assert_eq!(world.get(DEPLOYMENT, "web").await["spec"]["replicas"], 1, "the target serves again");
}

async fn no_canary_is_served_while_a_flagger_runs(world: World) {
    let scope = [format!("-namespace={}", world.namespace)];
    world.deployment("flagger", "flagger:v1", &scope).await;
    // Serin looks for one every ten seconds.
    tokio::time::sleep(Duration::from_secs(12)).await;
    world.deployment("web", "app:v1", &[]).await;
    world.canary(json!({})).await;
    world.has_event("Canary", "Flagger runs").await;
    let theirs = world.get(THEIRS, "web").await;
    assert!(world.get(OURS, "web").await.is_null() && theirs["status"].is_null(), "{theirs:#}");
    // One that Flagger has released.
    world.canary(json!({ "metadata": { "name": "old" } })).await;
    let status = Patch::Merge(json!({ "status": { "phase": "Succeeded", "lastAppliedSpec": "5454669676" } }));
    world.api(THEIRS).patch_status("old", &PatchParams::default(), &status).await.expect("a status");

    let scale = async |replicas: u32| {
        world.patch(DEPLOYMENT, "flagger", json!({ "spec": { "replicas": replicas } })).await;
    };
    scale(0).await;
    eventually("it is served", PATIENCE, async || world.phase().await == "Initialized").await;
    scale(1).await;
    eventually("ours is suspended", PATIENCE, async || {
        world.get(OURS, "web").await["spec"]["suspend"] == true
    })
    .await;
    // Nothing moves, whatever is pushed.
    world.push("app:v2").await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(world.phase().await, "Initialized");
    scale(0).await;
    eventually("it is released", PATIENCE, async || world.phase().await == "Succeeded").await;
    assert!(world.get(OURS, "old").await.is_null());
    world.has_event("Canary", "run serin migrate --live").await;
}

async fn a_refusal_is_on_the_object_of_flagger(world: World) {
    world.deployment("web", "app:v1", &[]).await;
    world.canary(json!({ "spec": { "provider": "nginx" } })).await;
    eventually("the refusal is in its status", PATIENCE, async || {
        let status = world.get(THEIRS, "web").await["status"].take();
        let stalled = World::condition(&status, "Stalled");
        stalled["status"] == "True" && stalled["message"].as_str().is_some_and(|why| why.contains("nginx"))
    })
    .await;
    world.has_event("Canary", "nginx").await;
    world.patch(THEIRS, "web", json!({ "spec": { "provider": "smi:v1alpha2" } })).await;
    eventually("it is served", PATIENCE, async || world.phase().await == "Initialized").await;
    let status = world.get(THEIRS, "web").await["status"].take();
    assert!(World::condition(&status, "Stalled").is_null(), "{status:#}");

    // What our definition refuses.
    let analysis = json!({ "stepWeight": null, "maxWeight": null, "stepWeights": [200] });
    world.patch(THEIRS, "web", json!({ "spec": { "analysis": analysis } })).await;
    world.has_event("Canary", "stepWeights").await;
    assert_eq!(world.get(OURS, "web").await["spec"]["analysis"]["stepWeight"], 20, "ours stays as it was");

    // Of a name that ours has already.
    let ours = json!({
        "apiVersion": "serin.dev/v1alpha1", "kind": "Canary", "metadata": { "name": "shop" },
        "spec": {
            "targetRef": { "apiVersion": "apps/v1", "kind": "Deployment", "name": "shop" },
            "service": { "port": 80 }, "analysis": { "interval": "1m", "threshold": 5, "stepWeight": 10 }, "suspend": true,
        },
    });
    world.create(OURS, ours.clone()).await;
    let mut theirs = ours;
    theirs["apiVersion"] = json!("flagger.app/v1beta1");
    world.create(THEIRS, theirs).await;
    world.has_event("Canary", "was not made from this object").await;
    let shop = world.api(OURS).get("shop").await.expect("ours");
    assert!(shop.owner_references().is_empty());
}
