//! Releases through a mesh that is not in the cluster.

use std::time::Duration;

use serde_json::{Value, json};
use serin::api::Weight;
use serin::api::canary::Phase;
use serin::controller::Options;
use serin::engine::command::Verb;
use serin::routing::AppMeshOptions;

use crate::support::app_mesh::{AppMeshServer, Path};
use crate::world::World;

/// The canary's weight, each time it was written differently.
fn weights(mesh: &AppMeshServer, route: &Path) -> Vec<u64> {
    let weight = |route: &Value| route["httpRoute"]["action"]["weightedTargets"][0]["weight"].as_u64();
    let mut weights: Vec<_> =
        mesh.as_user(|people| people.history(route)).iter().filter_map(weight).collect();
    weights.dedup();
    weights
}

pub async fn one_revision_is_promoted_and_the_next_is_rolled_back(world: World) {
    let mesh = world.app_mesh();
    mesh.set_delay(Duration::from_millis(50));
    let analysis = json!({"interval": "4s", "metrics": null});
    let canary = json!({"provider": "appmesh:aws", "revertOnDeletion": true, "analysis": analysis});
    world.canary(canary).await;
    let app_mesh = AppMeshOptions { cache_ttl: Duration::from_secs(5), ..mesh.options() };
    let _serin = world.serin_with(Options { app_mesh, ..world.options() }).await;
    world.reaches(Phase::Initialized).await;

    world.push("web:v2").await;
    assert_eq!(world.released(1).await.phase, Phase::Succeeded);
    assert_eq!(world.image("web-primary").await, "web:v2");
    let route = Path::Route { router: format!("web_{}", world.namespace), name: "web".to_owned() };
    assert_eq!(weights(&mesh, &route), [0, 20, 50, 0]);

    let asked = mesh.requests().len();
    world.sleep_long().await;
    assert_eq!(mesh.requests().split_off(asked), Vec::<String>::new(), "idle costs nothing");

    world.push("web:v3").await;
    let first = Weight::from_percent(20.0).unwrap();
    world.becomes("at the first step", |status| status.canary_weight >= first).await;
    world.command(Verb::Abort).await;
    assert_eq!(world.released(2).await.phase, Phase::Failed);
    assert_eq!(world.image("web-primary").await, "web:v2");
    assert_eq!(weights(&mesh, &route)[3..], [0, 20, 0]);

    world.push("web:v2").await;
    world.reaches(Phase::Succeeded).await;
    world.delete("Canary", "web").await;
    world.is_gone("Canary", "web").await;
    let left = mesh.as_user(|people| people.all());
    assert!(left.is_empty(), "{left:?}");
}

/// As a user migrates away from App Mesh.
pub async fn another_router_takes_over_from_app_mesh(world: World) {
    let mesh = world.app_mesh();
    world.canary(json!({"provider": "appmesh:aws", "analysis": {"metrics": null}})).await;
    let _serin = world.serin_with(Options { app_mesh: mesh.options(), ..world.options() }).await;
    world.reaches(Phase::Initialized).await;
    assert!(!mesh.as_user(|people| people.all()).is_empty());
    world.edit(json!({"provider": "smi:v1alpha2"})).await;
    world.eventually("the mesh is left", async || mesh.as_user(|people| people.all()).is_empty()).await;
    assert_eq!(world.split().await, Some((0, 100)));
}

pub async fn an_app_mesh_error_is_reported(world: World) {
    let mesh = world.app_mesh();
    world.canary(json!({"provider": "appmesh:aws", "analysis": {"metrics": null}})).await;
    let app_mesh = AppMeshOptions { mesh: Some("no-such-mesh".to_owned()), ..mesh.options() };
    let _serin = world.serin_with(Options { app_mesh, ..world.options() }).await;
    let says = |text: &'static str| {
        move |status: &serin::api::CanaryStatus| {
            status.message.as_ref().is_some_and(|message| message.contains(text))
        }
    };
    world.becomes("refused", says("check the mesh (spec.service.meshName or --appmesh-mesh)")).await;
    world.edit(json!({"service": {"meshName": crate::support::app_mesh::MESH}})).await;
    world.reaches(Phase::Initialized).await;
}
