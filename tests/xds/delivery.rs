//! What is sent, to whom, in which order, and what is not sent.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serin::xds::{Options, TypeStatus};

use crate::client::{CDS, Client, EDS, LDS, RDS, SILENCE, WEB, endpoint_counts, names, node, weights};
use crate::plane::{LIMIT, Plane, key, split};
use crate::support::eventually;

pub const ADDRESSES: [&str; 3] = ["10.0.0.1:8080", "10.0.0.2:8080", "10.0.0.3:8080"];

pub fn addresses() -> [SocketAddr; 3] {
    ADDRESSES.map(|address| address.parse().expect("an address"))
}

async fn plane() -> Plane {
    let plane = Plane::start().await;
    plane.web(addresses());
    plane.ready();
    plane
}

#[tokio::test]
async fn a_proxy_gets_the_clusters_endpoints_listener_and_route_of_its_upstreams() {
    let plane = plane().await;
    let mut proxy = Client::connect(plane.address, node("a", &["shop/web:80=127.0.0.1:15001"])).await;
    proxy.subscribe(CDS, &[]).await;
    let clusters = proxy.accept(CDS).await;
    assert_eq!(names(&clusters), WEB.into());
    proxy.subscribe(EDS, &WEB).await;
    let endpoints = proxy.accept(EDS).await;
    assert_eq!(endpoint_counts(&endpoints), WEB.map(|name| (name.to_owned(), 1)).into());
    proxy.subscribe(LDS, &[]).await;
    let listeners = proxy.accept(LDS).await;
    assert_eq!(names(&listeners), ["egress/shop/web:80@127.0.0.1:15001"].into());
    proxy.subscribe(RDS, &["shop/web:80"]).await;
    let routes = proxy.accept(RDS).await;
    let expected = [("shop/web-primary:80".to_owned(), 10_000), ("shop/web-canary:80".to_owned(), 0)];
    assert_eq!(weights(&routes, "shop/web:80"), expected);
    plane.in_force(1).await;
}

#[tokio::test]
async fn endpoints_are_sent_before_the_clusters_are_acknowledged_and_routes_after() {
    let plane = plane().await;
    let mut proxy = Client::connect(plane.address, node("a", &["shop/web:80=127.0.0.1:15001"])).await;
    proxy.subscribe(CDS, &[]).await;
    let clusters = proxy.next(CDS).await;
    proxy.subscribe(RDS, &["shop/web:80"]).await;
    proxy.subscribe(EDS, &WEB).await;
    proxy.accept(EDS).await;
    assert_eq!(
        proxy.silence().await.map(|response| response.type_url),
        None,
        "the clusters are not acknowledged"
    );
    proxy.ack(&clusters).await;
    proxy.accept(RDS).await;
}

#[tokio::test]
async fn a_restart_of_the_control_plane_sends_nothing() {
    let before = plane().await;
    let mut proxy = Client::of_web(before.address, "a").await;
    let versions = std::mem::take(&mut proxy.versions);
    before.stop().await;

    let after = plane().await;
    let mut proxy = Client::connect(after.address, node("a", &["shop/web:80=127.0.0.1:15001"])).await;
    proxy.resubscribe(CDS, &[], &versions[CDS]).await;
    proxy.resubscribe(EDS, &WEB, &versions[EDS]).await;
    proxy.resubscribe(LDS, &[], &versions[LDS]).await;
    proxy.resubscribe(RDS, &["shop/web:80"], &versions[RDS]).await;
    assert_eq!(proxy.silence().await, None);
    after.in_force(1).await;
    after.split(2, 5_00);
    assert_eq!(weights(&proxy.accept(RDS).await, "shop/web:80")[1].1, 5_00);
}

/// A release goes on: a weight must not lead to a canary whose endpoints are held back.
#[tokio::test]
async fn after_a_start_new_endpoints_are_sent_at_once_and_an_empty_list_later() {
    let before = plane().await;
    let mut proxy = Client::of_web(before.address, "a").await;
    let versions = std::mem::take(&mut proxy.versions);
    before.stop().await;

    let after = Plane::start().await;
    let [apex, primary, _] = addresses();
    after.web([apex, primary, "10.0.0.4:8080".parse().expect("an address")]);
    after.endpoints.set(key("web-primary"), Vec::new());
    after.ready();
    let mut proxy = Client::connect(after.address, node("a", &["shop/web:80=127.0.0.1:15001"])).await;
    proxy.resubscribe(CDS, &[], &versions[CDS]).await;
    proxy.resubscribe(EDS, &WEB, &versions[EDS]).await;
    let first = endpoint_counts(&proxy.accept(EDS).await);
    assert_eq!(first, [("shop/web-canary:80".to_owned(), 1)].into());
    // Its proxies may not be back yet; then they are gone.
    let second = endpoint_counts(&proxy.accept(EDS).await);
    assert_eq!(second, [("shop/web-primary:80".to_owned(), 0)].into());
}

#[tokio::test]
async fn a_proxy_that_has_what_is_gone_is_told_to_remove_it() {
    let plane = plane().await;
    let mut proxy = Client::of_web(plane.address, "a").await;
    let mut versions = std::mem::take(&mut proxy.versions);
    drop(proxy);
    versions.get_mut(CDS).expect("clusters").insert("shop/old:80".to_owned(), "0123456789abcdef".to_owned());
    let mut proxy = Client::connect(plane.address, node("a", &["shop/web:80=127.0.0.1:15001"])).await;
    proxy.resubscribe(CDS, &[], &versions[CDS]).await;
    assert_eq!(proxy.silence().await, None, "a route that is in use may name it");
    proxy.resubscribe(LDS, &[], &versions[LDS]).await;
    proxy.resubscribe(RDS, &["shop/web:80"], &versions[RDS]).await;
    assert_eq!(proxy.accept(CDS).await.removed_resources, ["shop/old:80"]);
}

#[tokio::test]
async fn nobody_is_served_before_the_catalog_is_complete() {
    let plane = Plane::start().await;
    plane.web(addresses());
    let connecting = tokio::time::timeout(SILENCE, Client::of_web(plane.address, "a"));
    assert!(connecting.await.is_err(), "the endpoints may be those of half a listing");
    plane.ready();
    Client::of_web(plane.address, "a").await;
}

#[tokio::test]
async fn a_change_of_weights_reaches_only_the_proxies_that_call_the_service() {
    let plane = plane().await;
    plane.service("other", &["10.0.0.9:80".parse().expect("an address")]);
    let mut concerned = Client::of_web(plane.address, "concerned").await;
    let mut other = Client::connect(plane.address, node("other", &["shop/other:80=127.0.0.1:15002"])).await;
    other.subscribe(CDS, &[]).await;
    other.accept(CDS).await;
    other.subscribe(EDS, &["shop/other:80"]).await;
    other.accept(EDS).await;
    other.subscribe(RDS, &["shop/other:80"]).await;
    other.accept(RDS).await;
    let sent = |id: &str| {
        let proxies = plane.control.proxies();
        proxies.iter().find(|proxy| *proxy.node == *id).expect("connected").bytes_sent
    };
    let before = (sent("concerned"), sent("other"));
    plane.split(2, 20_00);
    let response = concerned.accept(RDS).await;
    assert_eq!(names(&response), ["shop/web:80"].into(), "one resource, of one service");
    assert_eq!(other.silence().await, None);
    assert!(sent("concerned") > before.0);
    assert_eq!(sent("other"), before.1);
}

#[tokio::test]
async fn one_response_is_outstanding_and_the_newest_version_follows_it() {
    let plane = plane().await;
    let mut proxy = Client::of_web(plane.address, "a").await;
    plane.split(2, 1_00);
    let first = proxy.next(RDS).await;
    for (generation, canary) in [(3, 2_00), (4, 3_00), (5, 50_00)] {
        plane.split(generation, canary);
    }
    assert_eq!(proxy.silence().await, None, "the first one is not acknowledged");
    let state = plane.control.route_state(&key("web"));
    assert_eq!((state.generation, state.proxies, state.acknowledged), (Some(5), 1, 0));
    proxy.ack(&first).await;
    assert_eq!(weights(&proxy.accept(RDS).await, "shop/web:80")[1].1, 50_00);
    plane.in_force(5).await;
    assert_eq!(proxy.silence().await, None);
}

#[tokio::test]
async fn a_refused_route_is_reported_and_not_sent_again() {
    let plane = plane().await;
    let mut proxy = Client::of_web(plane.address, "a").await;
    let mut watch = plane.control.watch_routes();
    plane.split(2, 5_00);
    let response = proxy.next(RDS).await;
    proxy.nack(&response, "no such filter").await;
    let refused = async {
        loop {
            watch.changed().await;
            let state = plane.control.route_state(&key("web"));
            if let [refusal] = &state.refusals[..] {
                return (refusal.proxy.to_string(), refusal.error.to_string(), state.acknowledged);
            }
        }
    };
    let refused = tokio::time::timeout(LIMIT, refused).await.expect("a report");
    assert_eq!(refused, ("a".to_owned(), "no such filter".to_owned(), 0));
    assert_eq!(plane.control.proxies()[0].types[3].status, TypeStatus::Nack);
    assert_eq!(proxy.silence().await, None, "it was refused");

    // What it has already is not sent, and the refusal is over.
    plane.split(3, 0);
    plane.in_force(3).await;
    assert_eq!(proxy.silence().await, None);
    assert_eq!(plane.control.proxies()[0].types[3].status, TypeStatus::Synced);
    plane.split(4, 20_00);
    proxy.accept(RDS).await;
    plane.in_force(4).await;
}

#[tokio::test]
async fn of_several_resources_the_refused_one_is_found() {
    let plane = plane().await;
    plane.service("other", &["10.0.0.9:80".parse().expect("an address")]);
    let upstreams = ["shop/web:80=127.0.0.1:15001", "shop/other:80=127.0.0.1:15002"];
    let mut proxy = Client::connect(plane.address, node("a", &upstreams)).await;
    proxy.subscribe(CDS, &[]).await;
    proxy.accept(CDS).await;
    proxy.subscribe(RDS, &["shop/web:80", "shop/other:80"]).await;
    let both = proxy.next(RDS).await;
    assert_eq!(both.resources.len(), 2);
    proxy.nack(&both, "one of them").await;
    for _ in 0..2 {
        let one = proxy.next(RDS).await;
        assert_eq!(one.resources.len(), 1);
        match names(&one).contains("shop/web:80") {
            true => proxy.nack(&one, "this one").await,
            false => proxy.ack(&one).await,
        }
    }
    assert_eq!(proxy.silence().await, None);
    let refusals = plane.control.route_state(&key("web")).refusals;
    assert_eq!(&*refusals[0].error, "this one");
    assert_eq!(plane.control.route_state(&key("other")).acknowledged, 1);
}

#[tokio::test]
async fn a_cluster_is_added_before_the_route_that_names_it_and_removed_after_it() {
    let plane = plane().await;
    let mut proxy = Client::of_web(plane.address, "a").await;
    plane.service("web-next", &["10.0.0.4:80".parse().expect("an address")]);
    let mut spec = split(50_00);
    spec.rules[0].backends[1].service = "web-next".to_owned();
    plane.topology.set_route(key("web"), Some((2, spec)));

    let clusters = proxy.next(CDS).await;
    assert_eq!((names(&clusters), clusters.removed_resources.len()), (["shop/web-next:80"].into(), 0));
    assert_eq!(proxy.silence().await, None, "the route waits for its cluster");
    proxy.ack(&clusters).await;
    let route = proxy.next(RDS).await;
    assert_eq!(weights(&route, "shop/web:80")[1].0, "shop/web-next:80");
    assert_eq!(proxy.silence().await, None, "the old route is in use");
    proxy.ack(&route).await;
    assert_eq!(proxy.accept(CDS).await.removed_resources, ["shop/web-canary:80"]);
    plane.in_force(2).await;
}

#[tokio::test]
async fn churn_of_endpoints_is_slowed_down_and_weights_are_not() {
    let plane = plane().await;
    let mut proxy = Client::of_web(plane.address, "a").await;
    let began = Instant::now();
    let mut responses = 0;
    for n in 0..100_u8 {
        plane
            .endpoints
            .set(key("web-primary"), vec![serin::catalog::Endpoint::at(([10, 1, 0, n], 80).into())]);
        plane.split(i64::from(n) + 2, u16::from(n) + 1);
        // Each weight is delivered before the next.
        let route = proxy.accept(RDS).await;
        assert_eq!(weights(&route, "shop/web:80")[1].1, u32::from(n) + 1);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let took = began.elapsed();
    while proxy.silence().await.is_some_and(|response| {
        responses += usize::from(response.type_url == EDS);
        true
    }) {}
    assert!(responses <= 2, "one is outstanding, and what followed it was coalesced: {responses}");
    // With the delays of other resources it would be more than a minute and a half.
    assert!(took < Duration::from_secs(45), "{took:?}: a decision waits for nothing");
}

#[tokio::test]
async fn a_proxy_that_is_gone_counts_until_the_patience_is_over() {
    let options = Options { patience: Duration::from_secs(1), ..Options::default() };
    let plane = Plane::start_with(options, None).await;
    plane.web(addresses());
    plane.ready();
    let proxy = Client::of_web(plane.address, "a").await;
    plane.in_force(1).await;
    drop(proxy);
    let state = || plane.control.route_state(&key("web"));
    eventually("its end is noticed", LIMIT, async || state().gone == 1).await;
    assert_eq!((state().proxies, state().acknowledged), (1, 0));
    eventually("it is forgotten", LIMIT, async || state().proxies == 0).await;

    let proxy = Client::of_web(plane.address, "a").await;
    drop(proxy);
    eventually("its end is noticed", LIMIT, async || state().gone == 1).await;
    let _proxy = Client::of_web(plane.address, "a").await;
    assert_eq!((state().proxies, state().gone), (1, 0), "it is back");
}
