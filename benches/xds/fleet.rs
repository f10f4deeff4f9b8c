//! A thousand proxies, played by delta-ADS clients.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use prost::Message as _;
use tokio::sync::Barrier;
use tokio::time::sleep;
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

pub const ROWS: [&str; 9] = [
    "1,000 connect at once: all configured, s",
    "  CPU of the control plane, s",
    "memory with none, MB",
    "memory of a proxy, kB",
    "a change reaches all concerned: p50, ms",
    "  p99, ms",
    "  CPU of the control plane, ms",
    "bytes to each that is concerned",
    "bytes to all others",
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
}

impl Figures {
    pub fn rows(&self) -> [f64; 9] {
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
        ]
    }
}

/// Responses since they were last taken: proxy, time, size.
type Received = Arc<Mutex<Vec<(usize, Instant, usize)>>>;

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
    let (memory, cpu) = (running.memory(), running.cpu());
    let received = Received::default();
    let start = Arc::new(Barrier::new(PROXIES + 1));
    let configured = Arc::new(Barrier::new(PROXIES + 1));
    let proxies: Vec<AbortOnDropHandle<()>> = (0..PROXIES)
        .map(|n| {
            let (address, received) = (running.address, Arc::clone(&received));
            let (start, configured) = (Arc::clone(&start), Arc::clone(&configured));
            AbortOnDropHandle::new(tokio::spawn(async move {
                start.wait().await;
                let mut client = connect(address, n).await;
                configured.wait().await;
                while let Ok(response) = client.message().await {
                    received.lock().push((n, Instant::now(), response.encoded_len()));
                    client.ack(&response).await;
                }
            }))
        })
        .collect();
    start.wait().await;
    let began = Instant::now();
    configured.wait().await;
    let connected = began.elapsed().as_secs_f64();
    let connecting_cpu = (running.cpu() - cpu).as_secs_f64();
    sleep(SETTLE * 5).await;
    received.lock().clear();
    let with_all = running.memory();
    let mut figures = changes(&mut running, &received).await;
    figures.connected = connected;
    figures.connecting_cpu = connecting_cpu;
    figures.memory = memory;
    figures.memory_of_proxy = (with_all - memory) / PROXIES as f64;
    drop(proxies);
    figures
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

/// With everything that it asks for.
async fn connect(address: std::net::SocketAddr, n: usize) -> Client {
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
    let (upstreams, clusters, routes) = (slices(&upstreams), slices(&clusters), slices(&routes));
    let node = node(&format!("proxy-{n}"), &upstreams);
    // As a proxy does, when a connection is reset in the storm.
    let mut client = loop {
        match Client::over(channel(address).await, node.clone()).await {
            Ok(client) => break client,
            Err(_) => sleep(SETTLE).await,
        }
    };
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

fn slices(texts: &[String]) -> Vec<&str> {
    texts.iter().map(String::as_str).collect()
}
