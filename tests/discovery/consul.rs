//! Consul's catalogue, followed by blocking queries.

use std::time::Duration;

use kube::api::DeleteParams;
use serde_json::json;
use serin::discovery::model::{Kind, MeshKind};

use super::rest::{Home, LIMIT};
use super::support;
use super::support::consul::Consul;

#[tokio::test]
async fn a_catalogue_is_followed_without_polling() {
    let home = Home::start().await;
    let (consul, address, _serving) = Consul::start().await;
    consul.register("web", "", "");
    consul.register("web-sidecar-proxy", "connect-proxy", "web");
    home.mesh_api("dc1", json!({"consul": {"address": address}})).await;
    home.until_keys(Kind::ConsulService, &["consul:dc1 /web"]).await;
    let status = home.until_ready("dc1", "True", "complete").await;
    assert_eq!((&status["meshes"], &status["objects"]), (&json!(1), &json!(2)), "{status}");
    let meshes = home.inventory.lock().meshes();
    let [mesh] = &meshes[..] else { panic!("{meshes:#?}") };
    assert_eq!((mesh.kind, mesh.name.as_str()), (MeshKind::Consul, "dc1"));

    support::eventually("it waits for a change", LIMIT, async || consul.waits() == 1).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(consul.waits(), 1, "an idle catalogue costs no request");
    consul.register("api", "", "");
    home.until_keys(Kind::ConsulService, &["consul:dc1 /api", "consul:dc1 /web"]).await;
    consul.deregister("web");
    home.until_keys(Kind::ConsulService, &["consul:dc1 /api"]).await;
    let restore = || {
        let mut catalogue = consul.0.lock();
        catalogue.index = 3;
        catalogue.services.insert("old".to_owned(), ("", ""));
    };
    restore();
    home.until_keys(Kind::ConsulService, &["consul:dc1 /api", "consul:dc1 /old"]).await;
    consul.register("new", "", "");
    home.until_keys(Kind::ConsulService, &["consul:dc1 /api", "consul:dc1 /new", "consul:dc1 /old"]).await;
    home.apis().delete("dc1", &DeleteParams::default()).await.expect("deleted");
    support::eventually("nothing is left", LIMIT, async || home.inventory.lock().is_empty()).await;
}

#[tokio::test]
async fn a_refused_token_prunes_nothing_and_is_rotated() {
    let home = Home::start().await;
    let (consul, address, _serving) = Consul::start().await;
    consul.register("web", "", "");
    consul.0.lock().token = Some("first");
    home.secret("dc1", "rest-api", &[("token", "first\n")]).await;
    home.mesh_api("dc1", json!({"consul": {"address": address}, "secretRef": {"name": "dc1"}})).await;
    home.until_keys(Kind::ConsulService, &["consul:dc1 /web"]).await;
    consul.0.lock().token = Some("second");
    consul.deregister("web");
    consul.register("api", "", "");
    home.touch("dc1", json!({"note": "1"})).await;
    let status = home.until_ready("dc1", "False", "403: ACL not found").await;
    assert!(!status.to_string().contains("first"), "{status}");
    home.until_keys(Kind::ConsulService, &["consul:dc1 /web"]).await;
    home.touch("dc1", json!({"token": "second"})).await;
    home.until_keys(Kind::ConsulService, &["consul:dc1 /api"]).await;
    home.until_ready("dc1", "True", "complete").await;
}
