//! Which router a Canary gets, on clusters that serve one thing or another.

use kube::Client;
use serin::api::canary::Provider;
use serin::local::Local;
use serin::routing::{NoRouter, Served, select};

use crate::support::definitions::{install, shipped};
use crate::support::{self, Part};

async fn name(client: &Client, provider: Provider) -> String {
    let served = Served::discover(client).await.unwrap();
    select(Some(provider), None, &served).unwrap_or_else(|why| panic!("{why}")).router.name()
}

#[tokio::test]
async fn the_version_that_is_served_is_written() {
    let argo = Local::new(Default::default()).client();
    install(&argo, vec![shipped(Part::ArgoRollouts, "split.yaml")]).await;
    let osm = Local::new(Default::default()).client();
    install(&osm, vec![shipped(Part::Osm, "smi_traffic_split.yaml")]).await;
    for provider in [Provider::SmiV1Alpha1, Provider::SmiV1Alpha2, Provider::Linkerd, Provider::Osm] {
        assert!(name(&argo, provider).await.starts_with("smi (v1alpha4"));
        assert_eq!(name(&osm, provider).await, "smi (v1alpha2)");
    }
}

#[tokio::test]
async fn the_version_that_is_asked_for_is_preferred() {
    let cluster = support::real().await;
    let client = cluster.client().await;
    // Brings the definitions, every version served.
    crate::world::World::new(cluster, crate::rows::smi_v1alpha4()).await;
    assert_eq!(name(&client, Provider::SmiV1Alpha1).await, "smi (v1alpha1)");
    assert_eq!(name(&client, Provider::SmiV1Alpha2).await, "smi (v1alpha2)");
    assert_eq!(name(&client, Provider::SmiV1Alpha3).await, "smi (v1alpha3)");
    assert!(name(&client, Provider::SmiV1Alpha4).await.starts_with("smi (v1alpha4"));
    assert_eq!(name(&client, Provider::Kubernetes).await, "kubernetes");
}

#[tokio::test]
async fn matching_needs_route_groups_and_a_split_that_names_them() {
    let client = Local::new(Default::default()).client();
    install(&client, vec![shipped(Part::ArgoRollouts, "split.yaml")]).await;
    let matches = async || {
        let served = Served::discover(&client).await.unwrap();
        select(Some(Provider::Linkerd), None, &served).unwrap().router.capabilities().matches
    };
    assert!(!matches().await);
    assert!(name(&client, Provider::Linkerd).await.contains("without HTTPRouteGroups"));
    install(&client, vec![shipped(Part::Osm, "smi_http_route_group.yaml")]).await;
    assert!(matches().await);
}

#[tokio::test]
async fn what_is_missing_is_named() {
    let served = Served::discover(&Local::new(Default::default()).client()).await.unwrap();
    let refused = |written, default| select(written, default, &served).unwrap_err();
    let missing = refused(Some(Provider::Osm), Some(Provider::Kubernetes)).to_string();
    assert!(
        missing.contains("osm") && missing.contains("TrafficSplit") && missing.contains("split.smi-spec.io")
    );
    assert_eq!(refused(None, None), NoRouter::NotSaid);
    assert!(refused(None, Some(Provider::SmiV1Alpha2)).to_string().contains("smi:v1alpha2"));
    assert!(matches!(refused(Some(Provider::Gloo), None), NoRouter::NotSupported { .. }));
}

#[tokio::test]
async fn what_the_canary_says_comes_before_what_the_controller_says() {
    let served = Served::default();
    let chosen = select(Some(Provider::Kubernetes), Some(Provider::Osm), &served).unwrap();
    assert_eq!(chosen.provider, Provider::Kubernetes);
    let chosen = select(None, Some(Provider::Kubernetes), &served).unwrap();
    assert_eq!(chosen.provider, Provider::Kubernetes);
}
