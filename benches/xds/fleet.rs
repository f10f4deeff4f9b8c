//! A thousand proxies, played by delta-ADS clients.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::try_join_all;
use parking_lot::Mutex;
use prost::Message as _;
use tokio::sync::Barrier;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::client::{CDS, Client, EDS, LDS, RDS, channel, node};
use crate::contender::{Contender, Running, Scene};
use crate::percentile;
use crate::weight::listener;

pub const PROXIES: usize = 1_000;
/// The first ones.
pub const CONCERNED: usize = 10;
const SERVICES: usize = 1_000;
/// Of each proxy.
const UPSTREAMS: usize = 5;
const CHANGES: u16 = 50;
/// After a change: long enough for responses that should not come.
const SETTLE: Duration = Duration::from_millis(200);

pub const ROWS: [&str; 12] = [
    "1,000 connect at once: all configured, s",
    "  CPU of the control plane, s",
    "memory with none, MB",
    "memory of a proxy, kB",
    "a change reaches all concerned: p50, ms",
    "  p99, ms",
    "  CPU of the control plane, ms",
    "bytes to each that is concerned",
    "bytes to all others",
    "1,000 connect again at once: all in step, s",
    "  CPU of the control plane, s",
    "  bytes to each, for one resource that it lacks",
];

#[derive(Default)]
pub struct Figures {
    connected: f64,
    connecting_cpu: f64,
    memory: f64,
    memory_of_proxy: f64,
    change: [f64; 2],
    change_cpu: f64,
    bytes: f64,
    bytes_to_others: f64,
    again: f64,
    again_cpu: f64,
    again_bytes: f64,
}

impl Figures {
    pub fn rows(&self) -> [f64; 12] {
        [
            self.connected,
            self.connecting_cpu,
            self.memory / 1e6,
            self.memory_of_proxy / 1e3,
            self.change[0],
            self.change[1],
            self.change_cpu,
            self.bytes,
            self.bytes_to_others,
            self.again,
            self.again_cpu,
            self.again_bytes,
        ]
    }
}

/// Responses since they were last taken: proxy, time, size.
type Received = Arc<Mutex<Vec<(usize, Instant, usize)>>>;

/// By type and name.
type Versions = BTreeMap<&'static str, BTreeMap<String, String>>;

pub async fn measure(contender: Contender) -> Figures {
    let address = "10.0.0.1:8080".to_owned();
    let scene = Scene {
        proxies: PROXIES,
        services: SERVICES,
        upstreams: UPSTREAMS,
        concerned: CONCERNED,
        listen: "127.0.0.1:15001".to_owned(),
        primary: address.clone(),
        canary: address,
    };
    let mut running = contender.start(&scene).await;
    sleep(SETTLE).await;
    let (memory, cpu, address) = (running.memory(), running.cpu(), running.address);
    let (clients, connected) = at_once((0..PROXIES).map(|n| connect(address, n))).await;
    let connecting_cpu = (running.cpu() - cpu).as_secs_f64();
    let received = Received::default();
    let end = CancellationToken::new();
    let proxies: Vec<AbortOnDropHandle<Versions>> = clients
        .into_iter()
        .enumerate()
        .map(|(n, client)| {
            let listening = listen(n, client, Arc::clone(&received), end.clone());
            AbortOnDropHandle::new(tokio::spawn(listening))
        })
        .collect();
    sleep(SETTLE * 5).await;
    received.lock().clear();
    let with_all = running.memory();
    let mut figures = changes(&mut running, &received).await;
    figures.connected = connected.as_secs_f64();
    figures.connecting_cpu = connecting_cpu;
    figures.memory = memory;
    figures.memory_of_proxy = (with_all - memory) / PROXIES as f64;

    end.cancel();
    let had = try_join_all(proxies).await.expect("proxies");
    sleep(SETTLE * 5).await;
    let cpu = running.cpu();
    let (bytes, again) =
        at_once(had.into_iter().enumerate().map(|(n, had)| reconnect(address, n, had))).await;
    figures.again = again.as_secs_f64();
    figures.again_cpu = (running.cpu() - cpu).as_secs_f64();
    figures.again_bytes = bytes.iter().sum::<usize>() as f64 / PROXIES as f64;
    figures
}

/// The results of all proxies, and how long the last one took.
async fn at_once<T: Send + 'static>(
    proxies: impl Iterator<Item = impl Future<Output = T> + Send + 'static>,
) -> (Vec<T>, Duration) {
    let start = Arc::new(Barrier::new(PROXIES + 1));
    let started = proxies.map(|proxy| {
        let start = Arc::clone(&start);
        AbortOnDropHandle::new(tokio::spawn(async move {
            start.wait().await;
            proxy.await
        }))
    });
    let started: Vec<_> = started.collect();
    start.wait().await;
    let began = Instant::now();
    let all = try_join_all(started).await.expect("a proxy");
    (all, began.elapsed())
}

/// Acknowledges everything; returns what the proxy has at the end.
async fn listen(n: usize, mut client: Client, received: Received, end: CancellationToken) -> Versions {
    loop {
        tokio::select! {
            () = end.cancelled() => return client.versions,
            response = client.message() => {
                let response = response.expect("an open stream");
                received.lock().push((n, Instant::now(), response.encoded_len()));
                client.ack(&response).await;
            }
        }
    }
}

async fn changes(running: &mut Running, received: &Received) -> Figures {
    let (mut delays, mut bytes, mut to_others) = (Vec::new(), 0, 0);
    let mut cpu = Duration::ZERO;
    for change in 1..=CHANGES {
        let before = running.cpu();
        let began = Instant::now();
        running.weight(change * 100).await;
        let reached = loop {
            let times: Vec<Instant> = received
                .lock()
                .iter()
                .filter(|(proxy, ..)| *proxy < CONCERNED)
                .map(|(_, at, _)| *at)
                .collect();
            if let (true, Some(last)) = (times.len() >= CONCERNED, times.into_iter().max()) {
                break last;
            }
            sleep(Duration::from_micros(200)).await;
        };
        delays.push(reached - began);
        running.done().await;
        sleep(SETTLE).await;
        cpu += running.cpu() - before;
        for (proxy, _, size) in received.lock().drain(..) {
            *(if proxy < CONCERNED { &mut bytes } else { &mut to_others }) += size;
        }
    }
    delays.sort_unstable();
    let milliseconds = |share| percentile(&delays, share).as_secs_f64() * 1e3;
    let each = f64::from(CHANGES);
    Figures {
        change: [milliseconds(0.5), milliseconds(0.99)],
        change_cpu: cpu.as_secs_f64() * 1e3 / each,
        bytes: bytes as f64 / each / CONCERNED as f64,
        bytes_to_others: to_others as f64 / each,
        ..Figures::default()
    }
}

/// What a proxy calls.
struct Called {
    upstreams: Vec<String>,
    clusters: Vec<String>,
    routes: Vec<String>,
}

impl Called {
    fn by(n: usize) -> Self {
        let called: Vec<usize> = (0..UPSTREAMS).map(|k| (n * UPSTREAMS + k) % SERVICES).collect();
        let mut upstreams: Vec<String> =
            called.iter().map(|index| format!("shop/service-{index}:80={}", listener(*index))).collect();
        let mut routes: Vec<String> = called.iter().map(|index| format!("shop/service-{index}:80")).collect();
        let mut clusters = routes.clone();
        if n < CONCERNED {
            upstreams.push("shop/web:80=127.0.0.1:15001".to_owned());
            routes.push("shop/web:80".to_owned());
            clusters.extend(["web", "web-primary", "web-canary"].map(|name| format!("shop/{name}:80")));
        }
        Self { upstreams, clusters, routes }
    }
}

/// With everything that it asks for.
async fn connect(address: SocketAddr, n: usize) -> Client {
    let Called { upstreams, clusters, routes } = Called::by(n);
    let (upstreams, clusters, routes) = (slices(&upstreams), slices(&clusters), slices(&routes));
    let mut client = Client::open(channel(address).await, node(&format!("proxy-{n}"), &upstreams));
    client.subscribe(CDS, &[]).await;
    client.accept_until(CDS, &clusters).await;
    client.subscribe(EDS, &clusters).await;
    client.accept_until(EDS, &clusters).await;
    client.subscribe(LDS, &[]).await;
    while client.versions.get(LDS).is_none_or(|listeners| listeners.len() < upstreams.len()) {
        client.accept(LDS).await;
    }
    client.subscribe(RDS, &routes).await;
    client.accept_until(RDS, &routes).await;
    client
}

/// With everything but one route, whose arrival shows that the rest was compared. Returns the
/// size of all responses.
async fn reconnect(address: SocketAddr, n: usize, mut had: Versions) -> usize {
    let Called { upstreams, clusters, routes } = Called::by(n);
    let (upstreams, clusters, routes) = (slices(&upstreams), slices(&clusters), slices(&routes));
    had.get_mut(RDS).expect("routes").remove(routes[0]);
    let mut client = Client::open(channel(address).await, node(&format!("proxy-{n}"), &upstreams));
    client.resubscribe(CDS, &[], &had[CDS]).await;
    client.resubscribe(EDS, &clusters, &had[EDS]).await;
    client.resubscribe(LDS, &[], &had[LDS]).await;
    client.resubscribe(RDS, &routes, &had[RDS]).await;
    let mut bytes = 0;
    loop {
        let response = client.message().await.expect("an open stream");
        bytes += response.encoded_len();
        client.ack(&response).await;
        if response.resources.iter().any(|resource| response.type_url == RDS && resource.name == routes[0]) {
            return bytes;
        }
    }
}

fn slices(texts: &[String]) -> Vec<&str> {
    texts.iter().map(String::as_str).collect()
}
