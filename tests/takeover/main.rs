//! `serin migrate --live` with the real Flagger on a real API server: ten Canaries are taken
//! over, given back, and taken over again with one in the middle of its release. No weight
//! moves, no pod of a primary restarts and no release starts; then Serin releases.
//!
//! Run by `make test-migrate`: Flagger takes minutes to build.

#[path = "../support/mod.rs"]
mod support;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Output;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use k8s_openapi::api::apps::v1::Deployment;
use kube::Client;
use kube::ResourceExt as _;
use kube::api::{
    Api, ApiResource, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams,
};
use kube_local::node::address::Network;
use serde_json::{Value, json};
use support::{Child, Cluster, Folder, Part, definitions, eventually};

const PROGRAM: &str = env!("CARGO_BIN_EXE_serin");
const COUNT: usize = 10;
/// The one that is taken over in the middle of its release.
const RELEASING: &str = "web-3";
const PATIENCE: Duration = Duration::from_secs(240);

fn kind(group: &str, version: &str, kind: &str) -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind))
}

struct World {
    cluster: &'static Cluster,
    client: Client,
    namespace: String,
    folder: Folder,
}

impl World {
    async fn new() -> Self {
        let cluster = support::real().await;
        let client = cluster.client().await;
        support::node::run(cluster, Network::Private);
        definitions::install(&client, definitions::ours()).await;
        definitions::install(&client, [definitions::shipped(Part::Osm, "smi_traffic_split.yaml")]).await;
        let theirs = support::program(Part::Flagger, "artifacts/flagger/crd.yaml").expect("its definitions");
        let kubectl = support::program(Part::Kubernetes, "kubectl").expect("kubectl");
        for arguments in [
            vec!["apply", "--server-side", "--filename", theirs.to_str().expect("a path")],
            vec!["wait", "--for=condition=Established", "--timeout=60s", "crds", "--all"],
        ] {
            let mut command = std::process::Command::new(&kubectl);
            let output = command.args(&arguments).env("KUBECONFIG", cluster.kubeconfig()).output();
            let output = output.expect("kubectl runs");
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        }
        let namespace = cluster.namespace("takeover").await;
        Self { cluster, client, namespace, folder: Folder::new("takeover") }
    }

    fn api(&self, resource: &ApiResource) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), &self.namespace, resource)
    }

    async fn create(&self, resource: &ApiResource, object: Value) {
        let object: DynamicObject = serde_json::from_value(object).expect("an object");
        self.api(resource).create(&PostParams::default(), &object).await.expect("a new object");
    }

    async fn deployment(&self, name: &str, image: &str, arguments: &[&str]) {
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
        self.create(&kind("apps", "v1", "Deployment"), object).await;
    }

    async fn push(&self, name: &str, image: &str) {
        let patch = json!({ "spec": { "template": { "spec": { "containers": [{ "name": "app", "image": image }] } } } });
        let api: Api<Deployment> = Api::namespaced(self.client.clone(), &self.namespace);
        api.patch(name, &PatchParams::default(), &Patch::Strategic(patch)).await.expect("a push");
    }

    async fn list(&self, resource: &ApiResource) -> Vec<DynamicObject> {
        self.api(resource).list(&ListParams::default()).await.expect("a list").items
    }

    /// Phase and weight of each Canary of a group.
    async fn phases(&self, group: &str, version: &str) -> BTreeMap<String, (String, f64)> {
        let all = self.list(&kind(group, version, "Canary")).await;
        let one = |canary: DynamicObject| {
            let status = &canary.data["status"];
            let weight = status["canaryWeight"].as_f64().unwrap_or_default();
            (canary.name_any(), (status["phase"].as_str().unwrap_or_default().to_owned(), weight))
        };
        all.into_iter().map(one).collect()
    }

    async fn theirs(&self) -> BTreeMap<String, (String, f64)> {
        self.phases("flagger.app", "v1beta1").await
    }

    async fn ours(&self) -> BTreeMap<String, (String, f64)> {
        self.phases("serin.dev", "v1alpha1").await
    }

    /// Pod templates of the primaries.
    async fn primaries(&self) -> BTreeMap<String, Value> {
        let all = self.list(&kind("apps", "v1", "Deployment")).await;
        let primaries = all.into_iter().filter(|one| one.name_any().ends_with("-primary"));
        primaries.map(|one| (one.name_any(), one.data["spec"]["template"].clone())).collect()
    }

    fn start_flagger(&self) -> Child {
        let program = support::program(Part::FlaggerController, "flagger").expect("Flagger");
        let arguments = [
            format!("-kubeconfig={}", self.cluster.kubeconfig().display()),
            format!("-namespace={}", self.namespace),
            "-mesh-provider=smi:v1alpha2".to_owned(),
            "-metrics-server=http://127.0.0.1:9".to_owned(),
            format!("-port={}", support::free_port()),
        ];
        Child::start(self.folder.path(), &program, arguments)
    }

    async fn serin(&self, arguments: &[&str]) -> Output {
        let mut command = tokio::process::Command::new(PROGRAM);
        command.args(arguments).args(["-n", &self.namespace]).env("KUBECONFIG", self.cluster.kubeconfig());
        let output =
            tokio::time::timeout(PATIENCE, command.output()).await.expect("it ends").expect("it runs");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{arguments:?}: {said}");
        output
    }

    /// Runs `--live`; Flagger's process ends when its Deployment is scaled to zero.
    async fn take_over(&self, flagger: Child) -> String {
        let api: Api<Deployment> = Api::namespaced(self.client.clone(), &self.namespace);
        let ends = tokio::spawn(async move {
            loop {
                let live = api.get("flagger").await.expect("Flagger's Deployment");
                if live.spec.and_then(|spec| spec.replicas) == Some(0) {
                    drop(flagger);
                    return;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
        let output = self.serin(&["migrate", "--live"]).await;
        ends.await.expect("Flagger ended");
        String::from_utf8(output.stdout).expect("text")
    }
}

/// The canary's share in each TrafficSplit, whenever it changed.
#[derive(Clone, Default)]
struct Shares(Arc<Mutex<BTreeMap<String, Vec<f64>>>>);

impl Shares {
    fn follow(&self, splits: Api<DynamicObject>) -> tokio::task::JoinHandle<()> {
        let shares = self.clone();
        tokio::spawn(async move {
            loop {
                let list =
                    splits.list(&ListParams::default()).await.map(|list| list.items).unwrap_or_default();
                for split in list {
                    let share = share(&split);
                    let mut all = shares.0.lock().expect("a lock");
                    let one = all.entry(split.name_any()).or_default();
                    if one.last() != Some(&share) {
                        one.push(share);
                    }
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        })
    }

    fn clear(&self) {
        self.0.lock().expect("a lock").clear();
    }

    fn all(&self) -> BTreeMap<String, Vec<f64>> {
        self.0.lock().expect("a lock").clone()
    }
}

/// In percent.
fn share(split: &DynamicObject) -> f64 {
    let backends = split.data["spec"]["backends"].as_array().cloned().unwrap_or_default();
    let weight = |one: &Value| one["weight"].as_f64().or(one["weight"].as_str().and_then(|w| w.parse().ok()));
    let of = |end: &str| -> f64 {
        let mine =
            backends.iter().filter(|one| one["service"].as_str().is_some_and(|name| name.ends_with(end)));
        mine.filter_map(weight).sum()
    };
    let (canary, primary) = (of("-canary"), of("-primary"));
    (100.0 * canary / (canary + primary)).round()
}

#[tokio::test(flavor = "multi_thread")]
async fn canaries_of_flagger_are_taken_over_without_a_weight_that_moves() {
    let world = World::new().await;
    world.deployment("flagger", "flagger:v1", &["-mesh-provider=smi:v1alpha2"]).await;
    let names: Vec<String> = (0..COUNT).map(|index| format!("web-{index}")).collect();
    for name in &names {
        world.deployment(name, "app:v1", &[]).await;
        let canary = json!({
            "apiVersion": "flagger.app/v1beta1", "kind": "Canary", "metadata": { "name": name },
            "spec": {
                "targetRef": { "apiVersion": "apps/v1", "kind": "Deployment", "name": name },
                "progressDeadlineSeconds": 600,
                "service": { "port": 80, "targetPort": 8080 },
                "analysis": { "interval": "10s", "threshold": 5, "maxWeight": 50, "stepWeight": 10 },
            },
        });
        world.create(&kind("flagger.app", "v1beta1", "Canary"), canary).await;
    }
    let flagger = world.start_flagger();
    let all_are = |phases: &BTreeMap<String, (String, f64)>, wanted: &[&str]| {
        phases.len() == COUNT && phases.values().all(|(phase, _)| wanted.contains(&phase.as_str()))
    };
    eventually("Flagger initializes", PATIENCE, async || all_are(&world.theirs().await, &["Initialized"]))
        .await;

    let arguments = [
        "run".to_owned(),
        format!("--kubeconfig={}", world.cluster.kubeconfig().display()),
        format!("--namespaces={}", world.namespace),
    ];
    let serin = Child::start(world.folder.path(), Path::new(PROGRAM), &arguments);
    let shares = Shares::default();
    let splits = kind("split.smi-spec.io", "v1alpha2", "TrafficSplit");
    let _following = shares.follow(world.api(&splits));
    let before = world.primaries().await;
    assert_eq!(before.len(), COUNT);

    // A dry run shows each write and does none.
    let shown = world.serin(&["migrate", "--live", "--dry-run"]).await;
    let shown = String::from_utf8(shown.stdout).expect("text");
    assert!(
        shown.starts_with(&format!("scale Deployment {}/flagger from 1 to 0\n", world.namespace)),
        "{shown}"
    );
    assert_eq!(shown.matches("create Canary").count(), COUNT, "{shown}");
    assert!(world.ours().await.is_empty());
    assert!(all_are(&world.theirs().await, &["Initialized"]));

    // Taken over, and given back.
    let done = world.take_over(flagger).await;
    let writes = |text: &str| text.lines().filter(|line| !line.starts_with('#')).count();
    assert_eq!(writes(&done), writes(&shown), "{done}");
    let idle = ["Initialized", "Succeeded"];
    eventually("Serin has them", PATIENCE, async || all_are(&world.ours().await, &idle)).await;
    let owned = world.list(&splits).await.iter().all(|split| {
        split.owner_references().iter().all(|owner| owner.api_version.starts_with("serin.dev/"))
    });
    assert!(owned, "each route is Serin's");
    world.serin(&["migrate", "--undo"]).await;
    assert!(world.ours().await.is_empty());
    assert_eq!(world.primaries().await, before, "no primary was touched");
    assert!(shares.all().values().all(|seen| *seen == [0.0]), "{:?}", shares.all());

    // Again, one in the middle of its release.
    let flagger = world.start_flagger();
    world.push(RELEASING, "app:v2").await;
    let at_twenty = |phases: BTreeMap<String, (String, f64)>| {
        phases.get(RELEASING).is_some_and(|(phase, weight)| phase == "Progressing" && *weight >= 20.0)
    };
    eventually("Flagger releases", PATIENCE, async || at_twenty(world.theirs().await)).await;
    world.take_over(flagger).await;
    let (_, reached) = world.theirs().await[RELEASING].clone();
    shares.clear();
    eventually("Serin goes on", PATIENCE, async || {
        let ours = world.ours().await;
        ours.len() == COUNT && ours[RELEASING].0 == "Succeeded"
    })
    .await;
    let mut seen = shares.all();
    // What is followed may be a moment late.
    for split in world.list(&splits).await {
        let seen = seen.get_mut(&split.name_any()).expect("a route that is followed");
        seen.push(share(&split));
        seen.dedup();
    }
    for name in &names {
        let seen = &seen[name];
        match name == RELEASING {
            false => assert_eq!(*seen, [0.0], "{name}"),
            true => {
                let rising = seen.iter().take_while(|share| **share > 0.0);
                let rising: Vec<f64> = rising.copied().collect();
                assert_eq!(rising.first(), Some(&reached), "{seen:?}");
                assert!(rising.is_sorted() && seen.ends_with(&[0.0]), "{seen:?}");
            }
        }
    }
    let after = world.primaries().await;
    for (name, template) in &before {
        let promoted = *name == format!("{RELEASING}-primary");
        assert_eq!(after[name] != *template, promoted, "{name}");
    }
    let releases = |canary: &DynamicObject| canary.data["status"]["releases"].as_u64().unwrap_or_default();
    let ours = world.list(&kind("serin.dev", "v1alpha1", "Canary")).await;
    for canary in &ours {
        let expected = u64::from(canary.name_any() == RELEASING);
        assert_eq!(releases(canary), expected, "{}", canary.name_any());
    }

    // A new revision is Serin's to release, and Flagger's Canaries may go.
    world.push("web-0", "app:v2").await;
    eventually("Serin releases", PATIENCE, async || {
        let ours = world.list(&kind("serin.dev", "v1alpha1", "Canary")).await;
        let released = |one: &DynamicObject| one.name_any() == "web-0" && releases(one) == 1;
        ours.iter().any(|one| released(one) && one.data["status"]["phase"] == "Succeeded")
    })
    .await;

    // Or they stay, and are what Serin follows.
    drop(serin);
    let adopting = arguments.iter().map(String::as_str).chain(["--adopt-flagger"]);
    let _serin = Child::start(world.folder.path(), Path::new(PROGRAM), adopting);
    shares.clear();
    eventually("Serin follows Flagger's Canaries", PATIENCE, async || {
        let ours = world.list(&kind("serin.dev", "v1alpha1", "Canary")).await;
        let followed = ours.iter().all(|one| {
            let spec = &one.data["spec"];
            assert_eq!((&spec["provider"], &spec["suspend"]), (&json!("smi:v1alpha2"), &json!(false)));
            one.owner_references().iter().any(|owner| owner.api_version.starts_with("flagger.app/"))
        });
        followed && world.theirs().await == world.ours().await
    })
    .await;
    world.push("web-1", "app:v2").await;
    eventually("Flagger's Canary shows the release", PATIENCE, async || {
        world.theirs().await["web-1"].0 == "Progressing"
    })
    .await;
    eventually("and its end", PATIENCE, async || world.theirs().await["web-1"].0 == "Succeeded").await;
    let moved = shares.all().into_iter().filter(|(_, seen)| *seen != [0.0]);
    let moved: Vec<String> = moved.map(|(name, _)| name).collect();
    assert_eq!(moved, ["web-1"]);

    world.serin(&["migrate", "--finish"]).await;
    eventually("Flagger's Canaries are gone", PATIENCE, async || world.theirs().await.is_empty()).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(world.primaries().await.len(), COUNT, "the garbage collector left them");
    assert_eq!(world.list(&splits).await.len(), COUNT);
}
