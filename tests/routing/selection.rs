//! Router selection by provider and served kinds.

use kube::Client;
use kube_local::ApiServer;
use serde_json::json;
use serin::api::Canary;
use serin::api::canary::Provider;
use serin::routing::{RouterSelectionError, ServedKinds, select};

use crate::support::definitions::{install, shipped};
use crate::support::{self, Part};

fn canary() -> Canary {
    let spec = json!({
        "targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
        "service": {"port": 80},
        "analysis": {"iterations": 1},
    });
    Canary::new("web", serde_json::from_value(spec).expect("a spec"))
}

async fn name(client: &Client, provider: Provider) -> String {
    let served = ServedKinds::discover(client).await.unwrap();
    select(Some(provider), None, &served, None).unwrap_or_else(|why| panic!("{why}")).router.name()
}

#[tokio::test]
async fn the_version_that_is_served_is_written() {
    let argo = ApiServer::new(Default::default()).client();
    install(&argo, vec![shipped(Part::ArgoRollouts, "split.yaml")]).await;
    let osm = ApiServer::new(Default::default()).client();
    install(&osm, vec![shipped(Part::Osm, "smi_traffic_split.yaml")]).await;
    for provider in [Provider::SmiV1Alpha1, Provider::SmiV1Alpha2, Provider::Linkerd, Provider::Osm] {
        assert!(name(&argo, provider).await.starts_with("smi (v1alpha4"));
        assert_eq!(name(&osm, provider).await, "smi (v1alpha2)");
    }
}

#[tokio::test]
async fn the_requested_version_is_preferred() {
    let cluster = support::real().await;
    let client = cluster.client().await;
    // Installs the definitions with every version served.
    crate::world::World::new(cluster, crate::routers::smi_v1alpha4()).await;
    assert_eq!(name(&client, Provider::SmiV1Alpha1).await, "smi (v1alpha1)");
    assert_eq!(name(&client, Provider::SmiV1Alpha2).await, "smi (v1alpha2)");
    assert_eq!(name(&client, Provider::SmiV1Alpha3).await, "smi (v1alpha3)");
    assert!(name(&client, Provider::SmiV1Alpha4).await.starts_with("smi (v1alpha4"));
    assert_eq!(name(&client, Provider::Kubernetes).await, "kubernetes");
}

#[tokio::test]
async fn matching_needs_route_groups_and_a_split_that_names_them() {
    let client = ApiServer::new(Default::default()).client();
    install(&client, vec![shipped(Part::ArgoRollouts, "split.yaml")]).await;
    let matches = async || {
        let served = ServedKinds::discover(&client).await.unwrap();
        let router = select(Some(Provider::Linkerd), None, &served, None).unwrap().router;
        router.capabilities(&canary()).matches
    };
    assert!(!matches().await);
    assert!(name(&client, Provider::Linkerd).await.contains("without HTTPRouteGroups"));
    install(&client, vec![shipped(Part::Osm, "smi_http_route_group.yaml")]).await;
    assert!(matches().await);
}

#[tokio::test]
async fn linkerd_uses_the_gateway_api_where_it_is_served() {
    let client = ApiServer::new(Default::default()).client();
    install(&client, vec![shipped(Part::ArgoRollouts, "split.yaml")]).await;
    assert!(name(&client, Provider::Linkerd).await.starts_with("smi"));
    install(&client, vec![shipped(Part::GatewayApi, "gateway.networking.k8s.io_httproutes.yaml")]).await;
    assert_eq!(name(&client, Provider::Linkerd).await, "linkerd (HTTPRoute v1)");
    assert_eq!(name(&client, Provider::GatewayApiV1).await, "gatewayapi (v1)");
    assert_eq!(name(&client, Provider::GatewayApiV1Beta1).await, "gatewayapi (v1beta1)");
    assert!(name(&client, Provider::Osm).await.starts_with("smi"));
}

#[tokio::test]
async fn a_missing_kind_is_named() {
    let served = ServedKinds::discover(&ApiServer::new(Default::default()).client()).await.unwrap();
    let refused = |written, default| select(written, default, &served, None).unwrap_err();
    let missing = refused(Some(Provider::Osm), Some(Provider::Kubernetes)).to_string();
    assert!(
        missing.contains("osm") && missing.contains("TrafficSplit") && missing.contains("split.smi-spec.io")
    );
    let kinds = [
        (Provider::GatewayApiV1, "HTTPRoute"),
        (Provider::Linkerd, "HTTPRoute"),
        (Provider::Istio, "VirtualService"),
        (Provider::AppMesh, "VirtualRouter"),
    ];
    for (provider, kind) in kinds {
        let missing = refused(Some(provider), None);
        assert!(
            matches!(missing, RouterSelectionError::NotServed { kind: named, .. } if named == kind),
            "{missing}"
        );
    }
    assert_eq!(refused(None, None), RouterSelectionError::Unset);
    let unbuilt = refused(Some(Provider::AppMeshAws), None).to_string();
    assert!(unbuilt.contains("appmesh:aws") && unbuilt.contains("the feature aws"), "{unbuilt}");
    assert!(refused(None, Some(Provider::SmiV1Alpha2)).to_string().contains("smi:v1alpha2"));
    assert!(matches!(refused(Some(Provider::Gloo), None), RouterSelectionError::NotSupported { .. }));
}

#[tokio::test]
async fn the_provider_of_the_canary_overrides_that_of_the_controller() {
    let served = ServedKinds::default();
    let chosen = select(Some(Provider::Kubernetes), Some(Provider::Osm), &served, None).unwrap();
    assert_eq!(chosen.provider, Provider::Kubernetes);
    let chosen = select(None, Some(Provider::Kubernetes), &served, None).unwrap();
    assert_eq!(chosen.provider, Provider::Kubernetes);
}
