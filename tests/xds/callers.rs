//! Continuous requests to a listener, and who answered them.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::time::{Duration, Instant, sleep};
use tokio_util::task::AbortOnDropHandle;

/// Concurrent callers; each sends the next request after a response.
const CALLERS: usize = 8;

/// They call until dropped.
pub struct Callers {
    seen: Arc<Mutex<Seen>>,
    _work: Vec<AbortOnDropHandle<()>>,
}

#[derive(Clone, Debug, Default)]
pub struct Seen {
    pub by: BTreeMap<String, usize>,
    pub failures: Vec<String>,
}

impl Callers {
    pub fn start(address: SocketAddr) -> Callers {
        let seen = Arc::<Mutex<Seen>>::default();
        let client = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(30));
        let client = client.build().expect("an HTTP client");
        let work = (0..CALLERS).map(|_| {
            let (client, seen) = (client.clone(), Arc::clone(&seen));
            AbortOnDropHandle::new(tokio::spawn(async move {
                loop {
                    let answer = call(&client, address).await;
                    let failed = answer.is_err();
                    match answer {
                        Ok(name) => *seen.lock().by.entry(name).or_default() += 1,
                        Err(why) => seen.lock().failures.push(why),
                    }
                    if failed {
                        sleep(Duration::from_millis(10)).await;
                    }
                }
            }))
        });
        let work = work.collect();
        Callers { seen, _work: work }
    }

    /// Since the start, or the latest call of this.
    pub fn take(&self) -> Seen {
        std::mem::take(&mut *self.seen.lock())
    }

    /// The answers to this many requests from now on.
    pub async fn next(&self, count: usize) -> Seen {
        // Those that are on their way went by the former configuration.
        sleep(Duration::from_millis(200)).await;
        self.take();
        let deadline = Instant::now() + Duration::from_secs(240);
        loop {
            let seen = self.seen.lock().clone();
            if seen.by.values().sum::<usize>() >= count || !seen.failures.is_empty() {
                return seen;
            }
            assert!(Instant::now() < deadline, "{seen:?}");
            sleep(Duration::from_millis(50)).await;
        }
    }
}

impl Seen {
    pub fn total(&self) -> usize {
        self.by.values().sum()
    }

    pub fn share(&self, of: &str) -> f64 {
        100.0 * self.by.get(of).copied().unwrap_or(0) as f64 / self.total() as f64
    }

    pub fn add(&mut self, more: Seen) {
        for (name, count) in more.by {
            *self.by.entry(name).or_default() += count;
        }
        self.failures.extend(more.failures);
    }
}

async fn call(client: &reqwest::Client, address: SocketAddr) -> Result<String, String> {
    let answer =
        client.get(format!("http://{address}/")).send().await.map_err(|error| format!("{error:?}"))?;
    let name = answer.headers().get("served-by").and_then(|name| name.to_str().ok()).map(str::to_owned);
    let status = answer.status();
    let body = answer.text().await.map_err(|error| format!("{error:?}"))?;
    name.ok_or_else(|| format!("{status}: {body}"))
}
