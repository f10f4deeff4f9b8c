//! App Mesh and Cloud Map as moto imitates them. Virtual services and gateways, which it
//! lacks, are answered by the App Mesh server of the test tree. Times, which it writes as
//! text, and owners, which are access keys in place of accounts, are converted.

use std::sync::Arc;

use aws_sdk_appmesh::types::{
    AwsCloudMapInstanceAttribute, AwsCloudMapServiceDiscovery, ServiceDiscovery, TagRef, VirtualNodeSpec,
    VirtualRouterSpec,
};
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use serde_json::{Value, json};
use serin::api::endpoint_group::RegistryService;
use serin::aws::{Account, Accounts, Keys};
use serin::discovery::model::{External, Key, Kind, Object};
use serin::discovery::rest::app_mesh::{Listed, Listing};
use serin::discovery::rest::registry::Service;

use super::support::app_mesh::{AppMeshServer, MESH, OWNER};
use super::support::http_fixtures::serve;
use super::support::moto::Moto;

struct Front {
    moto: Moto,
    rest: AppMeshServer,
    http: reqwest::Client,
}

async fn forward(State(front): State<Arc<Front>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let path = parts.uri.path_and_query().expect("a path").to_string();
    let lacking = path.contains("irtualService") || path.contains("irtualGateway");
    let (to, path) = match lacking {
        true => (front.rest.url.clone(), path),
        // It would compare the owner with the access key.
        false => (front.moto.url(), path.replace(&format!("meshOwner={OWNER}"), "")),
    };
    let body = axum::body::to_bytes(body, 1 << 20).await.expect("a body").to_vec();
    let mut onward = front.http.request(parts.method, format!("{to}{path}")).body(body);
    for name in ["authorization", "content-type", "x-amz-target"] {
        if let Some(value) = parts.headers.get(name) {
            onward = onward.header(name, value);
        }
    }
    let answer = onward.send().await.expect("an answer");
    let mut response = Response::builder().status(answer.status());
    for name in ["x-amzn-errortype", "content-type"] {
        if let Some(value) = answer.headers().get(name) {
            response = response.header(name, value);
        }
    }
    let body = answer.bytes().await.expect("a body").to_vec();
    let body = match serde_json::from_slice::<Value>(&body) {
        Ok(mut value) => {
            convert(&mut value);
            value.to_string().into_bytes()
        }
        Err(_) => body,
    };
    response.body(Body::from(body)).expect("a response")
}

fn convert(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                match name.as_str() {
                    "createdAt" | "lastUpdatedAt" if value.is_string() => *value = json!(1_790_000_000),
                    "meshOwner" | "resourceOwner" => *value = json!(OWNER),
                    _ => convert(value),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(convert),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[tokio::test]
async fn meshes_virtual_nodes_and_cloud_map_instances_are_listed_from_moto() {
    let http = reqwest::Client::builder().no_proxy();
    let moto = Moto::start().await;
    let http = http.build().expect("a client");
    let front = Arc::new(Front { moto, rest: AppMeshServer::start(), http });
    let (address, _serving) = serve(axum::Router::new().fallback(forward).with_state(front)).await;
    let (access_key_id, secret_access_key) = ("AKIATEST".to_owned(), "secret".to_owned());
    let account = Account {
        region: Some("eu-west-1".to_owned()),
        endpoint: Some(format!("http://{address}")),
        keys: Some(Keys { access_key_id, secret_access_key, session_token: None }),
        ..Account::default()
    };
    let accounts = Accounts::default();
    let config = accounts.config(&account).await.expect("a region");
    let mesh = aws_sdk_appmesh::Client::new(&config);
    let map = aws_sdk_servicediscovery::Client::new(&config);

    let team = TagRef::builder().key("team").value("shop").build().expect("a tag");
    mesh.create_mesh().mesh_name(MESH).tags(team).send().await.expect("a mesh");
    // moto requires the attributes, which App Mesh does not.
    let attribute = AwsCloudMapInstanceAttribute::builder().key("app").value("web").build();
    let discovery = AwsCloudMapServiceDiscovery::builder().namespace_name("shop.local").service_name("web");
    let discovery = discovery.attributes(attribute.expect("an attribute"));
    let discovery = ServiceDiscovery::AwsCloudMap(discovery.build().expect("a service"));
    let spec = VirtualNodeSpec::builder().service_discovery(discovery).build();
    let node = mesh.create_virtual_node().mesh_name(MESH).virtual_node_name("web_shop").spec(spec);
    node.send().await.expect("a virtual node");
    let router = mesh.create_virtual_router().mesh_name(MESH).virtual_router_name("web");
    router.spec(VirtualRouterSpec::builder().build()).send().await.expect("a virtual router");
    map.create_http_namespace().name("shop.local").send().await.expect("a namespace");
    let namespaces = map.list_namespaces().send().await.expect("namespaces");
    let id = namespaces.namespaces()[0].id().expect("an ID").to_owned();
    let service = map.create_service().name("web").namespace_id(id).send().await.expect("a service");
    let id = service.service.and_then(|service| service.id).expect("an ID");
    let instance = map.register_instance().service_id(id).instance_id("10.0.0.1");
    let instance = instance
        .attributes("k8s.io/namespace", "shop")
        .attributes("k8s.io/pod", "web-abc-1")
        .attributes("appmesh.k8s.aws/mesh", MESH)
        .attributes("appmesh.k8s.aws/virtualNode", "web_shop")
        .attributes("AWS_INSTANCE_IPV4", "10.0.0.1")
        .attributes("AWS_INSTANCE_PORT", "8080")
        .attributes("AVAILABILITY_ZONE", "eu-west-1a")
        .attributes("version", "v2");
    instance.send().await.expect("an instance");

    let listing = Listing::new(&accounts, &account, None, &Default::default()).await;
    let registered = [("shop.local", "web"), ("shop.local", "absent")]
        .map(|(namespace, name)| Service { namespace: Some(namespace.to_owned()), name: name.to_owned() });
    let listed = listing.expect("a region").list(&registered.into()).await;
    let Listed { objects, registered } = listed.unwrap_or_else(|error| panic!("{error}"));
    let scope = "aws:123456789012:eu-west-1";
    let find = |namespace: &str, kind: Kind, name: &str| -> &Object {
        let key = Key::new(scope, namespace, kind, name);
        objects.iter().find(|object| object.key == key).unwrap_or_else(|| panic!("{key} in {objects:#?}"))
    };
    let tags = [("team".to_owned(), "shop".to_owned())].into();
    let expected =
        Object::external(find("", Kind::AppMeshMesh, MESH).key.clone(), Some(1), External::AppMesh { tags });
    assert_eq!(*find("", Kind::AppMeshMesh, MESH), expected);
    find(MESH, Kind::AppMeshVirtualNode, "web_shop");
    find(MESH, Kind::AppMeshVirtualRouter, "web");
    let instance = find("shop.local", Kind::CloudMapInstance, "web/10.0.0.1");
    let content = External::Instance {
        pod: Some(("shop".to_owned(), "web-abc-1".to_owned())),
        node: Some((MESH.to_owned(), "web_shop".to_owned())),
    };
    assert_eq!(*instance, Object::external(instance.key.clone(), None, content));
    assert_eq!(objects.len(), 4, "{objects:#?}");

    let [(absent, none), (web, instances)] = &registered[..] else { panic!("{registered:#?}") };
    assert_eq!((absent.name.as_str(), none.len(), web.name.as_str()), ("absent", 0, "web"));
    let [instance] = &instances[..] else { panic!("{instances:#?}") };
    let endpoint = instance.endpoint(&RegistryService::default()).expect("an endpoint");
    let expected = json!({"address": "10.0.0.1", "port": 8080, "version": "v2", "zone": "eu-west-1a"});
    assert_eq!(json!(endpoint), expected);
}
