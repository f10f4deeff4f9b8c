//! One pod of the canary is broken, and the revision is not.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use kube::ResourceExt as _;
use kube::api::ListParams;
use parking_lot::Mutex;
use serde_json::json;
use serin::api::canary::Phase;
use serin::api::canary::status::Outcome;
use serin::metrics::scrape::Fetch;

use crate::support::node::FromNode;
use crate::world::World;

/// Pages of pods. That of one of them shows its requests as failed, as those of a pod on
/// a broken node are.
struct OneBroken {
    pages: FromNode,
    address: Mutex<Option<String>>,
}

#[async_trait]
impl Fetch for OneBroken {
    async fn fetch(&self, url: &str, limit: usize) -> Result<Bytes, String> {
        let page = self.pages.fetch(url, limit).await?;
        let broken = self.address.lock().as_ref().is_some_and(|address| url.contains(address.as_str()));
        if !broken {
            return Ok(page);
        }
        let text = String::from_utf8(page.to_vec()).map_err(|error| error.to_string())?;
        Ok(Bytes::from(text.replace("\"200\"", "\"500\"")))
    }
}

#[tokio::test(start_paused = true)]
async fn a_broken_pod_is_replaced_and_its_release_promoted() {
    let world = World::new().await;
    world.apply(crate::world::workload("Deployment", "web", "web:v1")).await;
    world.patch("Deployment", "web", json!({"spec": {"replicas": 4}})).await;
    let analysis = json!({
        "interval": "8s", "stepWeights": null, "steps": [{"weight": 50, "iterations": 6}],
        "onBrokenPod": "replace", "metrics": [{"name": "request-success-rate"}],
    });
    world.canary(json!({ "analysis": analysis })).await;
    let pages = Arc::new(OneBroken { pages: world.scraper(), address: Mutex::default() });
    let _serin = world.serin_scraping(pages.clone()).await;
    world.reaches(Phase::Initialized).await;
    let _traffic = world.traffic();
    world.push("web:v2").await;
    world
        .becomes("in its first check", |status| {
            status.step.as_ref().is_some_and(|step| step.check_started_at.is_some())
        })
        .await;
    let canaries = ListParams::default().labels("app=web");
    let pods = world.objects("Pod").list(&canaries).await.expect("pods of the canary").items;
    let broken = pods.first().expect("a pod of the canary");
    let ip = broken.data["status"]["podIP"].as_str().expect("a ready pod has an address");
    *pages.address.lock() = Some(format!("{ip}:"));

    let name = broken.name_any();
    world.event_contains(&format!("Pod {name} of the canary is replaced")).await;
    world.is_gone("Pod", &name).await;
    assert_eq!(world.status().await.phase, Phase::Progressing);
    let status = world.released(1).await;
    assert_eq!(
        (status.phase, status.history[0].outcome),
        (Phase::Succeeded, Outcome::Promoted),
        "{status:?}"
    );
    let events = world.event_messages().await;
    let replaced = events.iter().filter(|event| event.contains("is replaced")).count();
    assert_eq!(replaced, 1, "{events:?}");
}
