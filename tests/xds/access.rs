//! What an identity may see.

use std::collections::BTreeMap;

use envoy_types::pb::google::protobuf::{ListValue, Value, value::Kind};
use serin::catalog::{AccessRule, DefaultAccess, Policy, Service};
use serin::xds::Options;

use crate::certificates::{Authority, FRONT, WEB};
use crate::client::{self, CDS, Client, EDS, endpoint_counts, node, node_with};
use crate::delivery::addresses;
use crate::plane::{LIMIT, Plane, account, key};
use crate::support::{Folder, eventually};

fn admit(sources: &[&str]) -> Policy {
    Policy {
        destination: account("web"),
        port: None,
        sources: sources.iter().map(|name| account(name)).collect(),
        allow: AccessRule::Everything,
    }
}

async fn plane(authority: &Authority, folder: &Folder) -> Plane {
    let options = Options { patience: std::time::Duration::from_millis(100), ..Options::default() };
    let plane = Plane::start_with(options, Some(authority.control_plane(folder, &[]))).await;
    plane.web(addresses());
    for name in ["web", "web-primary", "web-canary"] {
        let service = Service { accounts: vec![account("web")], ..Service::default() };
        plane.topology.set_service(key(name), Some(service));
    }
    plane.ready();
    plane
}

async fn proxy(authority: &Authority, plane: &Plane, uri: &str) -> (Client, BTreeMap<String, usize>) {
    let own = authority.spiffe(uri);
    let channel = authority.channel(plane.address, Some(&own)).await.expect("a connection");
    let node = node(uri, &["shop/web:80=127.0.0.1:15001"]);
    let mut proxy = Client::over(channel, node).await.expect("a stream");
    proxy.subscribe(CDS, &[]).await;
    proxy.accept(CDS).await;
    proxy.subscribe(EDS, &client::WEB).await;
    let endpoints = endpoint_counts(&proxy.accept(EDS).await);
    (proxy, endpoints)
}

fn each(count: usize) -> BTreeMap<String, usize> {
    client::WEB.map(|name| (name.to_owned(), count)).into()
}

#[tokio::test]
async fn the_wrong_identity_gets_no_endpoints_and_follows_the_policy() {
    let (authority, folder) = (Authority::new(), Folder::new("xds-access"));
    let plane = plane(&authority, &folder).await;
    plane.topology.set_policy("front".to_owned(), Some(admit(&["front"])));
    let (mut front, endpoints) = proxy(&authority, &plane, FRONT).await;
    assert_eq!(endpoints, each(1));
    let (mut other, endpoints) = proxy(&authority, &plane, "spiffe://cluster.local/ns/shop/sa/other").await;
    assert_eq!(endpoints, each(0));
    // A name in another form than a ServiceAccount's is in no policy.
    let (_, endpoints) = proxy(&authority, &plane, "spiffe://cluster.local/front").await;
    assert_eq!(endpoints, each(0));

    plane.topology.set_policy("front".to_owned(), Some(admit(&["other"])));
    let mut counts = BTreeMap::new();
    while counts.values().sum::<usize>() < 3 {
        counts.extend(endpoint_counts(&other.accept(EDS).await));
    }
    assert_eq!(counts, each(1), "it is admitted");
    let mut counts = each(1);
    while counts.values().sum::<usize>() > 0 {
        counts.extend(endpoint_counts(&front.accept(EDS).await));
    }
    assert_eq!(other.silence().await, None);
}

#[tokio::test]
async fn a_service_without_a_policy_is_open_or_closed_by_the_flag() {
    let (authority, folder) = (Authority::new(), Folder::new("xds-default"));
    let plane = plane(&authority, &folder).await;
    assert_eq!(proxy(&authority, &plane, FRONT).await.1, each(1));
    plane.catalog.set_default_access(DefaultAccess::Closed);
    let (mut front, endpoints) = proxy(&authority, &plane, FRONT).await;
    assert_eq!(endpoints, each(0));
    // One that appears later is closed from its first endpoint on.
    front.subscribe(EDS, &["shop/late:80"]).await;
    assert_eq!(endpoint_counts(&front.accept(EDS).await).get("shop/late:80"), Some(&0));
    plane.service("late", &addresses());
    assert_eq!(front.silence().await, None);
}

#[tokio::test]
async fn a_proxy_announces_endpoints_of_its_own_service_only() {
    let (authority, folder) = (Authority::new(), Folder::new("xds-announce"));
    let plane = plane(&authority, &folder).await;
    let announce = async |uri: &str| {
        let own = authority.spiffe(uri);
        let channel = authority.channel(plane.address, Some(&own)).await.expect("a connection");
        let inbound = Kind::StringValue("shop/web:80=0.0.0.0:15080,127.0.0.1:8080".to_owned());
        let inbound = Kind::ListValue(ListValue { values: vec![Value { kind: Some(inbound) }] });
        let fields = [("inbound", inbound), ("announce", Kind::BoolValue(true))];
        let mut proxy = Client::over(channel, node_with(uri, fields)).await.expect("a stream");
        proxy.subscribe(CDS, &[]).await;
        proxy.accept(CDS).await;
        proxy
    };
    let count = || plane.catalog.endpoints(&key("web")).endpoints.len();
    let wrong = announce(FRONT).await;
    assert_eq!(count(), 1, "the service is of another ServiceAccount");
    let right = announce(WEB).await;
    let endpoints = plane.catalog.endpoints(&key("web")).endpoints;
    assert!(
        endpoints.iter().any(|endpoint| endpoint.address.to_string() == "127.0.0.1:15080"),
        "{endpoints:?}"
    );
    drop((right, wrong));
    eventually("it leaves with its proxy", LIMIT, async || count() == 1).await;
}
