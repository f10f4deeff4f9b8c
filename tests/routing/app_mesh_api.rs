//! Tests specific to the App Mesh API.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::http::Method;
use serde_json::{Value, json};
use serin::api::Weight;
use serin::engine::action::Split;
use serin::routing::{AppMeshOptions, Error, RouteContext, Unsupported, app_mesh, aws};

use crate::routers::{self, RouterCase, app_mesh_router};
use crate::steps::match_conditions;
use crate::support;
use crate::support::app_mesh::{AppMeshServer, Fault, OWNER, Path};
use crate::world::{World, create_canary};

async fn world() -> World {
    World::new(support::local().await, routers::app_mesh_api()).await
}

/// With a router of other options.
async fn world_with(change: impl FnOnce(&mut AppMeshOptions)) -> World {
    let case = routers::app_mesh_api();
    let mut options = case.mesh.as_ref().expect("a mesh").options();
    change(&mut options);
    World::new(support::local().await, RouterCase { router: app_mesh_router(options), ..case }).await
}

fn mesh(world: &World) -> &AppMeshServer {
    world.case.mesh.as_ref().expect("a mesh")
}

fn ten() -> Split {
    Split::weight(Weight::from_percent(10.0).unwrap())
}

fn node(world: &World, name: &str) -> Path {
    Path::Node(format!("{name}_{}", world.namespace))
}

fn service(world: &World, name: &str) -> Path {
    Path::Service(format!("{name}.{}", world.namespace))
}

fn router(world: &World) -> Path {
    Path::Router(format!("web_{}", world.namespace))
}

fn route(world: &World, name: &str) -> Path {
    Path::Route { router: format!("web_{}", world.namespace), name: name.to_owned() }
}

fn spec(world: &World, path: &Path) -> Value {
    mesh(world).as_user(|user| user.find(path)).unwrap_or_else(|| panic!("{path:?} does not exist")).0
}

fn exists(world: &World, path: &Path) -> bool {
    mesh(world).as_user(|user| user.find(path)).is_some()
}

/// Creates resources without our tags.
fn create_as_user(world: &World, things: &[(&Path, Value)]) {
    mesh(world).as_user(|user| {
        things.iter().for_each(|(path, spec)| user.create(path, spec.clone(), BTreeMap::new()));
    });
}

fn listening() -> Value {
    json!({"listeners": [{"portMapping": {"port": 8080, "protocol": "http"}}]})
}

fn http(prefix: &str, targets: Value) -> Value {
    json!({"httpRoute": {"match": {"prefix": prefix}, "action": {"weightedTargets": targets}}})
}

fn weighted_target(node: &str) -> Value {
    json!([{"virtualNode": node, "weight": 100}])
}

#[tokio::test]
async fn nodes_and_services_are_created_from_the_spec() {
    let mut world = world().await;
    world
        .edit(json!({"service": {"backends": ["cart.shop"], "timeout": "15s",
            "retries": {"attempts": 3, "perTryTimeout": "1s", "retryOn": "gateway-error,client-error"}}}))
        .await;
    world.set(&ten()).await;
    let wait = json!({"unit": "ms", "value": 15000});
    assert_eq!(
        spec(&world, &node(&world, "web-canary")),
        json!({
            "listeners": [{"portMapping": {"port": 8080, "protocol": "http"},
                "timeout": {"http": {"perRequest": wait}}}],
            "serviceDiscovery": {"dns": {"hostname": format!("web-canary.{}.svc.cluster.local", world.namespace)}},
            "backends": [{"virtualService": {"virtualServiceName": "cart.shop"}}],
        })
    );
    let [canary, primary] = ["web-canary", "web-primary"].map(|name| format!("{name}_{}", world.namespace));
    let leads =
        json!({"provider": {"virtualRouter": {"virtualRouterName": format!("web_{}", world.namespace)}}});
    assert_eq!(spec(&world, &service(&world, "web")), leads);
    let leads = json!({"provider": {"virtualNode": {"virtualNodeName": canary}}});
    assert_eq!(spec(&world, &service(&world, "web-canary")), leads);
    assert_eq!(
        spec(&world, &route(&world, "web"))["httpRoute"],
        json!({
            "match": {"prefix": "/"},
            "action": {"weightedTargets": [{"virtualNode": canary, "weight": 10}, {"virtualNode": primary, "weight": 90}]},
            "timeout": {"perRequest": wait},
            "retryPolicy": {"maxRetries": 3, "perRetryTimeout": {"unit": "ms", "value": 1000},
                "httpRetryEvents": ["gateway-error", "client-error"]},
        })
    );
    let (_, tags) = mesh(&world).as_user(|user| user.find(&router(&world))).expect("a router");
    assert_eq!(tags["serin.dev/canary"], format!("{}/web", world.namespace));
}

#[tokio::test]
async fn unset_fields_are_removed_and_fields_of_others_are_kept() {
    let mut world = world().await;
    world.set(&ten()).await;
    let theirs = json!({"maxRetries": 2, "perRetryTimeout": {"unit": "s", "value": 1}, "tcpRetryEvents": ["connection-error"]});
    world.patch_as_user(&world.route(), &json!({"spec": {"httpRoute": {"retryPolicy": theirs}}})).await;
    world.edit(json!({"service": {"timeout": "15s", "backends": ["cart.shop"]}})).await;
    assert_eq!(world.split().await, None);
    world.set(&ten()).await;
    assert_eq!(spec(&world, &route(&world, "web"))["httpRoute"]["timeout"]["perRequest"]["value"], 15000);
    // Also for a controller that has just started.
    let options = mesh(&world).options();
    world.case.router = app_mesh_router(options);
    world.edit(json!({"service": {"timeout": null, "backends": null}})).await;
    assert_eq!(world.split().await, None);
    world.set(&ten()).await;
    let (route, node) = (spec(&world, &route(&world, "web")), spec(&world, &node(&world, "web-canary")));
    assert_eq!((route["httpRoute"].get("timeout"), &route["httpRoute"]["retryPolicy"]), (None, &theirs));
    assert_eq!((node.get("backends"), node["listeners"][0].get("timeout")), (None, None));
}

#[tokio::test]
async fn pods_can_be_found_by_cloud_map() {
    let world = world_with(|options| options.cloud_map_namespace = Some("shop.local".to_owned())).await;
    world.set(&ten()).await;
    let name = format!("web-primary_{}", world.namespace);
    let discovery = json!({"awsCloudMap": {"namespaceName": "shop.local", "serviceName": name}});
    assert_eq!(spec(&world, &node(&world, "web-primary"))["serviceDiscovery"], discovery);
}

#[tokio::test]
async fn each_condition_has_a_route_before_the_others() {
    let mut world = world().await;
    world.edit(json!({"service": {"match": [{"uri": {"prefix": "/shop"}}]}})).await;
    world.set(&Split { matches: match_conditions(&world), ..ten() }).await;
    let matched = |name: &str| {
        let route = spec(&world, &route(&world, name));
        (route["priority"].clone(), route["httpRoute"]["match"].clone())
    };
    let cookie =
        json!([{"name": "cookie", "invert": false, "match": {"regex": "^(.*?;)?(type=insider)(;.*)?$"}}]);
    assert_eq!(matched("web-match-0"), (json!(10), json!({"prefix": "/shop", "headers": cookie})));
    assert_eq!(matched("web-match-1").1["prefix"], "/beta");
    assert_eq!(matched("web-match-1").1["method"], "GET");
    assert_eq!(matched("web"), (Value::Null, json!({"prefix": "/shop"})));
    let all =
        spec(&world, &route(&world, "web-match-0"))["httpRoute"]["action"]["weightedTargets"][0].clone();
    assert_eq!(all["weight"], 100);
    world.set(&ten()).await;
    assert!(!exists(&world, &route(&world, "web-match-0")) && !exists(&world, &route(&world, "web-match-1")));
}

/// The conditions in force are known to a controller that has just started.
#[tokio::test]
async fn another_controller_instance_reads_the_same_split() {
    let mut world = world().await;
    let conditions = json!([{"headers": {"x-team": {"exact": "ours"}}}]);
    world.edit(json!({"analysis": {"match": conditions}})).await;
    let split = Split { matches: world.canary.spec.analysis.match_[..].into(), ..ten() };
    world.set(&split).await;
    let options = mesh(&world).options();
    world.case.router = app_mesh_router(options);
    assert_eq!(world.split().await, Some(split));
}

/// Existing virtual services, routers and nodes are used; of an existing route
/// only the targets change.
#[tokio::test]
async fn existing_resources_are_adopted_and_restored() {
    let world = world().await;
    let theirs = |name: &str| Path::Route { router: "front".to_owned(), name: name.to_owned() };
    let mut shop = http("/", json!([{"virtualNode": "web", "weight": 100, "port": 8080}]));
    shop["priority"] = json!(7);
    shop["httpRoute"]["timeout"] = json!({"idle": {"unit": "s", "value": 60}});
    shop["httpRoute"]["retryPolicy"] = json!({"maxRetries": 2, "perRetryTimeout": {"unit": "s", "value": 1}, "tcpRetryEvents": ["connection-error"]});
    let legacy = http("/legacy", weighted_target("legacy"));
    let leads = json!({"provider": {"virtualRouter": {"virtualRouterName": "front"}}});
    create_as_user(
        &world,
        &[
            (&Path::Node("web".to_owned()), listening()),
            (&Path::Node("legacy".to_owned()), listening()),
            (&Path::Router("front".to_owned()), listening()),
            (&theirs("shop"), shop.clone()),
            (&theirs("legacy"), legacy.clone()),
            (&service(&world, "web"), leads.clone()),
        ],
    );
    mesh(&world).set_page(1);
    for split in [Split::all_primary(), ten(), Split { matches: match_conditions(&world), ..ten() }] {
        world.set(&split).await;
        let now = spec(&world, &theirs("shop"));
        for field in ["timeout", "retryPolicy", "match"] {
            assert_eq!(now["httpRoute"][field], shop["httpRoute"][field], "{field}");
        }
        assert_eq!(now["httpRoute"]["action"]["weightedTargets"].as_array().expect("targets").len(), 2);
        assert_eq!((&now["priority"], spec(&world, &theirs("legacy"))), (&json!(7), legacy.clone()));
    }
    // Before the existing route, in the order of the Canary.
    assert_eq!(spec(&world, &theirs("shop-match-0"))["priority"], 5);
    assert_eq!(spec(&world, &theirs("shop-match-1"))["priority"], 6);
    assert!(!exists(&world, &router(&world)) && !exists(&world, &route(&world, "web")));

    world.restore().await;
    assert_eq!((spec(&world, &theirs("shop")), spec(&world, &theirs("legacy"))), (shop, legacy));
    assert_eq!(spec(&world, &service(&world, "web")), leads);
    let ours = [theirs("shop-match-0"), node(&world, "web-primary"), service(&world, "web-canary")];
    assert!(ours.iter().all(|path| !exists(&world, path)));
    let (_, tags) = mesh(&world).as_user(|user| user.find(&theirs("shop"))).expect("a route");
    assert_eq!(tags, BTreeMap::new());
}

#[tokio::test]
async fn a_route_of_priority_zero_blocks_matched_requests() {
    let world = world().await;
    let mut first = http("/", weighted_target("web"));
    first["priority"] = json!(0);
    create_as_user(
        &world,
        &[
            (&Path::Node("web".to_owned()), listening()),
            (&router(&world), listening()),
            (&route(&world, "web"), first),
        ],
    );
    let refused = world.try_set(&Split { matches: match_conditions(&world), ..ten() }).await;
    assert!(refused.as_ref().is_err_and(Error::is_final), "{refused:?}");
    assert!(refused.unwrap_err().to_string().contains("greater number"));
    world.set(&ten()).await;
}

#[tokio::test]
async fn a_service_that_bypasses_the_router_is_refused_before_any_write() {
    let world = world().await;
    let leads = json!({"provider": {"virtualNode": {"virtualNodeName": "web"}}});
    create_as_user(&world, &[(&Path::Node("web".to_owned()), listening()), (&service(&world, "web"), leads)]);
    let refused = world.try_set(&Split::all_primary()).await;
    let unsupported =
        matches!(&refused, Err(Error::AppMesh(aws::Error::Unsupported(Unsupported::Field { .. }))));
    assert!(unsupported, "{refused:?}");
    assert!(world.find(&world.service("web")).await.is_none());
    assert_eq!(mesh(&world).writes(), 0);
}

#[tokio::test]
async fn mesh_resources_of_another_canary_are_not_taken_over() {
    let mut world = world().await;
    world.edit(json!({"service": {"hosts": ["shop.example.com"]}})).await;
    world.set(&ten()).await;
    let mut spec_ = serde_json::to_value(&world.canary.spec).expect("a spec");
    spec_["service"]["name"] = json!("rival");
    let rival = create_canary(&world.client, &world.namespace, "rival", spec_).await;
    let on = RouteContext { canary: &rival, pod_selectors: &world.selectors, services_memo: None };
    let cache = world.cached_objects().await;
    world.router().refresh(&rival).await.unwrap();
    let refused = world.router().apply_split(&world.client, &on, &cache, &Split::all_primary()).await;
    assert!(refused.as_ref().is_err_and(Error::is_final), "{refused:?}");
    assert!(refused.unwrap_err().to_string().contains(&format!("the Canary {}/web", world.namespace)));
    assert_eq!(world.split().await, Some(ten()));
}

#[tokio::test]
async fn a_write_counts_once_it_is_visible() {
    let world = world().await;
    world.set(&Split::all_primary()).await;
    mesh(&world).set_delay(Duration::from_millis(700));
    world.set(&ten()).await;
    mesh(&world).set_delay(Duration::from_secs(7));
    let late = Split::weight(Weight::from_percent(20.0).unwrap());
    let outcome = world.try_set(&late).await;
    assert!(outcome.as_ref().is_err_and(|error| !error.is_final()), "{outcome:?}");
    assert!(outcome.unwrap_err().to_string().contains("does not return it yet"));
    assert_ne!(world.split_in(&world.cached_objects().await), Some(late.clone()));
    tokio::time::sleep(Duration::from_secs(4)).await;
    let writes = mesh(&world).writes();
    world.set(&late).await;
    assert_eq!(mesh(&world).writes(), writes, "it was written already");
}

/// The SDK retries with the same client token, so the write happens once.
#[tokio::test]
async fn throttled_and_transient_failures_are_retried() {
    let world = world().await;
    world.set(&Split::all_primary()).await;
    let written = mesh(&world).as_user(|user| user.history(&route(&world, "web")).len());
    let path = "/routes/web";
    for (method, code) in [
        (Method::PUT, "TooManyRequestsException"),
        (Method::PUT, "ServiceUnavailableException"),
        (Method::GET, "InternalServerErrorException"),
    ] {
        mesh(&world).fail(Fault { method, path, code, times: 1 });
    }
    world.set(&ten()).await;
    let now = mesh(&world).as_user(|user| user.history(&route(&world, "web")).len());
    assert_eq!(now, written + 1);
}

#[tokio::test]
async fn every_error_names_the_attempt_and_a_remedy() {
    let world = world().await;
    world.set(&Split::all_primary()).await;
    let cases = [
        ("BadRequestException", true, "correct spec.service"),
        ("ConflictException", false, "at the same time"),
        ("ForbiddenException", true, "let the controller's role"),
        ("InternalServerErrorException", false, "trying again"),
        ("LimitExceededException", true, "have it raised"),
        ("NotFoundException", false, "changed while"),
        ("ServiceUnavailableException", false, "temporarily unavailable"),
        ("TooManyRequestsException", false, "throttles requests"),
        ("AccessDeniedException", true, "let the controller's role"),
        ("SomethingNewException", false, "--appmesh-endpoint"),
    ];
    for (code, is_final, text) in cases {
        mesh(&world).fail(Fault { method: Method::PUT, path: "/routes/web", code, times: 3 });
        let error = world.try_set(&ten()).await.expect_err(code);
        assert_eq!(error.is_final(), is_final, "{code}: {error}");
        let sentence = error.to_string();
        assert!(sentence.contains(text) && sentence.contains("route web"), "{code}: {sentence}");
        mesh(&world).clear_faults();
    }
    world.set(&ten()).await;
}

#[tokio::test]
async fn a_wrong_mesh_or_owner_is_refused() {
    let missing = world_with(|options| options.mesh = Some("no-such-mesh".to_owned())).await;
    let refused = missing.try_set(&Split::all_primary()).await.expect_err("no mesh");
    assert!(refused.is_final() && refused.to_string().contains("--appmesh-mesh"), "{refused}");

    let shared = world_with(|options| options.mesh_owner = Some(OWNER.to_owned())).await;
    shared.set(&ten()).await;
    let other = world_with(|options| options.mesh_owner = Some("999999999999".to_owned())).await;
    let refused = other.router().refresh(&other.canary).await.expect_err("another owner");
    assert!(refused.is_final() && refused.to_string().contains("not allowed"), "{refused}");

    let mut unnamed = world_with(|options| options.mesh = None).await;
    let plan = serin::engine::Plan::try_from(&unnamed.canary).expect("a plan");
    let refused = unnamed.router().check(&unnamed.canary, &plan).expect_err("no mesh is named");
    assert!(refused.to_string().contains("--appmesh-mesh"), "{refused}");
    assert!(unnamed.is_restored().await, "there is nothing to restore");
    unnamed.edit(json!({"service": {"meshName": support::app_mesh::MESH}})).await;
    unnamed.set(&ten()).await;
}

#[tokio::test]
async fn an_exhausted_quota_is_reported() {
    let world = world().await;
    mesh(&world).set_quota(1);
    world.set(&ten()).await;
    let refused =
        world.try_set(&Split { matches: match_conditions(&world), ..ten() }).await.expect_err("a quota");
    assert!(refused.is_final() && refused.to_string().contains("quota"), "{refused}");
}

#[tokio::test]
async fn resources_that_others_use_are_left_in_place() {
    let world = world().await;
    world.set(&ten()).await;
    let primary = node(&world, "web-primary");
    let name = format!("web-primary_{}", world.namespace);
    create_as_user(&world, &[(&route(&world, "theirs"), http("/theirs", weighted_target(&name)))]);
    world.restore().await;
    for path in [&primary, &router(&world)] {
        let (_, tags) = mesh(&world).as_user(|user| user.find(path)).expect("a resource in use");
        assert_eq!(tags, BTreeMap::new(), "{path:?}");
    }
    let gone = [node(&world, "web-canary"), service(&world, "web"), route(&world, "web")];
    assert!(gone.iter().all(|path| !exists(&world, path)));
}

#[tokio::test]
async fn a_replica_that_lost_its_shard_writes_nothing() {
    let mut world = world().await;
    world.set(&Split::all_primary()).await;
    let options = mesh(&world).options();
    let here = world.namespace.clone();
    let check_fence = move |namespace: &str, name: &str| (namespace, name) != (here.as_str(), "web");
    let writes = mesh(&world).writes();
    let fenced = app_mesh(&options, Arc::new(check_fence)).expect("a router");
    world.case.router = fenced;
    let refused = world.try_set(&ten()).await.expect_err("a fence");
    assert!(!refused.is_final() && refused.to_string().contains("shard"), "{refused}");
    assert_eq!(mesh(&world).writes(), writes);
}

#[tokio::test]
async fn a_fetched_state_is_cached_for_a_while() {
    let world = world_with(|options| options.cache_ttl = Duration::from_secs(3600)).await;
    world.router().refresh(&world.canary).await.unwrap();
    let before = mesh(&world).requests().len();
    world.router().refresh(&world.canary).await.unwrap();
    assert_eq!(mesh(&world).requests().len(), before);
    world.set(&Split::all_primary()).await;
    let before = mesh(&world).requests().len();
    world.set(&Split::all_primary()).await;
    assert_eq!(mesh(&world).requests().len(), before, "a split in force costs no request");
}

/// An idle refresh takes six requests: unchanged routes are not described.
#[tokio::test]
async fn a_refresh_sends_only_the_necessary_requests() {
    let world = world().await;
    world.set(&Split::all_primary()).await;
    world.cached_objects().await;
    let before = mesh(&world).requests().len();
    world.cached_objects().await;
    let requests = mesh(&world).requests().split_off(before);
    assert_eq!(requests.len(), 6, "{requests:?}");
}

#[tokio::test]
async fn a_renamed_service_moves_all_resources() {
    let mut world = world().await;
    world.edit(json!({"service": {"hosts": ["shop.example.com"]}})).await;
    world.set(&ten()).await;
    let before = world.canary.clone();
    world.edit(json!({"service": {"name": "shop"}})).await;
    world.try_set(&ten()).await.unwrap();
    world.router().cleanup_external(&before, Some(&world.canary)).await.unwrap();
    assert!(!exists(&world, &router(&world)) && !exists(&world, &node(&world, "web-primary")));
    let router = format!("shop_{}", world.namespace);
    let leads = json!({"provider": {"virtualRouter": {"virtualRouterName": router}}});
    assert_eq!(spec(&world, &Path::Service("shop.example.com".to_owned())), leads);
    assert_eq!(world.split().await, Some(ten()));
    // Another router takes over.
    world.router().cleanup_external(&world.canary, None).await.unwrap();
    assert!(!exists(&world, &Path::Service("shop.example.com".to_owned())));
    assert!(!exists(&world, &Path::Router(router)));
}
