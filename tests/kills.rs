//! `serin run`, killed by SIGKILL and restarted at random moments of a release;
//! one of two replicas; one whose connections die silently; and one that has more
//! watches than a connection carries.
//!
//! The controller is the real binary in a process of its own, on
//! `kube_local`'s API over TLS; pods have sockets, and it scrapes them there.
//! Watches follow every write, ordered by resourceVersion, so the state at each
//! moment is known exactly. A seed is printed with every run; `SEED=n` repeats
//! it, as far as real time allows.

mod support;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use futures::StreamExt as _;
use http::Request;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{Api, ApiResource, DynamicObject, ListParams, Patch, PatchParams};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{Config, Event, watcher};
use kube::{Client, ResourceExt as _};
use kube_local::mesh::Mesh;
use kube_local::seeded_rng::SeededRng;
use kube_local::serve::ApiServerHandle;
use kube_local::{ApiServer, Cluster};
use parking_lot::Mutex;
use serde_json::{Value, json};
use serin::api::canary::{CanaryStatus, Phase, status::Outcome};
use serin::api::{Canary, Weight};
use support::{Child, Folder, definitions, objects, spawn};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_util::task::AbortOnDropHandle;

/// Two cores shared with a build are slow; a release takes ten seconds.
const TIMEOUT: Duration = Duration::from_secs(240);

/// A cluster with `web`, its Canary, and requests to it.
struct World {
    client: Client,
    folder: Folder,
    observations: Arc<Mutex<Vec<Observation>>>,
    /// The number of observations.
    count: watch::Receiver<usize>,
    api_server: ApiServerHandle,
    _cluster: Cluster,
    _tasks: Vec<AbortOnDropHandle<()>>,
}

/// A change of an object, at its resourceVersion.
#[derive(Clone, Debug)]
struct Observation {
    version: u64,
    what: ObservedChange,
}

#[derive(Clone, Debug)]
enum ObservedChange {
    /// The canary's weight in the split.
    Weight(u64),
    /// How many pods of the canary are ready.
    Ready(u64),
    /// The primary's pod template.
    Template(Value),
    Status(Box<CanaryStatus>),
}

impl World {
    async fn new(seed: u64) -> Self {
        serin::tls::install_crypto_provider();
        let local = ApiServer::new(kube_local::Options { seed, ..Default::default() });
        let cluster = local.start_cluster(true);
        let serving = local.serve(([127, 0, 0, 1], 0).into()).await.expect("a server");
        let folder = Folder::new("kills");
        folder.write("kubeconfig", &serving.kubeconfig());
        let client = local.fault_exempt_client();
        definitions::install(&client, definitions::ours().into_iter().chain(definitions::smi())).await;

        let seen = Arc::<Mutex<Vec<Observation>>>::default();
        let (tell, count) = watch::channel(0);
        let follow = |kind: ApiResource, name: &'static str, read: fn(&Value) -> Vec<ObservedChange>| {
            let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), "default", &kind);
            let (seen, tell) = (Arc::clone(&seen), tell.clone());
            spawn(async move {
                let one = Config::default().fields(&format!("metadata.name={name}"));
                let mut events = std::pin::pin!(watcher(api, one).default_backoff());
                while let Some(event) = events.next().await {
                    if let Ok(Event::InitApply(object) | Event::Apply(object)) = event {
                        let version =
                            object.resource_version().expect("a version").parse().expect("a number");
                        let all = read(&serde_json::to_value(object).expect("JSON"));
                        seen.lock().extend(all.into_iter().map(|what| Observation { version, what }));
                        tell.send_modify(|count| *count += 1);
                    }
                }
            })
        };
        let deployments = ApiResource::erase::<k8s_openapi::api::apps::v1::Deployment>(&());
        let canaries = ApiResource::erase::<Canary>(&());
        let mesh = Mesh::new(client.clone(), splits(), None, cluster.node.clone(), seed);
        let tasks = vec![
            follow(splits(), "web", |split| {
                let backends = split["spec"]["backends"].as_array().into_iter().flatten();
                let canary = |backend: &&Value| backend["service"] == "web-canary";
                let weight = backends.filter(canary).filter_map(|canary| canary["weight"].as_u64());
                weight.map(ObservedChange::Weight).collect()
            }),
            follow(deployments.clone(), "web", |web| {
                vec![ObservedChange::Ready(web["status"]["readyReplicas"].as_u64().unwrap_or(0))]
            }),
            follow(deployments, "web-primary", |primary| {
                vec![ObservedChange::Template(primary["spec"]["template"].clone())]
            }),
            follow(canaries, "web", |canary| {
                let status = serde_json::from_value(canary["status"].clone());
                status.into_iter().map(|status| ObservedChange::Status(Box::new(status))).collect()
            }),
            spawn({
                let mesh = mesh.clone();
                async move { mesh.run().await }
            }),
            spawn(call(mesh)),
        ];
        let world = Self {
            client,
            folder,
            observations: seen,
            count,
            api_server: serving,
            _cluster: cluster,
            _tasks: tasks,
        };
        world.apply(objects::deployment("web", "web:v1")).await;
        world.apply(canary()).await;
        world
    }

    async fn apply(&self, manifest: Value) {
        let kind = match manifest["kind"].as_str() {
            Some("Canary") => ApiResource::erase::<Canary>(&()),
            _ => ApiResource::erase::<k8s_openapi::api::apps::v1::Deployment>(&()),
        };
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), "default", &kind);
        let params = PatchParams::apply("people");
        api.patch("web", &params, &Patch::Apply(&manifest)).await.expect("it is accepted");
    }

    async fn push(&self, image: &str) {
        let containers = json!([{"name": "web", "image": image}]);
        let patch = json!({"spec": {"template": {"spec": {"containers": containers}}}});
        let api: Api<k8s_openapi::api::apps::v1::Deployment> =
            Api::namespaced(self.client.clone(), "default");
        api.patch("web", &PatchParams::default(), &Patch::Strategic(patch)).await.expect("a push");
    }

    /// Starts the controller; dropped, it is killed.
    fn serin(&self, folder: &Path, arguments: &[&str]) -> Child {
        let kubeconfig = self.folder.join("kubeconfig").display().to_string();
        let all =
            ["run", "--namespaces=default", "--controller-namespace=default", "--kubeconfig", &kubeconfig];
        let all = all.iter().chain(arguments);
        Child::start(folder, Path::new(env!("CARGO_BIN_EXE_serin")), all)
    }

    fn status(&self) -> CanaryStatus {
        let seen = self.observations.lock();
        let status = |seen: &Observation| match &seen.what {
            ObservedChange::Status(status) => Some((**status).clone()),
            _ => None,
        };
        seen.iter().rev().find_map(status).unwrap_or_default()
    }

    /// Waits until the status satisfies the test.
    async fn becomes(
        &self,
        what: &str,
        serin: &Child,
        is_in_sync: impl Fn(&CanaryStatus) -> bool,
    ) -> CanaryStatus {
        let mut count = self.count.clone();
        let so = count.wait_for(|_| is_in_sync(&self.status()));
        let met = timeout(TIMEOUT, so).await.is_ok_and(|so| so.is_ok());
        assert!(met, "it never becomes {what}: {:#?}\n{}", self.status(), serin.tail());
        self.status()
    }

    /// Waits for this many writes, or until the status satisfies the test.
    async fn await_writes(&self, writes: usize, or: impl Fn(&CanaryStatus) -> bool) {
        let mut count = self.count.clone();
        let from = *count.borrow();
        let met = timeout(TIMEOUT, count.wait_for(|count| *count >= from + writes || or(&self.status())));
        assert!(met.await.is_ok(), "nothing happens any more: {:#?}", self.status());
    }

    /// The invariants of every moment, whichever process was killed when.
    async fn check(&self, images: &[&str], outcomes: &[Outcome]) {
        // The watches may be a moment behind each other.
        sleep(Duration::from_secs(1)).await;
        let mut seen = self.observations.lock().clone();
        seen.sort_by_key(|seen| seen.version);
        let (mut ready, mut weight, mut weights) = (0, 0, Vec::new());
        let mut templates: Vec<Value> = Vec::new();
        for Observation { version, what } in seen {
            match what {
                ObservedChange::Ready(now) => ready = now,
                ObservedChange::Weight(now) => {
                    weight = now;
                    weights.push(now);
                }
                ObservedChange::Template(now) if templates.last() != Some(&now) => templates.push(now),
                ObservedChange::Template(_) | ObservedChange::Status(_) => {}
            }
            assert!(weight == 0 || ready > 0, "version {version}: traffic to a canary without ready pods");
        }
        let promoted: Vec<&str> = templates
            .iter()
            .map(|template| template["spec"]["containers"][0]["image"].as_str().expect("an image"))
            .collect();
        assert_eq!(promoted, images, "the primary's template was changed once for each promotion");
        assert!(weights.contains(&50), "a release was judged to its end: {weights:?}");
        let status = self.status();
        let recorded: Vec<Outcome> = status.history.iter().rev().map(|past| past.outcome).collect();
        assert_eq!(recorded, outcomes);
        assert_eq!(status.releases as usize, outcomes.len(), "{status:#?}");
    }
}

fn is_over(status: &CanaryStatus, releases: usize) -> bool {
    status.releases as usize == releases
        && status.release.is_none()
        && matches!(status.phase, Phase::Succeeded | Phase::Failed)
}

/// Printed; `SEED` sets it.
fn seed() -> u64 {
    let given = std::env::var("SEED").ok().map(|seed| seed.parse().expect("SEED is a number"));
    let seed = given.unwrap_or_else(|| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        now.expect("a time after 1970").subsec_nanos().into()
    });
    println!("SEED={seed}");
    seed
}

/// Waits for a moment that the seed chooses: some writes later, and a little.
async fn await_random_moment(world: &World, chance: &SeededRng, releases: usize) {
    world.await_writes(1 + (chance.next_u64() % 8) as usize, |status| is_over(status, releases)).await;
    sleep(Duration::from_millis(chance.next_u64() % 40)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn twenty_kills_at_random_moments_change_no_outcome() {
    const KILLS: usize = 20;
    let seed = seed();
    let (world, chance) = (World::new(seed).await, SeededRng::seeded(seed));
    let mut serin = world.serin(world.folder.path(), &[]);
    world.becomes("initialized", &serin, |status| status.phase == Phase::Initialized).await;
    let (mut images, mut outcomes) = (vec!["web:v1".to_owned()], Vec::new());
    let mut kills = BTreeMap::<String, usize>::new();
    while kills.values().sum::<usize>() < KILLS || outcomes.len() < 3 {
        let number = outcomes.len() + 1;
        // The second one is bad, and every third after it.
        let (image, outcome) = match number % 3 {
            2 => (format!("web:v{}-errors-40", number + 1), Outcome::RolledBack),
            _ => (format!("web:v{}", number + 1), Outcome::Promoted),
        };
        world.push(&image).await;
        loop {
            await_random_moment(&world, &chance, number).await;
            let status = world.status();
            if is_over(&status, number) || kills.values().sum::<usize>() == KILLS {
                break;
            }
            drop(serin);
            *kills.entry(format!("{:?}", status.phase)).or_default() += 1;
            serin = world.serin(world.folder.path(), &[]);
        }
        let status = world.becomes("over", &serin, |status| is_over(status, number)).await;
        assert_eq!(status.history[0].outcome, outcome, "{image}: {status:#?}");
        outcomes.push(outcome);
        if outcome == Outcome::Promoted {
            images.push(image);
        }
    }
    println!("killed in {kills:?}");
    let images: Vec<&str> = images.iter().map(String::as_str).collect();
    world.check(&images, &outcomes).await;
}

/// One shard, so that one of them has the Canary.
async fn one_of_two_replicas_is_killed(seed: u64) {
    let (world, chance) = (World::new(seed).await, SeededRng::seeded(seed));
    let folders = [Folder::new("replica"), Folder::new("replica")];
    let arguments = |name: &'static str| ["--replicated", "--shards=1", "--identity", name];
    let mut replicas = BTreeMap::new();
    for (folder, name) in folders.iter().zip(["first", "second"]) {
        replicas.insert(name.to_owned(), world.serin(folder.path(), &arguments(name)));
    }
    let holder = async || {
        let leases: Api<Lease> = Api::namespaced(world.client.clone(), "default");
        let shards = leases.list(&ListParams::default().labels("serin.dev/shard")).await.expect("leases");
        let name = shards.items.into_iter().find_map(|shard| shard.spec?.holder_identity)?;
        Some(name.split('-').next()?.to_owned())
    };
    let one = &replicas["first"];
    world.becomes("initialized", one, |status| status.phase == Phase::Initialized).await;
    world.push("web:v2").await;
    world.becomes("in progress", one, |status| status.phase == Phase::Progressing).await;
    await_random_moment(&world, &chance, 1).await;
    let killed = holder().await.expect("somebody holds the shard");
    println!("killed in {:?}", world.status().phase);
    drop(replicas.remove(&killed));
    let (name, other) = replicas.first_key_value().expect("the other one");
    let status = world.becomes("over", other, |status| is_over(status, 1)).await;
    assert_eq!(status.history[0].outcome, Outcome::Promoted, "{status:#?}");
    world.push("web:v3-errors-40").await;
    let status = world.becomes("over", other, |status| is_over(status, 2)).await;
    assert_eq!(status.history[0].outcome, Outcome::RolledBack, "{status:#?}");
    assert_eq!(holder().await.as_ref(), Some(name));
    world.check(&["web:v1", "web:v2"], &[Outcome::Promoted, Outcome::RolledBack]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_other_replica_finishes_the_release_of_a_killed_one() {
    let seed = seed();
    one_of_two_replicas_is_killed(seed).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_other_replica_finishes_the_release_of_a_replica_killed_later() {
    let seed = seed();
    one_of_two_replicas_is_killed(seed.wrapping_mul(31)).await;
}

/// Carries bytes to the API server and back.
struct CuttableConnection {
    address: SocketAddr,
    cuts: watch::Sender<u32>,
    _task: AbortOnDropHandle<()>,
}

impl CuttableConnection {
    async fn to(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let cuts = watch::Sender::new(0);
        let sender = cuts.clone();
        let task = spawn(async move {
            let mut carried = JoinSet::new();
            while let Ok((mut near, _)) = listener.accept().await {
                let mut cut = sender.subscribe();
                carried.spawn(async move {
                    let mut far = TcpStream::connect(server).await.expect("the server listens");
                    tokio::select! {
                        _ = copy_bidirectional(&mut near, &mut far) => {}
                        _ = cut.changed() => std::future::pending().await,
                    }
                });
            }
        });
        Self { address, cuts, _task: task }
    }

    /// Existing connections carry no more bytes and stay open; new ones are served.
    fn cut(&self) {
        self.cuts.send_modify(|cuts| *cuts += 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_connection_is_replaced() {
    let world = World::new(seed()).await;
    let wire = CuttableConnection::to(world.api_server.address).await;
    let [there, here] = [world.api_server.address, wire.address].map(|address| address.to_string());
    let kubeconfig = world.api_server.kubeconfig().replace(&there, &here);
    world.folder.write("kubeconfig", &kubeconfig);
    let serin = world.serin(world.folder.path(), &[]);
    world.becomes("initialized", &serin, |status| status.phase == Phase::Initialized).await;
    wire.cut();
    world.push("web:v2").await;
    world.becomes("in progress", &serin, |status| status.canary_weight > Weight::ZERO).await;
    wire.cut();
    world.becomes("over", &serin, |status| is_over(status, 1)).await;
    world.check(&["web:v1", "web:v2"], &[Outcome::Promoted]).await;
}

/// Each namespace has several watches, and a connection carries a hundred
/// requests.
#[tokio::test(flavor = "multi_thread")]
async fn watches_of_many_namespaces_leave_room_for_requests() {
    let world = World::new(seed()).await;
    let others: Vec<String> = (0..30).map(|number| format!("--namespaces=other-{number}")).collect();
    let others: Vec<&str> = others.iter().map(String::as_str).collect();
    let serin = world.serin(world.folder.path(), &others);
    world.becomes("initialized", &serin, |status| status.phase == Phase::Initialized).await;
    world.push("web:v2").await;
    world.becomes("over", &serin, |status| is_over(status, 1)).await;
    world.check(&["web:v1", "web:v2"], &[Outcome::Promoted]).await;
}

/// A hundred requests a second.
async fn call(mesh: Mesh) {
    loop {
        sleep(Duration::from_millis(10)).await;
        let mesh = mesh.clone();
        tokio::spawn(async move {
            let request = Request::get("/").body(Body::empty()).expect("a request");
            mesh.send("default", "web", request).await
        });
    }
}

fn splits() -> ApiResource {
    ApiResource {
        group: "split.smi-spec.io".to_owned(),
        version: "v1alpha2".to_owned(),
        api_version: "split.smi-spec.io/v1alpha2".to_owned(),
        kind: "TrafficSplit".to_owned(),
        plural: "trafficsplits".to_owned(),
    }
}

fn canary() -> Value {
    let analysis = json!({
        "interval": "1s", "warmup": "0s", "threshold": 2, "stepWeights": [20, 50],
        "metrics": [{"name": "request-success-rate"}],
    });
    objects::canary("web", &json!({ "analysis": analysis }))
}
