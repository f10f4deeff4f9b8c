//! When the checks of a release begin: by the controller's own wakes and nothing else.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use serde_json::{Value, json};
use serin::api::canary::Phase;
use serin::metrics::scrape::Fetch;
use tokio::time::{Instant, sleep};

use crate::support::node::FromNode;
use crate::world::World;

/// Notes when pages are read.
struct Noted {
    pages: FromNode,
    began: Instant,
    read_at: Mutex<BTreeSet<u64>>,
}

#[async_trait]
impl Fetch for Noted {
    async fn fetch(&self, url: &str, limit: usize) -> Result<Bytes, String> {
        self.read_at.lock().insert(self.began.elapsed().as_secs());
        self.pages.fetch(url, limit).await
    }
}

fn of_steps(steps: Value, more: Value) -> Value {
    let mut analysis = json!({
        "interval": "60s", "stepWeights": null, "metrics": [{"name": "request-success-rate"}],
    });
    json_patch::merge(&mut analysis, &steps);
    let mut spec = json!({ "analysis": analysis });
    json_patch::merge(&mut spec, &more);
    spec
}

pub async fn the_first_check_of_blue_green_begins_at_once(world: World) {
    let spec = of_steps(json!({"iterations": 2}), json!({"provider": "kubernetes"}));
    let _serin = world.initialized(spec).await;
    world.push("web:v2").await;
    let status = world.becomes("in its first step", |status| status.step.is_some()).await;
    let entered = status.step.and_then(|step| step.started_at).expect("a step").0;
    let status = world
        .becomes("in its first check", |status| {
            status.step.as_ref().is_some_and(|step| step.check_started_at.is_some())
        })
        .await;
    let began = status.step.and_then(|step| step.check_started_at).expect("a check").0;
    assert!(began.duration_since(entered).as_secs() < 5, "{entered} {began}");
}

#[tokio::test(start_paused = true)]
async fn a_check_of_a_minute_is_measured_every_ten_seconds() {
    let world = World::new().await;
    world.canary(of_steps(json!({"steps": [{"weight": 20, "iterations": 5}]}), json!({}))).await;
    let pages = Noted { pages: world.scraper(), began: Instant::now(), read_at: Mutex::default() };
    let pages = Arc::new(pages);
    let _serin = world.serin_scraping(pages.clone()).await;
    world.reaches(Phase::Initialized).await;
    let _traffic = world.traffic();
    world.push("web:v2").await;
    world.event_contains("Step 1 of 1").await;
    let entered = pages.began.elapsed().as_secs();
    sleep(Duration::from_secs(155)).await;
    let read_at: Vec<u64> = pages.read_at.lock().iter().filter(|at| **at > entered).copied().collect();
    let seconds: Vec<u64> = read_at.iter().map(|at| at - entered).collect();
    assert!(seconds.len() >= 15, "measured after {seconds:?} seconds");
}
