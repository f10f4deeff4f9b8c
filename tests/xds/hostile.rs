//! Requests that no proxy sends: each ends its own stream, with a reason, and hurts no
//! other.

use std::collections::HashMap;

use envoy_types::pb::envoy::config::core::v3::Node;
use envoy_types::pb::envoy::service::discovery::v3::DeltaDiscoveryRequest;
use envoy_types::pb::google::protobuf::{ListValue, Value, value::Kind};
use serin::xds::Options;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tonic::Code;

use crate::client::{CDS, Client, EDS, RDS, SILENCE, channel, node, node_with, of, weights};
use crate::delivery::addresses;
use crate::plane::{LIMIT, Plane};
use crate::support::eventually;

const MAX_SUBSCRIPTIONS: usize = 100;

#[tokio::test]
async fn fifty_malformed_requests_are_refused_and_another_stream_goes_on() {
    let options =
        Options { max_subscriptions: MAX_SUBSCRIPTIONS, max_request_bytes: 64 * 1024, ..Options::default() };
    let plane = Plane::start_with(options, None).await;
    plane.web(addresses());
    plane.ready();
    let mut bystander = Client::of_web(plane.address, "bystander").await;

    let mut count = 0;
    for (what, request, code) in requests() {
        let mut client = Client::over(channel(plane.address).await, Node::default()).await.expect("a stream");
        client.send_raw(request).await;
        let refused = client.message().await.expect_err(&what);
        assert_eq!(refused.code(), code, "{what}: {refused}");
        assert!(!refused.message().is_empty(), "{what}: no reason");
        count += 1;
    }
    for bytes in garbage() {
        let mut stream = TcpStream::connect(plane.address).await.expect("a connection");
        let _ = stream.write_all(&bytes).await;
        let mut answer = Vec::new();
        // It is closed, or waits for more until it is too old.
        let _ = tokio::time::timeout(SILENCE / 4, stream.read_to_end(&mut answer)).await;
        count += 1;
    }
    assert!(count >= 50, "{count}");

    plane.split(2, 5_00);
    assert_eq!(weights(&bystander.accept(RDS).await, "shop/web:80")[1].1, 5_00);
    plane.in_force(2).await;
    eventually("nothing is left of the others", LIMIT, async || plane.control.proxies().len() == 1).await;
}

#[tokio::test]
async fn streams_of_one_identity_are_bounded() {
    let options = Options { max_streams_per_identity: 2, ..Options::default() };
    let plane = Plane::start_with(options, None).await;
    plane.web(addresses());
    plane.ready();
    let channel = channel(plane.address).await;
    let first = Client::over(channel.clone(), node("a", &[])).await.expect("a stream");
    let _second = Client::over(channel.clone(), node("b", &[])).await.expect("a stream");
    let refused =
        Client::over(channel.clone(), node("c", &[])).await.err().expect("the third one is refused");
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
    drop(first);
    let again = async || Client::over(channel.clone(), node("c", &[])).await.is_ok();
    eventually("a place is free again", LIMIT, again).await;
}

/// With the code of the refusal.
fn requests() -> Vec<(String, DeltaDiscoveryRequest, Code)> {
    let proxy = |request| DeltaDiscoveryRequest { node: Some(node("hostile", &[])), ..request };
    let mut all: Vec<(String, DeltaDiscoveryRequest, Code)> = Vec::new();
    let mut add = |what: &str, request, code| all.push((what.to_owned(), request, code));

    add("no node", of(CDS), Code::InvalidArgument);
    add("no node and an acknowledgement", acknowledgement("1"), Code::InvalidArgument);
    for (what, id) in
        [("empty id", String::new()), ("long id", "x".repeat(300)), ("huge id", "x".repeat(50_000))]
    {
        let node = Some(Node { id, ..Node::default() });
        add(what, DeltaDiscoveryRequest { node, ..of(CDS) }, Code::InvalidArgument);
    }
    let types = [
        "",
        "x",
        "type.googleapis.com/",
        "type.googleapis.com/envoy.config.cluster.v3.cluster",
        "type.googleapis.com/envoy.api.v2.Cluster",
        "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret",
        "type.googleapis.com/envoy.service.runtime.v3.Runtime",
        "envoy.config.cluster.v3.Cluster",
        "\u{0}\u{1}\u{2}",
        "../../etc/passwd",
    ];
    for url in types {
        add(&format!("type {url:?}"), proxy(of(url)), Code::InvalidArgument);
    }
    add("long type", proxy(of(&"x".repeat(10_000))), Code::InvalidArgument);

    let upstreams = [
        "",
        "web",
        "shop/web",
        "shop/web:80",
        "shop/web:0=127.0.0.1:1",
        "shop/web:65536=127.0.0.1:1",
        "shop/web:-1=127.0.0.1:1",
        "/web:80=127.0.0.1:1",
        "shop/:80=127.0.0.1:1",
        "a/b/c/d:80=127.0.0.1:1",
        "shop/w eb:80=127.0.0.1:1",
        "shop/web:80=localhost:1",
        "shop/web:80=127.0.0.1",
        "shop/web:80=127.0.0.1:99999",
        "shop/web\n:80=127.0.0.1:1",
        "shop/../../web:80=127.0.0.1:1",
    ];
    for upstream in upstreams {
        let request = DeltaDiscoveryRequest { node: Some(node("hostile", &[upstream])), ..of(CDS) };
        add(&format!("upstream {upstream:?}"), request, Code::InvalidArgument);
    }
    let with =
        |field, kind| DeltaDiscoveryRequest { node: Some(node_with("hostile", [(field, kind)])), ..of(CDS) };
    let text = |text: &str| Kind::StringValue(text.to_owned());
    let list = |values: Vec<Kind>| {
        Kind::ListValue(ListValue {
            values: values.into_iter().map(|kind| Value { kind: Some(kind) }).collect(),
        })
    };
    let wrong: [(&str, &str, Kind); 8] = [
        ("upstreams are no list", "upstreams", text("shop/web:80=127.0.0.1:1")),
        ("upstreams are numbers", "upstreams", list(vec![Kind::NumberValue(1.0)])),
        ("upstreams are nested", "upstreams", list(vec![list(vec![])])),
        ("too many upstreams", "upstreams", list(vec![text("x"); 1001])),
        ("inbound without application", "inbound", list(vec![text("shop/web:80=127.0.0.1:1")])),
        ("inbound is a number", "inbound", Kind::NumberValue(f64::NAN)),
        ("announce is a text", "announce", text("yes")),
        (
            "one address twice",
            "upstreams",
            list(vec![text("shop/web:80=127.0.0.1:1"), text("shop/a:80=127.0.0.1:1")]),
        ),
    ];
    for (what, field, kind) in wrong {
        add(what, with(field, kind), Code::InvalidArgument);
    }

    let names = |count: usize, of: fn(usize) -> String| (0..count).map(of).collect::<Vec<_>>();
    let subscribe = |url, names| proxy(DeltaDiscoveryRequest { resource_names_subscribe: names, ..of(url) });
    let many = names(MAX_SUBSCRIPTIONS + 1, |n| format!("shop/web-{n}:80"));
    add("too many endpoints", subscribe(EDS, many.clone()), Code::ResourceExhausted);
    add("too many routes", subscribe(RDS, many.clone()), Code::ResourceExhausted);
    add("too many clusters", subscribe(CDS, many.clone()), Code::ResourceExhausted);
    let initial: HashMap<_, _> = many.into_iter().map(|name| (name, "1".to_owned())).collect();
    let request = proxy(DeltaDiscoveryRequest { initial_resource_versions: initial, ..of(EDS) });
    add("too many versions", request, Code::ResourceExhausted);
    add("an empty name", subscribe(EDS, vec![String::new()]), Code::InvalidArgument);
    add("a long name", subscribe(EDS, vec!["x".repeat(1000)]), Code::InvalidArgument);
    let initial = HashMap::from([("x".repeat(1000), "1".to_owned())]);
    let request = proxy(DeltaDiscoveryRequest { initial_resource_versions: initial, ..of(EDS) });
    add("a version of a long name", request, Code::InvalidArgument);
    add("a large request", subscribe(EDS, names(1, |_| "x".repeat(100_000))), Code::OutOfRange);
    add("a larger request", subscribe(EDS, names(50, |_| "x".repeat(10_000))), Code::OutOfRange);
    all
}

fn acknowledgement(nonce: &str) -> DeltaDiscoveryRequest {
    DeltaDiscoveryRequest { response_nonce: nonce.to_owned(), ..of(CDS) }
}

/// Not even HTTP/2, or not gRPC.
fn garbage() -> Vec<Vec<u8>> {
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    let after = |frame: &[u8]| [&preface, frame].concat();
    vec![
        Vec::new(),
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        vec![0; 4096],
        vec![0xff; 4096],
        preface[..10].to_vec(),
        // A frame of the maximal length, of an unknown type, on a stream that is not open.
        after(&[0xff, 0xff, 0xff, 0x42, 0, 0, 0, 0, 1]),
        after(&[0, 0, 8, 1, 5, 0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]),
        // SETTINGS with an initial window that is too large.
        after(&[0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 4, 0xff, 0xff, 0xff, 0xff]),
    ]
}

#[tokio::test]
async fn stale_and_made_up_acknowledgements_are_ignored() {
    let plane = Plane::start().await;
    plane.web(addresses());
    plane.ready();
    let mut proxy = Client::of_web(plane.address, "a").await;
    for nonce in ["0", "1", "999999", "x", "18446744073709551616"] {
        proxy.send(DeltaDiscoveryRequest { response_nonce: nonce.to_owned(), ..of(RDS) }).await;
    }
    assert_eq!(proxy.silence().await, None);
    plane.split(2, 5_00);
    let response = proxy.next(RDS).await;
    proxy.send(DeltaDiscoveryRequest { response_nonce: "7".to_owned(), ..of(RDS) }).await;
    plane.split(3, 6_00);
    assert_eq!(proxy.silence().await, None, "the response is still outstanding");
    proxy.ack(&response).await;
    proxy.accept(RDS).await;
    plane.in_force(3).await;
}
