//! Services of Consul and Cloud Map: their instances as endpoints of a group, up to what a
//! proxy is sent, and a release of one.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use envoy_types::pb::envoy::config::core::v3::{address::Address, socket_address::PortSpecifier};
use envoy_types::pb::envoy::config::endpoint::v3::{
    ClusterLoadAssignment, LbEndpoint, lb_endpoint::HostIdentifier,
};
use prost::Message as _;
use serde_json::json;
use serin::api::canary::{Phase, status::Outcome};
use serin::aws::{Account, Accounts, Keys};
use tokio::net::TcpStream;

use crate::client::{CDS, Client, EDS, node};
use crate::stage::{LIMIT, Stage};
use crate::support::consul::Consul;
use crate::support::eventually;
use crate::support::moto::Moto;

/// Address, weight and health of each endpoint of a cluster.
type Endpoints = BTreeSet<(String, u32, &'static str)>;

/// What a proxy that calls `web` was sent last, by cluster.
#[derive(Default)]
struct Sent(BTreeMap<String, Endpoints>);

async fn proxy(stage: &mut Stage) -> Client {
    stage.client().await;
    let address = SocketAddr::from(([127, 0, 0, 1], stage.control_plane));
    let bound = async || TcpStream::connect(address).await.is_ok();
    eventually("the control plane listens", LIMIT, bound).await;
    let mut proxy = Client::connect(address, node("a", &["default/web:80=127.0.0.1:15001"])).await;
    proxy.subscribe(CDS, &[]).await;
    proxy.accept(CDS).await;
    proxy
}

impl Sent {
    /// Acknowledges responses until the cluster has these endpoints.
    async fn until(&mut self, proxy: &mut Client, cluster: &str, expected: &[(&str, u32, &'static str)]) {
        let expected: Endpoints =
            expected.iter().map(|(at, weight, health)| ((*at).to_owned(), *weight, *health)).collect();
        while self.0.get(cluster) != Some(&expected) {
            let response = proxy.accept(EDS).await;
            for resource in response.resources {
                let any = resource.resource.expect("content");
                let assignment = ClusterLoadAssignment::decode(&*any.value).expect("an assignment");
                let all = assignment.endpoints.iter().flat_map(|zone| &zone.lb_endpoints);
                self.0.insert(resource.name, all.map(endpoint).collect());
            }
        }
    }
}

fn endpoint(endpoint: &LbEndpoint) -> (String, u32, &'static str) {
    let Some(HostIdentifier::Endpoint(at)) = &endpoint.host_identifier else { panic!("{endpoint:?}") };
    let address = at.address.as_ref().and_then(|address| address.address.clone());
    let Some(Address::SocketAddress(address)) = address else { panic!("{endpoint:?}") };
    let Some(PortSpecifier::PortValue(port)) = address.port_specifier else { panic!("{endpoint:?}") };
    let ip: IpAddr = address.address.parse().expect("an IP address");
    let weight = endpoint.load_balancing_weight.map_or(1, |weight| weight.value);
    (format!("{ip}:{port}"), weight, endpoint.health_status().as_str_name())
}

const HEALTHY: &str = "HEALTHY";

fn group(version: &str, registry: &str) -> String {
    format!(
        "apiVersion: serin.dev/v1alpha1\nkind: EndpointGroup\nmetadata: {{name: web}}\nspec:\n  port: 80\n  \
         version: {version}\n  registry: {{{registry}}}\n"
    )
}

const CONSUL: &str = "meshApi: dc1, service: web";

const CANARY: &str = "apiVersion: serin.dev/v1alpha1\nkind: Canary\nmetadata: {name: web}\nspec:\n  \
     targetRef: {apiVersion: serin.dev/v1alpha1, kind: EndpointGroup, name: web}\n  service: {port: 80}\n  \
     analysis: {interval: 2s, stepWeights: [50], metrics: []}\n";

#[tokio::test]
async fn a_service_of_consul_is_followed_and_released() {
    let (consul, address, _serving) = Consul::start().await;
    let version = |version: &str| json!({"version": version});
    consul.instance("web", "1", ("127.0.0.1", 8001), version("v1"));
    consul.instance("web", "2", ("", 8002), version("v2"));
    // A name is not resolved, and an instance without a version belongs to none.
    consul.instance("web", "3", ("vm.example", 8003), version("v1"));
    consul.instance("web", "4", ("127.0.0.1", 8004), json!({}));
    let mut stage = Stage::new(&[]);
    let mesh_api = format!(
        "apiVersion: serin.dev/v1alpha1\nkind: MeshApi\nmetadata: {{name: dc1}}\nspec: {{consul: {{address: \"{address}\"}}}}\n"
    );
    stage.dir.write("consul.yaml", &mesh_api);
    stage.dir.write("web.yaml", &group("v1", CONSUL));
    stage.start();

    let (mut proxy, mut sent) = (proxy(&mut stage).await, Sent::default());
    let clusters = ["default/web:80", "default/web@v1:80", "default/web@v2:80"];
    proxy.subscribe(EDS, &clusters).await;
    let (first, second) = (("127.0.0.1:8001", 10, HEALTHY), ("127.0.0.9:8002", 10, HEALTHY));
    sent.until(&mut proxy, "default/web@v1:80", &[first]).await;
    sent.until(&mut proxy, "default/web@v2:80", &[second]).await;
    sent.until(&mut proxy, "default/web:80", &[first]).await;

    consul.check("web", "2", "http", "critical");
    sent.until(&mut proxy, "default/web@v2:80", &[("127.0.0.9:8002", 10, "UNHEALTHY")]).await;
    consul.check("web", "2", "http", "warning");
    sent.until(&mut proxy, "default/web@v2:80", &[("127.0.0.9:8002", 1, HEALTHY)]).await;
    consul.check("web", "2", "_service_maintenance:2", "critical");
    sent.until(&mut proxy, "default/web@v2:80", &[("127.0.0.9:8002", 10, "DRAINING")]).await;
    consul.check("web", "2", "http", "passing");
    sent.until(&mut proxy, "default/web@v2:80", &[second]).await;
    let queries = || consul.queries("/v1/health/service/web");
    let asked = queries();
    tokio::time::sleep(std::time::Duration::from_secs(5)).await;
    assert!(queries() <= asked + 1, "a service at rest costs no request");

    stage.dir.write("canary.yaml", CANARY);
    eventually("v1 is the primary", LIMIT, async || {
        stage.group().await.status.and_then(|status| status.primary).as_deref() == Some("v1")
    })
    .await;
    stage.becomes("initialised", |status| status.phase == Phase::Initialized).await;
    stage.dir.write("web.yaml", &group("v2", CONSUL));
    assert_eq!(stage.released(1).await.outcome, Outcome::Promoted);
    let status = stage.group().await.status.expect("a status");
    assert_eq!(status.primary.as_deref(), Some("v2"));
    assert_eq!(status.endpoints.len(), 2, "a promotion leaves them: {status:?}");

    // While the registry does not answer, its instances stay.
    consul.0.lock().token = Some("secret");
    stage.kill();
    stage.start();
    assert_eq!(stage.group().await.status.expect("a status").endpoints.len(), 2);
}

#[tokio::test]
async fn a_service_of_cloud_map_has_its_instances_as_endpoints() {
    let moto = Moto::start().await;
    let (access_key_id, secret_access_key) = ("AKIATEST".to_owned(), "secret".to_owned());
    let account = Account {
        region: Some("eu-west-1".to_owned()),
        endpoint: Some(moto.url()),
        keys: Some(Keys { access_key_id, secret_access_key, session_token: None }),
        ..Account::default()
    };
    let config = Accounts::default().config(&account).await.expect("a region");
    let map = aws_sdk_servicediscovery::Client::new(&config);
    map.create_http_namespace().name("shop.local").send().await.expect("a namespace");
    let namespaces = map.list_namespaces().send().await.expect("namespaces");
    let id = namespaces.namespaces()[0].id().expect("an ID").to_owned();
    let service = map.create_service().name("web").namespace_id(id).send().await.expect("a service");
    let service = service.service.and_then(|service| service.id).expect("an ID");
    for (id, port, version) in [("one", "8001", "v1"), ("two", "8002", "v2")] {
        let instance = map.register_instance().service_id(&service).instance_id(id);
        let instance =
            instance.attributes("AWS_INSTANCE_IPV4", "10.0.0.7").attributes("AWS_INSTANCE_PORT", port);
        instance.attributes("build", version).send().await.expect("an instance");
    }

    let mut stage = Stage::new(&[]);
    let registry = "meshApi: aws, namespace: shop.local, service: web, versionKey: build";
    stage.dir.write("web.yaml", &group("v1", registry));
    let mesh_api = format!(
        "apiVersion: v1\nkind: Secret\nmetadata: {{name: aws, labels: {{serin.dev/credentials: rest-api}}}}\n\
         stringData: {{accessKeyId: AKIATEST, secretAccessKey: secret}}\n---\n\
         apiVersion: serin.dev/v1alpha1\nkind: MeshApi\nmetadata: {{name: aws}}\nspec:\n  \
         secretRef: {{name: aws}}\n  appMesh: {{regions: [eu-west-1], endpoint: \"{}\", pollInterval: 30s}}\n",
        moto.url()
    );
    stage.dir.write("aws.yaml", &mesh_api);
    stage.start();
    let (mut proxy, mut sent) = (proxy(&mut stage).await, Sent::default());
    proxy.subscribe(EDS, &["default/web@v1:80", "default/web@v2:80"]).await;
    sent.until(&mut proxy, "default/web@v1:80", &[("10.0.0.7:8001", 1, HEALTHY)]).await;
    sent.until(&mut proxy, "default/web@v2:80", &[("10.0.0.7:8002", 1, HEALTHY)]).await;
    map.deregister_instance().service_id(&service).instance_id("two").send().await.expect("deregistered");
    sent.until(&mut proxy, "default/web@v2:80", &[]).await;
}
