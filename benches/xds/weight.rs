//! From the change of a weight to the first response by it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serin::xds::{NodeConfig, Upstream};
use tokio::sync::mpsc;
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;

use crate::contender::{Contender, Scene};
use crate::traffic::{Envoy, Workload, local_address};

const CHANGES: usize = 300;
/// Sends its next request at the response.
const CALLERS: usize = 4;
/// Between changes: longer than requests that are on their way.
const PAUSE: Duration = Duration::from_millis(40);

/// Sorted.
pub async fn measure(contender: Contender, services: usize) -> Vec<Duration> {
    let (primary, canary) = (Workload::start("primary").await, Workload::start("canary").await);
    let listen = local_address();
    let scene = Scene {
        proxies: 1,
        services,
        upstreams: services,
        concerned: 1,
        listen: listen.to_string(),
        primary: primary.address.to_string(),
        canary: canary.address.to_string(),
    };
    let mut running = contender.start(&scene).await;
    let upstream = |service: String, listen: SocketAddr| -> Upstream {
        format!("shop/{service}:80={listen}").parse().expect("an upstream")
    };
    let others = (0..services).map(|n| upstream(format!("service-{n}"), listener(n)));
    let upstreams = [upstream("web".to_owned(), listen)].into_iter().chain(others).collect();
    let node = NodeConfig { upstreams, ..NodeConfig::default() };
    let envoy = Envoy::start(running.address, "proxy-0", node).await;
    envoy.listens(listen).await;

    let by_canary = Arc::new(AtomicBool::new(false));
    let (seen, mut first) = mpsc::unbounded_channel();
    let client = reqwest::Client::builder().no_proxy().build().expect("an HTTP client");
    let callers: Vec<AbortOnDropHandle<()>> = (0..CALLERS)
        .map(|_| {
            let (client, wanted, seen) = (client.clone(), Arc::clone(&by_canary), seen.clone());
            AbortOnDropHandle::new(tokio::spawn(async move {
                let url = format!("http://{listen}/");
                loop {
                    let Ok(answer) = client.get(&url).send().await else { continue };
                    let at = Instant::now();
                    let is_canary = answer.headers().get("served-by").is_some_and(|name| name == "canary");
                    let _ = answer.bytes().await;
                    if is_canary == wanted.load(Ordering::Acquire) {
                        let _ = seen.send((is_canary, at));
                    }
                }
            }))
        })
        .collect();
    let mut delays = Vec::with_capacity(CHANGES);
    let mut share = 0;
    for change in 0..CHANGES {
        share = 10_000 - share;
        // Responses by the former weight are not wanted from here on.
        by_canary.store(share > 0, Ordering::Release);
        while first.try_recv().is_ok() {}
        let began = Instant::now();
        running.weight(share).await;
        let at = loop {
            let (is_canary, at) = first.recv().await.expect("callers");
            if is_canary == (share > 0) && at >= began {
                break at;
            }
        };
        // The first ones warm connections.
        if change >= 10 {
            delays.push(at - began);
        }
        running.done().await;
        sleep(PAUSE).await;
    }
    drop(callers);
    delays.sort_unstable();
    delays
}

/// Of the service of this number, as `testbed/go-control-plane` has it.
pub fn listener(n: usize) -> SocketAddr {
    let [third, fourth] =
        [n / 250, n % 250 + 1].map(|part| u8::try_from(part).expect("a part of an address"));
    ([127, 1, third, fourth], 15001).into()
}
