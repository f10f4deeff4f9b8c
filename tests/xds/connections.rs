//! Connections are served at a bounded rate, and end at an age with jitter.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::join_all;
use serin::xds::{ControlPlane, Options};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::client::{CDS, Client, EDS, LDS, RDS, WEB, channel, node};
use crate::delivery::addresses;
use crate::plane::{LIMIT, Plane};
use crate::support::{eventually, spawn};

async fn plane(options: Options) -> Plane {
    let plane = Plane::start_with(options, None).await;
    plane.web(addresses());
    plane.ready();
    plane
}

#[tokio::test]
async fn a_storm_of_connections_is_served_at_the_rate() {
    const RATE: u32 = 20;
    const PROXIES: u32 = 40;
    let plane = plane(Options { accept_rate: RATE, ..Options::default() }).await;
    let began = Instant::now();
    let proxy = async |n| Client::over(channel(plane.address).await, node(&format!("proxy-{n}"), &[])).await;
    let connected = join_all((0..PROXIES).map(proxy)).await;
    assert!(connected.iter().all(Result::is_ok), "a proxy waits, and is not refused");
    // Less those that come at once, and the first, which does not wait.
    let least = Duration::from_secs((PROXIES - RATE / 10 - 1).into()) / RATE;
    assert!(began.elapsed() >= least, "{PROXIES} connections after {:?}", began.elapsed());
}

/// The kernel resets connections that its queue has no place for.
#[tokio::test]
async fn connections_that_wait_for_their_turn_are_not_left_in_the_queue_of_the_kernel() {
    const PROXIES: usize = 100;
    let plane = plane(Options::default()).await;
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.bind(([127, 0, 0, 1], 0).into()).expect("a free port");
    let listener = socket.listen(16).expect("a listener");
    let address = listener.local_addr().expect("an address");
    let slow = Options { accept_rate: 1, ..Options::default() };
    let slow = ControlPlane::new(Arc::clone(&plane.catalog), slow);
    let _serving = spawn(async move { slow.serve(listener, None, CancellationToken::new()).await });
    // One after the other: the kernel answers none while its queue is full.
    let connecting = async {
        let mut connected = Vec::new();
        for _ in 0..PROXIES {
            connected.push(TcpStream::connect(address).await.expect("a connection"));
        }
        connected
    };
    timeout(LIMIT, connecting).await.expect("they are accepted before their turn");
}

#[tokio::test]
async fn connections_end_at_their_age_one_after_the_other_and_a_proxy_that_returns_is_sent_nothing() {
    const AGE: Duration = Duration::from_secs(2);
    let plane = plane(Options { max_connection_age: AGE, ..Options::default() }).await;
    let mut proxies = Vec::new();
    for n in 0..20 {
        proxies.push((Instant::now(), Client::of_web(plane.address, &format!("proxy-{n}")).await));
    }
    let ends = join_all(proxies.into_iter().map(async |(began, mut proxy)| {
        let ended = proxy.message().await.expect_err("the stream ends");
        assert_eq!(ended.code(), tonic::Code::Ok, "not as an error: {ended}");
        (began.elapsed(), std::mem::take(&mut proxy.versions))
    }))
    .await;
    let (shortest, longest) = (ends.iter().map(|end| end.0).min(), ends.iter().map(|end| end.0).max());
    let (shortest, longest) = (shortest.expect("ends"), longest.expect("ends"));
    assert!(shortest >= AGE.mul_f64(0.9), "{shortest:?}");
    assert!(longest - shortest > Duration::from_millis(50), "all at {shortest:?}: a storm");

    let versions = &ends[0].1;
    let mut proxy = Client::connect(plane.address, node("proxy-0", &["shop/web:80=127.0.0.1:15001"])).await;
    proxy.resubscribe(CDS, &[], &versions[CDS]).await;
    proxy.resubscribe(EDS, &WEB, &versions[EDS]).await;
    proxy.resubscribe(LDS, &[], &versions[LDS]).await;
    proxy.resubscribe(RDS, &["shop/web:80"], &versions[RDS]).await;
    assert_eq!(proxy.silence().await, None);
    eventually("the others are forgotten", LIMIT, async || plane.control.proxies().len() == 1).await;
}
