//! Continuous requests through the Gateway, and the side that served each.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::Value;
use tokio::time::{Instant, sleep};
use tokio_util::task::AbortOnDropHandle;

/// Concurrent callers; each sends the next request after a response.
const CALLERS: usize = 4;

/// They call until dropped.
pub struct Callers {
    results: Arc<Mutex<Vec<CallResult>>>,
    _work: Vec<AbortOnDropHandle<()>>,
}

#[derive(Clone)]
pub struct CallResult {
    pub sent_at: Instant,
    pub answered_at: Instant,
    /// Whether the canary gave it; what went wrong, if something did.
    pub by_canary: Result<bool, String>,
}

impl Callers {
    pub fn start(url: &str) -> Callers {
        let answers = Arc::<Mutex<Vec<CallResult>>>::default();
        let client = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(30));
        let client = client.build().expect("an HTTP client");
        let work = (0..CALLERS).map(|_| {
            let (client, url, answers) = (client.clone(), url.to_owned(), Arc::clone(&answers));
            AbortOnDropHandle::new(tokio::spawn(async move {
                loop {
                    let called = Instant::now();
                    let by_canary = call(&client, &url).await;
                    let failed = by_canary.is_err();
                    answers.lock().push(CallResult {
                        sent_at: called,
                        answered_at: Instant::now(),
                        by_canary,
                    });
                    if failed {
                        sleep(Duration::from_millis(10)).await;
                    }
                }
            }))
        });
        let work = work.collect();
        Callers { results: answers, _work: work }
    }

    /// The results of this many calls from now on.
    pub async fn next(&self, count: usize) -> Vec<CallResult> {
        let now = Instant::now();
        loop {
            let later: Vec<CallResult> = self.since(now);
            if later.len() >= count {
                return later[..count].to_vec();
            }
            sleep(Duration::from_millis(100)).await;
        }
    }

    /// The results of the calls since then.
    pub fn since(&self, then: Instant) -> Vec<CallResult> {
        self.results.lock().iter().filter(|answer| answer.sent_at >= then).cloned().collect()
    }

    /// When the first answer of one side came after this moment.
    pub fn first(&self, after: Instant, by_canary: bool) -> Option<Instant> {
        let answers = self.results.lock();
        let so = |answer: &&CallResult| answer.answered_at > after && answer.by_canary == Ok(by_canary);
        answers.iter().filter(so).map(|answer| answer.answered_at).min()
    }
}

async fn call(client: &reqwest::Client, url: &str) -> Result<bool, String> {
    let answer = client.get(url).header("host", "web.example").send().await;
    let answer = answer.map_err(|error| format!("{error:?}"))?;
    let status = answer.status();
    let text = answer.text().await.map_err(|error| format!("{error:?}"))?;
    let who: Value = serde_json::from_str(&text).map_err(|_| format!("{status}: {text}"))?;
    let pod = who["pod"].as_str().ok_or_else(|| format!("{status}: {text}"))?;
    Ok(!pod.starts_with("web-primary-"))
}
