//! Requests through real Envoys.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use rcgen::SanType;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject as _};
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Value, json};
use serin::api::canary::HttpMatch;
use serin::api::mesh_route::MeshRouteSpec;
use serin::catalog::{AccessRule, Endpoint, HttpAccess, Policy, Protocol, Service, ServiceKey};
use serin::xds::{NodeConfig, Options, TlsFiles, TypeStatus};
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::callers::{Callers, Seen};
use crate::certificates::{Authority, FRONT, Issued, WEB};
use crate::plane::{LIMIT, Plane, account, key, split};
use crate::support::{Folder, eventually};
use crate::traffic::{Envoy, Workload, calls_web, local_address};

/// So many requests at each weight, with this deviation in points. Each is drawn by itself, so
/// that of 20,000 at 50 % every sixth lot is further off though the weight is right: then
/// further lots are added.
const REQUESTS: usize = 20_000;
const MAX_LOTS: usize = 10;
const MAX_SHARE_ERROR: f64 = 0.5;

struct World {
    plane: Plane,
    primary: Workload,
    canary: Workload,
    envoy: Envoy,
    listen: SocketAddr,
}

impl World {
    async fn start() -> World {
        Self::start_with(|_| {}).await
    }

    async fn start_with(change: impl FnOnce(&mut Value)) -> World {
        let plane = Plane::start().await;
        let (primary, canary) = (Workload::start("primary").await, Workload::start("canary").await);
        plane.web([primary.address, primary.address, canary.address]);
        plane.ready();
        let listen = local_address();
        let envoy = Envoy::start_with(plane.address, "caller", calls_web(listen), change).await;
        envoy.listens(listen).await;
        plane.in_force(1).await;
        World { plane, primary, canary, envoy, listen }
    }

    async fn request(&self, path: &str, headers: &[(&str, &str)]) -> reqwest::Response {
        let client = reqwest::Client::builder().no_proxy().build().expect("an HTTP client");
        let mut request = client.get(format!("http://{}{path}", self.listen));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.send().await.expect("a response")
    }

    async fn answer(&self, path: &str, headers: &[(&str, &str)]) -> Value {
        let text = self.request(path, headers).await.text().await.expect("a body");
        serde_json::from_str(&text).unwrap_or_else(|_| panic!("{path} {headers:?}: {text}"))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_follow_the_weights_and_none_is_lost() {
    let world = World::start().await;
    let callers = Callers::start(world.listen);
    for (generation, weight) in [(2, 50), (3, 500), (4, 2_000), (5, 5_000)] {
        world.plane.split(generation, weight);
        world.plane.in_force(generation).await;
        let (asked, mut all) = (f64::from(weight) / 100.0, Seen::default());
        for _ in 0..MAX_LOTS {
            all.add(callers.next(REQUESTS).await);
            assert_eq!(all.failures, Vec::<String>::new(), "{}", world.envoy.log());
            if (all.share("canary") - asked).abs() <= MAX_SHARE_ERROR {
                break;
            }
        }
        let share = all.share("canary");
        println!("asked {asked} %, measured {share:.2} % of {} requests", all.total());
        assert!((share - asked).abs() <= MAX_SHARE_ERROR, "asked {asked} %, measured {share} %");
    }
    // Back and forth, as fast as the proxy acknowledges.
    callers.take();
    for generation in 6..106 {
        world.plane.split(generation, if generation % 2 == 0 { 0 } else { 10_000 });
        let in_force = || {
            let state = world.plane.control.route_state(&key("web"));
            state.generation == Some(generation) && state.acknowledged == 1
        };
        while !in_force() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    let seen = callers.next(500).await;
    assert_eq!(seen.failures, Vec::<String>::new(), "{}", world.envoy.log());
    assert_eq!(world.envoy.statistic("listener_manager.listener_modified").await, 0, "only routes changed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_of_the_control_plane_sends_nothing_and_loses_no_request() {
    for variant in ["DELTA_GRPC", "GRPC"] {
        let change =
            |bootstrap: &mut Value| bootstrap["dynamic_resources"]["ads_config"]["api_type"] = json!(variant);
        let world = World::start_with(change).await;
        world.plane.split(2, 20_00);
        world.plane.in_force(2).await;
        let callers = Callers::start(world.listen);
        callers.next(100).await;
        let World { plane, primary, canary, envoy, listen: _ } = world;
        let address = plane.address.to_string();
        plane.stop().await;
        callers.next(500).await;

        let plane = Plane::start_at(&address, Options::default(), None).await;
        plane.web([primary.address, primary.address, canary.address]);
        plane.split(2, 20_00);
        plane.ready();
        plane.in_force(2).await;
        let synced = || {
            let proxies = plane.control.proxies();
            proxies.iter().any(|proxy| {
                proxy.types.len() == 4 && proxy.types.iter().all(|kind| kind.status == TypeStatus::Synced)
            })
        };
        eventually("it has subscribed to everything again", LIMIT, async || synced()).await;
        assert_eq!(plane.control.proxies()[0].bytes_sent, 0, "{variant}: {:?}", plane.control.proxies());
        plane.split(3, 10_000);
        plane.in_force(3).await;
        let seen = callers.next(500).await;
        assert_eq!(
            (seen.share("canary"), &seen.failures),
            (100.0, &Vec::new()),
            "{variant}: {}",
            envoy.log()
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_route_is_refused_with_its_reason_and_the_good_one_goes_on() {
    let world = World::start().await;
    let mut watch = world.plane.control.watch_routes();
    let mut bad = split(50_00);
    bad.rules[0].match_ = vec![on(json!({"headers": {"x": {"regex": "("}}}))];
    world.plane.topology.set_route(key("web"), Some((2, bad)));
    let refused = async {
        loop {
            watch.changed().await;
            if let [refusal] = &world.plane.control.route_state(&key("web")).refusals[..] {
                return refusal.clone();
            }
        }
    };
    let refusal = tokio::time::timeout(LIMIT, refused).await.expect("a report");
    assert_eq!(&*refusal.proxy, "caller");
    assert!(refusal.error.contains("missing )"), "{}", refusal.error);
    assert_eq!(world.answer("/", &[]).await["name"], "primary");
    let rejected = world.envoy.statistic(r"http\.shop_web_80\.rds\.shop/web_80\.update_rejected").await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let later = world.envoy.statistic(r"http\.shop_web_80\.rds\.shop/web_80\.update_rejected").await;
    assert_eq!((rejected, later), (1, 1), "it is not sent again");

    world.plane.split(3, 10_000);
    world.plane.in_force(3).await;
    assert_eq!(world.answer("/", &[]).await["name"], "canary");
}

#[tokio::test(flavor = "multi_thread")]
async fn rules_match_rewrite_mirror_and_retry() {
    let world = World::start().await;
    let to = |service: &str| json!([{"service": service, "weight": 1}]);
    let spec = json!({
        "service": "web", "port": 80,
        "rules": [
            {"match": [{"headers": {"x-user": {"exact": "tester"}}, "method": {"exact": "GET"}}], "backends": to("web-canary")},
            {"match": [{"headers": {"cookie": {"regex": "^(.*?;)?\\s*(type=insider)(;.*)?$"}}}], "backends": to("web-canary")},
            {"match": [{"uri": {"prefix": "/old/"}}], "backends": to("web-primary"), "rewrite": {"uri": "/new/"}},
            {"match": [{"uri": {"suffix": ".png"}}, {"uri": {"exact": "/Exact"}, "ignoreUriCase": true}],
             "backends": to("web-canary"), "rewrite": {"uri": "/whole", "authority": "other.example"}},
            {"match": [{"queryParams": {"v": {"exact": "2"}}}], "backends": to("web-canary")},
            {"match": [{"uri": {"prefix": "/without"}, "withoutHeaders": {"x-skip": {"exact": "1"}}}], "backends": to("web-canary")},
            {"match": [{"port": 81}], "backends": to("web-canary")},
            {"match": [{"uri": {"prefix": "/fail"}}], "backends": to("web-canary"),
             "retries": {"attempts": 3, "retryOn": "5xx"}, "timeout": "5s"},
            {"match": [{"uri": {"prefix": "/mirror"}}], "backends": to("web-primary"),
             "mirror": {"service": "web-canary", "percent": "100%"}},
            {"match": [{"uri": {"prefix": "/headers"}}],
             "backends": [{"service": "web-canary", "weight": 1, "setCookie": "id=50%; Max-Age=60"}],
             "headers": {"request": {"set": {"x-added": "100%"}, "remove": ["x-removed"]}, "response": {"add": {"x-response": "r"}}}},
            {"backends": to("web-primary")},
        ],
    });
    let spec: MeshRouteSpec = serde_json::from_value(spec).expect("a MeshRoute");
    world.plane.topology.set_route(key("web"), Some((2, spec)));
    world.plane.in_force(2).await;

    let name = async |path: &str, headers: &[(&str, &str)]| world.answer(path, headers).await["name"].clone();
    assert_eq!(name("/", &[]).await, "primary");
    assert_eq!(name("/", &[("x-user", "tester")]).await, "canary");
    assert_eq!(name("/", &[("x-user", "tester2")]).await, "primary");
    assert_eq!(name("/", &[("cookie", "a=b; type=insider; c=d")]).await, "canary");
    assert_eq!(name("/", &[("cookie", "type=outsider")]).await, "primary");
    assert_eq!(world.answer("/old/path?q=1", &[]).await["path"], "/new/path?q=1");
    let whole = world.answer("/a/b.png?q=1", &[]).await;
    assert_eq!(
        (&whole["name"], &whole["path"], &whole["host"]),
        (&json!("canary"), &json!("/whole?q=1"), &json!("other.example"))
    );
    assert_eq!(name("/eXact", &[]).await, "canary");
    assert_eq!(name("/?v=2", &[]).await, "canary");
    assert_eq!(name("/?v=3", &[]).await, "primary");
    assert_eq!(name("/without", &[]).await, "canary");
    assert_eq!(name("/without", &[("x-skip", "2")]).await, "canary");
    assert_eq!(name("/without", &[("x-skip", "1")]).await, "primary");

    let before = world.canary.requests.load(Ordering::Relaxed);
    assert_eq!(world.request("/fail", &[]).await.status(), 503);
    assert_eq!(world.canary.requests.load(Ordering::Relaxed) - before, 4, "one attempt and three retries");
    assert_eq!(name("/mirror", &[]).await, "primary");
    let mirrored = || world.canary.requests.load(Ordering::Relaxed) - before == 5;
    eventually("the canary got a copy", LIMIT, async || mirrored()).await;
    let response = world.request("/headers", &[("x-removed", "1")]).await;
    assert_eq!(response.headers()["set-cookie"], "id=50%; Max-Age=60");
    assert_eq!(response.headers()["x-response"], "r");
    let seen: Value = serde_json::from_str(&response.text().await.expect("a body")).expect("JSON");
    assert_eq!((&seen["added"], &seen["removed"]), (&json!("100%"), &Value::Null));
    assert!(world.primary.requests.load(Ordering::Relaxed) > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_of_a_tcp_service_follow_the_weights() {
    let plane = Plane::start().await;
    let (primary, canary) = (Workload::tcp("primary").await, Workload::tcp("canary").await);
    let tcp = |name: &str| ServiceKey { protocol: Protocol::Tcp, ..key(name) };
    for (name, workload) in [("web", &primary), ("web-primary", &primary), ("web-canary", &canary)] {
        plane.topology.set_service(tcp(name), Some(Service::default()));
        plane.endpoints.set(tcp(name), vec![Endpoint::at(workload.address)]);
    }
    plane.topology.set_route(tcp("web"), Some((1, split(0))));
    plane.ready();
    let listen = local_address();
    let envoy = Envoy::start(plane.address, "caller", calls_web(listen)).await;
    envoy.listens(listen).await;
    let share = async || {
        let mut by = BTreeMap::<String, usize>::new();
        for _ in 0..400 {
            let mut stream = TcpStream::connect(listen).await.expect("a connection");
            let mut name = String::new();
            stream.read_to_string(&mut name).await.expect("a name");
            *by.entry(name).or_default() += 1;
        }
        by
    };
    assert_eq!(share().await, BTreeMap::from([("primary".to_owned(), 400)]));
    plane.topology.set_route(tcp("web"), Some((2, split(50_00))));
    eventually("generation 2 is in force", LIMIT, async || {
        plane.control.route_state(&tcp("web")).acknowledged == 1
    })
    .await;
    let by = share().await;
    assert_eq!(by.values().sum::<usize>(), 400);
    assert!(by["canary"].abs_diff(200) < 60, "{by:?}");
}

/// Two proxies: `front` calls `web`, whose own proxy admits only what the policy does.
#[tokio::test(flavor = "multi_thread")]
async fn the_proxy_of_a_service_admits_only_whom_the_policy_does() {
    let (authority, folder) = (Authority::new(), Folder::new("xds-rbac"));
    let plane = Plane::start().await;
    let workload = Workload::start("web").await;
    let (listen, inbound) = (local_address(), local_address());
    let service = Service { accounts: vec![account("web")], ..Service::default() };
    plane.topology.set_service(key("web"), Some(service));
    let endpoint = Endpoint { mtls: true, ..Endpoint::at(inbound) };
    plane.endpoints.set(key("web"), vec![endpoint]);
    let get = HttpAccess { methods: vec!["GET".to_owned()], request: on(json!({"uri": {"prefix": "/api"}})) };
    let policy = Policy {
        destination: account("web"),
        port: None,
        sources: vec![account("front")],
        allow: AccessRule::Http(vec![get]),
    };
    plane.topology.set_policy("web".to_owned(), Some(policy));
    plane.ready();

    let web = authority.issue(|params| {
        params.subject_alt_names.push(SanType::URI(WEB.try_into().expect("a URI")));
        params.subject_alt_names.push(SanType::DnsName("localhost".try_into().expect("a name")));
    });
    let front = authority.spiffe(FRONT);
    let other = authority.spiffe("spiffe://cluster.local/ns/shop/sa/other");
    let config = NodeConfig {
        inbound: vec![
            format!("shop/web:80={inbound},{}", workload.address).parse().expect("an inbound port"),
        ],
        tls: Some(Arc::new(files(&folder, "web", &web, &authority))),
        ..NodeConfig::default()
    };
    let callee = Envoy::start(plane.address, "web", config).await;
    callee.listens(inbound).await;

    let direct =
        async |own: &Issued, method: &str, path: &str| request(&authority, own, inbound, method, path).await;
    assert_eq!(direct(&front, "GET", "/api/x").await, 200);
    assert_eq!(direct(&front, "POST", "/api/x").await, 403);
    assert_eq!(direct(&front, "GET", "/admin").await, 403);
    assert_eq!(direct(&front, "GET", "/api/../admin").await, 403, "the path is normalised first");
    assert_eq!(direct(&front, "GET", "/api/..%2Fadmin").await, 400);
    assert_eq!(direct(&other, "GET", "/api/x").await, 403);
    assert_eq!(direct(&web, "GET", "/api/x").await, 403);
    assert_eq!(workload.requests.load(Ordering::Relaxed), 1, "the others never reached it");

    // Through the caller's proxy, which presents its certificate. The control plane has no
    // TLS here, so that the caller is anonymous to it: a policy hides the endpoints.
    let config =
        NodeConfig { tls: Some(Arc::new(files(&folder, "front", &front, &authority))), ..calls_web(listen) };
    let caller = Envoy::start(plane.address, "front", config).await;
    caller.listens(listen).await;
    let client = reqwest::Client::builder().no_proxy().build().expect("an HTTP client");
    let status = async |path: &str| {
        client.get(format!("http://{listen}{path}")).send().await.expect("a response").status().as_u16()
    };
    assert_eq!(status("/api/x").await, 503, "it has no endpoints");
    plane.topology.set_policy("web".to_owned(), None);
    eventually("the endpoints are visible, and the certificates fit", LIMIT, async || {
        status("/api/x").await == 200
    })
    .await;
    let closed = Policy {
        destination: account("web"),
        port: None,
        sources: Vec::new(),
        allow: AccessRule::Everything,
    };
    plane.topology.set_policy("web".to_owned(), Some(closed));
    eventually("nobody is admitted", LIMIT, async || direct(&front, "GET", "/api/x").await == 403).await;
}

fn on(value: Value) -> HttpMatch {
    serde_json::from_value(value).expect("a match")
}

fn files(folder: &Folder, name: &str, issued: &Issued, authority: &Authority) -> TlsFiles {
    let write = |file: &str, text: &str| {
        folder.write(file, text);
        folder.join(file).display().to_string()
    };
    TlsFiles {
        certificate: write(&format!("{name}.crt"), &issued.certificate),
        key: write(&format!("{name}.key"), &issued.key),
        ca: write("ca.crt", authority.certificate()),
    }
}

/// The status of one request over mutual TLS.
async fn request(authority: &Authority, own: &Issued, address: SocketAddr, method: &str, path: &str) -> u16 {
    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_slice(authority.certificate().as_bytes()).expect("PEM"))
        .expect("an authority");
    let chain = vec![CertificateDer::from_pem_slice(own.certificate.as_bytes()).expect("PEM")];
    let key = PrivateKeyDer::from_pem_slice(own.key.as_bytes()).expect("PEM");
    let config = ClientConfig::builder().with_root_certificates(roots).with_client_auth_cert(chain, key);
    let connector = TlsConnector::from(Arc::new(config.expect("a pair")));
    let stream = TcpStream::connect(address).await.expect("a connection");
    let stream =
        connector.connect(ServerName::try_from("localhost").expect("a name"), stream).await.expect("TLS");
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.expect("a handshake");
    let connection = tokio::spawn(connection);
    let request = http::Request::builder().method(method).uri(path).header("host", "web");
    let request = request.body(http_body_util::Empty::<bytes::Bytes>::new()).expect("a request");
    let status = sender.send_request(request).await.expect("a response").status().as_u16();
    connection.abort();
    status
}
