//! Of several replicas one follows the registered APIs.

use std::sync::Arc;
use std::time::Duration;

use kube_local::{ApiServer, Options as ServerOptions};
use serde_json::json;
use serin::api::MeshApi;
use serin::clock::Clock;
use serin::controller::fence::{Fence, FenceHandle, ReplicaOwnership, ShardOwnership};
use serin::controller::{
    Controller, Environment, InventoryMode, InventoryOptions, InventoryResources, Options,
};
use serin::discovery::live::LiveInventory;
use serin::discovery::model::{Inventory, Kind};
use serin::metrics::scrape::HttpFetch;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use super::cluster::create;
use super::rest::{HOME, LIMIT, with_nodes};
use super::support::app_mesh::AppMeshServer;
use super::support::{self, definitions};

struct Replica {
    live: Arc<LiveInventory>,
    fence: FenceHandle,
    _running: AbortOnDropHandle<()>,
}

impl Replica {
    async fn start(api: &ApiServer) -> Self {
        let (fence, handle) = Fence::sharded(1);
        let live = LiveInventory::new("home");
        let fetch = Arc::new(HttpFetch::new().expect("an HTTP client"));
        let environment = Environment {
            inventory: Arc::clone(&live),
            ..Environment::new(api.client(), Clock::system(), fetch)
        };
        let inventory = InventoryOptions {
            mode: InventoryMode::Always,
            resources: InventoryResources::None,
            mesh_apis: true,
        };
        let options = Options { inventory, controller_namespace: HOME.to_owned(), ..Options::default() };
        let controller = Controller::new(environment, fence, options).await.expect("a controller");
        let running = support::spawn(controller.run(std::future::pending()));
        let known = async || live.ready().await.is_ok();
        support::eventually("its own cluster is known", LIMIT, known).await;
        Self { live, fence: handle, _running: running }
    }

    fn hold(&self, ownership: ShardOwnership) {
        let until = Some(Instant::now() + Duration::from_secs(3600));
        self.fence.ownership.send_replace(ReplicaOwnership { until, shards: vec![ownership] });
    }

    fn nodes(&self) -> usize {
        let count = |inventory: &Inventory| {
            inventory.keys().filter(|key| key.kind == Kind::AppMeshVirtualNode).count()
        };
        self.live.read(count)
    }

    /// Whether its notes have another replica for the objects of the APIs.
    fn points_elsewhere(&self) -> bool {
        self.live.unread().iter().any(|unread| unread.resource == "meshapis.serin.dev")
    }
}

#[tokio::test]
async fn one_replica_polls_and_the_next_takes_over_with_its_shard() {
    serin::tls::install_crypto_provider();
    let (api, server) = (ApiServer::new(ServerOptions::default()), AppMeshServer::start());
    with_nodes(&server, &["web", "web-canary"]);
    let client = api.client();
    definitions::install(&client, definitions::ours()).await;
    create(&client, "{apiVersion: v1, kind: Namespace, metadata: {name: serin}}").await;
    let secret = json!({"apiVersion": "v1", "kind": "Secret",
        "metadata": {"name": "prod", "namespace": HOME, "labels": {"serin.dev/credentials": "rest-api"}},
        "stringData": {"accessKeyId": "AKIATEST", "secretAccessKey": "hidden"}});
    create(&client, &secret.to_string()).await;
    let spec = json!({"secretRef": {"name": "prod"},
        "appMesh": {"regions": ["eu-west-1"], "endpoint": server.url, "pollInterval": "30s"}});
    let mesh_api = json!({"apiVersion": "serin.dev/v1alpha1", "kind": "MeshApi",
        "metadata": {"name": "prod", "namespace": HOME}, "spec": spec});
    create(&client, &mesh_api.to_string()).await;

    let (first, second) = (Replica::start(&api).await, Replica::start(&api).await);
    assert_eq!(server.requests(), [] as [String; 0], "no replica holds the shard yet");
    first.hold(ShardOwnership::Held { term: 1 });
    support::eventually("the holder lists", LIMIT, async || first.nodes() == 2).await;
    let ready = async || {
        let apis = kube::Api::<MeshApi>::namespaced(client.clone(), HOME);
        apis.get("prod").await.is_ok_and(|api| api.status.is_some())
    };
    support::eventually("the status is written", LIMIT, ready).await;
    let lists = || server.requests().iter().filter(|request| *request == "GET meshes").count();
    assert_eq!((lists(), second.nodes()), (1, 0), "one poller");
    assert!(second.points_elsewhere() && !first.points_elsewhere());

    first.hold(ShardOwnership::NotHeld);
    second.hold(ShardOwnership::Held { term: 2 });
    support::eventually("the next holder lists", LIMIT, async || second.nodes() == 2).await;
    support::eventually("the other drops them", LIMIT, async || first.nodes() == 0).await;
    support::eventually("and says where they are", LIMIT, async || first.points_elsewhere()).await;
    assert!(!second.points_elsewhere());
    assert_eq!(lists(), 2);
}
